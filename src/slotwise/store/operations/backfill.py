"""Backfill: run the slots of a range that never ran, each in a detached row, with a limit on concurrency and pace.

One operation makes all rows. The first few are due. The others are ``queued``, and the end of one releases the next
(``store/slots/detached.py``). A plan row with a bounded schedule would not do: a resume or a claim would pass all that
is left of it. Races:

- against the schedule: only slots that the plan row has passed are taken, so no slot has two rows;
- against another backfill of the same range: the slot is in the key of its row, so the second adds what is missing;
- against the pruner: a slot whose history was pruned looks as if it never ran, so the pruning is checked last;
- two ends at once: each releases the next unlocked row.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.errors import ConfigurationError
from slotwise.jobs.policies import LONGEST_QUEUE
from slotwise.model.durations import format_duration
from slotwise.model.records import FOREVER, RECURRING, TICK, Row
from slotwise.model.vocabulary import ENDED_BADLY, Origin, Outcome, Reason, State
from slotwise.store.operations.transaction import Operation, schedule_in
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import of_plan
from slotwise.store.slots import ledger
from slotwise.store.slots.detached import detach
from slotwise.store.slots.retention import pruned_until

#: How many slots of a range are examined at most.
WIDEST = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """A backfill: the missing slots that it runs, how many were ``present``, and how many are still ``undecided``."""

    job: str
    first: datetime
    last: datetime
    slots: tuple[datetime, ...]
    present: int
    undecided: int = 0


def backfill(
    at: Operation, job: str, first: datetime, last: datetime, *, pace: timedelta | None = None, concurrency: int = 1,
    failed: bool = False, forgotten: bool = False, instance: str = RECURRING,
) -> Backfill:  # fmt: skip
    """Run the slots from ``first`` to ``last``, both included, that never ran; with ``failed``, also those that failed.

    Undecided slots are left to the schedule. ``forgotten``: also slots whose history was pruned.
    """
    row = at.plan_row(job, instance)
    schedule, come, last = schedule_in(row), min(last, at.now), min(last, _passed_by(row, at.now), at.now)
    if first > at.now:
        raise _refused(job, f"{at.told(first, row)} is yet to come, and is left to the schedule; begin earlier")
    if schedule.from_end:
        raise ConfigurationError(f"job {job!r}: {schedule} has no slots of its own to fill; trigger the job instead")
    if (count := schedule.count_between(first - TICK, last)) > WIDEST:
        within = f"{count} slots from {at.told(first, row)} to {at.told(last, row)}"
        raise _refused(job, f"{within}, at most {WIDEST} are looked at; choose a shorter range")
    entries, waiting = _entries(at, row, first, last), _waiting(at, row)
    again = (Outcome.SKIPPED, *ENDED_BADLY) if failed else (Outcome.SKIPPED,)
    ran = {slot for slot, entry in entries.items() if entry["finished"] is None or entry["outcome"] not in again}
    slots = list(schedule.running.slots(first - TICK, last))
    missing = tuple(slot for slot in slots if slot not in ran and slot not in waiting)
    if len(missing) > LONGEST_QUEUE:
        few = f"at most {LONGEST_QUEUE} run in one go; choose a shorter range"
        raise _refused(job, f"{len(missing)} slots are missing, {few}")
    if missing:
        number = at.sign(
            "backfill", job=job, id=instance, first=first.isoformat(), last=last.isoformat(), slots=len(missing),
            concurrency=concurrency, pace=None if pace is None else format_duration(pace), failed=failed or None,
        )  # fmt: skip
        ledger.reopen(at.connection, at.dialect, row, missing, Reason.BACKFILL)
        if not forgotten and (until := pruned_until(at.connection, at.store)) is not None and first <= until:
            why = f"up to {at.told(until, row)} history was pruned, so it is unknown what ran; begin later, or allow"
            raise _refused(job, f"{why} forgotten slots to run again: --forgotten, or forgotten=True")
        for place, slot in enumerate(missing):
            due, entry = at.now + place * (pace or timedelta(0)), entries.get(slot)
            attempt, ended = (entry["attempts"], entry["finished"]) if entry and entry["attempts"] else (0, None)
            waits = {"due": due} if place < concurrency else {"due": FOREVER, "state": State.QUEUED, "parked_due": due}
            detach(
                at.connection, at.dialect, at.now, name=row.task_name, slot=slot, origin=Origin.BACKFILL,
                plan_instance=row.task_instance, control=number, attempt=attempt, last_failure=ended, **waits,
            )  # fmt: skip
    present, undecided = len(slots) - len(missing), schedule.running.count_between(max(last, first - TICK), come)
    return Backfill(job=job, first=first, last=last, slots=missing, present=present, undecided=undecided)


def _refused(job: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"backfill of {job!r}: {why}")


def _passed_by(row: Row, now: datetime) -> datetime:
    """Return the newest slot that the plan row has decided."""
    if row.slot is None:
        return row.watermark or now
    return max(row.slot, row.watermark or row.slot) if row.attempt else row.slot - TICK


def _entries(at: Operation, row: Row, first: datetime, last: datetime) -> dict[datetime, sa.RowMapping]:
    slots = at.store.tables.slots
    mine = [slots.c.task_name == row.task_name, slots.c.task_instance == row.task_instance]
    found = sa.select(slots.c.slot, slots.c.outcome, slots.c.attempts, slots.c.finished).where(*mine)
    rows = at.connection.execute(found.where(slots.c.slot.between(first, last))).mappings()
    return {utc(entry["slot"]): entry for entry in rows}


def _waiting(at: Operation, row: Row) -> set[datetime]:
    tasks = at.tasks
    family = [tasks.c.task_name == row.task_name, of_plan(tasks, row.task_instance), tasks.c.slot.is_not(None)]
    return set(map(utc, at.connection.scalars(sa.select(tasks.c.slot).where(*family))))
