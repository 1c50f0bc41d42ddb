"""The transaction of a call: the caller's, or one of its own with the notification after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import sqlalchemy as sa

from slotwise.errors import DatabaseProblem, SchemaMissing
from slotwise.store.connect.caller_transaction import (
    Joinable,
    Result,
)
from slotwise.store.connect.database_errors import (
    in_callers_transaction,
    in_its_letters,
    lacks_tables,
    sqlstate,
)
from slotwise.store.connect.lent_connections import lent
from slotwise.store.queue.queue import Queue, queue_of

if TYPE_CHECKING:
    from slotwise.jobs.context import Connection
    from slotwise.store.slots.store import Store

Given = ParamSpec("Given")
Returned = TypeVar("Returned")
#: How often a call does its transaction, if the database rolls it back to end a deadlock, or
#: because a row has changed since the transaction read it, or refuses it before it starts work.
TRIES = 5
_ROLLED_BACK = ("40P01", "40001", "57P03")


def repeated(work: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """Do the single transaction of a call again, if it is our own and the database has rolled it
    back. A caller's raises an error of the driver, and is never repeated.
    """

    @wraps(work)
    def repeat(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        tries_left = TRIES
        while True:
            tries_left -= 1
            try:
                return work(*args, **kwargs)
            except DatabaseProblem as error:
                if not tries_left or sqlstate(error.__cause__) not in _ROLLED_BACK:
                    raise

    return repeat


class Transactions:
    """Joins the caller's ``connection``; without one, begins a transaction of its own.

    ``name``, of a task, is what errors name.
    """

    def __init__(self, store: Callable[[], Store], wake: Callable[[], None]) -> None:
        self._make_store = store
        self._wake = wake

    @property
    def horizon(self) -> timedelta | None:
        """Workers are notified of tasks that are due within this time; None: of none."""
        settings = self._make_store().database.settings
        return settings.poll_interval if settings.wake_up else None

    @contextmanager
    def joining(
        self,
        connection: Connection | None,
        name: str,
        word: str | None = None,
        *,
        surely: bool = False,
        reads: bool = False,
    ) -> Iterator[tuple[Queue, Joinable]]:
        """Yield the caller's transaction; else one for one statement, which is followed by the
        notification.

        ``surely``: if the reply to our commit is lost, the database is asked. That costs three
        more round trips. ``reads``: nothing is written, so the role may lack the right to.
        """
        store = self._make_store()
        with errors_of(store, name, is_own=connection is None):
            if connection is not None:
                queue = queue_of(store.dialect, self.horizon, store.at_insert)
                yield queue, store.installation.join(connection, name)
                return
            with self._own(store, word, surely=surely, reads=reads) as (queue, own):
                yield queue, own

    @contextmanager
    def _own(
        self, store: Store, word: str | None, *, surely: bool, reads: bool
    ) -> Iterator[tuple[Queue, sa.Connection]]:
        is_asked = surely and store.database.dialect_name == "postgresql"
        if reads or (not is_asked and inserts_alone(store)):
            with store.database.telling(word) as own:
                yield queue_of(store.dialect), own
            return
        # Hooks and rows commit together; then the statements notify workers.
        wake = self.horizon if store.at_insert else None
        with store.surely() as own:
            yield queue_of(store.dialect, wake, store.at_insert), own
        if word is not None and not store.at_insert:
            store.database.wake_ups.tell(word)

    @contextmanager
    def beside(
        self, connection: Connection | None, name: str
    ) -> Iterator[sa.Connection]:
        """Yield a SQLAlchemy connection: the caller's, or one of our own."""
        store = self._make_store()
        with errors_of(store, name, is_own=connection is None):
            if connection is None:
                with store.surely() as own:
                    yield own
                return
            outer = store.installation.join(connection, name)
            if isinstance(outer, sa.Connection):
                yield outer
                return
            with lent(outer) as own:
                yield own

    @repeated
    def carry_out(
        self,
        connection: Connection | None,
        name: str,
        work: Callable[[Queue, Joinable], Returned],
        word: str | None = None,
    ) -> Returned:
        """Do this work in one transaction, surely."""
        with self.joining(connection, name, word, surely=True) as (queue, own):
            return work(queue, own)

    def done(
        self, connection: Connection | None, result: Result, word: str | None = None
    ) -> Result:
        """Wake workers after a transaction of our own; ``word`` notifies those in other
        processes.
        """
        if connection is None:
            self._wake()
            if word is not None:
                self._make_store().database.wake_ups.tell(word)
        return result


def inserts_alone(store: Store) -> bool:
    """Return whether an insert of ours is a statement by itself: no hook, and no second statement
    of the dialect, shares a transaction with it.
    """
    return store.dialect.is_one_statement and not store.at_insert


@contextmanager
def errors_of(store: Store, name: str, *, is_own: bool) -> Iterator[None]:
    """Raise SchemaMissing without our tables, ConfigurationError for characters that the database
    cannot store.

    Other driver errors become DatabaseProblem in a transaction of our own, and stay as they are in
    the caller's.
    """
    try:
        yield
    except Exception as error:
        with (
            store.database.in_words() if is_own else in_callers_transaction(),
            in_its_letters(f"task {name!r}"),
        ):
            if not lacks_tables(error):
                raise
            prefix = store.tables.prefix
            raise SchemaMissing(
                f"the tables {prefix}* are missing in this database; name another, "
                "or run: slotwise db upgrade"
            ) from error
