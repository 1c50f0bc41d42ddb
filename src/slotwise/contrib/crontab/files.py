"""Which files are crontabs, of which format, and what is in them."""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, TypeAlias

from slotwise.contrib.crontab.problem import Level, Problem
from slotwise.contrib.crontab.reader import Source

#: auto: by the file's place.
Format: TypeAlias = Literal["auto", "user", "system"]

STDIN: Final = "-"
#: What run-parts, and so cron, reads in a folder.
_FOLDER_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
#: Where cron keeps the crontabs of users: the file's name is the user's.
_SPOOLS: Final = ("/var/spool/cron/crontabs", "/var/spool/cron")


def read_files(paths: list[str], form: Format) -> Iterator[Source | Problem]:
    """What is in these files and folders, and what cannot be read."""
    for path in paths:
        if path == STDIN:
            yield Source("(stdin)", sys.stdin.buffer.read().decode("utf-8", "surrogateescape"), form == "system", None)
        elif Path(path).is_dir():
            yield from _read_folder(Path(path), form)
        else:
            yield _read(Path(path), form)


def _read_folder(folder: Path, form: Format) -> Iterator[Source | Problem]:
    """A folder of users' crontabs, or one of system crontabs like /etc/cron.d."""
    files = sorted(folder.iterdir())
    if _is_spool(folder):
        yield from (_read(file, form) for file in files if not file.name.startswith(".") and file.is_file())
        return
    for file in files:
        if file.name.startswith("."):
            continue
        if not _FOLDER_NAME.fullmatch(file.name):
            yield _problem(
                "note", file, "not read, as by cron, because of its name",
                "name files in a folder with letters, digits, - and _ only",
            )  # fmt: skip
        elif not file.is_file():
            yield _problem("note", file, "not read: it is not a file, or a link to none", "remove it from the folder")
        else:
            yield _read(file, "system" if form == "auto" else form)


def _read(file: Path, form: Format) -> Source | Problem:
    try:
        if stat.S_ISREG(file.stat().st_mode) and file.name == "anacrontab":
            return _problem(
                "error", file, "an anacrontab has another format (days, minutes, name, command)",
                "leave it to anacron, or write its lines as cron's",
            )  # fmt: skip
        text = file.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return _problem("error", file, "there is no such file", "correct the path")
    except OSError as error:
        return _problem("error", file, f"it cannot be read ({error.strerror})", "let this account read it")
    owner = file.name if _is_spool(file.parent) else None
    return Source(str(file), text, form == "system" or (form == "auto" and _is_system(file)), owner)


def _is_spool(folder: Path) -> bool:
    return str(folder.absolute()) in _SPOOLS


def _is_system(file: Path) -> bool:
    file = file.absolute()
    return file.parent.name == "cron.d" or file == Path("/etc/crontab")


def _problem(level: Level, file: Path, text: str, cure: str) -> Problem:
    return Problem(level=level, file=str(file), line=None, text=text, cure=cure)
