"""Column types that mean the same in every database: instants in UTC and durations, both to the
microsecond.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Interval
from sqlalchemy.types import TypeDecorator, TypeEngine

from slotwise.model.records import TICK, from_micros, to_micros

#: A document that is read and written as a whole.
Json = JSON(none_as_null=True)

#: Databases whose instants have no zone: they are written, and read, in UTC.
_WITHOUT_ZONES = ("mysql", "mariadb")
_MICROS = BigInteger()


def document(text: str | bytes) -> object:
    """Read a stored document; one with a number of 5,000 digits, or too deep, is the text that
    it is.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text if isinstance(text, str) else text.decode(errors="replace")


class Instant(TypeDecorator[datetime]):
    """timestamptz, on SQLite integer microseconds, on MariaDB datetime(6). Always read as aware
    UTC.
    """

    impl = DateTime(timezone=True).with_variant(_MICROS, "sqlite")
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[datetime]:
        if dialect.name not in _WITHOUT_ZONES:
            return super().load_dialect_impl(dialect)
        from sqlalchemy.dialects.mysql import DATETIME  # late: others save a megabyte

        return dialect.type_descriptor(DATETIME(fsp=6))

    def process_bind_param(
        self, value: datetime | None, dialect: Dialect
    ) -> datetime | int | None:
        if value is None:
            return None
        if dialect.name in _WITHOUT_ZONES:
            without: datetime = value.astimezone(UTC).replace(tzinfo=None)
            return without
        return to_micros(value) if dialect.name == "sqlite" else value

    def process_result_value(
        self, value: Any | None, dialect: Dialect
    ) -> datetime | None:
        if value is None:
            return None
        if dialect.name in _WITHOUT_ZONES:
            if isinstance(value, str):  # a parameter that was selected
                value = datetime.fromisoformat(value)
            instant: datetime = value.replace(tzinfo=UTC)
            return instant
        return (
            from_micros(value) if dialect.name == "sqlite" else value.astimezone(UTC)
        )


class Duration(TypeDecorator[timedelta]):
    """interval, on all databases but PostgreSQL integer microseconds."""

    impl = Interval().with_variant(_MICROS, "sqlite", *_WITHOUT_ZONES)
    cache_ok = True

    def process_bind_param(
        self, value: timedelta | None, dialect: Dialect
    ) -> timedelta | int | None:
        if value is None or dialect.name == "postgresql":
            return value
        return value // TICK

    def process_result_value(
        self, value: Any | None, dialect: Dialect
    ) -> timedelta | None:
        if value is None or dialect.name == "postgresql":
            return value
        span: timedelta = value * TICK
        return span
