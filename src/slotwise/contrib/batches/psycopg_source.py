"""Rows of a select that is written in SQL, on connections of psycopg."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from slotwise import ConfigurationError
from slotwise.contrib.batches.keys import Key
from slotwise.contrib.batches.source import Taken, skips
from slotwise.contrib.batches.walk import Places, Wanted

if TYPE_CHECKING:
    import psycopg

    Connections: TypeAlias = Callable[
        [], AbstractContextManager[psycopg.Connection[object]]
    ]
    AsyncConnections: TypeAlias = Callable[
        [], AbstractAsyncContextManager[psycopg.AsyncConnection[object]]
    ]

#: A row by the names of its columns.
DictRow: TypeAlias = dict[str, object]
Values: TypeAlias = dict[str, object]

#: What the batches add themselves, and what may not stand at the outer level of a select.
_OURS: Final = re.compile(
    r"\b(order\s+by|limit|offset|for\s+(no\s+key\s+)?update)\b", re.I
)
_NESTED: Final = re.compile(r"\([^()]*\)|'[^']*'|--[^\n]*")
_COLUMN: Final = re.compile(r"-?[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class TextSelect:
    """A select as text, with named placeholders for its values: ``WHERE status = %(status)s``."""

    text: str
    key: Sequence[str]
    #: Columns by name, those with a minus downwards; the key is among them.
    order: Sequence[str]
    by_cursor: bool
    locks: bool
    values: Mapping[str, object] = field(default_factory=dict)

    def to_take(self, wanted: Wanted, *, locks: bool = True) -> tuple[bytes, Values]:
        """Return the statement that locks and returns rows, and its values."""
        values: Values = {**self.values, "slotwise_limit": wanted.limit}
        conditions = []
        if wanted.only is not None:
            conditions.append(self._is(wanted.only, "only", values))
        elif wanted.after is not None:
            conditions.append(self._is_behind(wanted.after, values))
        for place, key in enumerate(wanted.without):
            conditions.append(f"NOT ({self._is(key, f'not{place}', values)})")
        where = " AND ".join(conditions) or "true"
        order = ", ".join(
            f"{_name(one)} DESC" if one.startswith("-") else _name(one)
            for one in self.order
        )
        lock = ""
        if self.locks and locks:
            lock = " FOR UPDATE SKIP LOCKED" if skips(self, wanted) else " FOR UPDATE"
        text = (
            f"SELECT * FROM ({self.text}) AS slotwise_rows WHERE {where} "
            f"ORDER BY {order} LIMIT %(slotwise_limit)s{lock}"
        )
        return text.encode(), values

    def to_count(self) -> tuple[bytes, Values]:
        text = f"SELECT pg_catalog.count(*) FROM ({self.text}) AS slotwise_rows"
        return text.encode(), {**self.values}

    def to_count_nulls(self) -> tuple[bytes, Values] | None:
        if not self.by_cursor:
            return None
        is_null = " OR ".join(f"{_name(one)} IS NULL" for one in self.order)
        text = (
            f"SELECT pg_catalog.count(*) FROM (SELECT 1 FROM ({self.text}) AS slotwise_rows "
            f"WHERE {is_null} LIMIT 1) AS slotwise_nulls"
        )
        return text.encode(), {**self.values}

    @property
    def prepare(self) -> bool | None:
        """Whether the driver may prepare it. A prepared ``SELECT *`` fails on each use after a
        column has been added; None: as often as the driver does.
        """
        return False if "*" in self.text else None

    @property
    def order_text(self) -> str:
        return ", ".join(self.order)

    def taken(self, rows: Sequence[DictRow]) -> Taken[DictRow]:
        names = [one.removeprefix("-") for one in self.order]
        orders = _values(rows, names)
        keys = orders if names == [*self.key] else _values(rows, self.key)
        return rows, Places(keys, orders)

    def _is(self, key: Key, word: str, values: Values) -> str:
        parts = []
        for place, (name, value) in enumerate(zip(self.key, key, strict=True)):
            values[f"slotwise_{word}_{place}"] = value
            parts.append(f"{_name(name)} = %(slotwise_{word}_{place})s")
        return " AND ".join(parts)

    def _is_behind(self, after: Key, values: Values) -> str:
        slots = []
        for place, value in enumerate(after):
            values[f"slotwise_after_{place}"] = value
            slots.append(f"%(slotwise_after_{place})s")
        names = [_name(one) for one in self.order]
        downs = {one.startswith("-") for one in self.order}
        if len(downs) == 1:
            sign = "<" if downs == {True} else ">"
            return f"({', '.join(names)}) {sign} ({', '.join(slots)})"
        found = "false"
        for one, name, slot in reversed([*zip(self.order, names, slots, strict=True)]):
            sign = "<" if one.startswith("-") else ">"
            found = f"({name} {sign} {slot} OR ({name} = {slot} AND {found}))"
        return found


def text_select(
    select: str,
    values: Mapping[str, object] | None,
    *,
    key: object,
    order: object,
    by_cursor: bool,
    locks: bool,
) -> TextSelect:
    """Return the select with its key and order. Raises ConfigurationError."""
    outer = select
    while (inner := _NESTED.sub(" ", outer)) != outer:
        outer = inner
    if (found := _OURS.search(outer)) is not None:
        raise ConfigurationError(
            f"select contains {found.group()!r}; leave it out: order=, size= and the batches "
            "add it"
        )
    keys = _names("key", key)
    if not keys:
        raise ConfigurationError(
            'select is text, so key= must name columns that are unique together: key="id"'
        )
    ordered = _names("order", order)
    known = {one.removeprefix("-") for one in ordered}
    down = "-" if ordered and ordered[-1].startswith("-") else ""
    full = [*ordered, *(f"{down}{name}" for name in keys if name not in known)]
    return TextSelect(select, keys, full, by_cursor, locks, values or {})


def _names(word: str, given: object) -> list[str]:
    if given is None:
        return []
    found = [*given] if isinstance(given, list | tuple) else [given]
    for one in found:
        if not isinstance(one, str) or not _COLUMN.fullmatch(one):
            raise ConfigurationError(
                f"{word}={one!r:.60}: write names of columns of the select, such as "
                '"id" or "-created_at"'
            )
    return cast("list[str]", found)


def _name(column: str) -> str:
    return f'slotwise_rows."{column.removeprefix("-")}"'


@dataclass(frozen=True)
class PsycopgSource:
    """Rows as dicts; ``connections`` is a pool's method ``connection``, or one that connects."""

    statement: TextSelect
    connections: Connections

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[object]]:
        with self.connections() as connection, connection.transaction():
            yield connection

    def take(
        self, connection: psycopg.Connection[object], wanted: Wanted
    ) -> Taken[DictRow]:
        return self.statement.taken(
            self._rows(connection, self.statement.to_take(wanted))
        )

    def is_left(self, connection: psycopg.Connection[object], wanted: Wanted) -> bool:
        statement = self.statement.to_take(wanted, locks=False)
        return bool(self._rows(connection, statement))

    def count(self, connection: psycopg.Connection[object]) -> int:
        return _number(self._rows(connection, self.statement.to_count()))

    def count_nulls(self, connection: psycopg.Connection[object]) -> int:
        wanted = self.statement.to_count_nulls()
        return 0 if wanted is None else _number(self._rows(connection, wanted))

    def _rows(
        self,
        connection: psycopg.Connection[object],
        statement: tuple[bytes, Values],
    ) -> list[DictRow]:
        from psycopg.rows import dict_row

        with connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(
                *statement, prepare=self.statement.prepare
            ).fetchall()


