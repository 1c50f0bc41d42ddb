"""What all operations share: a transaction, which may be a rehearsal, one time, locked rows, and
the audit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final, TypeVar
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from slotwise.decide.pause import asleep
from slotwise.errors import (
    ConfigurationError,
    InvalidSchedule,
    SlotwiseError,
    UnknownTask,
)
from slotwise.model.records import RECURRING, Gap, Row
from slotwise.model.values import Value
from slotwise.model.vocabulary import Kind, RowState
from slotwise.schedules import Schedule, parse_schedule
from slotwise.schedules.description import zone_of
from slotwise.store.connect.database_errors import in_its_letters
from slotwise.store.dialects.conditions import of_key
from slotwise.store.dialects.port import Dialect, Transaction
from slotwise.store.schema.rows import (
    Unread,
    row_of,
    rows_apart,
    stored,
    texts_of,
    utc,
)
from slotwise.store.schema.tables import Condition, Tables, is_plan, of_plan
from slotwise.store.slots import ledger
from slotwise.store.slots.store import Store

Result = TypeVar("Result")


AUTHOR_LIMIT = 200
#: What the database appends to an author, before its user's name; no client may write it.
SIGNED_BY = " (database role"
NOTE_LIMIT = 10_000
#: The most rows of a job that are locked at a time: claims and heartbeats skip them, settlements
#: wait for them.
CHUNK = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry(Value):
    """An operation in the audit table; ``number`` is its place there, ``job`` is None if it
    applies to all.
    """

    number: int
    at: datetime
    author: str
    operation: str
    job: str | None
    slot: datetime | None
    arguments: dict[str, Any]
    note: str | None

    @property
    def id(self) -> str:
        """The id of the recurring instance that was named; else that of the job's own row."""
        return str(self.arguments.get("id", RECURRING))

    @property
    def is_about_all(self) -> bool:
        """Neither about a slot nor about a range of them."""
        return self.slot is None and "first" not in self.arguments

    def covers(self, slot: datetime) -> bool:
        """Whether it is about a range, and the slot lies in it."""
        if "first" not in self.arguments:
            return False
        first, last = (
            datetime.fromisoformat(self.arguments[name]) for name in ("first", "last")
        )
        return first <= slot <= last


def _check(what: str, text: object, limit: int) -> None:
    if not isinstance(text, str):
        raise ConfigurationError(
            f"{what}={text!r:.60}: expected a string; write {what}={str(text)!r:.60}"
        )
    if "\x00" in text:
        raise ConfigurationError(
            f"{what}={text!r:.60}: it contains a NUL (\\x00); remove it"
        )
    if len(text) > limit:
        raise ConfigurationError(
            f"{what} has {len(text):,} characters, at most {limit:,} are kept; shorten it"
        )


@dataclass(frozen=True, slots=True)
class Author:
    """Who requests an operation, and why."""

    name: str
    note: str | None = None

    def __post_init__(self) -> None:
        """Raises ConfigurationError for what the audit cannot keep."""
        _check("author", self.name, AUTHOR_LIMIT)
        if SIGNED_BY in self.name:
            raise ConfigurationError(
                f"author={self.name!r:.60}: the database itself writes{SIGNED_BY} …); remove it"
            )
        if self.note is not None:
            _check("note", self.note, NOTE_LIMIT)


#: Operations as the release before wrote them: the audit keeps them.
_FORMER: Final[Mapping[str, str]] = {
    name.replace("_", "-"): name
    for name in ("skip_next", "cancel_backfill", "new_epoch", "settle_until")
}


def audit_entry(row: sa.RowMapping) -> AuditEntry:
    """Return the operation of a row of the table, whose rows never change. Of arguments that cannot
    be read, which another program has written, the beginning is kept.
    """
    return AuditEntry(
        number=row["id"],
        at=utc(row["at"]),
        author=row["author"],
        operation=_FORMER.get(row["command"], row["command"]),
        job=row["task_name"],
        slot=utc(row["slot"]),
        arguments=_arguments(row["arguments"] or "{}"),
        note=row["note"],
    )


def _written(facts: Mapping[str, object]) -> str | None:
    said = {name: value for name, value in facts.items() if value is not None}
    return json.dumps(said, default=str) if said else None


