"""Rows of a select of SQLAlchemy: objects by a Session, rows by an engine; both also async."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import UnaryExpression

from slotwise import ConfigurationError
from slotwise.contrib.batches.keys import Key
from slotwise.contrib.batches.source import Taken, skips
from slotwise.contrib.batches.walk import Places, Wanted

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

R = TypeVar("R")
#: A column, or one with ``.desc()``.
Column: TypeAlias = "sa.ColumnElement[object] | orm.InstrumentedAttribute[object]"
Condition: TypeAlias = sa.ColumnElement[bool]


@dataclass(frozen=True, slots=True)
class Ordered:
    """A column of the order, and its direction."""

    column: sa.ColumnElement[object]
    is_down: bool = False

    @property
    def clause(self) -> sa.ColumnElement[object]:
        return self.column.desc() if self.is_down else self.column.asc()

    def behind(self, value: sa.ColumnElement[object]) -> Condition:
        return self.column < value if self.is_down else self.column > value


@dataclass(frozen=True)
class Statement(Generic[R]):
    """A select with its key and its order, which contains the key."""

    select: sa.Select[R]
    key: Sequence[sa.ColumnElement[object]]
    order: Sequence[Ordered]
    #: The positions of the key in the order.
    places_of_key: Sequence[int]
    #: Whether rows are walked by a cursor; else locked ones are skipped.
    by_cursor: bool
    locks: bool = True
    #: Whether rows are the only entity or column of the select, as a Session returns them.
    is_of_one: bool = False
    #: Returns the values of the order of a row; None: they are selected a second time.
    order_of: Callable[[object], Key] | None = None
    _statements: dict[tuple[bool | None, bool], sa.Select[R]] = field(
        default_factory=dict
    )

    def to_take(
        self, wanted: Wanted, *, locks: bool = True
    ) -> tuple[sa.Select[R], dict[str, object]]:
        """Return the statement that locks and returns rows, and its values."""
        values: dict[str, object] = {"slotwise_limit": wanted.limit}
        skipping = skips(self, wanted) if self.locks and locks else None
        is_behind = wanted.after is not None and wanted.only is None
        found = self._made(skipping, is_behind)
        if wanted.after is not None and is_behind:
            values |= {_after(n): value for n, value in enumerate(wanted.after)}
        if wanted.only is not None:
            found = found.where(self._is(wanted.only))
        if wanted.without:
            found = found.where(self._is_none_of(wanted.without))
        return found, values

    def _made(self, skipping: bool | None, is_behind: bool) -> sa.Select[R]:
        """Return a statement that is made once, since it takes SQLAlchemy as long as a short
        batch takes the database.
        """
        known = self._statements.get((skipping, is_behind))
        if known is not None:
            return known
        found = self.select.order_by(None).limit(sa.bindparam("slotwise_limit"))
        found = found.order_by(*(one.clause for one in self.order))
        if is_behind:
            found = found.where(self._is_behind())
        if skipping is not None:
            found = found.with_for_update(skip_locked=skipping, of=self._table)
        if self.order_of is None:
            own = [
                column.label(f"slotwise_{place}")
                for place, column in enumerate(self._columns)
            ]
            found = cast("sa.Select[R]", found.add_columns(*own))
        self._statements[skipping, is_behind] = found
        return found

    def to_count(self) -> sa.Select[int]:
        rows = self.select.order_by(None).with_only_columns(*self.key).subquery()
        return sa.select(sa.func.count()).select_from(rows)

    def to_count_nulls(self) -> sa.Select[int] | None:
        """Return the statement that counts up to one row with NULL in the order; None if there can
        be none.
        """
        doubtful = [one.column.is_(None) for one in self.order if _may_be_null(one)]
        if not doubtful or not self.by_cursor:
            return None
        rows = self.select.order_by(None).with_only_columns(*self.key)
        first = rows.where(sa.or_(*doubtful)).limit(1).subquery()
        return sa.select(sa.func.count()).select_from(first)

    def taken(self, result: sa.Result[R]) -> Taken[R]:
        """Part what the statement has returned into rows of the user's and places."""
        if self.order_of is None:
            return self._with_added(result.all())
        rows = result.scalars().all() if self.is_of_one else result.all()
        orders = [*map(self.order_of, rows)]
        return cast("Sequence[R]", rows), self._places(orders)

    def _with_added(self, rows: Sequence[sa.Row[R]]) -> Taken[R]:
        """Part rows from the values that were selected in addition."""
        width = len(self.order)
        found = [row[0] for row in rows] if self.is_of_one else rows
        orders = [tuple(row[-width:]) for row in rows]
        return cast("Sequence[R]", found), self._places(orders)

    def _places(self, orders: Sequence[Key]) -> Places:
        keys = orders
        if [*self.places_of_key] != [*range(len(self.order))]:
            chosen = self.places_of_key
            keys = [tuple([order[place] for place in chosen]) for order in orders]
        return Places(keys, orders)

    @property
    def order_text(self) -> str:
        return ", ".join(str(one.clause) for one in self.order)

    @property
    def _columns(self) -> list[sa.ColumnElement[object]]:
        return [one.column for one in self.order]

    @property
    def _table(self) -> sa.FromClause | None:
        """Return the table whose rows are locked: that of the key."""
        found: sa.FromClause | None = getattr(self.key[0], "table", None)
        return found

    def _is(self, key: Key) -> Condition:
        pairs = zip(self.key, key, strict=True)
        return sa.and_(*(column == value for column, value in pairs))

    def _is_none_of(self, keys: Sequence[Key]) -> Condition:
        if len(self.key) == 1:
            return self.key[0].not_in([key[0] for key in keys])
        return sa.not_(sa.or_(*map(self._is, keys)))

    def _is_behind(self) -> Condition:
        """Compare the whole order: as a row where all columns go one way, which an index serves;
        else column by column.
        """
        directions = {one.is_down for one in self.order}
        after = [
            sa.bindparam(_after(place), type_=column.type)
            for place, column in enumerate(self._columns)
        ]
        if len(directions) == 1 and len(after) > 1:
            columns, values = sa.tuple_(*self._columns), sa.tuple_(*after)
            return columns < values if directions == {True} else columns > values
        found: Condition = sa.false()
        for one, value in reversed([*zip(self.order, after, strict=True)]):
            found = sa.or_(one.behind(value), sa.and_(one.column == value, found))
        return found


