"""Tells which stored schedules come to other slots now than when their rows were written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from slotwise.decide.claim import slot_after, undecided
from slotwise.errors import InvalidSchedule
from slotwise.model.records import RECURRING, TICK, Row
from slotwise.schedules import parse_schedule
from slotwise.store.schema.rows import row_of
from slotwise.store.schema.tables import HAS_SLOT
from slotwise.store.slots.store import Store

#: So many jobs' own rows are looked at, and so many of all: those that are due next, as the first to surprise somebody.
LOOKED_AT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A job whose row says ``stored`` and whose schedule says ``computed``; ``count``: of so many rows of it."""

    job: str
    id: str
    stored: datetime | None
    computed: datetime | None
    count: int = 1


def moved(store: Store, names: Sequence[str]) -> list[Moved]:
    """The jobs among the rows due next whose slots another release of slotwise, croniter or the zones has moved.

    A row keeps the slot that it waits for; what comes after it is computed by the rules of today.
    """
    tasks = store.tables.tasks
    waiting = (
        sa.select(*store.dialect.row_columns)
        .where(~tasks.c.picked, tasks.c.state.is_(None), tasks.c.task_name.in_(list(names)))
        .where(sa.text(HAS_SLOT))
        .order_by(tasks.c.execution_time, tasks.c.task_name, tasks.c.task_instance)
        .limit(LOOKED_AT)
    )
    # Never more rows than that are read, however many one-time tasks wait beside them.
    own = waiting.where(tasks.c.task_instance == RECURRING)
    with store.transaction() as connection:
        rows = {row.key: row for query in (own, waiting) for row in _readable(connection.execute(query))}
    return _by_job(found for row in rows.values() if (found := _compared(row)) is not None)


def _readable(found: Iterable[Sequence[Any]]) -> Iterator[Row]:
    """Those that can be read; of the others the claim tells, and sets them aside."""
    for values in found:
        with suppress(ValueError):
            yield row_of(values)


def _compared(row: Row) -> Moved | None:
    try:
        schedule = parse_schedule(row.schedule or "-")
        if schedule.from_end or row.slot is None or not row.is_plan or row.attempt:
            return None
        # After a slot that was handed back may come some that were left out with it: they are none that have moved.
        left = undecided(schedule, row.slot, row.watermark)
        now = (schedule.next_after(row.slot - TICK), slot_after(left, row.slot))
    except InvalidSchedule:  # said elsewhere: this release cannot read it at all
        return None
    for stored, computed in zip((row.slot, row.next_slot), now, strict=True):
        if stored is not None and computed is not None and stored != computed:
            return Moved(job=row.task_name, id=row.task_instance, stored=stored, computed=computed)
    return None


def _by_job(found: Iterable[Moved]) -> list[Moved]:
    """One line for each job: its first row, and how many there are."""
    lines: dict[str, list[Moved]] = {}
    for one in found:
        lines.setdefault(one.job, []).append(one)
    return [
        Moved(job=job, id=rows[0].id, stored=rows[0].stored, computed=rows[0].computed, count=len(rows))
        for job, rows in sorted(lines.items())
    ]
