"""What people ask the ledger: a job's slots and gaps, page by page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from slotwise.execution import RECURRING
from slotwise.store.lines import SlotLine, gap_line, slot_line, waiting_line
from slotwise.store.rows import utc
from slotwise.store.store import Store

#: Rows of one page of the ledger.
PAGE = 500


class LedgerReader:
    """Reads slots and gaps; takes no locks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tasks, self._slots = store.tables.tasks, store.tables.slots
        self._gaps, self._workers = store.tables.gaps, store.tables.workers

    def standing(self, name: str, instance: str | None = None, *, limit: int | None = None) -> list[SlotLine]:
        """Slots that have not ended: those that wait (the schedule's next, triggers, retries), then those that run.

        Each the latest first. A slot that waits for a retry is one line, with what the ledger says of the last attempt.
        Of more than ``limit``, those that come next.
        """
        ledger = _of(self._slots, name, instance).where(sa.exists(self._rows_of_slots()))
        nearest = self._standing(name, instance).order_by(self._tasks.c.slot, self._tasks.c.task_instance).limit(limit)
        with self._store.transaction() as connection:
            rows = connection.execute(nearest).mappings().all()
            found = connection.execute(ledger).mappings().all()
        begun = {(line["task_instance"], utc(line["slot"])): line for line in found}
        waiting, running = [], []
        for row in reversed(rows):
            line = begun.get((row["plan_instance"] or row["task_instance"], utc(row["slot"])))
            if not row["picked"]:
                waiting.append(waiting_line(row, line))
            elif line is not None:
                running.append(slot_line(line))
        return waiting + running

    def _standing(self, name: str, instance: str | None) -> sa.Select[Any]:
        tasks = self._tasks
        is_jobs = tasks.c.schedule.is_not(None) | tasks.c.plan_instance.is_not(None)
        alive = tasks.c.state.is_distinct_from("dead")  # of those the ledger tells the end
        found = sa.select(tasks).where(tasks.c.task_name == name, tasks.c.slot.is_not(None), is_jobs, alive)
        if instance is None:
            return found
        return found.where(sa.func.coalesce(tasks.c.plan_instance, tasks.c.task_instance) == instance)

    def _rows_of_slots(self) -> sa.Select[Any]:
        """The rows that stand for a slot of the ledger."""
        tasks, slots = self._tasks, self._slots
        return sa.select(sa.literal(1)).where(
            tasks.c.task_name == slots.c.task_name,
            tasks.c.slot == slots.c.slot,
            sa.func.coalesce(tasks.c.plan_instance, tasks.c.task_instance) == slots.c.task_instance,
            tasks.c.state.is_distinct_from("dead"),
        )

    def slots(
        self,
        name: str,
        instance: str | None = None,
        *,
        limit: int | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        ended: bool = False,
    ) -> Iterator[SlotLine]:
        """Ledger and gaps of a job, merged, the newest first, read page by page as far as they are wanted.

        A gap stands where its last slot stands. ``before`` goes on where an earlier listing ended. ``ended``: without
        what ``standing`` lists.
        """
        cursor = None if before is None else _Place(before, 0, "")
        left, alone = limit, self._alone(name) if instance is None else instance
        while left is None or left > 0:
            size = PAGE if left is None else min(left, PAGE)
            page = self._page(name, instance, alone, size, since, cursor, ended)
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
            (tasks, (tasks.c.task_instance == instance) | (tasks.c.plan_instance == instance)),
        ]
        for table, family in families:
            within = [table.c.task_name == name, family, table.c.slot >= start, table.c.slot < end]
            found |= {utc(row["slot"]) for row in self._rows(sa.select(table.c.slot).where(*within))}
        return sorted(found)

    def slot(self, name: str, slot: datetime, instance: str = RECURRING) -> SlotLine | None:
        """One slot of a job, or of an instance, as the ledger has it."""
        found = self._rows(_of(self._slots, name, instance).where(self._slots.c.slot == slot))
        return slot_line(found[0]) if found else None

    def _page(
        self,
        name: str,
        instance: str | None,
        alone: str | None,
        size: int,
        since: datetime | None,
        cursor: _Place | None,
        ended: bool,
    ) -> list[tuple[_Place, SlotLine]]:
        """Race: what is written between two pages is newer than the first one's end; it is later, not missed."""
        gaps, ledger = _of(self._gaps, name, instance), _of(self._slots, name, alone)
        if ended:
            ledger = ledger.where(~sa.exists(self._rows_of_slots()))
        cut_slots = _cut(ledger, self._slots.c.slot, self._slots, 1, size, since, cursor)
        cut_gaps = _cut(gaps, self._gaps.c.last_slot, self._gaps, 0, size, since, cursor)
        lines = [(_Place(utc(row["slot"]), 1, row["task_instance"]), slot_line(row)) for row in self._rows(cut_slots)]
        lines += [
            (_Place(utc(row["last_slot"]), 0, row["task_instance"]), gap_line(row)) for row in self._rows(cut_gaps)
        ]
        return sorted(lines, key=lambda line: line[0], reverse=True)[:size]

    def _alone(self, name: str) -> str | None:
        """The instance of a job that has but one in the ledger, as most have. Its slots stand in order in the key;
        those of several would all be read, and sorted, for each page. One that comes later has newer slots only.
        """
        slots = self._slots
        of_it = sa.select(slots.c.task_instance).where(slots.c.task_name == name).limit(1)
        ends = [of_it.order_by(order(slots.c.task_instance)).scalar_subquery() for order in (sa.asc, sa.desc)]
        with self._store.transaction() as connection:
            first, last = connection.execute(sa.select(*ends)).one()
        return first if first == last else None

    def _rows(self, statement: sa.Select[Any]) -> Sequence[sa.RowMapping]:
        with self._store.transaction() as connection:
            return connection.execute(statement).mappings().all()


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
        statement = statement.where(after | same if kind <= cursor.kind else after)
    return statement.order_by(column.desc(), table.c.task_instance.desc()).limit(size)
