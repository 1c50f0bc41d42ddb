"""``tests/quarantine.txt``: tests that are not yet sure. They run, are reported, and fail no run.

Each line is the id of a test, the date since when, and why. The list is to be empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

LIST = Path(__file__).parents[1] / "quarantine.txt"
LINE = re.compile(
    r"(?P<test>tests/\S+\.py::\S+) (?P<since>\d{4}-\d\d-\d\d) (?P<why>\S.*)"
)


def read(text: str) -> Mapping[str, str]:
    """The reason of each test in the list; ValueError if a line is not one."""
    found = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        if (match := LINE.fullmatch(line)) is None:
            raise ValueError(
                f"quarantine.txt: {line!r} is not: TEST YYYY-MM-DD REASON"
            )
        found[match["test"]] = f"quarantined since {match['since']}: {match['why']}"
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    quarantined = read(LIST.read_text())
    for item in items:
        name = item.nodeid.partition("[")[0]
        if reason := quarantined.get(item.nodeid) or quarantined.get(name):
            item.add_marker(pytest.mark.xfail(strict=False, reason=reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for outcome in ("xfailed", "xpassed"):
        for report in terminalreporter.getreports(outcome):
            if (reason := getattr(report, "wasxfail", "")).startswith("quarantined"):
                terminalreporter.write_line(f"{outcome} {report.nodeid}: {reason}")
