"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias
from zoneinfo import ZoneInfo

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from slotwise.cli.shared.terminal import (
    moment,
    say,
    say_json,
    say_lines,
    say_styled,
    shown,
    unharmed,
)
from slotwise.contrib.logging import escaped
from slotwise.inspect import Value, json_value
from slotwise.spi import ListedState, Outcome, short_duration

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from slotwise.cli.shared.options import Given
    from slotwise.inspect import AttemptInfo, JobInfo, Rate
    from slotwise.operations import Paused

    #: A listed thing, or a JSON object.
    Printable: TypeAlias = DataclassInstance | Mapping[str, object]

#: The width of the console where no terminal limits it: nothing is folded.
_UNBOUNDED = 10_000
#: A column is folded to no less than this.
NARROWEST = 24
#: The same of one that has ranges of instants: an instant, and an ellipsis.
RANGE = 27
#: What stands between two columns.
_GAP = "  "


# -- JSON -----------------------------------------------------------------------------------------


def print_json(line: Printable) -> None:
    """Print one object on one line."""
    say_json(json.dumps(as_json(line)))


def print_json_list(lines: Iterable[Printable]) -> None:
    """Print an array with one object per line, while ``lines`` is read."""
    first = True
    for line in lines:
        say_json(("[\n" if first else ",\n") + json.dumps(as_json(line)), end="")
        first = False
    say_json("[]" if first else "\n]")


def as_json(line: Printable) -> dict[str, object]:
    """The fields of a dataclass by name; a JSON object stays as it is."""
    if isinstance(line, Mapping):
        return dict(line)
    if isinstance(line, Value):
        return line.as_json()
    return {
        spec.name: json_value(getattr(line, spec.name))
        for spec in dataclasses.fields(line)
    }


# -- the results of operations --------------------------------------------------------------------


def print_result(
    given: Given, text: str, *, dry_run: bool | None = None, **facts: object
) -> None:
    """Print what an operation did: a line, or a JSON object of ``facts``."""
    dry_run = given.dry_run if dry_run is None else dry_run
    with unharmed():
        if given.json:
            print_json(
                {name: json_value(value) for name, value in facts.items()}
                | {"dry_run": dry_run}
            )
        else:
            say(f"dry run: {text}" if dry_run else text)


def warn_paused(paused: Paused | None) -> None:
    """Warn on stderr while all jobs are paused; no-op otherwise."""
    if paused is not None:
        note = f": {paused.note}" if paused.note else ""
        cure = "nothing starts before: slotwise resume --all"
        say(
            f"everything has been paused since {moment(paused.since)}, by "
            f"{paused.author}{note}; {cure}",
            err=True,
        )


# -- tables ---------------------------------------------------------------------------------------


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    spare: Sequence[str] = (),
    folds: str | Mapping[str, int] | None = None,
    last: str | None = None,
) -> None:
    """Print a table without rules.

    On a terminal that is too narrow, the columns ``spare`` are left out, the first one first, with
    a note on stderr; then the column ``folds`` is folded, or several, each to no less than its
    width; then the column ``last`` is left out. If that does not do, each row becomes a few lines.
    """
    least = {folds: NARROWEST} if isinstance(folds, str) else dict(folds or {})
    cells = [list(map(_cell, row)) for row in rows]
    console = _console()
    lines = [[Text(column, style="bold") for column in columns], *cells]
    widths = [max(map(_cell_width, column)) for column in zip(*lines, strict=True)]
    kept = _fitting(columns, widths, console.width, spare, least)
    if kept is None and last is not None:
        kept = _fitting(columns, widths, console.width, [*spare, last], least)
    if kept is None:
        _print(console, Group(*(_stacked(columns, row) for row in cells)))
        return
    lines = [[line[number] for number in kept] for line in lines]
    widths = [widths[number] for number in kept]
    if _total(widths) <= console.width:
        text = Text("\n").join(_aligned(line, widths) for line in lines)
        _print(console, text, fits=True)
    else:
        narrow = [least.get(columns[number]) for number in kept]
        _print(console, _folded(lines, _shared(widths, narrow, console.width)))
    left = [column for number, column in enumerate(columns) if number not in kept]
    if left:
        say(f"not shown at this width: {', '.join(left)}; --json has all", err=True)


def _fitting(
    columns: Sequence[str],
    widths: Sequence[int],
    room: int,
    spare: Sequence[str],
    folds: Mapping[str, int],
) -> list[int] | None:
    """Return the numbers of the columns that fit; None if those that are not ``spare`` do not."""
    kept = list(range(len(columns)))
    for column in spare:
        if _total([widths[number] for number in kept]) <= room:
            break
        if column in columns:
            kept.remove(columns.index(column))
    least = [
        min(widths[number], folds.get(columns[number], widths[number]))
        for number in kept
    ]
    return kept if _total(least) <= room else None


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _folded(lines: Sequence[Sequence[Text]], widths: Sequence[int]) -> Table:
    """The same as a grid of rich, which folds the cells that are too wide."""
    table = _grid()
    for width in widths:
        table.add_column(overflow="fold", width=width)
    for line in lines:
        table.add_row(*line)
    return table


def _shared(
    widths: Sequence[int], least: Sequence[int | None], room: int
) -> Sequence[int]:
    """Return the widths of the columns: those with a least width share what the others leave."""
    found = [
        width if narrow is None else min(width, narrow)
        for width, narrow in zip(widths, least, strict=True)
    ]
    left = room - _total(found)
    for number, width in enumerate(widths):
        more = min(width - found[number], left)
        found[number] += more
        left -= more
    return found


