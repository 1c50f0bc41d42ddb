"""``slotwise crontab``: how a worker would read crontabs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.text import Text

from slotwise.cli.shared import exits
from slotwise.cli.shared.crontab_options import count, format_option, refuse, show, with_host, zone_option
from slotwise.cli.shared.options import Command, Given, Group, common, pass_given, with_options
from slotwise.cli.shared.output import as_json, print_json, print_table
from slotwise.cli.shared.terminal import moment, say, say_document
from slotwise.contrib.crontab import Crontabs, Entry, read_crontabs
from slotwise.contrib.crontab.crontabs import Format, module_text
from slotwise.contrib.logging import plain
from slotwise.errors import ConfigurationError, InvalidCrontab

_COLUMNS = ("JOB", "TIME", "ZONE", "USER", "NEXT SLOT", "COMMAND", "PLACE")


@click.group(
    cls=Group,
    short_help="Check and convert crontabs.",
    examples="slotwise crontab check /etc/cron.d\nslotwise crontab import shop.crontab -o jobs.py",
)
@common
def crontab() -> None:
    """Check and convert crontabs as `slotwise worker --crontab` reads them. Needs no database."""


_reading = with_options(
    click.argument("files", metavar="FILE...", nargs=-1, required=True),
    format_option("--crontab-format", "form"),
    zone_option("--crontab-tz", "tz"),
)


@crontab.command(
    cls=Command,
    short_help="List all problems of crontabs.",
    notes="""
    0  every line can run
    1  a line cannot, or a file cannot be read; with --strict, also if there is a warning
    """,
    examples="""
    slotwise crontab check shop.crontab
    slotwise crontab check /etc/crontab /etc/cron.d --strict
    crontab -l | slotwise crontab check --crontab-tz Europe/Vienna -
    slotwise crontab check shop.crontab --json | jq -r '.problems[] | [.file, .line, .text] | @tsv'
    """,
)
@_reading
@click.option("--strict", is_flag=True, help="Fail on warnings, too.")
@common
@pass_given
def check(given: Given, files: tuple[str, ...], form: Format, tz: str | None, strict: bool) -> int:
    """List all problems of crontabs, and of folders of them, each with its place and its cure.

    An error is a line that cannot run. A warning is a line that may not do what its author meant. A note is a feature
    of cron that slotwise does not have. FILE may be -, the standard input.
    """
    found = with_host(read_crontabs(*files, format=form, tz=tz), level="warning")
    fatal = ("error", "warning") if strict else ("error",)
    failing = [problem for problem in found.problems if problem.level in fatal]
    if given.json:
        _print_json(found, ok=not failing)
    else:
        if found.entries:
            print_table(_COLUMNS, map(_row, found.entries))
        show(list(found.problems))
        say(count(failing) if failing else f"all lines can run: {len(found.entries)}", err=True)
    return exits.FAILED if failing else exits.OK


@crontab.command(
    "import",
    cls=Command,
    short_help="Print a Python module that runs the same lines.",
    notes="""
    0  all lines are in the module
    1  a line cannot run, or a file cannot be read or written
    """,
    examples="""
    slotwise crontab import shop.crontab > jobs.py
    slotwise crontab import /etc/cron.d/shop -o jobs.py && slotwise worker --app jobs
    """,
)
@_reading
@click.option("-o", "--output", metavar="FILE", help="Write to this file, which must not exist yet.")
@click.option("--skip-bad-lines", is_flag=True, help="Import the other lines if some cannot run.")
@common
def import_(files: tuple[str, ...], form: Format, tz: str | None, output: str | None, skip_bad_lines: bool) -> None:
    """Print a Python module with a CommandJob for each line of crontabs, and a registry of them all.

    The jobs keep the names that they have under `slotwise worker --crontab`. FILE may be -, the standard input.
    """
    found = read_crontabs(*files, format=form, tz=tz)
    refuse(found.errors, skip_bad_lines=skip_bad_lines)
    show(list(found.problems))
    if not found.entries:
        raise InvalidCrontab(f"there is no line to import in {', '.join(files)}")
    _write(module_text(found.entries), output)


def _write(text: str, output: str | None) -> None:
    if output is None:
        say_document(text)
        return
    try:
        with Path(output).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigurationError(f"{output} exists already; remove it, or write to another file") from None


def _print_json(found: Crontabs, *, ok: bool) -> None:
    print_json(
        {
            "ok": ok,
            "jobs": [_as_json(entry) for entry in found.entries],
            "problems": [as_json(problem) for problem in found.problems],
        }
    )


def _as_json(entry: Entry) -> dict[str, object]:
    return {
        "job": entry.name,
        "file": entry.file,
        "line": entry.line,
        "time": entry.time,
        "zone": entry.schedule.zone.key,
        "schedule": str(entry.schedule),
        "next_slot": plain(_next_slot(entry)),
        "user": entry.user,
        "command": entry.command,
        "stdin": entry.stdin,
        "env": dict(entry.env),
        "timeout": plain(entry.timeout),
        "on_lost": entry.on_lost,
    }


def _next_slot(entry: Entry) -> datetime | None:
    """The next slot by this machine's clock; a worker uses the database's."""
    return entry.schedule.bind(entry.name).next_after(datetime.now(UTC))


def _row(entry: Entry) -> Sequence[str | Text]:
    zone = entry.schedule.zone.key
    return [
        entry.name,
        entry.time,
        zone,
        entry.user or "–",
        moment(_next_slot(entry), entry.schedule.zone),
        entry.command,
        entry.place,
    ]
