"""The port to a database, and the dialects behind it.

Tests import inner names from here: a module that moves is named in one place.
"""

from __future__ import annotations

from tests.kit.startup.locking_postgresql import LockingPostgreSQL

from slotwise.model.plugged_in import plugged_in
from slotwise.store.dialects import by_key
from slotwise.store.dialects.by_key import ByKey
from slotwise.store.dialects.port import (
    FIRST,
    LAST,
    ClaimRequest,
    Parted,
    Range,
    Transaction,
)
from slotwise.store.dialects.postgresql.arrays import (
    instants,
    integers,
    intervals,
    texts,
)
from slotwise.store.dialects.postgresql.dialect import PostgreSQL
from slotwise.store.dialects.registered import dialect_of

__all__ = [
    "FIRST",
    "LAST",
    "ByKey",
    "ClaimRequest",
    "LockingPostgreSQL",
    "Parted",
    "PostgreSQL",
    "Range",
    "Transaction",
    "by_key",
    "dialect_of",
    "instants",
    "integers",
    "intervals",
    "plugged_in",
    "texts",
]
