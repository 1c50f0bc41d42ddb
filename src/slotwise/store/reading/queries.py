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

        ``{tasks}`` and others stand for the tables, ``{f}`` for the schema of a function, and
        ``{name}`` for one of ``parts``; ``:name`` is a parameter, a list for an IN.
        """
        words = _words(self.tables, self.connection.dialect) | parts
        query = sa.text(text.format(**words))
        named = set(_NAMES.findall(query.text))
        bound = [
            _parameter(name, value) for name, value in given.items() if name in named
        ]
        query = query.bindparams(*bound)
        return self.rows(query.columns(**_MORE, **TYPES))


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


def _parameter(name: str, value: object) -> sa.BindParameter[Any]:
    one = value[0] if isinstance(value, list) and value else value
    kind = Instant if isinstance(one, datetime) else None
    return sa.bindparam(name, value, kind, expanding=isinstance(value, list))


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
    )
    return {
        **{name: quote.format_table(getattr(tables, name)) for name in names},
        "f": "pg_catalog." if database.name == "postgresql" else "",
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
