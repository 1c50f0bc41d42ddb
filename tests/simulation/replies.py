"""A connection that breaks between COMMIT and its answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.exc import DBAPIError

from slotwise.spi import Database


class Replies:
    """Loses the answer to a commit of a database, or the commit itself, when it is told to.

    In memory a commit is a call, which returns or raises; but a claim and a mark, which believe in
    nothing that was not acknowledged, must not care why.
    """

    def __init__(self, database: Database) -> None:
        dialect: Any = database.main.dialect
        self._commit, self._error = (
            dialect.do_commit,
            dialect.loaded_dbapi.OperationalError,
        )
        dialect.do_commit = self._lose_or_commit
        self.is_lossless = database.in_memory
        #: What happens to the next commit: None, "reply" or "request".
        self._next: str | None = None

    @contextmanager
    def lost(self, what: str | None) -> Iterator[list[DBAPIError]]:
        """The next commit in here loses ``what``; the error is caught, and told in the list."""
        told: list[DBAPIError] = []
        self._next = what
        try:
            yield told
        except DBAPIError as error:
            if what is None:
                raise
            told.append(error)
        finally:
            self._next = None

    @contextmanager
    def spared(self) -> Iterator[None]:
        """No commit in here is the one that gets lost."""
        kept, self._next = self._next, None
        try:
            yield
        finally:
            self._next = kept

    def _lose_or_commit(self, connection: Any) -> None:
        what, self._next = self._next, None
        if what == "request":
            connection.rollback()
        else:
            self._commit(connection)
        if what is not None:
            raise self._error(f"the {what} of a COMMIT was lost")
