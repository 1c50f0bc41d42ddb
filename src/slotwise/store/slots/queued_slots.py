"""Slots that wait for the end of another one: triggers behind a run, and the rest of a backfill.

Their rows are ``queued``, and no claim looks at such a row. What frees a row of their job releases the next one in the
same transaction: a settlement, a take-over, or an operation. Only rows that an operation has written to are asked: it
writes its number to each row that a trigger waits for.

Races. Two runs that end at once each see the other one as going on. So each locks the queued row first and looks
afterwards: the second one sees what the first has committed. Keys of triggers rise with time, and so do the slots of a
backfill: a settlement that holds a row only waits for later keys, as operations do. Only rows of a recurring instance
whose id sorts behind can meet crosswise; the database ends one of the two, and it is tried again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from slotwise.decide.pause import asleep
from slotwise.model.durations import parse_duration
from slotwise.model.records import Row
from slotwise.model.vocabulary import Origin, State
from slotwise.store.dialects.port import Dialect
from slotwise.store.schema.rows import Change, ledger_instance, utc
from slotwise.store.schema.tables import of_plan


def release_queued(connection: sa.Connection, dialect: Dialect, changes: Sequence[Change]) -> None:
    """Release the slots that wait for these, which have just been written."""
    touched = [one for one in changes if one.held.row.control is not None or one.held.row.cancel_requested is not None]
    for change in sorted(touched, key=lambda change: change.held.row.key):
        row = change.held.row
        if row.has_slot:
            removed = change.transition.remove
            freed(connection, dialect, row, change.held.now, removed=removed, never_began=change.never_began)


def freed(
    connection: sa.Connection, dialect: Dialect, row: Row, now: datetime, *, removed: bool = True,
    never_began: bool = False,
) -> None:  # fmt: skip
    """Release what waits for this row, which is not held any more; ``removed``: its slot is final.

    ``never_began``: a backfill's pace counts from now, since the ledger has the start of an earlier run at most.
    """
    queue = _Queue(connection, dialect, row, now)
    if removed and row.origin == Origin.BACKFILL:
        queue.release_backfill(never_began=never_began)
    queue.release_trigger()


@dataclass(frozen=True, slots=True)
class _Queue:
    """The rows beside the plan row of ``row``: an index finds those."""

    connection: sa.Connection
    dialect: Dialect
    row: Row
    now: datetime

    @property
    def _tasks(self) -> sa.Table:
        return self.dialect.tables.tasks

    def _beside(self) -> list[sa.ColumnElement[bool]]:
        return [self._tasks.c.task_name == self.row.task_name, self._tasks.c.plan_instance == ledger_instance(self.row)]

    def _release(self, instance: str, due: datetime) -> None:
        """The row may start at ``due``; if its job is paused, after the pause."""
        tasks, plan = self._tasks, ledger_instance(self.row)
        state = sa.select(tasks.c.state).where(tasks.c.task_name == self.row.task_name, tasks.c.task_instance == plan)
        awake = {"state": None, "execution_time": due, "parked_due": None}
        columns = asleep(due) if self.connection.scalar(state) == State.PAUSED else awake
        self.connection.execute(
            tasks.update().where(*self._beside(), tasks.c.task_instance == instance).values(**columns)
        )

    # -- triggers -----------------------------------------------------------------------------------------------

    def release_trigger(self) -> None:
        """The oldest queued trigger starts, unless something that it waits for goes on.

        That is an earlier trigger, and a run with the number of an earlier operation: those that went on at its order
        have its own.
        """
        tasks = self._tasks
        queued = sa.select(tasks.c.task_instance, tasks.c.slot, tasks.c.control).where(
            *self._beside(), tasks.c.state == State.QUEUED, tasks.c.origin == Origin.TRIGGER
        )
        first = self.connection.execute(queued.order_by(tasks.c.slot).limit(1).with_for_update()).first()
        if first is None:
            return
        is_awake = tasks.c.state.is_(None) | (tasks.c.state == State.PAUSED)
        is_to_end = tasks.c.picked | sa.and_(tasks.c.attempt == 0, is_awake)
        earlier = sa.and_(tasks.c.origin == Origin.TRIGGER, tasks.c.slot < first.slot, is_to_end)
        is_other = tasks.c.origin.is_distinct_from(Origin.TRIGGER)
        running = sa.and_(is_other, tasks.c.picked, tasks.c.control <= first.control)
        family = [tasks.c.task_name == self.row.task_name, of_plan(tasks, ledger_instance(self.row))]
        goes_on = sa.select(tasks.c.version).where(*family, earlier | running)
        if self.connection.execute(goes_on.limit(1)).first() is None:
            self._release(first.task_instance, self.now)

    # -- backfills ----------------------------------------------------------------------------------------------

    def release_backfill(self, *, never_began: bool) -> None:
        """The oldest queued slot of the same backfill starts: the place that is free is its own."""
        tasks, controls = self._tasks, self.dialect.tables.controls
        queued = sa.select(tasks.c.task_instance, controls.c.arguments).where(
            *self._beside(), tasks.c.state == State.QUEUED, tasks.c.origin == Origin.BACKFILL,
            tasks.c.control == self.row.control,
        ).outerjoin(controls, controls.c.id == tasks.c.control)  # fmt: skip
        # Race: of two that end at once, each takes the next row that is not locked.
        oldest = queued.order_by(tasks.c.slot).limit(1).with_for_update(skip_locked=True, of=tasks)
        if (found := self.connection.execute(oldest).first()) is None:
            return
        pace, due = json.loads(found.arguments or "{}").get("pace"), self.now
        if pace:
            due = max(due, self._newest_start(never_began) + parse_duration(pace))
        self._release(found.task_instance, due)

    def _newest_start(self, never_began: bool) -> datetime:
        """When the newest of the backfill's slots that may start by now does so, or the slot that has ended did.

        Race: of two that end at once, both would count from what was due before. So the second one waits at the order
        for the commit of the first.
        """
        tasks, slots, controls = self._tasks, self.dialect.tables.slots, self.dialect.tables.controls
        order = self.row.control
        self.connection.execute(sa.select(controls.c.id).where(controls.c.id == order).with_for_update())
        own = sa.select(slots.c.started).where(
            slots.c.task_name == self.row.task_name, slots.c.task_instance == ledger_instance(self.row),
            slots.c.slot == self.row.slot,
        )  # fmt: skip
        began = None if never_began else utc(self.connection.scalar(own))
        due = sa.func.coalesce(tasks.c.parked_due, tasks.c.execution_time, type_=tasks.c.execution_time.type)
        mine = [*self._beside(), tasks.c.control == order, tasks.c.state.is_distinct_from(State.QUEUED)]
        going = sa.select(sa.func.max(due, type_=due.type)).where(*mine, tasks.c.picked | (tasks.c.attempt == 0))
        newest = utc(self.connection.scalar(going))
        return max(began or self.now, newest or began or self.now)
