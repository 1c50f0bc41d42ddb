"""What the tables say, and what the model says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.kit.laws import Ledger, none_in_two_places
from tests.kit.store import Store
from tests.model.operations import Operated


@dataclass(frozen=True)
class Comparison:
    """Ledger, gaps and rows beside the model, slot by slot. No slot is in two places."""

    store: Store
    model: Operated

    def check(self) -> None:
        found, expected = self._found(), self._expected()
        wrong = sorted(
            slot
            for slot in found.keys() | expected.keys()
            if found.get(slot) != expected.get(slot)
        )
        assert not wrong, "ledger: " + "; ".join(
            f"{slot:%H:%M:%S} is {found.get(slot)}, expected {expected.get(slot)}"
            for slot in wrong
        )
        rows, courses = self.rows(), self._courses()
        assert rows == courses, f"rows: {shown(rows)}, expected {shown(courses)}"

    def _expected(self) -> dict[datetime, Any]:
        return {
            slot: (
                fate.outcome,
                fate.reason,
                fate.attempts,
                fate.lost,
                fate.aborted,
                fate.final,
            )
            for slot, fate in self.model.fates.items()
        }

    def _found(self) -> dict[datetime, Any]:
        found: dict[datetime, Any] = {}
        with self.store.transaction() as connection:
            ledger = Ledger.read(connection, self.store.tables)
        for job, gaps in ledger.gaps.items():
            assert not (broken := list(none_in_two_places(job, ledger))), broken
            for gap in gaps:
                covered = [
                    slot
                    for slot in self.model.fates
                    if gap["first_slot"] <= slot <= gap["last_slot"]
                ]
                found |= dict.fromkeys(
                    covered, ("skipped", gap["reason"], 0, 0, 0, True)
                )
        for (_, slot), row in ledger.slots.items():
            said = (
                row["outcome"],
                row["reason"],
                row["attempts"],
                row["lost"],
                row["aborted"],
            )
            found[slot] = (*said, row["finished"] is not None)
        own = {slot for _, slot in ledger.slots}
        for slot, fate in self.model.fates.items():
            if fate.outcome == "skipped" and fate.final:
                fate.in_gap = (
                    slot not in own
                )  # a row for one slot, a range for several: the ledger's own affair
        return found

    def _courses(self) -> dict[datetime, Any]:
        return {
            course.slot: (
                course.is_plan,
                course.holder,
                course.token if course.holder else None,
                course.attempt,
                course.lost,
                course.due if course.holder is None and not course.queued else None,
                "paused" if course.paused else "queued" if course.queued else None,
                course.called_off,
            )
            for course in self.model.courses
        }

    def rows(self) -> dict[datetime, Any]:
        tasks = self.store.tables.tasks
        found = {}
        with self.store.transaction() as connection:
            for row in connection.execute(tasks.select()).mappings():
                if row["slot"] is None:
                    continue
                due = (
                    row["parked_due"]
                    if row["state"] == "paused"
                    else row["execution_time"]
                )
                why = (row["pending"] or {}).get("called_off", "operator")
                off = None if row["cancel_requested"] is None else why
                held = row["picked"]
                found[row["slot"]] = (
                    row["kind"] != "detached",
                    row["picked_by"],
                    row["version"] if held else None,
                    row["attempt"],
                    row["lost_count"],
                    None if held or row["state"] == "queued" else due,
                    None if held else row["state"],
                    off,
                )
        return found


def shown(found: dict[datetime, Any]) -> str:
    """By slot, in their order."""
    return (
        "{"
        + ", ".join(
            f"{slot:%H:%M:%S.%f}: {value}" for slot, value in sorted(found.items())
        )
        + "}"
    )
