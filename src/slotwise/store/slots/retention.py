"""Deletes old history from the ledger, a few rows at a time.

The newest decided slot of a schedule, slots from the row's watermark on, and the newest gap stay: they keep slots that
have started from starting again. Open slots stay, too.

Race: workers take turns by a row of ``scheduled_meta``: one of them prunes in each interval. It skips locked rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa

from slotwise.model.records import Key
from slotwise.model.vocabulary import PLANNED, Outcome
from slotwise.store.dialects.portable import of_key
from slotwise.store.schema.rows import utc
from slotwise.store.slots import ledger
from slotwise.store.slots.store import Store

#: Rows of one transaction.
BATCH = 500
TURN, PRUNED_UNTIL = "pruning", "pruned_until"
#: All other outcomes are kept as failures.
_ORDINARY = (Outcome.SUCCEEDED, Outcome.SKIPPED)


class Page(NamedTuple):
    """What one transaction has deleted."""

    slots: int = 0
    gaps: int = 0


class Pruner:
    """``keep`` and ``failure_retention``: how old history may get; zero keeps it for ever."""

    def __init__(self, store: Store, *, keep: timedelta, failure_retention: timedelta) -> None:
        self._store = store
        self._keep = keep
        self._keep_failures = failure_retention
        self._spans = [span for span in (keep, failure_retention) if span]

    def take_turn(self, interval: timedelta) -> bool:
        """Return whether no worker has pruned for ``interval``; then it is this worker's turn."""
        with self._store.transaction() as connection:
            now = self._store.dialect.now(connection)
            latest = (now - interval).isoformat(timespec="microseconds")
            return _note(connection, self._store, TURN, now, lambda old, new: old <= latest)

    def pages(self) -> Iterator[Page]:
        """Delete expired results, then slots and gaps job by job. Each page is a transaction."""
        expired = BATCH
        while expired == BATCH:
            with self._store.transaction() as connection:
                expired = ledger.delete_expired(connection, self._store.dialect, BATCH)
            yield Page(slots=expired)
        if not self._spans:
            return
        for kind, table in (("slots", self._store.tables.slots), ("gaps", self._store.tables.gaps)):
            plan: Key | None = Key("", "")
            while plan is not None:
                plan, is_old = self._next(table, plan)
                taken = BATCH
                while taken == BATCH:
                    taken = self._take(table, plan) if plan and is_old else 0
                    yield Page(**{kind: taken})
        taken = BATCH if self._keep_failures else 0
        while taken == BATCH:
            with self._store.transaction() as connection:
                before = self._store.dialect.now(connection) - max(self._spans)
                taken = ledger.prune_attempts(connection, self._store.dialect, before, BATCH)
            yield Page()

    def _next(self, table: sa.Table, after: Key) -> tuple[Key | None, bool]:
        """Return the plan after this one, and whether its oldest row may be too old, by the primary key."""
        name, instance, slot = table.primary_key.columns
        found = (
            sa.select(name, instance, slot)
            .where(sa.tuple_(name, instance) > sa.tuple_(*map(sa.literal, after)))
            .order_by(name, instance, slot)
            .limit(1)
        )
        with self._store.transaction() as connection:
            now = self._store.dialect.now(connection)
            row = connection.execute(found).first()
        return (None, False) if row is None else (Key(row[0], row[1]), utc(row[2]) < now - min(self._spans))

    def _take(self, table: sa.Table, plan: Key) -> int:
        """Delete old rows of a plan, up to a batch of them; return how many."""
        with self._store.transaction() as connection:
            now = self._store.dialect.now(connection)
            is_slots = table is self._store.tables.slots
            is_old = self._old_slots(connection, plan, now) if is_slots else self._old_gaps(plan, now)
            if gone := ledger.prune(connection, self._store.tables, table, plan, *is_old, limit=BATCH):
                _note(connection, self._store, PRUNED_UNTIL, utc(gone[-1]), lambda old, new: old < new)
        return len(gone)

    def _old_slots(self, connection: sa.Connection, plan: Key, now: datetime) -> list[sa.ColumnElement[bool]]:
        slots, floor = self._store.tables.slots, self._floor(connection, plan)
        is_ordinary = slots.c.outcome.in_(_ORDINARY)
        kinds = ((is_ordinary, self._keep), (~is_ordinary, self._keep_failures))
        too_old = sa.or_(sa.false(), *(sa.and_(kind, slots.c.finished < now - span) for kind, span in kinds if span))
        beside = slots.c.origin.not_in(PLANNED)
        spare = beside if floor is None else sa.or_(beside, slots.c.slot < floor)
        return [slots.c.slot < now, slots.c.expires.is_(None) & too_old, spare]

    def _old_gaps(self, plan: Key, now: datetime) -> list[sa.ColumnElement[bool]]:
        gaps, limit = self._store.tables.gaps, now - self._keep
        if not self._keep:
            return [sa.false()]
        newest = sa.select(sa.func.max(gaps.c.first_slot)).where(*of_key(gaps, plan)).scalar_subquery()
        return [gaps.c.created < limit, gaps.c.last_slot < limit, gaps.c.first_slot < newest]

    def _floor(self, connection: sa.Connection, plan: Key) -> datetime | None:
        """Return the slot from which on all stay: the newest decided one, or the watermark if that is older."""
        slots, tasks = self._store.tables.slots, self._store.tables.tasks
        decided = (
            sa.select(slots.c.slot)
            .where(*of_key(slots, plan), slots.c.origin.in_(PLANNED), slots.c.finished.is_not(None))
            .order_by(slots.c.slot.desc())
            .limit(1)
        )
        found = map(connection.scalar, (decided, sa.select(tasks.c.watermark).where(*of_key(tasks, plan))))
        return min((utc(one) for one in found if one is not None), default=None)


def _note(connection: sa.Connection, store: Store, key: str, at: datetime, where: Callable[[Any, Any], Any]) -> bool:
    """Write an instant into the meta table, unless there is one for which ``where`` is false; return whether it was.

    Up to PRUNED_UNTIL the ledger does not know any more which slots ran: a backfill must not run them again.
    """
    meta, row = store.tables.meta, {"key": key, "value": at.isoformat(timespec="microseconds")}
    again = {"again": lambda new: {"value": new.value}, "where": lambda new: where(meta.c.value, new.value)}
    return store.dialect.by_row.upsert(connection, meta, row, **again)


def pruned_until(connection: sa.Connection, store: Store) -> datetime | None:
    """Return the newest slot that was ever deleted from the ledger."""
    meta = store.tables.meta
    found = connection.scalar(sa.select(meta.c.value).where(meta.c.key == PRUNED_UNTIL))
    return None if found is None else datetime.fromisoformat(found)
