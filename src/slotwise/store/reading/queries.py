"""Queries as text that reads alike on every database."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import sqlalchemy as sa

from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import HAS_SLOT, IS_TASK, RANK, TYPES, Tables
from slotwise.store.slots.store import Store

#: Rows of one page.
PAGE = 500
Entry = TypeVar("Entry")
#: A query for rows of a table.
Statement: TypeAlias = "sa.Select[tuple[object, ...]]"
#: Where a query has no limit: a database may refuse a LIMIT that is null.
NO_LIMIT = 2**31 - 1
#: Columns of results that no table has.
_MORE = dict.fromkeys(("last", "since", "silent_since"), Instant)


_NAMES = re.compile(r":(\w+)")
_INSTANT = Instant()
#: What SQLAlchemy takes for the type of a value: one object for all values of a kind.
Type: TypeAlias = "sa.types.TypeEngine[Any]"


@dataclass(frozen=True, slots=True)
class ReadTransaction:
    """A transaction in which the tables are read."""

    store: Store
    connection: sa.Connection

    @property
    def tables(self) -> Tables:
        return self.store.tables

    def now(self) -> datetime:
        """Return the database's time."""
        now: datetime = utc(self.store.dialect.now(self.connection))
        return now

    def rows(self, statement: sa.Executable) -> Sequence[sa.RowMapping]:
        """Return all rows of a statement."""
        return self.connection.execute(statement).mappings().all()

    def read(
        self, text: str, given: Mapping[str, object], **parts: str
    ) -> Sequence[sa.RowMapping]:
        """Return all rows of a query, with the types that the tables have for columns of these
        names.

        ``{tasks}`` and others stand for the tables, ``{f}`` for the schema of a function,
        ``{text}`` for the type of a CAST to text, and ``{name}`` for one of ``parts``; ``:name``
        is a parameter, a list for an IN.
        """
        words = _words(self.tables, self.connection.dialect) | parts
        kinds = tuple((name, *_kind(value)) for name, value in given.items())
        query, names = _query(text.format(**words), kinds)
        values = {name: given[name] for name in names}
        return self.connection.execute(query, values).mappings().all()


@contextmanager
def reading(store: Store) -> Iterator[ReadTransaction]:
    with store.transaction() as connection:
        yield ReadTransaction(store, connection)


def read(
    store: Store, text: str, given: Mapping[str, object], **parts: str
) -> Sequence[sa.RowMapping]:
    """Return all rows of a query, as ``ReadTransaction.read``, in a transaction of its own."""
    with reading(store) as at:
        return at.read(text, given, **parts)


def _kind(value: object) -> tuple[bool, Type]:
    """Return whether a parameter is a list, and the type of its values."""
    is_list = isinstance(value, list)
    one = value[0] if isinstance(value, list) and value else value
    return is_list, _INSTANT if isinstance(one, datetime) else sa.literal(one).type


@lru_cache(maxsize=500)
def _query(
    text: str, kinds: tuple[tuple[str, bool, Type], ...]
) -> tuple[sa.Executable, frozenset[str]]:
    """Return a query and the names of its parameters. To make one costs more than most databases
    need to answer it.
    """
    named = frozenset(_NAMES.findall(text))
    bound = [
        sa.bindparam(name, type_=kind, expanding=is_list)
        for name, is_list, kind in kinds
        if name in named
    ]
    query = sa.text(text).bindparams(*bound).columns(**_MORE, **TYPES)
    return query, frozenset(one.key for one in bound)


@lru_cache(maxsize=16)
def _words(tables: Tables, database: sa.Dialect) -> dict[str, str]:
    quote = database.identifier_preparer
    names = (
        "tasks",
        "slots",
        "gaps",
        "attempts",
        "workers",
        "controls",
        "calendars",
        "starts",
        "counts",
        "deploys",
        "worker_history",
        "pauses",
        "checkpoints",
    )
    return {
        **{name: quote.format_table(getattr(tables, name)) for name in names},
        "f": "pg_catalog." if database.name == "postgresql" else "",
        "text": "char" if database.name == "mysql" else "text",
        "has_slot": HAS_SLOT,
        "is_task": IS_TASK,
        "rank": RANK,
    }


# -- listings are read page by page, as they are consumed -----------------------------------------


def paged(
    limit: int | None, page: Callable[[int, Entry | None], list[Entry]]
) -> Iterator[Entry]:
    """Yield up to ``limit`` lines; ``page`` returns the next ones, after the last line of the page
    before.
    """
    last: Entry | None = None
    while limit is None or limit > 0:
        size = PAGE if limit is None else min(limit, PAGE)
        found = page(size, last)
        yield from found
        if len(found) < size:
            return
        last = found[-1]
        limit = None if limit is None else limit - len(found)
