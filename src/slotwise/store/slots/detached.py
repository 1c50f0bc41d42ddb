"""Detached rows: one slot each, beside the plan row. They are made here and nowhere else."""

from __future__ import annotations

import random
import uuid
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from slotwise.decide.pause import asleep
from slotwise.errors import UnknownTask
from slotwise.model.records import FOREVER, RECURRING, TICK, Key
from slotwise.model.vocabulary import Kind, Origin, State
from slotwise.schedules import Disabled, Schedule
from slotwise.schedules.text import readable
from slotwise.store.dialects.port import Dialect
from slotwise.store.schema.column_types import to_micros
from slotwise.store.schema.tables import of_plan


def detach(
    connection: sa.Connection,
    dialect: Dialect,
    now: datetime,
    *,
    name: str,
    slot: datetime,
    origin: str,
    plan_instance: str = RECURRING,
    instance: str | None = None,
    due: datetime | None = None,
    **columns: Any,
) -> Key | None:
    """A row of its own for ``slot``, due at ``due`` (now); None if there is one of this instance already.

    Its instance is the plan row's with the slot, unless another is given; ``columns`` are any others that the row
    begins with. It carries the plan's schedule, so that a handler knows the interval that its slot ends, and its data;
    and it sleeps while the plan row is paused.

    Races: two that detach the same slot make one row, by its key. Against a claim of the plan row, the ledger
    decides which of the two slots starts. The row's first version is the database's time, so that tokens rise when
    the instance is used again.
    """
    tasks, born = dialect.tables.tasks, to_micros(now)
    plan = _plan(connection, dialect, name, plan_instance)
    row: dict[str, Any] = {
        "task_name": name, "task_instance": instance or f"{plan_instance}@{slot.isoformat()}",
        "kind": Kind.DETACHED, "plan_instance": plan_instance, "slot": slot, "origin": origin,
        "execution_time": due or now, "picked": False, "version": born, "created_version": born,
        "schedule": plan.schedule if plan else None, "task_data": plan.task_data if plan else None, **columns,
    }  # fmt: skip
    if plan is not None and plan.state == State.PAUSED and "state" not in columns:
        row |= asleep(row["execution_time"])
    is_new = dialect.by_row.insert_new(connection, tasks, row, tasks.c.task_instance)
    return Key(name, row["task_instance"]) if is_new else None


def _plan(connection: sa.Connection, dialect: Dialect, name: str, instance: str) -> Any:
    tasks = dialect.tables.tasks
    statement = sa.select(tasks.c.schedule, tasks.c.state, tasks.c.task_data)
    return connection.execute(statement.where(tasks.c.task_name == name, tasks.c.task_instance == instance)).first()


def trigger(
    connection: sa.Connection, dialect: Dialect, name: str, plan_instance: str = RECURRING, **columns: Any
) -> Key:
    """A detached row for a job, now, beside its schedule. Raises UnknownTask without a plan row.

    Race: triggers of the same microsecond would both find its slot free; the plan row's lock lets them take turns.
    """
    tasks = dialect.tables.tasks
    plan = sa.select(tasks.c.schedule).where(tasks.c.task_name == name, tasks.c.task_instance == plan_instance)
    if (found := connection.execute(plan.with_for_update()).first()) is None:
        raise UnknownTask(f"job {name!r} has no row yet; start a worker that knows it once, or check the name")
    now = dialect.now(connection)
    slot = free_slot(connection, dialect, name, plan_instance, readable(found[0]) or Disabled(), now)
    return detach_trigger(connection, dialect, now, name, slot, plan_instance, **columns)


def detach_trigger(
    connection: sa.Connection, dialect: Dialect, now: datetime, name: str, slot: datetime,
    plan_instance: str = RECURRING, *, is_queued: bool = False, **columns: Any,
) -> Key:  # fmt: skip
    """A trigger's row. The caller has locked the plan row, and has found the slot free.

    Its id begins with the time, so that the rows of triggers are locked in the order in which they were requested.
    """
    token = uuid.UUID(int=(to_micros(now) // 1000 << 80) + random.getrandbits(80), version=4)
    waits: dict[str, Any] = {"state": State.QUEUED, "parked_due": now, "due": FOREVER} if is_queued else {}
    key = detach(
        connection, dialect, now, name=name, slot=slot, origin=Origin.TRIGGER, instance=f"trigger:{token}",
        plan_instance=plan_instance, **waits, **columns,
    )  # fmt: skip
    assert key is not None  # nobody else has this id
    return key


def free_slot(
    connection: sa.Connection, dialect: Dialect, name: str, instance: str, schedule: Schedule, now: datetime
) -> datetime:
    """The time of the request, moved on by a microsecond while it is taken; a slot of the schedule's own is, begun or
    not: it would count as run, and the plan row would pass it.
    """
    slot = now
    while schedule.next_after(slot - TICK) == slot or _is_taken(connection, dialect, name, instance, slot):
        slot += TICK
    return slot


def _is_taken(connection: sa.Connection, dialect: Dialect, name: str, instance: str, slot: datetime) -> bool:
    """Whether a ledger row or another detached row has the slot."""
    slots, tasks, one = dialect.tables.slots, dialect.tables.tasks, sa.select(sa.literal(1))
    known = one.where(slots.c.task_name == name, slots.c.task_instance == instance, slots.c.slot == slot)
    waits = one.where(tasks.c.task_name == name, of_plan(tasks, instance), tasks.c.slot == slot)
    return connection.execute(known.union_all(waits)).first() is not None
