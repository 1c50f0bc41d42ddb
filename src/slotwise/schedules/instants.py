"""Instants: points on the time line in UTC, as values and as text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from slotwise.errors import InvalidSchedule

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
SECOND: Final = timedelta(seconds=1)


def instant_text(instant: datetime) -> str:
    """ISO 8601 in UTC with a Z; microseconds only where there are any."""
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def parse_instant(text: str) -> datetime:
    """The instant of an ISO 8601 text that says its offset. Raises InvalidSchedule."""
    text = text.strip()
    try:
        instant = datetime.fromisoformat(text)
        if instant.utcoffset() is not None:
            return in_utc(instant)
    except (ValueError, OverflowError):
        pass
    raise InvalidSchedule(f"{text[:40]!r} is not an instant; write ISO 8601 with an offset, as 2026-11-21T02:00:00Z")


def in_utc(instant: datetime) -> datetime:
    """The same instant in UTC. Raises InvalidSchedule if it is naive: nobody knows which instant that is."""
    if not isinstance(instant, datetime) or instant.utcoffset() is None:
        raise InvalidSchedule(f"{instant!r:.60} is not an aware datetime; give it a tzinfo")
    return instant.astimezone(UTC)


def floor_second(instant: datetime) -> int:
    """The last whole second since 1970 that is not after the instant."""
    return (instant - EPOCH) // SECOND


def ceiling_second(instant: datetime) -> int:
    """The first whole second since 1970 that is not before the instant."""
    return -((EPOCH - instant) // SECOND)


def an_instant(value: datetime | str) -> datetime:
    """The instant in UTC of an aware datetime or of its text. Raises InvalidSchedule."""
    return parse_instant(value) if isinstance(value, str) else in_utc(value)
