"""What people ask the ledger: a job's slots and gaps, page by page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from slotwise.model.records import RECURRING
from slotwise.model.vocabulary import Origin, State
from slotwise.store.reading.views import SlotInfo, gap_info, slot_info, waiting_info
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import HAS_SLOT, OF_INSTANCES, is_detached, of_plan
from slotwise.store.slots.store import Store

#: Rows of one page of the ledger.
PAGE = 500


class LedgerReader:
    """Reads slots and gaps; takes no locks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tasks, self._slots = store.tables.tasks, store.tables.slots
        self._gaps, self._workers = store.tables.gaps, store.tables.workers

    def standing(
        self, name: str, instance: str | None = None, *, limit: int | None = None, since: datetime | None = None
    ) -> list[SlotInfo]:
        """Slots that have not ended: those that wait (the schedule's next, triggers, retries), then those that run.

        Each the latest first. A slot that waits for a retry is one line, with what the ledger says of the last attempt.
        Of more than ``limit``: the schedule's next, what runs, and what comes next; of paused ones, the first by
        instance; the queue of a backfill is last. ``since``: none before this instant.
        """
        with self._store.transaction() as connection:
            found = connection.execute(self._standing(name, instance, limit, since)).mappings()
            each = {row["task_instance"]: row for row in found}.values()
            chosen = sorted(each, key=lambda row: _turn(row, instance or RECURRING))[:limit]
            rows = sorted(chosen, key=lambda row: (utc(row["slot"]), row["task_instance"]))
            keys = [(row["plan_instance"] or row["task_instance"], utc(row["slot"])) for row in rows]
            begun = self._begun(connection, name, keys)
        waiting, running = [], []
        for row, key in zip(reversed(rows), reversed(keys), strict=True):
            line = begun.get(key)
            if not row["picked"]:
                waiting.append(waiting_info(row, line))
            elif line is not None:
                running.append(slot_info(line))
        return waiting + running

    def _standing(
        self, name: str, instance: str | None, limit: int | None, since: datetime | None
    ) -> sa.CompoundSelect[Any]:
        """Those that wait, run, or are parked, each in the order of an index: of 100,000 instances a few are read."""
        tasks = self._tasks
        of_jobs = sa.select(tasks).where(tasks.c.task_name == name, tasks.c.slot.is_not(None), sa.text(f"({HAS_SLOT})"))
        if instance is not None:
            of_jobs = of_jobs.where(of_plan(tasks, instance))
        if since is not None:
            of_jobs = of_jobs.where(tasks.c.slot >= since)
        waiting = of_jobs.where(~tasks.c.picked, tasks.c.state.is_(None)).order_by(tasks.c.execution_time)
        running = of_jobs.where(tasks.c.picked).order_by(tasks.c.slot)
        parked = [of_jobs.where(~tasks.c.picked, tasks.c.state == state) for state in (State.PAUSED, State.QUEUED)]
        own = of_jobs.where(tasks.c.task_instance == (instance or RECURRING))
        parts = [own, waiting, running, *(one.order_by(tasks.c.task_instance) for one in parked)]
        return sa.union_all(*(sa.select(part.limit(limit).subquery()) for part in parts))

    def _begun(
        self, connection: sa.Connection, name: str, keys: Sequence[tuple[str, datetime]]
    ) -> dict[tuple[str, datetime], sa.RowMapping]:
        """What the ledger says of these slots, by instance and slot."""
        key, found = sa.tuple_(self._slots.c.task_instance, self._slots.c.slot), {}
        for start in range(0, len(keys), PAGE):
            wanted = sa.select(self._slots).where(self._slots.c.task_name == name, key.in_(keys[start : start + PAGE]))
            for line in connection.execute(wanted).mappings():
                found[line["task_instance"], utc(line["slot"])] = line
        return found

    def _stand(self) -> list[sa.ColumnElement[bool]]:
        """Whether a slot of the ledger has a row: that of its plan, or one beside it. Each is found by an index."""
        tasks, slots = self._tasks, self._slots
        rows = sa.select(sa.literal(1)).where(
            tasks.c.task_name == slots.c.task_name,
            tasks.c.slot == slots.c.slot,
            tasks.c.state.is_distinct_from(State.DEAD),
        )
        own = rows.where(tasks.c.task_instance == slots.c.task_instance, ~is_detached(tasks))
        return [sa.exists(own), sa.exists(rows.where(tasks.c.plan_instance == slots.c.task_instance))]

    def slots(
        self,
        name: str,
        instance: str | None = None,
        *,
        limit: int | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        ended: bool = False,
    ) -> Iterator[SlotInfo]:
        """Ledger and gaps of a job, merged, the newest first, read page by page as far as they are wanted.

        A gap stands where its last slot stands. ``before`` goes on where an earlier listing ended. ``ended``: without
        what ``standing`` lists.
        """
        cursor = None if before is None else _Place(before, 0, "")
        left = limit
        while left is None or left > 0:
            size = PAGE if left is None else min(left, PAGE)
            page = self._page(name, instance, size, since, cursor, ended)
            yield from (line for _, line in page)
            if len(page) < size:
                return
            cursor = page[-1][0]
            left = None if left is None else left - len(page)

    def slots_within(self, name: str, instance: str, start: datetime, end: datetime) -> list[datetime]:
        """The slots of an instance from ``start`` on and before ``end`` that the ledger or a row knows."""
        found, tasks = set(), self._tasks
        families = [
            (self._slots, self._slots.c.task_instance == instance),
            (tasks, of_plan(tasks, instance)),
        ]
        for table, family in families:
            within = [table.c.task_name == name, family, table.c.slot >= start, table.c.slot < end]
            found |= {utc(row["slot"]) for row in self._rows(sa.select(table.c.slot).where(*within))}
        return sorted(found)

    def slot(self, name: str, slot: datetime, instance: str = RECURRING) -> SlotInfo | None:
        """One slot of a job, or of an instance, as the ledger has it."""
        found = self._rows(_of(self._slots, name, instance).where(self._slots.c.slot == slot))
        return slot_info(found[0]) if found else None

    def _page(
        self,
        name: str,
        instance: str | None,
        size: int,
        since: datetime | None,
        cursor: _Place | None,
        ended: bool,
    ) -> list[tuple[_Place, SlotInfo]]:
        """Race: what is written between two pages is newer than the first one's end; it is later, not missed."""
        lines: list[tuple[_Place, SlotInfo]] = []
        for ledger in self._ledgers(name, instance):
            ended_only = ledger.where(*(~stands for stands in self._stand())) if ended else ledger
            rows = self._rows(_cut(ended_only, self._slots.c.slot, self._slots, 1, size, since, cursor))
            lines += [(_Place(utc(row["slot"]), 1, row["task_instance"]), slot_info(row)) for row in rows]
        gaps = _of(self._gaps, name, instance).add_columns(self._run_since())
        cut = _cut(gaps, self._gaps.c.last_slot, self._gaps, 0, size, since, cursor)
        lines += [(_Place(utc(row["last_slot"]), 0, row["task_instance"]), gap_info(row)) for row in self._rows(cut)]
        return sorted(lines, key=lambda line: line[0], reverse=True)[:size]

    def _run_since(self) -> sa.ColumnElement[int]:
        """How many slots of a gap a backfill has run; what was triggered meanwhile is none of them."""
        slots, gaps = self._slots, self._gaps
        of_gap = (slots.c.task_name == gaps.c.task_name) & (slots.c.task_instance == gaps.c.task_instance)
        within = slots.c.slot.between(gaps.c.first_slot, gaps.c.last_slot) & (slots.c.origin == Origin.BACKFILL)
        return sa.select(sa.func.count()).where(of_gap, within).scalar_subquery().label("run_since")

    def _ledgers(self, name: str, instance: str | None) -> list[sa.Select[Any]]:
        """A job's own slots and those of its instances stand in order each in an index of theirs; together in none."""
        if instance is not None:
            return [_of(self._slots, name, instance)]
        return [_of(self._slots, name, RECURRING), _of(self._slots, name, None).where(sa.text(OF_INSTANCES))]

    def _rows(self, statement: sa.Select[Any]) -> Sequence[sa.RowMapping]:
        with self._store.transaction() as connection:
            return connection.execute(statement).mappings().all()


