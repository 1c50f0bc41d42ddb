"""Reads files and folders of crontabs into one set of jobs, and writes them as a Python module."""

from __future__ import annotations

import dataclasses
import os
import pwd
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Final, Literal, TypeAlias

from slotwise import InvalidCrontab
from slotwise.contrib.commands import CommandJob
from slotwise.contrib.crontab.debian import Level
from slotwise.contrib.crontab.entry import Entry
from slotwise.contrib.crontab.reader import Problem, Source, read_source
from slotwise.spi import format_duration, zone_named


@dataclass(frozen=True, slots=True, kw_only=True)
class Crontabs:
    """The lines that can run, and the problems of all lines."""

    entries: tuple[Entry, ...]
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> list[Problem]:
        """The problems that keep a line from running."""
        return [problem for problem in self.problems if problem.level == "error"]

    def jobs(
        self, *, inherit_env: Sequence[str] = (), skip_errors: bool = False
    ) -> list[CommandJob]:
        """Create a job for each line. ``inherit_env``: names of the worker's variables that
        commands get.

        Raises InvalidCrontab, with all errors at once, unless ``skip_errors``.
        """
        if self.errors and not skip_errors:
            raise InvalidCrontab("\n".join(map(str, self.errors)))
        return [entry.job(tuple(inherit_env)) for entry in self.entries]


def read_crontabs(
    *paths: str | PathLike[str], format: Format = "auto", tz: str | None = None
) -> Crontabs:
    """Read the crontabs in these files and folders (``-`` is the standard input); their errors are
    not raised.

    A folder is read as cron reads /etc/cron.d: only names of letters, digits, ``-`` and ``_``.
    ``format``: whether lines have a user column (``system``) or not (``user``); ``auto`` goes by
    the place: they do in folders, in files of a folder ``cron.d`` and in /etc/crontab. ``tz``: the
    zone of lines without a ``CRON_TZ`` above them; else UTC.

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
    return Crontabs(
        entries=tuple(_numbered(entries)), problems=(*problems, *_doubles(entries))
    )


def parse_crontab(
    text: str, *, file: str = "crontab", system: bool = False, tz: str | None = None
) -> Crontabs:
    """Read the text of one crontab; ``system``: its lines have a user column."""
    parsed = read_source(Source(file, text, system, owner=None), _zone(tz))
    return Crontabs(
        entries=tuple(_numbered(parsed.entries)),
        problems=(*parsed.problems, *_doubles(parsed.entries)),
    )


def _zone(tz: str | None) -> str | None:
    return None if tz is None else zone_named(tz).key


def _numbered(entries: Iterable[Entry]) -> Iterable[Entry]:
    """Number the names of identical lines: each is a job of its own."""
    seen: Counter[str] = Counter()
    for entry in entries:
        seen[entry.name] += 1
        number = seen[entry.name]
        yield (
            entry
            if number == 1
            else dataclasses.replace(entry, name=f"{entry.name}-{number}")
        )


def _doubles(entries: Iterable[Entry]) -> Iterable[Problem]:
    first: dict[str, Entry] = {}
    for entry in entries:
        earlier = first.setdefault(entry.name, entry)
        if earlier is not entry:
            yield Problem(
                level="warning",
                file=entry.file,
                line=entry.line,
                text=f"the same line is in {earlier.place}: as in cron, it runs once for each",
                cure="remove one",
            )


#: auto: the file's place decides.
Format: TypeAlias = Literal["auto", "user", "system"]

STDIN: Final = "-"
_LARGEST_FILE: Final = 1_048_576  # bytes
#: Names of the files that run-parts, and so cron, reads in a folder.
_FOLDER_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
#: Where cron keeps the crontabs of users: the file's name is the user's.
_SPOOLS: Final = ("/var/spool/cron/crontabs", "/var/spool/cron")


def read_files(paths: list[str], form: Format) -> Iterator[Source | Problem]:
    """Read these files and folders; yield a problem for each that cannot be read."""
    for path in paths:
        if path == STDIN:
            yield Source(
                "(stdin)",
                sys.stdin.buffer.read().decode("utf-8", "surrogateescape"),
                form == "system",
                None,
            )
        elif Path(path).is_dir():
            yield from _read_folder(Path(path), form)
        else:
            yield _read_file(Path(path), form)


def _read_folder(folder: Path, form: Format) -> Iterator[Source | Problem]:
    """A folder of users' crontabs, or one of system crontabs like /etc/cron.d."""
    files = sorted(folder.iterdir())
    if _is_spool(folder):
        yield from (
            _read_file(file, form)
            for file in files
            if not file.name.startswith(".") and file.is_file()
        )
        return
    for file in files:
        if file.name.startswith("."):
            continue
        if not _FOLDER_NAME.fullmatch(file.name):
            yield _file_problem(
                "note",
                file,
                "not read, as by cron, because of its name",
                "name files in a folder with letters, digits, - and _ only",
            )
        elif not file.is_file():
            yield _file_problem(
                "note",
                file,
                "not read: it is not a file, or a link to none",
                "remove it from the folder",
            )
        else:
            yield _read_file(file, "system" if form == "auto" else form)


