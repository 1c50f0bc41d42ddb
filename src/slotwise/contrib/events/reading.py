"""What people see of events: all of it derived from rows, and read without a lock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.contrib.events.fan_out import EPOCH
from slotwise.contrib.events.lanes import Handlers
from slotwise.contrib.events.row_ids import number_of, row_id, row_id_of
from slotwise.contrib.events.subscriptions import (
    active_subscriptions,
    all_subscriptions,
)
from slotwise.inspect import Value
from slotwise.spi import Dialect, Joinable, ListedState, RowState

#: The state of an event for a handler that has no row for it any more, or never had one.
ENDED = "ended"
#: Ids that a statement names.
_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class EventInfo(Value):
    """An event. ``fanned_out``: when it was given to its handlers; None: it waits for that.
    ``open``: the handlers for which it has not ended, with the state of their row.
    """

    id: int
    name: str
    key: str | None
    published: datetime
    fanned_out: datetime | None
    handlers: int
    open: dict[str, str] = field(default_factory=dict)

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
    with the number of that event.
    """

    handler: str
    events: list[str]
    open: int
    dead: int
    oldest: datetime | None
    lag: timedelta | None
    blocked_key: str | None
    blocked_event: str | None


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
    """Return the newest events; of one key, or of one state, among the newest ones."""
    events = dialect.tables.events.c
    statement = sa.select(*_columns(dialect)).order_by(events.id.desc())
    if key is not None:
        statement = statement.where(events.key == key)
    if state is not None:
        statement = statement.where(_may_be(dialect, own, state))
    rows = own.execute(statement.limit(limit)).fetchall()
    found = _with_rows(own, dialect, rows)
    return [one for one in found if state is None or one.state == state]


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
    states = _states(own, dialect, [row_id(one.id) for one in events])
    for one in events:
        one.open.update(states.get(row_id(one.id), {}))
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
    own: Joinable, dialect: Dialect, ids: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return the states of the rows of events, by id and handler."""
    tasks = dialect.tables.tasks.c
    handlers = Handlers(all_subscriptions(own, dialect.tables))
    states: dict[str, dict[str, str]] = {}
    for name, handler in sorted(handlers.handler_of.items()):
        mine = tasks.task_name == name, dialect.among(tasks.task_instance, ids)
        columns = sa.select(tasks.task_instance, tasks.picked, tasks.state)
        for id, picked, state in own.execute(columns.where(*mine)).fetchall():
            shown = ListedState.RUNNING if picked else state or ListedState.WAITING
            states.setdefault(id, {})[handler] = str(shown)
    return states


def lags(own: Joinable, dialect: Dialect) -> list[HandlerLag]:
    """Return how far each handler is behind."""
    tables = dialect.tables
    every = all_subscriptions(own, tables)
    active = active_subscriptions(own, tables)
    now = dialect.now(own)
    found = []
    for handler, names in sorted(Handlers(every).names.items()):
        events = [one.event for one in active if one.handler == handler]
        found.append(_lag(own, dialect, handler, names, events, now))
    return found


def _lag(
    own: Joinable,
    dialect: Dialect,
    handler: str,
    names: Sequence[str],
    events: list[str],
    now: datetime,
) -> HandlerLag:
    tasks = dialect.tables.tasks.c
    mine = tasks.task_name.in_(names)
    is_dead = sa.case((tasks.state == RowState.DEAD, 1), else_=0)
    total = sa.select(
        sa.func.count(), sa.func.sum(is_dead), sa.func.min(tasks.created_version)
    ).where(mine)
    ((rows, dead, first),) = own.execute(total).fetchall()
    oldest = None if first is None else EPOCH + first * datetime.resolution
    first_dead = (
        sa.select(tasks.order_key, tasks.task_instance)
        .where(mine, tasks.state == RowState.DEAD, tasks.order_key.is_not(None))
        .order_by(tasks.created_version)
        .limit(1)
    )
    blocked = own.execute(first_dead).fetchone()
    return HandlerLag(
        handler=handler,
        events=events,
        open=rows,
        dead=int(dead or 0),
        oldest=oldest,
        lag=None if oldest is None else max(now - oldest, timedelta(0)),
        blocked_key=None if blocked is None else blocked[0],
        blocked_event=None if blocked is None else str(number_of(blocked[1])),
    )
