"""``slotwise audit``: the operations on jobs."""

from __future__ import annotations

import json
import re
from typing import Final
from zoneinfo import ZoneInfo

import click

from slotwise.cli.shared.options import (
    Command,
    Given,
    common,
    lines_option,
    pass_given,
)
from slotwise.cli.shared.output import (
    print_json_list,
    print_table,
    say_zones,
    warn_paused,
)
from slotwise.cli.shared.terminal import exact, moment, say
from slotwise.inspect import RECURRING, AuditEntry, json_value

UTC: Final = ZoneInfo("UTC")
#: The revision and days of a calendar in the text form of a schedule.
_DAYS: Final = re.compile(r"@\d+\[[^\]]*\]")
#: The most characters of an author and of an operation's arguments in the table.
_MOST_AUTHOR: Final = 60
_MOST_ARGUMENTS: Final = 70


@click.command(
    cls=Command,
    short_help="List the operations on jobs: author, time and reason.",
    examples="""
    slotwise audit
    slotwise audit nightly-report -n 50 --json
    """,
)
@click.argument("name", required=False)
@lines_option(20)
@common
@pass_given
def audit(given: Given, name: str | None, count: int) -> None:
    """List the operations on jobs, the newest first; with NAME, those on that job and those on
    all.
    """
    with given.inspection() as inspect:
        paused = inspect.all_paused()
        entries = inspect.audit(name, limit=count)
        if name is not None and all(entry.job != name for entry in entries):
            inspect.check_name(name)
        zones = inspect.zones(
            {
                (entry.job, entry.id or RECURRING)
                for entry in entries
                if entry.job is not None
            }
        )
    if given.json:
        print_json_list(_audit_json(entry) for entry in entries)
        return
    warn_paused(paused)
    if not entries:
        say("no operations yet")
        return
    rows = [
        _audit_row(entry, zones.get((entry.job or "", entry.id or RECURRING), UTC))
        for entry in entries
    ]
    print_table(
        ("AT", "AUTHOR", "OPERATION", "JOB", "SLOT", "WITH", "NOTE"),
        rows,
        spare=("WITH", "SLOT"),
        folds="NOTE",
    )
    say_zones(zones.values())


def _audit_row(entry: AuditEntry, zone: ZoneInfo) -> list[str]:
    said = ", ".join(
        f"{name}={_DAYS.sub('', str(value))}"
        for name, value in entry.arguments.items()
    )
    return [
        moment(entry.at, zone),
        _cut(entry.author, _MOST_AUTHOR),
        entry.operation,
        entry.job or "–",
        "–" if entry.slot is None else exact(entry.slot, zone),
        _cut(said, _MOST_ARGUMENTS) or "–",
        entry.note or "–",
    ]


def _cut(text: str, most: int) -> str:
    """Return the text; of a longer one the beginning and the end, where the database has written
    the role of an author.
    """
    if len(text) <= most:
        return text
    end = most // 2
    return f"{text[: most - end - 1]}…{text[-end:]}"


def _audit_json(entry: AuditEntry) -> dict[str, object]:
    return {
        "number": entry.number,
        "at": json_value(entry.at),
        "author": entry.author,
        "operation": entry.operation,
        "job": entry.job,
        "slot": json_value(entry.slot),
        "arguments": json.loads(json.dumps(entry.arguments)),
        "note": entry.note,
    }