def _after(place: int) -> str:
    return f"slotwise_after_{place}"


def statement(
    select: sa.Select[R],
    *,
    key: object,
    order: object,
    by_cursor: bool,
    locks: bool,
    by_session: bool,
) -> Statement[R]:
    """Return the select with its key, by default the primary key, and its order, by default that
    of the select. Raises ConfigurationError.
    """
    _refuse_limit(select)
    keys = [_ordered(one).column for one in _listed(key)] or _primary_key(select)
    given = _listed(order) or _own_order(select)
    ordered = [_ordered(one) for one in given]
    is_down = ordered[-1].is_down if ordered else False
    for column in keys:
        if _position(column, ordered) is None:
            ordered.append(Ordered(column, is_down))
    places = [_position(column, ordered) or 0 for column in keys]
    is_of_one = by_session and len(select.column_descriptions) == 1
    order_of = _order_of(select, [one.column for one in ordered], by_session)
    return Statement(
        select, keys, ordered, places, by_cursor, locks, is_of_one, order_of
    )


def _refuse_limit(select: sa.Select[R]) -> None:
    if _part(select, "_limit_clause") is not None or _has_lock(select):
        raise ConfigurationError(
            "select has a limit or FOR UPDATE already; leave both out, size= and the batches "
            "add them"
        )


def _order_of(
    select: sa.Select[R], columns: Sequence[sa.ColumnElement[object]], by_session: bool
) -> Callable[[object], Key] | None:
    """Return a function that reads these columns of a row; None if the select lacks one."""
    if by_session and len(select.column_descriptions) == 1:
        return _by_attribute(select, columns)
    return _by_position(select, columns, by_session=by_session)


