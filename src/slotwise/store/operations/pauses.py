"""Pauses by name: what is paused, until when, and what becomes of the slots meanwhile.

Each pause of a job, an instance or a name of one-time tasks has a row in ``scheduled_pauses``, and
so has a pause of all that ends by itself. The rows of a paused job sleep (``job_operations``).
Tasks of a paused name stay as they are: claims leave out the name, by the database's clock.

Races, when a pause ends by itself. One transaction at a time ends pauses, in the whole cluster. It
takes the job's latch, as ``pause`` and ``resume`` do, and reads the pause again under it:

- against a resume: the first to take the latch ends the pause, the other finds none;
- against a pause with another end: the row has that end by then, so it is left alone;
- against a claim: a claim takes rows that sleep no more, after the commit;
- against a settlement of a row that was held all the time: both lock the row. It sees the state,
  or that there is none;
- the worker dies between two chunks of a job's rows: the pause's row is deleted with the last
  chunk, so the next worker continues.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.errors import ConfigurationError
from slotwise.model.records import TICK
from slotwise.model.values import Value
from slotwise.model.vocabulary import Missed, PauseScope, Reason
from slotwise.store.operations.transaction import Operation
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import Condition, Tables

#: Who ends pauses has this turn.
TURN = "pauses"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(Value):
    """A pause of a job, of one instance (``id``), of a name of one-time tasks, or of all.

    ``until``: when it ends by itself, by the database's clock; None: when it is resumed.
    ``missed``: whether slots that come due meanwhile are skipped, or left to catch-up.
    """

    scope: PauseScope
    job: str | None
    id: str | None
    since: datetime
    until: datetime | None
    missed: Missed
    author: str
    note: str | None

    @property
    def reason(self) -> Reason:
        """The reason of the slots that it skips."""
        return Reason.PAUSED if self.until is None else Reason.MAINTENANCE

    def last(self, now: datetime) -> datetime:
        """Return until when its slots are skipped, if it ends now. A slot at its end runs."""
        return now if self.until is None else min(now, self.until - TICK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a pause is set to: its end, if any, and what becomes of the slots meanwhile."""

    until: datetime | timedelta | None = None
    missed: Missed = Missed.SKIP

    def end(self, now: datetime) -> datetime | None:
        """Return the end by the database's clock; a duration counts from now."""
        return now + self.until if isinstance(self.until, timedelta) else self.until

    def end_text(self, now: datetime) -> str | None:
        """Return the end as the audit has it."""
        end = self.end(now)
        return None if end is None else end.isoformat()


#: A pause that lasts until it is resumed.
OPEN = Window()


def keep(at: Operation, scope: PauseScope, name: str, id: str, window: Window) -> bool:
    """Note a pause; return False if it stood there already, with the same end. The job's latch
    is held. Raises ConfigurationError for an end that has passed.
    """
    end = _end_of(at, window)
    table = at.store.tables.pauses
    mine = _is(at.store.tables, scope, name, id)
    same = table.c.until.is_not_distinct_from(end), table.c.missed == window.missed
    if at.count(*mine, *same):
        return False
    key = {"task_name": name, "scope": scope, "task_instance": id}
    _put(at, key, {"until": end, "missed": window.missed})
    return True


def _put(
    at: Operation, key: Mapping[str, object], window: Mapping[str, object]
) -> None:
    """Insert a pause, or change it; it keeps the time at which it was created."""
    changed = {**window, "author": at.author.name, "note": at.author.note}
    at.dialect.upsert(
        at.connection,
        at.store.tables.pauses,
        {**key, "created": at.now, **changed},
        lambda new: {one: new[one] for one in changed},
    )


def _end_of(at: Operation, window: Window) -> datetime | None:
    end = window.end(at.now)
    if end is not None and end <= at.now:
        raise ConfigurationError(
            f"until={end.isoformat()}: the database's clock has passed it "
            f"({at.now.isoformat()}); choose a later end"
        )
    return end


