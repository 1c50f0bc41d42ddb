"""What every test can ask for."""

from __future__ import annotations

from collections.abc import Generator

import pytest

pytest_plugins = [
    "tests.databases", "tests.kit.lasting", "tests.kit.progress", "tests.kit.selection", "tests.ledger_author",
]  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape lone surrogates in what a test has logged: a report with one ends the whole run under xdist."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report
