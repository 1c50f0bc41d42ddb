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
  while others go on; so are events without a key that are locked. A look may wait for one key: it
  does so briefly, and before it has locked any other, so that no two transactions wait for each
  other. If the holder is frozen, the others go on all the same.
- It is killed. Marks and rows are in one transaction, and both are there or neither.
- A handler is registered meanwhile: see ``subscriptions``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

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
from slotwise.contrib.events.row_ids import row_id
from slotwise.contrib.events.subscriptions import (
    active_subscriptions,
    all_subscriptions,
)
from slotwise.spi import Dialect, Joinable, Kind, RowState, is_locked

#: Who has this turn looks for events; another worker leaves it to that one.
TURN: Final = "events fan-out"
#: Events of a look.
AT_ONCE: Final = 500
#: Rows of an insert: each has a copy of the data of its event.
PORTION: Final = 200
#: How long a look waits for a key that several looks have left.
WAIT: Final = timedelta(milliseconds=250)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: The due time of a row that waits for another one.
FOREVER: Final = datetime(9000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class FannedOut:
    """What one look has done. ``is_busy``: another fan-out has the turn. ``left``: events that it
    saw and left, as they or their keys were locked; ``left_keys``: these keys, in order.
    ``names``: handlers with rows that may run.
    """

    events: int = 0
    rows: int = 0
    left: int = 0
    left_keys: Sequence[str] = ()
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

    def left(self, locked: set[str], taken: Iterable[Waiting]) -> int:
        """Return how many of the events have another key than these, or none and were not taken."""
        ids = {one.id for one in taken}
        others = (one for one in self.events if one.key not in locked)
        return sum(one.id not in ids for one in others)


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
    wait_for: str | None = None,
    needs_turn: bool = True,
) -> FannedOut:
    """Give what was seen to its handlers, in one transaction.

    ``wait_for``: a key to wait for, if it is locked, in place of leaving it at once. Raises
    HandlersChanged; then roll back and look again.
    """
    assert isinstance(own, sa.Connection)
    if needs_turn and not dialect.alone(own, TURN):
        return FannedOut(is_busy=True)
    if wait_for in seen.keys:
        _wait_for(own, dialect, wait_for)
    locked = lock_keys(own, dialect.tables, seen.keys, skip=True)
    taken = read_again(own, dialect, seen.known, seen.events, locked)
    if active_subscriptions(own, dialect.tables) != seen.known:
        raise HandlersChanged
    rows = _append(own, dialect, taken, seen.known)
    _mark(own, dialect, taken, rows)
    return FannedOut(
        events=len(taken),
        rows=len(rows),
        left=seen.left(locked, taken),
        left_keys=sorted(seen.keys - locked),
        is_full=seen.is_full,
        names=frozenset(row.handler for row in rows if not row.is_blocked),
    )


def _wait_for(own: sa.Connection, dialect: Dialect, key: str) -> None:
    """Lock a key; leave it if that takes too long."""
    try:
        with own.begin_nested():
            dialect.hurry(own, WAIT)
            lock_keys(own, dialect.tables, {key}, skip=False)
    except DBAPIError as error:
        if not is_locked(error):
            raise


def look(
    own: Joinable, dialect: Dialect, subscriptions: Iterable[Subscription], limit: int
) -> list[Waiting]:
    """Return the first committed events without a mark, and those that have one and no handler
    although there is one now. Locks nothing.
    """
    found = []
    for condition in _wanted(dialect, subscriptions):
        found += _waiting(own, _select(dialect, condition).limit(limit))
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
    newest number that was seen, and of those without a key what nobody else has locked.
    """
    events = dialect.tables.events.c
    last = max(one.id for one in seen)
    found = []
    for condition in _wanted(dialect, subscriptions):
        part = sa.and_(condition, events.id <= last)
        found += _lock(own, dialect, part & events.key.is_(None), skip=True)
        if locked:
            mine = dialect.among(events.key, locked)
            found += _lock(own, dialect, part & mine, skip=False)
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


def _lock(
    own: Joinable, dialect: Dialect, condition: sa.ColumnElement[bool], *, skip: bool
) -> list[Waiting]:
    """Lock and read events by number. ``skip``: leave those that are locked."""
    statement = _select(dialect, condition).with_for_update(skip_locked=skip)
    return _waiting(own, statement)


def _select(
    dialect: Dialect, condition: sa.ColumnElement[bool]
) -> sa.Select[tuple[int, str, str | None]]:
    events = dialect.tables.events.c
    statement = sa.select(events.id, events.name, events.key).where(condition)
    return statement.order_by(events.id)


def _waiting(
    own: Joinable, statement: sa.Select[tuple[int, str, str | None]]
) -> list[Waiting]:
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
    for start in range(0, len(rows), PORTION):
        _insert(own, dialect, rows[start : start + PORTION], now)
    return rows


def _insert(
    own: sa.Connection, dialect: Dialect, rows: Sequence[Appended], now: datetime
) -> None:
    data = _data(own, dialect, [row.event.id for row in rows])
    new = [_task(row, data[row.event.id], now) for row in rows]
    new.sort(key=lambda one: (str(one["task_name"]), str(one["task_instance"])))
    # A row that has the id already is this event's: a person has scheduled it again.
    dialect.insert_missing(own, dialect.tables.tasks, new)


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
        "task_instance": row_id(row.event.id),
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
