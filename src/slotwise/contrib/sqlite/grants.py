"""SQLite has no roles."""

from __future__ import annotations

from typing import NoReturn

from slotwise import ConfigurationError


def grants(role: str, to: str, prefix: str, names: object) -> NoReturn:
    """Raise ConfigurationError, which says what protects the data instead."""
    raise ConfigurationError("SQLite has no roles; protect the file")
