"""Detached rows: one slot each, beside the plan row, which goes on to its next slot. They are
created here alone.

A trigger behind a run, and the rest of a backfill, wait as ``queued`` rows, which no claim reads.
A settlement releases the next of them in its transaction if its own row has the number of an
operation; an operation writes that number to each row that a trigger waits for.

Races. Of two runs that end at once, each locks the queued row and then reads: the second sees what
the first has committed. Keys of triggers and backfills rise with time, so a settlement only waits
for later keys, as operations do. Rows of an instance with a later id can deadlock; the database
aborts one transaction, which is retried. A slot that is asked to stop while its row is locked is
asked again at the next claim.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from slotwise.decide.pause import asleep
from slotwise.model.durations import parse_duration
from slotwise.model.records import FOREVER, RECURRING, Key, Row, to_micros
from slotwise.model.vocabulary import Kind, Origin, Outcome, Reason, RowState
from slotwise.store.connect.database import Database
from slotwise.store.dialects.conditions import of_key
from slotwise.store.dialects.port import Dialect, Transaction
from slotwise.store.schema.rows import Change, utc
from slotwise.store.schema.tables import Columns, Condition, of_plan


def detach(
    at: Transaction,
    *,
    name: str,
    slot: datetime,
    origin: str,
    plan_instance: str = RECURRING,
    instance: str | None = None,
    due: datetime | None = None,
    **columns: object,
) -> Key | None:
    """Create a row for ``slot``, due at ``due`` (now); return None if its instance exists.

    It has the plan row's schedule and data, and is paused with it. Races: the key permits one row
    of a slot; against a claim of the plan row, the ledger decides.
    """
    key = Key(name, plan_instance)
    plan = plan_of(at.connection, at.dialect, key)
    own = {"schedule": plan and plan.schedule, "task_data": plan and plan.task_data}
    own["execution_time"] = due or at.now
    row = _detached(at.now, key, slot, origin) | own | columns
    if instance is not None:
        row["task_instance"] = instance
    if plan is not None and plan.state == RowState.PAUSED and "state" not in columns:
        row |= asleep(row["execution_time"])
    is_new = at.dialect.insert_new(at.connection, at.dialect.tables.tasks, row)
    return Key(name, row["task_instance"]) if is_new else None


def _detached(now: datetime, plan: Key, slot: datetime, origin: str) -> dict[str, Any]:
    born = to_micros(now)
    return {
        **_key_of(plan, slot)._asdict(),
        "kind": Kind.DETACHED,
        "plan_instance": plan.task_instance,
        "slot": slot,
        "origin": origin,
        "picked": False,
        "version": born,
        "created_version": born,
    }


def _key_of(plan: Key, slot: datetime) -> Key:
    """Return the key of the row of one slot."""
    return Key(plan.task_name, f"{plan.task_instance}@{slot.isoformat()}")


def queue_backfill(
    at: Transaction,
    plan: Row,
    slots: Sequence[datetime],
    begun: Mapping[datetime, tuple[int, datetime | None]],
    number: int,
) -> None:
    """Queue these slots of a locked plan row for the backfill ``number``; ``begun``: attempts and
    end of earlier runs.

    Rows that an interrupted backfill has queued are taken over.
    """
    if not slots:
        return
    tasks = at.dialect.tables.tasks
    common = {
        "execution_time": FOREVER,
        "schedule": plan.schedule,
        "task_data": plan.task_data,
        "control": number,
        "state": RowState.QUEUED,
        "parked_due": at.now,
    }
    rows = list[dict[str, object]]()
    for slot in slots:
        attempt, ended = begun.get(slot, (0, None))
        own = _detached(at.now, plan.plan_key, slot, Origin.BACKFILL)
        rows.append(own | common | {"attempt": attempt, "last_failure": ended})
    queued = tasks.update().where(
        tasks.c.task_name == plan.task_name,
        tasks.c.task_instance.in_([row["task_instance"] for row in rows]),
        tasks.c.state == RowState.QUEUED,
        tasks.c.origin == Origin.BACKFILL,
    )
    at.connection.execute(queued.values(control=number))
    at.dialect.insert_missing(at.connection, tasks, rows)


def start_backfill(
    at: Transaction, plan: Row, number: int, concurrency: int, pace: timedelta | None
) -> None:
    """Release the first slots of a backfill that is queued as a whole, a pace apart."""
    tasks = at.dialect.tables.tasks.c
    queue = _Queue(at, plan)
    queued = sa.select(tasks.task_instance).where(
        *_detached_of(tasks, plan),
        tasks.state == RowState.QUEUED,
        tasks.control == number,
    )
    first = queued.order_by(tasks.slot).limit(concurrency)
    for place, id in enumerate(at.connection.scalars(first).all()):
        queue.release(id, at.now + place * (pace or timedelta(0)))


def plan_of(
    connection: sa.Connection, dialect: Dialect, key: Key, *, lock: bool = False
) -> Any:
    """Read what detached rows take from their plan row; None if there is no such row."""
    tasks = dialect.tables.tasks.c
    columns = (tasks.schedule, tasks.state, tasks.task_data, tasks.watermark)
    plan = sa.select(*columns).where(*of_key(tasks, key))
    return connection.execute(plan.with_for_update() if lock else plan).first()


def planned_now(at: Transaction, row: Row) -> tuple[str | None, datetime | None]:
    """Return the schedule and the watermark of a detached row's plan row: they say which slot is
    next.
    """
    plan = plan_of(at.connection, at.dialect, row.plan_key)
    return (row.schedule, None) if plan is None else (plan.schedule, plan.watermark)


# -- slots of a schedule that run side by side ----------------------------------------------------


def _detached_of(tasks: Columns, row: Row) -> list[Condition]:
    return [
        tasks.task_name == row.task_name,
        tasks.plan_instance == row.plan_key.task_instance,
    ]


def ask_to_stop(at: Transaction, plan: Row, origins: Sequence[str]) -> None:
    """Ask the plan's slots of these origins to stop, also those that wait for a retry."""
    if not origins:
        return
    tasks = at.dialect.tables.tasks.c
    mine = _detached_of(tasks, plan)
    free = sa.select(tasks.task_instance).where(
        *mine, tasks.origin.in_(origins), tasks.cancel_requested.is_(None)
    )
    if named := at.connection.scalars(free.with_for_update(skip_locked=True)).all():
        asked = at.dialect.tables.tasks.update().where(
            *mine, tasks.task_instance.in_(named)
        )
        at.connection.execute(asked.values(_called_off(tasks, at.now)))


