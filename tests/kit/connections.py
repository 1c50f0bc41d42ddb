"""Connections, what an error means, notifications and session parameters.

Tests import inner names from here: a module that moves is named in one place.
"""

from __future__ import annotations

from slotwise.contrib.sqlite import link as sqlite_connections
from slotwise.store.connect import database, postgresql_connections
from slotwise.store.connect.database import Database, sure_transaction, timeline_of
from slotwise.store.connect.database_errors import (
    is_about_a_row,
    is_transient,
    lacks_permission,
    sqlstate,
    unreachable,
)
from slotwise.store.connect.notifications import LOOK, PAUSE, WakeUps
from slotwise.store.connect.postgresql_connections import ALONG, can_go_along
from slotwise.store.connect.session_parameters import (
    PINNED,
    ROW_SECURITY,
    read_options,
    write_options,
)

__all__ = [
    "ALONG",
    "LOOK",
    "PAUSE",
    "PINNED",
    "ROW_SECURITY",
    "Database",
    "WakeUps",
    "can_go_along",
    "database",
    "is_about_a_row",
    "is_transient",
    "lacks_permission",
    "postgresql_connections",
    "read_options",
    "sqlite_connections",
    "sqlstate",
    "sure_transaction",
    "timeline_of",
    "unreachable",
    "write_options",
]
