"""Crontabs: the options that name them for a worker, and ``slotwise crontab``: how a worker would
read them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from slotwise import ConfigurationError, InvalidCrontab
from slotwise.cli.shared import exits
from slotwise.cli.shared.options import (
    AnyFunction,
    Command,
    Given,
    common,
    pass_given,
    with_options,
)
from slotwise.cli.shared.terminal import moment, say, say_document
from slotwise.cli.shared.values import zone_name
from slotwise.contrib.wording import counted
from slotwise.inspect import json_value
from slotwise.spi import PluginCommand, Section

# Imported late: most workers need no reader of crontabs, and none needs tables, which bring rich.
if TYPE_CHECKING:
    from rich.text import Text

    from slotwise.contrib.commands import CommandJob
    from slotwise.contrib.crontab import Crontabs, Entry, Problem
    from slotwise.contrib.crontab.crontabs import Format
    from slotwise.contrib.crontab.debian import Level

logger = logging.getLogger("slotwise.crontab")

Result = TypeVar("Result")

_COLUMNS = ("JOB", "TIME", "ZONE", "USER", "NEXT SLOT", "COMMAND", "PLACE")
_LEVELS: Final = {
    "error": logging.WARNING,
    "warning": logging.WARNING,
    "note": logging.INFO,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CrontabChoice:
    """The crontabs that a worker runs, and how to read them."""

    files: tuple[str, ...] = ()
    format: Format = "auto"
    tz: str | None = None
    env: tuple[str, ...] = ()
    skip_bad_lines: bool = False

    def jobs(self) -> list[CommandJob]:
        """Create a job for each line. Raises InvalidCrontab if a line cannot run here, unless
        ``skip_bad_lines``.
        """
        if not self.files:
            return []
        from slotwise.contrib.crontab import read_crontabs
        from slotwise.contrib.crontab.crontabs import STDIN
        from slotwise.contrib.crontab.reader import runnable

        if STDIN in self.files:
            raise InvalidCrontab(
                "--crontab -: name a file; each process of a worker reads it when it starts"
            )
        found = with_host(read_crontabs(*self.files, format=self.format, tz=self.tz))
        refuse(found.errors, skip_bad_lines=self.skip_bad_lines)
        for problem in found.problems:
            logger.log(_LEVELS[problem.level], "%s", problem)
        jobs = [entry.job(self.env) for entry in found.entries if runnable(entry)]
        if not jobs:
            raise InvalidCrontab(f"there is no line to run in {', '.join(self.files)}")
        return jobs

    def flags(self) -> Iterator[str]:
        """The same choice, for a child's command line."""
        yield from (f"--crontab={file}" for file in self.files)
        yield from (f"--crontab-env={name}" for name in self.env)
        yield from [f"--crontab-tz={self.tz}"] * (self.tz is not None)
        yield f"--crontab-format={self.format}"
        yield from ["--skip-bad-lines"] * self.skip_bad_lines


def format_option(*names: str) -> Callable[[AnyFunction], AnyFunction]:
    return click.option(
        *names,
        type=click.Choice(["auto", "user", "system"]),
        default="auto",
        help="Whether lines name a user (system) or not (user); default: the file's "
        "location decides.",
    )


def zone_option(*names: str) -> Callable[[AnyFunction], AnyFunction]:
    about = "Zone of lines without a CRON_TZ above them; default: UTC."
    return click.option(*names, metavar="ZONE", callback=zone_name, help=about)


_crontab_options: Final = with_options(
    click.option(
        "--crontab",
        metavar="FILE",
        multiple=True,
        help="Run this crontab, or folder; may be repeated.",
    ),
    format_option("--crontab-format"),
    zone_option("--crontab-tz"),
    click.option(
        "--crontab-env",
        metavar="NAME",
        multiple=True,
        help="Pass this variable of the worker to their commands.",
    ),
    click.option(
        "--skip-bad-lines",
        is_flag=True,
        help="Run the other lines if some cannot run.",
    ),
)


def crontab_options(function: Callable[..., Result]) -> Callable[..., Result]:
    """Add ``--crontab`` and its companions; the function gets one CrontabChoice as
    ``crontabs``.
    """

    @functools.wraps(function)
    def chosen(
        *given: object,
        crontab: tuple[str, ...],
        crontab_format: Format,
        crontab_tz: str | None,
        crontab_env: tuple[str, ...],
        skip_bad_lines: bool,
        **named: object,
    ) -> Result:
        choice = CrontabChoice(
            files=crontab,
            format=crontab_format,
            tz=crontab_tz,
            env=crontab_env,
            skip_bad_lines=skip_bad_lines,
        )
        return function(*given, crontabs=choice, **named)

    return _crontab_options(chosen)


def with_host(found: Crontabs, *, level: Level = "error") -> Crontabs:
    """The same crontabs with the problems of this host."""
    from slotwise.contrib.crontab import Crontabs
    from slotwise.contrib.crontab.reader import host_problems

    problems = [*found.problems, *host_problems(found.entries, level)]
    problems.sort(key=lambda problem: (problem.file, problem.line or 0))
    return Crontabs(entries=found.entries, problems=tuple(problems))


