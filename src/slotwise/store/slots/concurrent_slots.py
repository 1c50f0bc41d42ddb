"""Slots that run side by side: each in a row of its own, while the plan row goes on to the next one.

The gate ``ConcurrentSlots`` counts the places. Race: nothing in here waits; a locked row is asked to stop at the next
look, a second later.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from slotwise.model.records import FOREVER, Row
from slotwise.model.vocabulary import PLANNED, Kind, Origin, Outcome
from slotwise.store.connect.database import Database
from slotwise.store.dialects.port import Dialect
from slotwise.store.schema.column_types import to_micros
from slotwise.store.schema.rows import Change, ledger_instance
from slotwise.store.slots.detached import detach


class SlotRows:
    """The rows of a plan row's slots that run, or wait for their retry."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._tasks = dialect.tables.tasks

    def ask_to_stop(self, connection: sa.Connection, plan: Row, origins: Sequence[str], now: datetime) -> None:
        """Call off what runs; what waits for its retry comes up at once, and ends without another attempt."""
        tasks = self._tasks
        free = sa.select(tasks.c.task_instance).where(
            *self._of(plan), tasks.c.origin.in_(origins), tasks.c.cancel_requested.is_(None)
        )
        named = connection.scalars(free.with_for_update(skip_locked=True)).all()
        if named:
            connection.execute(
                tasks.update()
                .where(tasks.c.task_name == plan.task_name, tasks.c.task_instance.in_(named))
                .values(self._called_off(now))
            )

    def _called_off(self, now: datetime) -> dict[str, Any]:
        """The columns of a slot that is asked to stop; one that waits for its retry comes up at once."""
        tasks = self._tasks
        due = sa.case((tasks.c.picked, tasks.c.execution_time), else_=sa.literal(now, tasks.c.execution_time.type))
        return {"cancel_requested": now, "control": None, "execution_time": due}

    def detach(self, connection: sa.Connection, plan: Row, now: datetime) -> Row | None:
        """The slot that was decided for the claimed plan row, held in a row of its own; None if it has one already."""
        assert plan.slot is not None
        born, origin = to_micros(now), plan.origin or Origin.SCHEDULE
        key = detach(
            connection, self._dialect, now, name=plan.task_name, slot=plan.slot, origin=origin, due=plan.execution_time,
            plan_instance=plan.task_instance, schedule=plan.schedule, task_data=plan.task_data,
            picked=True, picked_by=plan.picked_by, last_heartbeat=now, lease=plan.lease, attempt=1,
            collapsed=plan.collapsed, next_slot=plan.next_slot, priority=plan.priority,
        )  # fmt: skip
        if key is None:
            return None
        return replace(
            plan, task_instance=key.task_instance, kind=Kind.DETACHED, plan_instance=plan.task_instance, origin=origin,
            watermark=None,
            version=born, created_version=born, attempt=1, catch_up_until=None, unheld_since=None, last_heartbeat=now,
            last_success=None, last_failure=None, consecutive_failures=0,
        )  # fmt: skip

    def drop(self, connection: sa.Connection, row: Row) -> None:
        """Take back a row that ``detach`` has just made."""
        tasks = self._tasks
        mine = [tasks.c.task_name == row.task_name, tasks.c.task_instance == row.task_instance]
        connection.execute(tasks.delete().where(*mine, tasks.c.version == row.version))

    def _of(self, plan: Row) -> list[sa.ColumnElement[bool]]:
        tasks = self._tasks
        return [
            tasks.c.task_name == plan.task_name,
            tasks.c.plan_instance == plan.task_instance,
            tasks.c.origin.in_(PLANNED),
        ]


def tell_plan_rows(database: Database, dialect: Dialect, changes: Sequence[Change], *, wait: bool) -> None:
    """Write the last success and failure of slots that had rows of their own on their plan rows, for people to read.

    Races. In a transaction after the settlement's, one plan row at a time: whoever waits for a plan row's lock while it
    holds a detached row can meet an order that waits the other way round. Another worker may hold the plan row: its
    version, slot and due time stay, so it keeps its claim, and its settlement reads these columns under the row's
    lock before it writes them. Who must not wait (a reaper) leaves out a locked one; what is left out, or lost with
    the process, is told by the next slot.
    """
    told: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        row, record = change.held.row, change.transition.record
        if not row.is_detached or not change.transition.remove:
            continue
        if record is None or record.outcome in (Outcome.CANCELLED, Outcome.SKIPPED):
            continue
        told.setdefault((row.task_name, ledger_instance(row)), []).append(change)
    tasks = dialect.tables.tasks
    for (name, instance), ended in sorted(told.items()):
        mine = [tasks.c.task_name == name, tasks.c.task_instance == instance]
        locked = sa.select(tasks.c.version).where(*mine).with_for_update(skip_locked=not wait)
        with suppress(SQLAlchemyError), database.main.begin() as connection:  # the slots are settled, whatever it is
            if connection.execute(locked).first() is not None:
                connection.execute(tasks.update().where(*mine).values(**_statistics(tasks, ended)))


def _statistics(tasks: sa.Table, ended: Sequence[Change]) -> dict[str, Any]:
    """The columns of a plan row after these slots, which ended together, the latest last."""
    records = [change.transition.record for change in sorted(ended, key=lambda change: change.held.row.slot or FOREVER)]
    words = [record.outcome for record in records if record is not None]
    failures = len(words) if Outcome.SUCCEEDED not in words else words[::-1].index(Outcome.SUCCEEDED)
    before = 0 if Outcome.SUCCEEDED in words else sa.func.coalesce(tasks.c.consecutive_failures, 0)
    found = {"last_success" if word == Outcome.SUCCEEDED else "last_failure": ended[0].held.now for word in words}
    last = records[-1]
    return {**found, "consecutive_failures": before + failures, "last_error": last.error if last else None}
