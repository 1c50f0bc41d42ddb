"""What a database must offer for locks in ShedLock's table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from sqlalchemy import URL

from slotwise import ConfigurationError, InvalidSetting
from slotwise.spi import database_url, hide_password

Rows: TypeAlias = Sequence[Sequence[object]]
Values: TypeAlias = Mapping[str, object]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


class _Closable(Protocol):
    def close(self) -> None: ...


#: A connection of the driver.
C = TypeVar("C", bound=_Closable)


def given_url(taker: str, url: object) -> URL:
    """Return the address. Raise InvalidSetting; ``taker`` is what was called with it."""
    if not isinstance(url, str) or not url.strip():
        raise InvalidSetting(
            f"{taker}({url!r:.40}): pass a database URL, e.g. postgresql://user@host/database"
        )
    return database_url(url)


def quoted(table: str) -> str:
    """Return the name as a server reads it without quotes, in lower case; with them, it may be a
    keyword.
    """
    return ".".join(f'"{part}"' for part in table.lower().split("."))


def shown(url: URL) -> str:
    """Return the address without its password."""
    return hide_password(url.render_as_string(hide_password=True))


class Busy(Exception):
    """Another transaction has the row locked, or won a race for it."""


class LockDatabase(ABC, Generic[C]):
    """What differs between the databases. Every statement returns a row if it found or changed
    one.
    """

    acquire: str
    extend: str
    held: str
    release: str

    def __init__(self, url: URL, table: str, timeout: timedelta) -> None:
        self.url = url
        self.name = table
        self.table = quoted(table)
        self.timeout = timeout
        #: Of the columns, once they are known.
        self.types: dict[str, str] = {}
        self._is_checked = False

    @abstractmethod
    def connect(self) -> C:
        """Open a connection in autocommit."""

    @abstractmethod
    def execute(self, connection: C, statement: str, values: Values) -> Rows:
        """Run a statement. Raise Busy where another transaction is in the way."""

    @abstractmethod
    def columns(self, connection: C) -> dict[str, str]:
        """Return the table's columns with their types; none if there is no table."""

    @abstractmethod
    def is_broken(self, connection: C) -> bool:
        """Return whether the connection cannot be used any more."""

    @abstractmethod
    def values(
        self, *, name: str, holder: str, span: timedelta, locked_at: int = 0
    ) -> Values:
        """Return the arguments of a statement."""

    @abstractmethod
    def micros(self, locked_at: object) -> int:
        """Return a ``locked_at`` that a statement returned, in microseconds since 1970."""

    @abstractmethod
    def cure(self, error: Exception) -> str | None:
        """Return the cure of a failure that no repetition cures; None for an outage."""

    def check(self, connection: C) -> None:
        """Reject a table that ShedLock's statements cannot use. Looks once. Raise
        ConfigurationError.
        """
        if self._is_checked:
            return
        found = self.columns(connection)
        if missing := {"name", "lock_until", "locked_at", "locked_by"} - found.keys():
            lack = f"has no column {min(missing)}" if found else "does not exist"
            raise ConfigurationError(
                f"table {self.name} {lack} in {shown(self.url)}; create it with "
                "create_table() or ShedLock's statement"
            )
        for column in ("lock_until", "locked_at"):
            if "with time zone" in found[column]:
                raise ConfigurationError(
                    f"column {column} of table {self.name} is {found[column]}: "
                    "ShedLock writes UTC without a zone; "
                    f"run ALTER TABLE {self.table} ALTER COLUMN {column} TYPE timestamp "
                    f"USING {column} AT TIME ZONE 'UTC'"
                )
        self.types = found
        self._is_checked = True
