"""Takes old history out of the ledger, a few rows at a time.

Never the newest slot that a job's schedule has decided, never one at or above the row's watermark, never the newest
gap: they keep slots that have started from ever starting again. Slots that have not ended stay, too.

Races: workers take turns by a row of ``scheduled_meta``, so one of them goes through the ledger in each interval, and
none is needed for the next. Rows that somebody has locked are left for the next time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa

from slotwise.model.vocabulary import PLANNED, Outcome
from slotwise.store.schema.rows import utc
from slotwise.store.slots import ledger
from slotwise.store.slots.store import Store

#: Rows of one transaction.
BATCH = 500
TURN, PRUNED_UNTIL = "pruning", "pruned_until"
#: What ended well, or was not to run; all else is kept as a failure.
_ORDINARY = (Outcome.SUCCEEDED, Outcome.SKIPPED)


class Page(NamedTuple):
    """What one transaction has taken out."""

    slots: int = 0
    gaps: int = 0


class _Place(NamedTuple):
    name: str
    instance: str


class Pruner:
    """``keep`` and ``failure_retention``: how old history may become; zero keeps it for ever."""

    def __init__(self, store: Store, *, keep: timedelta, failure_retention: timedelta) -> None:
        self._store = store
        self._keep = keep
        self._keep_failures = failure_retention

    def take_turn(self, interval: timedelta) -> bool:
        """Whether nobody has gone through the ledger for ``interval``; then it is this one's turn."""
        meta = self._store.tables.meta
        with self._store.transaction() as connection:
            now = self._store.dialect.now(connection)
            row = {"key": TURN, "value": now.isoformat(timespec="microseconds")}
            latest = (now - interval).isoformat(timespec="microseconds")
            return self._store.dialect.by_row.upsert(
                connection, meta, row, lambda new: {"value": new.value}, lambda new: meta.c.value <= latest, meta.c.key
            )

    def pages(self) -> Iterator[Page]:
        """Results whose time is over; then ledger and gaps, job by job. Each page is a transaction."""
        while True:
            page = self._expired()
            yield page
            if page.slots < BATCH:
                break
        if not self._keep and not self._keep_failures:
            return
        for table, take in ((self._store.tables.slots, self._slots), (self._store.tables.gaps, self._gaps)):
            place: _Place | None = _Place("", "")
            while place is not None:
                place, is_old = self._next(table, place)
                page = take(place) if place and is_old else Page()
                yield page
                while place and max(page) == BATCH:
                    page = take(place)
                    yield page

    def _expired(self) -> Page:
        """One-time tasks whose result was to be kept until now."""
        with self._store.transaction() as connection:
            return Page(slots=ledger.delete_expired(connection, self._store.dialect, BATCH))

    def _next(self, table: sa.Table, after: _Place) -> tuple[_Place | None, bool]:
        """The job after this one, and whether its oldest row may be too old: two looks into the primary key."""
        key = sa.tuple_(table.c.task_name, table.c.task_instance)
        slot = table.primary_key.columns[2]
        with self._store.transaction() as connection:
            now = self._store.dialect.now(connection)
            found = connection.execute(
                sa.select(table.c.task_name, table.c.task_instance, slot)
                .where(key > sa.tuple_(sa.literal(after.name), sa.literal(after.instance)))
                .order_by(table.c.task_name, table.c.task_instance, slot)
                .limit(1)
            ).first()
        if found is None:
            return None, False
        return _Place(found[0], found[1]), utc(found[2]) < now - self._shortest

    @property
    def _shortest(self) -> timedelta:
        return min(span for span in (self._keep, self._keep_failures) if span)

    def _slots(self, place: _Place) -> Page:
        slots = self._store.tables.slots
        with self._store.transaction() as connection:
            now = self._store.dialect.now(connection)
            floor = self._floor(connection, place)
            beside = slots.c.origin.not_in(PLANNED)
            spare = beside if floor is None else sa.or_(beside, slots.c.slot < floor)
            old = ledger.prune(connection, slots, *place, slots.c.slot < now, self._too_old(now), spare, limit=BATCH)
            self._remember(connection, old)
        return Page(slots=len(old))

    def _too_old(self, now: datetime) -> sa.ColumnElement[bool]:
        slots = self._store.tables.slots
        is_ordinary = slots.c.outcome.in_(_ORDINARY)
        kinds = ((is_ordinary, self._keep), (~is_ordinary, self._keep_failures))
        too_old = sa.or_(sa.false(), *(sa.and_(kind, slots.c.finished < now - span) for kind, span in kinds if span))
        return slots.c.expires.is_(None) & too_old

    def _floor(self, connection: sa.Connection, place: _Place) -> datetime | None:
        """The newest slot that was decided, or the watermark if that is older: neither goes, nor what is above."""
        slots, tasks = self._store.tables.slots, self._store.tables.tasks
        decided = connection.scalar(
            sa.select(slots.c.slot)
            .where(slots.c.task_name == place.name, slots.c.task_instance == place.instance)
            .where(slots.c.origin.in_(PLANNED), slots.c.finished.is_not(None))
            .order_by(slots.c.slot.desc())
            .limit(1)
        )
        watermark = connection.scalar(
            sa.select(tasks.c.watermark).where(tasks.c.task_name == place.name, tasks.c.task_instance == place.instance)
        )
        return min((utc(found) for found in (decided, watermark) if found is not None), default=None)

    def _gaps(self, place: _Place) -> Page:
        gaps = self._store.tables.gaps
        if not self._keep:
            return Page()
        with self._store.transaction() as connection:
            limit = self._store.dialect.now(connection) - self._keep
            mine = [gaps.c.task_name == place.name, gaps.c.task_instance == place.instance]
            newest = sa.select(sa.func.max(gaps.c.first_slot)).where(*mine).scalar_subquery()
            is_old = (gaps.c.created < limit, gaps.c.last_slot < limit, gaps.c.first_slot < newest)
            old = ledger.prune(connection, gaps, *place, *is_old, limit=BATCH)
            self._remember(connection, old)
        return Page(gaps=len(old))

    def _remember(self, connection: sa.Connection, old: Sequence[datetime]) -> None:
        """Up to where nobody knows any more which slots ran: a backfill must not run them again."""
        if not old:
            return
        meta, until = self._store.tables.meta, utc(old[-1]).isoformat(timespec="microseconds")
        self._store.dialect.by_row.upsert(
            connection, meta, {"key": PRUNED_UNTIL, "value": until}, lambda new: {"value": new.value},
            lambda new: meta.c.value < new.value,
        )  # fmt: skip


def pruned_until(connection: sa.Connection, store: Store) -> datetime | None:
    """The newest slot that was ever taken out of the ledger."""
    meta = store.tables.meta
    found = connection.scalar(sa.select(meta.c.value).where(meta.c.key == PRUNED_UNTIL))
    return None if found is None else datetime.fromisoformat(found)
