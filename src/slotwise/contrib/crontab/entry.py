"""One line of a crontab that runs something, and the name of its job."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Final

from slotwise import Cron
from slotwise.contrib.commands import CommandJob
from slotwise.spi import OnLost

#: The shell of a line without SHELL above it; crontab(5).
DEFAULT_SHELL: Final = "/bin/sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The parts of the line, and the variables that the lines above it set."""

    name: str
    file: str
    line: int
    #: The time fields, or the macro, as written.
    time: str
    schedule: Cron
    #: Whether the file or the caller names its zone.
    zone_said: bool
    #: The account from the user column or the file's place; None: the worker's own.
    user: str | None
    command: str
    #: What follows the first %.
    stdin: str | None
    env: Mapping[str, str]
    timeout: timedelta | None
    on_lost: OnLost
    #: The comment right above it.
    comment: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def shell(self) -> str:
        return self.env.get("SHELL", DEFAULT_SHELL)

    def job(self, inherit_env: tuple[str, ...] = ()) -> CommandJob:
        """The job that runs it as cron would: a clean environment but for these names, in the
        user's home.
        """
        return CommandJob(
            name=self.name,
            schedule=self.schedule,
            command=self.command,
            shell=self.shell,
            env=self.env,
            inherit_env=inherit_env,
            cwd="~",
            user=self.user,
            stdin=self.stdin,
            timeout=self.timeout,
            on_lost=self.on_lost,
        )


# Databases hold these names: a changed rule renames the jobs of every installation. The tests keep
# a table.
DIGITS: Final = 10
LONGEST_WORD: Final = 48

#: Quoted strings and substitutions: they do not contain the program that the line runs.
_INNER: Final = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\$\([^()]*\)|`[^`]*`""")
#: ``2>&1``: its & separates no commands.
_DUPLICATE: Final = re.compile(r"\d*[<>]&[\d-]")
_SEPARATOR: Final = re.compile(r"&&|\|\||[;|&(){}\n]")
_ASSIGNMENT: Final = re.compile(r"\w+=.*")
_KEYWORDS: Final = {
    "if",
    "then",
    "elif",
    "else",
    "fi",
    "while",
    "until",
    "do",
    "done",
    "for",
    "in",
    "case",
    "esac",
    "!",
    "exec",
}
#: They run the command that follows their options.
_WRAPPERS: Final = {
    "chronic",
    "command",
    "env",
    "flock",
    "ionice",
    "nice",
    "nohup",
    "setsid",
    "time",
    "timeout",
}
#: Commands that only prepare or test something.
_ASIDES: Final = {
    "[",
    "[[",
    "test",
    "cd",
    ".",
    ":",
    "true",
    "false",
    "export",
    "set",
    "umask",
    "sleep",
    "type",
    "which",
    "echo",
    "source",
}
#: Only so many characters and words are parsed.
_FAR: Final = 1_000
_MANY: Final = 30
_INTERPRETERS: Final = re.compile(
    r"(?:ba|da|z|k)?sh|perl|php|ruby|node|Rscript|python[\d.]*|run-parts"
)
_OPTION_OR_NUMBER: Final = re.compile(r"-.*|[\d.]+[smhd]?")
_STRANGE: Final = re.compile(r"[^A-Za-z0-9._-]+")


def job_name(
    *,
    time: str,
    zone: str,
    user: str | None,
    command: str,
    stdin: str | None,
    env: Mapping[str, str],
) -> str:
    """The name of a line's job: a readable word and a hash. The same line has the same name in
    every file.
    """
    settings = [f"{name}={env[name]}" for name in sorted(env)]
    parts = ["1", time.lower(), zone, user or "", command, stdin or "", *settings]
    digest = hashlib.sha256(
        "\0".join(parts).encode("utf-8", "surrogateescape")
    ).hexdigest()
    return f"{program_of(command)}-{digest[:DIGITS]}"


def program_of(command: str) -> str:
    """The readable word: in most cases the program that the line runs in the end."""
    plain = _DUPLICATE.sub(" ", _INNER.sub(" ", command[:_FAR]))
    parts = _SEPARATOR.split(plain)
    found = next(filter(None, (_program(part.split()[:_MANY]) for part in parts)), "")
    return _STRANGE.sub("-", found).strip("-.")[:LONGEST_WORD] or "command"


def _program(words: list[str]) -> str | None:
    """The program of a simple command; None if the command only prepares something."""
    while words and (words[0] in _KEYWORDS or _ASSIGNMENT.fullmatch(words[0])):
        words = words[1:]
    if (
        not words
        or _base(words[0]) in _ASIDES
        or words[0].startswith((">", "<", "#", "\\"))
    ):
        return None
    if _base(words[0]) in _WRAPPERS:
        return _wrapped(words)
    return (
        _interpreted(words)
        if _INTERPRETERS.fullmatch(_base(words[0]))
        else _base(words[0])
    )


def _wrapped(words: list[str]) -> str | None:
    wrapper = _base(words[0])
    rest = words[1:]
    if wrapper == "command" and rest[:1] in (["-v"], ["-V"]):
        return None
    while rest and _OPTION_OR_NUMBER.fullmatch(rest[0]):
        rest = rest[1:]
    return _program(rest[1:] if wrapper == "flock" else rest)


def _interpreted(words: list[str]) -> str | None:
    """The script that the interpreter runs; for run-parts its own name and the folder."""
    name = _base(words[0])
    if any(word in ("-e", "-c", "-r") for word in words[1:]):
        return None
    scripts = [
        _base(word) for word in words[1:] if not word.startswith(("-", ">", "<", "2>"))
    ]
    if not scripts:
        return name
    return f"{name}-{scripts[-1]}" if name == "run-parts" else scripts[0]


def _base(word: str) -> str:
    return PurePosixPath(word).name or word
