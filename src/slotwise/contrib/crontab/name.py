"""The name of a line's job: a word to read and a hash of what makes the line what it is.

Names stand in databases: whoever changes a rule below renames the jobs of everybody. The tests keep a table.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

DIGITS: Final = 10
LONGEST_WORD: Final = 48

#: Quoted texts and substitutions: what is in them is not what the line runs.
_INNER: Final = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\$\([^()]*\)|`[^`]*`""")
_SEPARATOR: Final = re.compile(r"&&|\|\||[;|&(){}\n]")
_ASSIGNMENT: Final = re.compile(r"\w+=.*")
_KEYWORDS: Final = {
    "if", "then", "elif", "else", "fi", "while", "until", "do", "done", "for", "in", "case", "esac", "!", "exec",
}  # fmt: skip
#: They run what stands behind their options.
_WRAPPERS: Final = {"chronic", "command", "env", "flock", "ionice", "nice", "nohup", "setsid", "time", "timeout"}
#: What only prepares or asks.
_ASIDES: Final = {
    "[", "[[", "test", "cd", ".", ":", "true", "false", "export", "set", "umask", "sleep", "type", "which", "echo",
    "source",
}  # fmt: skip
#: What stands further behind is not looked at.
_FAR: Final = 1_000
_MANY: Final = 30
_INTERPRETERS: Final = re.compile(r"(?:ba|da|z|k)?sh|perl|php|ruby|node|Rscript|python[\d.]*|run-parts")
_OPTION_OR_NUMBER: Final = re.compile(r"-.*|[\d.]+[smhd]?")
_STRANGE: Final = re.compile(r"[^A-Za-z0-9._-]+")


def job_name(*, time: str, zone: str, user: str | None, command: str, stdin: str | None, env: Mapping[str, str]) -> str:
    """The same for the same line, wherever it stands."""
    settings = [f"{name}={env[name]}" for name in sorted(env)]
    parts = ["1", time.lower(), zone, user or "", command, stdin or "", *settings]
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
    return f"{program_of(command)}-{digest[:DIGITS]}"


def program_of(command: str) -> str:
    """The word by which people know the line: mostly the program that it runs in the end."""
    parts = _SEPARATOR.split(_INNER.sub(" ", command[:_FAR]))
    found = next(filter(None, (_program(part.split()[:_MANY]) for part in parts)), "")
    return _STRANGE.sub("-", found).strip("-.")[:LONGEST_WORD] or "command"


def _program(words: list[str]) -> str | None:
    """Of a simple command; None for those that only prepare something."""
    while words and (words[0] in _KEYWORDS or _ASSIGNMENT.fullmatch(words[0])):
        words = words[1:]
    if not words or _base(words[0]) in _ASIDES or words[0].startswith((">", "<", "#", "\\")):
        return None
    if _base(words[0]) in _WRAPPERS:
        return _wrapped(words)
    return _interpreted(words) if _INTERPRETERS.fullmatch(_base(words[0])) else _base(words[0])


def _wrapped(words: list[str]) -> str | None:
    wrapper, rest = _base(words[0]), words[1:]
    if wrapper == "command" and rest[:1] in (["-v"], ["-V"]):
        return None
    while rest and _OPTION_OR_NUMBER.fullmatch(rest[0]):
        rest = rest[1:]
    return _program(rest[1:] if wrapper == "flock" else rest)


def _interpreted(words: list[str]) -> str | None:
    """The script that is run; for run-parts its folder, behind its own name."""
    name = _base(words[0])
    if any(word in ("-e", "-c", "-r") for word in words[1:]):
        return None
    scripts = [_base(word) for word in words[1:] if not word.startswith(("-", ">", "<", "2>"))]
    if not scripts:
        return name
    return f"{name}-{scripts[-1]}" if name == "run-parts" else scripts[0]


def _base(word: str) -> str:
    return PurePosixPath(word).name or word
