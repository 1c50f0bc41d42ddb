"""``slotwise calendar``: business calendars in the database."""

from __future__ import annotations

import signal
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import click

from slotwise import Calendar, ConfigurationError, InvalidSchedule
from slotwise.cli.shared.given_days import given_days
from slotwise.cli.shared.options import (
    Command,
    Given,
    Group,
    common,
    confirm,
    pass_given,
    with_options,
)
from slotwise.cli.shared.output import (
    print_json,
    print_json_list,
    print_table,
    say_zones,
)
from slotwise.cli.shared.terminal import moment, say, unharmed
from slotwise.contrib.calendars import Source, from_holidays, from_ics
from slotwise.contrib.wording import counted
from slotwise.inspect import json_value
from slotwise.operations import CalendarChange, CalendarFollower, CalendarInfo


@click.group(
    cls=Group,
    default=("show",),
    examples="""
    slotwise calendar import AT --years 2026-2028
    slotwise calendar import closed.ics office
    slotwise calendar add AT 2026-12-24 2026-12-28..2026-12-31
    slotwise calendar show AT
    """,
)
@common
def calendar() -> None:
    """Manage business calendars.

    A calendar lists non-business days. It is stored in the database. A schedule avoids these days
    with .excluding("AT", roll="following"). When a calendar changes, all jobs that use it follow
    at once.
    """


def _years(ctx: click.Context, option: click.Parameter, text: str | None) -> range:
    """`2026` or `2026-2028`; without it, this year and the next two."""
    this = datetime.now(UTC).year
    return _years_or_all(ctx, option, text) or range(this, this + 3)


def _years_or_all(
    ctx: click.Context, option: click.Parameter, text: str | None
) -> range | None:
    if text is None:
        return None
    first, _, last = text.partition("-")
    try:
        years = range(int(first), int(last or first) + 1)
    except ValueError:
        raise click.BadParameter(
            f"{text!r}: write 2026 or 2026-2028", ctx, option
        ) from None
    if not years:
        raise click.BadParameter(
            f"{text!r} ends before it begins; write {last}-{first}", ctx, option
        )
    if not 1970 <= years[0] <= years[-1] < 2200:
        raise click.BadParameter(
            f"{text!r}: years are 1970 to 2199; write 2026 or 2026-2028", ctx, option
        )
    return years


def _list_calendars(given: Given) -> None:
    with given.operations() as (operations, inspect):
        lines = operations.calendars.all()
        zone = inspect.common_zone()
    if given.json:
        print_json_list(map(_line_json, lines))
    elif not lines:
        say("no calendars yet; create one with: slotwise calendar import AT")
    else:
        columns = (
            "CALENDAR",
            "REVISION",
            "DAYS",
            "FROM",
            "TO",
            "WEEKEND",
            "JOBS",
            "CHANGED",
        )
        print_table(
            columns,
            [_row(line, zone) for line in lines],
            spare=("REVISION", "CHANGED", "WEEKEND"),
        )
        say_zones([zone])


def _row(line: CalendarInfo, zone: ZoneInfo) -> list[str]:
    return [
        line.name,
        *_contents(line.calendar),
        str(len(line.jobs)) if line.jobs else "–",
        moment(line.updated, zone),
    ]


def _contents(one: Calendar | None) -> list[str]:
    """The revision, number of days, first and last day, and weekend."""
    if one is None:
        return ["unreadable", *["–"] * 4]
    days = sorted(one.days)
    ends = [f"{days[0]}", f"{days[-1]}"] if days else ["–", "–"]
    return [str(one.revision), str(len(days)), *ends, one.weekend_text]


def _line_json(line: CalendarInfo) -> dict[str, object]:
    return {
        **line.as_json(),
        "jobs": list(line.jobs),
        "updated": json_value(line.updated),
    }


@calendar.command(
    "show",
    cls=Command,
    examples="""
    slotwise calendar show
    slotwise calendar show --json
    slotwise calendar show AT --years 2026
    """,
)
@click.argument("name", required=False)
@click.option(
    "--years",
    callback=_years_or_all,
    metavar="YEARS",
    help="Only these, as 2026 or 2026-2028.",
)
@common
@pass_given
def show_calendar(given: Given, name: str | None, years: range | None) -> None:
    """Show the days of the calendar NAME, and the jobs that use it; without NAME, list all
    calendars, and how many jobs use each.
    """
    if name is None:
        _list_calendars(given)
    else:
        _show_days(given, name, years)


