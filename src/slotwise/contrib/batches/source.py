"""Where rows come from: a transaction of the user's for each batch, and the rows in it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from slotwise.contrib.batches.walk import Places, Wanted

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy as sa
    from sqlalchemy import orm
    from sqlalchemy.ext import asyncio as async_sa

    #: What ``ctx.guard`` takes; of Django, its wrapper passes for one of psycopg.
    SyncConnection: TypeAlias = (
        sa.Connection | orm.Session | psycopg.Connection[object]
    )
    AsyncConnection: TypeAlias = (
        async_sa.AsyncConnection
        | async_sa.AsyncSession
        | psycopg.AsyncConnection[object]
    )

R_co = TypeVar("R_co", covariant=True)
#: Rows as the handler gets them, and the place of each.
Taken: TypeAlias = tuple[Sequence[R_co], Places]


C = TypeVar("C")


class Source(Protocol[C, R_co]):
    """A select on a database of the user's."""

    def transaction(self) -> AbstractContextManager[C]:
        """Begin a transaction, which commits at the end, or rolls back on an error."""

    def take(self, connection: C, wanted: Wanted) -> Taken[R_co]:
        """Lock rows and return them."""

    def is_left(self, connection: C, wanted: Wanted) -> bool:
        """Whether such rows are there, locked or not."""

    def count(self, connection: C) -> int:
        """Return how many rows the select has now."""

    def count_nulls(self, connection: C) -> int:
        """Return 1 if a row has NULL in a column of the order, else 0."""


class AsyncSource(Protocol[C, R_co]):
    """The same, to be awaited."""

    def transaction(self) -> AbstractAsyncContextManager[C]: ...

    async def take(self, connection: C, wanted: Wanted) -> Taken[R_co]: ...

    async def is_left(self, connection: C, wanted: Wanted) -> bool: ...

    async def count(self, connection: C) -> int: ...

    async def count_nulls(self, connection: C) -> int: ...


class _Select(Protocol):
    @property
    def by_cursor(self) -> bool: ...


def skips(select: _Select, wanted: Wanted) -> bool:
    """Whether rows are skipped that another transaction has locked. A cursor would lose them, and
    of a row that is tried again it must be known whether it still matches: these wait.
    """
    return not select.by_cursor and wanted.only is None