def sign(at: Operation, window: Window, job: str | None, id: str | None = None) -> int:
    """Write a pause to the audit, and return its number."""
    until = window.end_text(at.now)
    replay = True if window.missed == Missed.CATCH_UP else None
    return at.sign("pause", job=job, id=id, until=until, replay=replay)


def kept(at: Operation, name: str, id: str | None = None) -> list[Pause]:
    """Lock the pauses of this name, or those of an instance, and return them."""
    tables = at.store.tables
    mine = [tables.pauses.c.task_name == name]
    if id is not None:
        mine = _is(tables, PauseScope.INSTANCE, name, id)
    statement = (
        sa.select(tables.pauses).where(*mine).order_by(*tables.pauses.primary_key)
    )
    found = at.connection.execute(statement.with_for_update()).mappings()
    return [pause_of(row) for row in found]


def forget(at: Operation, *pauses: Pause) -> None:
    """Delete these pauses, which this transaction has locked."""
    table = at.store.tables.pauses
    for one in pauses:
        mine = _is(at.store.tables, one.scope, one.job or "", one.id or "")
        at.connection.execute(table.delete().where(*mine))


def forget_instances(at: Operation, name: str, ids: Collection[str]) -> None:
    """Delete the pauses of instances that are deleted in this transaction."""
    table = at.store.tables.pauses
    mine = table.c.task_name == name, table.c.scope == PauseScope.INSTANCE
    some = at.dialect.among(table.c.task_instance, ids)
    at.connection.execute(table.delete().where(*mine, some))


def next_end(connection: sa.Connection, tables: Tables) -> datetime | None:
    """Return when the next pause ends by itself; None: none does."""
    table = tables.pauses
    first = sa.select(table.c.until).where(table.c.until.is_not(None))
    found = connection.execute(first.order_by(table.c.until).limit(1)).first()
    return None if found is None else utc(found[0])


def first_ended(at: Operation) -> Pause | None:
    """Return the pause whose end has passed first; None: none has ended."""
    table = at.store.tables.pauses
    due = sa.select(table).where(table.c.until <= at.now).order_by(table.c.until)
    row = at.connection.execute(due.limit(1)).mappings().first()
    return None if row is None else pause_of(row)


def by_instance(pauses: list[Pause]) -> Mapping[str | None, Pause]:
    """Return pauses by the id of their instance; that of the whole job has none."""
    return {one.id: one for one in pauses}


def pauses_in(connection: sa.Connection, tables: Tables) -> list[Pause]:
    """Return the pauses by name, and that of all if it ends by itself."""
    statement = sa.select(tables.pauses).order_by(*tables.pauses.primary_key)
    return [pause_of(row) for row in connection.execute(statement).mappings()]


def pause_over(
    connection: sa.Connection, tables: Tables, now: datetime, name: str, id: str
) -> Pause | None:
    """Return the pause that holds an instance of a job, or the tasks of a name: that of all, else
    the one that ends last; None: none is kept by name.
    """
    table = tables.pauses.c
    of_it = (table.task_instance == id) | (table.scope != PauseScope.INSTANCE)
    mine = sa.and_(table.task_name == name, of_it) | (table.scope == PauseScope.ALL)
    found = connection.execute(sa.select(tables.pauses).where(mine)).mappings()
    held = [pause_of(row) for row in found]
    lasting = [one for one in held if one.until is None or one.until > now]
    return max(lasting, key=_rank, default=None)


def _rank(pause: Pause) -> tuple[bool, bool, datetime]:
    is_about_all = pause.scope == PauseScope.ALL
    return is_about_all, pause.until is None, pause.until or pause.since


def pause_of(row: sa.RowMapping) -> Pause:
    return Pause(
        scope=PauseScope(row["scope"]),
        job=row["task_name"] or None,
        id=row["task_instance"] if row["scope"] == PauseScope.INSTANCE else None,
        since=utc(row["created"]),
        until=utc(row["until"]),
        missed=Missed(row["missed"]),
        author=row["author"],
        note=row["note"],
    )


def _is(tables: Tables, scope: PauseScope, name: str, id: str) -> list[Condition]:
    table = tables.pauses.c
    return [table.task_name == name, table.scope == scope, table.task_instance == id]
