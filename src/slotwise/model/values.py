"""Frozen values as JSON."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def json_value(value: object) -> object:
    """Convert a value for JSON: instants become ISO 8601 in UTC, durations become seconds."""
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case timedelta():
            return value.total_seconds()
        case dict():
            return {str(key): json_value(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [json_value(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return json_fields(value)
    return value


def json_fields(value: DataclassInstance) -> dict[str, object]:
    """Return the fields of a dataclass as JSON has them, without those that ``repr`` leaves out."""
    shown = [spec.name for spec in fields(value) if spec.repr]
    return {name: json_value(getattr(value, name)) for name in shown}


class Value:
    """Base of the frozen dataclasses that reads return."""

    __slots__ = ()

    def as_json(self: DataclassInstance) -> dict[str, object]:
        """Return the fields by name as JSON has them: instants in UTC, durations in seconds.

        Stored bytes, which ``repr`` leaves out as well, are left out.
        """
        return json_fields(self)
