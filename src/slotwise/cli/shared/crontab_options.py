"""Options that name crontabs, and the jobs that they make."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import click

from slotwise.cli.shared.options import AnyFunction, with_options
from slotwise.cli.shared.terminal import say
from slotwise.errors import InvalidCrontab

if TYPE_CHECKING:  # the crontab reader is imported late: most workers do not need it
    from slotwise.contrib.command import CommandJob
    from slotwise.contrib.crontab import Crontabs, Problem
    from slotwise.contrib.crontab.crontabs import Format
    from slotwise.contrib.crontab.reader import Level

logger = logging.getLogger("slotwise.crontab")

Result = TypeVar("Result")

_LEVELS: Final = {"error": logging.WARNING, "warning": logging.WARNING, "note": logging.INFO}


@dataclass(frozen=True, slots=True, kw_only=True)
class CrontabChoice:
    """The crontabs that a worker runs, and how to read them."""

    files: tuple[str, ...] = ()
    format: Format = "auto"
    tz: str | None = None
    env: tuple[str, ...] = ()
    skip_bad_lines: bool = False

    def jobs(self) -> list[CommandJob]:
        """Create a job for each line. Raises InvalidCrontab if a line cannot run here, unless ``skip_bad_lines``."""
        if not self.files:
            return []
        from slotwise.contrib.crontab import read_crontabs
        from slotwise.contrib.crontab.crontabs import STDIN
        from slotwise.contrib.crontab.reader import runnable

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


def format_option(*names: str) -> Callable[[AnyFunction], AnyFunction]:
    return click.option(
        *names, type=click.Choice(["auto", "user", "system"]), default="auto",
        help="Whether lines name a user (system) or not (user); default: the file's place decides.",
    )  # fmt: skip


def zone_option(*names: str) -> Callable[[AnyFunction], AnyFunction]:
    return click.option(*names, metavar="ZONE", help="Zone of lines without a CRON_TZ above them; default: UTC.")


_crontab_options: Final = with_options(
    click.option("--crontab", metavar="FILE", multiple=True, help="Run this crontab, or folder; may be repeated."),
    format_option("--crontab-format"),
    zone_option("--crontab-tz"),
    click.option(
        "--crontab-env", metavar="NAME", multiple=True, help="Pass this variable of the worker to their commands."
    ),
    click.option("--skip-bad-lines", is_flag=True, help="Run the other lines if some cannot run."),
)


def crontab_options(function: Callable[..., Result]) -> Callable[..., Result]:
    """Add ``--crontab`` and its companions; the function gets one CrontabChoice as ``crontabs``."""

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
            files=crontab, format=crontab_format, tz=crontab_tz, env=crontab_env, skip_bad_lines=skip_bad_lines
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
    """Print problems on stderr, one per line, the place first, as editors and CI systems expect."""
    for problem in problems:
        say(str(problem), err=True)


def refuse(problems: list[Problem], *, skip_bad_lines: bool) -> None:
    """Show all errors and raise InvalidCrontab. ``skip_bad_lines`` does not skip a file that cannot be read."""
    errors = [problem for problem in problems if problem.level == "error"]
    fatal = [problem for problem in errors if problem.line is None] if skip_bad_lines else errors
    if fatal:
        show(fatal)
        cure = "fix it" if len(fatal) == 1 else "fix them"
        hint = "" if any(problem.line is None for problem in fatal) else ", or pass --skip-bad-lines"
        raise InvalidCrontab(f"{count(fatal)}; {cure}{hint}")


def count(problems: list[Problem]) -> str:
    """The number of problems and files."""
    files = {problem.file for problem in problems}
    things = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
    return f"{things} in {files.pop()}" if len(files) == 1 else f"{things} in {len(files)} files"
