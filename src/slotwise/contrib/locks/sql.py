"""Locks in ShedLock's table, on PostgreSQL or SQLite.

The statements for PostgreSQL are those of ShedLock 7.9 under ``usingDbTime()``, so that Java and
Python exclude each other. Two conditions are added to the acquisition: a repetition after a lost
reply finds its own lock, and ``locked_at``, which is the token, rises strictly, also where the
column keeps milliseconds only.

Race: ``CURRENT_TIMESTAMP`` is the start of the transaction, so each statement is a transaction of
its own. A statement that waited for a row compares it with its own, earlier time, and is refused
rather than admitted.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, Final

from slotwise import InvalidSetting
from slotwise.contrib.locks.connections import Connections
from slotwise.contrib.locks.lock_database import (
    Busy,
    LockDatabase,
    Values,
    given_url,
    shown,
)
from slotwise.contrib.locks.postgresql import PostgreSQLLocks
from slotwise.contrib.locks.provider import Grant, named_duration, record_of
from slotwise.contrib.locks.sqlite import SQLiteLocks

TABLE: Final = """\
CREATE TABLE IF NOT EXISTS {table}(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL,
    locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))"""

_TABLE_NAME: Final = re.compile(
    r"[A-Za-z_][A-Za-z0-9_]{0,62}(?:\.[A-Za-z_][A-Za-z0-9_]{0,62})?"
)
#: For acquisitions, and apart from them for those who hold a lock: a crowd that waits delays no
#: renewal.
_CONNECTIONS: Final = 4


class SQLLocks:
    """Locks in the table ``shedlock`` of a PostgreSQL or SQLite database; a lock provider.

    ``url`` has the forms of slotwise's database address. ``table`` may have a schema:
    ``my_schema.shedlock``. A call that takes longer than ``timeout`` fails. The connections are
    its own and in autocommit; it opens them at the first use, at most eight. Raises
    InvalidSetting.
    """

    def __init__(
        self, url: str, *, table: str = "shedlock", timeout: timedelta | str = "5s"
    ) -> None:
        address = given_url("SQLLocks", url)
        if not isinstance(table, str) or not _TABLE_NAME.fullmatch(table):
            raise InvalidSetting(
                f"table={table!r:.80} is not a plain name; use letters, digits, _ and one dot"
            )
        span = named_duration("SQLLocks: timeout", timeout)
        if span < timedelta(milliseconds=10):
            raise InvalidSetting(
                f"timeout={timeout!r} is too short; write at least 10ms"
            )
        self._address = shown(address)
        kind = (
            SQLiteLocks if address.get_backend_name() == "sqlite" else PostgreSQLLocks
        )
        self._database: LockDatabase[Any] = kind(address, table, span)
        self._for_attempts = Connections[Any](self._database, _CONNECTIONS)
        self._for_holders = Connections[Any](self._database, _CONNECTIONS)

    def __repr__(self) -> str:
        return f"SQLLocks({self._address!r})"

    def create_table(self) -> None:
        """Create ShedLock's table with ShedLock's statement, unless it exists.

        Raise ConfigurationError if that is not possible, and LockUnavailable if the server does
        not answer.
        """
        with record_of(self).answering():
            self._for_attempts.run(
                TABLE.format(table=self._database.table), {}, check=False
            )

    def acquire(self, name: str, holder: str, at_most_for: timedelta) -> Grant | None:
        """Take the lock if it is free, has expired, or has this holder already. Return None if
        another one has it.
        """
        values = self._database.values(name=name, holder=holder, span=at_most_for)
        try:
            rows, _ = self._for_attempts.run(self._database.acquire, values)
        except Busy:
            return None
        if not rows:
            return None
        locked_at = self._database.micros(rows[0][0])
        return Grant(name=name, holder=holder, token=locked_at, locked_at=locked_at)

    def extend(self, grant: Grant, at_most_for: timedelta) -> bool:
        """Set the end to now plus this duration, if the grant's holder has the lock and it has not
        expired.
        """
        rows, _ = self._for_holders.run(
            self._database.extend, self._values(grant, at_most_for)
        )
        return bool(rows)

    def is_held(self, grant: Grant) -> bool:
        """Return whether the grant's holder has the lock and it has not expired."""
        rows, _ = self._for_holders.run(
            self._database.held, self._values(grant, timedelta(0))
        )
        return bool(rows)

    def release(self, grant: Grant, at_least_for: timedelta) -> bool:
        """End the lock now, or this long after its acquisition if that is later. Return False if
        it has another holder.

        After a lost reply, a lock that has another holder by now was released by the first
        attempt.
        """
        rows, was_repeated = self._for_holders.run(
            self._database.release, self._values(grant, at_least_for)
        )
        return bool(rows) or was_repeated

    def close(self) -> None:
        """Close its connections; the next call opens new ones."""
        self._for_attempts.close()
        self._for_holders.close()

    def _values(self, grant: Grant, span: timedelta) -> Values:
        return self._database.values(
            name=grant.name, holder=grant.holder, span=span, locked_at=grant.locked_at
        )
