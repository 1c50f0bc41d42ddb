"""What people see of events: all of it derived from rows, and read without a lock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.contrib.events.fan_out import EPOCH
from slotwise.contrib.events.lanes import Handlers
from slotwise.contrib.events.order import BLOCK
from slotwise.contrib.events.row_ids import number_of, row_id, row_id_of
from slotwise.contrib.events.subscriptions import (
    active_subscriptions,
    all_subscriptions,
)
from slotwise.inspect import Value
from slotwise.spi import Dialect, Joinable, ListedState, RowState, Tables

#: The state of an event for a handler that has no row for it any more, or never had one.
ENDED = "ended"
#: Ids that a statement names.
_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class EventInfo(Value):
    """An event. ``fanned_out``: when it was given to its handlers; None: it waits for that.
    ``open``: the handlers for which it has not ended, with the state of their row; ``tasks``: those
    whose row has a former name of the handler, with that name. ``ended``: the other handlers of its
    name, if all of them got it.
    """

    id: int
    name: str
    key: str | None
    published: datetime
    fanned_out: datetime | None
    handlers: int
    open: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)

    @property
    def state(self) -> str:
        """In one word: waiting, kept (without a handler so far), the worst of its rows, ended."""
        if self.fanned_out is None:
            return "waiting"
        if not self.handlers:
            return "kept"
        found = set(self.open.values())
        for state in (RowState.DEAD, RowState.BLOCKED, RowState.PAUSED):
            if state in found:
                return str(state)
        return str(next(iter(sorted(found)), ENDED))


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerLag(Value):
    """How far a handler is behind. ``oldest``: when the oldest event that has not ended for it was
    given to it; None without any. ``blocked_key``: the key whose first row is dead for longest,
    with the number of that event and when it was given out; None for a handler that continues
    after failures.
    """

    handler: str
    events: list[str]
    open: int
    dead: int
    oldest: datetime | None
    lag: timedelta | None
    blocked_key: str | None
    blocked_event: str | None
    blocked_since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog(Value):
    """What waits for the fan-out: how many events, and for how long the first one."""

    waiting: int
    lag: timedelta | None


def backlog(own: Joinable, dialect: Dialect) -> Backlog:
    """Return what waits for the fan-out."""
    events = dialect.tables.events.c
    waits = events.fanned_out.is_(None)
    count = sa.select(sa.func.count()).select_from(dialect.tables.events).where(waits)
    first = sa.select(events.published).where(waits).order_by(events.id).limit(1)
    ((waiting,),) = own.execute(count).fetchall()
    oldest = own.execute(first).fetchone()
    lag = None if oldest is None else dialect.now(own) - oldest[0]
    return Backlog(waiting=waiting, lag=lag)


def listed(
    own: Joinable, dialect: Dialect, *, limit: int, state: str | None, key: str | None
) -> list[EventInfo]:
    """Return the newest events, of a key and a state. Those of a state are looked for in pages."""
    events = dialect.tables.events.c
    statement = sa.select(*_columns(dialect)).order_by(events.id.desc())
    if key is not None:
        statement = statement.where(events.key == key)
    if state is not None:
        statement = statement.where(_may_be(dialect, own, state))
    page = limit if state is None else max(limit, _AT_ONCE)
    found: list[EventInfo] = []
    some = statement
    while len(found) < limit:
        rows = own.execute(some.limit(page)).fetchall()
        each = _with_rows(own, dialect, rows)
        found += [one for one in each if state is None or one.state == state]
        if len(rows) < page:
            break
        some = statement.where(events.id < each[-1].id)
    return found[:limit]


def _may_be(dialect: Dialect, own: Joinable, state: str) -> sa.ColumnElement[bool]:
    """Return which events may be in a state: of most an index finds their rows."""
    events = dialect.tables.events.c
    if state == ListedState.WAITING:
        return events.fanned_out.is_(None)
    if state == "kept":
        return events.fanned_out.is_not(None) & (events.handlers == 0)
    tasks = dialect.tables.tasks.c
    names = sorted(Handlers(all_subscriptions(own, dialect.tables)).handler_of)
    mine: sa.ColumnElement[bool] = tasks.task_name.in_(names)
    if state != ENDED:
        mine = mine & (tasks.state == state)
        ids = sa.select(tasks.task_instance).where(mine)
        return row_id_of(events.id).in_(ids)
    has_row = mine & (tasks.task_instance == row_id_of(events.id))
    return events.fanned_out.is_not(None) & ~sa.exists().where(has_row)


def found(own: Joinable, dialect: Dialect, id: int) -> EventInfo | None:
    """Return an event by its number."""
    events = dialect.tables.events.c
    rows = own.execute(sa.select(*_columns(dialect)).where(events.id == id)).fetchall()
    return next(iter(_with_rows(own, dialect, rows)), None)


def data_of(own: Joinable, dialect: Dialect, id: int) -> bytes | None:
    """Return the data of an event, as it is stored."""
    events = dialect.tables.events.c
    row = own.execute(sa.select(events.data).where(events.id == id)).fetchone()
    return None if row is None or row[0] is None else bytes(row[0])


def _columns(dialect: Dialect) -> list[sa.Column[object]]:
    events = dialect.tables.events.c
    names = ("id", "name", "key", "published", "fanned_out", "handlers")
    return [events[name] for name in names]


def _with_rows(
    own: Joinable, dialect: Dialect, rows: Iterable[Sequence[object]]
) -> list[EventInfo]:
    events = [_event(row) for row in rows]
    every = all_subscriptions(own, dialect.tables)
    by_id = {row_id(one.id): one for one in events}
    for name, handler in sorted(Handlers(every).handler_of.items()):
        for id, state in _states(own, dialect, name, list(by_id)):
            by_id[id].open[handler] = state
            if name != handler:
                by_id[id].tasks[handler] = name
    for one in events:
        mine = sorted(each.handler for each in every if each.event == one.name)
        if len(mine) == one.handlers:
            one.ended.extend(name for name in mine if name not in one.open)
    return events


def _event(row: Sequence[object]) -> EventInfo:
    id, name, key, published, fanned_out, handlers = row
    assert isinstance(id, int)
    assert isinstance(name, str)
    assert isinstance(published, datetime)
    assert isinstance(handlers, int)
    return EventInfo(
        id=id,
        name=name,
        key=key if isinstance(key, str) else None,
        published=published,
        fanned_out=fanned_out if isinstance(fanned_out, datetime) else None,
        handlers=handlers,
    )


def _states(
    own: Joinable, dialect: Dialect, name: str, ids: Sequence[str]
) -> list[tuple[str, str]]:
    """Return the ids and the states of the rows of events under a name of a handler."""
    tasks = dialect.tables.tasks.c
    mine = tasks.task_name == name, dialect.among(tasks.task_instance, ids)
    columns = sa.select(tasks.task_instance, tasks.picked, tasks.state).where(*mine)
    return [
        (
            id,
            str(ListedState.RUNNING if picked else state or ListedState.WAITING),
        )
        for id, picked, state in own.execute(columns).fetchall()
    ]


def lags(own: Joinable, dialect: Dialect) -> list[HandlerLag]:
    """Return how far each handler is behind."""
    tables = dialect.tables
    handlers = Handlers(all_subscriptions(own, tables))
    active = active_subscriptions(own, tables)
    now = dialect.now(own)
    found = []
    for handler, names in sorted(handlers.names.items()):
        total, dead, first = _totals(own, tables, names)
        oldest = None if first is None else _instant(first)
        blocked = None
        if dead and handlers.on_failure[handler] == BLOCK:
            blocked = _first_dead(own, tables, names)
        found.append(
            HandlerLag(
                handler=handler,
                events=[one.event for one in active if one.handler == handler],
                open=total,
                dead=dead,
                oldest=oldest,
                lag=None if oldest is None else max(now - oldest, timedelta(0)),
                blocked_key=None if blocked is None else blocked[0],
                blocked_event=None if blocked is None else str(number_of(blocked[1])),
                blocked_since=None if blocked is None else _instant(blocked[2]),
            )
        )
    return found


def _instant(position: int) -> datetime:
    """Return when an event was given out, by its position."""
    return EPOCH + position * datetime.resolution


def _totals(
    own: Joinable, tables: Tables, names: Sequence[str]
) -> tuple[int, int, int | None]:
    """Return how many rows of these names there are and are dead, and the first position."""
    tasks = tables.tasks.c
    is_dead = sa.case((tasks.state == RowState.DEAD, 1), else_=0)
    total = sa.select(
        sa.func.count(), sa.func.sum(is_dead), sa.func.min(tasks.created_version)
    ).where(tasks.task_name.in_(names))
    ((rows, dead, first),) = own.execute(total).fetchall()
    return rows, int(dead or 0), first


def _first_dead(
    own: Joinable, tables: Tables, names: Sequence[str]
) -> tuple[str, str, int] | None:
    """Return key, id and position of the dead row that is there for longest."""
    tasks = tables.tasks.c
    is_dead = tasks.state == RowState.DEAD, tasks.order_key.is_not(None)
    first = (
        sa.select(tasks.order_key, tasks.task_instance, tasks.created_version)
        .where(tasks.task_name.in_(names), *is_dead)
        .order_by(tasks.created_version)
        .limit(1)
    )
    found = own.execute(first).fetchone()
    return None if found is None else (found[0], found[1], found[2])
