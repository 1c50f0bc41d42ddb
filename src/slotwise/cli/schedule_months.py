"""The starts of a month: a calendar on the terminal, and a heat map in a picture."""

from __future__ import annotations

from calendar import monthrange
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from math import log
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import click
from rich.text import Text

from slotwise import InvalidSchedule, Schedule
from slotwise.cli.shared.options import Given
from slotwise.cli.shared.output import print_json, print_table
from slotwise.cli.shared.starts import StartCounts, count_starts
from slotwise.cli.shared.terminal import say
from slotwise.contrib.picture import Box, Label, Picture

_DAY = timedelta(days=1)
_SHADES = ("", "dim", "", "bold", "bold yellow", "bold red")
_PICTURES = (".svg", ".png")


def show_month(
    given: Given,
    subject: str,
    found: Counter[Schedule],
    *,
    wanted: str | None,
    zone: ZoneInfo,
    plot: Path | None,
) -> None:
    """Count the starts of these schedules in a month, for people, for programs or as a picture.

    ``wanted``: a year and a month; None: this month.
    """
    if plot is not None and plot.suffix.lower() not in _PICTURES:
        raise click.UsageError(
            f"--plot {plot}: write a name that ends with .svg or .png"
        )
    countable = {one: count for one, count in found.items() if not one.from_end}
    try:
        starts = count_starts(countable, _days_of_month(wanted, zone), zone)
    except InvalidSchedule as error:
        raise click.UsageError(f"--month {wanted}: {error}") from None
    title = (
        f"{starts.days[0]:%B %Y}, {zone.key}: {sum(map(sum, starts.hours)):,} starts "
        f"of {subject}"
    )
    if plot is not None:
        rows = [f"{day:%a %d}" for day in starts.days]
        draw_heat_map(plot, _cut(title), rows, starts.hours)
        say(f"wrote {plot}", err=True)
    if given.json:
        print_json(_month_json(starts, found))
    elif plot is None:
        _print_month(title, starts)
        if left := found.total() - sum(countable.values()):
            say(f"not counted: {left} with a fixed delay after each run", err=True)


def _cut(title: str) -> str:
    return title if len(title) <= 90 else f"{title[:89]}…"


def _days_of_month(wanted: str | None, zone: ZoneInfo) -> list[date]:
    """All days of a month."""
    if wanted in (None, "this"):
        first = datetime.now(zone).date().replace(day=1)
    else:
        try:
            first = date.fromisoformat(f"{wanted}-01")
        except ValueError:
            raise click.UsageError(
                f"--month {wanted}: write a year and a month, as 2026-11, or: this"
            ) from None
    return [
        first + number * _DAY
        for number in range(monthrange(first.year, first.month)[1])
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


def lay_out(
    title: str, rows: Sequence[str], counts: Sequence[Sequence[int]]
) -> Picture:
    """Lay the picture out: title, hours, rows, a legend."""
    width, height = _CELL
    most = max((count for row in counts for count in row), default=0)
    bottom = _TOP + height * len(rows)
    shapes: list[Box | Label] = [Label(_LEFT, 18, title, 14)]
    shapes += [
        Label(_LEFT + width * hour + 4, _TOP - 10, f"{hour:02}", 11)
        for hour in range(24)
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
