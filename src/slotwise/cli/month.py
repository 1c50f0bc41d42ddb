"""``slotwise schedule month``: the starts of a month, on the terminal or as a picture."""

from __future__ import annotations

from bisect import bisect_left
from calendar import monthrange
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import accumulate, pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import click
from rich.text import Text

from slotwise.cli.heatmap import draw
from slotwise.cli.shared.command import Command
from slotwise.cli.shared.options import Given, common, pass_given
from slotwise.cli.shared.output import print_json_object, print_table
from slotwise.cli.shared.schedule_text import ready, schedule_of, zone_of
from slotwise.model.records import KNOWN_YEARS
from slotwise.schedules import Schedule, parse_schedule
from slotwise.schedules.zones import zone_named

_TICK, _DAY = timedelta(microseconds=1), timedelta(days=1)
_SHADES = ("", "dim", "", "bold", "bold yellow", "bold red")
_PICTURES = (".svg", ".png")


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """How often jobs start in each hour of some days, by the clocks of a zone."""

    days: Sequence[date]
    hours: Sequence[Sequence[int]]
    passed_over: Sequence[int]
    zone: ZoneInfo

    def of_day(self, number: int) -> int:
        return sum(self.hours[number])


def count_starts(schedules: Mapping[Schedule, int], days: Sequence[date], zone: ZoneInfo) -> Starts:
    """Count, hour by hour of these days in a row, each schedule as often as jobs go by it.

    Where clocks change, an hour may last for none or for two.
    """
    edges = _edges(days, zone)
    running, passed = [0] * (len(edges) - 1), [0] * (len(edges) - 1)
    for schedule, weight in schedules.items():
        _add(running, schedule.running, edges, weight)
        if schedule.running is not schedule:
            _add(passed, schedule, edges, weight)
            _add(passed, schedule.running, edges, -weight)
    return Starts(
        days=days,
        hours=[running[begin : begin + 24] for begin in range(0, len(running), 24)],
        passed_over=[sum(passed[begin : begin + 24]) for begin in range(0, len(passed), 24)],
        zone=zone,
    )


def _edges(days: Sequence[date], zone: ZoneInfo) -> list[datetime]:
    """Right before each hour, and at the end. A day that a zone leaves out ends before it begins: it has no hours."""
    edges = [_edge(day, hour, zone) for day in days for hour in range(24)] + [_edge(days[-1], 24, zone)]
    return [*accumulate(reversed(edges), min)][::-1]


def _edge(day: date, hour: int, zone: ZoneInfo) -> datetime:
    local = datetime(day.year, day.month, day.day, tzinfo=zone) + timedelta(hours=hour)
    return local.astimezone(UTC) - _TICK


def _add(hours: list[int], schedule: Schedule, edges: Sequence[datetime], weight: int) -> None:
    """Count a schedule's slots into hours: the few of a sparse one are walked, those of a dense one never."""
    if schedule.count_between(edges[0], edges[-1]) <= len(hours):
        for slot in schedule.slots(edges[0], edges[-1]):
            hours[bisect_left(edges, slot) - 1] += weight
        return
    for number, (low, high) in enumerate(pairwise(edges)):
        if low < high:
            hours[number] += weight * schedule.count_between(low, high)


