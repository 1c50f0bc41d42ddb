"""The table of handlers: which handler gets which events, and since when.

Races:

- Two workers register at the same time, also of two releases, of which one has renamed a handler.
  A latch lets one after the other read the table and change it.
- A worker of the release before starts again, while the later one has a handler of more events. So
  what a worker does not declare is left as it is: only a call of ``retire`` ends it.
- A handler is registered while the fan-out works. The fan-out reads this table before it looks for
  events and again after it has read them, and begins anew if it has changed.
- A worker of the release before registers a handler under its former name. The row of the new name
  lists that name, and so it is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from slotwise.contrib.events.order import OnFailure, Subscription
from slotwise.spi import Dialect, Joinable, Tables

#: Who registers or retires handlers has this latch.
LATCH: Final = "events handlers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a worker declares of one handler."""

    handler: str
    events: tuple[str, ...]
    on_failure: OnFailure
    priority: int | None
    former: tuple[str, ...]


def all_subscriptions(own: Joinable, tables: Tables) -> list[Subscription]:
    """Return all, also those that get no further events."""
    rows = tables.event_handlers.c
    statement = sa.select(
        rows.handler,
        rows.event,
        rows.on_failure,
        rows.priority,
        rows.former,
    )
    found = own.execute(statement.order_by(rows.handler, rows.event)).fetchall()
    return [_subscription(row) for row in found]


def active_subscriptions(own: Joinable, tables: Tables) -> list[Subscription]:
    """Return those that get further events."""
    rows = tables.event_handlers.c
    active = own.execute(
        sa.select(rows.handler, rows.event).where(rows.retired.is_(None))
    ).fetchall()
    keys = {(handler, event) for handler, event in active}
    every = all_subscriptions(own, tables)
    return [one for one in every if (one.handler, one.event) in keys]


def _subscription(row: Sequence[object]) -> Subscription:
    handler, event, on_failure, priority, former = row
    assert isinstance(handler, str)
    assert isinstance(event, str)
    names = json.loads(former) if isinstance(former, str) else []
    return Subscription(
        handler=handler,
        event=event,
        on_failure="continue" if on_failure == "continue" else "block",
        priority=priority if isinstance(priority, int) else None,
        former=tuple(names),
    )


def register(
    own: Joinable, dialect: Dialect, registrations: Sequence[Registration]
) -> None:
    """Bring the table in line with what a worker declares. Handlers of others are left alone."""
    assert isinstance(own, sa.Connection)
    tables = dialect.tables
    dialect.latch(own, LATCH, shared=False)
    there = all_subscriptions(own, tables)
    renamed = {name for one in there for name in one.former}
    for one in sorted(registrations, key=lambda each: each.handler):
        if one.handler in renamed:
            continue  # a later release has renamed it
        _rename(own, tables, one, there)
        _put(own, dialect, one)


def _rename(
    own: Joinable,
    tables: Tables,
    one: Registration,
    there: Sequence[Subscription],
) -> None:
    """Give the rows of former names this name: the handler gets what it would have got."""
    rows = tables.event_handlers
    mine = {row.event for row in there if row.handler == one.handler}
    for row in (each for each in there if each.handler in one.former):
        old = rows.c.handler == row.handler, rows.c.event == row.event
        if row.event in mine:
            own.execute(rows.delete().where(*old))
            continue
        mine.add(row.event)
        own.execute(rows.update().where(*old).values(handler=one.handler))


def _put(own: Joinable, dialect: Dialect, one: Registration) -> None:
    """Insert or renew the rows of a handler. Those of other events get further events as before,
    and follow the code as well: their rows stand in the same lanes.
    """
    rows = dialect.tables.event_handlers
    since_id = _newest(own, dialect.tables)
    for event in one.events:
        _put_row(own, dialect, one, event, since_id)
    mine = rows.c.handler == one.handler
    own.execute(rows.update().where(mine).values(**_declared(one)))


def _newest(own: Joinable, tables: Tables) -> int:
    """Return the number of the newest event that is committed; 0 without any."""
    newest = sa.select(sa.func.coalesce(sa.func.max(tables.events.c.id), 0))
    ((since_id,),) = own.execute(newest).fetchall()
    return int(since_id)


def _put_row(
    own: Joinable, dialect: Dialect, one: Registration, event: str, since_id: int
) -> None:
    rows = dialect.tables.event_handlers
    new = {"handler": one.handler, "event": event, "since_id": since_id}
    now = dialect.now(own)
    if dialect.insert_new(own, rows, {**new, **_declared(one), "created": now}):
        return
    mine = rows.c.handler == one.handler, rows.c.event == event
    again = rows.update().where(*mine, rows.c.retired.is_not(None))
    own.execute(again.values(retired=None, since_id=since_id))


def _declared(one: Registration) -> dict[str, object]:
    """Return the columns that follow the code."""
    return {
        "on_failure": one.on_failure,
        "priority": one.priority,
        "former": json.dumps(sorted(one.former)) if one.former else None,
    }


def retire(
    own: Joinable, dialect: Dialect, handler: str, events: Sequence[str] = ()
) -> int:
    """Give a handler no further events, of these names or of all; return how many names it had."""
    assert isinstance(own, sa.Connection)
    dialect.latch(own, LATCH, shared=False)
    rows = dialect.tables.event_handlers
    mine = [rows.c.handler == handler, rows.c.retired.is_(None)]
    if events:
        mine.append(rows.c.event.in_(events))
    gone = rows.update().where(*mine)
    return own.execute(gone.values(retired=dialect.now(own))).rowcount
