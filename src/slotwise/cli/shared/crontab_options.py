"""Options that name crontabs, and the jobs that they make."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from slotwise.contrib.logging import escaped
from slotwise.errors import InvalidCrontab

if TYPE_CHECKING:  # what reads crontabs is imported late: most workers have none
    from slotwise.contrib.command import CommandJob
    from slotwise.contrib.crontab import Crontabs, Problem

logger = logging.getLogger("slotwise.crontab")

_LEVELS: Final = {"error": logging.WARNING, "warning": logging.WARNING, "note": logging.INFO}


@dataclass(frozen=True, slots=True, kw_only=True)
class CrontabChoice:
    """Which crontabs a worker runs, and how they are read."""

    files: tuple[str, ...] = ()
    format: Any = "auto"
    tz: str | None = None
    env: tuple[str, ...] = ()
    skip_bad_lines: bool = False

    def jobs(self) -> list[CommandJob]:
        """A job for each line. Raises InvalidCrontab if a line cannot run here, unless those are to be skipped."""
        if not self.files:
            return []
        from slotwise.contrib.crontab import read_crontabs
        from slotwise.contrib.crontab.crontabs import STDIN
        from slotwise.contrib.crontab.problems import runnable

        if STDIN in self.files:
            raise InvalidCrontab("--crontab -: name a file; each process of a worker reads it when it starts")
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


FORMAT: Final[dict[str, Any]] = {
    "type": click.Choice(["auto", "user", "system"]),
    "default": "auto",
    "help": "Whether lines name a user (system) or not (user); default: by the file's place.",
}
ZONE: Final[dict[str, Any]] = {
    "metavar": "ZONE",
    "help": "Zone of lines without a CRON_TZ above them; default: UTC.",
}


_OPTIONS: Final = (
    click.option("--crontab", metavar="FILE", multiple=True, help="Run this crontab, or folder; may be repeated."),
    click.option("--crontab-format", **FORMAT),
    click.option("--crontab-tz", **ZONE),
    click.option("--crontab-env", metavar="NAME", multiple=True, help="Give this variable of ours to their commands."),
    click.option("--skip-bad-lines", is_flag=True, help="Where lines cannot run, run the others instead of none."),
)


def crontab_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--crontab`` and how it is read; the function gets them as ``crontabs``. Each may be given more than once."""

    @functools.wraps(function)
    def chosen(
        *given: Any,
        crontab: tuple[str, ...],
        crontab_format: str,
        crontab_tz: str | None,
        crontab_env: tuple[str, ...],
        skip_bad_lines: bool,
        **named: Any,
    ) -> Any:
        choice = CrontabChoice(
            files=crontab, format=crontab_format, tz=crontab_tz, env=crontab_env, skip_bad_lines=skip_bad_lines
        )
        return function(*given, crontabs=choice, **named)

    for option in reversed(_OPTIONS):
        chosen = option(chosen)
    return chosen


def with_host(found: Crontabs, *, level: Any = "error") -> Crontabs:
    """With what this machine lacks for them."""
    from slotwise.contrib.crontab import Crontabs
    from slotwise.contrib.crontab.problems import host_problems

    problems = [*found.problems, *host_problems(found.entries, level)]
    problems.sort(key=lambda problem: (problem.file, problem.line or 0))
    return Crontabs(entries=found.entries, problems=tuple(problems))


def show(problems: list[Problem]) -> None:
    """On stderr, one per line, the place first, as editors and CI systems know it."""
    for problem in problems:
        click.echo(escaped(str(problem)), err=True)


def refuse(problems: list[Problem], *, skip_bad_lines: bool) -> None:
    """Show errors and raise InvalidCrontab for them all. A file that cannot be read is no line to be skipped."""
    errors = [problem for problem in problems if problem.level == "error"]
    fatal = [problem for problem in errors if problem.line is None] if skip_bad_lines else errors
    if fatal:
        show(fatal)
        cure = "mend it" if len(fatal) == 1 else "mend them"
        hint = "" if any(problem.line is None for problem in fatal) else ", or run the other lines: --skip-bad-lines"
        raise InvalidCrontab(f"{count(fatal)}; {cure}{hint}")


def count(problems: list[Problem]) -> str:
    """How many, in how many files."""
    files = {problem.file for problem in problems}
    things = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
    return f"{things} in {files.pop()}" if len(files) == 1 else f"{things} in {len(files)} files"
