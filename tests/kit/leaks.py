"""``--leaks``: blame the test that left a connection, a file or a socket open, not a later one.

Without it, Python warns when its garbage collector finds the object, which may be in any later test
of the same process. Only a failed test keeps what its traceback refers to.
"""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--leaks", action="store_true", help="collect garbage after each test"
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    yield
    if item.config.getoption("--leaks"):
        gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed could not clean up: what it leaves open fails no other test."""
    report = yield
    if report.failed:
        item.config.addinivalue_line("filterwarnings", "ignore::ResourceWarning")
    return report
