"""``slotwise calendar``: business calendars in the database."""

from __future__ import annotations

from typing import Any

import click

from slotwise.cli.calendarchange import add_days, import_calendar, remove_days
from slotwise.cli.shared.calendar_table import changes, facts
from slotwise.cli.shared.command import Command, Group
from slotwise.cli.shared.options import Given, common, pass_given
from slotwise.cli.shared.output import moment, print_json_list, print_json_object, print_table
from slotwise.contrib.logging import plain
from slotwise.schedules.business.calendar import weekend_text
from slotwise.store.planning.calendar_changes import CalendarLine


@click.group(
    cls=Group,
    examples="""
    slotwise calendar import AT --years 2026-2028
    slotwise calendar import closed.ics --as office
    slotwise calendar add AT 2026-12-24 2026-12-28..2026-12-31
    slotwise calendar show AT
    """,
)
@common
def calendar() -> None:
    """Business calendars: days that are not worked on.

    They are kept in the database. A schedule goes around one with .excluding("AT", roll="following"). When a calendar
    changes, all jobs that go by it follow at once.
    """


@calendar.command("list", cls=Command, examples="slotwise calendar list\nslotwise calendar list --json")
@common
@pass_given
def list_calendars(given: Given) -> None:
    """All calendars, and how many jobs go by each."""
    with changes(given) as known:
        lines = known.all()
    if given.json:
        print_json_list(map(_json, lines))
    elif not lines:
        click.echo("no calendars yet; make one with: slotwise calendar import AT")
    else:
        print_table(("CALENDAR", "REVISION", "DAYS", "FROM", "TO", "WEEKEND", "JOBS", "CHANGED"), map(_row, lines))


def _row(line: CalendarLine) -> list[str]:
    days = sorted(line.calendar.days)
    ends = [f"{days[0]}", f"{days[-1]}"] if days else ["–", "–"]
    return [
        line.calendar.name, str(line.calendar.revision), str(len(days)), *ends, weekend_text(line.calendar.weekend),
        str(len(line.jobs)) if line.jobs else "–", moment(line.updated),
    ]  # fmt: skip


def _json(line: CalendarLine) -> dict[str, Any]:
    return {**facts(line.calendar), "jobs": list(line.jobs), "updated": plain(line.updated)}


@calendar.command("show", cls=Command, examples="slotwise calendar show AT\nslotwise calendar show AT --year 2026")
@click.argument("name")
@click.option("--year", type=int, help="Only this year.")
@common
@pass_given
def show_calendar(given: Given, name: str, year: int | None) -> None:
    """The days of the calendar NAME, and the jobs that go by it."""
    with changes(given) as known:
        line = known.find(name)
    one = line.calendar
    days = [day for day in sorted(one.days) if year in (None, day.year)]
    if given.json:
        print_json_object({**_json(line), "days": [day.isoformat() for day in days]})
        return
    click.echo(f"{name}: revision {one.revision}, weekend {weekend_text(one.weekend)}, changed {moment(line.updated)}")
    for day in days:
        click.echo(f"  {day} {day:%a}{'  (weekend)' if day.isoweekday() % 7 in one.weekend else ''}")
    click.echo(f"used by {', '.join(line.jobs)}" if line.jobs else "no job goes by it")


for command in (import_calendar, add_days, remove_days):
    calendar.add_command(command)