def _show_days(given: Given, name: str, years: range | None) -> None:
    with given.operations() as (operations, _):
        line = operations.calendars.find(name)
    one = line.calendar
    if one is None:
        raise InvalidSchedule(line.unreadable)
    days = sorted(one.days | one.worked)
    if years is not None:
        days = [day for day in days if day.year in years]
    if given.json:
        kept = {
            kind: [day.isoformat() for day in days if day in of_kind]
            for kind, of_kind in (("days", one.days), ("worked", one.worked))
        }
        print_json({**_line_json(line), **kept})
        return
    say(
        f"{name}: revision {one.revision}, weekend {one.weekend_text}, "
        f"changed {moment(line.updated)}"
    )
    for day in days:
        is_weekend = day.isoweekday() % 7 in one.weekend
        note = (
            "  (worked)" if day in one.worked else "  (weekend)" if is_weekend else ""
        )
        say(f"  {day} {day:%a}{note}")
    say(f"used by {', '.join(line.jobs)}" if line.jobs else "no job uses it")


_MOST_TOLD = 20
_LONGEST_READING = 30  # seconds
_LARGEST_FILE = 1_048_576  # bytes

_changing = with_options(
    click.option(
        "--dry-run",
        is_flag=True,
        help="Only print what would change, and which jobs would follow.",
    ),
    click.option("--note", metavar="TEXT", help="The reason; for the audit."),
    common,
    pass_given,
)


def _weekend(
    ctx: click.Context, option: click.Parameter, text: str | None
) -> frozenset[int] | None:
    try:
        return Calendar.parse_weekend(text) if text else None
    except InvalidSchedule as error:
        raise click.BadParameter(
            f"{error}; write SAT,SUN, or - for none", ctx, option
        ) from None


@calendar.command(
    "import",
    cls=Command,
    examples="""
    slotwise calendar import AT --years 2026-2028       a country; also DE-BY, or a market: XNYS
    slotwise calendar import closed.ics office               all-day events of a calendar file
    slotwise calendar import SA --weekend FRI,SAT
    slotwise calendar import AT --years 2027 --dry-run       what would change, and for which jobs
    """,
)
@click.argument("source")
@click.argument("name", required=False)
@click.option(
    "--years",
    callback=_years,
    metavar="YEARS",
    help="2026 or 2026-2028; default: this year and two more.",
)
@click.option(
    "--weekend",
    metavar="DAYS",
    callback=_weekend,
    help="As SAT,SUN, or - for none; default: as the source says, or as it was.",
)
@_changing
def import_calendar(
    given: Given,
    source: str,
    years: range,
    name: str | None,
    weekend: frozenset[int] | None,
    dry_run: bool,
    note: str | None,
) -> None:
    """Import the days of SOURCE into the calendar NAME: a code of the holidays library, or an .ics
    file. By default, NAME is the code, or the file's name.

    The days of these years are replaced; those of other years stay. Needs: pip install
    'slotwise[calendars]'
    """
    file = Path(source)
    is_file = file.suffix.lower() in (".ics", ".ical") or file.is_file()
    found = _from_file(file, years) if is_file else from_holidays(source, years)
    _tell_ignored(found.ignored)
    if not found.days and not found.worked:
        raise ConfigurationError(
            f"{source} has no days from {years[0]} to {years[-1]}; give others with --years"
        )
    new = Calendar(name=name or (file.stem if is_file else source.upper()))
    ordinary: set[date] = set()

    def edit(before: Calendar | None) -> Calendar:
        after = _merged(before, new, found, years, weekend)
        ordinary.update(found.worked.keys() - after.worked)
        return after

    _change(
        given,
        new.name,
        edit,
        "calendar_import",
        found,
        source=source,
        note=note,
        dry=dry_run,
    )
    for day in sorted(ordinary):
        told = f"a working day in {source}, is no weekend day; it stays as it is"
        say(f"{day} {found.worked[day]}, {told}", err=True)


