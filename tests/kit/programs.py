"""Programs that a test needs and that Python's packages do not bring."""

from __future__ import annotations

import os
import shutil

import pytest


def program(name: str, package: str) -> str:
    """Return the path of a program. Without it the test is skipped, except where all tests must
    run, as in CI.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
    return shutil.which(name, path=path) or missing(
        f"{name} is not installed (Debian: apt-get install {package})"
    )


def missing(reason: str) -> str:
    """Skip the test that needs this; fail it if ``ALL_TESTS_MUST_RUN`` is set, as .ci/run does."""
    if os.environ.get("ALL_TESTS_MUST_RUN"):
        pytest.fail(reason)
    pytest.skip(reason)
