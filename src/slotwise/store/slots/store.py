"""One database with its dialect, what this process knows of the tasks in it, and what an engine asks of it.

Every transaction is a ``with`` block in this room, holds no user code, and ends before anything else begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.jobs.definition import Definition
from slotwise.model.clock import Clock, DatabaseClock
from slotwise.model.records import Row
from slotwise.schedules import Schedule, parse_schedule
from slotwise.store.connect.database import Database
from slotwise.store.dialects.port import Dialect
from slotwise.store.dialects.postgresql.dialect import PostgreSQL
from slotwise.store.schema.tables import Tables, tables
from slotwise.store.slots.claims import Claims
from slotwise.store.slots.due import Due
from slotwise.store.slots.held_rows import HeldRows
from slotwise.store.slots.row_warnings import RowWarnings
from slotwise.store.slots.settlements import Settlements

_DIALECTS: dict[str, Callable[[Tables, Clock], Dialect]] = {PostgreSQL.name: PostgreSQL}


class Store:
    """Its parts: ``due``, ``claims``, ``held`` rows and ``settlements``.

    ``keep`` is false for a rehearsal: all of its transactions are rolled back.
    """

    def __init__(
        self,
        database: Database,
        definitions: Mapping[str, Definition],
        *,
        clock: Clock | None = None,
        poll: timedelta | None = None,
        keep: bool = True,
    ) -> None:
        self.database = database
        self.definitions = definitions
        #: How often this process looks for what is due, at least.
        self.poll = database.settings.poll_interval if poll is None else poll
        self.tables = tables(database.settings.table_prefix, database.settings.schema, database.dialect_name)
        self.dialect = _dialect(database.dialect_name)(self.tables, clock or DatabaseClock())
        self.warnings = RowWarnings(self.dialect.clock.elapsed)
        self._keep = keep
        self.due = Due(self)
        self.claims = Claims(self)
        self.held = HeldRows(self)
        self.settlements = Settlements(self)

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """A transaction on the ordinary pool."""
        with self.database.main.connect() as connection, connection.begin() as transaction:
            yield connection
            if not self._keep:
                transaction.rollback()

    @contextmanager
    def statement(self, word: str | None = None) -> Iterator[sa.Connection]:
        """For one statement, which is a transaction by itself. What fails after it takes nothing back. ``word``: to
        wake workers with.

        Race: its reply may be lost though it was carried out, and nobody can ask what became of it, as of a COMMIT. So
        it is for reading; for claims: of one that nobody knows of, the heartbeat learns from the row; and for commands
        on tasks, where it is the same with a COMMIT: who wants to be sure gives an id, and asks again.
        """
        with self.database.alone() if word is None else self.database.telling(word) as connection:
            yield connection

    def now(self) -> datetime:
        """The one clock's time."""
        with self.statement() as connection:
            return self.dialect.now(connection)

    def schedule_of(self, row: Row) -> Schedule:
        """The schedule that decides: the row's text, never the code's. Raises InvalidSchedule."""
        return parse_schedule(row.schedule or "-")


def _dialect(name: str) -> Callable[[Tables, Clock], Dialect]:
    if name not in _DIALECTS:
        from slotwise.store.dialects.sqlite import SQLite  # late, as its driver

        _DIALECTS[name] = SQLite
    return _DIALECTS[name]
