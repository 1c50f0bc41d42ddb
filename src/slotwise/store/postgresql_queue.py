"""The queue's commands on PostgreSQL: one statement each, chunks by unnest or COPY.

A statement sees the database as it was when it began, except where it meets a row that somebody else has just
written: there it waits, and sees that row as it is now. Where a command looks at two kinds of rows (held and waiting
ones), a row may thus change its kind between both looks; such a command is asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, timedelta
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import ARRAY

from slotwise.execution import Key
from slotwise.sequel import IfExists, Wanted, When
from slotwise.store.dialect import Dialect
from slotwise.store.joining import copy_into
from slotwise.store.puts import Tally
from slotwise.store.queue import Queue
from slotwise.store.queue_rows import Status
from slotwise.store.types import Instant, to_micros
from slotwise.store.wakeups import ORDERS, channel_of

_PUT = (
    "task_name", "task_instance", "task_data", "execution_time", "slot", "picked", "version", "first_version",
    "priority",
)  # fmt: skip


class PostgresQueue(Queue):
    """Whole chunks; and a cancellation in one look."""

    def put_many(self, connection: Any, name: str, wanted: Sequence[Wanted], if_exists: IfExists) -> Tally:
        """One statement. Ids are sorted: two chunks that meet in several of them cannot deadlock."""
        wanted = sorted(wanted, key=attrgetter("instance"))  # here: the server would do it by its language's rules
        insert = self._dialect.insert(self._tasks).from_select(_PUT, self._rows(name, wanted))
        match if_exists:
            case "replace":
                insert = self._or_replace(insert)
            case "reschedule":
                insert = self._or_move(insert)
            case _:
                insert = insert.on_conflict_do_nothing()
                if self._wake is None:  # the caller knows whom to tell: nothing has to come back
                    scheduled = connection.execute(insert.execution_options(preserve_rowcount=True)).rowcount
                    return Tally(scheduled=scheduled, exists=len(wanted) - scheduled)
        soon = [] if self._wake is None else [self._is_soon(self._wake).label("soon")]
        put = insert.returning(self._tasks.c.picked, *soon).cte("put")
        word = [sa.case((sa.func.bool_or(put.c.soon), self._notify(name)))] if soon else []
        statement = sa.select(sa.func.count().filter(~put.c.picked), *word).select_from(put)
        scheduled = connection.execute(statement).fetchone()[0]
        return Tally(scheduled=scheduled, exists=len(wanted) - scheduled)

    def _rows(self, name: str, wanted: Sequence[Wanted]) -> Any:
        source = _asked(wanted)
        now, first = self._now(None), wanted[0]
        born = sa.select(self._born(now)).scalar_subquery()  # computed once, and not for each row
        due = (
            self._due(now, first.when)
            if "due" not in source.c
            else sa.func.coalesce(source.c.due, now + source.c.delay)
        )
        priority = source.c.priority if "priority" in source.c else sa.literal(first.priority)
        data = sa.func.decode(source.c.data, "hex")
        columns = [sa.literal(name), source.c.instance, data, due, due, sa.false(), born, born, priority]
        return sa.select(*columns)

    def copy(self, connection: Any, name: str, wanted: Sequence[Wanted]) -> None:
        (now,) = connection.execute(sa.select(self._now(None))).fetchone()
        born, tails = str(to_micros(now)), dict[tuple[When, int], str]()
        for when, priority in {(one.when, one.priority) for one in wanted}:
            due = (when.at or now + when.delay).astimezone(UTC).isoformat()
            tails[when, priority] = f"{due}\t{due}\tf\t{born}\t{born}\t{priority}\n"
        head = _escaped(name)
        lines = [
            f"{head}\t{_escaped(one.instance)}\t{_hex(one.data)}\t{tails[one.when, one.priority]}" for one in wanted
        ]
        table = postgresql.dialect().identifier_preparer.format_table(self._tasks)  # type: ignore[no-untyped-call]
        copy_into(connection, f"COPY {table} ({', '.join(_PUT)}) FROM STDIN", "".join(lines).encode())
        if self._wake is not None and any((one.when.at or now + one.when.delay) <= now + self._wake for one in wanted):
            self.say(connection, name)

    def cancel(self, connection: Any, key: Key) -> Status:
        """Race: a row that is claimed, or let go, while the statement waits for it is of neither kind: ask again."""
        tasks, mine = self._tasks, [*self._at(key), *self._plain()]
        told = tasks.update().where(*mine, tasks.c.picked).values(cancel_requested=self._now(None))
        removed = tasks.delete().where(*mine, ~tasks.c.picked, self._may_delete())
        rows = [one.returning(tasks.c.picked).cte() for one in (told, removed)]
        counts = [sa.select(sa.func.count()).select_from(row).scalar_subquery() for row in rows]
        there = sa.select(sa.func.count()).select_from(tasks).where(*mine).scalar_subquery()
        for _ in range(3):
            is_told, is_removed, was_there = connection.execute(sa.select(*counts, there)).fetchone()
            if is_told or is_removed or not was_there:
                break
        if is_told:
            self.say(connection, ORDERS)
        return "running" if is_told else "cancelled" if is_removed else "gone"

    def say(self, connection: Any, word: str) -> None:
        if self._wake is not None:
            connection.execute(sa.select(self._notify(word)))

    def _word(self) -> list[sa.ColumnElement[Any]]:
        """Of many that one transaction says, the server keeps one."""
        if self._wake is None:
            return []
        return [sa.case((self._is_soon(self._wake), self._notify(self._tasks.c.task_name)))]

    def _is_soon(self, within: timedelta) -> sa.ColumnElement[bool]:
        """Polls might come too late for this row; one that is parked is not due for long."""
        latest = self._due(self._now(None), When(None, within))
        return sa.and_(~self._tasks.c.picked, self._tasks.c.execution_time <= latest)

    def _notify(self, word: Any) -> sa.ColumnElement[Any]:
        return sa.func.pg_notify(channel_of(self._dialect.tables.prefix), word)

    def _may_delete(self) -> Any:
        """Said to the trigger of an adopted table, which keeps rows from being deleted by another program."""
        return sa.func.set_config("slotwise.delete", "on", True) == "on"

    def _now(self, connection: Any) -> Any:
        override = self._dialect.clock.override()
        return sa.func.statement_timestamp(type_=Instant) if override is None else sa.literal(override, Instant)

    def _due(self, now: Any, when: When) -> Any:
        return sa.literal(when.at, Instant) if when.at is not None else now + sa.literal(when.delay, sa.Interval)

    def _born(self, now: Any) -> Any:
        return sa.cast(sa.extract("epoch", now) * 1_000_000, sa.BigInteger)


def queue_of(dialect: Dialect, wake: timedelta | None = None) -> Queue:
    """The commands in the words of this database; ``wake`` as for a Queue."""
    return (PostgresQueue if dialect.name == "postgresql" else Queue)(dialect, wake)


def _asked(wanted: Sequence[Wanted]) -> Any:
    """The rows as a table: what is the same for all of them is left out.

    Arrays of texts cost the driver more than the rows cost the server: ids and data travel as one text each, which
    the server takes apart. No id has a control character.
    """
    first = wanted[0]
    ids = "\n".join([one.instance for one in wanted])
    data = ",".join(["" if one.data is None else one.data.hex() for one in wanted])
    columns: dict[str, tuple[Any, Any]] = {
        "instance": (sa.Text, sa.func.string_to_array(sa.literal(ids), "\n")),
        "data": (sa.Text, sa.func.string_to_array(sa.literal(data), ",", "")),
    }
    if any(one.when != first.when for one in wanted):
        columns["due"] = (Instant, sa.literal([one.when.at for one in wanted], ARRAY(Instant)))
        columns["delay"] = (sa.Interval, sa.literal([one.when.delay for one in wanted], ARRAY(sa.Interval)))
    if any(one.priority != first.priority for one in wanted):
        columns["priority"] = (sa.SmallInteger, sa.literal([one.priority for one in wanted], ARRAY(sa.SmallInteger)))
    unnested = sa.func.unnest(*(array for _, array in columns.values()))
    titles = [sa.column(title, kind) for title, (kind, _) in columns.items()]
    return unnested.table_valued(*titles, name="asked").render_derived()


def _hex(data: bytes | None) -> str:
    return "\\N" if data is None else f"\\\\x{data.hex()}"


def _escaped(text: str) -> str:
    """For COPY; control characters cannot stand in names and ids."""
    return text.replace("\\", "\\\\") if "\\" in text else text
