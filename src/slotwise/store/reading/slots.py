"""Slots of a job: those that have not ended, the ledger with its gaps, and the attempts of each."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import TypeAlias

import sqlalchemy as sa

from slotwise.model.records import RECURRING, Key
from slotwise.model.values import Value
from slotwise.model.vocabulary import Origin, Outcome, Reason, RowState, SlotState
from slotwise.store.dialects.conditions import of_key
from slotwise.store.reading.paging import PAGE, Statement, paged, rows
from slotwise.store.schema.rows import filled, utc
from slotwise.store.schema.tables import (
    HAS_SLOT,
    OF_INSTANCES,
    Tables,
    is_detached,
    of_plan,
)
from slotwise.store.slots.store import Store

#: The place of a line in a listing: by instant, a slot before a gap that ends with it, then by
#: instance.
_Place: TypeAlias = tuple[datetime, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotInfo(Value):
    """A slot in the ledger; or a gap: then ``count`` slots from ``slot`` to ``last`` did not run.
    ``run_since`` of them have a line of their own, since a backfill has run them.

    ``outcome`` is also ``waiting``: for the slot that comes next, or for one that waits for its
    retry. ``lost_by``: the worker from which the slot was taken over last, silent since
    ``silent_since``.
    """

    slot: datetime
    last: datetime | None = None
    count: int = 1
    run_since: int = 0
    outcome: str
    reason: str | None = None
    origin: str | None = None
    attempts: int = 0
    missed_count: int = 0
    worker: str | None = None
    token: int | None = None
    started: datetime | None = None
    finished: datetime | None = None
    took: timedelta | None = None
    due: datetime | None = None
    error: str | None = None
    id: str = RECURRING
    lost_by: str | None = None
    silent_since: datetime | None = None

    @property
    def place(self) -> datetime:
        """The instant by which listings are ordered: of a gap, its last slot."""
        return self.last or self.slot


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptInfo(Value):
    """An attempt of a slot or of a one-time task. ``outcome`` is also ``aborted``, ``snoozed``, or
    ``running``.

    ``ended`` is when its handler ended, or when its worker was last heard of. ``error`` is the
    whole traceback.
    """

    number: int
    outcome: str
    reason: str | None = None
    worker: str | None = None
    token: int | None = None
    claimed: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    error: str | None = None


# -- slots that have not ended --------------------------------------------------------------------


def unended(
    store: Store,
    name: str,
    instance: str | None = None,
    *,
    limit: int | None = None,
    since: datetime | None = None,
) -> list[SlotInfo]:
    """Return slots that have not ended: those that wait (next slot, triggers, retries), then those
    that run.

    Each the latest first. A slot that waits for a retry is one line, with what the ledger says of
    the last attempt. Of more than ``limit``: the schedule's next, what runs, and what comes next;
    of paused ones, the first by instance; queued slots are last. ``since`` is the earliest
    instant.
    """
    own = instance or RECURRING
    with store.transaction() as connection:
        found = connection.execute(_unended(store, name, instance, limit, since)).mappings()
        each = {row["task_instance"]: row for row in found}.values()
        chosen = sorted(each, key=lambda row: _turn(row, own))[:limit]
        chosen.sort(key=lambda row: (utc(row["slot"]), row["task_instance"]), reverse=True)
        begun = _begun(store, connection, name, [_key(row) for row in chosen])
    waiting = []
    running = []
    for row in chosen:
        line = begun.get(_key(row))
        if not row["picked"]:
            waiting.append(_waiting_info(row, line))
        elif line is not None:
            running.append(slot_info(line))
    return waiting + running


def _unended(
    store: Store,
    name: str,
    instance: str | None,
    limit: int | None,
    since: datetime | None,
) -> sa.CompoundSelect[tuple[object, ...]]:
    """Select slots that wait, run or are parked, each by an index: of 100,000 instances few are
    read.
    """
    tasks = store.tables.tasks
    shown = [column for column in tasks.c if column.name not in ("task_data", "lease")]
    of_job = sa.select(*shown).where(
        tasks.c.task_name == name, tasks.c.slot.is_not(None), sa.text(HAS_SLOT)
    )
    if instance is not None:
        of_job = of_job.where(of_plan(tasks, instance))
    if since is not None:
        of_job = of_job.where(tasks.c.slot >= since)
    waiting = of_job.where(~tasks.c.picked, tasks.c.state.is_(None))
    parked = [
        of_job.where(~tasks.c.picked, tasks.c.state == state)
        for state in (RowState.PAUSED, RowState.QUEUED)
    ]
    parts = [
        of_job.where(tasks.c.task_instance == (instance or RECURRING)),
        waiting.order_by(tasks.c.execution_time),
        of_job.where(tasks.c.picked).order_by(tasks.c.slot),
        *(one.order_by(tasks.c.task_instance) for one in parked),
    ]
    return sa.union_all(*(sa.select(part.limit(limit).subquery()) for part in parts))


def _turn(row: sa.RowMapping, own: str) -> tuple[bool, bool, bool, datetime, str]:
    """The sort key of slots that have not ended; ``own`` is the instance of the requested plan."""
    is_own = row["task_instance"] == own
    is_queued = row["state"] == RowState.QUEUED
    return not is_own, not row["picked"], is_queued, utc(row["slot"]), row["task_instance"]


def _key(row: sa.RowMapping) -> tuple[str, datetime]:
    """Instance and slot in the ledger."""
    return row["plan_instance"] or row["task_instance"], utc(row["slot"])


def _begun(
    store: Store,
    connection: sa.Connection,
    name: str,
    keys: Sequence[tuple[str, datetime]],
) -> dict[tuple[str, datetime], sa.RowMapping]:
    slots = store.tables.slots
    key = sa.tuple_(slots.c.task_instance, slots.c.slot)
    found = {}
    for start in range(0, len(keys), PAGE):
        wanted = sa.select(slots, *_last_loss(store.tables)).where(
            slots.c.task_name == name, key.in_(keys[start : start + PAGE])
        )
        for line in connection.execute(wanted).mappings():
            found[line["task_instance"], utc(line["slot"])] = line
    return found


# -- the ledger with its gaps ---------------------------------------------------------------------


def slots(
    store: Store,
    name: str,
    instance: str | None = None,
    *,
    limit: int | None = None,
    since: datetime | None = None,
    before: datetime | None = None,
    ended: bool = False,
) -> Iterator[SlotInfo]:
    """Yield ledger and gaps of a job, merged, the newest first; pages are read as needed.

    A gap is placed by its last slot. ``before`` continues a listing; ``ended`` leaves out what
    ``unended`` lists.
    """
    sources = [
        _Source(store, statement, store.tables.slots.c.slot, 1, slot_info)
        for statement in _ledgers(store, name, instance, ended=ended)
    ]
    gaps = _of(store.tables.gaps, name, instance).add_columns(_run_since(store.tables))
    sources.append(_Source(store, gaps, store.tables.gaps.c.last_slot, 0, gap_info))
    merged = heapq.merge(
        *(source.lines(limit, since, before) for source in sources),
        key=lambda line: line[0],
        reverse=True,
    )
    return (line for _, line in islice(merged, limit))


def _ledgers(
    store: Store, name: str, instance: str | None, *, ended: bool
) -> list[Statement]:
    """Select from the ledger. An index orders a job's own slots, another those of its instances,
    and none both.
    """
    table = store.tables.slots
    if instance is None:
        instances = _of(table, name, None).where(sa.text(OF_INSTANCES))
        found = [_of(table, name, RECURRING), instances]
    else:
        found = [_of(table, name, instance)]
    if ended:
        excluded = [~one for one in _has_row(store.tables)]
        found = [statement.where(*excluded) for statement in found]
    loss = _last_loss(store.tables)
    return [statement.add_columns(*loss) for statement in found]


@dataclass(frozen=True, slots=True)
class _Source:
    """Lines of one statement, placed by ``column``; ``kind`` orders two of one instant."""

    store: Store
    statement: Statement
    column: sa.Column[datetime]
    kind: int
    line: Callable[[sa.RowMapping], SlotInfo]

    def lines(
        self, limit: int | None, since: datetime | None, before: datetime | None
    ) -> Iterator[tuple[_Place, SlotInfo]]:
        statement = self.statement
        if since is not None:
            statement = statement.where(self.column >= since)
        if before is not None:
            statement = statement.where(self.column < before)
        instance = self.column.table.c.task_instance
        statement = statement.order_by(self.column.desc(), instance.desc())

        def page(
            size: int, last: tuple[_Place, SlotInfo] | None
        ) -> list[tuple[_Place, SlotInfo]]:
            # Race: what is written between two pages is newer than the first one's end; it is
            # later, not missed.
            rest = statement if last is None else self._after(statement, last[0])
            return [
                (self._place(row), self.line(row))
                for row in rows(self.store, rest.limit(size))
            ]

        return paged(limit, page)

    def _place(self, row: sa.RowMapping) -> _Place:
        return utc(row[self.column.name]), self.kind, row["task_instance"]

    def _after(self, statement: Statement, place: _Place) -> Statement:
        """Select what comes after a place in a listing, the newest first."""
        column = self.column
        instant, _, instance = place
        same = (column == instant) & (column.table.c.task_instance < instance)
        # The first condition is implied by the second. An index starts at it, so a deep page
        # reads no earlier rows.
        return statement.where(column <= instant, (column < instant) | same)


def _has_row(tables: Tables) -> list[sa.ColumnElement[bool]]:
    """Conditions for a slot of the ledger that has a plan row or a detached row; an index finds
    either.
    """
    tasks = tables.tasks
    slots = tables.slots
    found = sa.select(sa.literal(1)).where(
        tasks.c.task_name == slots.c.task_name,
        tasks.c.slot == slots.c.slot,
        tasks.c.state.is_distinct_from(RowState.DEAD),
    )
    own = found.where(tasks.c.task_instance == slots.c.task_instance, ~is_detached(tasks))
    beside = found.where(tasks.c.plan_instance == slots.c.task_instance)
    return [sa.exists(own), sa.exists(beside)]


def _of(table: sa.Table, name: str, instance: str | None) -> Statement:
    """Select from ledger or gaps what concerns a task, or one instance of it."""
    found = sa.select(table).where(table.c.task_name == name)
    return found if instance is None else found.where(table.c.task_instance == instance)


def _run_since(tables: Tables) -> sa.ColumnElement[int]:
    """The number of slots of a gap that a backfill has run since; triggers are not among them."""
    slots = tables.slots
    gaps = tables.gaps
    of_gap = (slots.c.task_name == gaps.c.task_name) & (
        slots.c.task_instance == gaps.c.task_instance
    )
    within = slots.c.slot.between(gaps.c.first_slot, gaps.c.last_slot) & (
        slots.c.origin == Origin.BACKFILL
    )
    count = sa.select(sa.func.count()).where(of_gap, within)
    return count.scalar_subquery().label("run_since")


def slots_within(
    store: Store, name: str, instance: str, start: datetime, end: datetime
) -> list[datetime]:
    """Return the slots of an instance from ``start`` to before ``end`` that are in the ledger or
    in a row.
    """
    found = set()
    ledger = store.tables.slots
    tasks = store.tables.tasks
    for table, family in (
        (ledger, ledger.c.task_instance == instance),
        (tasks, of_plan(tasks, instance)),
    ):
        wanted = sa.select(table.c.slot).where(
            table.c.task_name == name, family, table.c.slot >= start, table.c.slot < end
        )
        found |= {utc(row["slot"]) for row in rows(store, wanted)}
    return sorted(found)


def slot(
    store: Store, name: str, slot: datetime, instance: str = RECURRING
) -> SlotInfo | None:
    """Return one slot of a job, or of an instance, from the ledger."""
    ledger = store.tables.slots
    wanted = _of(ledger, name, instance).add_columns(*_last_loss(store.tables))
    found = rows(store, wanted.where(ledger.c.slot == slot))
    return slot_info(found[0]) if found else None


def attempts(
    store: Store, name: str, instance: str = RECURRING, slot: datetime | None = None
) -> list[AttemptInfo]:
    """Return the attempts of a slot, the oldest first; without one, those of the one-time tasks
    with this id.
    """
    ledger = store.tables.slots
    wanted = _of(ledger, name, instance).order_by(ledger.c.slot.desc()).limit(1)
    if slot is not None:
        wanted = wanted.where(ledger.c.slot == slot)
    last = rows(store, wanted)
    with store.transaction() as connection:
        entry = slot_info(last[0]) if last else None
        return attempts_of(connection, store.tables, Key(name, instance), slot, entry)


# -- rows -----------------------------------------------------------------------------------------


def _waiting_info(row: sa.RowMapping, begun: sa.RowMapping | None = None) -> SlotInfo:
    """Return a waiting slot as a line, with its last attempt from the ledger, if there was one."""
    line = SlotInfo(
        slot=utc(row["slot"]),
        outcome=row["state"] or SlotState.WAITING,
        reason=Reason.RETRY if row["attempt"] else None,
        origin=row["origin"] or Origin.SCHEDULE,
        attempts=row["attempt"],
        missed_count=row["collapsed"],
        due=utc(row["parked_due"] or row["execution_time"]),
        error=row["last_error"] if row["attempt"] else None,  # else of the slot before
        id=row["plan_instance"] or row["task_instance"],
    )
    if begun is None:
        return line
    last = slot_info(begun)
    return replace(
        line,
        reason=last.reason or line.reason,
        worker=last.worker,
        token=last.token,
        started=last.started,
        finished=last.finished,
        took=last.took,
        error=last.error or line.error,
        lost_by=last.lost_by,
        silent_since=last.silent_since,
    )


def slot_info(row: sa.RowMapping) -> SlotInfo:
    """Return a ledger row as a line. A claim that ended before its handler began has not
    started.
    """
    started = utc(row["started"]) if row["attempts"] else None
    finished = utc(row["finished"])
    took = finished - started if started and finished else None
    return filled(
        SlotInfo,
        row,
        id=row["task_instance"],
        missed_count=row["collapsed"],
        started=started,
        took=took,
    )


def _last_loss(tables: Tables) -> tuple[sa.ColumnElement[object], ...]:
    """Return the columns ``lost_by`` and ``silent_since`` for a query of slots."""
    slots = tables.slots
    attempts = tables.attempts
    mine = [
        slots.c[name] == attempts.c[name] for name in ("task_name", "task_instance", "slot")
    ]
    newest = (
        sa.select(attempts)
        .where(*mine, attempts.c.outcome == Outcome.LOST)
        .order_by(attempts.c.number.desc())
    )
    columns = {"lost_by": attempts.c.worker, "silent_since": attempts.c.ended}
    return tuple(
        sa.case(
            (slots.c.lost > 0, newest.with_only_columns(column).limit(1).scalar_subquery())
        ).label(name)
        for name, column in columns.items()
    )


def attempts_of(
    connection: sa.Connection,
    tables: Tables,
    key: Key,
    slot: datetime | None,
    last: SlotInfo | None,
) -> list[AttemptInfo]:
    """Return the attempts of a slot, or of all tasks with this id; ``last``: their newest entry in
    the ledger.
    """
    table = tables.attempts
    wanted = sa.select(table).where(*of_key(table, key))
    if slot is not None:
        wanted = wanted.where(table.c.slot == slot)
    ordered = wanted.order_by(table.c.slot, table.c.number)
    found = [filled(AttemptInfo, row) for row in connection.execute(ordered).mappings()]
    if last is None or not last.attempts or last.outcome == Outcome.CLAIMED:
        return found
    if last.token in {one.token for one in found}:
        return found
    current = AttemptInfo(
        number=last.attempts,
        outcome=last.outcome,
        reason=last.reason,
        worker=last.worker,
        token=last.token,
        claimed=last.started,
        started=last.started,
        ended=last.finished,
        error=last.error,
    )
    # Tokens of a slot may fall: after a step of the clock it was retried by hand.
    return sorted([*found, current], key=lambda one: one.number if slot else one.token or 0)


def gap_info(row: sa.RowMapping) -> SlotInfo:
    """Return a gap as a line; listings read it with ``run_since``."""
    return filled(
        SlotInfo,
        row,
        id=row["task_instance"],
        slot=utc(row["first_slot"]),
        last=utc(row["last_slot"]),
        outcome=Outcome.SKIPPED,
        origin=Origin.SCHEDULE,
        finished=utc(row["created"]),
    )
