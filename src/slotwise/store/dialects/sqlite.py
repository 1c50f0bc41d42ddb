"""SQLite (3.35 or newer): one host, one writer at a time, the host's clock is the database's.

All of it is the portable form, under BEGIN IMMEDIATE, which the Database sees to: reading is locking.
"""

from __future__ import annotations

from sqlalchemy.dialects.sqlite import insert

from slotwise.model.clock import Clock, host_now
from slotwise.store.dialects.portable import Portable
from slotwise.store.schema.tables import Tables


def sqlite(tables: Tables, clock: Clock) -> Portable:
    """Return the dialect of SQLite."""
    return Portable(tables, clock, insert, lambda connection: clock.override() or host_now())
