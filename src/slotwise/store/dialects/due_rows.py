"""Statements that find rows, as the portable verbs send them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from slotwise.model.vocabulary import PLANNED, Outcome
from slotwise.store.dialects.conditions import Conditions
from slotwise.store.dialects.port import ClaimRequest, Range
from slotwise.store.dialects.row_values import MOST_BYTES
from slotwise.store.schema.rows import ROW_COLUMNS
from slotwise.store.schema.tables import (
    HAS_SLOT,
    IS_TASK,
    RANK,
    Columns,
    Condition,
    Expression,
    Tables,
)

#: What a claim overwrites: it is not read, for another program may have written it.
_OVERWRITTEN = ("picked_by", "last_heartbeat", "lease")


class DueRows:
    """Statements on waiting rows of the tables of one prefix and schema."""

    def __init__(
        self,
        tables: Tables,
        conditions: Conditions,
        among: Callable[[sa.ColumnElement[str], Collection[str]], Condition],
    ) -> None:
        self._tasks = tables.tasks
        self._among = among
        self._conditions = conditions
        self._age = (
            self._tasks.c.execution_time,
            self._tasks.c.task_name,
            self._tasks.c.task_instance,
        )

    def claimable(
        self, request: ClaimRequest, now: datetime, kind: str
    ) -> tuple[sa.Select[Any], sa.Select[Any]]:
        """Return the statements that find what a claim takes: rows of dead holders, and others."""
        tasks = self._tasks.c
        due = self._asked_for(request, now)
        lost = due.where(tasks.lost_count > 0).order_by(*self._age).limit(request.lost)
        fresh = due.where(tasks.lost_count == 0)
        if request.instance is None:
            fresh = fresh.where(sa.text(kind))
        fresh = fresh.where(*map(self._is_not_before, request.ranges or ()))
        if request.most:
            fresh = fresh.where(self._within_most(request.most, now))
        fresh = fresh.order_by(*self._rank(request.names, kind), *self._age)
        return lost, fresh.limit(request.limit)

    def claimed_columns(self) -> list[Expression]:
        """Return the columns of a Row, its version, and the size of its payload, which is not read
        if it is too large.
        """
        tasks = self._tasks.c
        size = sa.func.length(tasks.task_data)
        replaced: dict[str, Expression] = dict.fromkeys(_OVERWRITTEN, sa.null())
        replaced["task_data"] = sa.case((size <= MOST_BYTES, tasks.task_data))
        columns = [
            replaced.get(name, tasks[name]).label(f"c_{name}") for name in ROW_COLUMNS
        ]
        return [*columns, tasks.version.label("c_before"), size.label("c_size")]

    def _asked_for(self, request: ClaimRequest, now: datetime) -> sa.Select[Any]:
        """Select what is due of these names, or one row of a task."""
        tasks = self._tasks.c
        mine = self._among(tasks.task_name, request.names)
        due = sa.select(*self._age).where(*self._conditions.waiting(now), mine)
        if request.instance is not None:
            return due.where(tasks.task_instance == request.instance)
        return due.where(
            self._conditions.not_all_paused(), self._conditions.of_no_paused_tasks(now)
        )

    def _within_most(self, most: Mapping[str, int], now: datetime) -> Condition:
        """Whether a row is among the first so many due rows of its task, or its task may have
        any.
        """
        tasks = self._tasks.c
        key = tasks.task_name, tasks.task_instance
        order = [sa.literal_column(RANK), tasks.execution_time]
        place = sa.func.row_number().over(partition_by=tasks.task_name, order_by=order)
        due = sa.select(*key, place.label("place"))
        due = due.where(*self._conditions.waiting(now), tasks.task_name.in_(most))
        due = due.where(sa.text(IS_TASK), tasks.lost_count == 0)
        found = due.subquery("found").c
        is_first = found.place <= sa.case(dict(most), value=found.task_name)
        first = sa.select(found.task_name, found.task_instance).where(is_first)
        return tasks.task_name.not_in(most) | sa.tuple_(*key).in_(first)

    def _is_not_before(self, cursor: Range) -> Condition:
        tasks = self._tasks
        if cursor.since is None:
            return sa.true()
        is_of_range = sa.text(f"{RANK} BETWEEN {cursor.first} AND {cursor.last}")
        is_before = tasks.c.execution_time < cursor.since
        return ~((tasks.c.task_name == cursor.task_name) & is_before & is_of_range)

    def _rank(self, names: Sequence[str], kind: str) -> list[Expression]:
        """The order of claims: the highest priority first; one-time tasks then name by name, as
        given.
        """
        rank: list[Expression] = [sa.literal_column(RANK)]
        if kind == IS_TASK:
            places = {name: place for place, name in enumerate(names)}
            rank.append(sa.case(places, value=self._tasks.c.task_name))
        return rank

    def names(self, now: datetime, limit: int) -> list[sa.Select[Any]]:
        """Find name, priority and due time of due slots, and of rows of dead holders."""
        tasks = self._tasks.c
        priority = sa.func.coalesce(tasks.priority, 50)
        due = sa.select(tasks.task_name, priority, tasks.execution_time)
        due = due.where(*self._conditions.waiting(now))
        due = due.order_by(tasks.execution_time).limit(limit)
        return [due.where(kind) for kind in (sa.text(HAS_SLOT), tasks.lost_count > 0)]

    def next(
        self,
        slots: Collection[str],
        queues: Collection[str],
        now: datetime,
        *,
        lost: bool,
    ) -> list[sa.Select[Any]]:
        """Find the earliest due times: of waiting slots, of tasks, of rows of dead holders."""
        tasks = self._tasks.c
        due = tasks.execution_time
        is_fresh = tasks.lost_count == 0
        kinds = [
            (slots, sa.text(HAS_SLOT) & is_fresh),
            (queues, sa.text(IS_TASK) & is_fresh),
        ]
        if lost:
            kinds.append((slots, tasks.lost_count > 0))
        waiting = (
            *self._conditions.waiting(),
            self._conditions.not_all_paused(),
            self._conditions.of_no_paused_tasks(now),
        )
        first = sa.select(sa.func.min(due, type_=due.type)).where(*waiting)
        return [
            first.where(self._among(tasks.task_name, names), kind)
            for names, kind in kinds
        ]


@lru_cache(maxsize=16)
def newest_decided(tables: Tables, *, strict: bool) -> sa.Executable:
    """Find the newest slot of a key that is decided according to the ledger, and that of a gap.

    Built once: each late slot needs one.
    """
    slots = tables.slots.c
    gaps = tables.gaps.c
    is_decided: Condition = slots.finished.is_not(None)
    if strict:
        is_decided |= slots.outcome != Outcome.CLAIMED
    mine = *_of_key_asked(slots), slots.origin.in_(PLANNED), is_decided
    in_ledger = _newest(slots.slot, slots.slot, mine)
    in_gaps = _newest(gaps.last_slot, gaps.first_slot, _of_key_asked(gaps))
    return sa.select(in_ledger, in_gaps)


def _newest(
    slot: Expression, order: Expression, mine: Iterable[Condition]
) -> sa.ScalarSelect[datetime]:
    newest = sa.select(slot).where(*mine).order_by(order.desc()).limit(1)
    return newest.scalar_subquery()


def _of_key_asked(table: Columns) -> list[Condition]:
    names = ("task_name", "task_instance")
    return [table[name] == sa.bindparam(name, type_=sa.Text) for name in names]


def newest_of(in_ledger: datetime | None, in_gaps: datetime | None) -> datetime | None:
    """Return the newest slot that ledger or gaps have decided."""
    return max((found for found in (in_ledger, in_gaps) if found), default=None)
