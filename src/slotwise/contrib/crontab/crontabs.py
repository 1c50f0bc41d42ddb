"""Several crontabs as one set of jobs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike, fspath

from slotwise.contrib.command import CommandJob
from slotwise.contrib.crontab.entry import Entry
from slotwise.contrib.crontab.files import Format, read_files
from slotwise.contrib.crontab.problem import Problem
from slotwise.contrib.crontab.reader import Source, read_source
from slotwise.errors import InvalidCrontab
from slotwise.schedules.zones import zone_named


@dataclass(frozen=True, slots=True, kw_only=True)
class Crontabs:
    """The lines that can run, and everything that is wrong with them or with others."""

    entries: tuple[Entry, ...]
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> list[Problem]:
        """What cannot run."""
        return [problem for problem in self.problems if problem.level == "error"]

    def jobs(self, *, inherit_env: Sequence[str] = (), skip_errors: bool = False) -> list[CommandJob]:
        """A job for each line. ``inherit_env``: names of what commands get of the worker's environment.

        Raises InvalidCrontab, with all errors at once, unless they are to be skipped.
        """
        if self.errors and not skip_errors:
            raise InvalidCrontab("\n".join(map(str, self.errors)))
        return [entry.job(tuple(inherit_env)) for entry in self.entries]


def read_crontabs(*paths: str | PathLike[str], format: Format = "auto", tz: str | None = None) -> Crontabs:
    """The crontabs in these files and folders (``-`` is the standard input); nothing is raised for what is in them.

    A folder is read as cron reads /etc/cron.d: only names of letters, digits, ``-`` and ``_``. ``format``: whether
    lines have a user column (``system``) or not (``user``); ``auto`` goes by the place: they do in folders, in files
    of a folder ``cron.d`` and in /etc/crontab. ``tz``: the zone of lines without a ``CRON_TZ`` above them;
    else UTC.

    Raises InvalidSchedule for an unknown zone.
    """
    zone = _zone(tz)
    entries: list[Entry] = []
    problems: list[Problem] = []
    for found in read_files([fspath(path) for path in paths], format):
        if isinstance(found, Problem):
            problems.append(found)
        else:
            parsed = read_source(found, zone)
            entries += parsed.entries
            problems += parsed.problems
    return Crontabs(entries=tuple(_numbered(entries)), problems=(*problems, *_doubles(entries)))


def parse_crontab(text: str, *, file: str = "crontab", system: bool = False, tz: str | None = None) -> Crontabs:
    """The same for a text; ``system``: its lines have a user column."""
    parsed = read_source(Source(file, text, system, owner=None), _zone(tz))
    return Crontabs(entries=tuple(_numbered(parsed.entries)), problems=(*parsed.problems, *_doubles(parsed.entries)))


def _zone(tz: str | None) -> str | None:
    return None if tz is None else zone_named(tz).key


def _numbered(entries: Iterable[Entry]) -> Iterable[Entry]:
    """The same line twice is two jobs: which is which does not matter."""
    seen: Counter[str] = Counter()
    for entry in entries:
        seen[entry.name] += 1
        number = seen[entry.name]
        yield entry if number == 1 else dataclasses.replace(entry, name=f"{entry.name}-{number}")


def _doubles(entries: Iterable[Entry]) -> Iterable[Problem]:
    first: dict[str, Entry] = {}
    for entry in entries:
        earlier = first.setdefault(entry.name, entry)
        if earlier is not entry:
            yield Problem(
                level="warning", file=entry.file, line=entry.line,
                text=f"the same line stands in {earlier.place}: as in cron, it runs once for each", cure="remove one",
            )  # fmt: skip
