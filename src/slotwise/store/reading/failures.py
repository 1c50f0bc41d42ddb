"""Failures of all jobs and tasks since an instant, for the morning after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa

from slotwise.model.records import RECURRING
from slotwise.model.values import Value
from slotwise.model.vocabulary import Origin, Outcome, Reason, RowState
from slotwise.store.reading.task_counts import names_in
from slotwise.store.schema.rows import filled, utc
from slotwise.store.schema.tables import OF_INSTANCES, is_task
from slotwise.store.slots.store import Store

FAILED: Final = (Outcome.FAILED, Outcome.DEAD, Outcome.LOST)
#: The ledger is ordered by slot. A failure is found if its slot is at most this much older than
#: the first instant.
OLDEST_SLOT: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(Value):
    """A failed or lost slot, or a dead or waiting task (no ``slot``); ``reason`` is retry or rerun
    if it will run again.
    """

    name: str
    id: str
    slot: datetime | None
    at: datetime
    outcome: str
    reason: str | None
    attempts: int
    worker: str | None
    error: str | None


def failures(
    store: Store, since: datetime, *, name: str | None = None, limit: int
) -> list[Failure]:
    """Return the newest failures since an instant, of one job or task, or of all."""
    slots = store.tables.slots
    at = sa.func.coalesce(slots.c.finished, slots.c.started)
    with store.transaction() as connection:
        waiting = _tasks(connection, store, since, name, limit)
        found: list[Failure] = []
        for one in [name] if name is not None else names_in(connection, slots.c.task_name):
            failed = sa.select(slots, at.label("at")).where(
                slots.c.task_name == one,
                slots.c.slot >= since - OLDEST_SLOT,
                slots.c.outcome.in_(FAILED),
                at >= since,
            )
            for family in (slots.c.task_instance == RECURRING, sa.text(OF_INSTANCES)):
                listed = connection.execute(
                    failed.where(family).order_by(at.desc()).limit(limit)
                ).mappings()
                found += map(_of_slot, listed)
    rows = {
        (one.name, one.id) for one in waiting
    }  # of a task with a row, the ledger may have the end as well
    found = [
        *waiting,
        *(one for one in found if one.slot is not None or (one.name, one.id) not in rows),
    ]
    return sorted(found, key=lambda one: one.at, reverse=True)[:limit]


def failed_attempts(
    store: Store, since: datetime, *, name: str | None = None, limit: int
) -> list[Failure]:
    """Return the newest attempts that failed or were lost, also of slots that succeeded later.

    One-time tasks are among them if they keep a record: the ledger has no slot of these, or their
    end.
    """
    table = store.tables.attempts
    slots = store.tables.slots
    mine = sa.and_(
        *(slots.c[name] == table.c[name] for name in ("task_name", "task_instance", "slot"))
    )
    wanted = sa.select(table, slots.c.origin).join_from(table, slots, mine, isouter=True)
    wanted = wanted.where(
        table.c.ended >= since, table.c.outcome.in_((Outcome.FAILED, Outcome.LOST))
    )
    wanted = wanted if name is None else wanted.where(table.c.task_name == name)
    with store.transaction() as connection:
        rows = (
            connection.execute(wanted.order_by(table.c.ended.desc()).limit(limit))
            .mappings()
            .all()
        )
    return [_of_slot(row, at=utc(row["ended"]), attempts=row["number"]) for row in rows]


def _of_slot(row: sa.RowMapping, **others: object) -> Failure:
    slot = None if row["origin"] in (None, Origin.TASK) else utc(row["slot"])
    return filled(
        Failure, row, name=row["task_name"], id=row["task_instance"], slot=slot, **others
    )


def _tasks(
    connection: sa.Connection, store: Store, since: datetime, name: str | None, limit: int
) -> Sequence[Failure]:
    """One-time tasks that have a row: dead ones, and those that wait for their next attempt or run
    it.
    """
    tasks = store.tables.tasks
    wanted = sa.select(tasks).where(is_task(tasks), tasks.c.last_failure >= since)
    wanted = wanted if name is None else wanted.where(tasks.c.task_name == name)
    return [
        Failure(
            name=row["task_name"],
            id=row["task_instance"],
            slot=None,
            at=utc(row["last_failure"]),
            outcome=Outcome.DEAD if row["state"] == RowState.DEAD else Outcome.FAILED,
            reason=None if row["state"] == RowState.DEAD else Reason.RETRY,
            attempts=row["attempt"],
            worker=row["picked_by"],
            error=row["last_error"],
        )
        for row in connection.execute(
            wanted.order_by(tasks.c.last_failure.desc()).limit(limit)
        ).mappings()
    ]
