"""The connections of locks in a database: opened when needed, and kept."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Generic

from slotwise import ConfigurationError, SlotwiseError
from slotwise.contrib.locks.errors import LockUnavailable
from slotwise.contrib.locks.lock_database import (
    Busy,
    C,
    LockDatabase,
    Rows,
    Values,
    shown,
)


class Connections(Generic[C]):
    """Up to ``size`` connections, opened when needed and kept."""

    def __init__(self, database: LockDatabase[C], size: int) -> None:
        self._database = database
        self._places = threading.BoundedSemaphore(size)
        self._mutex = threading.Lock()
        self._idle: list[C] = []
        self._inherited: list[C] = []
        self._pid = os.getpid()

    def run(
        self, statement: str, values: Values, *, check: bool = True
    ) -> tuple[Rows, bool]:
        """Run a statement; once more on a new connection if a kept one turns out to be dead.

        Return its rows, and whether it was repeated: the first attempt may have been carried out.
        Raise ConfigurationError for a failure that no repetition cures.
        """
        try:
            return self._run_or_repeat(statement, values, check)
        except (SlotwiseError, Busy):
            raise
        except Exception as error:
            cure = self._database.cure(error)
            if cure is None:
                raise
            reason = str(error).splitlines()[0].rstrip(": ")
            raise ConfigurationError(
                f"{shown(self._database.url)}: {reason}; {cure}"
            ) from error

    def _run_or_repeat(
        self, statement: str, values: Values, check: bool
    ) -> tuple[Rows, bool]:
        with self._place():
            connection = self._take()
            if connection is not None:
                try:
                    return self._run(connection, statement, values, check), False
                except TimeoutError:
                    raise
                except Exception:
                    if not self._database.is_broken(connection):
                        raise
                self.close()  # the server has gone away: so have the others
            return self._run(
                self._database.connect(), statement, values, check
            ), connection is not None

    def close(self) -> None:
        """Close the idle ones."""
        with self._mutex:
            idle = self._idle
            self._idle = []
        for connection in idle:
            with suppress(Exception):
                connection.close()

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(timeout=self._database.timeout.total_seconds()):
            raise LockUnavailable(
                f"all connections to {shown(self._database.url)} are busy"
            )
        try:
            yield
        finally:
            self._places.release()

    def _take(self) -> C | None:
        with self._mutex:
            if self._pid != os.getpid():
                # A forked child shares the parent's sockets: it must neither use nor close them.
                self._pid = os.getpid()
                self._inherited = self._idle
                self._idle = []
            return self._idle.pop() if self._idle else None

    def _run(self, connection: C, statement: str, values: Values, check: bool) -> Rows:
        try:
            if check:
                self._database.check(connection)
            rows = self._database.execute(connection, statement, values)
        finally:
            if self._database.is_broken(connection):
                connection.close()
            else:
                with self._mutex:
                    self._idle.append(connection)
        return rows
