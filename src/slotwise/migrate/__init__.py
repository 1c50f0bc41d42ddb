"""The tables' migrations: apply them, check the version of a database, print their SQL.

The revisions live in ``migrations/`` (shipped in the wheel) and are plain alembic; this module runs them
without alembic's ``env.py``, so that it also works inside a user's own one.
"""

from __future__ import annotations

from slotwise.migrate.grants import ROLES, grants
from slotwise.migrate.revisions import Target, apply, check, current, include_name, revert, scripts, sql

__all__ = ["ROLES", "Target", "apply", "check", "current", "grants", "include_name", "revert", "scripts", "sql"]