def _aligned(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    """A line of a table. Rich's own tables take a minute for ten thousand lines."""
    line = Text()
    for place, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        line.append_text(cell)
        if place < len(cells) - 1:
            line.append(" " * (width - _cell_width(cell)) + _GAP)
    return line


def _cell_width(cell: Text) -> int:
    return cell_len(cell.plain)


def _cell(value: str | Text) -> Text:
    """The cell with all characters escaped that are not printable."""
    if isinstance(value, Text):
        return (
            value
            if value.plain.isprintable()
            else Text(escaped(value.plain), style=value.style)
        )
    return Text(escaped(value))


def _stacked(columns: Sequence[str], row: Sequence[Text]) -> Group:
    """The row's name, then its other cells, indented; a cell that begins like a number gets its
    column's name.
    """
    rest = []
    for column, cell in zip(columns[1:], row[1:], strict=True):
        if cell.plain != "–":
            label = f"{column.lower()} " if cell.plain[:1] in "+0123456789" else ""
            rest.append(Text(label) + cell)
    row[0].stylize("bold")
    return Group(row[0], Padding(Text(" · ").join(rest), (0, 0, 0, 2)))


def print_attempts(
    attempts: Sequence[AttemptInfo], zone: ZoneInfo, error: str | None = None
) -> None:
    """Print the attempts as a table, and then the tracebacks, as Python prints them; ``error``:
    one more of those.
    """
    if attempts:
        rows: list[list[str | Text]] = [
            [
                str(one.number),
                outcome(one.outcome),
                one.reason or "–",
                one.worker or "–",
                moment(one.claimed, zone),
                moment(one.ended, zone),
            ]
            for one in attempts
        ]
        say("")
        print_table(("ATTEMPT", "OUTCOME", "WHY", "WORKER", "CLAIMED", "ENDED"), rows)
    print_tracebacks(attempts, zone)
    if error and error not in {one.error for one in attempts}:
        say("", "last error:")
        say_lines(error)


def print_tracebacks(attempts: Sequence[AttemptInfo], zone: ZoneInfo) -> None:
    """Print what each attempt failed with."""
    for one in attempts:
        if one.error:
            say(
                "",
                f"attempt {one.number}, ended {moment(one.ended, zone)} on {one.worker}:",
            )
            say_lines(one.error)


def print_fields(fields: Iterable[tuple[str, str | Text]]) -> None:
    """Print names and values, one pair per line."""
    table = _grid()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields:
        table.add_row(name, _cell(value))
    _print(_console(), table)


def _grid() -> Table:
    return Table(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        collapse_padding=True,
        show_header=False,
    )


def screen_console() -> Console:
    """Return the console of a live view. Its text is escaped by who makes it."""
    return Console(highlight=False, markup=False, emoji=False)


def _console() -> Console:
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _UNBOUNDED
    return console


def _print(console: Console, content: RenderableType, *, fits: bool = False) -> None:
    """Print it; ``fits``: no line is to be folded."""
    with console.capture() as capture:
        console.print(content, soft_wrap=fits)
    say_styled(capture.get(), color=console.is_terminal)


# -- cells ----------------------------------------------------------------------------------------


def say_zones(zones: Iterable[ZoneInfo]) -> None:
    """Name the zone of a listing's times on stderr, once; no-op if all are in UTC."""
    names = sorted({shown(zone).key for zone in zones})
    if names and names != ["UTC"]:
        several = "each in its job's zone: " if len(names) > 1 else ""
        say(f"times: {several}{', '.join(names)}", err=True)


def ago(instant: datetime | None, now: datetime) -> str:
    """Format the time since an instant; ``now`` is the database's time."""
    return "–" if instant is None else f"{short_duration(now - instant)} ago"


def shortened(worker: str | None) -> str:
    """Host and process of a worker, without its boot id."""
    return "–" if worker is None else worker.rpartition(":")[0] or worker


_STYLES: dict[str, str] = {
    Outcome.SUCCEEDED: "green",
    Outcome.RUNNING: "cyan",
    Outcome.CLAIMED: "cyan",
    ListedState.WAITING: "dim",
    Outcome.FAILED: "red",
    Outcome.DEAD: "red",
    Outcome.LOST: "red",
    Outcome.CANCELLED: "yellow",
    Outcome.SKIPPED: "yellow",
    ListedState.PAUSED: "yellow",
    ListedState.UNREADABLE: "red",
    "overdue": "red",
    "gone": "red",
}


def outcome(word: str) -> Text:
    """An outcome or state in its colour."""
    return Text(word, style=_STYLES.get(word, ""))


def failed_of_all(rate: Rate) -> str | Text:
    """How many runs have failed, of all."""
    if not rate.failures:
        return f"{rate.runs:,}" if rate.runs else "–"
    return Text(f"{rate.failures:,} of {rate.runs:,}", style="red")


def run_time(line: JobInfo, week: Rate, now: datetime) -> str | Text:
    """How long a run usually takes; of one that runs now, how long it has run."""
    usual = short_duration(week.duration_p50)
    if line.running_since is None:
        return usual
    elapsed = now - line.running_since
    is_long = week.duration_p95 is not None and elapsed > week.duration_p95
    told = short_duration(elapsed)
    if week.duration_p50 is not None:
        told = f"{told} of {usual}"
    return Text(told, style="yellow" if is_long else "cyan")
