"""SQLAlchemy's connection over one of psycopg, synchronous or asynchronous, that a caller lends.

Its transaction stays the caller's: nothing here commits it, rolls it back, or closes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from slotwise.store.connect.caller_transaction import Joined
from slotwise.store.connect.exact_names import qualified

Row = tuple[object, ...]
#: Statements as compiled, for all such connections.
_COMPILED: dict[object, object] = {}


@contextmanager
def lent(joined: Joined) -> Iterator[sa.Connection]:
    """Yield a connection of SQLAlchemy; errors stay those of psycopg."""
    pool = StaticPool(
        lambda: _Lent(joined),  # type: ignore[arg-type]
        reset_on_return=None,
        dialect=_dialect(),
    )
    engine = sa.Engine(pool, _dialect(), sa.URL.create("postgresql+psycopg"))
    with engine.connect() as connection:
        try:
            yield connection.execution_options(compiled_cache=_COMPILED)
        except DBAPIError as error:
            if error.orig is None:
                raise
            raise error.orig from None  # its own text says it all


@lru_cache(maxsize=1)
def _dialect() -> PGDialect_psycopg:
    """Return a dialect that asks the server nothing: its answers would cost a caller's call."""
    import psycopg  # late: such a connection has loaded it

    made = PGDialect_psycopg(dbapi=psycopg)  # type: ignore[no-untyped-call]
    made.statement_compiler = qualified(made.statement_compiler)  # type: ignore[assignment]
    return made


class _Lent:
    """What SQLAlchemy takes for the driver's connection."""

    def __init__(self, joined: Joined) -> None:
        self._joined = joined

    def __getattr__(self, name: str) -> object:
        return getattr(self._joined.driver, name)

    def cursor(self) -> _Cursor:
        return _Cursor(self._joined)

    def commit(self) -> None:
        """The caller commits."""

    def rollback(self) -> None:
        """The caller rolls back."""

    def close(self) -> None:
        """The caller closes."""


class _Cursor:
    """A cursor that has read all rows of its statement."""

    def __init__(self, joined: Joined) -> None:
        self._wait = joined.wait
        self._inner = joined.cursor()
        self._rows = deque[Row]()

    @property
    def description(self) -> object:
        return self._inner.description

    @property
    def rowcount(self) -> int:
        return self._inner.rowcount

    def execute(
        self,
        statement: str,
        values: Sequence[object] | Mapping[str, object] | None = None,
    ) -> None:
        self._wait(self._inner.execute(statement.encode(), values))
        self._rows.clear()
        if self._inner.description:
            self._rows.extend(self._wait(self._inner.fetchall()))

    def executemany(
        self, statement: str, values: Sequence[Mapping[str, object]]
    ) -> None:
        execute: Callable[..., object] = self._inner.executemany
        self._wait(execute(statement.encode(), values))

    def fetchone(self) -> Row | None:
        return self._rows.popleft() if self._rows else None

    def fetchall(self) -> list[Row]:
        found = list(self._rows)
        self._rows.clear()
        return found

    def close(self) -> None:
        close: Callable[[], object] = self._inner.close
        self._wait(close())
