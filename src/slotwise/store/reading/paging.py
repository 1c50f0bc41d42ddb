"""Listings are read page by page, as they are consumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, TypeVar

import sqlalchemy as sa

from slotwise.store.slots.store import Store

#: Rows of one page.
PAGE = 500

Entry = TypeVar("Entry")
#: A query for rows of a table.
Statement: TypeAlias = "sa.Select[tuple[object, ...]]"


def rows(store: Store, statement: sa.Executable) -> Sequence[sa.RowMapping]:
    """Return all rows of a statement, read in a transaction of its own."""
    with store.transaction() as connection:
        return connection.execute(statement).mappings().all()


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
