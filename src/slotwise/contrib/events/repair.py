"""The repair: a lane whose first row is blocked behind none goes on.

A settlement promotes the next row in its own transaction. What it leaves: an operator removed or
retried the first row; the hook failed, which rolls back its writes alone; a row was set aside as
unreadable. Each page looks at the first row of some lanes, in the order of the index, and the
next page goes on where this one ended. So a lane waits for one walk over all lanes at most: one
second for each ``PAGE`` rows that wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import sqlalchemy as sa

from slotwise.contrib.events.lanes import (
    Handlers,
    is_active,
    keys_of,
    lanes_of,
    lock_or_add,
    promote,
)
from slotwise.contrib.events.order import Lane, OnFailure, is_passed
from slotwise.contrib.events.subscriptions import all_subscriptions
from slotwise.spi import Dialect, Joinable, RowState

#: Rows of a page.
PAGE: Final = 2_000


class Place(NamedTuple):
    """Where a walk over the lanes has come to."""

    name: str = ""
    key: str = ""


#: Where a walk begins.
BEGIN: Final = Place()


class Repaired(NamedTuple):
    """Where the next page begins, the beginning after the last one; and whose rows may run now."""

    place: Place
    names: list[str]


def repair(
    own: Joinable, dialect: Dialect, place: Place, page: int = PAGE
) -> Repaired:
    """Look at one page of lanes, and promote the next row where none runs."""
    assert isinstance(own, sa.Connection)
    handlers = Handlers(all_subscriptions(own, dialect.tables))
    stuck, following = _page(own, dialect, handlers, place, page)
    if not stuck:
        return Repaired(following, [])
    return Repaired(following, _promote(own, dialect, handlers, stuck))


def repair_lanes(
    own: Joinable, dialect: Dialect, rows: set[tuple[str, str]]
) -> tuple[list[str], set[tuple[str, str]]]:
    """Promote the next row in these lanes, by name and key, where none runs; return the names of
    the promoted rows, and the rows whose lanes need no further look.

    Race: the settlement that has ended a row may not be committed yet; its row is active then, and
    so the lane needs another look.
    """
    assert isinstance(own, sa.Connection)
    handlers = Handlers(all_subscriptions(own, dialect.tables))
    lanes = lanes_of(rows, handlers)
    locked = lock_or_add(own, dialect, keys_of(lanes))
    mine = [lane for lane in lanes if lane.key in locked]
    idle = [lane for lane in mine if not is_active(own, dialect, handlers, lane)]
    names = promote(own, dialect, handlers, idle, may_be_active=False)
    open_lanes = lanes - set(idle)
    done = {row for row in rows if not lanes_of([row], handlers) & open_lanes}
    return names, done


def _promote(
    own: sa.Connection, dialect: Dialect, handlers: Handlers, lanes: set[Lane]
) -> list[str]:
    """Promote in lanes where none runs and whose keys can be locked; return the names of the rows.

    Race: what was seen of these lanes may be old. It is read again under the locks of the keys.
    """
    locked = lock_or_add(own, dialect, keys_of(lanes))
    mine = [lane for lane in lanes if lane.key in locked]
    return promote(own, dialect, handlers, mine, may_be_active=True)


def _page(
    own: Joinable, dialect: Dialect, handlers: Handlers, place: Place, page: int
) -> tuple[set[Lane], Place]:
    """Return the lanes that seem to be stuck, and where the next page begins."""
    stuck: set[Lane] = set()
    left = page
    for name in sorted(handlers.handler_of):
        if name < place.name:
            continue
        after = place.key if name == place.name else ""
        rows = _rows(own, dialect, name, after, left)
        handler = handlers.handler_of[name]
        keys = stuck_keys(rows, handlers.on_failure[handler])
        stuck |= {Lane(handler, key) for key in keys}
        left -= len(rows)
        if left <= 0:
            return stuck, Place(name, rows[-1][0])
    return stuck, BEGIN


def stuck_keys(
    rows: Iterable[tuple[str, str | None]], on_failure: OnFailure
) -> set[str]:
    """Return the keys whose first row is blocked, of rows in the order of the lanes: those that
    may be stuck. Also the last key, if its rows so far let others pass.
    """
    first: dict[str, str | None] = {}
    for key, state in rows:
        if is_passed(first.get(key, RowState.DEAD), on_failure) or key not in first:
            first[key] = state
    last = next(reversed(first), None)
    return {
        key
        for key, state in first.items()
        if state == RowState.BLOCKED or (key == last and is_passed(state, on_failure))
    }


def _rows(
    own: Joinable, dialect: Dialect, name: str, after: str, page: int
) -> list[tuple[str, str | None]]:
    """Return the next rows of a handler: key and state, in the order of the lanes."""
    tasks = dialect.tables.tasks.c
    statement = (
        sa.select(tasks.order_key, tasks.state)
        .where(tasks.task_name == name, tasks.order_key > after)
        .order_by(tasks.order_key, tasks.created_version)
        .limit(page)
    )
    return [(key, state) for key, state in own.execute(statement).fetchall()]
