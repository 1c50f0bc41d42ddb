"""The audit table: which orders were given, by whom, when and why. Each is written with what it does, or not at all."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from slotwise.errors import ConfigurationError
from slotwise.model.records import RECURRING
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import Tables

AUTHOR_LIMIT, NOTE_LIMIT = 200, 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An operation in the audit table; ``number`` is its place there, ``job`` is None if it applies to all."""

    number: int
    at: datetime
    author: str
    operation: str
    job: str | None
    slot: datetime | None
    arguments: dict[str, Any]
    note: str | None

    @property
    def id(self) -> str:
        """The id of the recurring instance that was named; else that of the job's own row."""
        return str(self.arguments.get("id", RECURRING))

    @property
    def is_about_all(self) -> bool:
        """Neither about a slot nor about a range of them."""
        return self.slot is None and "first" not in self.arguments

    def covers(self, slot: datetime) -> bool:
        """Whether it is about a range, and the slot lies in it."""
        if "first" not in self.arguments:
            return False
        first, last = (datetime.fromisoformat(self.arguments[name]) for name in ("first", "last"))
        return first <= slot <= last


def _check(what: str, text: object, limit: int) -> None:
    if not isinstance(text, str):
        raise ConfigurationError(f"{what}={text!r:.60}: expected a text; write {what}={str(text)!r:.60}")
    if "\x00" in text:
        raise ConfigurationError(f"{what}={text!r:.60}: no database can keep a NUL (\\x00); leave it out")
    if len(text) > limit:
        raise ConfigurationError(f"{what} has {len(text):,} characters, at most {limit:,} are kept; say it in less")


@dataclass(frozen=True, slots=True)
class Author:
    """Who gives an order, and why."""

    name: str
    note: str | None = None

    def __post_init__(self) -> None:
        """Raises ConfigurationError for what the audit cannot keep."""
        _check("author", self.name, AUTHOR_LIMIT)
        if self.note is not None:
            _check("note", self.note, NOTE_LIMIT)

    def sign(
        self,
        connection: sa.Connection,
        tables: Tables,
        now: datetime,
        command: str,
        *,
        job: str | None = None,
        slot: datetime | None = None,
        **arguments: Any,
    ) -> int:
        """Write the order down in the transaction that carries it out; its number."""
        said = {name: value for name, value in arguments.items() if value is not None}
        statement = tables.controls.insert().values(
            at=now, author=self.name, note=self.note, command=command, task_name=job, slot=slot,
            arguments=json.dumps(said, default=str) if said else None,
        )  # fmt: skip
        key = connection.execute(statement).inserted_primary_key
        assert key is not None  # the statement writes one row
        return int(key[0])


def audit_entry(row: sa.RowMapping) -> AuditEntry:
    """The order of a row of the table."""
    return AuditEntry(
        number=row["id"], at=utc(row["at"]), author=row["author"], operation=row["command"], job=row["task_name"],
        slot=utc(row["slot"]), arguments=json.loads(row["arguments"] or "{}"), note=row["note"],
    )  # fmt: skip
