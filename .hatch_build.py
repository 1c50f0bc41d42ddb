"""Ships the top-level migrations/ inside the wheel, as slotwise/migrations.

Not by `force-include` in pyproject.toml: that also copies them into an editable install, where the
copy goes stale and alembic's resource form `slotwise:migrations` finds old revisions, or none,
without a word.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ShipMigrations(BuildHookInterface):
    """Adds the folder to wheels, and leaves editable installs to find it in the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling; `version` is "standard" or "editable"."""
        if version == "standard":
            build_data["force_include"]["migrations"] = "slotwise/migrations"