def show(problems: list[Problem]) -> None:
    """Print problems on stderr, one per line, the place first, as editors and CI systems
    expect.
    """
    for problem in problems:
        say(str(problem), err=True)


def refuse(problems: list[Problem], *, skip_bad_lines: bool) -> None:
    """Show all errors and raise InvalidCrontab. ``skip_bad_lines`` does not skip a file that
    cannot be read.
    """
    errors = [problem for problem in problems if problem.level == "error"]
    fatal = (
        [problem for problem in errors if problem.line is None]
        if skip_bad_lines
        else errors
    )
    if fatal:
        show(fatal)
        cure = "fix it" if len(fatal) == 1 else "fix them"
        hint = (
            ""
            if any(problem.line is None for problem in fatal)
            else ", or pass --skip-bad-lines"
        )
        raise InvalidCrontab(f"{count(fatal)}; {cure}{hint}")


def count(problems: list[Problem]) -> str:
    """The number of problems and files."""
    files = {problem.file for problem in problems}
    things = counted(len(problems), "problem")
    return (
        f"{things} in {files.pop()}"
        if len(files) == 1
        else f"{things} in {len(files)} files"
    )


@click.command(
    cls=Command,
    short_help="Check crontabs, or convert them to Python.",
    notes="""
    0  every line can run; with --output, all lines are in the module
    1  a line cannot, or a file cannot be read or written; with --strict, also if there is a warning
    """,
    examples="""
    slotwise crontab shop.crontab
    slotwise crontab /etc/crontab /etc/cron.d --strict
    crontab -l | slotwise crontab --crontab-tz Europe/Vienna -
    slotwise crontab shop.crontab --json | jq -r '.problems[] | [.file, .line, .text] | @tsv'
    slotwise crontab /etc/cron.d/shop -o jobs.py && slotwise worker --app jobs
    """,
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@format_option("--crontab-format", "form")
@zone_option("--crontab-tz", "tz")
@click.option("--strict", is_flag=True, help="Fail on warnings, too.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write a Python module that runs the same lines; FILE must not exist; - is stdout.",
)
@click.option(
    "--skip-bad-lines",
    is_flag=True,
    help="With --output: write the other lines if some cannot run.",
)
@common
@pass_given
def crontab(
    given: Given,
    files: tuple[str, ...],
    form: Format,
    tz: str | None,
    strict: bool,
    output: str | None,
    skip_bad_lines: bool,
) -> int:
    """List the jobs and all problems of crontabs, and of folders of them, each with its location
    and remedy: as `slotwise worker --crontab` reads them. Needs no database.

    An error is a line that cannot run. A warning is a line that may not do what its author meant.
    A note is a feature of cron that slotwise does not have. FILE may be -, the standard input.

    With --output, write a Python module with a CommandJob for each line, and a registry of them
    all. The jobs keep the names that they have under `slotwise worker --crontab`.
    """
    from slotwise.contrib.crontab import read_crontabs

    if output is None and skip_bad_lines:
        raise click.UsageError("--skip-bad-lines is about --output; add it")
    if output is not None and (strict or given.json):
        raise click.UsageError("--output writes Python; leave out --strict and --json")
    found = read_crontabs(*files, format=form, tz=tz)
    if output is None:
        return _check(given, found, strict=strict)
    _convert(found, files, output, skip_bad_lines=skip_bad_lines)
    return exits.OK


def _check(given: Given, crontabs: Crontabs, *, strict: bool) -> int:
    found = with_host(crontabs, level="warning")
    fatal = ("error", "warning") if strict else ("error",)
    failing = [problem for problem in found.problems if problem.level in fatal]
    if given.json:
        _print_json(found, ok=not failing)
    else:
        from slotwise.cli.shared.output import print_table

        if found.entries:
            print_table(_COLUMNS, map(_row, found.entries))
        show(list(found.problems))
        say(
            count(failing) if failing else f"all lines can run: {len(found.entries)}",
            err=True,
        )
    return exits.FAILED if failing else exits.OK


def _convert(
    found: Crontabs, files: tuple[str, ...], output: str, *, skip_bad_lines: bool
) -> None:
    from slotwise.contrib.crontab.crontabs import module_text

    refuse(found.errors, skip_bad_lines=skip_bad_lines)
    show(list(found.problems))
    if not found.entries:
        raise InvalidCrontab(f"there is no line to write in {', '.join(files)}")
    _write(module_text(found.entries), output)


def _write(text: str, output: str) -> None:
    if output == "-":
        say_document(text)
        return
    try:
        with Path(output).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigurationError(
            f"{output} exists already; remove it, or write to another file"
        ) from None


def _print_json(found: Crontabs, *, ok: bool) -> None:
    from slotwise.cli.shared.output import as_json, print_json

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
        "next_slot": json_value(_next_slot(entry)),
        "user": entry.user,
        "command": entry.command,
        "stdin": entry.stdin,
        "env": dict(entry.env),
        "timeout": json_value(entry.timeout),
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


CRONTAB = PluginCommand(command=crontab, section=Section.TIME)