def _by_attribute(
    select: sa.Select[R], columns: Sequence[sa.ColumnElement[object]]
) -> Callable[[object], Key] | None:
    """Return a function that reads columns of an entity that the select loads with them."""
    entity = select.column_descriptions[0]["expr"]
    mapper = sa.inspect(entity, raiseerr=False)
    if not isinstance(mapper, orm.Mapper) or _part(select, "_with_options"):
        return None
    mapped = cast("Sequence[sa.Column[object]]", columns)
    try:
        found = [mapper.get_property_by_column(column) for column in mapped]
    except orm.exc.UnmappedColumnError:
        return None
    if any(one.deferred for one in found):
        return None
    names = [one.key for one in found]
    return _of_tuple(attrgetter(*names), len(names))


def _by_position(
    select: sa.Select[R],
    columns: Sequence[sa.ColumnElement[object]],
    *,
    by_session: bool,
) -> Callable[[object], Key] | None:
    """Return a function that reads columns of a row of a select that has them all."""
    if by_session and len(select.column_descriptions) != len(select.selected_columns):
        return None  # entities, each of which is one member of the row
    selected = [*select.selected_columns]
    if len({column.key for column in selected}) < len(selected):
        return None
    ordered = [Ordered(column) for column in selected]
    found = [_position(column, ordered) for column in columns]
    places = [place for place in found if place is not None]
    if len(places) < len(columns):
        return None
    read = cast("Callable[[object], object]", itemgetter(*places))
    return _of_tuple(read, len(places))


def _of_tuple(read: Callable[[object], object], width: int) -> Callable[[object], Key]:
    """Return ``read``, which of several values returns a tuple, so that it does of one too."""
    if width > 1:
        return cast("Callable[[object], Key]", read)
    return lambda row: (read(row),)


def _part(select: object, name: str) -> object:
    """Return a part of a select that SQLAlchemy has no public name for."""
    return getattr(select, name, None)


def _has_lock(select: object) -> bool:
    return _part(select, "_for_update_arg") is not None


def _own_order(select: object) -> list[object]:
    found = _part(select, "_order_by_clauses")
    return [*found] if isinstance(found, tuple) else []


def _position(
    column: sa.ColumnElement[object], ordered: Sequence[Ordered]
) -> int | None:
    for place, one in enumerate(ordered):
        if one.column is column or one.column.compare(column):
            return place
    return None


def _listed(given: object) -> list[object]:
    if given is None:
        return []
    return [*given] if isinstance(given, list | tuple) else [given]


def _ordered(given: object) -> Ordered:
    if isinstance(given, orm.attributes.QueryableAttribute):
        given = given.__clause_element__()
    if isinstance(given, UnaryExpression):
        if given.modifier is operators.desc_op:
            return Ordered(given.element, is_down=True)
        if given.modifier is operators.asc_op:
            return Ordered(given.element)
    elif isinstance(given, sa.ColumnElement):
        return Ordered(given)
    raise ConfigurationError(
        f"{str(given)!r:.60} is no column to order by; pass columns, or column.desc()"
    )


def _primary_key(select: sa.Select[R]) -> list[sa.ColumnElement[object]]:
    """Return the primary key of the first table of a select."""
    for table in select.get_final_froms():
        found: list[sa.ColumnElement[object]] = [*table.primary_key]
        if found:
            return found
    raise ConfigurationError(
        "select has no primary key to know a row by; pass columns that are unique together: "
        "key=table.c.id"
    )


def _may_be_null(one: Ordered) -> bool:
    return bool(getattr(one.column, "nullable", True))