def _turn(row: sa.RowMapping, own: str) -> tuple[Any, ...]:
    """Which of many that stand is shown first; ``own``: the instance of the plan that is asked about."""
    is_own, is_queued = row["task_instance"] == own, row["state"] == State.QUEUED
    return not is_own, not row["picked"], is_queued, utc(row["slot"]), row["task_instance"]


def _of(table: sa.Table, name: str, instance: str | None) -> sa.Select[Any]:
    """What one of the two tables has about a task, or about one instance of it."""
    found = sa.select(table).where(table.c.task_name == name)
    return found if instance is None else found.where(table.c.task_instance == instance)


class _Place(NamedTuple):
    """Where a line stands in a listing: its instant; a slot before a gap that ends with it; the instance."""

    instant: datetime
    kind: int
    instance: str


def _cut(
    statement: sa.Select[Any],
    column: sa.Column[Any],
    table: sa.Table,
    kind: int,
    size: int,
    since: datetime | None,
    cursor: _Place | None,
) -> sa.Select[Any]:
    """The next page of one of the two tables: what stands after the cursor, the newest first."""
    if since is not None:
        statement = statement.where(column >= since)
    if cursor is not None:
        same = column == cursor.instant
        if kind == cursor.kind:
            same = same & (table.c.task_instance < cursor.instance)
        after = column < cursor.instant
        # The first of the two says nothing new: it is what an index begins at, and a deep page reads none before it.
        further = (column <= cursor.instant) & (after | same)
        statement = statement.where(further if kind <= cursor.kind else after)
    return statement.order_by(column.desc(), table.c.task_instance.desc()).limit(size)
