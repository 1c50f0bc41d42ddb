"""One-time tasks on PostgreSQL: each insert is one statement, a chunk of new rows an unnest or a
COPY.

A statement sees the database as it was when it began, except where it meets a row that another
transaction has just written: there it waits, and sees that row as it is now. If a command looks at
both held and waiting rows, a row may thus change its kind between both looks; such a command is
repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import itemgetter
from struct import Struct

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.exc import IntegrityError

from slotwise.model.records import FOREVER, IfExists, Key, Wanted, When, to_micros
from slotwise.model.vocabulary import Kind, RowState
from slotwise.store.connect.caller_transaction import Joinable, copy_into
from slotwise.store.connect.database_errors import sqlstate
from slotwise.store.connect.notifications import channel_of
from slotwise.store.dialects.port import Dialect
from slotwise.store.dialects.postgresql.arrays import integers, intervals
from slotwise.store.dialects.task_statements import (
    Parameters,
    Status,
    Taken,
    TaskStatements,
    named,
)
from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.tables import Expression, is_task

#: The columns of a row of a COPY in its binary format, in this order: nothing is escaped, and the
#: server parses no strings.
COPIED = (
    "kind",
    "task_name",
    "task_instance",
    "task_data",
    "execution_time",
    "slot",
    "picked",
    "version",
    "created_version",
    "priority",
)
#: Rows in one write: the server is busy with them while the next ones are encoded.
BLOCK = 500

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_TASK_KIND = Kind.TASK.encode()
_NULL = b"\xff\xff\xff\xff"
#: The format counts its instants from here.
_EPOCH = to_micros(datetime(2000, 1, 1, tzinfo=UTC))

_length = Struct(">i").pack
_head = Struct(">hi").pack
#: Each with its length before it: two instants, a flag, two versions, a priority.
_tail = Struct(">iq iq i? iq iq ih").pack

#: By id. Here: the server would do it by its language's rules.
_by_id = itemgetter(0)

#: The rows of a chunk, in the order of ``COPIED``. Each column travels as one string, which the
#: server splits: an array costs the driver more than the rows cost the server. No id has a control
#: character. In an array, NULL would be a word where the caller's session has array_nulls off. The
#: version is a subquery, so that it is computed once, and not for each row.
_CHUNK = """\
SELECT 'task', CAST(:name AS text), i.instance, pg_catalog.decode(i.data, 'hex'),
    coalesce(i.due, {now} + i.delay), coalesce(i.due, {now} + i.delay), false,
    (SELECT CAST(extract(epoch FROM {now}) * 1000000.0 AS bigint)),
    (SELECT CAST(extract(epoch FROM {now}) * 1000000.0 AS bigint)), i.priority
