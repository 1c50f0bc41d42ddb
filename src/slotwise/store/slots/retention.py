"""Deletes old history from the ledger, a few rows at a time.

Jobs may shorten what the settings say (``retention``, ``success_retention``): the worker whose turn
it is deletes those of the jobs that it knows first.

The newest decided slot of a schedule, slots from the row's watermark on, and the newest gap stay:
they keep slots that have started from starting again. Open slots stay, too.

Races: workers take turns by a row of ``scheduled_meta``, so that one of them prunes in each
interval. That row also says how far the walk has come, with each transaction: after the end of its
process, another one continues there. A process that was frozen meanwhile finds that the row is not
its own any more, and stops. It skips locked rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

import sqlalchemy as sa

from slotwise.jobs.definition import Definition
from slotwise.model.records import EARLIEST, TICK
from slotwise.model.vocabulary import PLANNED, Outcome
from slotwise.store.dialects.conditions import of_key
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import Condition
from slotwise.store.slots import checkpoints, ledger
from slotwise.store.slots.counts import HOUR, SLOT, Counts, Part, next_name
from slotwise.store.slots.store import Store
from slotwise.store.slots.tuning import PRUNED, REMEMBERED, SHORTEST_REST, STALLED

TURN = "pruning"
SHORT_TURN = "pruning_short"
PRUNED_UNTIL = "pruned_until"
Where: TypeAlias = Callable[
    [sa.ColumnElement[str], sa.ColumnElement[str]], sa.ColumnElement[bool]
]
#: All other outcomes are kept as failures.
_ORDINARY = (Outcome.SUCCEEDED, Outcome.SKIPPED)


class Page(NamedTuple):
    """What one transaction has deleted."""

    slots: int = 0
    gaps: int = 0


class Place(NamedTuple):
    """How far a walk has come: in which of the parts, at which task, and up to which slot; None:
    it is done there.
    """

    part: int = 0
    name: str = ""
    after: datetime | None = None


class Deleted(NamedTuple):
    """What was deleted of one task: where to continue, None at the end; how many rows were read,
    and are gone; and the newest slot of a job among these.
    """

    after: datetime | None
    read: int
    gone: int
    newest: datetime | None


class Range(NamedTuple):
    """The slots of one task in a part of the history, after one instant and before another."""

    part: Part
    name: str
    after: datetime
    before: datetime


class Spans(NamedTuple):
    """How long slots are kept that succeeded, were skipped, or failed; zero: for ever."""

    succeeded: timedelta
    skipped: timedelta
    failed: timedelta

    @property
    def bounded(self) -> Sequence[timedelta]:
        return [span for span in self if span]

    def shortened(self, job: Definition) -> Spans:
        """Return what this job keeps."""
        every = job.retention or timedelta(0)
        own = Spans(job.success_retention or every, every, every)
        return Spans(*map(_shorter, self, own))


def _shorter(one: timedelta, other: timedelta) -> timedelta:
    return min(one, other) if one and other else one or other


class Pruner:
    """``keep`` and ``failure_retention``: how old history may get; zero keeps it for ever."""

    def __init__(
        self, store: Store, *, keep: timedelta, failure_retention: timedelta
    ) -> None:
        self._store = store
        self._meta = store.tables.meta
        self._keep = keep
        self._keep_failures = failure_retention
        self._usual = Spans(keep, keep, failure_retention)
        self._spans = self._usual.bounded
        self._own = {
            name: spans
            for name, job in sorted(store.definitions.items())
            if (spans := self._usual.shortened(job)) != self._usual
        }
        self._counts = Counts(store)
        #: One-time tasks, too: all of a name are one series, however many ids it has.
        parts = len(self._counts.parts) if keep else 2
        self._parts = self._counts.parts[:parts] if self._spans else ()
        #: What this process has written into the row of the turns.
        self._noted: str | None = None

    def take_turn(self, interval: timedelta) -> bool:
        """Return whether no worker has pruned for ``interval``; then it is this worker's turn.

        Its own walk continues at once after an error, that of a process that has ended after a few
        minutes.
        """
        with self._store.transaction() as connection:
            now = self._store.dialect.now(connection)
            old = self._turn(connection)
            at, is_walk, _ = old.partition(" ")
            if at > _text(now - (STALLED if is_walk else interval)) and not (
                is_walk and old == self._noted
            ):
                return False
            self._noted = old
            noted = self._note_place(connection, now, _place_in(old))
        self._noted = noted
        return noted is not None

    @property
    def rest(self) -> timedelta:
        """How long successes of a job may wait for their deletion: half of the shortest
        retention, between a minute and an hour.
        """
        bounded = [span for spans in self._own.values() for span in spans.bounded]
        return max(min(bounded, default=HOUR) / 2, SHORTEST_REST)

    def take_short_turn(self) -> bool:
        """Return whether no worker has pruned the jobs that shorten their retention for ``rest``;
        then it is this worker's turn. Two at once delete no row twice.
        """
        if not self._own:
            return False
        with self._store.transaction() as connection:
            now = self._store.dialect.now(connection)
            before = _text(now - self.rest)
            return _note(
                connection,
                self._store,
                SHORT_TURN,
                _text(now),
                lambda old, new: old <= before,
            )

    def short_pages(self) -> Iterator[Page]:
        """Delete slots of the jobs that shorten their retention. Each page is a transaction."""
        for name, spans in self._own.items():
            yield from self._pages_of(name, spans)

    def pages(self) -> Iterator[Page]:
        """Recount hours that have closed, delete expired results, then slots and gaps task by
        task, and histories. Each page is a transaction.
        """
        while self._counts.recount_closed():
            yield Page()
        expired = PRUNED
        while expired == PRUNED:
            with self._store.transaction() as connection:
                expired = ledger.delete_expired(
                    connection, self._store.dialect, PRUNED
                )
            yield Page(slots=expired)
        with self._store.transaction() as connection:
            self._store.dialect.delete_receipts(connection)
        yield from self.short_pages()
        with self._store.transaction() as connection:
            place: Place | None = _place_in(self._turn(connection))
        while place is not None and place.part < len(self._parts):
            page, place = self._page(place)
            yield page
        taken = PRUNED if self._keep_failures else 0
        while taken == PRUNED:
            with self._store.transact() as at:
                before = at.now - max(self._spans)
                taken = ledger.prune_attempts(
                    at.connection, at.dialect, before, PRUNED
                )
            yield Page()
        while self._forget():
            yield Page()
        with self._store.transact() as at:
            self._note_place(at.connection, at.now, None)

    def _pages_of(self, name: str, spans: Spans) -> Iterator[Page]:
        """Delete old slots of a job that shortens their retention, and gaps with those skipped."""
        for part in self._counts.parts:
            is_gaps = part.table is self._store.tables.gaps
            if is_gaps and not spans.skipped:
                continue
            after: datetime | None = EARLIEST
            while after is not None:
                found = self._delete_counted(part, name, after, spans)
                after = found.after
                yield Page(*((0, found.gone) if is_gaps else (found.gone, 0)))

    def _delete_counted(
        self, part: Part, name: str, after: datetime, spans: Spans
    ) -> Deleted:
        """Delete old rows of a job.

        Race: the worker that has settled a slot may count it later, or end before. Until the hour
        is recounted, its count lacks what was deleted. The recount finds the job by its newest
        slot, which stays. Other rows stay until their hours are closed.
        """
        with self._store.transaction() as connection:
            walk = self._counts.lock(connection)
            counted = walk.until if walk.part is None else walk.since
            now = self._store.dialect.now(connection)
            place = Range(part, name, after, now - min(spans.bounded))
            columns = part.table.c
            may_go = part.slot < counted
            if part.table is self._store.tables.slots:
                may_go |= columns.origin.in_(PLANNED)
            return self._delete(connection, place, now, spans, PRUNED, may_go)

    def _forget(self) -> bool:
        """Delete the oldest entries of histories and counts, and checkpoints of what is gone;
        return whether more are left.
        """
        tables = self._store.tables
        longest = max(self._spans, default=timedelta(0))
        horizons = (
            (tables.deploys.c.at, max(longest, REMEMBERED)),
            (tables.counts.c.hour, max(longest, REMEMBERED)),
            (tables.worker_history.c.ended, longest),
        )
        with self._store.transact() as at:
            most = checkpoints.delete_orphans(at, PRUNED)
        for column, span in horizons:
            if not span:
                continue
            with self._store.transact() as at:
                first = ledger.deletion_of_first(
                    at.connection, at.dialect, column, PRUNED, column < at.now - span
                )
                gone = at.connection.execute(first).rowcount
            most = max(most, gone)
        return most == PRUNED

    def _page(self, place: Place) -> tuple[Page, Place | None]:
        """Delete old rows from this place on; return what is gone, and the next place; None: the
        turn is lost.
        """
        gone = [0, 0]
        seen = 0
        with self._store.transaction() as connection:
            self._counts.lock(connection)
            now = self._store.dialect.now(connection)
            while seen < PRUNED and place.part < len(self._parts):
                is_gaps = self._parts[place.part].table is self._store.tables.gaps
                place, read, taken = self._take(connection, place, now, PRUNED - seen)
                seen = seen + read
                gone[is_gaps] = gone[is_gaps] + taken
            noted = self._note_place(connection, now, place)
        has_lost = self._noted is not None and noted is None
        self._noted = noted
        return Page(*gone), None if has_lost else place

    def _take(
        self, connection: sa.Connection, place: Place, now: datetime, most: int
    ) -> tuple[Place, int, int]:
        """Delete old rows of one task, of ``most`` that are read; return the next place, and how
        many of either.
        """
        part = self._parts[place.part]
        horizon = now - min(self._spans)
        name = place.name
        after = place.after
        if after is None:
            following = next_name(connection, part, name, part.slot < horizon)
            if following is None:
                return Place(place.part + 1), 0, 0
            name = following
            after = EARLIEST
        of = Range(part, name, after, horizon)
        found = self._delete(connection, of, now, self._usual, most)
        if found.newest is not None:
            _note(
                connection,
                self._store,
                PRUNED_UNTIL,
                _text(found.newest),
                lambda old, new: old < new,
            )
        return Place(place.part, name, found.after), found.read or 1, found.gone

    def _delete(
        self,
        connection: sa.Connection,
        of: Range,
        now: datetime,
        spans: Spans,
        most: int,
        *only: Condition,
    ) -> Deleted:
        """Delete old rows of one task, of ``most`` that are read, and count them."""
        part = of.part
        mine = [part.table.c.task_name == of.name, part.rows, part.slot > of.after]
        last, count = _batch(connection, of, mine, most)
        if not count:
            return Deleted(None, 0, 0, None)
        old = [*mine, part.slot <= last, *only, *self._old(part.table, now, spans)]
        pruned = ledger.prune(
            connection, self._store.dialect, part.table, part.slot, old, most
        )
        gone = pruned.rows
        self._counts.move(connection, pruned.ended)
        following = utc(last) if count == most or gone >= most else None
        if following is not None and gone >= most:
            following -= TICK  # more rows than that may have the same slot
        return Deleted(following, count, gone, pruned.newest)

    def _old(
        self, history: sa.Table, now: datetime, spans: Spans
    ) -> Sequence[sa.ColumnElement[bool]]:
        """Whether a row is too old, and may go."""
        if history is self._store.tables.gaps:
            is_old = history.c.created < now - spans.skipped
            return [is_old, self._is_spare(history, "first_slot")]
        ended = history.c.finished
        too_old = [
            kind & (ended < now - span)
            for kind, span in _kinds(history, spans)
            if span
        ]
        may_go = ~history.c.origin.in_(PLANNED) | self._is_spare(history, "slot")
        return [history.c.expires.is_(None), sa.or_(sa.false(), *too_old), may_go]

    def _is_spare(self, history: sa.Table, slot: str) -> sa.ColumnElement[bool]:
        """Whether a newer slot of its plan has been decided, and it is older than the watermark;
        or a newer gap is.

        Within a CASE, or the planner might turn it into a join.
        """
        newer = history.alias("newer").c
        mine = of_key(newer, history.c)
        decided = sa.exists().where(*mine, newer[slot] > history.c[slot])
        if history is self._store.tables.gaps:
            return sa.case((decided, sa.true()), else_=sa.false())
        decided = decided.where(newer.origin.in_(PLANNED), newer.finished.is_not(None))
        plan = self._store.tables.tasks.alias("plan_row").c
        of_plan = of_key(plan, history.c)
        above = sa.exists().where(*of_plan, plan.watermark <= history.c.slot)
        return sa.case((decided, ~above), else_=sa.false())

    def _turn(self, connection: sa.Connection) -> str:
        found: str | None = connection.scalar(
            sa.select(self._meta.c.value).where(self._meta.c.key == TURN)
        )
        return found or ""

    def _note_place(
        self, connection: sa.Connection, now: datetime, place: Place | None
    ) -> str | None:
        """Note the time, and how far the walk has come; return the note, None if another process
        has the turn.

        A walk without a turn notes nothing.
        """
        mine = self._noted
        note = _text(now)
        if place is not None:
            note += " " + json.dumps(
                [place.part, place.name, place.after and _text(place.after)]
            )
        is_mine = mine is not None and _note(
            connection, self._store, TURN, note, lambda old, new: old == mine
        )
        return note if is_mine else None


def _batch(
    connection: sa.Connection, of: Range, mine: Sequence[Condition], most: int
) -> tuple[datetime | None, int]:
    """Return the last slot of the next rows, and how many rows these are."""
    slot = of.part.slot
    some = sa.select(slot.label("slot")).where(*mine, slot < of.before)
    batch = some.order_by(slot).limit(most).subquery()
    found = sa.select(sa.func.max(batch.c.slot), sa.func.count())
    last, count = connection.execute(found).one()
    return utc(last), count


def _kinds(
    slots: sa.Table, spans: Spans
) -> Sequence[tuple[sa.ColumnElement[bool], timedelta]]:
    """Return the kinds of ended slots, and how long each is kept."""
    outcome = slots.c.outcome
    ordinary: sa.ColumnElement[bool] = outcome.in_(_ORDINARY)
    failed = ~ordinary, spans.failed
    if spans.succeeded == spans.skipped:
        return [(ordinary, spans.skipped), failed]
    succeeded = outcome == Outcome.SUCCEEDED, spans.succeeded
    skipped = outcome == Outcome.SKIPPED, spans.skipped
    return [succeeded, skipped, failed]


def _text(at: datetime) -> str:
    return at.isoformat(timespec="microseconds")


def _place_in(turn: str) -> Place:
    """Return the place where the walk continues; the beginning, if the text has none."""
    try:
        part, name, after = json.loads(turn.partition(" ")[2])
        return Place(int(part), str(name), after and datetime.fromisoformat(after))
    except ValueError:
        return Place()


def _note(
    connection: sa.Connection, store: Store, key: str, value: str, where: Where
) -> bool:
    """Write a value into the meta table, unless there is one for which ``where`` is false; return
    whether it was.

    Up to PRUNED_UNTIL the ledger does not know any more which slots ran: a backfill must not run
    them again.
    """
    meta = store.tables.meta
    return store.dialect.upsert(
        connection,
        meta,
        {"key": key, "value": value},
        lambda new: {"value": new["value"]},
        lambda new: where(meta.c.value, new["value"]),
    )


def _usually_pruned_until(connection: sa.Connection, store: Store) -> datetime | None:
    """Return up to when slots of jobs with the usual retention may have been deleted."""
    meta = store.tables.meta
    found = connection.scalar(
        sa.select(meta.c.value).where(meta.c.key == PRUNED_UNTIL)
    )
    if not found:
        return None
    try:
        until: datetime = utc(datetime.fromisoformat(found))
    except ValueError:  # another program may have written it
        return None
    return until


def pruned_until(connection: sa.Connection, store: Store, job: str) -> datetime | None:
    """Return up to when slots of a job may have been deleted from the ledger. Of one that shortens
    their retention, the counts know the hour.
    """
    usual = _usually_pruned_until(connection, store)
    counts = store.tables.counts.c
    gone = counts.task_name == job, counts.kind == SLOT, counts.pruned > 0
    hour = utc(connection.scalar(sa.select(sa.func.max(counts.hour)).where(*gone)))
    if hour is None or (usual is not None and hour <= usual):
        return usual
    end: datetime = hour + HOUR - TICK
    return min(end, store.dialect.now(connection))
