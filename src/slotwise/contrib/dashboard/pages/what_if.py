"""What if a job had another schedule, or a calendar other days: which slots would change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta
from itertools import islice
from typing import Final, Literal

from slotwise import Calendar, Schedule, SlotwiseError, parse_schedule
from slotwise.contrib.dashboard.access import Refused
from slotwise.contrib.dashboard.reading import Page, Reading, in_one_line
from slotwise.inspect import (
    RECURRING,
    ScheduleComparison,
    compare_schedules,
    explain_schedule,
)

#: Days that are compared, at most and by default; changed slots that are named.
_MOST_DAYS: Final = 366
_DAYS: Final = 30
_NAMED: Final = 50
_FIELDS_OF_CRON: Final = 5


def what_if(reading: Reading) -> Page:
    """Compare the schedule of the job ``name`` with ``schedule``, or with the same one around
    ``calendar`` without the days ``free`` and with the days ``worked``.
    """
    name = reading.text("name")
    id = reading.given.get("id", RECURRING)
    info = reading.inspect.job(name, id=id)
    if info is None:
        raise Refused(f"no worker has planned the job {name!r:.100}", 404)
    reading.zone = reading.inspect.zone(name, id=id)
    data: dict[str, object] = {
        "name": name,
        "id": id,
        "schedule": info.schedule,
        "days": _days(reading.given.get("days")),
        "mistake": None,
        "comparison": None,
    }
    given = reading.given
    if any(field in given for field in ("schedule", "free", "worked")):
        try:
            data |= _compared(reading, info.schedule)
        except SlotwiseError as error:
            data["mistake"] = in_one_line(error)
    fields = ("schedule", "calendar", "free", "worked")
    shown = {"given": {field: given.get(field, "") for field in fields}}
    return Page(
        template="what_if.html", title=f"What if {name}", data=data, shown=shown
    )


def _days(text: str | None) -> int:
    if text is None:
        return _DAYS
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MOST_DAYS:
        raise Refused(f"days={text!r:.60}: write a number from 1 to {_MOST_DAYS}", 400)
    return int(text)


def _compared(reading: Reading, before_text: str) -> dict[str, object]:
    given = reading.given
    before = parse_schedule(before_text)
    calendars = reading.inspect.calendars(before)
    after = before
    changed = calendars
    if "schedule" in given:
        after = parse_schedule(_in_zone(given["schedule"], str(reading.zone)))
        changed = reading.inspect.calendars(after)
    if "free" in given or "worked" in given:
        changed = _with_days(changed, given)
    job = reading.text("name")
    end = reading.now + timedelta(days=_days(given.get("days")))
    found = compare_schedules(
        before.bind(job, calendars), after.bind(job, changed), reading.now, end
    )
    return {
        "comparison": {
            "removed": found.removed,
            "added": found.added,
            "kept": found.kept,
            "changes": _changes(found),
        },
        "sentences": _sentences(after.bind(job, changed)),
    }


def _sentences(schedule: Schedule) -> list[str]:
    return explain_schedule(schedule)


def _changes(found: ScheduleComparison) -> list[tuple[datetime, Literal["-", "+"]]]:
    return list(islice(found.differences(), _NAMED))


def _in_zone(text: str, zone: str) -> str:
    """Return the text of a schedule: five fields of cron are meant in the zone of the job."""
    fields = text.split()
    is_cron = len(fields) == _FIELDS_OF_CRON and "|" not in text and "(" not in text
    return f"CRON|{' '.join(fields)}|{zone}" if is_cron else text


def _with_days(
    calendars: Mapping[str, Calendar], given: Mapping[str, str]
) -> dict[str, Calendar]:
    """Return the calendars, the given one with further days, free and worked ones."""
    name = given.get("calendar") or next(iter(calendars), "")
    if name not in calendars:
        known = ", ".join(sorted(calendars)) or "none"
        raise Refused(
            f"the schedule has no calendar {name!r:.60}; it has: {known}", 400
        )
    one = calendars[name]
    free, worked = _dates(given, "free"), _dates(given, "worked")
    other = replace(
        one, days=(one.days | free) - worked, worked=(one.worked | worked) - free
    )
    return {**calendars, name: other}


def _dates(given: Mapping[str, str], field: str) -> frozenset[date]:
    words = given.get(field, "").replace(",", " ").split()
    try:
        return frozenset(map(date.fromisoformat, words))
    except ValueError:
        raise Refused(
            f"{field}={given[field]!r:.60}: write days as 2026-12-24", 400
        ) from None
