"""The fan-out: it gives each committed event to its handlers, one row of tasks for each, once.

The promise: if the commit of A was answered before the call that published B began, each handler
sees A before B. A has the lower number, and a look that sees B sees A as well. So a look takes what
it sees by number, and never what comes after a number that it has kept: an event with a lower
number may be committed later.

Races. Several fan-outs may run at once; a turn keeps them from doing the same work, and nothing
depends on it.

- Two look at the same events. Each locks the keys, then reads the events again: those that the
  other one has given out bear a mark by then. What it takes of a key is all that is committed up to
  the newest number of its look, in the order of numbers; so a late one among them is not overtaken
  by an event that was published after its commit.
- A transaction that has published is open. MariaDB would wait for its row in a search that locks.
  So a look searches without locks, and locks what it has found by number.
- The keys of some events are locked, or not committed yet. These events are left to the next look,
  all of a key together, while others go on; so are events that are locked, with those of their key
  behind them. A look may wait for one key: it does so briefly, and before it has locked any other,
  so that no two transactions wait for each other. If the holder is frozen, the others go on all
  the same.
- It is killed. Marks and rows are in one transaction, and both are there or neither.
- A handler is registered meanwhile: see ``subscriptions``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from slotwise.contrib.events.lanes import (
    Handlers,
    add_keys_soon,
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
#: Rows of an insert, and bytes of their data, of which each row has a copy. A server refuses a
#: statement that is too long.
PORTION: Final = 200
PORTION_BYTES: Final = 2**20
#: Bytes of data that one look writes, about.
MOST_BYTES: Final = 2**25
#: The most numbers that a statement names.
NUMBERS: Final = 500
#: How long a look waits for a key that several looks have left.
WAIT: Final = timedelta(milliseconds=250)
#: MariaDB would else take a short table as a whole, and wait for rows that are not committed.
BY_NUMBER: Final = "FORCE INDEX (PRIMARY)"
SERVERS: Final = ("mysql", "mariadb")
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


class Locked(NamedTuple):
    """Events that may be given out, by number; and the keys of which none is left."""

    events: list[Waiting]
    keys: set[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a first look has seen, and who was registered before it."""

    known: Sequence[Subscription]
    events: Sequence[Waiting]
    is_full: bool

    @property
    def keys(self) -> set[str]:
        return {one.key for one in self.events if one.key is not None}

    def left(self, locked: Locked) -> int:
        """Return how many of the events are not locked, nor their keys."""
        ids = {one.id for one in locked.events}
        others = (one for one in self.events if one.key not in locked.keys)
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
    missing = seen.keys - known_keys(own, dialect.tables, seen.keys)
    add_keys_soon(own, dialect, missing)
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
    keys = lock_keys(own, dialect.tables, seen.keys, skip=True)
    locked = read_again(own, dialect, seen.known, seen.events, keys)
    taken = first_bytes(locked.events, seen.known)
    if active_subscriptions(own, dialect.tables) != seen.known:
        raise HandlersChanged
    rows = _append(own, dialect, taken, seen.known)
    _mark(own, dialect, taken, rows)
    return FannedOut(
        events=len(taken),
        rows=len(rows),
        left=seen.left(locked),
        left_keys=sorted(seen.keys - locked.keys),
        is_full=seen.is_full or len(taken) < len(locked.events),
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
    keys: set[str],
) -> Locked:
    """Lock and return what may be given out: of the locked keys all that is committed up to the
    newest number that was seen, and of those without a key what nobody else has locked.

    Race: an event that another transaction has locked waits, with the later ones of its key.
    """
    events = dialect.tables.events.c
    last = max(one.id for one in seen)
    mine: sa.ColumnElement[bool] = events.key.is_(None)
    if keys:
        mine = mine | dialect.among(events.key, keys)
    found: list[Waiting] = []
    ids: set[int] = set()
    for condition in _wanted(dialect, subscriptions):
        part = sa.and_(condition, events.id <= last, mine)
        wanted = _waiting(own, _select(dialect, part))
        found += wanted
        ids |= _lock(own, dialect, condition, [one.id for one in wanted])
    found.sort(key=lambda one: one.id)
    held = {one.key for one in found if one.id not in ids}
    return Locked(_before_held(found, ids), {key for key in keys if key not in held})


def _before_held(found: Iterable[Waiting], ids: set[int]) -> list[Waiting]:
    """Return the events that are locked, of each key those before the first that is not."""
    stopped: set[str] = set()
    taken = []
    for one in found:
        if one.id in ids and one.key not in stopped:
            taken.append(one)
        elif one.key is not None:
            stopped.add(one.key)
    return taken


def first_bytes(
    events: Sequence[Waiting], subscriptions: Sequence[Subscription]
) -> Sequence[Waiting]:
    """Return the first of these events, up to ``MOST_BYTES`` that their rows take together, and one
    at least.
    """
    copies = Counter(one.event for one in subscriptions)
    total = 0
    for place, one in enumerate(events):
        total += one.size * copies[one.name]
        if place and total > MOST_BYTES:
            return events[:place]
    return events


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
    own: Joinable,
    dialect: Dialect,
    condition: sa.ColumnElement[bool],
    numbers: Sequence[int],
) -> set[int]:
    """Lock these events where the condition still holds, and return their numbers; those that are
    locked are left.
    """
    events = dialect.tables.events
    locked: set[int] = set()
    for start in range(0, len(numbers), NUMBERS):
        some = events.c.id.in_(numbers[start : start + NUMBERS])
        statement = sa.select(events.c.id).where(some, condition)
        for server in SERVERS:
            statement = statement.with_hint(events, BY_NUMBER, server)
        statement = statement.order_by(events.c.id)
        found = own.execute(statement.with_for_update(skip_locked=True)).fetchall()
        locked.update(id for (id,) in found)
    return locked


def _select(
    dialect: Dialect, condition: sa.ColumnElement[bool]
) -> sa.Select[tuple[int, str, str | None, int | None]]:
    events = dialect.tables.events.c
    size = sa.func.length(events.data)
    statement = sa.select(events.id, events.name, events.key, size).where(condition)
    return statement.order_by(events.id)


def _waiting(
    own: Joinable, statement: sa.Select[tuple[int, str, str | None, int | None]]
) -> list[Waiting]:
    found = own.execute(statement).fetchall()
    return [
        Waiting(id=id, name=name, key=key, size=size or 0)
        for id, name, key, size in found
    ]


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
    for some in portions(rows):
        _insert(own, dialect, some, now)
    return rows


def portions(rows: Iterable[Appended]) -> list[list[Appended]]:
    """Return these rows in their order, as many at once as one statement may insert."""
    found: list[list[Appended]] = []
    room = 0
    for row in rows:
        room -= row.event.size
        if not found or room < 0 or len(found[-1]) == PORTION:
            found.append([])
            room = PORTION_BYTES - row.event.size
        found[-1].append(row)
    return found


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
        for server in SERVERS:
            mark = mark.with_hint(BY_NUMBER, dialect_name=server)
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
