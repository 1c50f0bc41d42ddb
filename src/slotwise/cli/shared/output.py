"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from slotwise.contrib.logging import escaped, plain
from slotwise.model.vocabulary import Outcome, State

#: Wide enough that nothing is folded where no terminal says how wide it is.
_UNBOUNDED = 10_000


def print_json(value: Any) -> None:
    """One of our lines as an object, on one line."""
    print_json_object(as_json(value))


def print_json_object(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value))


def print_json_list(values: Iterable[Any]) -> None:
    """An array with one object per line, written while it is read."""
    first = True
    for value in values:
        click.echo(("[\n" if first else ",\n") + json.dumps(as_json(value)), nl=False)
        first = False
    click.echo("[]" if first else "\n]")


def as_json(value: Any) -> dict[str, Any]:
    """The fields of one of our lines, under their names; an object of its own stays as it is."""
    if isinstance(value, dict):
        return value
    return {spec.name: plain(getattr(value, spec.name)) for spec in dataclasses.fields(value)}


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    """A table without lines; where the terminal is too narrow for it, a few lines for each row instead."""
    cells = [[cell if isinstance(cell, Text) else Text(escaped(cell)) for cell in row] for row in rows]
    console = _console()
    table = _grid(header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in cells:
        table.add_row(*row)
    wanted = Measurement.get(console, console.options.update(max_width=_UNBOUNDED), table).maximum
    _print(console, Group(*(_stacked(columns, row) for row in cells)) if wanted > console.width else table)


def _stacked(columns: Sequence[str], row: Sequence[Text]) -> Group:
    """The row's name, then its other cells, indented; what begins like a number is told what it is."""
    rest = []
    for column, cell in zip(columns[1:], row[1:], strict=True):
        if cell.plain != "–":
            label = f"{column.lower()} " if cell.plain[:1] in "+0123456789" else ""
            rest.append(Text(label) + cell)
    row[0].stylize("bold")
    return Group(row[0], Padding(Text(" · ").join(rest), (0, 0, 0, 2)))


def print_fields(fields: Iterable[tuple[str, str | Text]]) -> None:
    """Names and values, one pair per line."""
    table = _grid(show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields:
        table.add_row(name, value if isinstance(value, Text) else Text(escaped(value)))
    _print(_console(), table)


def _grid(**look: Any) -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), collapse_padding=True, **look)


def _console() -> Console:
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _UNBOUNDED
    return console


def _print(console: Console, content: RenderableType) -> None:
    with console.capture() as capture:
        console.print(content)
    for line in capture.get().splitlines():
        click.echo(line.rstrip(), color=console.is_terminal)


def moment(instant: datetime | None) -> str:
    """The instant in local time and in UTC; milliseconds only where there are any."""
    if instant is None:
        return "–"
    world, local = instant.astimezone(UTC), instant.astimezone()
    if local.utcoffset() == timedelta(0):
        return f"{_clock(world)} UTC"
    same_day = local.date() == world.date()
    return f"{_clock(local)} {local.tzname()} ({_clock(world)[11 if same_day else 0 :]} UTC)"


def _clock(instant: datetime) -> str:
    return instant.replace(tzinfo=None).isoformat(" ", "milliseconds" if instant.microsecond else "seconds")


def ago(instant: datetime | None, now: datetime) -> str:
    """How long ago, by the database's time."""
    return "–" if instant is None else f"{span(now - instant)} ago"


def span(duration: timedelta | None) -> str:
    """A duration as people say it: 120 ms, 3.4 s, 5 min, 2 h 10 min, 3 d 4 h."""
    if duration is None:
        return "–"
    seconds = duration.total_seconds()
    if round(seconds * 1000) < 0:
        return f"-{span(-duration)}"
    if seconds < 1:
        return f"{abs(round(seconds * 1000))} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{days} d {hours % 24} h"


def shortened(worker: str | None) -> str:
    """Host and process of a worker, without its boot id."""
    return "–" if worker is None else worker.rpartition(":")[0] or worker


_STYLES: dict[str, str] = {
    Outcome.SUCCEEDED: "green", Outcome.RUNNING: "cyan", Outcome.CLAIMED: "cyan", State.WAITING: "dim",
    Outcome.FAILED: "red", Outcome.DEAD: "red", Outcome.LOST: "red", Outcome.CANCELLED: "yellow",
    Outcome.SKIPPED: "yellow", State.PAUSED: "yellow", State.UNREADABLE: "red", "overdue": "red", "gone": "red",
}  # fmt: skip


def outcome(word: str) -> Text:
    """The word, in its colour."""
    return Text(escaped(word), style=_STYLES.get(word, ""))
