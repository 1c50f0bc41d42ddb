"""The fan-out: it gives each committed event to its handlers, one row of tasks for each, once.

The promise: if the commit of A was answered before the call that published B began, each handler
sees A before B. A has the lower number, and a look that sees B sees A as well. So a look takes what
it sees by number, and never what comes after a number that it has kept: an event with a lower
number may be committed later.

Races. Several fan-outs may run at once; a turn keeps them from doing the same work, and nothing
depends on it.

- Two look at the same events. Each locks the keys, then reads the events again, with their locks:
  those that the other one has given out bear a mark by then. What it takes of a key is all that is
  committed up to the newest number of its look, in the order of numbers; so a late one among them
  is not overtaken by an event that was published after its commit.
- The keys of some events are locked. These events are left to the next look, all of a key together,
  while others go on.
- It is killed. Marks and rows are in one transaction, and both are there or neither.
- A handler is registered meanwhile: see ``subscriptions``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import sqlalchemy as sa

from slotwise.contrib.events.lanes import (
    Handlers,
    add_keys,
    known_keys,
    lock_keys,
    states_of,
)
from slotwise.contrib.events.order import (
    Appended,
    Lane,
    LaneState,
    Subscription,
    Waiting,
    appended,
    subscribers,
)
from slotwise.contrib.events.subscriptions import (
    active_subscriptions,
    all_subscriptions,
)
from slotwise.spi import Dialect, Joinable, Kind, RowState

#: Who has this turn looks for events; another worker leaves it to that one.
TURN: Final = "events fan-out"
#: Events of a look.
AT_ONCE: Final = 500
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: The due time of a row that waits for another one.
FOREVER: Final = datetime(9000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class FannedOut:
    """What one look has done. ``is_busy``: another fan-out has the turn. ``left``: events that it
    saw and left, as their keys were locked. ``names``: handlers with rows that may run.
    """

    events: int = 0
    rows: int = 0
    left: int = 0
    is_busy: bool = False
    is_full: bool = False
    names: frozenset[str] = frozenset()


class HandlersChanged(Exception):
    """A handler was registered while the fan-out worked; nothing of it may stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a first look has seen, and who was registered before it."""

    known: Sequence[Subscription]
    events: Sequence[Waiting]
    is_full: bool

    @property
    def keys(self) -> set[str]:
        return {one.key for one in self.events if one.key is not None}

    def left(self, locked: set[str]) -> int:
        """Return how many of the events have another key than these."""
        others = self.keys - locked
        return sum(one.key in others for one in self.events)


def see(
    own: Joinable, dialect: Dialect, *, limit: int = AT_ONCE, needs_turn: bool = True
) -> Seen | None:
    """Look for up to ``limit`` events, and make the rows of their keys, in a transaction of its
    own; None if another fan-out has the turn.

    Race: the rows of keys are committed before they are locked, so that no fan-out waits for the
    row that another one has just made.
    """
    assert isinstance(own, sa.Connection)
    if needs_turn and not dialect.alone(own, TURN):
        return None
    known = active_subscriptions(own, dialect.tables)
    events = look(own, dialect, known, limit)
    seen = Seen(known=known, events=events, is_full=len(events) == limit)
    add_keys(own, dialect, seen.keys - known_keys(own, dialect.tables, seen.keys))
    return seen


def give(
    own: Joinable,
    dialect: Dialect,
    seen: Seen,
    *,
    waits: bool = False,
    needs_turn: bool = True,
) -> FannedOut:
    """Give what was seen to its handlers, in one transaction.

    ``waits``: wait for keys that are locked, up to the lock timeout, in place of leaving them.
    Raises HandlersChanged; then roll back and look again.
    """
    assert isinstance(own, sa.Connection)
    if needs_turn and not dialect.alone(own, TURN):
        return FannedOut(is_busy=True)
    locked = lock_keys(own, dialect.tables, seen.keys, skip=not waits)
    taken = read_again(own, dialect, seen.known, seen.events, locked)
    if active_subscriptions(own, dialect.tables) != seen.known:
        raise HandlersChanged
    rows = _append(own, dialect, taken, seen.known)
    _mark(own, dialect, taken, rows)
    return FannedOut(
        events=len(taken),
        rows=len(rows),
        left=seen.left(locked),
        is_full=seen.is_full,
        names=frozenset(row.handler for row in rows if not row.is_blocked),
    )


def look(
    own: Joinable, dialect: Dialect, subscriptions: Iterable[Subscription], limit: int
) -> list[Waiting]:
    """Return the first committed events without a mark, and those that have one and no handler
    although there is one now. Locks nothing.
    """
    found = []
    for condition in _wanted(dialect, subscriptions):
        found += _read(own, dialect, condition, limit)
    found.sort(key=lambda one: one.id)
    return found[:limit]


def read_again(
    own: Joinable,
    dialect: Dialect,
    subscriptions: Sequence[Subscription],
    seen: Sequence[Waiting],
    locked: set[str],
) -> list[Waiting]:
    """Lock and return what may be given out: of the locked keys all that is committed up to the
    newest number that was seen.
    """
    events = dialect.tables.events.c
    last = max(one.id for one in seen)
    mine: sa.ColumnElement[bool] = events.key.is_(None)
    if locked:
        mine = mine | dialect.among(events.key, locked)
    found = []
    for condition in _wanted(dialect, subscriptions):
        part = sa.and_(condition, events.id <= last, mine)
        found += _read(own, dialect, part, None)
    return sorted(found, key=lambda one: one.id)


def _wanted(
    dialect: Dialect, subscriptions: Iterable[Subscription]
) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of events to give out, each with an index."""
    events = dialect.tables.events.c
    wanted: list[sa.ColumnElement[bool]] = [events.fanned_out.is_(None)]
    if names := sorted({one.event for one in subscriptions}):
        wanted.append(
            sa.and_(
                events.fanned_out.is_not(None),
                # a literal: with a parameter, a generic plan cannot use a partial index
                events.handlers == sa.literal_column("0"),
                events.name.in_(names),
            )
        )
    return wanted


