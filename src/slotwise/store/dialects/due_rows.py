"""Statements that find rows, as the portable verbs send them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from slotwise.model.vocabulary import PLANNED, Outcome
from slotwise.store.dialects.conditions import Conditions
from slotwise.store.dialects.port import ClaimRequest, Range
from slotwise.store.schema.tables import HAS_SLOT, IS_TASK, RANK, Tables


class DueRows:
    """Statements on waiting rows of the tables of one prefix and schema."""

    def __init__(
        self,
        tables: Tables,
        conditions: Conditions,
        among: Callable[[sa.ColumnElement[str], Collection[str]], sa.ColumnElement[bool]],
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
        tasks = self._tasks
        due = sa.select(*self._age)
        due = due.where(
            *self._conditions.waiting(now), self._among(tasks.c.task_name, request.names)
        )
        if request.instance is not None:
            due = due.where(tasks.c.task_instance == request.instance)
        else:
            due = due.where(self._conditions.not_all_paused())
        lost = due.where(tasks.c.lost_count > 0).order_by(*self._age).limit(request.lost)
        fresh = due.where(tasks.c.lost_count == 0)
        if request.instance is None:
            fresh = fresh.where(sa.text(kind))
        fresh = fresh.where(*map(self._is_not_before, request.ranges or ()))
        if request.most:
            fresh = fresh.where(self._within_most(request.most, now))
        fresh = fresh.order_by(*self._rank(request.names, kind), *self._age)
        return lost, fresh.limit(request.limit)

    def _within_most(
        self, most: Mapping[str, int], now: datetime
    ) -> sa.ColumnElement[bool]:
        """Whether a row is among the first so many due rows of its task, or its task may have
        any.
        """
        tasks = self._tasks
        place = sa.func.row_number().over(
            partition_by=tasks.c.task_name,
            order_by=[sa.literal_column(RANK), tasks.c.execution_time],
        )
        due = sa.select(tasks.c.task_name, tasks.c.task_instance, place.label("place"))
        due = due.where(*self._conditions.waiting(now), tasks.c.task_name.in_(most))
        due = due.where(sa.text(IS_TASK), tasks.c.lost_count == 0)
        found = due.subquery("found")
        is_first = found.c.place <= sa.case(dict(most), value=found.c.task_name)
        first = sa.select(found.c.task_name, found.c.task_instance).where(is_first)
        key = sa.tuple_(tasks.c.task_name, tasks.c.task_instance)
        return tasks.c.task_name.not_in(most) | key.in_(first)

    def _is_not_before(self, cursor: Range) -> sa.ColumnElement[bool]:
        tasks = self._tasks
        if cursor.since is None:
            return sa.true()
        is_of_range = sa.text(f"{RANK} BETWEEN {cursor.first} AND {cursor.last}")
        is_before = tasks.c.execution_time < cursor.since
        return ~((tasks.c.task_name == cursor.task_name) & is_before & is_of_range)

    def _rank(self, names: Sequence[str], kind: str) -> list[sa.ColumnElement[Any]]:
        """The order of claims: the highest priority first; one-time tasks then name by name, as
        given.
        """
        rank: list[sa.ColumnElement[Any]] = [sa.literal_column(RANK)]
        if kind == IS_TASK:
            places = {name: place for place, name in enumerate(names)}
            rank.append(sa.case(places, value=self._tasks.c.task_name))
        return rank

    def names(self, now: datetime, limit: int) -> list[sa.Select[Any]]:
        """Find name, priority and due time of due slots, and of rows of dead holders."""
        tasks = self._tasks
        priority = sa.func.coalesce(tasks.c.priority, 50)
        due = sa.select(tasks.c.task_name, priority, tasks.c.execution_time)
        due = due.where(*self._conditions.waiting(now))
        due = due.order_by(tasks.c.execution_time).limit(limit)
        return [due.where(kind) for kind in (sa.text(HAS_SLOT), tasks.c.lost_count > 0)]

    def next(
        self, slots: Collection[str], queues: Collection[str], *, lost: bool
    ) -> list[sa.Select[Any]]:
        """Find the earliest due times: of waiting slots, of tasks, of rows of dead holders."""
        tasks = self._tasks
        due = tasks.c.execution_time
        is_fresh = tasks.c.lost_count == 0
        kinds = [
            (slots, sa.text(HAS_SLOT) & is_fresh),
            (queues, sa.text(IS_TASK) & is_fresh),
        ]
        if lost:
            kinds.append((slots, tasks.c.lost_count > 0))
        first = sa.select(sa.func.min(due, type_=due.type))
        first = first.where(
            *self._conditions.waiting(), self._conditions.not_all_paused()
        )
        return [
            first.where(self._among(tasks.c.task_name, names), kind)
            for names, kind in kinds
        ]


@lru_cache(maxsize=16)
def newest_decided(tables: Tables, *, strict: bool) -> sa.Executable:
    """Find the newest slot of a key that is decided according to the ledger, and that of a gap.

    Built once: each late slot needs one.
    """
    slots = tables.slots
    gaps = tables.gaps
    is_decided: sa.ColumnElement[bool] = slots.c.finished.is_not(None)
    if strict:
        is_decided = is_decided | (slots.c.outcome != Outcome.CLAIMED)
    in_ledger = sa.select(slots.c.slot).where(*_of_key_asked(slots))
    in_ledger = in_ledger.where(slots.c.origin.in_(PLANNED), is_decided)
    in_ledger = in_ledger.order_by(slots.c.slot.desc()).limit(1)
    in_gaps = sa.select(gaps.c.last_slot).where(*_of_key_asked(gaps))
    in_gaps = in_gaps.order_by(gaps.c.first_slot.desc()).limit(1)
    return sa.select(in_ledger.scalar_subquery(), in_gaps.scalar_subquery())


def _of_key_asked(table: sa.Table) -> list[sa.ColumnElement[bool]]:
    names = ("task_name", "task_instance")
    return [table.c[name] == sa.bindparam(name, type_=sa.Text) for name in names]


def newest_of(in_ledger: datetime | None, in_gaps: datetime | None) -> datetime | None:
    """Return the newest slot that ledger or gaps have decided."""
    return max((found for found in (in_ledger, in_gaps) if found), default=None)
