"""Exactly once, also when the reply to a COMMIT is lost.

Race: the connection breaks between COMMIT and its answer. Doing the work again under the fence would find
nothing and call a settled claim lost; so a new connection asks what became of the transaction.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol, TypeAlias, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from slotwise.jobs.policies import growing_pauses
from slotwise.store.connect.database import Database, is_transient

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Work in a transaction; returns the transaction's id (None: nothing was written) and its result.
Work: TypeAlias = Callable[[sa.Connection], "tuple[str | None, T]"]


class KnowsCommits(Protocol):
    """A dialect, as far as it knows what became of a transaction."""

    def committed(self, connection: sa.Connection, transaction_id: str) -> bool | None:
        """Return whether it was committed, or None while it runs."""


def commit_surely(database: Database, dialect: KnowsCommits, work: Work[T]) -> T:
    """Do ``work`` in a transaction of its own. Raises only if it certainly did not commit."""
    connection = database.main.connect()
    try:
        transaction = connection.begin()
        transaction_id, result = work(connection)
        try:
            transaction.commit()
        except DBAPIError:
            connection.invalidate()
            if transaction_id is None or not _was_committed(database, dialect, transaction_id):
                raise
    finally:
        connection.close()
    return result


def _was_committed(database: Database, dialect: KnowsCommits, transaction_id: str) -> bool:
    """Ask until the database answers."""
    for pause in growing_pauses(timedelta(milliseconds=50), timedelta(seconds=2)):
        try:
            with database.main.connect() as connection:
                verdict = dialect.committed(connection, transaction_id)
        except (DBAPIError, PoolTimeout) as error:
            if not is_transient(error):
                return False  # a failover forgot the transaction: the fence decides, and the ledger tells
            verdict = None
        if verdict is not None:
            told = "committed" if verdict else "rolled back"
            logger.warning("the reply to a commit was lost; the database says: %s", told)
            return verdict
        time.sleep(pause.total_seconds())
    raise AssertionError("growing_pauses never ends")
