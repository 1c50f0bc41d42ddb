"""The laws of rows and ledger beside each other, at any moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.simulation.ledger import Ledger
from tests.simulation.trace import Trace

from slotwise.jobs.definition import Definition

#: Slots that the schedule has started; others stand beside the overlap rules.
PLANNED = ("schedule", "catch_up")


@dataclass
class RowLaws:
    """Read off the tables."""

    trace: Trace
    definitions: Mapping[str, Definition]
    after_restores: bool = False

    def check(self, ledger: Ledger) -> None:
        slots = [row for row in ledger.rows if row["slot"] is not None and self.definitions[row["task_name"]].is_job]
        self._places(ledger)
        if self.after_restores:
            return  # the ledger and the rows are of different times, until the rows have been claimed
        self._one_row(slots)
        self._one_claim(slots, ledger)
        self._none_done_waits(slots, ledger)
        self._none_forgotten(slots, ledger)
        self._left_out_by_overlap(ledger)

    def _one_row(self, slots: list[Any]) -> None:
        """A slot stands in one row: its plan row, or one of its own."""
        for (job, slot), count in Counter((row["task_name"], row["slot"]) for row in slots).items():
            if count > 1:
                raise self.trace.fail("one row", f"in {count} rows", job, slot)

    def _one_claim(self, slots: list[Any], ledger: Ledger) -> None:
        """At most one claim holds a slot; the ledger's open row carries its token."""
        for row in slots:
            entry = ledger.slots.get((row["task_name"], row["slot"]))
            if row["picked"] and (
                entry is None or entry["token"] != row["version"] or entry["worker"] != row["picked_by"]
            ):
                found = entry and (entry["outcome"], entry["token"], entry["worker"])
                raise self.trace.fail("one claim", f"held, and the ledger says {found}", row["task_name"], row["slot"])

    def _none_done_waits(self, slots: list[Any], ledger: Ledger) -> None:
        """No row waits for a slot that is final: who ended it has moved its row on, or taken it away."""
        for row in slots:
            entry = ledger.slots.get((row["task_name"], row["slot"]))
            if entry is not None and entry["finished"] is not None and not row["picked"]:
                text = f"{row['task_instance']} waits, and the ledger says {entry['outcome']}"
                raise self.trace.fail("none done waits", text, row["task_name"], row["slot"])

    def _none_forgotten(self, slots: list[Any], ledger: Ledger) -> None:
        """What is open in the ledger stands in a row, from which it goes on."""
        standing = {(row["task_name"], row["slot"]) for row in slots}
        for key, entry in ledger.slots.items():
            if entry["finished"] is None and entry["origin"] != "task" and key not in standing:
                raise self.trace.fail("none forgotten", f"{entry['outcome']}, and in no row", *key)

    def _places(self, ledger: Ledger) -> None:
        """Of a job's slots only so many run, or wait for a retry, as its overlap allows; of a task, as max_running."""
        beside = Counter(row["task_name"] for row in ledger.rows if row["plan_instance"] and row["origin"] in PLANNED)
        for job, count in beside.items():
            if count > self.definitions[job].overlap.max and not self.after_restores:
                raise self.trace.fail("overlap", f"{count} side by side", job, None)
        for name, count in Counter(row["task_name"] for row in ledger.rows if row["picked"]).items():
            most = self.definitions[name].max_running
            if most is not None and count > most:
                raise self.trace.fail("max_running", f"{count} at a time", name, None)

    def _left_out_by_overlap(self, ledger: Ledger) -> None:
        """queue(n) leaves out only what n newer slots have come after; queue_all leaves out nothing."""
        for job, gaps in ledger.gaps.items():
            overlap, schedule = self.definitions[job].overlap, self.definitions[job].schedule
            if schedule is None or overlap.mode not in ("queue", "queue_all"):
                continue
            for gap in gaps:
                if gap["reason"] != "overlap":
                    continue
                newer = schedule.count_between(gap["last_slot"], gap["created"])
                if overlap.mode == "queue_all" or newer < overlap.max:
                    raise self.trace.fail("overlap", f"left out with {newer} newer ones", job, gap["last_slot"])