def _tell_ignored(ignored: Sequence[str]) -> None:
    if not ignored:
        return
    names = [*filter(None, dict.fromkeys(ignored))]
    more = ", …" if len(names) > _MOST_TOLD else ""
    told = f": {', '.join(names[:_MOST_TOLD])}{more}" if names else ""
    say(
        f"ignored {counted(len(ignored), 'event')} with a time of day, or cancelled{told}",
        err=True,
    )


def _merged(
    before: Calendar | None,
    new: Calendar,
    found: Source,
    years: range,
    weekend: frozenset[int] | None,
) -> Calendar:
    """The calendar with the days of these years as the source has them; those of others stay."""
    old = before or replace(new, weekend=found.weekend or new.weekend)
    week = old.weekend if weekend is None else weekend
    moved = {day for day in found.worked if day.isoweekday() % 7 in week}
    return replace(
        new,
        days=_beyond(old.days, years) | found.days.keys(),
        worked=_beyond(old.worked, years) | moved,
        weekend=week,
    )


def _beyond(days: Iterable[date], years: range) -> frozenset[date]:
    return frozenset(day for day in days if day.year not in years)


def _from_file(file: Path, years: range) -> Source:
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST_FILE:
            raise ConfigurationError(
                f"an iCalendar file is a regular file of at most {_LARGEST_FILE} bytes"
            )
        with _patience():
            return from_ics(file.read_text(encoding="utf-8-sig"), years)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"{file} is not UTF-8 text, so it is not an iCalendar file"
        ) from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error}") from None


@contextmanager
def _patience() -> Iterator[None]:
    """Limit the time to read a file: a rule that never fires is expanded up to the year 9999,
    event by event.
    """

    def give_up(*_: object) -> None:
        raise ConfigurationError(
            f"takes longer than {_LONGEST_READING} s to read; remove rules that never fire"
        )

    handler = signal.signal(signal.SIGALRM, give_up)
    timer = signal.setitimer(signal.ITIMER_REAL, _LONGEST_READING)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


@calendar.command(
    "add",
    cls=Command,
    examples="""
    slotwise calendar add AT 2026-12-24 2026-12-28..2026-12-31
    slotwise calendar add office 2026-06-05 --create --note "company outing"
    slotwise calendar add CN +2026-02-14                     a Saturday that is worked on
    slotwise calendar add office --weekend FRI,SAT
    """,
)
@click.argument("name")
@click.argument("days", nargs=-1)
@click.option(
    "--weekend",
    metavar="DAYS",
    callback=_weekend,
    help="The new weekend: SAT,SUN, or - for none.",
)
@click.option(
    "--create", is_flag=True, help="Create the calendar if there is none of this name."
)
@_changing
def add_days(
    given: Given,
    name: str,
    days: Sequence[str],
    weekend: frozenset[int] | None,
    create: bool,
    dry_run: bool,
    note: str | None,
) -> None:
    """Add DAYS that are no business days: 2026-12-24, or a range 2026-12-28..2026-12-31.

    +2026-01-10 is a day of a weekend that is worked on.
    """
    if not days and weekend is None:
        raise click.UsageError("nothing to add: give days, or a --weekend")
    free, worked = given_days(days)

    def edit(before: Calendar | None) -> Calendar:
        start = before or Calendar(name=name)
        return replace(
            start,
            days=(start.days - worked) | free,
            worked=(start.worked - free) | worked,
            weekend=start.weekend if weekend is None else weekend,
        )

    _change(given, name, edit, "calendar_add", note=note, create=create, dry=dry_run)


@calendar.command(
    "remove",
    cls=Command,
    examples="""
    slotwise calendar remove AT 2026-12-24             one day of it
    slotwise calendar remove office --yes              the whole calendar
    """,
)
@click.argument("name")
@click.argument("days", nargs=-1)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_changing
def remove_days(
    given: Given,
    name: str,
    days: Sequence[str],
    yes: bool,
    dry_run: bool,
    note: str | None,
) -> None:
    """Remove DAYS from a calendar; without DAYS, remove the whole calendar, unless a job uses
    it.
    """
    if not days:
        _remove_whole(given, name, yes=yes, dry=dry_run, note=note)
        return
    free, worked = given_days(days)

    def edit(before: Calendar | None) -> Calendar:
        assert before is not None  # it is not to be created
        absent = sorted((free - before.days) | (worked - before.worked))
        if absent:
            raise InvalidSchedule(
                f"calendar {name} has no {absent[0]}; see: slotwise calendar show {name}"
            )
        return replace(before, days=before.days - free, worked=before.worked - worked)

    _change(given, name, edit, "calendar_remove", note=note, create=False, dry=dry_run)