def _read_file(file: Path, form: Format) -> Source | Problem:
    """Lines of a user's file in the spool run as that user, in the format of users, whatever is
    asked for.
    """
    owner = file.name if _is_spool(file.parent) else None
    try:
        if file.is_fifo() and not file.is_relative_to("/dev"):  # /dev/fd: of a shell
            return _file_problem(
                "error",
                file,
                "it is a FIFO, whose writer may never come",
                "name a file",
            )
        with file.open("rb") as opened:
            found = os.fstat(opened.fileno())
            data = opened.read(_LARGEST_FILE + 1)
        if fault := _untrusted(file, found, owner) or _unfit(file, found, data):
            return _file_problem("error", file, *fault)
    except FileNotFoundError:
        return _file_problem(
            "error", file, "there is no such file", "correct the path"
        )
    except OSError as error:
        told = f"it cannot be read ({error.strerror})"
        return _file_problem("error", file, told, "let this account read it")
    is_system = form == "system" or (form == "auto" and _is_system(file))
    text = data.decode("utf-8", "surrogateescape")
    return Source(str(file), text, is_system and owner is None, owner)


def _unfit(file: Path, found: os.stat_result, data: bytes) -> tuple[str, str] | None:
    """Return why a file is no crontab, and the cure."""
    if len(data) > _LARGEST_FILE:
        return f"it has more than {_LARGEST_FILE} bytes", "name another file"
    if stat.S_ISREG(found.st_mode) and file.name == "anacrontab":
        return (
            "an anacrontab has another format (days, minutes, name, command)",
            "leave it to anacron, or write its lines as cron's",
        )
    return None


def _untrusted(
    file: Path, found: os.stat_result, owner: str | None
) -> tuple[str, str] | None:
    """Return why other accounts could choose the commands of the opened file, and the cure; cron
    rejects it, too.
    """
    if not stat.S_ISREG(found.st_mode):  # the standard input
        return None
    known = {0, os.geteuid()}
    if owner is not None:
        with suppress(KeyError):
            known.add(pwd.getpwnam(owner).pw_uid)
    if found.st_uid not in known:
        return (
            f"it belongs to another account (uid {found.st_uid})",
            "chown it to root, or to the worker's account",
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "users other than its owner can write this file", f"chmod go-w {file}"
    return next(
        filter(None, (_replaceable(one, known) for one in file.resolve().parents)),
        None,
    )


def _replaceable(folder: Path, known: set[int]) -> tuple[str, str] | None:
    """Return why other accounts could replace what is in a folder, and the cure."""
    found = folder.stat()
    if found.st_uid not in known:
        told = (
            f"its directory {folder} belongs to another account (uid {found.st_uid})"
        )
        return told, f"chown {folder} to root, or to the worker's account"
    if found.st_mode & stat.S_ISVTX:
        return None
    if found.st_mode & stat.S_IWOTH:
        return "everybody can replace files in its directory", f"chmod o-w {folder}"
    is_group = found.st_mode & stat.S_IWGRP and found.st_gid != 0
    if is_group and os.geteuid() == 0:
        return "a group can replace files in its directory", f"chmod g-w {folder}"
    return None


def _is_spool(folder: Path) -> bool:
    return str(folder.absolute()) in _SPOOLS


def _is_system(file: Path) -> bool:
    file = file.absolute()
    return file.parent.name == "cron.d" or file == Path("/etc/crontab")


def _file_problem(level: Level, file: Path, text: str, cure: str) -> Problem:
    return Problem(level=level, file=str(file), line=None, text=text, cure=cure)


_HEAD = '''"""Jobs made from {files}.

Each keeps the name that it has under `slotwise worker --crontab`, and so its history. Change what
you like here, names last: another name is another job.
"""

from slotwise import Cron, JobRegistry
from slotwise.contrib.commands import CommandJob

jobs = [
'''
_FOOT = """]

registry = JobRegistry(jobs=jobs)
"""


def module_text(entries: Sequence[Entry], inherit_env: Sequence[str] = ()) -> str:
    """The source of a module whose registry runs these lines."""
    files = ", ".join(dict.fromkeys(entry.file for entry in entries))
    return (
        _HEAD.format(files=files.replace("\\", "/"))
        + "".join(_job(entry, inherit_env) for entry in entries)
        + _FOOT
    )


def _job(entry: Entry, inherit_env: Sequence[str]) -> str:
    lines = [f"# {entry.place}", *entry.comment, "CommandJob("]
    lines += [
        f"    {name}={value},"
        for name, value in _arguments(entry, inherit_env).items()
    ]
    return "".join(f"    {line}\n" for line in [*lines, "),"])


def _arguments(entry: Entry, inherit_env: Sequence[str]) -> dict[str, str]:
    optional = {
        "shell": _text(entry.shell) if "SHELL" in entry.env else None,
        "env": _mapping(entry.env) if entry.env else None,
        "user": None if entry.user is None else _text(entry.user),
        "stdin": None if entry.stdin is None else _text(entry.stdin),
        "timeout": None
        if entry.timeout is None
        else _text(format_duration(entry.timeout)),
        "on_lost": None if entry.on_lost == "rerun" else _text(entry.on_lost),
    }
    return {
        "name": _text(entry.name),
        "schedule": f"Cron({_text(entry.time)}, tz={_text(entry.schedule.zone.key)}, "
        'day_rule="vixie")',
        "command": _text(entry.command),
        "cwd": _text("~"),
        "inherit_env": f"[{', '.join(map(_text, inherit_env))}]"
        if inherit_env
        else "False",
        **{name: value for name, value in optional.items() if value is not None},
    }


def _mapping(env: Mapping[str, str]) -> str:
    inner = "".join(
        f"            {_text(name)}: {_text(value)},\n" for name, value in env.items()
    )
    return f"{{\n{inner}        }}"


def _text(value: str) -> str:
    """As Python writes it, in double quotes where it can."""
    plain = repr(value)
    return f'"{plain[1:-1]}"' if plain.startswith("'") and '"' not in plain else plain
