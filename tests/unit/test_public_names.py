"""What ``slotwise`` offers: listed names, each of which is there."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

from tests.kit.records import vocabulary

import slotwise
import slotwise.inspect
import slotwise.operations
import slotwise.spi


def test_the_package_lists_its_public_names_only() -> None:
    """In a fresh process: no module of ours or of others, and nothing that is loaded later is
    missing.
    """
    code = "import slotwise; print(dir(slotwise) == sorted(slotwise.__all__))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert run.stdout == "True\n"
    assert [name for name in dir(slotwise) if not hasattr(slotwise, name)] == []
    assert list(slotwise.__all__) == sorted(
        set(slotwise.__all__), key=lambda name: (not name[0].isupper(), name)
    )


def test_the_version_is_where_people_look() -> None:
    """It is that of the installed package, and is not listed."""
    assert slotwise.__version__ == version("slotwise")
    assert "__version__" not in dir(slotwise)


def test_a_feature_registers_its_reasons() -> None:
    """By the public name of the vocabulary's function."""
    assert slotwise.spi.register_reason is vocabulary.register_reason
