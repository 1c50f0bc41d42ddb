"""``--progress``: a log gets lines, a terminal one line that changes, and both the name of each
failure.
"""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from tests.kit.progress import Progress


class Paper(io.StringIO):
    """What a terminal writer is to this display."""

    fullwidth = 60

    def write(self, text: str, *, flush: bool = False) -> int:
        return super().write(text)


def shown(*, is_terminal: bool) -> str:
    """Of three tests one has run well, one fails, one still runs."""
    paper = Paper()
    progress = Progress(paper, is_terminal=is_terminal)
    progress._total = 3
    for name in ("a.py::well", "a.py::badly", "a.py::long"):
        progress.pytest_runtest_logstart(name)
    for _ in range(2):  # the call has failed, and so has the teardown
        failure: Any = SimpleNamespace(failed=True, nodeid="a.py::badly", duration=1.0)
        progress.pytest_runtest_logreport(failure)
    for name in ("a.py::well", "a.py::badly"):
        progress.pytest_runtest_logfinish(name)
    progress.paint()
    progress.pytest_sessionfinish()
    return paper.getvalue()


@pytest.mark.parametrize(
    ("is_terminal", "expected"),
    [
        pytest.param(
            False,
            "FAILED a.py::badly\n"
            "0:00  2 of 3 tests, 66 %, 1 failed  a.py::long, 0 s\n"
            "0:00  2 of 3 tests, 66 %, 1 failed\n",
            id="log",
        ),
        pytest.param(
            True,
            "\r\x1b[KFAILED a.py::badly\n"
            "\r\x1b[K0:00  2 of 3 tests, 66 %, 1 failed  a.py::long, 0 s"
            "\r\x1b[K0:00  2 of 3 tests, 66 %, 1 failed\n",
            id="terminal",
        ),
    ],
)
def test_progress_is_shown(is_terminal: bool, expected: str) -> None:
    """What has run, of how many, what runs, and a failure once."""
    assert shown(is_terminal=is_terminal) == expected


def test_a_long_run_ends_with_its_costs() -> None:
    """Each directory with the sum of its tests, then the slowest tests; setup, call and teardown
    count.
    """
    progress = Progress(Paper(), is_terminal=False)
    for name, seconds in [
        ("tests/a/x.py::one", 50.0),
        ("tests/a/x.py::one", 5.0),
        ("tests/b/y.py::two", 10.0),
    ]:
        report: Any = SimpleNamespace(failed=False, nodeid=name, duration=seconds)
        progress.pytest_runtest_logreport(report)
    assert [line.split() for line in progress.costs().splitlines()] == [
        ["55.0", "s", "tests/a"],
        ["10.0", "s", "tests/b"],
        ["55.0", "s", "tests/a/x.py::one"],
        ["10.0", "s", "tests/b/y.py::two"],
    ]
