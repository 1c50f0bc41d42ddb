"""From the text of a schedule on the command line to a schedule that can be asked."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import click

from slotwise.cli.shared.instants import FORMS, read_instant
from slotwise.cli.shared.options import Given
from slotwise.errors import InvalidSetting
from slotwise.model.durations import LONGEST, parse_duration
from slotwise.schedules import Calendar, Cron, Schedule, parse_schedule
from slotwise.schedules.zones import zone_named
from slotwise.store.planning.stored_calendars import calendars_of


def schedule_of(text: str, tz: str | None) -> Schedule:
    """The schedule of a text; `tz` is the zone of a plain cron expression. Raises InvalidSchedule."""
    found = parse_schedule(text)
    return Cron(text, tz) if tz and isinstance(found, Cron) and "|" not in text else found


def zone_of(schedule: Schedule, tz: str | None) -> ZoneInfo:
    """The zone whose clocks are shown. Raises InvalidSchedule."""
    return zone_named(tz) if tz else schedule.local_zone or ZoneInfo("UTC")


def ready(given: Given, schedule: Schedule, name: str | None) -> Schedule:
    """The schedule, bound: to the calendars in the database, and to the name of a job if one decides something."""
    calendars = _calendars(given, schedule)
    bound = schedule.bind(name or "", calendars)
    if name is None and bound != schedule.bind("another", calendars):
        raise click.UsageError("H is decided by the name of the job; give --name")
    return bound


def _calendars(given: Given, schedule: Schedule) -> dict[str, Calendar]:
    """Read only if the schedule names days that it does not bring."""
    if None not in schedule.calendars.values():
        return {}
    with given.store() as store, store.transaction() as connection:
        return calendars_of(connection, store.tables, schedule)


def instant(text: str | None, zone: ZoneInfo) -> datetime:
    """ISO 8601, by the clocks of the zone unless it says otherwise; a duration: so long from now; None: now."""
    if text is None:
        return datetime.now(UTC)
    with suppress(InvalidSetting):
        return datetime.now(UTC) + parse_duration(text)
    try:
        return read_instant(text, zone)
    except ValueError:
        forms = f"neither {FORMS} nor a duration of at most {LONGEST.days}d (2h)"
        raise click.UsageError(f"--after {text}: {forms}") from None
