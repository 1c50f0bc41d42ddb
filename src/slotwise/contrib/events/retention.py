"""Retention: events that have ended for each of their handlers, or never had one, are deleted when
they are old enough, some at a time.

An event has ended for a handler when the handler has no row for it: a success deletes the row. One
that waits, is blocked, runs or is dead keeps its event.

Races.

- The fan-out gives an old event without a handler to a new one: both lock the event, and the
  second to come finds it marked, or gone.
- A key is forgotten while the fan-out appends to it: both lock the row of the key. If it is gone
  when the fan-out comes, the fan-out makes it again. Only keys that seem to be unused are locked;
  they are looked at again under the lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NamedTuple, TypeVar

import sqlalchemy as sa

from slotwise.contrib.events.lanes import KIND, NO_TASK, Handlers, lock_keys
from slotwise.contrib.events.row_ids import row_id
from slotwise.contrib.events.subscriptions import all_subscriptions
from slotwise.spi import Dialect, Joinable

Value = TypeVar("Value", int, str)
#: How long events are kept.
KEPT: Final = timedelta(days=7)
#: Who has this turn deletes events and keys; another worker leaves it to that one.
TURN: Final = "events retention"
#: Events, or keys, of a batch.
BATCH: Final = 1_000


class Pruned(NamedTuple):
    """What a batch has deleted, and after which number the next one begins; None after the
    last.
    """

    deleted: int
    after: int | None


def prune(
    own: Joinable,
    dialect: Dialect,
    kept: timedelta = KEPT,
    after: int = 0,
    batch: int = BATCH,
) -> Pruned:
    """Look at a batch of old events after this number, and delete those that have ended."""
    # Bounded by the key: what comes after a young event is young as well, so the walk ends there.
    seen = own.execute(next_events(dialect, own, kept, after, batch)).fetchall()
    old = [id for id, is_old, is_given in seen if is_old and is_given]
    is_last = len(seen) < batch or not all(is_old for _, is_old, _ in seen)
    following = None if is_last else seen[-1][0]
    ids = _locked(own, dialect, old) if old else []
    open_ones = _open(own, dialect, ids) if ids else set()
    if ended := [id for id in ids if id not in open_ones]:
        _delete(own, dialect, dialect.tables.events.c.id, ended)
    return Pruned(len(ended), following)


def _locked(own: Joinable, dialect: Dialect, ids: list[int]) -> list[int]:
    """Lock these events, and return those that still bear their mark. What another transaction
    holds is left.
    """
    events = dialect.tables.events.c
    marked = sa.select(events.id).where(
        events.id.in_(ids), events.fanned_out.is_not(None)
    )
    locked = marked.order_by(events.id).with_for_update(skip_locked=True)
    return [id for (id,) in own.execute(locked).fetchall()]


def _open(own: Joinable, dialect: Dialect, ids: list[int]) -> set[int]:
    """Return those of these events for which a handler has a row."""
    tasks = dialect.tables.tasks.c
    number_of = {row_id(id): id for id in ids}
    found: set[int] = set()
    for name in _names(own, dialect):
        mine = tasks.task_name == name, dialect.among(tasks.task_instance, number_of)
        rows = own.execute(sa.select(tasks.task_instance).where(*mine)).fetchall()
        found.update(number_of[id] for (id,) in rows)
    return found


def _names(own: Joinable, dialect: Dialect) -> list[str]:
    """Return all names under which handlers may have rows."""
    return sorted(Handlers(all_subscriptions(own, dialect.tables)).handler_of)


def _delete(
    own: Joinable,
    dialect: Dialect,
    column: sa.Column[Value],
    values: Sequence[Value],
    *conditions: sa.ColumnElement[bool],
) -> None:
    """Delete the locked rows with these values. On MySQL one by one: it might take a short table as
    a whole for many, and wait for rows that are not committed.
    """
    gone = column.table.delete().where(*conditions)
    if dialect.name != "mysql":
        own.execute(gone.where(column.in_(values)))
        return
    one = gone.where(column == sa.bindparam("one", type_=column.type))
    for value in values:
        own.execute(one, {"one": value})


def next_events(
    dialect: Dialect, own: Joinable, kept: timedelta, after: int, batch: int
) -> sa.Select[tuple[int, bool, bool]]:
    """Return the statement that reads a batch of events: number, whether it is old, and whether it
    was given out.
    """
    events = dialect.tables.events.c
    is_old = events.published < dialect.ago(own, kept)
    is_given = events.fanned_out.is_not(None)
    statement = sa.select(events.id, is_old, is_given).where(events.id > after)
    return statement.order_by(events.id).limit(batch)


class Forgotten(NamedTuple):
    """How many keys were deleted, and after which one the next batch begins; None after the
    last.
    """

    deleted: int
    after: str | None


def forget_keys(
    own: Joinable, dialect: Dialect, after: str = "", batch: int = BATCH
) -> Forgotten:
    """Look at a batch of keys after this one, and delete those that no row has."""
    keys = dialect.tables.keys
    mine = keys.c.task_name == NO_TASK, keys.c.kind == KIND
    some = sa.select(keys.c.key).where(*mine, keys.c.key > after).order_by(keys.c.key)
    found = [key for (key,) in own.execute(some.limit(batch)).fetchall()]
    idle = set(found) - _used(own, dialect, found)
    locked = lock_keys(own, dialect.tables, idle, skip=True)
    unused = locked - _used(own, dialect, sorted(locked))
    if unused:
        _delete(own, dialect, keys.c.key, sorted(unused), *mine)
    return Forgotten(len(unused), found[-1] if len(found) == batch else None)


def _used(own: Joinable, dialect: Dialect, keys: list[str]) -> set[str]:
    """Return those of these keys that a row has: by a look for each, not at all of their rows."""
    rows, tasks = dialect.tables.keys, dialect.tables.tasks.c
    mine = rows.c.task_name == NO_TASK, rows.c.kind == KIND
    some = sa.select(rows.c.key).where(*mine, dialect.among(rows.c.key, keys))
    used: set[str] = set()
    if not keys:
        return used
    for name in _names(own, dialect):
        of_key = tasks.task_name == name, tasks.order_key == rows.c.key
        has_rows = sa.select(sa.literal(1)).where(*of_key).correlate(rows).limit(1)
        found = own.execute(some.where(has_rows.exists())).fetchall()
        used.update(key for (key,) in found)
    return used
