"""Ended slots and tasks by name, hour, outcome and reason, so that nobody counts the history.

``count`` of a row is what ledger and gaps have, ``pruned`` what was deleted from them. Counts of
tasks are those that workers have settled, by the hour of their last claim. Those of the last hour
are also kept by the instants at which workers counted them (``RECENT``), as a pace.

Races: each transaction that writes locks a row of ``scheduled_meta`` first, and so they come one
after the other. Hours before ``until`` of that row are only recounted from the ledger, so that
nothing counts twice. To later hours, workers add what they have settled. What a worker could not
add is found when the hour closes and is recounted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from slotwise.model.records import EARLIEST, RECURRING, from_micros, to_micros
from slotwise.model.vocabulary import Origin, Outcome
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import OF_INSTANCES
from slotwise.store.slots.tuning import BATCH, CLOSED_AFTER, RECOUNTED, RECOUNTS

if TYPE_CHECKING:
    from slotwise.store.slots.store import Store

#: The row of the meta table that says how far the hours are recounted.
COUNTED = "counted"
SLOT = "slot"
TASK = "task"
#: Tasks that ended between two counts of a worker; ``hour`` is the instant of the later one, to
#: ten seconds, so that a thousand workers leave few rows.
RECENT = "recent"
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


class Ended(NamedTuple):
    """What is counted together."""

    name: str
    hour: datetime
    kind: str
    outcome: str
    reason: str


class Part(NamedTuple):
    """A part of the history that an index has in the order of task and slot."""

    table: sa.Table
    slot: sa.Column[datetime]
    rows: sa.ColumnElement[bool]


class Walk(NamedTuple):
    """How far the hours are recounted: those before ``since``; up to ``until``, the jobs before
    this place. ``part`` is None between two walks.
    """

    until: datetime = EARLIEST
    since: datetime = EARLIEST
    part: int | None = None
    name: str = ""
    after: datetime = EARLIEST


class Counts:
    """Counts by the hour: workers add to them, the pruner moves and recounts them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._meta = store.tables.meta
        self._counts = store.tables.counts
        slots = store.tables.slots
        gaps = store.tables.gaps
        is_job = slots.c.task_instance == sa.literal_column(f"'{RECURRING}'")
        #: Slots of jobs, those of all instances of a job, and gaps.
        self.parts: tuple[Part, ...] = (
            Part(slots, slots.c.slot, is_job),
            Part(slots, slots.c.slot, sa.text(OF_INSTANCES)),  # type: ignore[arg-type]
            Part(gaps, gaps.c.last_slot, sa.true()),
        )

    def lock(self, connection: sa.Connection) -> Walk:
        """Keep other transactions from writing counts; return how far they are recounted."""
        mine = self._meta.c.key == COUNTED
        look = sa.select(self._meta.c.value).where(mine).with_for_update()
        found = connection.scalar(look)
        if found is None:
            first = {"key": COUNTED, "value": _text(Walk())}
            self._store.dialect.insert_new(connection, self._meta, first)
            found = connection.scalar(look)
        return _walk_in(found or "")

    def add(self, ended: Mapping[Ended, int]) -> None:
        """Add what a worker has settled. An hour that is closed is recounted instead."""
        with self._store.transaction() as connection:
            until = self.lock(connection).until
            young = {one: (n, 0) for one, n in ended.items() if one.hour >= until}
            self._change(connection, young)
            old = ended.keys() - young.keys()
            closed = {(one.name, one.hour) for one in old if one.kind == SLOT}
            for name, hour in sorted(closed):
                self._recount(connection, name, hour, hour + HOUR)
            self._keep_pace(connection, ended)

    def _keep_pace(
        self, connection: sa.Connection, ended: Mapping[Ended, int]
    ) -> None:
        """Count the tasks as recent, and delete what is so no longer. Of the index only a day is
        read.
        """
        now = self._store.dialect.now(connection)
        moment = now.replace(second=now.second // 10 * 10, microsecond=0)
        recent = total(
            (one._replace(hour=moment, kind=RECENT, reason=""), n)
            for one, n in ended.items()
            if one.kind == TASK
        )
        if not recent:
            return
        self._change(connection, {one: (n, 0) for one, n in recent.items()})
        counts = self._counts.c
        old = counts.hour > now - DAY, counts.hour < now - HOUR
        mine = (
            counts.task_name.in_({one.name for one in recent}),
            counts.kind == RECENT,
        )
        connection.execute(self._counts.delete().where(*mine, *old))

    def move(self, connection: sa.Connection, gone: Mapping[Ended, int]) -> None:
        """Count as pruned what this transaction has deleted; it has called ``lock`` before."""
        self._change(connection, {one: (-n, n) for one, n in gone.items()})

    def _change(
        self, connection: sa.Connection, changes: Mapping[Ended, tuple[int, int]]
    ) -> None:
        """Change counts of the ledger and of what was pruned by so many."""
        ordered = sorted(changes)
        counts = self._counts
        key = sa.tuple_(*counts.primary_key.columns)
        for start in range(0, len(ordered), BATCH):
            batch = ordered[start : start + BATCH]
            there = self._there(connection, key.in_(batch))
            rows = []
            for one in batch:
                count, pruned = there.get(one, (0, 0))
                added, removed = changes[one]
                rows.append(_row(one, count + added, pruned + removed))
            self._store.dialect.replace_all(connection, counts, rows)

    def _there(
        self, connection: sa.Connection, *wanted: sa.ColumnElement[bool]
    ) -> dict[Ended, tuple[int, int]]:
        found = connection.execute(sa.select(self._counts).where(*wanted)).mappings()
        return {
            Ended(
                row["task_name"],
                utc(row["hour"]),
                row["kind"],
                row["outcome"],
                row["reason"],
            ): (row["count"], row["pruned"])
            for row in found
        }

    # -- recounts ---------------------------------------------------------------------------------

    def recount_closed(self) -> bool:
        """Recount some hours that have closed; return whether more are left."""
        with self._store.transaction() as connection:
            walk = self.lock(connection)
            if walk.part is None:
                until = hour_of(self._store.dialect.now(connection) - CLOSED_AFTER)
                if until <= walk.until:
                    return False
                walk = Walk(until=until, since=walk.until, part=0, after=until)
            for _ in range(RECOUNTS):
                walk = self._step(connection, walk)
                if walk.part is None:
                    break
            mine = self._meta.c.key == COUNTED
            note = self._meta.update().where(mine).values(value=_text(walk))
            connection.execute(note)
        return walk.part is not None

    def _step(self, connection: sa.Connection, walk: Walk) -> Walk:
        """Recount a part of a job's history, or go on to the next job."""
        assert walk.part is not None
        part = self.parts[walk.part]
        of_name = part.table.c.task_name == walk.name
        later = part.slot >= walk.after, part.slot < walk.until
        first = sa.select(sa.func.min(part.slot)).where(of_name, part.rows, *later)
        found = connection.scalar(first) if walk.after < walk.until else None
        if found is not None:
            end = min(hour_of(utc(found)) + RECOUNTED, walk.until)
            self._recount(connection, walk.name, walk.after, end)
            return walk._replace(after=end)
        if walk.after < walk.until and self._has_pruned(connection, walk):
            self._recount(connection, walk.name, walk.after, walk.until)
        name = next_name(connection, part, walk.name, part.slot >= walk.since)
        if name is not None:
            return walk._replace(name=name, after=walk.since)
        if walk.part + 1 < len(self.parts):
            return Walk(walk.until, walk.since, walk.part + 1, after=walk.until)
        return Walk(until=walk.until)

    def _has_pruned(self, connection: sa.Connection, walk: Walk) -> bool:
        """Whether slots were deleted in hours of which the ledger has nothing more."""
        counts = self._counts.c
        mine = counts.task_name == walk.name, counts.kind == SLOT, counts.pruned > 0
        hours = counts.hour >= walk.after, counts.hour < walk.until
        found = sa.select(sa.exists().where(*mine, *hours))
        return bool(connection.scalar(found))

    def _recount(
        self, connection: sa.Connection, name: str, begin: datetime, end: datetime
    ) -> None:
        """Write what ledger and gaps have of these hours; the transaction has called ``lock``."""
        found = total(self._in_ledger(connection, name, begin, end))
        counts = self._counts
        there = self._there(
            connection,
            counts.c.task_name == name,
            counts.c.hour >= begin,
            counts.c.hour < end,
            counts.c.kind == SLOT,
        )
        wrong = []
        for one in sorted(found.keys() | there.keys()):
            count, pruned = there.get(one, (None, 0))
            if found[one] != count:
                wrong.append(_row(one, found[one], pruned))
        if wrong:
            self._store.dialect.replace_all(connection, counts, wrong)

    def _in_ledger(
        self, connection: sa.Connection, name: str, begin: datetime, end: datetime
    ) -> Iterator[tuple[Ended, int]]:
        slots = self._store.tables.slots
        hour = self._store.dialect.hour(slots.c.slot)
        ended = hour, slots.c.outcome, sa.func.coalesce(slots.c.reason, "")
        for part in self.parts[:2]:
            wanted = (
                sa.select(*ended, sa.func.count())
                .where(slots.c.task_name == name, part.rows)
                .where(slots.c.slot >= begin, slots.c.slot < end)
                .where(slots.c.finished.is_not(None), slots.c.origin != Origin.TASK)
                .group_by(*ended)
            )
            for at, outcome, reason, count in connection.execute(wanted):
                yield Ended(name, utc(at), SLOT, outcome, reason), count
        gaps = self._store.tables.gaps
        columns = gaps.c.first_slot, gaps.c.last_slot, gaps.c.count, gaps.c.reason
        touching = gaps.c.last_slot >= begin, gaps.c.first_slot < end
        wanted = sa.select(*columns).where(gaps.c.task_name == name, *touching)
        for first, last, count, reason in connection.execute(wanted):
            for one, part_of in by_hour(name, utc(first), utc(last), count, reason):
                if begin <= one.hour < end:
                    yield one, part_of


def hour_of(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def by_hour(
    name: str, first: datetime, last: datetime, count: int, reason: str
) -> Iterator[tuple[Ended, int]]:
    """Divide a gap by the hours of its slots, as if these were at equal distances."""
    begin = to_micros(first)
    span = to_micros(last) - begin
    steps = max(count - 1, 1)
    done = 0
    while done < count:
        hour = hour_of(from_micros(begin + span * done // steps))
        left = to_micros(hour + HOUR) - begin
        upto = count if left > span else -(-left * steps // span)
        yield Ended(name, hour, SLOT, Outcome.SKIPPED, reason), upto - done
        done = upto


def next_name(
    connection: sa.Connection, part: Part, after: str, *wanted: sa.ColumnElement[bool]
) -> str | None:
    """Return the next task of a part of the history that has such a row: two descents into an
    index for each one before it.
    """
    table = part.table
    least = sa.func.min(table.c.task_name)
    first = sa.select(least.label("name")).where(table.c.task_name > after, part.rows)
    found = first.cte("names", recursive=True)
    before = found.alias("before")
    later = table.c.task_name > before.c.name, part.rows
    following = sa.select(least).where(*later).scalar_subquery()
    found = found.union_all(sa.select(following).where(before.c.name.is_not(None)))
    mine = table.c.task_name == found.c.name, part.rows
    has_one = sa.exists().where(*mine, *wanted)
    names = sa.select(found.c.name).where(found.c.name.is_not(None), has_one)
    name: str | None = connection.scalar(names.limit(1))
    return name


def _row(one: Ended, count: int, pruned: int) -> dict[str, object]:
    return {
        "task_name": one.name,
        "hour": one.hour,
        "kind": one.kind,
        "outcome": one.outcome,
        "reason": one.reason,
        "count": count,
        "pruned": pruned,
    }


def total(ended: Iterable[tuple[Ended, int]]) -> Counter[Ended]:
    """Add up what is counted together."""
    found = Counter[Ended]()
    for one, count in ended:
        found[one] += count
    return found


def _text(walk: Walk) -> str:
    return json.dumps(
        [
            walk.until.isoformat(),
            walk.since.isoformat(),
            walk.part,
            walk.name,
            walk.after.isoformat(),
        ]
    )


def _walk_in(text: str) -> Walk:
    """Return the walk that a row of the meta table has; a new one, if another program wrote it."""
    try:
        until, since, part, name, after = json.loads(text)
        instants = [datetime.fromisoformat(one) for one in (until, since, after)]
    except (ValueError, TypeError):
        return Walk()
    return Walk(instants[0], instants[1], part, name, instants[2])
