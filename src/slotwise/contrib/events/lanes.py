"""Locks of keys, and the promotion of the next row of a lane.

Races. A lane is changed under the lock of the row of its key in ``keys``, by the fan-out, which
appends, and by the settlement, which promotes. Each reads the lane in a statement after the one
that has locked the key, so it sees all that the holder before it has committed.

- A row ends while an event is appended. If the fan-out is first, the settlement waits for its
  commit, finds the new row behind its own, and promotes it. It waits briefly, for other rows are
  settled with it; after that, it owes the promotion to the worker's loop. If the settlement is
  first, the fan-out leaves the key to its next look; it then finds the lane empty, and the row
  may run.
- Two rows of one key end at the same time, of two handlers: they lock the key one after the other.
- A settlement that promotes in many keys locks them in sorted order, so that no two deadlock. The
  fan-out waits for no key: it skips what is locked.
- A row that a retry makes wait again (``blocked``, behind no other row) and one whose promotion was
  lost are found by the repair: it looks at each lane, under the same lock.
- In a lane that continues after failures, a dead row that is retried comes back before a row that
  runs. So the repair promotes nothing while a row of the lane is active. A settlement need not
  look: the row that ended was the active one, for there is one at most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from random import sample
from time import sleep
from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from slotwise.contrib.events.order import (
    CONTINUE,
    First,
    Lane,
    LaneState,
    OnFailure,
    Subscription,
    to_promote,
)
from slotwise.contrib.mysql.galera import change_keys
from slotwise.spi import Dialect, Joinable, RowState, Tables, elapsed, is_locked

#: The kind of the rows of ``keys`` that order events; their task is empty, for all handlers.
KIND: Final = "order"
NO_TASK: Final = ""
#: The most keys that a statement names.
AT_ONCE: Final = 500
#: The pauses of a settlement between its looks at keys that are locked, in seconds: 0.25 in all.
PAUSES: Final = (0.002, 0.008, 0.02, 0.04, 0.08, 0.1)

#: How long an insert of keys waits for another transaction's, of many keys and of one; and how many
#: seconds the inserts of single keys take together.
ADDING: Final = timedelta(milliseconds=250)
AT_A_TIME: Final = timedelta(milliseconds=1)
ADDING_EACH: Final = 2.5


class Handlers:
    """What the table of handlers says, by the name of the handler."""

    def __init__(self, subscriptions: Iterable[Subscription]) -> None:
        #: All names under which a handler may have rows, by its name.
        self.names: dict[str, tuple[str, ...]] = {}
        #: What becomes of a lane behind a dead row, by the name of the handler.
        self.on_failure: dict[str, OnFailure] = {}
        #: The handler of each name, former ones included.
        self.handler_of: dict[str, str] = {}
        for one in subscriptions:
            known = self.names.get(one.handler, ())
            self.names[one.handler] = tuple(dict.fromkeys(known + one.names))
            self.on_failure[one.handler] = one.on_failure
            for name in one.names:
                self.handler_of[name] = one.handler


def lock_keys(
    own: Joinable, tables: Tables, keys: Collection[str], *, skip: bool
) -> set[str]:
    """Lock the rows of these keys, in sorted order; return those that are locked. ``skip``: leave
    those that another transaction holds.
    """
    rows = tables.keys.c
    mine = sa.select(rows.key).where(rows.task_name == NO_TASK, rows.kind == KIND)
    mine = mine.order_by(rows.key).with_for_update(skip_locked=skip)
    locked: set[str] = set()
    ordered = sorted(keys)
    for start in range(0, len(ordered), AT_ONCE):
        some = ordered[start : start + AT_ONCE]
        found = own.execute(mine.where(rows.key.in_(some))).fetchall()
        locked.update(key for (key,) in found)
    change_keys(own, tables, NO_TASK, KIND, locked)
    return locked


def lock_soon(own: Joinable, tables: Tables, keys: Collection[str]) -> set[str]:
    """Lock the rows of these keys, and wait briefly for those that another transaction holds;
    return those that are locked.
    """
    locked = lock_keys(own, tables, keys, skip=True)
    for pause in PAUSES:
        left = known_keys(own, tables, set(keys) - locked)
        if not left:
            break
        sleep(pause)
        locked |= lock_keys(own, tables, left, skip=True)
    return locked


def known_keys(own: Joinable, tables: Tables, keys: Collection[str]) -> set[str]:
    """Return those of these keys that have a row."""
    rows = tables.keys.c
    mine = sa.select(rows.key).where(rows.task_name == NO_TASK, rows.kind == KIND)
    found: set[str] = set()
    ordered = sorted(keys)
    for start in range(0, len(ordered), AT_ONCE):
        some = mine.where(rows.key.in_(ordered[start : start + AT_ONCE]))
        found.update(key for (key,) in own.execute(some).fetchall())
    return found


def add_keys(own: Joinable, dialect: Dialect, keys: Collection[str]) -> None:
    """Insert the rows of these keys, in sorted order; those that are there stay.

    Race: a row that another transaction inserts at this moment is waited for.
    """
    assert isinstance(own, sa.Connection)
    rows = [{"task_name": NO_TASK, "kind": KIND, "key": key} for key in sorted(keys)]
    if rows:
        dialect.insert_missing(own, dialect.tables.keys, rows)


def add_keys_soon(own: Joinable, dialect: Dialect, keys: Collection[str]) -> None:
    """Insert the rows of these keys, and wait only briefly for those that another transaction has
    inserted: these are left, and also others if there are many of them.

    Race: its process may be frozen, or killed before the server has noticed. Which keys come last
    differs from call to call, so that each one has its turn.
    """
    if not keys or _has_added(own, dialect, keys, ADDING):
        return
    until = elapsed() + ADDING_EACH
    for key in sample(sorted(keys), len(keys)):
        if elapsed() < until:
            _has_added(own, dialect, {key}, AT_A_TIME)


def _has_added(
    own: Joinable, dialect: Dialect, keys: Collection[str], wait: timedelta
) -> bool:
    """Insert the rows of all these keys, or of none if that takes too long."""
    assert isinstance(own, sa.Connection)
    try:
        with own.begin_nested():
            dialect.hurry(own, wait)
            add_keys(own, dialect, keys)
    except DBAPIError as error:
        if not is_locked(error):
            raise
        return False
    return True


def lock_or_add(own: Joinable, dialect: Dialect, keys: Collection[str]) -> set[str]:
    """Lock the rows of these keys, and make those that are missing; return those that are locked.
    What another transaction holds is left.
    """
    locked = lock_keys(own, dialect.tables, keys, skip=True)
    if missing := set(keys) - locked:
        add_keys_soon(own, dialect, missing)
        locked |= lock_keys(own, dialect.tables, missing, skip=True)
    return locked


# -- what a lane has -----------------------------------------------------------------------


def states_of(
    own: Joinable, tables: Tables, handlers: Handlers, lanes: Collection[Lane]
) -> dict[Lane, LaneState]:
    """Return what these lanes have, whose keys are locked."""
    states: dict[Lane, LaneState] = {}
    for name, handler, keys in _by_name(handlers, lanes):
        first = _first(tables, name, handlers.on_failure[handler])
        last = _column(_rows(tables, name).order_by(_position(tables).desc()), tables)
        rows = tables.keys.c
        statement = sa.select(rows.key, last, _column(first, tables)).where(
            rows.task_name == NO_TASK, rows.kind == KIND, rows.key.in_(keys)
        )
        for key, newest, standing in own.execute(statement).fetchall():
            before = states.get(Lane(handler, key), LaneState())
            states[Lane(handler, key)] = LaneState(
                last=max(before.last, newest or 0),
                is_taken=before.is_taken or standing is not None,
            )
    return states


def firsts_of(
    own: Joinable, tables: Tables, handlers: Handlers, lanes: Collection[Lane]
) -> dict[Lane, list[First]]:
    """Return the first rows of these lanes, under each name of the handler."""
    found: dict[Lane, list[First]] = {}
    for name, handler, keys in _by_name(handlers, lanes):
        statement = _select_firsts(tables, name, handlers.on_failure[handler], keys)
        for key, id, state, position in own.execute(statement).fetchall():
            one = First(name, id, state, position)
            found.setdefault(Lane(handler, key), []).append(one)
    return found


def _select_firsts(
    tables: Tables, name: str, on_failure: OnFailure, keys: Sequence[str]
) -> sa.Select[tuple[str, str, str | None, int]]:
    """Return the statement that reads the first row of each of these keys, under one name."""
    rows, tasks = tables.keys.c, tables.tasks.c
    position = _column(_first(tables, name, on_failure), tables).label("position")
    mine = rows.task_name == NO_TASK, rows.kind == KIND, rows.key.in_(keys)
    first = sa.select(rows.key, position).where(*mine).subquery()
    is_it = sa.and_(
        tasks.task_name == name,
        tasks.order_key == first.c.key,
        tasks.created_version == first.c.position,
    )
    columns = first.c.key, tasks.task_instance, tasks.state, first.c.position
    return sa.select(*columns).join_from(first, tables.tasks, is_it)


def _by_name(
    handlers: Handlers, lanes: Collection[Lane]
) -> list[tuple[str, str, list[str]]]:
    """Return the keys of these lanes, by each name of their handlers, some at once."""
    keys_of: dict[str, set[str]] = {}
    for lane in lanes:
        keys_of.setdefault(lane.handler, set()).add(lane.key)
    found = []
    for handler, keys in sorted(keys_of.items()):
        ordered = sorted(keys)
        for name in handlers.names[handler]:
            for start in range(0, len(ordered), AT_ONCE):
                found.append((name, handler, ordered[start : start + AT_ONCE]))
    return found


def _rows(tables: Tables, name: str) -> sa.Select[tuple[int]]:
    tasks = tables.tasks.c
    return (
        sa.select(tasks.created_version)
        .where(tasks.task_name == name, tasks.order_key == tables.keys.c.key)
        .limit(1)
    )


def _first(tables: Tables, name: str, on_failure: OnFailure) -> sa.Select[tuple[int]]:
    """Return the position of the first row that stands before the others."""
    rows = _rows(tables, name).order_by(_position(tables))
    if on_failure == CONTINUE:
        state = tables.tasks.c.state
        rows = rows.where(state.is_(None) | (state != RowState.DEAD))
    return rows


def _position(tables: Tables) -> sa.Column[int]:
    found: sa.Column[int] = tables.tasks.c.created_version
    return found


def _column(
    rows: sa.Select[tuple[int]], tables: Tables
) -> sa.ScalarSelect[int | None]:
    return rows.correlate(tables.keys).scalar_subquery()


# -- the next one -----------------------------------------------------------------------


def promote(
    own: sa.Connection,
    dialect: Dialect,
    handlers: Handlers,
    lanes: Collection[Lane],
    *,
    may_be_active: bool,
) -> list[str]:
    """Let the next row of each lane run, whose keys are locked; return the names of the rows.

    ``may_be_active``: a row that is not the first one may be active, so look for it.
    """
    firsts = firsts_of(own, dialect.tables, handlers, lanes)
    chosen: dict[str, list[str]] = {}
    for lane, rows in sorted(firsts.items()):
        first = to_promote(rows)
        if first is None or (
            may_be_active and is_active(own, dialect, handlers, lane)
        ):
            continue
        chosen.setdefault(first.name, []).append(first.id)
    for name, ids in sorted(chosen.items()):
        _wake(own, dialect, name, ids)
    return sorted(chosen)


def is_active(
    own: sa.Connection, dialect: Dialect, handlers: Handlers, lane: Lane
) -> bool:
    """Whether a row of the lane runs or waits for its due time."""
    tasks = dialect.tables.tasks.c
    statement = (
        sa.select(sa.literal(1))
        .where(
            tasks.task_name.in_(handlers.names[lane.handler]),
            tasks.order_key == lane.key,
            tasks.state.is_(None) | (tasks.state == RowState.PAUSED),
        )
        .limit(1)
    )
    return own.execute(statement).first() is not None


def _wake(own: sa.Connection, dialect: Dialect, name: str, ids: Sequence[str]) -> None:
    """Let these blocked rows wait for a worker, in the order of keys.

    Race: an operator may have removed one of them, or given it another state; then there is
    nothing to change, and the repair looks at its lane again.
    """
    tasks = dialect.tables.tasks
    woken = _woken(dialect.tables, dialect.now(own))
    for start in range(0, len(ids), AT_ONCE):
        some = sorted(ids)[start : start + AT_ONCE]
        mine = tasks.c.task_name == name, dialect.among(tasks.c.task_instance, some)
        blocked = *mine, tasks.c.state == RowState.BLOCKED
        id = tasks.c.task_instance
        locked = sa.select(id).where(*blocked).order_by(id).with_for_update()
        own.execute(locked)
        own.execute(tasks.update().where(*blocked).values(**woken))


def _woken(tables: Tables, now: datetime) -> dict[str, object]:
    """Return the columns of a row that waits for nothing but its due time."""
    tasks = tables.tasks.c
    later = tasks.parked_due > now, tasks.parked_due
    at_once = sa.literal(now, tasks.execution_time.type)
    due = sa.case(later, else_=at_once)
    return {"state": None, "parked_due": None, "execution_time": due}


def lanes_of(rows: Iterable[tuple[str, str]], handlers: Handlers) -> set[Lane]:
    """Return the lanes of rows by their names and keys; unknown names have none."""
    return {
        Lane(handlers.handler_of[name], key)
        for name, key in rows
        if name in handlers.handler_of
    }


def keys_of(lanes: Iterable[Lane]) -> set[str]:
    return {lane.key for lane in lanes}


#: Which rows stand where, for tests and people.
Lanes = Mapping[Lane, LaneState]
