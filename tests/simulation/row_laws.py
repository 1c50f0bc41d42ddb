"""The laws of rows and ledger beside each other, at any moment, and of what the jobs' policies
allow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tests.kit.laws import Ledger, rows_and_ledger
from tests.kit.records import PLANNED
from tests.simulation.trace import Trace

from slotwise.spi import Definition


@dataclass
class RowLaws:
    """Read off the tables."""

    trace: Trace
    definitions: Mapping[str, Definition]
    after_restores: bool = False

    def check(self, ledger: Ledger) -> None:
        self._places(ledger)
        if self.after_restores:
            # the ledger and the rows are of different times, until the rows have been claimed
            return
        self.trace.expect_none(rows_and_ledger(ledger))
        self._left_out_by_overlap(ledger)

    def _places(self, ledger: Ledger) -> None:
        """Of a job's slots only so many run, or wait for a retry, as its overlap allows; of a
        task, as concurrency.
        """
        beside = Counter(
            row["task_name"]
            for row in ledger.rows
            if row["plan_instance"] and row["origin"] in PLANNED
        )
        for job, count in beside.items():
            if count > self.definitions[job].overlap.max and not self.after_restores:
                raise self.trace.fail("overlap", f"{count} side by side", job, None)
        for name, count in Counter(
            row["task_name"] for row in ledger.rows if row["picked"]
        ).items():
            most = self.definitions[name].concurrency
            if most is not None and count > most:
                raise self.trace.fail("concurrency", f"{count} at a time", name, None)

    def _left_out_by_overlap(self, ledger: Ledger) -> None:
        """queue(n) leaves out only what n newer slots have come after; queue_all leaves out
        nothing.
        """
        for job, gaps in ledger.gaps.items():
            overlap = self.definitions[job].overlap
            schedule = self.definitions[job].schedule
            if schedule is None or overlap.mode not in ("queue", "queue_all"):
                continue
            for gap in gaps:
                if gap["reason"] != "overlap":
                    continue
                newer = schedule.count_between(gap["last_slot"], gap["created"])
                if overlap.mode == "queue_all" or newer < overlap.max:
                    raise self.trace.fail(
                        "overlap",
                        f"left out with {newer} newer ones",
                        job,
                        gap["last_slot"],
                    )
