"""``slotwise schedule``: what a schedule means, and which slots it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from zoneinfo import ZoneInfo

import click
from rich.text import Text

from slotwise import (
    Calendar,
    Cron,
    InvalidSchedule,
    InvalidSetting,
    Schedule,
    parse_schedule,
)
from slotwise.cli.schedule_sync import sync
from slotwise.cli.shared.options import (
    Command,
    Given,
    Group,
    common,
    lines_option,
    pass_given,
)
from slotwise.cli.shared.output import (
    print_json,
    print_json_list,
    print_table,
    say_zones,
)
from slotwise.cli.shared.terminal import moment, say
from slotwise.cli.shared.values import DURATIONS, FORMS, read_written, zone_name
from slotwise.contrib.notations import other_readings
from slotwise.contrib.wording import counted
from slotwise.inspect import (
    OutlookEntry,
    compare_schedules,
    describe_schedule,
    explain_schedule,
    json_value,
    outlook,
)
from slotwise.spi import parse_duration, zone_named


@click.group(
    cls=Group,
    default=("next",),
    guesses={"month": "write: slotwise schedule next TEXT --month 2026-11"},
    examples="""
    slotwise schedule
    slotwise schedule explain "30 2 * * *" --tz Europe/Vienna
    slotwise schedule next "30 2 * * *" --tz Europe/Vienna -n 20
    slotwise schedule diff "0 2 * * *" "H 2 * * *" --name nightly-report --days 30
    slotwise schedule sync report customers.csv --scope crm --app jobs --dry-run
    slotwise schedule next --app jobs --plot starts.svg
    """,
)
@common
def schedule() -> None:
    """Explain schedules, list their slots, compare them. Only calendars that a schedule names need
    a database.
    """


_TZ = click.option(
    "--tz",
    metavar="ZONE",
    callback=zone_name,
    help="Zone of a plain cron expression, and of the clocks shown; default: the schedule's.",
)
_AFTER = click.option(
    "--after",
    metavar="TIME",
    help="Slots after this instant or delay from now; default: now.",
)
_NAME = click.option(
    "--name", metavar="JOB", help="The job whose name decides the value of H."
)


@schedule.command(
    "explain",
    cls=Command,
    examples="""
    slotwise schedule explain "0 9 * * MON-FRI" --tz Europe/Vienna
    slotwise schedule explain "EXCLUDING(DAILY|09:00|Europe/Vienna; AT; following)"
    """,
)
@click.argument("text")
@_TZ
@common
@pass_given
def explain(given: Given, text: str, tz: str | None) -> None:
    """Explain TEXT in words."""
    found = schedule_of(text, tz)
    words = [*explain_schedule(found), *other_readings(found)]
    if given.json:
        print_json({"schedule": str(found), "words": words})
    else:
        for sentence in (*words, f"Text: {found}"):
            say(sentence)


@schedule.command(
    "next",
    cls=Command,
    short_help="List the next slots of a schedule, or the schedules that there are.",
    examples="""
    slotwise schedule                                      the schedules in the database
    slotwise schedule next "30 2 * * *" --tz Europe/Vienna -n 20 --after 2026-03-20
    slotwise schedule next "H 2 * * *" --name nightly-report
    slotwise schedule next nightly-report --app jobs
    slotwise schedule next "EVERY|90s" --json
    slotwise schedule next "0 9 * * MON-FRI" --tz Europe/Vienna --month 2026-11
    slotwise schedule next --app jobs --plot starts.svg    shows the peak at midnight
    """,
)
@click.argument("text", required=False)
@_TZ
@_NAME
@lines_option(10, "Number of slots, or of schedules.")
@_AFTER
@click.option(
    "--month", metavar="YYYY-MM|this", help="Count the starts on each day of a month."
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw the starts of a month as a heat map, .svg or .png; default: this month.",
)
@common
@pass_given
def next_slots(
    given: Given,
    text: str | None,
    tz: str | None,
    name: str | None,
    count: int,
    after: str | None,
    month: str | None,
    plot: Path | None,
) -> None:
    """List the next slots of TEXT in local time and UTC; with --app, TEXT may be the name of a
    job. Clock changes and their effects on slots are marked, and so are slots that do not run.

    Without TEXT, list the schedules of the application's jobs, else of all jobs and instances in
    the database, each with its next slot.

    With --month or --plot, count the starts in a month instead. For PNG: pip install
    'slotwise[plot]'.
    """
    if month is not None or plot is not None:
        if after is not None:
            raise click.UsageError("--after is for a list; leave it out, or --month")
        _month(given, text, tz, name, month, plot)
    elif text is not None:
        _list_slots(given, _named(given, text, tz, name), tz, count, after)
    else:
        _list_schedules(given, tz, count, after)


def _named(given: Given, text: str, tz: str | None, name: str | None) -> Schedule:
    """The schedule of this text, or of the application's job of this name. Raises
    InvalidSchedule.
    """
    job = given.registry().definitions.get(text) if "app" in given.values else None
    if job is not None and job.schedule is not None:
        return ready(given, job.schedule, text)
    try:
        return ready(given, schedule_of(text, tz), name)
    except InvalidSchedule as error:
        cure = (
            "; for a job's slots write its name and --app MODULE"
            if text.replace("-", "_").isidentifier()
            else ""
        )
        raise InvalidSchedule(f"{error}{cure}") from None


def _list_slots(
    given: Given, found: Schedule, tz: str | None, count: int, after: str | None
) -> None:
    zone = zone_of(found, tz)
    for note in other_readings(found):
        say(note, err=True)
    entries = outlook(found, instant(after, zone), count, zone)
    if given.json:
        print_json_list(entries)
        return
    lines = list(entries)
    if not lines:
        say("no further slot")
        return
    print_table(("SLOT", "UTC", ""), _rows(lines, zone))
    say_zones([zone])


def _month(
    given: Given,
    text: str | None,
    tz: str | None,
    name: str | None,
    month: str | None,
    plot: Path | None,
) -> None:
    from slotwise.cli.schedule_months import show_month  # late: it loads the pictures

    if text is not None:
        one = _named(given, text, tz, name)
        found = Counter({one: 1})
        subject = text
        zone = zone_of(one, tz)
    else:
        found = _all_schedules(given)
        subject = counted(found.total(), "job")
        zone = zone_named(tz or "UTC")
    show_month(given, subject, found, wanted=month, zone=zone, plot=plot)


def _list_schedules(
    given: Given, tz: str | None, count: int, after: str | None
) -> None:
    """Each schedule that there is, those that are due first on top; how many jobs have it."""
    start = instant(after, zone_named(tz or "UTC"))
    lines = [
        (one, jobs, None if one.from_end else one.next_after(start))
        for one, jobs in _all_schedules(given).items()
    ]
    last = datetime.max.replace(tzinfo=UTC)
    lines.sort(key=lambda line: (line[2] or last, str(line[0])))
    if given.json:
        print_json_list(
            {"schedule": str(one), "jobs": jobs, "next_slot": json_value(slot)}
            for one, jobs, slot in lines
        )
        return
    if not lines:
        say("no schedules yet: a worker plans its jobs when it starts")
        return
    zones = [zone_of(one, tz) for one, _, _ in lines[:count]]
    print_table(
        ("SCHEDULE", "JOBS", "NEXT SLOT"),
        [
            [describe_schedule(one), f"{jobs:,}", moment(slot, zone)]
            for (one, jobs, slot), zone in zip(lines, zones, strict=False)
        ],
    )
    say_zones(zones)
    if len(lines) > count:
        say(f"… {len(lines) - count} more; -n shows them", err=True)


def _all_schedules(given: Given) -> Counter[Schedule]:
    """The schedules of the application's jobs; without an application, of all jobs and instances
    in the database.
    """
    if given.settings().app:
        return Counter(
            ready(given, job.schedule, job.name)
            for job in given.registry().jobs
            if job.schedule
        )
    with given.inspection() as inspect:
        found = Counter[Schedule]()
        for text, count in inspect.schedules().items():
            found[parse_schedule(text).last] += count  # several texts may end alike
        return found


def _rows(
    entries: Sequence[OutlookEntry], zone: ZoneInfo
) -> Iterator[list[str | Text]]:
    """One line for each slot; what the clocks do before it is a note of its line."""
    notes: list[str] = []
    for entry in entries:
        if entry.kind in ("clocks", "missing"):
            notes.append(
                f"{entry.local} does not exist"
                if entry.kind == "missing"
                else f"{entry.note} before it"
            )
            continue
        style = "yellow" if entry.kind == "skipped" else "cyan" if notes else ""
        cells = (
            moment(entry.instant, zone),
            moment(entry.instant),
            "; ".join(filter(None, [*notes, entry.note])),
        )
        yield [Text(cell, style=style) for cell in cells]
        notes.clear()


@schedule.command(
    "diff",
    cls=Command,
    notes="0  the same slots\n1  they differ",
    examples="""
    slotwise schedule diff "0 2 * * *" "30 2 * * *" --days 30
    slotwise schedule diff "0 2 * * *" "CRON|0 2 * * *|Europe/Vienna" --after 2026-03-20 --days 10
    """,
)
@click.argument("old")
@click.argument("new")
@_TZ
@_NAME
@click.option(
    "--days",
    type=click.IntRange(1, 3660),
    default=30,
    show_default=True,
    help="Number of days to compare.",
)
@lines_option(50, "At most this many differences.")
@_AFTER
@common
@pass_given
def diff(
    given: Given,
    old: str,
    new: str,
    tz: str | None,
    name: str | None,
    days: int,
    count: int,
    after: str | None,
) -> int:
    """List the slots that a change from OLD to NEW removes (-) and adds (+)."""
    before, later = (ready(given, schedule_of(text, tz), name) for text in (old, new))
    zone = zone_of(later, tz)
    start = instant(after, zone)
    found = compare_schedules(before, later, start, start + timedelta(days=days))
    differences = list(islice(found.differences(), count))
    sums = {"removed": found.removed, "added": found.added, "kept": found.kept}
    if given.json:
        lines = [
            {"slot": json_value(slot), "change": sign} for slot, sign in differences
        ]
        print_json({**sums, "differences": lines})
    else:
        _print_differences(differences, sums, zone, days)
    return 1 if found.removed or found.added else 0


def _print_differences(
    lines: Sequence[tuple[datetime, str]],
    sums: Mapping[str, int],
    zone: ZoneInfo,
    days: int,
) -> None:
    styles = {"-": "red", "+": "green"}
    rows: list[list[str | Text]] = [
        [Text(f"{sign} {moment(slot, zone)}", style=styles[sign]), moment(slot)]
        for slot, sign in lines
    ]
    if rows:
        print_table(("SLOT", "UTC"), rows)
        say_zones([zone])
    left = sums["removed"] + sums["added"] - len(lines)
    if left > 0:
        say(f"… {counted(left, 'more difference')}", err=True)
    say(
        f"in {counted(days, 'day')}: {sums['removed']} removed, "
        f"{sums['added']} added, {sums['kept']} kept"
    )


def schedule_of(text: str, tz: str | None) -> Schedule:
    """Parse a schedule; `tz` is the zone of a plain cron expression. Raises InvalidSchedule."""
    try:
        found = parse_schedule(text)
    except InvalidSchedule:
        if tz and "|" not in text:
            Cron(text, tz)  # which says what to write in that zone
        raise
    return (
        Cron(text, tz) if tz and isinstance(found, Cron) and "|" not in text else found
    )


def zone_of(schedule: Schedule, tz: str | None) -> ZoneInfo:
    """The zone for local times. Raises InvalidSchedule."""
    return zone_named(tz) if tz else schedule.local_zone or ZoneInfo("UTC")


def ready(given: Given, schedule: Schedule, name: str | None) -> Schedule:
    """Bind the schedule to the calendars in the database, and to the name of a job if it depends
    on one.
    """
    calendars: Mapping[str, Calendar] = {}
    if None in schedule.calendars.values():  # else it needs no database
        with given.inspection() as inspect:
            calendars = inspect.calendars(schedule)
    bound = schedule.bind(name or "", calendars)
    if name is None and bound != schedule.bind("another", calendars):
        raise click.UsageError("H is decided by the name of the job; give --name")
    return bound


def instant(text: str | None, zone: ZoneInfo) -> datetime:
    """Parse ISO 8601, in this zone unless it has an offset, or a duration from now; None is
    now.
    """
    if text is None:
        return datetime.now(UTC)
    with suppress(InvalidSetting):
        return datetime.now(UTC) + parse_duration(text)
    try:
        written = read_written(text, "--after")
    except ValueError:
        forms = f"neither {FORMS} nor {DURATIONS} (2h)"
        raise click.UsageError(f"--after {text}: {forms}") from None
    return written.within(zone, "--after")


schedule.add_command(sync)