FROM unnest(
        pg_catalog.string_to_array(CAST(:ids AS text), pg_catalog.chr(10)),
        pg_catalog.string_to_array(CAST(:all_data AS text), ',', ''),
        CAST(pg_catalog.string_to_array(CAST(:dues AS text), ',', '') AS timestamptz[]),
        CAST(CAST(:delays AS text) AS interval[]),
        CAST(CAST(:ranks AS text) AS smallint[]))
    AS i(instance, data, due, delay, priority)"""
_TASK: sa.ColumnElement[str] = sa.bindparam("name", type_=sa.Text)


class PostgreSQLTasks(TaskStatements):
    """By the server's clock, each chunk in one statement; with ``wake`` they notify workers at the
    commit.
    """

    instant = sa.DateTime(timezone=True)  # the driver takes an aware datetime as it is
    delay = sa.Interval()

    def __init__(self, dialect: Dialect, wake: timedelta | None) -> None:
        super().__init__(dialect)
        self._is_manual = dialect.clock.override() is not None
        self._wake = wake
        self._channel = channel_of(dialect.tables.prefix, dialect.tables.schema)

    def notify(self, connection: Joinable, word: str) -> None:
        if self._wake is not None:
            connection.execute(sa.select(self._notify(word)))

    def notification(self) -> list[Expression]:
        """PostgreSQL drops duplicate notifications within a transaction."""
        if self._wake is None:
            return []
        return [
            sa.case((self._is_soon(self._wake), self._notify(self.tasks.c.task_name)))
        ]

    def _is_soon(self, within: timedelta) -> sa.ColumnElement[bool]:
        """Whether polls might come too late for this row; one that is parked is not due for
        long.
        """
        latest = self.now() + sa.literal(within, sa.Interval)
        return sa.and_(~self.tasks.c.picked, self.tasks.c.execution_time <= latest)

    def _notify(self, word: str | sa.ColumnElement[str]) -> Expression:
        return sa.func.pg_catalog.pg_notify(self._channel, word)

    def may_delete(self) -> sa.ColumnElement[bool]:
        """Set the option for which the trigger of an adopted table allows the deletion of rows."""
        return sa.func.pg_catalog.set_config("slotwise.delete", "on", True) == "on"

    def now(self) -> sa.ColumnElement[datetime]:
        if self._is_manual:
            return sa.bindparam(
                "now", self.dialect.clock.override(), type_=self.instant
            )
        return sa.func.pg_catalog.statement_timestamp(type_=Instant)

    def time(self, connection: Joinable) -> Parameters:
        return {"now": self.dialect.clock.override()} if self._is_manual else {}

    def due(self, is_at: bool) -> Expression:
        """An instant, or a delay after now."""
        if is_at:
            return super().due(is_at)
        return self.now() + sa.bindparam("due", type_=self.delay)

    def due_parameters(self, connection: Joinable, when: When) -> Parameters:
        due = when.delay if when.at is None else when.at
        return {"due": due, **self.time(connection)}

    def created(self) -> Expression:
        return sa.cast(
            sa.extract("epoch", self.now()) * sa.literal_column("1000000.0"),
            sa.BigInteger,
        )

    def put(
        self, connection: Joinable, name: str, wanted: Wanted, if_exists: IfExists
    ) -> Status:
        is_at = wanted.when.at is not None
        waits = wanted.waits_for > 0
        statement = self.kept(
            ("put", if_exists, is_at, waits),
            lambda: self._put(if_exists, is_at, waits),
        )
        key = Key(name, wanted.instance)
        parameters: Parameters = {
            "data": wanted.data,
            "rank": wanted.priority,
            **named(key),
        }
        parameters |= self.due_parameters(connection, wanted.when)
        if waits:
            parameters["count"] = wanted.waits_for
        written = connection.execute(statement, parameters).fetchone()
        return self.answer(connection, written, key, absent="exists")

    def _put(self, if_exists: IfExists, is_at: bool, waits: bool) -> sa.Executable:
        due = self.due(is_at)
        created = self.created()
        row: Parameters = {
            "task_name": sa.bindparam("name"),
            "task_instance": sa.bindparam("instance"),
            "task_data": sa.bindparam("data"),
            "execution_time": due,
            "slot": due,
            "picked": sa.false(),
            "kind": sa.literal_column(f"'{Kind.TASK}'"),
            "version": created,
            "created_version": created,
            "priority": sa.bindparam("rank", type_=sa.SmallInteger),
        }
        if waits:
            row |= {
                "state": RowState.BLOCKED,
                "parked_due": due,
                "execution_time": sa.literal(FOREVER, Instant),
                "waits_for": sa.bindparam("count", type_=sa.Integer),
            }
        new = self.inserting(if_exists, insert(self.tasks).values(**row))
        return new.returning(self.tasks.c.picked, *self.notification())

    def inserting(self, if_exists: IfExists, insert: Insert) -> Insert:
        """Return the insert, with the action for a row that has the id."""
        match if_exists:
            case "replace":
                return self._or_replace(insert)
            case "reschedule":
                return self._or_move(insert)
        return insert.on_conflict_do_nothing()

    def _or_replace(self, insert: Insert) -> Insert:
        tasks = self.tasks
        return insert.on_conflict_do_update(
            index_elements=self.key_columns,
            set_=self.replaced(insert.excluded),
            where=sa.and_(~tasks.c.picked, is_task(tasks.c)),
        )

    def _or_move(self, insert: Insert) -> Insert:
        new = insert.excluded
        return insert.on_conflict_do_update(
            index_elements=self.key_columns,
            set_={**self.moved(new["execution_time"]), "priority": new["priority"]},
            where=sa.and_(*self.alive()),
        )

    def put_many(
        self,
        connection: Joinable,
        name: str,
        wanted: Sequence[Wanted],
        if_exists: IfExists | None,
    ) -> int:
        """Without ``if_exists`` all are scheduled, or the statement fails.

        Ids are sorted: two chunks that meet in several of them cannot deadlock.
        """
        # The caller knows whom to notify: nothing has to come back.
        counts = self._wake is None and if_exists in (None, "raise", "keep")
        shape = ("chunk", if_exists)
        statement = self.kept(shape, lambda: self._put_all(if_exists, counts=counts))
        parameters = {"name": name, **_arrays_of(sorted(wanted, key=_by_id))}
        found = connection.execute(statement, parameters | self.time(connection))
        if counts:
            return found.rowcount
        ((scheduled, *_),) = found.fetchall()
        return int(scheduled)

    def _put_all(self, if_exists: IfExists | None, *, counts: bool) -> sa.Executable:
        functions = sa.func.pg_catalog
        new = insert(self.tasks).from_select(COPIED, self._asked_rows())
        if if_exists is not None:
            new = self.inserting(if_exists, new)
        if counts:
            return new.execution_options(preserve_rowcount=True)
        if self._wake is None:
            put = new.returning(self.tasks.c.picked).cte("put")
            notified = []
        else:
            soon = self._is_soon(self._wake).label("soon")
            put = new.returning(self.tasks.c.picked, soon).cte("put")
            notified = [sa.case((functions.bool_or(put.c.soon), self._notify(_TASK)))]
        scheduled = functions.count(sa.literal_column("*")).filter(~put.c.picked)
        return sa.select(scheduled, *notified).select_from(put)

    def _asked_rows(self) -> sa.TextualSelect:
        now = ":now" if self._is_manual else "pg_catalog.statement_timestamp()"
        rows = sa.text(_CHUNK.format(now=f"CAST({now} AS timestamptz)"))
        return rows.columns(*(self.tasks.c[name] for name in COPIED))

    def put_new(
        self,
        connection: Joinable,
        name: str,
        wanted: Sequence[Wanted],
        *,
        copy: bool = False,
    ) -> None:
        """One statement, which fails as a whole. Race: of two that put the same id, the second
        waits for the first one's commit, and fails then.
        """
        try:
            if copy:
                self._copy(connection, name, wanted)
            else:
                self.put_many(connection, name, wanted, None)
        except Exception as error:
            if isinstance(error, IntegrityError) or sqlstate(error) == "23505":
                raise Taken from error
            raise

    def _copy(self, connection: Joinable, name: str, wanted: Sequence[Wanted]) -> None:
        asked = self.kept("now", lambda: sa.select(self.now()))
        ((now,),) = connection.execute(asked, self.time(connection)).fetchall()
        known = postgresql.dialect().identifier_preparer  # type: ignore[no-untyped-call]
        table = known.format_table(self.tasks)
        copy_into(
            connection,
            f"COPY {table} ({', '.join(COPIED)}) FROM STDIN (FORMAT binary)",
            partial(blocks, name, sorted(wanted, key=_by_id), now),
        )
        wake = self._wake
        if wake is not None and any(
            (one.when.at or now + one.when.delay) <= now + wake for one in wanted
        ):
            self.notify(connection, name)


def _arrays_of(wanted: Sequence[Wanted]) -> Parameters:
    """The columns of these rows as strings that the server reads as arrays."""
    return {
        "ids": "\n".join([one.instance for one in wanted]),
        "all_data": ",".join(
            ["" if one.data is None else one.data.hex() for one in wanted]
        ),
        "dues": ",".join([str(one.when.at or "") for one in wanted]),
        "delays": intervals([one.when.delay for one in wanted]),
        "ranks": integers([one.priority for one in wanted]),
    }


def blocks(
    name: str, wanted: Sequence[Wanted], now: datetime, encoding: str
) -> Iterator[bytes]:
    """The rows as they are written ``now``, in a client encoding that Python knows by this
    name.
    """
    created = to_micros(now)
    written = name.encode(encoding)
    head = _head(len(COPIED), len(_TASK_KIND)) + _TASK_KIND
    head += _length(len(written)) + written
    usual: Wanted | None = None
    tail = b""
    yield _HEADER
    for first in range(0, len(wanted), BLOCK):
        parts: list[bytes] = []
        for row in wanted[first : first + BLOCK]:
            if (
                usual is None
                or row.when is not usual.when
                or row.priority != usual.priority
            ):
                usual = row
                due = to_micros(row.when.at or now + row.when.delay) - _EPOCH
                tail = _tail(
                    8, due, 8, due, 1, False, 8, created, 8, created, 2, row.priority
                )
            id = row.instance.encode(encoding)
            parts += (head, _length(len(id)), id)
            if row.data is None:
                parts += (_NULL, tail)
            else:
                parts += (_length(len(row.data)), row.data, tail)
        yield b"".join(parts)
    yield _TRAILER
