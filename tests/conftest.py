"""What every test can ask for."""

from __future__ import annotations

pytest_plugins = ["tests.databases", "tests.kit.progress", "tests.kit.selection", "tests.ledger_author"]
