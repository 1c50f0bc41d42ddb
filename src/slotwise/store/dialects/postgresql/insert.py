"""New rows on PostgreSQL: one, a chunk by unnest, a chunk by COPY, each in one statement.

A statement is made once for each shape of call, with the values as parameters: to put one together takes longer than
to run it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.exc import IntegrityError

from slotwise.model.records import IfExists, Key, Wanted, When
from slotwise.store.connect.caller_transaction import copy_into
from slotwise.store.connect.notifications import channel_of
from slotwise.store.dialects.postgresql.copy_format import COPIED, blocks
from slotwise.store.dialects.postgresql.pipelined_copy import copy_ahead
from slotwise.store.queue.insert import BulkResult, Puts, Taken
from slotwise.store.queue.queue_rows import QueueRows, Status, named
from slotwise.store.schema.column_types import Instant

T = TypeVar("T")

#: By id. Here: the server would do it by its language's rules.
_by_id = itemgetter(0)


class PostgresRows(QueueRows):
    """By the server's clock; and a word at the commit, where somebody could hear it."""

    def say(self, connection: Any, word: str) -> None:
        """Say this at the commit."""
        if self._wake is not None:
            connection.execute(sa.select(self._notify(word)))

    def _word(self) -> list[sa.ColumnElement[Any]]:
        """Of many that one transaction says, the server keeps one."""
        if self._wake is None:
            return []
        return [sa.case((self._is_soon(self._wake), self._notify(self._tasks.c.task_name)))]

    def _is_soon(self, within: timedelta) -> sa.ColumnElement[bool]:
        """Polls might come too late for this row; one that is parked is not due for long."""
        latest = self._due(self._clock(), When(None, within))
        return sa.and_(~self._tasks.c.picked, self._tasks.c.execution_time <= latest)

    def _notify(self, word: Any) -> sa.ColumnElement[Any]:
        return sa.func.pg_notify(channel_of(self._dialect.tables.prefix), word)

    def _may_delete(self) -> Any:
        """Said to the trigger of an adopted table, which keeps rows from being deleted by another program."""
        return sa.func.set_config("slotwise.delete", "on", True) == "on"

    def _now(self, connection: Any) -> Any:
        override = self._dialect.clock.override()
        return sa.func.statement_timestamp(type_=Instant) if override is None else sa.literal(override, Instant)

    def _clock(self) -> Any:
        """As ``_now``, for a statement that is kept."""
        override = self._dialect.clock.override()
        if override is None:
            return sa.func.statement_timestamp(type_=Instant)
        return sa.bindparam("now", override, type_=Instant)

    def _time(self) -> dict[str, Any]:
        """What ``_clock`` is told."""
        override = self._dialect.clock.override()
        return {} if override is None else {"now": override}

    def _asked_due(self, is_at: bool) -> Any:
        return sa.bindparam("due", type_=Instant) if is_at else self._clock() + sa.bindparam("due", type_=sa.Interval)

    def _told_due(self, connection: Any, when: When) -> dict[str, Any]:
        return {"due": when.delay if when.at is None else when.at, **self._time()}

    def _due(self, now: Any, when: When) -> Any:
        return sa.literal(when.at, Instant) if when.at is not None else now + sa.literal(when.delay, sa.Interval)

    def _born(self, now: Any) -> Any:
        return sa.cast(sa.extract("epoch", now) * sa.literal_column("1000000"), sa.BigInteger)


class PostgresPuts(PostgresRows, Puts):
    """Whole chunks."""

    def put(self, connection: Any, name: str, wanted: Wanted, if_exists: IfExists) -> Status:
        is_at, waits = wanted.when.at is not None, wanted.waits_for > 0
        statement = self._kept(("put", if_exists, is_at, waits), lambda: self._put_one(if_exists, is_at, waits))
        parameters = {"data": wanted.data, "rank": wanted.priority, **({"count": wanted.waits_for} if waits else {})}
        key = Key(name, wanted.instance)
        return self._put(connection, statement, key, **named(key), **parameters, **self._told_due(None, wanted.when))

    def _put_one(self, if_exists: IfExists, is_at: bool, waits: bool) -> Any:
        columns = self._tasks.c
        row = self._row(
            sa.bindparam("name"), sa.bindparam("instance"), sa.bindparam("data"), self._asked_due(is_at),
            self._born(self._clock()), sa.bindparam("rank", type_=sa.SmallInteger),
            sa.bindparam("count", type_=sa.Integer) if waits else 0,
        )  # fmt: skip
        insert = self._or(if_exists, self._dialect.insert(self._tasks).values(**row))
        return insert.returning(columns.picked, *self._word())

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
        counts = self._wake is None and if_exists in (None, "raise", "keep")
        statement = self._kept(("chunk", if_exists, *kind), lambda: self._put_all(if_exists, *kind, counts=counts))
        found = connection.execute(statement, {"name": name, **parameters, **self._time()})
        scheduled: int = found.rowcount if counts else found.fetchone()[0]
        return scheduled

    def _put_all(self, if_exists: IfExists | None, dues: str, ranks: bool, *, counts: bool) -> Any:
        insert = self._dialect.insert(self._tasks).from_select(COPIED, self._rows(dues, ranks))
        if if_exists is not None:
            insert = self._or(if_exists, insert)
        if counts:
            return insert.execution_options(preserve_rowcount=True)
        soon = [] if self._wake is None else [self._is_soon(self._wake).label("soon")]
        put = insert.returning(self._tasks.c.picked, *soon).cte("put")
        word = [sa.case((sa.func.bool_or(put.c.soon), self._notify(_TASK)))] if soon else []
        return sa.select(sa.func.count().filter(~put.c.picked), *word).select_from(put)

    def _rows(self, dues: str, ranks: bool) -> Any:
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
        now = self._clock()
        born = sa.select(self._born(now)).scalar_subquery()  # computed once, and not for each row
        due = sa.func.coalesce(asked.c.due, now + asked.c.delay) if dues == "many" else self._asked_due(dues == "at")
        priority = asked.c.priority if ranks else sa.bindparam("rank", type_=sa.SmallInteger)
        data = sa.func.decode(asked.c.data, "hex")
        return sa.select(_TASK, asked.c.instance, data, due, due, sa.false(), born, born, priority)

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
        (now,) = connection.execute(self._kept(("now",), lambda: sa.select(self._clock())), self._time()).fetchone()
        table = postgresql.dialect().identifier_preparer.format_table(self._tasks)  # type: ignore[no-untyped-call]
        statement = f"COPY {table} ({', '.join(COPIED)}) FROM STDIN (FORMAT binary)"
        answer = write(connection, statement, partial(blocks, name, sorted(wanted, key=_by_id), now))
        if self._wake is not None and any((one.when.at or now + one.when.delay) <= now + self._wake for one in wanted):
            self.say(connection, name)
        return answer

    def _among(self, ids: Sequence[str]) -> sa.ColumnElement[bool]:
        return self._tasks.c.task_instance == sa.any_(sa.literal(ids, ARRAY(sa.Text)))


@contextmanager
def _saying_what_is_taken() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(error, IntegrityError) or getattr(error, "sqlstate", None) == "23505":
            raise Taken from error
        raise


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
