"""``slotwise schedule``: what a schedule means, and which slots it has."""

from __future__ import annotations

from calendar import monthrange
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from math import log
from pathlib import Path
from typing import Final
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
from slotwise.cli.shared.options import (
    Command,
    Given,
    Group,
    common,
    lines_option,
    pass_given,
)
from slotwise.cli.shared.output import print_json, print_json_list, print_table, say_zones
from slotwise.cli.shared.starts import StartCounts, count_starts
from slotwise.cli.shared.terminal import moment, say
from slotwise.cli.shared.values import DURATIONS, FORMS, read_written, zone_name
from slotwise.contrib.notations import other_readings
from slotwise.contrib.picture import Box, Label, Picture
from slotwise.inspect import (
    OutlookEntry,
    compare_schedules,
    explain_schedule,
    json_value,
    outlook,
)
from slotwise.spi import parse_duration, zone_named


@click.group(
    cls=Group,
    examples="""
    slotwise schedule explain "30 2 * * *" --tz Europe/Vienna
    slotwise schedule next "30 2 * * *" --tz Europe/Vienna -n 20
    slotwise schedule diff "0 2 * * *" "H 2 * * *" --name nightly-report --days 30
    slotwise schedule month --app jobs --plot starts.svg
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
    examples="""
    slotwise schedule next "30 2 * * *" --tz Europe/Vienna -n 20 --after 2026-03-20
    slotwise schedule next "H 2 * * *" --name nightly-report
    slotwise schedule next nightly-report --app jobs
    slotwise schedule next "EVERY|90s" --json
    """,
)
@click.argument("text")
@_TZ
@_NAME
@lines_option(10, "Number of slots.")
@_AFTER
@common
@pass_given
def next_slots(
    given: Given,
    text: str,
    tz: str | None,
    name: str | None,
    count: int,
    after: str | None,
) -> None:
    """List the next slots of TEXT in local time and UTC; with --app, TEXT may be the name of a
    job.

    Clock changes and their effects on slots are marked, and so are slots that do not run.
    """
    job = given.registry().definitions.get(text) if "app" in given.values else None
    if job is not None and job.schedule is not None:
        found = ready(given, job.schedule, text)
    else:
        try:
            found = ready(given, schedule_of(text, tz), name)
        except InvalidSchedule as error:
            cure = (
                "; for a job's slots write its name and --app MODULE"
                if text.replace("-", "_").isidentifier()
                else ""
            )
            raise InvalidSchedule(f"{error}{cure}") from None
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


def _rows(entries: Sequence[OutlookEntry], zone: ZoneInfo) -> Iterator[list[str | Text]]:
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
        lines = [{"slot": json_value(slot), "change": sign} for slot, sign in differences]
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
        say(f"… {left} more differences", err=True)
    say(
        f"in {days} days: {sums['removed']} removed, {sums['added']} added, {sums['kept']} kept"
    )


_DAY = timedelta(days=1)
_SHADES = ("", "dim", "", "bold", "bold yellow", "bold red")
_PICTURES = (".svg", ".png")


@schedule.command(
    cls=Command,
    examples="""
    slotwise schedule month "0 9 * * MON-FRI" --tz Europe/Vienna
    slotwise schedule month --app jobs --month 2026-11
    slotwise schedule month --app jobs --plot starts.svg         shows the peak at midnight
    """,
)
@click.argument("text", required=False)
@click.option("--month", "wanted", metavar="YYYY-MM", help="Default: this month.")
@click.option(
    "--tz",
    metavar="ZONE",
    callback=zone_name,
    help="Zone of the clocks shown, and of a plain cron expression; default: UTC.",
)
@click.option("--name", metavar="JOB", help="The job whose name decides the value of H.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw a heat map: .svg or .png.",
)
@common
@pass_given
def month(
    given: Given,
    text: str | None,
    wanted: str | None,
    tz: str | None,
    name: str | None,
    plot: Path | None,
) -> None:
    """Count the starts in a month: of TEXT, else of the application's jobs, else of all in the
    database.

    --plot draws a heat map of the starts per hour. For PNG: pip install 'slotwise[plot]'.
    """
    if plot is not None and plot.suffix.lower() not in _PICTURES:
        raise click.UsageError(f"--plot {plot}: write a name that ends with .svg or .png")
    if text is not None:
        wanted_one = ready(given, schedule_of(text, tz), name)
        found = Counter({wanted_one: 1})
        zone = zone_of(wanted_one, tz)
    else:
        found = _jobs(given)
        zone = zone_named(tz or "UTC")
    countable = {one: count for one, count in found.items() if not one.from_end}
    try:
        starts = count_starts(countable, _days_of_month(wanted, zone), zone)
    except InvalidSchedule as error:
        raise click.UsageError(f"--month {wanted}: {error}") from None
    title = (
        f"{starts.days[0]:%B %Y}, {zone.key}: {sum(map(sum, starts.hours)):,} starts "
        f"of {_subject(text, found)}"
    )
    if plot is not None:
        draw_heat_map(
            plot, _cut(title), [f"{day:%a %d}" for day in starts.days], starts.hours
        )
        say(f"wrote {plot}", err=True)
    if given.json:
        print_json(_month_json(starts, found))
    elif plot is None:
        _print_month(title, starts)
        if left := found.total() - sum(countable.values()):
            say(f"not counted: {left} with a fixed delay after each run", err=True)


def _cut(title: str) -> str:
    return title if len(title) <= 90 else f"{title[:89]}…"


def _subject(text: str | None, found: Counter[Schedule]) -> str:
    return text or f"{found.total():,} job{'' if found.total() == 1 else 's'}"


def _jobs(given: Given) -> Counter[Schedule]:
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
        return Counter(
            {
                parse_schedule(text).last: count
                for text, count in inspect.schedules().items()
            }
        )


def _days_of_month(wanted: str | None, zone: ZoneInfo) -> list[date]:
    """All days of a month."""
    try:
        first = (
            date.fromisoformat(f"{wanted}-01")
            if wanted
            else datetime.now(zone).date().replace(day=1)
        )
    except ValueError:
        raise click.UsageError(
            f"--month {wanted}: write a year and a month, as 2026-11"
        ) from None
    return [
        first + number * _DAY for number in range(monthrange(first.year, first.month)[1])
    ]


def _month_json(starts: StartCounts, found: Counter[Schedule]) -> dict[str, object]:
    return {
        "zone": starts.zone.key,
        "schedules": {str(schedule): count for schedule, count in found.items()},
        "days": [
            {
                "day": day.isoformat(),
                "starts": starts.of_day(number),
                "passed_over": starts.passed_over[number],
                "hours": list(starts.hours[number]),
            }
            for number, day in enumerate(starts.days)
        ],
    }


def _print_month(title: str, starts: StartCounts) -> None:
    """Weeks from Monday to Sunday: under each date how often something starts."""
    most = max(starts.of_day(number) for number in range(len(starts.days)))
    cells: list[str | Text] = [""] * starts.days[0].weekday()
    cells += [_cell(starts, number, most) for number in range(len(starts.days))]
    cells += [""] * (-len(cells) % 7)
    say(title)
    print_table(
        [f"{name:>8}" for name in ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")],
        [cells[week : week + 7] for week in range(0, len(cells), 7)],
    )
    if any(starts.passed_over):
        say(
            f"({sum(starts.passed_over)} more are passed over by a calendar: -n on their days)"
        )


def _cell(starts: StartCounts, number: int, most: int) -> Text:
    """`14  24`: the date and the count; `14±` if clocks change, `-3` for slots that are passed
    over.
    """
    count = starts.of_day(number)
    passed = starts.passed_over[number]
    told = [f"-{passed}"] * bool(passed) + [str(count)] * bool(count)
    shade = min(4, 5 * count // (most + 1)) + 1 if count else 0
    mark = "±" if starts.has_clock_change(number) else " "
    day = f"{starts.days[number].day:>2}{mark}"
    return Text(day, style="bold") + Text(
        f"{' '.join(told) or '·':>5}", style=_SHADES[shade]
    )


_CELL: Final = (28, 18)
_LEFT = 64
_TOP = 56
_RIGHT = 24
_BOTTOM = 52
_EMPTY: Final = "#eef1f4"
#: From few to many; each is darker than the one before, so that it is readable without colours.
_HEAT: Final = (
    "#d3e5f2",
    "#a6cde4",
    "#6cb0d6",
    "#3a8fc4",
    "#1a6cab",
    "#0b4a85",
    "#082f5c",
)


def draw_heat_map(
    file: Path, title: str, rows: Sequence[str], counts: Sequence[Sequence[int]]
) -> None:
    """Write the heat map of these rows of 24 hours. Raises ConfigurationError if Pillow is needed
    and missing.
    """
    lay_out(title, rows, counts).write(file)


def lay_out(title: str, rows: Sequence[str], counts: Sequence[Sequence[int]]) -> Picture:
    """Lay the picture out: title, hours, rows, a legend."""
    width, height = _CELL
    most = max((count for row in counts for count in row), default=0)
    bottom = _TOP + height * len(rows)
    shapes: list[Box | Label] = [Label(_LEFT, 18, title, 14)]
    shapes += [
        Label(_LEFT + width * hour + 4, _TOP - 10, f"{hour:02}", 11) for hour in range(24)
    ]
    for number, (name, row) in enumerate(zip(rows, counts, strict=True)):
        top = _TOP + height * number
        shapes.append(Label(_LEFT - 8, top + height // 2, name, 11, end=True))
        for hour, count in enumerate(row):
            told = f"{name}, {hour:02}:00: {count}"
            shapes.append(
                Box(
                    _LEFT + width * hour,
                    top,
                    width - 2,
                    height - 2,
                    _colour(count, most),
                    told,
                )
            )
    shapes += _legend(_LEFT, bottom + 22, most)
    return Picture(_LEFT + width * 24 + _RIGHT, bottom + _BOTTOM, tuple(shapes))


def _legend(x: int, y: int, most: int) -> Iterator[Box | Label]:
    yield Label(x, y, "starts per hour: 0", 11)
    yield Box(x + 110, y - 6, 22, 12, _EMPTY)
    for number, colour in enumerate(_HEAT):
        yield Box(x + 136 + 24 * number, y - 6, 22, 12, colour)
    yield Label(x + 144 + 24 * len(_HEAT), y, f"up to {most}", 11)


def _colour(count: int, most: int) -> str:
    """A logarithmic scale, so that one start among thousands is visible."""
    if not count:
        return _EMPTY
    return _HEAT[min(len(_HEAT) - 1, int(len(_HEAT) * log(count) / log(most + 1)))]


def schedule_of(text: str, tz: str | None) -> Schedule:
    """Parse a schedule; `tz` is the zone of a plain cron expression. Raises InvalidSchedule."""
    try:
        found = parse_schedule(text)
    except InvalidSchedule:
        if tz and "|" not in text:
            Cron(text, tz)  # which says what to write in that zone
        raise
    return Cron(text, tz) if tz and isinstance(found, Cron) and "|" not in text else found


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
