"""``--progress``: what runs, how many of how many have run, and for how long, instead of a dot per
test.

A terminal shows one line that changes each second; a log gets a line each quarter of a minute. A
failure is named at once, and told in full at the end. A log ends with the costs of each directory
and of the slowest tests.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Generator, Sequence
from typing import Any

import pytest

#: Seconds between two lines of a log.
SELDOM = 15.0
#: Seconds between two changes of a terminal's line.
OFTEN = 1.0
#: A run whose tests take fewer seconds together ends without a table of them.
WORTH_A_TABLE = 60.0
#: How many tests that table names.
SLOWEST = 40
CLEAR = "\r\x1b[K"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--progress",
        action="store_true",
        help="show what runs, how many of how many, and how long",
    )


@pytest.hookimpl(trylast=True)  # after the terminal reporter
def pytest_configure(config: pytest.Config) -> None:
    reporter: Any = config.pluginmanager.getplugin("terminalreporter")
    is_worker = hasattr(config, "workerinput")
    if (
        config.getoption("--progress")
        and not is_worker
        and not config.option.collectonly
        and config.option.verbose < 1
    ):
        reporter.showfspath = False
        reporter._show_progress_info = False
        config.pluginmanager.register(
            Progress(config.get_terminal_writer(), is_terminal=reporter.isatty),
            "progress",
        )


class Progress:
    """Listens to the process that hands out the tests."""

    def __init__(self, out: Any, *, is_terminal: bool) -> None:
        self._out = out
        self._is_terminal = is_terminal
        self._began = time.monotonic()
        self._total = 0
        self._ran: set[str] = set()
        self._failed: set[str] = set()
        #: Seconds by test, its fixtures included.
        self._took: dict[str, float] = defaultdict(float)
        #: Since when each test runs.
        self._running: dict[str, float] = {}
        self._ended = threading.Event()
        self._painter = threading.Thread(
            target=self._keep_painting, name="progress", daemon=True
        )

    # -- what pytest tells ------------------------------------------------------------------------

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._begin(len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._begin(len(ids))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)
        self._ran.add(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._took[report.nodeid] += report.duration
        if report.failed and report.nodeid not in self._failed:
            self._failed.add(report.nodeid)
            self._write(f"FAILED {report.nodeid}\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, Any, Any]:
        """Counted as ever, shown by us."""
        category, _, word = yield
        return category, "", word

    def pytest_sessionfinish(self) -> None:
        self._ended.set()
        if self._painter.is_alive():
            self._painter.join()
        self._write(f"{self._state()}\n{'' if self._is_terminal else self.costs()}")

    # -- what is shown ----------------------------------------------------------------------------

    def _begin(self, total: int) -> None:
        self._total = total
        if total and self._painter.ident is None:
            self._painter.start()

    def _keep_painting(self) -> None:
        while not self._ended.wait(OFTEN if self._is_terminal else SELDOM):
            self.paint()

    def paint(self) -> None:
        self._write(
            f"{self._state()}{self._longest()}" + ("" if self._is_terminal else "\n")
        )

    def costs(self) -> str:
        """The seconds of each directory of tests, and the slowest tests, if the run was long."""
        if sum(self._took.values()) < WORTH_A_TABLE:
            return ""
        directories: dict[str, float] = defaultdict(float)
        for name, seconds in self._took.items():
            directories["/".join(name.partition("::")[0].split("/")[:2])] += seconds
        slowest = sorted(self._took.items(), key=lambda item: -item[1])[:SLOWEST]
        rows = [*sorted(directories.items(), key=lambda item: -item[1]), *slowest]
        return "".join(f"{seconds:8.1f} s  {name}\n" for name, seconds in rows)

    def _state(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        failed = f", {len(self._failed)} failed" if self._failed else ""
        share = 100 * len(self._ran) // max(self._total, 1)
        return f"{minutes}:{seconds:02}  {len(self._ran)} of {self._total} tests, {share} %{failed}"

    def _longest(self) -> str:
        """Of the tests that run, the one that has run for the longest."""
        running = min(
            self._running.copy().items(), key=lambda item: item[1], default=None
        )
        return (
            f"  {running[0]}, {time.monotonic() - running[1]:.0f} s" if running else ""
        )

    def _write(self, text: str) -> None:
        """Whole lines, or in a terminal what stands in the last one."""
        if self._is_terminal:
            text = CLEAR + (
                text if text.endswith("\n") else text[: self._out.fullwidth - 1]
            )
        self._out.write(text, flush=True)