def _remove_whole(
    given: Given, name: str, *, yes: bool, dry: bool, note: str | None
) -> None:
    confirm(f"The whole calendar {name} will be removed.", sure=yes or dry)
    with given.operations() as (operations, _):
        gone = operations.calendars.remove(
            name, "calendar_remove", note=note, dry_run=dry
        )
    with unharmed():
        if given.json:
            print_json({"removed": gone.as_json(), "dry_run": dry})
        else:
            say(f"{'would remove' if dry else 'removed'} {name}")


# -- the result -----------------------------------------------------------------------------------


def _change(
    given: Given,
    name: str,
    edit: Callable[[Calendar | None], Calendar],
    operation: str,
    found: Source | None = None,
    *,
    source: str | None = None,
    note: str | None = None,
    create: bool = True,
    dry: bool,
) -> None:
    """Change a calendar, and print the result. Raises ConfigurationError if a job could not
    follow.
    """
    names = {**found.days, **found.worked} if found else {}
    with given.operations() as (operations, inspect):
        change = operations.calendars.change(
            name,
            edit,
            operation,
            source=source,
            names=names,
            note=note,
            create=create,
            dry_run=dry,
        )
        zones = inspect.zones({(one.job, one.instance) for one in change.followed})
    refused = [one for one in change.followed if one.refused]
    with unharmed():
        if given.json:
            print_json({**_change_json(change), "dry_run": dry})
        else:
            _tell(change, names, zones, dry=dry)
    if refused:
        raise ConfigurationError(
            f"{len(refused)} of {counted(len(change.followed), 'job')} kept their former days: "
            f"{refused[0].job}: {refused[0].refused}"
        )


def _change_json(change: CalendarChange) -> dict[str, object]:
    followed = [
        {
            "job": one.job,
            "id": one.instance,
            "next_slot": json_value(one.next_slot),
            "refused": one.refused,
            "superseded": one.superseded,
        }
        for one in change.followed
    ]
    return {
        **change.after.as_json(),
        "added": [day.isoformat() for day in change.added],
        "removed": [day.isoformat() for day in change.removed],
        "worked_added": [day.isoformat() for day in change.worked_added],
        "worked_removed": [day.isoformat() for day in change.worked_removed],
        "followed": followed,
    }


def _tell(
    change: CalendarChange,
    names: Mapping[date, str],
    zones: Mapping[tuple[str, str], ZoneInfo],
    *,
    dry: bool,
) -> None:
    for sign, days in (("+", change.added), ("-", change.removed)):
        for day in days:
            say(f"{sign} {day} {day:%a} {names.get(day, '')}".rstrip())
    for sign, days in (("+", change.worked_added), ("-", change.worked_removed)):
        for day in days:
            say(f"{sign} +{day} {day:%a} {names.get(day, '')}".rstrip())
    after = change.after
    if change.before == after:
        say(f"{after.name}: nothing to do, revision {after.revision} has these days")
    else:
        length = counted(len(after.days), "day")
        told = f"revision {after.revision}, {length}, weekend {after.weekend_text}" + (
            f", {counted(len(after.worked), 'worked weekend day')}"
            if after.worked
            else ""
        )
        say(f"{after.name}: {'would become ' if dry else ''}{told}")
    _tell_followed(
        [one for one in change.followed if one.refused is None], zones, dry=dry
    )


def _tell_followed(
    followed: Sequence[CalendarFollower],
    zones: Mapping[tuple[str, str], ZoneInfo],
    *,
    dry: bool,
) -> None:
    for one in followed[:_MOST_TOLD]:
        instance = "" if one.instance == "recurring" else f" {one.instance}"
        verb = "would follow" if dry else "follows"
        slot = moment(
            one.next_slot, zones.get((one.job, one.instance), ZoneInfo("UTC"))
        )
        skipped = (
            f", slots skipped (superseded): {one.superseded}" if one.superseded else ""
        )
        say(f"  {one.job}{instance} {verb}, next slot {slot}{skipped}")
    if len(followed) > _MOST_TOLD:
        say(f"  … and {len(followed) - _MOST_TOLD} more")
