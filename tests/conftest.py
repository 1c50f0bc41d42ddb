"""What every test can ask for."""

from __future__ import annotations

import logging
import signal
from collections.abc import Generator, Iterator

import pytest

pytest_plugins = [
    "tests.databases",
    "tests.mariadb",
    "tests.kit.dialect",
    "tests.kit.lasting",
    "tests.kit.leaks",
    "tests.kit.order",
    "tests.kit.processes",
    "tests.kit.progress",
    "tests.kit.quarantine",
    "tests.kit.selection",
    "tests.ledger_author",
]


def pytest_configure() -> None:
    """Undo what ``nohup`` and a shell's ``&`` do: tests send these signals, and children inherit
    that they are ignored.
    """
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[
    None, pytest.TestReport, pytest.TestReport
]:
    """Escape lone surrogates in what a test has logged: a report with one ends the whole run under
    xdist.
    """
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode())
        for name, text in report.sections
    ]
    return report


@pytest.fixture(autouse=True)
def _logging_ends_with_its_test() -> Iterator[None]:
    """A command that ran in this process has sent all log records to a stderr that is closed after
    its test.
    """
    root = logging.getLogger()
    level, before = root.level, list(root.handlers)
    yield
    for handler in [
        one
        for one in root.handlers
        if type(one) is logging.StreamHandler and one not in before
    ]:
        root.removeHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(False)
