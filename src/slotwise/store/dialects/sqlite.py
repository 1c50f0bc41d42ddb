"""SQLite (3.35 or newer): one host, one writer at a time, the host's clock is the database's."""

from __future__ import annotations

from sqlalchemy.dialects.sqlite import insert

from slotwise.store.dialects.dialect import Dialect


class SQLite(Dialect):
    """The portable form under BEGIN IMMEDIATE, which the Database sees to: whoever reads has locked."""

    name = "sqlite"
    insert = staticmethod(insert)