def _read(
    own: Joinable,
    dialect: Dialect,
    condition: sa.ColumnElement[bool],
    limit: int | None,
) -> list[Waiting]:
    """Read events by number; without ``limit`` with their locks."""
    events = dialect.tables.events.c
    statement = sa.select(events.id, events.name, events.key).where(condition)
    statement = statement.order_by(events.id).limit(limit)
    if limit is None:
        statement = statement.with_for_update()
    found = own.execute(statement).fetchall()
    return [Waiting(id=id, name=name, key=key) for id, name, key in found]


def _append(
    own: sa.Connection,
    dialect: Dialect,
    events: Sequence[Waiting],
    subscriptions: Sequence[Subscription],
) -> list[Appended]:
    """Insert a row for each event and handler."""
    states = _states(own, dialect, events, subscriptions)
    now = dialect.now(own)
    micros = (now - EPOCH) // datetime.resolution
    rows = appended(events, subscriptions, states, micros)
    data = _data(own, dialect, [row.event.id for row in rows])
    new = [_task(row, data[row.event.id], now) for row in rows]
    new.sort(key=lambda one: (str(one["task_name"]), str(one["task_instance"])))
    if new:
        # A row that has the id already is this event's: a person has scheduled it.
        dialect.insert_missing(own, dialect.tables.tasks, new)
    return rows


def _states(
    own: Joinable,
    dialect: Dialect,
    events: Sequence[Waiting],
    subscriptions: Sequence[Subscription],
) -> dict[Lane, LaneState]:
    """Return what the lanes of these events have already."""
    lanes = {
        Lane(one.handler, event.key)
        for event in events
        if event.key is not None
        for one in subscribers(event, subscriptions)
    }
    if not lanes:
        return {}
    handlers = Handlers(all_subscriptions(own, dialect.tables))
    return states_of(own, dialect.tables, handlers, lanes)


def _data(
    own: Joinable, dialect: Dialect, ids: Sequence[int]
) -> dict[int, bytes | None]:
    events = dialect.tables.events.c
    wanted = sa.select(events.id, events.data).where(events.id.in_(sorted(set(ids))))
    found = own.execute(wanted).fetchall() if ids else ()
    return {id: None if data is None else bytes(data) for id, data in found}


def _task(row: Appended, data: bytes | None, now: datetime) -> dict[str, object]:
    """Return the columns of a row, which is due now."""
    return {
        "task_name": row.handler,
        "task_instance": str(row.event.id),
        "task_data": data,
        "execution_time": FOREVER if row.is_blocked else now,
        "slot": now,
        "picked": False,
        "kind": Kind.TASK.value,
        "version": row.position,
        "created_version": row.position,
        "priority": 50 if row.priority is None else row.priority,
        "state": RowState.BLOCKED.value if row.is_blocked else None,
        "parked_due": now if row.is_blocked else None,
        "order_key": row.event.key,
    }


def _mark(
    own: sa.Connection,
    dialect: Dialect,
    taken: Sequence[Waiting],
    rows: Sequence[Appended],
) -> None:
    """Mark these events, which are locked, with the number of their handlers."""
    events = dialect.tables.events
    now = dialect.now(own)
    marked = 0
    for count, ids in sorted(_by_count(taken, rows).items()):
        mine = events.c.id.in_(ids), events.c.handlers == 0
        mark = events.update().where(*mine).values(fanned_out=now, handlers=count)
        marked += own.execute(mark).rowcount
    if marked != len(taken):
        raise RuntimeError(f"marked {marked} of {len(taken)} events that were locked")


def _by_count(
    taken: Sequence[Waiting], rows: Sequence[Appended]
) -> dict[int, list[int]]:
    """Return the events by the number of their handlers."""
    counts = Counter(row.event.id for row in rows)
    by_count: dict[int, list[int]] = {}
    for one in taken:
        by_count.setdefault(counts[one.id], []).append(one.id)
    return by_count
