"""Insert the row of a job or an instance, and change its schedule so that each due slot stays
accounted for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from slotwise.decide.claim import Advance
from slotwise.decide.going_back import moved
from slotwise.decide.pause import asleep, owed_by, passing
from slotwise.decide.row_columns import ahead
from slotwise.decide.slot_choice import of_gap, slots_between, undecided, without
from slotwise.model.records import EARLIEST, RECURRING, TICK, Gap, Key, Row, to_micros
from slotwise.model.vocabulary import Kind, Reason, RowState
from slotwise.schedules import Once, Schedule, succeed
from slotwise.schedules.base import due_at, slot_after
from slotwise.schedules.combinators import Succession
from slotwise.schedules.text import readable, stored_text
from slotwise.store.dialects.conditions import of_key
from slotwise.store.dialects.port import Transaction
from slotwise.store.schema.rows import expect, row_of, stored
from slotwise.store.slots.store import Store

#: How late the first slot of a job may start in the pod that plans the job, if it declares no
#: ``start_within``.
LATE: Final = timedelta(hours=1)


def lock(
    connection: sa.Connection, store: Store, key: Key
) -> tuple[Row | None, Mapping[str, object] | None]:
    """Lock a row and return it with its document ``plan``; both are None without a row."""
    tasks = store.tables.tasks.c
    row = sa.select(tasks.plan, *store.dialect.row_columns).where(*of_key(tasks, key))
    found = connection.execute(row.with_for_update()).first()
    return (None, None) if found is None else (row_of(found[1:]), found[0])


def born(
    key: Key,
    schedule: Schedule,
    newest: datetime | None,
    now: datetime,
    *,
    from_due: timedelta | None = None,
    latest: timedelta = LATE,
) -> dict[str, Any]:
    """Return the columns of a new plan row; ``newest`` is the newest slot of this key that was
    ever decided.

    ``from_due``: the first slot is the last one, if at most ``latest`` ago and the next is further
    than ``from_due``.
    """
    blank = Row(**key._asdict(), execution_time=now, version=0, watermark=newest)
    first = first_slot(blank, schedule, now)
    if from_due is not None and (first is None or first - now > from_due):
        first = _last_due(schedule, newest, now, latest) or first
    return {
        **key._asdict(),
        "kind": Kind.PLAN,
        "picked": False,
        "version": to_micros(now),
        "created_version": to_micros(now),
        "watermark": newest,
        "schedule": stored_text(schedule, name_of(key)),
        **ahead(schedule, first),
    }


def _last_due(
    schedule: Schedule, newest: datetime | None, now: datetime, latest: timedelta
) -> datetime | None:
    """Return the last slot that came, if it is younger than ``newest`` and than ``latest``."""
    if schedule.from_end:
        return None
    due = schedule.running.latest_before(now + TICK, floor=newest)
    return None if due is None or now - due > latest else due


def name_of(key: Key) -> str:
    return key.task_name if key.task_instance == RECURRING else "/".join(key)


def replanned(row: Row, after: Schedule, now: datetime) -> Advance:
    """Return how a locked row follows a change of its schedule that is activated ``now``. Pure.

    Slots up to the activation belong to the old schedule, later ones to the new one. A row that is
    held, or whose slot has begun or is due, gets the text only; its settlement computes the next
    slot. A paused row stays paused.

    A row remembers one earlier schedule. Slots that the schedule before that one still owes are
    skipped.
    """
    is_paused = row.state == RowState.PAUSED
    activation = max(now, row.watermark or now)  # the clock may be stepped back
    row = replace(
        row, execution_time=row.due, attempt=max(row.attempt, int(row.picked))
    )
    before, closed = _owed(row, after, activation)
    row = replace(
        row,
        **{name: value for name, value in closed.row.items() if name != "last_error"},
    )
    columns = closed.row | _columns(row, before, after, activation, now)
    if is_paused and "execution_time" in columns:
        columns |= asleep(columns["execution_time"])
    return Advance(row=columns, gaps=closed.gaps)


def _owed(row: Row, after: Schedule, activation: datetime) -> tuple[Schedule, Advance]:
    """Return the schedule that still owes slots, and what becomes of the slots of the schedule
    before it.

    Changes with no slot between them count as one. A change from or to a fixed delay leaves only
    the row's own slot.
    """
    before = owed_by(row)
    if row.slot is None:
        return before, Advance(row={})
    decided = max(row.slot, row.watermark or row.slot)
    if before.from_end:
        before = Once(row.slot)
    else:
        before = before.settled(decided if row.attempt else row.slot - TICK)
    if after.from_end:
        newest = before.latest_before(activation + TICK, floor=decided) or decided
        gaps = slots_between(before, decided, newest, Reason.SUPERSEDED)
        columns = {"watermark": gaps[-1].last} if gaps else {}
        return before, Advance(row=columns, gaps=gaps)
    if isinstance(before, Succession) and before.at < activation:
        return _without_earlier(row, before, activation)
    return before, Advance(row={})


def _without_earlier(
    row: Row, before: Succession, activation: datetime
) -> tuple[Schedule, Advance]:
    """Skip what the earlier of two schedules still owes: a row remembers one."""
    at = before.at
    has_earlier = _has_slot(before.before, at, activation)
    if not has_earlier and not _has_slot(before.after, at, activation):
        return before.before, Advance(row={})
    passed = passing(row, before, at, Reason.SUPERSEDED)
    if passed is None:
        return before.after, Advance(row={"watermark": at})
    # A slot that has begun stays. The watermark then says that the newer schedule owes nothing
    # from before ``at``.
    columns = {"watermark": at} if row.attempt else passed.row
    return before.after, Advance(row=columns, gaps=passed.gaps)


def _has_slot(schedule: Schedule, start: datetime, end: datetime) -> bool:
    slot = None if schedule.from_end else schedule.next_after(start)
    return slot is not None and slot <= end


def _columns(
    row: Row, before: Schedule, after: Schedule, activation: datetime, now: datetime
) -> dict[str, Any]:
    schedule = after
    if row.schedule is not None and not after.from_end:
        schedule = succeed(before, activation, after)
    text = {"schedule": stored_text(schedule, name_of(row.key))}
    if row.picked:
        return text
    if row.slot is not None and (row.attempt > 0 or row.slot <= activation):
        return text | _of_begun(row, row.slot, schedule)
    columns = ahead(after, first_slot(row, after, now))
    columns["schedule"] = stored_text(after, name_of(row.key))
    planned = row.slot if readable(row.schedule) else None
    if planned is not None and row.execution_time > due_at(before, planned):
        # min_interval has moved the due time, and holds for the slots of the new schedule, too.
        columns["execution_time"] = max(columns["execution_time"], row.execution_time)
    return columns


def _of_begun(row: Row, slot: datetime, schedule: Schedule) -> dict[str, Any]:
    """Return the columns of a row whose slot stays; a spread may move its due time."""
    left = undecided(schedule, slot, row.watermark)
    columns: dict[str, Any] = {"next_slot": slot_after(left, slot)}
    if row.attempt == 0 and not schedule.runs(slot):
        columns |= moved(row, due_at(schedule, slot))
    return columns


def write(at: Transaction, row: Row, changes: Advance) -> None:
    """Write the new columns of a row that this transaction has locked, and its skipped slots.

    A row that was restored alone is behind what ledger and gaps have decided. No gap covers that
    again.
    """
    tasks = at.dialect.tables.tasks
    mine = tasks.update().where(*of_key(tasks.c, row))
    written = at.connection.execute(mine.values(**stored(row, changes.row)))
    expect(written.rowcount, 1, row)
    if changes.gaps:
        (newest,) = at.dialect.newest_decided(at.connection, [row.key], ())
        gaps = _undecided_of(row, changes.gaps, newest)
        at.dialect.gaps(at.connection, [(row, gap) for gap in gaps], at.now)


def _undecided_of(
    row: Row, gaps: Sequence[Gap], newest: datetime | None
) -> Sequence[Gap]:
    """Return the gaps without the slots up to the newest one that ledger and gaps have decided."""
    if newest is None or newest <= (row.watermark or EARLIEST):
        return gaps
    owed = owed_by(row)
    return [
        part
        for gap in gaps
        for part in without(of_gap(owed, gap), gap, [(gap.first, newest)])
    ]


def first_slot(row: Row, after: Schedule, now: datetime) -> datetime | None:
    """Return the new schedule's first slot after the activation and after each slot that was ever
    decided.
    """
    if after.from_end and row.slot is not None:
        soon = after.next_after(now)
        return row.slot if soon is None else min(row.slot, soon)
    first = after.first_after(now)
    if first is not None and row.watermark is not None and first <= row.watermark:
        first = (
            row.watermark + TICK if after.from_end else after.next_after(row.watermark)
        )
    return first
