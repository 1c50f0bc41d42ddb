"""What is run, and with what around it: checked once, the same for every attempt."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from slotwise.errors import InvalidJob

DEFAULT_SHELL = "/bin/sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """A command with its shell, environment, directory, account and input; as for CommandJob.

    ``argv`` is what the operating system is given: the shell, ``-c`` and the line, or the program and its
    arguments. Raises InvalidJob for what no operating system could run.
    """

    command: str | tuple[str, ...]
    shell: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    inherit_env: bool | tuple[str, ...] = True
    cwd: str | None = None
    user: str | None = None
    stdin: str | bytes | None = None

    def __post_init__(self) -> None:
        self._check_command()
        for name, value in self.env.items():
            _check_variable(name, value)
        for word, text in (("shell", self.shell), ("cwd", self.cwd), ("user", self.user)):
            if text is not None:
                _check_text(word, text)
        if self.stdin is not None and not isinstance(self.stdin, str | bytes):
            raise InvalidJob(f"stdin is a {type(self.stdin).__name__}; expected text or bytes")

    @property
    def argv(self) -> list[str]:
        if isinstance(self.command, str):
            return [self.shell or DEFAULT_SHELL, "-c", self.command]
        return list(self.command)

    @property
    def input(self) -> bytes | None:
        """What stands on the standard input; None: nothing at all."""
        return self.stdin.encode("utf-8", "surrogateescape") if isinstance(self.stdin, str) else self.stdin

    def _check_command(self) -> None:
        if isinstance(self.command, str):
            _check_text("command", self.command)
            return
        if not self.command:
            raise InvalidJob('command is an empty list; expected ["program", "argument", …] or a line for the shell')
        if self.shell is not None:
            raise InvalidJob(f"shell={self.shell!r} contradicts a list as the command: no shell runs it; drop one")
        for word in self.command:
            if not isinstance(word, str) or "\0" in word:
                raise InvalidJob(f"command has {word!r:.60} in its list; expected texts without a NUL")
        _check_text("command", self.command[0])


def invocation(
    command: str | Sequence[str],
    *,
    shell: str | None,
    env: Mapping[str, str] | None,
    inherit_env: bool | Collection[str] | None,
    cwd: str | PurePath | None,
    user: str | None,
    stdin: str | bytes | None,
) -> Invocation:
    """An Invocation of what a user gives. Raises InvalidJob."""
    if not isinstance(command, str | Sequence):
        raise InvalidJob(f"command is {command!r:.60}; expected a line for the shell, or a list of words")
    if env is not None and not isinstance(env, Mapping):
        raise InvalidJob(f"env is a {type(env).__name__}; expected a mapping of names to texts")
    return Invocation(
        command=command if isinstance(command, str) else tuple(command),
        shell=shell,
        env=dict(env or {}),
        inherit_env=_inherited(inherit_env, user),
        cwd=None if cwd is None else str(cwd),
        user=user,
        stdin=stdin,
    )


def _inherited(given: bool | Collection[str] | None, user: str | None) -> bool | tuple[str, ...]:
    """Another account's command gets nothing of the worker's environment, which may hold secrets, unless told."""
    if given is None:
        return user is None
    if isinstance(given, bool):
        return given
    if isinstance(given, str) or not isinstance(given, Collection):
        raise InvalidJob(f"inherit_env is {given!r:.60}; expected True, False or a list of names")
    return tuple(given)


def _check_text(word: str, text: object) -> None:
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise InvalidJob(f"{word} is {text!r:.60}; expected a text that is not blank and has no NUL in it")


def _check_variable(name: object, value: object) -> None:
    if not isinstance(name, str) or not name or "=" in name or "\0" in name:
        raise InvalidJob(f"env has the name {name!r:.60}; expected a text without = and NUL")
    if not isinstance(value, str) or "\0" in value:
        raise InvalidJob(f"env[{name!r}] is {value!r:.60}; expected a text without a NUL")
