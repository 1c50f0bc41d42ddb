"""What every test can ask for."""

from __future__ import annotations

import signal
from collections.abc import Generator

import pytest

pytest_plugins = [
    "tests.databases",
    "tests.mariadb",
    "tests.kit.dialect",
    "tests.kit.galera",
    "tests.kit.lasting",
    "tests.kit.leaks",
    "tests.kit.leftovers",
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