def _called_off(tasks: Columns, now: datetime) -> dict[str, object]:
    """Return the columns of a slot that is asked to stop; one that waits for its retry is due now,
    to end.
    """
    due = sa.case(
        (tasks.picked, tasks.execution_time),
        else_=sa.literal(now, tasks.execution_time.type),
    )
    why = {"called_off": Reason.OVERLAP}
    return {
        "cancel_requested": now,
        "control": None,
        "execution_time": due,
        "pending": why,
    }


def stranger_of(at: Transaction, plan: Row) -> Key | None:
    """Return the key of the row that has the id of the plan's slot and does not stand for it; None
    if there is none.
    """
    assert plan.slot is not None
    tasks = at.dialect.tables.tasks.c
    key = _key_of(plan.key, plan.slot)
    found = sa.select(tasks.kind, tasks.plan_instance, tasks.slot)
    row = at.connection.execute(found.where(*of_key(tasks, key))).first()
    its_own = (Kind.DETACHED, plan.task_instance, plan.slot)
    if row is None or (row.kind, row.plan_instance, utc(row.slot)) == its_own:
        return None
    return key


#: What a slot that starts beside its claimed plan row takes from it.
_OF_PLAN = (
    "schedule",
    "task_data",
    "execution_time",
    "picked_by",
    "lease",
    "collapsed",
    "next_slot",
    "priority",
)


def detach_started(at: Transaction, plan: Row) -> Row | None:
    """Create the held row of the slot that starts beside its claimed plan row; None if the slot
    has a row.
    """
    assert plan.slot is not None
    own = _detached(at.now, plan.key, plan.slot, plan.origin or Origin.SCHEDULE)
    own |= {"picked": True, "last_heartbeat": at.now, "attempt": 1}
    row = own | {name: getattr(plan, name) for name in _OF_PLAN}
    if not at.dialect.insert_new(at.connection, at.dialect.tables.tasks, row):
        return None
    return replace(
        plan,
        **own,
        watermark=None,
        catch_up_until=None,
        unheld_since=None,
        last_success=None,
        last_failure=None,
        consecutive_failures=0,
    )


