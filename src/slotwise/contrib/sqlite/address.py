"""Addresses of SQLite: a file, or a database in memory, for the standard library's driver."""

from __future__ import annotations

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from slotwise import InvalidSetting

DRIVER = "sqlite+pysqlite"
_EXAMPLE = "write sqlite:///file.db"


def sqlite_url(text: str) -> URL:
    """Return an address of SQLite as a URL. Raise `InvalidSetting`, which never quotes it."""
    try:
        url = make_url(text)
    except ArgumentError:
        raise _not_understood("it is not a file path") from None
    if url.host or url.username:
        raise _not_understood(
            "a file takes three slashes, sqlite:///file.db, and an absolute path four"
        )
    return url.set(drivername=DRIVER)


def _not_understood(why: str) -> InvalidSetting:
    return InvalidSetting(f"the database address is not understood: {why}; {_EXAMPLE}")
