"""Backfill: run the slots of a range that never ran, each in a detached row, with a limit on
concurrency and pace.

Rows are inserted in chunks, one transaction for each, and are ``queued``. With the last chunk the
first few become due, and the end of one releases the next (``store/slots/detached.py``). So of an
interrupted backfill nothing has started, and the next one takes over its rows. A plan row with a
bounded schedule would not do: a resume or a claim would pass all that is left of it. Races:

- against the schedule: only slots that the plan row has passed are taken, so no slot has two rows;
- against another backfill of the same range: the slot is in the key of its row, so the second adds
  what is missing;
- against the pruner: a slot whose history was pruned looks as if it never ran, so the pruning is
  checked last;
- against another backfill of the same job: each chunk locks the plan row, and looks again at what
  is missing;
- against a pause or deletion of the job: by the job's latch, as for a new instance;
- two ends at once: each releases the next unlocked row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.errors import ConfigurationError
from slotwise.jobs.policies import LONGEST_QUEUE
from slotwise.model.durations import format_duration
from slotwise.model.records import RECURRING, TICK, Row
from slotwise.model.vocabulary import ENDED_BADLY, Origin, Outcome, Reason, RowState
from slotwise.schedules import Schedule
from slotwise.store.dialects.conditions import of_key
from slotwise.store.operations import transaction
from slotwise.store.operations.transaction import Operation, Progress, schedule_in
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import of_plan
from slotwise.store.slots import ledger
from slotwise.store.slots.detached import queue_backfill, start_backfill
from slotwise.store.slots.retention import pruned_until

#: How many slots of a range are examined at most.
WIDEST = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """A backfill: the missing slots that it runs, how many were ``present``, and how many are
    still ``undecided``.
    """

    job: str
    first: datetime
    last: datetime
    slots: tuple[datetime, ...]
    present: int
    undecided: int = 0


def backfill(
    at: Operation,
    job: str,
    first: datetime,
    last: datetime,
    so_far: Progress,
    *,
    pace: timedelta | None = None,
    concurrency: int = 1,
    failed: bool = False,
    forgotten: bool = False,
    instance: str = RECURRING,
) -> Progress:
    """Run the slots from ``first`` to ``last``, both included, that never ran; with ``failed``,
    also those that failed.

    Undecided slots are left to the schedule. ``forgotten``: also slots whose history was pruned.
    The first chunk finds the slots. Each chunk enters some; the last one releases the first
    ``concurrency``.
    """
    at.dialect.latch(at.connection, job, shared=True)
    row = at.plan_row(job, instance)
    again = (Outcome.SKIPPED, *ENDED_BADLY) if failed else (Outcome.SKIPPED,)
    found: Backfill = (
        so_far.found[0] if so_far.found else _find(at, row, first, last, again)
    )
    so_far = replace(so_far, found=(found,))
    chunk = found.slots[so_far.rows : so_far.rows + transaction.CHUNK]
    oldest = None if forgotten else _oldest(chunk, first, so_far)
    if so_far.is_rehearsed or not chunk:
        _refuse_pruned(at, row, oldest)
        return replace(so_far, rows=len(found.slots), is_done=True)
    number = so_far.number or at.sign(
        "backfill",
        job=job,
        id=instance,
        first=first.isoformat(),
        last=found.last.isoformat(),
        slots=len(found.slots),
        concurrency=concurrency,
        pace=pace and format_duration(pace),
        failed=failed or None,
    )
    _enter(at, row, chunk, again, number)
    _refuse_pruned(at, row, oldest)
    rows = so_far.rows + len(chunk)
    if is_done := rows == len(found.slots):
        start_backfill(at.transaction, row, number, concurrency, pace)
    return replace(so_far, rows=rows, number=number, is_done=is_done)


def _oldest(
    chunk: Sequence[datetime], first: datetime, so_far: Progress
) -> datetime | None:
    """Return the oldest slot that this chunk asks the history about."""
    if not chunk:
        return None
    return chunk[0] if so_far.rows else min(first, chunk[0])


def _enter(
    at: Operation,
    row: Row,
    chunk: Sequence[datetime],
    again: Collection[str],
    number: int,
) -> None:
    """Queue the slots of a chunk that are still missing."""
    entries, missing = _missing(at, row, chunk, again)
    ledger.reopen(at.transaction, row, missing, Reason.BACKFILL)
    begun = {
        slot: (entry["attempts"], entry["finished"])
        for slot, entry in entries.items()
        if entry["attempts"]
    }
    queue_backfill(at.transaction, row, missing, begun, number)


def _find(
    at: Operation, row: Row, first: datetime, last: datetime, again: Collection[str]
) -> Backfill:
    """Return what a backfill of this range runs: also the slots that an interrupted one has left,
    of any time.

    Raises ConfigurationError for what it cannot run.
    """
    job = row.task_name
    schedule = schedule_in(row)
    come = min(last, at.now)
    last = min(last, _passed_by(row, at.now), at.now)
    _refuse_range(at, row, schedule, first, last)
    slots = list(schedule.running.slots(first - TICK, last))
    _, missing = _missing(at, row, slots, again)
    if len(missing) > LONGEST_QUEUE:
        few = f"at most {LONGEST_QUEUE} run in one go; choose a shorter range"
        raise _refused(job, f"{len(missing)} slots are missing, {few}")
    _, interrupted = _waiting(at, row)
    return Backfill(
        job=job,
        first=first,
        last=last,
        slots=tuple(sorted(interrupted.union(missing))),
        present=len(slots) - len(missing),
        undecided=schedule.running.count_between(max(last, first - TICK), come),
    )


def _refuse_range(
    at: Operation, row: Row, schedule: Schedule, first: datetime, last: datetime
) -> None:
    """Raise ConfigurationError for a range without slots to fill, or with too many."""
    job = row.task_name
    if first > at.now:
        raise _refused(
            job,
            f"{at.told(first, row)} is yet to come, and is left to the schedule; begin earlier",
        )
    if schedule.from_end:
        raise ConfigurationError(
            f"job {job!r}: {schedule} has no slots of its own to fill; trigger the job instead"
        )
    if (count := schedule.count_between(first - TICK, last)) > WIDEST:
        within = f"{count} slots from {at.told(first, row)} to {at.told(last, row)}"
        raise _refused(
            job, f"{within}, at most {WIDEST} are looked at; choose a shorter range"
        )


def _missing(
    at: Operation, row: Row, slots: Sequence[datetime], again: Collection[str]
) -> tuple[dict[datetime, sa.RowMapping], list[datetime]]:
    """Return the ledger rows of these slots, and the slots that run now.

    Race: a slot that waits is claimed and ends. So rows are read before the ledger. Slots that an
    interrupted backfill has queued wait for nothing, and are entered again.
    """
    if not slots:
        return {}, []
    waiting, interrupted = _waiting(at, row)
    entries = _entries(at, row, slots[0], slots[-1])
    ran = {
        slot
        for slot, entry in entries.items()
        if entry["finished"] is None or entry["outcome"] not in again
    }
    return entries, [
        slot
        for slot in slots
        if slot in interrupted or (slot not in ran and slot not in waiting)
    ]


def _refuse_pruned(at: Operation, row: Row, oldest: datetime | None) -> None:
    """Raise ConfigurationError if history was pruned up to the oldest slot."""
    if oldest is None:
        return
    until = pruned_until(at.connection, at.store, row.task_name)
    if until is not None and oldest <= until:
        why = (
            f"up to {at.told(until, row)} history was pruned, so it is unknown what "
            "ran; begin later, or allow"
        )
        raise _refused(
            row.task_name,
            f"{why} forgotten slots to run again: --forgotten, or forgotten=True",
        )


def _refused(job: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"backfill of {job!r}: {why}")


def _passed_by(row: Row, now: datetime) -> datetime:
    """Return the newest slot that the plan row has decided."""
    if row.slot is None:
        return row.watermark or now
    return max(row.slot, row.watermark or row.slot) if row.attempt else row.slot - TICK


def _entries(
    at: Operation, row: Row, first: datetime, last: datetime
) -> dict[datetime, sa.RowMapping]:
    slots = at.store.tables.slots.c
    found = sa.select(slots.slot, slots.outcome, slots.attempts, slots.finished).where(
        *of_key(slots, row)
    )
    rows = at.connection.execute(
        found.where(slots.slot.between(first, last))
    ).mappings()
    return {utc(entry["slot"]): entry for entry in rows}


def _waiting(at: Operation, row: Row) -> tuple[set[datetime], set[datetime]]:
    """Return the slots that have rows, and of them those of interrupted backfills: queued behind
    none that is free.
    """
    tasks = at.tasks.c
    found = at.connection.execute(
        sa.select(tasks.slot, tasks.control, tasks.origin, tasks.state).where(
            tasks.task_name == row.task_name,
            of_plan(tasks, row.task_instance),
            tasks.slot.is_not(None),
        )
    ).all()
    free = {
        one.control
        for one in found
        if (one.origin, one.state) != (Origin.BACKFILL, RowState.QUEUED)
    }
    return {utc(one.slot) for one in found}, {
        utc(one.slot) for one in found if one.control not in free
    }
