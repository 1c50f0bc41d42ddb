"""What should have run in a window of time, what did, and how that ended, of all jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

import sqlalchemy as sa

from slotwise.errors import ConfigurationError
from slotwise.model.records import TICK, from_micros
from slotwise.model.values import Value
from slotwise.model.vocabulary import Outcome
from slotwise.schedules.text import readable
from slotwise.store.reading.paging import rows
from slotwise.store.reading.slots import SlotInfo
from slotwise.store.schema.rows import filled, utc
from slotwise.store.schema.tables import is_plan
from slotwise.store.slots.store import Store

#: Slots of one job that are computed, and lines of all jobs that are read.
MOST_SLOTS = 1_000
MOST_LINES = 20_000
_HOUR = timedelta(hours=1)
#: Hours of one statement: a database limits the parts of a union.
_HOURS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWindow(Value):
    """The slots of a job, or of an instance, in a window.

    ``expected``: the slots of the schedule that is in force, since the job was planned first; none
    of a FixedDelay, or of a schedule that this release cannot read. ``actual``: what the ledger
    and its gaps have, the oldest first. A window with more slots than are read is not
    ``complete``.
    """

    job: str
    id: str
    schedule: str
    expected: Sequence[datetime] = ()
    actual: Sequence[SlotInfo] = ()
    complete: bool = True

    @property
    def missing(self) -> list[datetime]:
        """The expected slots that neither the ledger nor a gap has: yet to come, undecided or
        lost.
        """
        started = {line.slot for line in self.actual if line.last is None}
        gaps = [(line.slot, line.last) for line in self.actual if line.last is not None]
        return [
            slot
            for slot in self.expected
            if slot not in started
            and not any(first <= slot <= last for first, last in gaps)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeCount(Value):
    """Slots of a job, with those of its instances, that lie in one hour and have this outcome."""

    job: str
    hour: datetime
    outcome: str
    count: int


@dataclass(slots=True)
class _Found:
    """Lines of the ledger by job and id, and the key at which reading stopped."""

    lines: dict[tuple[str, str], list[SlotInfo]] = field(default_factory=dict)
    cut_at: tuple[str, str] | None = None


def windows(
    store: Store,
    start: datetime,
    end: datetime,
    *,
    after: tuple[str, str] = ("", ""),
    limit: int | None = None,
) -> list[SlotWindow]:
    """Return expected and actual slots from ``start`` to before ``end``, of the jobs and instances
    after ``after``, by name and id.
    """
    tasks = store.tables.tasks
    key = tasks.c.task_name, tasks.c.task_instance
    planned = sa.select(*key, tasks.c.schedule, tasks.c.created_version)
    plans = rows(store, planned.where(*_planned(tasks, after)).order_by(*key).limit(limit))
    if not plans:
        return []
    last = plans[-1]["task_name"], plans[-1]["task_instance"]
    found = _actual(store, start, end, _planned(tasks, after, last))
    return [
        _window(row, start, end, found, (row["task_name"], row["task_instance"]))
        for row in plans
    ]


def _planned(
    tasks: sa.Table, after: tuple[str, str], last: tuple[str, str] | None = None
) -> list[sa.ColumnElement[bool]]:
    """Conditions for plan rows after a name and id, up to ``last``; those on names alone let an
    index be searched.
    """
    name, id = after
    same = (tasks.c.task_name == name) & (tasks.c.task_instance > id)
    found = [is_plan(tasks), tasks.c.task_name >= name, (tasks.c.task_name > name) | same]
    if last is not None:
        name, id = last
        same = (tasks.c.task_name == name) & (tasks.c.task_instance <= id)
        found += [tasks.c.task_name <= name, (tasks.c.task_name < name) | same]
    return found


def _window(
    row: sa.RowMapping,
    start: datetime,
    end: datetime,
    found: _Found,
    key: tuple[str, str],
) -> SlotWindow:
    expected = list(islice(_expected(row, start, end), MOST_SLOTS + 1))
    is_read = found.cut_at is None or key < found.cut_at
    return SlotWindow(
        job=key[0],
        id=key[1],
        schedule=row["schedule"],
        expected=tuple(expected[:MOST_SLOTS]),
        actual=tuple(found.lines.get(key, ())),
        complete=is_read and len(expected) <= MOST_SLOTS,
    )


def _expected(row: sa.RowMapping, start: datetime, end: datetime) -> Iterator[datetime]:
    schedule = readable(row["schedule"])
    if schedule is None or schedule.from_end:
        return iter(())
    since = start - TICK
    if row["created_version"]:
        since = max(since, from_micros(row["created_version"]))
    return schedule.slots(since, end - TICK)


def _actual(
    store: Store,
    start: datetime,
    end: datetime,
    planned: Sequence[sa.ColumnElement[bool]],
) -> _Found:
    """Read ledger and gaps in one statement: for each plan row a range of their primary keys."""
    slots = store.tables.slots
    gaps = store.tables.gaps
    none = sa.cast(sa.null(), slots.c.slot.type)
    started = _of_plans(store, slots, planned).with_only_columns(
        slots.c.task_name.label("name"),
        slots.c.task_instance.label("id"),
        slots.c.slot.label("slot"),
        none.label("last"),
        sa.literal(1).label("count"),
        slots.c.outcome,
        slots.c.reason,
        slots.c.attempts,
        slots.c.started,
        slots.c.finished,
    )
    skipped = _of_plans(store, gaps, planned).with_only_columns(
        gaps.c.task_name,
        gaps.c.task_instance,
        gaps.c.first_slot,
        gaps.c.last_slot,
        gaps.c.count,
        sa.literal(Outcome.SKIPPED.value),
        gaps.c.reason,
        sa.literal(0),
        none,
        gaps.c.created,
    )
    both = sa.union_all(
        started.where(slots.c.slot >= start, slots.c.slot < end),
        skipped.where(gaps.c.first_slot < end, gaps.c.last_slot >= start),
    )
    ordered = both.order_by(sa.text("1, 2, 3")).limit(MOST_LINES + 1)
    found = _Found(lines=defaultdict(list))
    lines = rows(store, ordered)
    for row in lines[:MOST_LINES]:
        found.lines[row["name"], row["id"]].append(filled(SlotInfo, row))
    if len(lines) > MOST_LINES:
        cut = lines[MOST_LINES]
        found.cut_at = cut["name"], cut["id"]
    return found


def _of_plans(
    store: Store, table: sa.Table, planned: Sequence[sa.ColumnElement[bool]]
) -> sa.Select[tuple[object, ...]]:
    """Select from ledger or gaps what concerns these plan rows."""
    mine = _of_plan(store, table)
    return sa.select(table).join_from(store.tables.tasks, table, mine).where(*planned)


def _of_plan(store: Store, table: sa.Table) -> sa.ColumnElement[bool]:
    tasks = store.tables.tasks
    is_same = table.c.task_instance == tasks.c.task_instance
    return (table.c.task_name == tasks.c.task_name) & is_same


def outcome_counts(
    store: Store, start: datetime, end: datetime, job: str | None = None
) -> list[OutcomeCount]:
    """Return how many slots of each planned job had which outcome, for each hour from ``start`` to
    ``end``.

    A gap counts in the hour of its last slot. Raises ConfigurationError for a window of more than
    a year.
    """
    if end - start > timedelta(days=366):
        raise ConfigurationError("outcome counts are read for at most 366 days; read parts")
    first = start.replace(minute=0, second=0, microsecond=0)
    hours = [first + number * _HOUR for number in range(-((first - end) // _HOUR))]
    found = list[OutcomeCount]()
    for index in range(0, len(hours), _HOURS):
        statement = _counts(store, hours[index : index + _HOURS], (start, end), job)
        for row in rows(store, statement):
            found.append(
                OutcomeCount(
                    job=row["job"],
                    hour=utc(row["hour"]),
                    outcome=row["outcome"],
                    count=int(row["count"]),
                )
            )
    return sorted(found, key=lambda one: (one.job, one.hour, one.outcome))


def _counts(
    store: Store,
    hours: Sequence[datetime],
    window: tuple[datetime, datetime],
    job: str | None,
) -> sa.Select[tuple[object, ...]]:
    """Count in hours that are rows of the statement, so that every database groups alike."""
    tasks = store.tables.tasks
    slots = store.tables.slots
    gaps = store.tables.gaps
    kind = slots.c.slot.type
    start, end = window
    each = sa.union_all(
        *(
            sa.select(
                sa.literal(hour, kind).label("hour"),
                sa.literal(max(hour, start), kind).label("begin"),
                sa.literal(min(hour + _HOUR, end), kind).label("end"),
            )
            for hour in hours
        )
    ).subquery("hours")
    parts = []
    for table, column, outcome, count in (
        (slots, slots.c.slot, slots.c.outcome, sa.literal(1)),
        (gaps, gaps.c.last_slot, sa.literal(Outcome.SKIPPED.value), gaps.c.count),
    ):
        mine = _of_plan(store, table)
        within = (column >= each.c.begin) & (column < each.c.end)
        part = sa.select(
            table.c.task_name.label("job"),
            each.c.hour.label("hour"),
            outcome.label("outcome"),
            count.label("count"),
        )
        part = part.select_from(
            sa.join(tasks, each, sa.true()).join(table, mine & within)
        ).where(is_plan(tasks))
        parts.append(part if job is None else part.where(tasks.c.task_name == job))
    lines = sa.union_all(*parts).subquery("lines")
    key = lines.c.job, lines.c.hour, lines.c.outcome
    return sa.select(*key, sa.func.sum(lines.c.count).label("count")).group_by(*key)
