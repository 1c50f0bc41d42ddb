"""Reads the instants that PostgreSQL sends, also those that Python cannot hold."""

from __future__ import annotations

from typing import Any

from slotwise.store.connect.dsn import psycopg
from slotwise.store.schema.column_types import Beyond


class InstantLoader:
    """The driver's own, which raises for what Python cannot hold, and thereby loses the whole result."""

    def __init__(self, oid: int, context: Any = None) -> None:
        driver = psycopg()
        self.format = driver.pq.Format.TEXT
        self._failure = driver.DataError
        self._load = driver.adapters.get_loader(oid, self.format)(oid, context).load
        #: Of this result: rows of a batch have most of their instants in common.
        self._loaded: dict[bytes, Any] = {}

    format: Any = 0

    def load(self, data: Any) -> Any:
        written = bytes(data)
        if (found := self._loaded.get(written)) is None:
            found = self._loaded[written] = self._read(written)
        return found

    def _read(self, written: bytes) -> Any:
        try:
            return self._load(written)
        except self._failure:
            text = written.decode()
            return Beyond.near(text, before=text.endswith("BC") or text.startswith("-"))
