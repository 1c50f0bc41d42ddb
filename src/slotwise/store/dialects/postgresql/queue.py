"""One-time tasks on PostgreSQL: a cancellation in one look, a chunk of new rows by unnest or by COPY.

A statement sees the database as it was when it began, except where it meets a row that somebody else has just
written: there it waits, and sees that row as it is now. Where a command looks at two kinds of rows (held and waiting
ones), a row may thus change its kind between both looks; such a command is asked again.

COPY is written in its binary format, in which nothing is escaped, and the server parses no strings. A COPY of our own
is sent to its end and not waited for: the server writes these rows while the next ones are gathered. Nothing that the
caller does meanwhile, however long it takes, keeps a transaction open or runs into a deadline.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from operator import itemgetter
from struct import Struct
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.exc import IntegrityError

from slotwise.model.records import IfExists, Key, Wanted, When
from slotwise.model.vocabulary import Kind
from slotwise.store.connect.caller_transaction import copy_into
from slotwise.store.connect.dsn import psycopg
from slotwise.store.connect.notifications import ORDERS, channel_of
from slotwise.store.dialects.port import Dialect
from slotwise.store.dialects.task_statements import (
    BulkResult,
    Status,
    Taken,
    TaskStatements,
    asked_key,
    named,
    plain,
    taken,
)
from slotwise.store.schema.column_types import Instant, to_micros

T = TypeVar("T")

#: The columns that are written, in this order.
COPIED = (
    "kind", "task_name", "task_instance", "task_data", "execution_time", "slot", "picked", "version", "created_version",
    "priority",
)  # fmt: skip
#: Rows in one write: the server is busy with them while the next ones are put into form.
BLOCK = 500

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_TASK_KIND = Kind.TASK.encode()
_NULL = b"\xff\xff\xff\xff"
#: Its instants are counted from here.
_EPOCH = to_micros(datetime(2000, 1, 1, tzinfo=UTC))

_length = Struct(">i").pack
_head = Struct(">hi").pack
#: Each with its length before it: two instants, a flag, two versions, a priority.
_tail = Struct(">iq iq i? iq iq ih").pack

#: By id. Here: the server would do it by its language's rules.
_by_id = itemgetter(0)


class Words:
    """By the server's clock; and a word at the commit, where somebody could hear it."""

    def __init__(self, dialect: Dialect, wake: timedelta | None) -> None:
        self._dialect, self._tasks, self.wake = dialect, dialect.tables.tasks, wake

    def say(self, connection: Any, word: str) -> None:
        """Say this at the commit."""
        if self.wake is not None:
            connection.execute(sa.select(self.notify(word)))

    def word(self) -> list[sa.ColumnElement[Any]]:
        """Of many that one transaction says, the server keeps one."""
        if self.wake is None:
            return []
        return [sa.case((self.is_soon(self.wake), self.notify(self._tasks.c.task_name)))]

    def is_soon(self, within: timedelta) -> sa.ColumnElement[bool]:
        """Polls might come too late for this row; one that is parked is not due for long."""
        latest = self.clock() + sa.literal(within, sa.Interval)
        return sa.and_(~self._tasks.c.picked, self._tasks.c.execution_time <= latest)

    def notify(self, word: Any) -> sa.ColumnElement[Any]:
        return sa.func.pg_notify(channel_of(self._dialect.tables.prefix), word)

    def may_delete(self) -> Any:
        """Said to the trigger of an adopted table, which keeps rows from being deleted by another program."""
        return sa.func.set_config("slotwise.delete", "on", True) == "on"

    def clock(self) -> Any:
        """The time, as a part of a statement that is kept."""
        override = self._dialect.clock.override()
        if override is None:
            return sa.func.statement_timestamp(type_=Instant)
        return sa.bindparam("now", override, type_=Instant)

    def time(self) -> dict[str, Any]:
        """The parameters of ``clock``."""
        override = self._dialect.clock.override()
        return {} if override is None else {"now": override}

    def due(self, is_at: bool) -> Any:
        return sa.bindparam("due", type_=Instant) if is_at else self.clock() + sa.bindparam("due", type_=sa.Interval)

    def told_due(self, connection: Any, when: When) -> dict[str, Any]:
        return {"due": when.delay if when.at is None else when.at, **self.time()}

    def born(self) -> Any:
        return sa.cast(sa.extract("epoch", self.clock()) * sa.literal_column("1000000"), sa.BigInteger)

    def cancel(self, connection: Any, key: Key) -> Status:
        """Race: a row that is claimed, or let go, while the statement waits for it is of neither kind: ask again."""
        statement, parameters = self._cancelling, named(key) | self.time()
        for _ in range(3):
            is_told, is_removed, was_there = connection.execute(statement, parameters).fetchone()
            if is_told or is_removed or not was_there:
                break
        if is_told:
            self.say(connection, ORDERS)
        return "running" if is_told else "cancelled" if is_removed else "gone"

    @cached_property
    def _cancelling(self) -> Any:
        tasks, mine = self._tasks, [*asked_key(self._tasks), *plain(self._tasks)]
        told = tasks.update().where(*mine, tasks.c.picked).values(cancel_requested=self.clock())
        removed = tasks.delete().where(*mine, ~tasks.c.picked, self.may_delete())
        rows = [one.returning(tasks.c.picked).cte() for one in (told, removed)]
        counts = [sa.select(sa.func.count()).select_from(row).scalar_subquery() for row in rows]
        return sa.select(*counts, sa.select(sa.func.count()).select_from(tasks).where(*mine).scalar_subquery())


