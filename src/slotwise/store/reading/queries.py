"""Queries as text that reads alike on every database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.tables import (
    HAS_SLOT,
    IS_TASK,
    OF_INSTANCES,
    RANK,
    TYPES,
    Tables,
)
from slotwise.store.slots.store import Store

#: Where a query has no limit: a database may refuse a LIMIT that is null.
NO_LIMIT = 2**31 - 1
#: Columns of results that no table has.
_MORE = dict.fromkeys(("last", "hour", "since"), Instant)


def read(
    connection: sa.Connection,
    store: Store,
    text: str,
    given: Mapping[str, object],
    **parts: str,
) -> Sequence[sa.RowMapping]:
    """Return all rows of a query, with the types that the tables have for columns of these names.

    ``{tasks}`` and others stand for the tables, ``{f}`` for the schema of a function, and
    ``{name}`` for one of ``parts``; ``:name`` is a parameter, a list for an IN.
    """
    words = _words(store.tables, connection.dialect) | parts
    bound = [_parameter(name, value) for name, value in given.items()]
    query = sa.text(text.format(**words)).bindparams(*bound)
    return connection.execute(query.columns(**_MORE, **TYPES)).mappings().all()


def _parameter(name: str, value: object) -> sa.BindParameter[Any]:
    if isinstance(value, datetime):
        return sa.bindparam(name, value, Instant)
    return sa.bindparam(name, value, expanding=isinstance(value, list | tuple))


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
    )
    return {
        **{name: quote.format_table(getattr(tables, name)) for name in names},
        "f": "pg_catalog." if database.name == "postgresql" else "",
        "has_slot": HAS_SLOT,
        "is_task": IS_TASK,
        "of_instances": OF_INSTANCES,
        "rank": RANK,
    }