@click.command(
    cls=Command,
    examples="""
    slotwise schedule month "0 9 * * MON-FRI" --tz Europe/Vienna
    slotwise schedule month --app jobs --month 2026-11
    slotwise schedule month --app jobs --plot starts.svg         the herd at midnight becomes visible
    """,
)
@click.argument("text", required=False)
@click.option("--month", "wanted", metavar="YYYY-MM", help="Default: this month.")
@click.option("--tz", metavar="ZONE", help="Zone of the clocks shown, and of a plain cron expression; default: UTC.")
@click.option("--name", metavar="JOB", help="The job whose name decides what H is.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Draw it: .svg or .png.")
@common
@pass_given
def month(
    given: Given, text: str | None, wanted: str | None, tz: str | None, name: str | None, plot: Path | None
) -> None:
    """The starts in a month: of TEXT, else of all jobs of the application, else of all in the database.

    --plot draws a heat map of the starts per hour. For PNG: pip install 'slotwise[plot]'.
    """
    if plot is not None and plot.suffix.lower() not in _PICTURES:
        raise click.UsageError(f"--plot {plot}: write a name that ends with .svg or .png")
    if text is not None:
        wanted_one = ready(given, schedule_of(text, tz), name)
        found, zone = Counter({wanted_one: 1}), zone_of(wanted_one, tz)
    else:
        found, zone = _jobs(given), zone_named(tz or "UTC")
    countable = {one: count for one, count in found.items() if not one.from_end}
    starts = count_starts(countable, _days(wanted, zone), zone)
    title = f"{starts.days[0]:%B %Y}, {zone.key}: {sum(map(sum, starts.hours)):,} starts of {_subject(text, found)}"
    if plot is not None:
        draw(plot, _cut(title), [f"{day:%a %d}" for day in starts.days], starts.hours)
        click.echo(f"wrote {plot}", err=True)
    if given.json:
        print_json_object(_json(starts, found))
    elif plot is None:
        _print(title, starts)
        if left := found.total() - sum(countable.values()):
            click.echo(f"not counted: {left} with a fixed delay after each run", err=True)


def _cut(title: str) -> str:
    return title if len(title) <= 90 else f"{title[:89]}…"


def _subject(text: str | None, found: Counter[Schedule]) -> str:
    return text or f"{found.total():,} job{'' if found.total() == 1 else 's'}"


def _jobs(given: Given) -> Counter[Schedule]:
    """The schedules of the application's jobs; without an application, of all jobs and instances in the database."""
    if given.settings().app:
        return Counter(ready(given, job.schedule, job.name) for job in given.registry().jobs if job.schedule)
    with given.reader() as reader:
        return Counter({parse_schedule(text).last: count for text, count in reader.schedules().items()})


def _days(wanted: str | None, zone: ZoneInfo) -> list[date]:
    """All days of a month."""
    try:
        first = date.fromisoformat(f"{wanted}-01") if wanted else datetime.now(zone).date().replace(day=1)
    except ValueError:
        raise click.UsageError(f"--month {wanted}: write a year and a month, as 2026-11") from None
    if not 1900 <= first.year < 9000:
        raise click.UsageError(f"--month {wanted}: schedules know {KNOWN_YEARS}")
    return [first + number * _DAY for number in range(monthrange(first.year, first.month)[1])]


def _json(starts: Starts, found: Counter[Schedule]) -> dict[str, object]:
    return {
        "zone": starts.zone.key,
        "schedules": {str(schedule): count for schedule, count in found.items()},
        "days": [
            {"day": day.isoformat(), "starts": starts.of_day(number), "passed_over": starts.passed_over[number],
             "hours": list(starts.hours[number])}
            for number, day in enumerate(starts.days)
        ],
    }  # fmt: skip


def _print(title: str, starts: Starts) -> None:
    """Weeks from Monday to Sunday: under each date how often something starts."""
    most = max(starts.of_day(number) for number in range(len(starts.days)))
    cells: list[str | Text] = [""] * starts.days[0].weekday()
    cells += [_cell(starts, number, most) for number in range(len(starts.days))]
    cells += [""] * (-len(cells) % 7)
    click.echo(title)
    print_table([f"{name:>8}" for name in ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")],
                [cells[week : week + 7] for week in range(0, len(cells), 7)])  # fmt: skip
    if any(starts.passed_over):
        click.echo(f"({sum(starts.passed_over)} more are passed over by a calendar: -n on their days)")


def _cell(starts: Starts, number: int, most: int) -> Text:
    """`14  24`: the date, and how often; `14±` where clocks change, `-3` for slots that are passed over."""
    count, passed = starts.of_day(number), starts.passed_over[number]
    told = [f"-{passed}"] * bool(passed) + [str(count)] * bool(count)
    shade = min(4, 5 * count // (most + 1)) + 1 if count else 0
    day = f"{starts.days[number].day:>2}{'±' if _changes_clocks(starts.days[number], starts.zone) else ' '}"
    return Text(day, style="bold") + Text(f"{' '.join(told) or '·':>5}", style=_SHADES[shade])


def _changes_clocks(day: date, zone: ZoneInfo) -> bool:
    return _edge(day, 24, zone) - _edge(day, 0, zone) != _DAY