class WholeChunks:
    """Each in one statement."""

    def __init__(self, dialect: Dialect, rows: TaskStatements, words: Words) -> None:
        self._dialect, self._tasks = dialect, dialect.tables.tasks
        self._rows, self._words = rows, words
        self._statements: dict[tuple[Any, ...], Any] = {}

    def put_many(self, connection: Any, name: str, wanted: Sequence[Wanted], if_exists: IfExists) -> BulkResult:
        """One statement."""
        scheduled = self._put_chunk(connection, name, wanted, if_exists)
        return BulkResult(scheduled=scheduled, exists=len(wanted) - scheduled)

    def _put_chunk(self, connection: Any, name: str, wanted: Sequence[Wanted], if_exists: IfExists | None) -> int:
        """How many it has scheduled; None: all, or else it fails. Ids are sorted: two chunks that meet in several of
        them cannot deadlock.
        """
        kind, parameters = _asked(sorted(wanted, key=_by_id))
        # The caller knows whom to tell: nothing has to come back.
        counts = self._words.wake is None and if_exists in (None, "raise", "keep")
        statement = self._kept(("chunk", if_exists, *kind), lambda: self._put_all(if_exists, *kind, counts=counts))
        found = connection.execute(statement, {"name": name, **parameters, **self._words.time()})
        scheduled: int = found.rowcount if counts else found.fetchone()[0]
        return scheduled

    def _put_all(self, if_exists: IfExists | None, dues: str, ranks: bool, *, counts: bool) -> Any:
        insert = self._dialect.insert(self._tasks).from_select(COPIED, self._asked_rows(dues, ranks))
        if if_exists is not None:
            insert = self._rows.inserting(if_exists, insert)
        if counts:
            return insert.execution_options(preserve_rowcount=True)
        soon = [] if self._words.wake is None else [self._words.is_soon(self._words.wake).label("soon")]
        put = insert.returning(self._tasks.c.picked, *soon).cte("put")
        word = [sa.case((sa.func.bool_or(put.c.soon), self._words.notify(_TASK)))] if soon else []
        return sa.select(sa.func.count().filter(~put.c.picked), *word).select_from(put)

    def _asked_rows(self, dues: str, ranks: bool) -> Any:
        """Ids and data travel as one text each, which the server takes apart: an array of texts costs the driver more
        than the rows cost the server. No id has a control character.
        """
        columns: dict[str, tuple[Any, Any]] = {
            "instance": (sa.Text, sa.func.string_to_array(sa.bindparam("ids", type_=sa.Text), "\n")),
            "data": (sa.Text, sa.func.string_to_array(sa.bindparam("all_data", type_=sa.Text), ",", "")),
        }
        if dues == "many":
            columns["due"] = (Instant, sa.bindparam("dues", type_=ARRAY(Instant)))
            columns["delay"] = (sa.Interval, sa.bindparam("delays", type_=ARRAY(sa.Interval)))
        if ranks:
            columns["priority"] = (sa.SmallInteger, sa.bindparam("ranks", type_=ARRAY(sa.SmallInteger)))
        titles = [sa.column(title, kind) for title, (kind, _) in columns.items()]
        arrays = [array for _, array in columns.values()]
        asked = sa.func.unnest(*arrays).table_valued(*titles, name="asked").render_derived()
        now = self._words.clock()
        born = sa.select(self._words.born()).scalar_subquery()  # computed once, and not for each row
        due = sa.func.coalesce(asked.c.due, now + asked.c.delay) if dues == "many" else self._words.due(dues == "at")
        priority = asked.c.priority if ranks else sa.bindparam("rank", type_=sa.SmallInteger)
        data = sa.func.decode(asked.c.data, "hex")
        return sa.select(_KIND, _TASK, asked.c.instance, data, due, due, sa.false(), born, born, priority)

    def put_new(self, connection: Any, name: str, wanted: Sequence[Wanted], *, copy: bool = False) -> None:
        """One statement, which fails as a whole. Race: of two that put the same id, the second waits for the first
        one's commit, and fails then.
        """
        with _saying_what_is_taken():
            if copy:
                self._copy(connection, name, wanted, copy_into)
            else:
                self._put_chunk(connection, name, wanted, None)

    def copy_ahead(self, connection: Any, name: str, wanted: Sequence[Wanted]) -> Callable[[], None] | None:
        """Behind a pooler it is a transaction, which must not stay open."""
        if connection.connection.driver_connection.autocommit:
            return _saying_what_is_taken()(self._copy(connection, name, wanted, copy_ahead))
        self.put_new(connection, name, wanted, copy=True)
        return None

    def _copy(self, connection: Any, name: str, wanted: Sequence[Wanted], write: Callable[[Any, str, Any], T]) -> T:
        asked = self._kept(("now",), lambda: sa.select(self._words.clock()))
        (now,) = connection.execute(asked, self._words.time()).fetchone()
        table = postgresql.dialect().identifier_preparer.format_table(self._tasks)  # type: ignore[no-untyped-call]
        statement = f"COPY {table} ({', '.join(COPIED)}) FROM STDIN (FORMAT binary)"
        answer = write(connection, statement, partial(blocks, name, sorted(wanted, key=_by_id), now))
        wake = self._words.wake
        if wake is not None and any((one.when.at or now + one.when.delay) <= now + wake for one in wanted):
            self._words.say(connection, name)
        return answer

    def taken(self, connection: Any, name: str, ids: Sequence[str]) -> list[str]:
        among = self._tasks.c.task_instance == sa.any_(sa.literal(ids, ARRAY(sa.Text)))
        return taken(connection, self._tasks, name, among)

    def _kept(self, shape: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """The statement of this shape, made when it is first asked for: that takes longer than to run it."""
        if (found := self._statements.get(shape)) is None:
            found = self._statements[shape] = make()
        return found


@contextmanager
def _saying_what_is_taken() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(error, IntegrityError) or getattr(error, "sqlstate", None) == "23505":
            raise Taken from error
        raise


_KIND: sa.ColumnElement[str] = sa.literal_column(f"'{Kind.TASK}'", sa.Text)
_TASK: sa.ColumnElement[str] = sa.bindparam("name", type_=sa.Text)


def _asked(wanted: Sequence[Wanted]) -> tuple[tuple[str, bool], dict[str, Any]]:
    """Which values differ from row to row, and the values: what is the same for all of them is given once."""
    first = wanted[0]
    parameters: dict[str, Any] = {
        "ids": "\n".join([one.instance for one in wanted]),
        "all_data": ",".join(["" if one.data is None else one.data.hex() for one in wanted]),
    }
    if any(one.when is not first.when and one.when != first.when for one in wanted):
        dues = "many"
        parameters |= {"dues": [one.when.at for one in wanted], "delays": [one.when.delay for one in wanted]}
    else:
        dues = "delay" if first.when.at is None else "at"
        parameters["due"] = first.when.delay if first.when.at is None else first.when.at
    ranks = any(one.priority != first.priority for one in wanted)
    parameters["ranks" if ranks else "rank"] = [one.priority for one in wanted] if ranks else first.priority
    return (dues, ranks), parameters


def blocks(name: str, wanted: Sequence[Wanted], now: datetime, encoding: str) -> Iterator[bytes]:
    """The rows as they are written ``now``, in a client encoding that Python knows by this name."""
    born, written = to_micros(now), name.encode(encoding)
    head = _head(len(COPIED), len(_TASK_KIND)) + _TASK_KIND + _length(len(written)) + written
    usual, rank, tail = wanted[0].when, wanted[0].priority, _tail_of(wanted[0], now, born)
    yield _HEADER
    for first in range(0, len(wanted), BLOCK):
        parts: list[bytes] = []
        for row in wanted[first : first + BLOCK]:
            instance, data, when, priority, _ = row
            if when is not usual or priority != rank:
                usual, rank, tail = when, priority, _tail_of(row, now, born)
            id = instance.encode(encoding)
            if data is None:
                parts += (head, _length(len(id)), id, _NULL, tail)
            else:
                parts += (head, _length(len(id)), id, _length(len(data)), data, tail)
        yield b"".join(parts)
    yield _TRAILER


def _tail_of(row: Wanted, now: datetime, born: int) -> bytes:
    due = to_micros(row.when.at or now + row.when.delay) - _EPOCH
    return _tail(8, due, 8, due, 1, False, 8, born, 8, born, 2, row.priority)


#: How long calling it off may take, in seconds.
TO_CANCEL = 5.0


def copy_ahead(
    connection: sa.Connection, statement: str, blocks: Callable[[str], Iterable[bytes]]
) -> Callable[[], None]:
    """As ``copy_into``, on a connection of our own, in autocommit; what is returned waits, and raises what the server
    has found wrong.
    """
    driver: Any = connection.connection.driver_connection
    with ExitStack() as stack:
        cursor = stack.enter_context(driver.cursor())
        writer = _Writer(cursor)
        copy = stack.enter_context(cursor.copy(statement, writer=writer))
        for block in blocks("utf-8"):
            copy.write(block)
        writer.end()
        return stack.pop_all().close


class _Writer:
    """In the place of the driver's own: the end is told apart from the wait for the answer."""

    def __init__(self, cursor: Any) -> None:
        self._driver = cursor.connection
        self._connection = cursor.connection.pgconn
        self._usual = psycopg().copy.LibpqWriter(cursor)
        self.write = self._usual.write
        self._has_ended = False

    def end(self) -> None:
        """That was all."""
        while self._connection.put_copy_end() == 0:
            self._wait(selectors.EVENT_WRITE)
        self._has_ended = True
        while self._connection.flush():
            self._wait(selectors.EVENT_READ | selectors.EVENT_WRITE)
            self._connection.consume_input()

    def finish(self, error: BaseException | None = None) -> None:
        """Wait for the answer. Somebody interrupts this: it is called off, so that the connection goes on living."""
        if not self._has_ended:
            self._usual.finish(error)
            return
        try:
            results = self._answer()
        except Exception:
            raise
        except BaseException:
            self._driver.cancel_safe(timeout=TO_CANCEL)
            self._answer()
            raise
        failed = next((one for one in results if one.status != psycopg().pq.ExecStatus.COMMAND_OK), None)
        if failed is not None:
            raise psycopg().errors.error_from_result(failed, encoding=self._driver.info.encoding)

    def _answer(self) -> list[Any]:
        while self._connection.is_busy():
            self._wait(selectors.EVENT_READ)
            self._connection.consume_input()
        return list(iter(self._connection.get_result, None))

    def _wait(self, events: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection.socket, events)
            selector.select()