def _arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
        ends = [found[name] for name in ("first", "last") if name in found]
        is_range = all(datetime.fromisoformat(end).tzinfo for end in ends)
        if isinstance(found, dict) and is_range and len(ends) != 1:
            return found
    except (ValueError, TypeError, RecursionError):
        pass
    return {"unreadable": text[:200]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an operation on all rows of a job has come: each chunk of them is one transaction.

    ``rows``: how many it has changed, in key order up to the id ``after``. ``found``: what it
    returns about them.
    """

    rows: int = 0
    after: str = ""
    is_done: bool = False
    is_rehearsed: bool = False
    number: int | None = None
    found: tuple[Any, ...] = ()

    def beyond(
        self, rows: Sequence[object], after: str | None, **others: Any
    ) -> Progress:
        """Return the progress with another chunk; ``after``: where the next one begins, None at
        the end.
        """
        return replace(
            self,
            rows=self.rows + len(rows),
            after=after or "",
            is_done=after is None,
            **others,
        )


def id_of(instance: str) -> str:
    """Return the id of an instance. Raises ConfigurationError if it is no string."""
    if not isinstance(instance, str):
        raise ConfigurationError(
            f"id={instance!r:.60}: expected a string; write id={str(instance)!r:.60}"
        )
    return instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation, or a chunk of it: in one transaction, at one time, by one author.

    Race: operations lock the rows that they change, sorted by key, and wait for them. So two
    operators, or an operator and a settlement, take turns and cannot deadlock. Claims, heartbeats
    and reapers skip locked rows.
    """

    connection: sa.Connection
    store: Store
    now: datetime
    author: Author

    @classmethod
    def within(
        cls, connection: sa.Connection, store: Store, author: Author
    ) -> Operation:
        """Return an operation in this transaction, at the database's time now."""
        now = store.dialect.now(connection)
        return cls(connection=connection, store=store, now=now, author=author)

    @property
    def dialect(self) -> Dialect:
        return self.store.dialect

    @property
    def tasks(self) -> sa.Table:
        return self.store.tables.tasks

    @property
    def transaction(self) -> Transaction:
        return Transaction(self.connection, self.dialect, self.now)

    def sign(
        self,
        command: str,
        *,
        job: str | None = None,
        slot: datetime | None = None,
        id: str | None = None,
        **facts: object,
    ) -> int:
        """Write the operation to the audit table and return its number; arguments that are None
        are left out.
        """
        facts["id"] = None if id == RECURRING else id
        statement = self.store.tables.controls.insert().values(
            at=self.now,
            author=self.author.name,
            note=self.author.note,
            command=command,
            task_name=job,
            slot=slot,
            arguments=_written(facts),
        )
        key = self.connection.execute(statement).inserted_primary_key
        assert key is not None  # the statement writes one row
        return int(key[0])

    def rows(self, *conditions: Condition) -> list[Row]:
        """Lock these rows in key order, and return them as they are then."""
        statement = (
            sa.select(*self.dialect.row_columns)
            .where(*conditions)
            .order_by(*self.dialect.key_order)
        )
        return [
            row_of(values)
            for values in self.connection.execute(statement.with_for_update())
        ]

    def count(self, *conditions: Condition) -> int:
        """Return how many rows meet the conditions."""
        counted = sa.select(sa.func.count()).where(*conditions)
        return self.connection.scalar(counted) or 0

    def chunk_of(
        self, job: str, so_far: Progress, *conditions: Condition
    ) -> tuple[list[Row], str | None]:
        """Lock the next rows of a job that meet the conditions; return them, and where to
        continue, None at the end.

        Race: rows are created meanwhile. This transaction prevents it, and after the last chunk an
        operation looks from the beginning once more. Raises UnknownTask without a plan row.
        """
        self.dialect.latch(self.connection, job, shared=False)
        is_ours = self.tasks.c.kind != Kind.FOREIGN
        mine = [self.tasks.c.task_name == job, is_ours, *conditions]
        id = self.tasks.c.task_instance
        if not so_far.rows:
            self.expect_plan(job)
        beyond = [id > so_far.after] if so_far.after else []  # an id may be blank
        some = sa.select(id).where(*mine, *beyond).order_by(id).limit(CHUNK)
        ids = self.connection.scalars(some).all()
        rows = self.rows(*mine, id.in_(ids)) if ids else []
        if len(ids) == CHUNK:
            return rows, ids[-1]
        is_last = not so_far.after or so_far.is_rehearsed
        return rows, None if is_last else ""

    def expect_plan(self, job: str) -> None:
        """Raise UnknownTask unless the job has a plan row, or ConfigurationError for a one-time
        task.
        """
        of_job = sa.select(self.tasks.c.kind).where(self.tasks.c.task_name == job)
        of_plan = of_job.where(is_plan(self.tasks.c))
        if self.connection.execute(of_plan.limit(1)).first() is None:
            is_task = self.connection.execute(of_job.limit(1)).first() is not None
            raise self._no_job(job, is_task=is_task)

    def names_tasks(self, name: str) -> bool:
        """Whether this is a name of one-time tasks: rows, code or a live worker say so, and there
        is no job of this name.
        """
        return not self.has_plan(name) and self.has_tasks(name)

    def has_plan(self, name: str) -> bool:
        """Whether a job, or a recurring instance of a task, has this name."""
        return self._is_there(self.tasks.c.task_name == name, is_plan(self.tasks.c))

    def has_tasks(self, name: str) -> bool:
        """Whether code or rows have one-time tasks of this name."""
        known = self.store.definitions.get(name)
        if known is not None and not known.is_job:
            return True
        mine = self.tasks.c.task_name == name, self.tasks.c.kind == Kind.TASK
        return self._is_there(*mine)

    def _is_there(self, *conditions: Condition) -> bool:
        found = sa.select(self.tasks.c.kind).where(*conditions).limit(1)
        return self.connection.execute(found).first() is not None

    def of_instance(self, job: str, instance: str | None) -> list[Condition]:
        """Return the condition that a row is of this instance; None: of any. Raises UnknownTask if
        the job has no such instance.
        """
        if instance is None:
            return []
        tasks = self.tasks.c
        mine = tasks.task_name == job, tasks.task_instance == id_of(instance)
        found = sa.select(tasks.task_name).where(*mine, is_plan(tasks))
        if self.connection.execute(found).first() is None:
            self.expect_plan(job)
            raise _no_instance(job, instance)
        return [of_plan(tasks, instance)]

    def _no_job(self, job: str, *, is_task: bool) -> SlotwiseError:
        tasks = f"for tasks: slotwise tasks list {job}, or schedule, cancel, retry"
        if is_task:
            return ConfigurationError(
                f"{job!r} is a one-time task; this operation is for jobs; {tasks}"
            )
        if job in registered(self.connection, self.store.tables, self.now):
            return UnknownTask(
                f"no job {job!r} in this database, but live workers register it: "
                f"it is a one-time task ({tasks}), or a "
                "job that was deleted, which the next worker that starts plans again"
            )
        names = sa.select(self.tasks.c.task_name).where(
            self.tasks.c.task_instance == RECURRING, is_plan(self.tasks.c)
        )
        known = self.connection.scalars(
            names.order_by(self.tasks.c.task_name).limit(1000)
        ).all()
        near = get_close_matches(job, known, n=1)
        hint = f"did you mean {near[0]!r}? Otherwise " if near else ""
        return UnknownTask(
            f"no job {job!r} in this database; {hint}start a worker that registers "
            "it, or see: slotwise jobs; for "
            f"tasks: slotwise tasks list {job}"
        )

    def family(self, job: str, instance: str = RECURRING) -> list[Row]:
        """Lock the plan row of a job, or of an instance, and the rows beside it; return what
        there is.
        """
        return self.rows(
            self.tasks.c.task_name == job, of_plan(self.tasks.c, id_of(instance))
        )

    def plan_among(self, rows: Sequence[Row], job: str, instance: str) -> Row:
        """Return the plan row among these. Raises UnknownTask without one."""
        for row in rows:
            if is_plan_of(row, instance):
                return row
        self.expect_plan(job)
        raise _no_instance(job, instance)

    def plan_row(self, job: str, instance: str = RECURRING) -> Row:
        """Lock the plan row alone. Raises UnknownTask without one."""
        rows = self.rows(
            self.tasks.c.task_name == job,
            self.tasks.c.task_instance == id_of(instance),
        )
        return self.plan_among(rows, job, instance)

    def caught_up(self, *rows: Row) -> list[Row]:
        """Return locked plan rows as of the newest slots that ledger and gaps have decided."""
        return ledger.caught_up(self.transaction, rows)

    def told(self, instant: datetime, *rows: Row) -> str:
        """Return an instant as people read it in the zone of the job that has these rows, with its
        offset.
        """
        return zoned_text(
            instant, zone_of(next((row.schedule for row in rows if row.is_plan), None))
        )

    def change(self, row: Row, **columns: object) -> None:
        """Write columns of a locked row; the due time of a paused row goes into ``parked_due``."""
        due = columns.get("execution_time")
        state = columns.get("state", row.state)
        if row.state == state == RowState.PAUSED and isinstance(due, datetime):
            columns |= asleep(due)
        self.connection.execute(
            self.tasks.update()
            .where(*self._as_locked(row))
            .values(**stored(row, columns))
        )

    def delete(self, row: Row) -> None:
        """Delete a locked row that is not held; the guard of an adopted table only permits rows in
        this state.
        """
        self.change(row, state=RowState.DELETED)
        self.connection.execute(
            self.tasks.delete().where(*self._as_locked(row), ~self.tasks.c.picked)
        )

    def _as_locked(self, row: Row) -> list[Condition]:
        return [*of_key(self.tasks.c, row), self.tasks.c.version == row.version]

    def skip(self, row: Row, *gaps: Gap) -> None:
        """Enter slots that do not run."""
        self.dialect.gaps(self.connection, [(row, gap) for gap in gaps], self.now)


def _no_instance(job: str, instance: str) -> UnknownTask:
    return UnknownTask(
        f"job {job!r} has no recurring instance {instance!r}; see: slotwise "
        f"jobs {job} --instances"
    )


def is_plan_of(row: Row, instance: str) -> bool:
    """Whether this is an instance's plan row, which no operation has deleted."""
    is_its = row.task_instance == instance and row.is_plan
    return is_its and row.state != RowState.DELETED


def carry_out(
    store: Store,
    author: Author,
    operation: Callable[[Operation], Result],
    *,
    rehearse: bool = False,
) -> Result:
    """Carry out an operation; a rehearsal rolls it back. Raises only if nothing was done.

    Race: the reply to the commit may be lost, and repeating a trigger would run it twice. So the
    database is asked.
    """
    with (
        in_its_letters("this operation"),
        store.rehearsed() if rehearse else store.surely() as connection,
    ):
        return operation(Operation.within(connection, store, author))


def registered(
    connection: sa.Connection, tables: Tables, now: datetime
) -> dict[str, str]:
    """Return the names that live workers register, each with one of these workers."""
    workers = tables.workers.c
    found = dict[str, str]()
    wanted = sa.select(workers.worker, workers.tasks, workers.last_seen, workers.lease)

    def names(row: sa.RowMapping) -> dict[str, str]:
        is_live = row["last_seen"] + row["lease"] >= now
        return dict.fromkeys(texts_of(row["tasks"]), row["worker"]) if is_live else {}

    for one in rows_apart(connection, wanted, workers.worker, read=names):
        found |= {} if isinstance(one, Unread) else one
    return found


def schedule_in(row: Row) -> Schedule:
    """Return the schedule in the row. Raises ConfigurationError if this release cannot read it."""
    try:
        return parse_schedule(row.schedule or "-")
    except InvalidSchedule as error:
        raise ConfigurationError(
            f"job {row.task_name!r}: {error}; use the slotwise of the workers"
        ) from None


def zoned_text(instant: datetime, zone: ZoneInfo) -> str:
    """Return an instant in ISO 8601, in a zone with its offset; UTC is a Z."""
    text = instant.astimezone(zone).isoformat()
    return text.removesuffix("+00:00") + "Z" if zone.key == "UTC" else text
