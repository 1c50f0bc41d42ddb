"""Workers, business calendars, the audit, and the database."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from slotwise import SlotwiseError
from slotwise.contrib.dashboard.access import Refused
from slotwise.contrib.dashboard.reading import Page, Reading, in_one_line

_AUDIT: Final = 200


def workers(reading: Reading) -> Page:
    """Show all workers that have signed in."""
    data = {"workers": reading.lines("workers", reading.inspect.workers)}
    return Page(template="workers.html", title="Workers", data=data)


def calendars(reading: Reading) -> Page:
    """Show the business calendars, and the jobs that use each."""
    kept = reading.source.operations(reading.visitor.name).calendars
    lines = reading.kept_lines("calendars", kept.all)
    data = {
        "calendars": [
            {**line.as_json(), "updated": line.updated, "jobs": list(line.jobs)}
            for line in lines
        ]
    }
    return Page(template="calendars.html", title="Calendars", data=data)


def calendar(reading: Reading) -> Page:
    """Show the days of the calendar ``name``, and the jobs that use it."""
    name = reading.text("name")
    kept = reading.source.operations(reading.visitor.name).calendars
    try:
        line = kept.find(name)
    except SlotwiseError as error:
        raise Refused(in_one_line(error), 404) from None
    one = line.calendar
    if one is None:
        raise Refused(line.unreadable or name, 409)
    data = {
        "calendar": {
            **one.as_json(),
            "updated": line.updated,
            "jobs": list(line.jobs),
        },
        "days": [day.isoformat() for day in sorted(one.days)],
        "worked": [day.isoformat() for day in sorted(one.worked)],
    }
    return Page(template="calendar.html", title=name, data=data)


def audit(reading: Reading) -> Page:
    """Show what operators have requested, of one job with ``name``."""
    name = reading.given.get("name")
    entries = reading.lines("audit", lambda: reading.inspect.audit(name, limit=_AUDIT))
    data = {"name": name, "entries": entries}
    return Page(template="audit.html", title="Audit", data=data)


def database(reading: Reading) -> Page:
    """Show the state of the tables and of the server."""
    inspect = reading.inspect
    began = time.perf_counter()
    reading.part("claim", inspect.common_zone)  # it looks up what is due next
    took = time.perf_counter() - began
    data = {
        "health": reading.kept("health", inspect.health),
        "schedules": reading.kept("schedules", lambda: len(inspect.schedules())),
        "database": reading.part("database", inspect.database),
        "next_due_took": timedelta(seconds=took),
    }
    return Page(template="database.html", title="Database", data=data)
