"""Column types that mean the same in every database: instants in UTC and durations, both to the
microsecond.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Interval
from sqlalchemy.types import TypeDecorator

from slotwise.model.records import TICK, from_micros, to_micros

#: A document that is read and written as a whole.
Json = JSON(none_as_null=True)


def document(text: str | bytes) -> object:
    """Read a stored document; one with a number of 5,000 digits, or too deep, is the text that
    it is.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text if isinstance(text, str) else text.decode(errors="replace")


class Instant(TypeDecorator[datetime]):
    """timestamptz, on SQLite integer microseconds. Always read as aware UTC."""

    impl = DateTime(timezone=True).with_variant(BigInteger(), "sqlite")
    cache_ok = True

    def process_bind_param(
        self, value: datetime | None, dialect: Dialect
    ) -> datetime | int | None:
        return (
            to_micros(value)
            if value is not None and dialect.name == "sqlite"
            else value
        )

    def process_result_value(
        self, value: Any | None, dialect: Dialect
    ) -> datetime | None:
        if value is None:
            return None
        return (
            from_micros(value) if dialect.name == "sqlite" else value.astimezone(UTC)
        )


class Duration(TypeDecorator[timedelta]):
    """interval, on SQLite integer microseconds."""

    impl = Interval().with_variant(BigInteger(), "sqlite")
    cache_ok = True

    def process_bind_param(
        self, value: timedelta | None, dialect: Dialect
    ) -> timedelta | int | None:
        return (
            value // TICK if value is not None and dialect.name == "sqlite" else value
        )

    def process_result_value(
        self, value: Any | None, dialect: Dialect
    ) -> timedelta | None:
        return (
            value * TICK if value is not None and dialect.name == "sqlite" else value
        )
