"""Queries as text that reads alike on every database."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.tables import (
    HAS_SLOT,
    IS_TASK,
    RANK,
    TYPES,
    Tables,
)
from slotwise.store.slots.store import Store

#: Where a query has no limit: a database may refuse a LIMIT that is null.
NO_LIMIT = 2**31 - 1
#: Columns of results that no table has.
_MORE = dict.fromkeys(("last", "since", "silent_since"), Instant)


_NAMES = re.compile(r":(\w+)")


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
    query = sa.text(text.format(**words))
    named = set(_NAMES.findall(query.text))
    bound = [_parameter(name, value) for name, value in given.items() if name in named]
    query = query.bindparams(*bound)
    return connection.execute(query.columns(**_MORE, **TYPES)).mappings().all()


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
    )
    return {
        **{name: quote.format_table(getattr(tables, name)) for name in names},
        "f": "pg_catalog." if database.name == "postgresql" else "",
        "has_slot": HAS_SLOT,
        "is_task": IS_TASK,
        "rank": RANK,
    }
