"""Instants on the command line."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo

import click

from slotwise.errors import InvalidSetting
from slotwise.model.durations import LONGEST, parse_duration
from slotwise.model.records import KNOWN_YEARS, is_known

#: For messages.
FORMS = f"an instant of {KNOWN_YEARS} (2026-01-31T02:00Z)"


def read_instant(text: str, zone: tzinfo | None = None) -> datetime:
    """ISO 8601, by the clocks of the zone (None: of this host) unless it says otherwise; in UTC.

    Raises ValueError for what is none, and for what no schedule knows.
    """
    found = datetime.fromisoformat(text.strip())
    with suppress(ValueError, OverflowError, OSError):
        instant = (found if found.tzinfo else found.replace(tzinfo=zone)).astimezone(UTC)
        if is_known(instant):
            return instant
    raise ValueError(f"it does not lie in {KNOWN_YEARS}")


def instant(ctx: click.Context, option: click.Parameter, text: str | None) -> datetime | None:
    """ISO 8601, in local time unless it says otherwise; ``now``; or a duration: so long ago."""
    if text is None:
        return None
    with suppress(InvalidSetting):
        return datetime.now(UTC) - (timedelta(0) if text.strip() == "now" else parse_duration(text))
    try:
        return read_instant(text)
    except ValueError:
        forms = f"neither {FORMS} nor a duration of at most {LONGEST.days}d (2h ago: 2h)"
        raise click.BadParameter(f"{text!r:.60} is {forms}", ctx, option) from None
