"""Calls on the database: in the caller's transaction, or in one of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from slotwise.client.arguments import Receipt, refuse_a_slip, task_name
from slotwise.errors import InvalidJob, SchemaMissing
from slotwise.jobs.definition import Definition
from slotwise.model.records import Key
from slotwise.store.connect.caller_transaction import Result, joined, sqlalchemy_connection
from slotwise.store.connect.database_errors import in_its_letters, lacks_tables
from slotwise.store.dialects.task_statements import Status
from slotwise.store.queue.queue import Queue, queue_of

if TYPE_CHECKING:
    from slotwise.store.slots.store import Store


@contextmanager
def _in_words(store: Store, *, is_own: bool) -> Iterator[None]:
    """Raise SchemaMissing where the database, the caller's perhaps, has none of our tables; of a transaction of our own
    whatever else the driver raises as DatabaseProblem. What it raises in the caller's is the caller's to know.
    """
    try:
        with store.database.in_words() if is_own else nullcontext():
            yield
    except Exception as error:
        if not lacks_tables(error):
            raise
        raise SchemaMissing(
            f"the tables {store.tables.prefix}* are missing in this database; name another, or run: slotwise db upgrade"
        ) from error


class Calls:
    """What the commands of a client have in common."""

    def __init__(self, store: Callable[[], Store], wake: Callable[[], None] = lambda: None) -> None:
        self._make_store = store
        self._wake = wake

    def _command(
        self, connection: Any, key: Key, command: Callable[[Queue, Any], Status], word: str | None = None
    ) -> Receipt:
        with self._joining(connection, key.task_name, word=word) as (queue, own):
            status = command(queue, own)
        return Receipt(task=key.task_name, id=key.task_instance, status=status)

    @contextmanager
    def _joining(self, connection: Any, name: str, *, word: str | None = None) -> Iterator[tuple[Queue, Any]]:
        """The caller's transaction if there is one; else one of our own, for one statement, after which workers hear
        ``word``. Raises InvalidJob for a job's name.
        """
        store = self._make_store()
        if (known := store.definitions.get(name)) is not None and known.is_job:
            raise InvalidJob(f"{name!r} is a job, its schedule says when it runs; pass a one-time task")
        with _in_words(store, is_own=connection is None), in_its_letters(f"task {name!r}"):
            if connection is not None:
                yield queue_of(store.dialect, self._horizon), joined(connection, store.database.dialect_name, name)
                return
            with store.statement(word) as own:
                yield queue_of(store.dialect), own

    @contextmanager
    def _beside(self, connection: Any, store: Store, name: str) -> Iterator[Any]:
        """A connection of SQLAlchemy: the caller's, or one of our own."""
        with _in_words(store, is_own=connection is None), in_its_letters(f"task {name!r}"):
            if connection is not None:
                yield joined(sqlalchemy_connection(connection), store.database.dialect_name, name)
                return
            with store.transaction() as own:
                yield own

    def _known(self, task: Any) -> tuple[str, Definition | None]:
        """Its name, and what this process knows of it."""
        name, definitions = task_name(task), self._make_store().definitions
        if name not in definitions and isinstance(task, str):
            refuse_a_slip(name, (known for known, found in definitions.items() if not found.is_job))
        return name, definitions.get(name)

    @property
    def _horizon(self) -> timedelta | None:
        """Whatever is due within this time is told to all workers; None: nothing is."""
        settings = self._make_store().database.settings
        return settings.poll_interval if settings.wake_up else None

    def _done(self, connection: Any, result: Result, word: str | None = None) -> Result:
        """Wake workers, after a transaction of our own: ``word`` is for those in other processes."""
        if connection is None:
            self._wake()
            if word is not None:
                self._make_store().database.wake_ups.tell(word)
        return result