@dataclass(frozen=True)
class AsyncPsycopgSource:
    """The same on async connections."""

    statement: TextSelect
    connections: AsyncConnections

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[psycopg.AsyncConnection[object]]:
        async with self.connections() as connection, connection.transaction():
            yield connection

    async def take(
        self, connection: psycopg.AsyncConnection[object], wanted: Wanted
    ) -> Taken[DictRow]:
        rows = await self._rows(connection, self.statement.to_take(wanted))
        return self.statement.taken(rows)

    async def is_left(
        self, connection: psycopg.AsyncConnection[object], wanted: Wanted
    ) -> bool:
        statement = self.statement.to_take(wanted, locks=False)
        return bool(await self._rows(connection, statement))

    async def count(self, connection: psycopg.AsyncConnection[object]) -> int:
        return _number(await self._rows(connection, self.statement.to_count()))

    async def count_nulls(self, connection: psycopg.AsyncConnection[object]) -> int:
        wanted = self.statement.to_count_nulls()
        if wanted is None:
            return 0
        return _number(await self._rows(connection, wanted))

    async def _rows(
        self,
        connection: psycopg.AsyncConnection[object],
        statement: tuple[bytes, Values],
    ) -> list[DictRow]:
        from psycopg.rows import dict_row

        async with connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(*statement, prepare=self.statement.prepare)
            return await cursor.fetchall()


def _values(rows: Sequence[DictRow], names: Sequence[str]) -> list[Key]:
    if len(names) == 1:
        (name,) = names
        return [(row[name],) for row in rows]
    return [*map(itemgetter(*names), rows)]


def _number(rows: Sequence[DictRow]) -> int:
    (value,) = rows[0].values()
    assert isinstance(value, int)
    return value
