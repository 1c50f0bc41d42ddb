"""Migrations of the tables: apply them, check the version of a database, print their SQL.

The revisions in ``migrations/`` are plain alembic; they run without its ``env.py``, or inside a
user's own. Imports ``store``, ``model`` and ``errors``.
"""

from __future__ import annotations

from slotwise.migrate.checks import check, current, include_name
from slotwise.migrate.grants import ROLES, grants
from slotwise.migrate.revisions import apply, revert, scripts, sql
from slotwise.migrate.target import Target

__all__ = [
    "ROLES",
    "Target",
    "apply",
    "check",
    "current",
    "grants",
    "include_name",
    "revert",
    "scripts",
    "sql",
]