# -- slots that wait for the end of another one ---------------------------------------------------


def release_queued(at: Transaction, changes: Sequence[Change]) -> None:
    touched = [
        one
        for one in changes
        if one.held.row.control is not None
        or one.held.row.cancel_requested is not None
    ]
    for change in sorted(touched, key=lambda change: change.held.row.key):
        row = change.held.row
        if row.has_slot:
            freed(
                at,
                row,
                removed=change.transition.remove,
                never_began=change.never_began,
            )


def freed(
    at: Transaction, row: Row, *, removed: bool = True, never_began: bool = False
) -> None:
    """Release what waits for this row, which was released; ``removed``: its slot is final."""
    queue = _Queue(at, row)
    if removed and row.origin == Origin.BACKFILL:
        queue.release_backfill(never_began=never_began)
    queue.release_trigger()


@dataclass(frozen=True, slots=True)
class _Queue:
    """The rows beside the plan row of ``row``."""

    at: Transaction
    row: Row

    @property
    def _tasks(self) -> sa.Table:
        return self.at.dialect.tables.tasks

    def release(self, instance: str, due: datetime) -> None:
        """Let the row start at ``due``, or after the pause of its job."""
        tasks = self._tasks.c
        state = sa.select(tasks.state).where(*of_key(tasks, self.row.plan_key))
        columns: dict[str, object] = {
            "state": None,
            "execution_time": due,
            "parked_due": None,
        }
        if self.at.connection.scalar(state) == RowState.PAUSED:
            columns = asleep(due)
        mine = *_detached_of(tasks, self.row), tasks.task_instance == instance
        self.at.connection.execute(self._tasks.update().where(*mine).values(**columns))

    # -- triggers ---------------------------------------------------------------------------------

    def release_trigger(self) -> None:
        """Release the oldest queued trigger, unless an earlier one, or a run that it waits for,
        goes on.
        """
        tasks = self._tasks.c
        queued = self._queued(Origin.TRIGGER, tasks.slot, tasks.control)
        oldest = queued.order_by(tasks.slot).limit(1).with_for_update()
        first = self.at.connection.execute(oldest).first()
        if first is None:
            return
        plan = self.row.plan_key
        family = tasks.task_name == plan.task_name, of_plan(tasks, plan.task_instance)
        before = _goes_before(tasks, first.slot, first.control)
        goes_on = sa.select(tasks.version).where(*family, before).limit(1)
        if self.at.connection.execute(goes_on).first() is None:
            self.release(first.task_instance, self.at.now)

    def _queued(
        self, origin: Origin, *columns: sa.ColumnElement[Any]
    ) -> sa.Select[Any]:
        """Select the ids of queued rows of this origin, and these columns. By the index of detached
        rows: MariaDB locks the rows that it reads.
        """
        tasks = self._tasks.c
        hint = f"FORCE INDEX ({self.at.dialect.tables.prefix}tasks_beside)"
        queued = sa.select(tasks.task_instance, *columns).where(
            *_detached_of(tasks, self.row),
            tasks.state == RowState.QUEUED,
            tasks.origin == origin,
        )
        return queued.with_hint(self._tasks, hint, "mysql")

    # -- backfills --------------------------------------------------------------------------------

    def release_backfill(self, *, never_began: bool) -> None:
        tasks = self._tasks
        controls = self.at.dialect.tables.controls
        told = sa.select(controls.c.arguments).where(controls.c.id == tasks.c.control)
        arguments = told.scalar_subquery().label("arguments")
        queued = self._queued(Origin.BACKFILL, arguments)
        queued = queued.where(tasks.c.control == self.row.control)
        oldest = queued.order_by(tasks.c.slot).limit(1)
        # Race: of two slots that end at once, each takes the next row that is not locked.
        free = oldest.with_for_update(skip_locked=True, of=tasks)
        if (found := self.at.connection.execute(free).first()) is None:
            return
        pace = json.loads(found.arguments or "{}").get("pace")
        due = self.at.now
        if pace:
            due = max(due, self._newest_start(never_began) + parse_duration(pace))
        self.release(found.task_instance, due)

    def _newest_start(self, never_began: bool) -> datetime:
        """Return the newest start, or due time, of the backfill's slots that were released.

        Race: of two slots that end at once, the second waits at the row of the operation for the
        first one's commit.
        """
        dialect = self.at.dialect
        connection = self.at.connection
        controls = dialect.tables.controls.c
        operation = sa.select(controls.id).where(controls.id == self.row.control)
        connection.execute(operation.with_for_update())
        mine = dialect.conditions.at(self.row.ledger_key)
        own = sa.select(dialect.tables.slots.c.started).where(*mine)
        began = None if never_began else utc(connection.scalar(own))
        newest = utc(connection.scalar(self._newest_released()))
        return max(began or self.at.now, newest or began or self.at.now)

    def _newest_released(self) -> sa.Select[datetime]:
        """Select the newest due time of the backfill's rows that were released and have not
        ended.
        """
        tasks = self._tasks.c
        kind = tasks.execution_time.type
        due = sa.func.coalesce(tasks.parked_due, tasks.execution_time, type_=kind)
        return sa.select(sa.func.max(due, type_=kind)).where(
            *_detached_of(tasks, self.row),
            tasks.control == self.row.control,
            tasks.state.is_distinct_from(RowState.QUEUED),
            tasks.picked | (tasks.attempt == 0),
        )


