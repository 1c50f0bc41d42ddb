"""``slotwise workers``: who is at work."""

from __future__ import annotations

from datetime import datetime

import click
from rich.text import Text

from slotwise.cli.shared.command import Command
from slotwise.cli.shared.options import Given, common, pass_given
from slotwise.cli.shared.output import ago, moment, outcome, print_json_list, print_table, span
from slotwise.store.schema.worker_rows import WorkerLine

_COLUMNS = ("WORKER", "STATE", "RUNNING", "TAGS", "STARTED", "LAST SEEN", "SKEW", "VERSION")


@click.command(
    cls=Command,
    examples="""
    slotwise workers
    slotwise workers --json | jq '[.[] | select(.live)] | length'
    """,
)
@common
@pass_given
def workers(given: Given) -> None:
    """Workers that have signed in and not out. "gone": not seen for longer than its lease; its slots are taken over."""
    with given.reader() as reader:
        lines, now = reader.workers(), reader.now()
    if given.json:
        print_json_list(lines)
    elif not lines:
        click.echo("no workers; start one: slotwise worker --app …")
    else:
        told = any(line.revision for line in lines)
        print_table([*_COLUMNS, *["REVISION"] * told], [_row(line, now, told) for line in lines])


def _row(line: WorkerLine, now: datetime, told: bool) -> list[str | Text]:
    return [
        line.worker,
        outcome(line.state if line.live else "gone"),
        f"{line.running} of {line.capacity}",
        ", ".join(line.tags) or "–",
        moment(line.started),
        ago(line.last_seen, now),
        span(line.skew),
        line.version,
        *[line.revision or "–"] * told,
    ]