# -- transactions ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class EngineSource(Generic[R]):
    """Rows, in transactions of an engine."""

    statement: Statement[R]
    engine: sa.Engine

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        with self.engine.begin() as connection:
            _lock_file(connection)
            yield connection

    def take(self, connection: sa.Connection, wanted: Wanted) -> Taken[R]:
        return self.statement.taken(
            connection.execute(*self.statement.to_take(wanted))
        )

    def is_left(self, connection: sa.Connection, wanted: Wanted) -> bool:
        rows = connection.execute(*self.statement.to_take(wanted, locks=False))
        return rows.first() is not None

    def count(self, connection: sa.Connection) -> int:
        return connection.execute(self.statement.to_count()).scalar_one()

    def count_nulls(self, connection: sa.Connection) -> int:
        wanted = self.statement.to_count_nulls()
        return 0 if wanted is None else connection.execute(wanted).scalar_one()


@dataclass(frozen=True)
class SessionSource(Generic[R]):
    """Objects, in a session for each batch."""

    statement: Statement[R]
    make: Callable[[], orm.Session]

    @contextmanager
    def transaction(self) -> Iterator[orm.Session]:
        with self.make() as session, session.begin():
            _lock_file(session.connection())
            yield session

    def take(self, session: orm.Session, wanted: Wanted) -> Taken[R]:
        return self.statement.taken(session.execute(*self.statement.to_take(wanted)))

    def is_left(self, session: orm.Session, wanted: Wanted) -> bool:
        rows = session.execute(*self.statement.to_take(wanted, locks=False))
        return rows.first() is not None

    def count(self, session: orm.Session) -> int:
        return session.execute(self.statement.to_count()).scalar_one()

    def count_nulls(self, session: orm.Session) -> int:
        wanted = self.statement.to_count_nulls()
        return 0 if wanted is None else session.execute(wanted).scalar_one()


@dataclass(frozen=True)
class AsyncEngineSource(Generic[R]):
    """Rows, in transactions of an async engine."""

    statement: Statement[R]
    engine: AsyncEngine

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        async with self.engine.begin() as connection:
            await connection.run_sync(_lock_file)
            yield connection

    async def take(self, connection: AsyncConnection, wanted: Wanted) -> Taken[R]:
        found = await connection.execute(*self.statement.to_take(wanted))
        return self.statement.taken(found)

    async def is_left(self, connection: AsyncConnection, wanted: Wanted) -> bool:
        rows = await connection.execute(*self.statement.to_take(wanted, locks=False))
        return rows.first() is not None

    async def count(self, connection: AsyncConnection) -> int:
        return (await connection.execute(self.statement.to_count())).scalar_one()

    async def count_nulls(self, connection: AsyncConnection) -> int:
        wanted = self.statement.to_count_nulls()
        if wanted is None:
            return 0
        return (await connection.execute(wanted)).scalar_one()


@dataclass(frozen=True)
class AsyncSessionSource(Generic[R]):
    """Objects, in an async session for each batch."""

    statement: Statement[R]
    make: Callable[[], AsyncSession]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSession]:
        async with self.make() as session, session.begin():
            await (await session.connection()).run_sync(_lock_file)
            yield session

    async def take(self, session: AsyncSession, wanted: Wanted) -> Taken[R]:
        found = await session.execute(*self.statement.to_take(wanted))
        return self.statement.taken(found)

    async def is_left(self, session: AsyncSession, wanted: Wanted) -> bool:
        rows = await session.execute(*self.statement.to_take(wanted, locks=False))
        return rows.first() is not None

    async def count(self, session: AsyncSession) -> int:
        return (await session.execute(self.statement.to_count())).scalar_one()

    async def count_nulls(self, session: AsyncSession) -> int:
        wanted = self.statement.to_count_nulls()
        return 0 if wanted is None else (await session.execute(wanted)).scalar_one()


def _lock_file(connection: sa.Connection) -> None:
    """On SQLite, which cannot lock rows, lock the file before rows are read.

    Race: two workers that read first could both process the same rows, for its driver begins no
    transaction before the first write.
    """
    if connection.dialect.name != "sqlite":
        return
    driver = connection.connection.driver_connection
    if driver is not None and not driver.in_transaction:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