def _goes_before(tasks: Columns, slot: datetime, control: int | None) -> Condition:
    """Whether a row ends before a queued trigger may start: it is an earlier one, or runs since
    before its operation.
    """
    is_awake = tasks.state.is_(None) | (tasks.state == RowState.PAUSED)
    is_to_end = tasks.picked | sa.and_(tasks.attempt == 0, is_awake)
    earlier = sa.and_(tasks.origin == Origin.TRIGGER, tasks.slot < slot, is_to_end)
    is_other = tasks.origin.is_distinct_from(Origin.TRIGGER)
    return earlier | sa.and_(is_other, tasks.picked, tasks.control <= control)


# -- what people read on the plan row -------------------------------------------------------------


def tell_plan_rows(
    database: Database, dialect: Dialect, changes: Sequence[Change], *, wait: bool
) -> None:
    """Write the last success and failure of detached rows to their plan rows, for people to read.

    Race: a transaction that holds a detached row and waits for its plan row could deadlock with an
    operation. So this follows the settlement, one plan row per transaction. A reaper skips locked
    rows.
    """
    told: dict[Key, list[Change]] = {}
    for change in changes:
        row = change.held.row
        if row.is_detached and change.transition.remove and _has_begun(change):
            told.setdefault(row.plan_key, []).append(change)
    tasks = dialect.tables.tasks
    for plan, ended in sorted(told.items()):
        mine = of_key(tasks.c, plan)
        look = sa.select(tasks.c.version).where(*mine)
        told_it = tasks.update().where(*mine).values(**_statistics(tasks.c, ended))
        # The slots are settled, whatever fails here.
        with suppress(SQLAlchemyError), database.main.begin() as connection:
            locked = look.with_for_update(skip_locked=not wait)
            if connection.execute(locked).first() is not None:
                connection.execute(told_it)


def _has_begun(change: Change) -> bool:
    record = change.transition.record
    unbegun = (Outcome.CANCELLED, Outcome.SKIPPED)
    return record is not None and record.outcome not in unbegun


def _statistics(tasks: Columns, ended: Sequence[Change]) -> dict[str, object]:
    columns: dict[str, object] = {}
    before: sa.ColumnElement[int] | int = sa.func.coalesce(
        tasks.consecutive_failures, 0
    )
    failures = 0
    for change in sorted(ended, key=lambda change: change.held.row.slot or FOREVER):
        record = change.transition.record
        assert record is not None
        is_success = record.outcome == Outcome.SUCCEEDED
        columns["last_success" if is_success else "last_failure"] = change.held.now
        columns["last_error"] = record.error
        if is_success:
            before = failures = 0
        else:
            failures += 1
    return {**columns, "consecutive_failures": before + failures}
