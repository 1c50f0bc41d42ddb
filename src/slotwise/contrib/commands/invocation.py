"""What a command is, and what surrounds it: its arguments, account and environment."""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from slotwise import CommandFailed, InvalidJob, JobContext
from slotwise.contrib.commands.process_group import Switch

DEFAULT_SHELL = "/bin/sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """A command with its shell, environment, directory, account and input; as for CommandJob.

    ``argv`` is passed to the operating system: the shell, ``-c`` and the line, or the program and
    its arguments. Raises InvalidJob for values that no operating system could run.
    """

    command: str | Sequence[str]
    shell: str | None = None
    env: Mapping[str, str] | None = None
    inherit_env: bool | Collection[str] | None = None
    cwd: str | PurePath | None = None
    user: str | None = None
    stdin: str | bytes | None = None

    def __post_init__(self) -> None:
        self._check_command()
        _check_environment(self.env)
        for word in ("shell", "user"):
            if (text := getattr(self, word)) is not None:
                _check_text(word, text)
        if self.stdin is not None and not isinstance(self.stdin, str | bytes):
            raise InvalidJob(
                f"stdin is a {type(self.stdin).__name__}; expected a string or bytes"
            )
        read = {
            "command": self.command
            if isinstance(self.command, str)
            else tuple(self.command),
            "inherit_env": self._inherited(),
            "cwd": self._directory(),
            "env": dict(self.env or {}),
        }
        for name, value in read.items():
            object.__setattr__(self, name, value)

    def _inherited(self) -> bool | tuple[str, ...]:
        given = self.inherit_env
        if given is None:
            # another account's command gets none of the worker's environment, which may hold
            # secrets
            return self.user is None
        if isinstance(given, bool):
            return given
        if isinstance(given, str) or not isinstance(given, Collection):
            raise InvalidJob(
                f"inherit_env is {given!r:.60}; expected True, False or a list of names"
            )
        return tuple(given)

    def _directory(self) -> str | None:
        if self.cwd is None:
            return None
        _check_text("cwd", str(self.cwd))
        return str(self.cwd)

    @property
    def argv(self) -> list[str]:
        if isinstance(self.command, str):
            return [self.shell or DEFAULT_SHELL, "-c", self.command]
        return list(self.command)

    @property
    def input(self) -> bytes | None:
        """The bytes of the standard input; None: it is empty."""
        return (
            self.stdin.encode("utf-8", "surrogateescape")
            if isinstance(self.stdin, str)
            else self.stdin
        )

    def _check_command(self) -> None:
        if isinstance(self.command, str):
            _check_text("command", self.command)
            return
        if not isinstance(self.command, Sequence):
            raise InvalidJob(
                f"command is {self.command!r:.60}; expected a line for the shell, "
                "or a list of words"
            )
        if not self.command:
            raise InvalidJob(
                'command is an empty list; expected ["program", "argument", …] or '
                "a line for the shell"
            )
        if self.shell is not None:
            raise InvalidJob(
                f"shell={self.shell!r} contradicts a list as the command: no shell "
                "runs it; drop one"
            )
        for word in self.command:
            if not isinstance(word, str) or "\0" in word:
                raise InvalidJob(
                    f"command has {word!r:.60} in its list; expected strings without a NUL"
                )
        _check_text("command", self.command[0])


def _check_text(word: str, text: object) -> None:
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise InvalidJob(
            f"{word} is {text!r:.60}; expected a string that is not blank and has no NUL in it"
        )


def _check_environment(env: object) -> None:
    if env is not None and not isinstance(env, Mapping):
        raise InvalidJob(
            f"env is a {type(env).__name__}; expected a mapping of names to strings"
        )
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise InvalidJob(
                f"env has the name {name!r:.60}; expected a string without = and NUL"
            )
        if not isinstance(value, str) or "\0" in value:
            raise InvalidJob(
                f"env[{name!r}] is {value!r:.60}; expected a string without a NUL"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user of this host."""

    name: str
    uid: int
    gid: int
    home: str

    @property
    def is_ours(self) -> bool:
        """Whether this process runs as this account."""
        return self.uid == os.geteuid()

    def switch(self) -> Switch:
        """The arguments of ``Popen`` to switch to this account and all its groups; empty if that
        is not needed.
        """
        if self.is_ours:
            return {}
        return {
            "user": self.uid,
            "group": self.gid,
            "extra_groups": os.getgrouplist(self.name, self.gid),
        }


def account_of(user: str | None) -> Account:
    """The account of this name; None is the worker's own. Raises CommandFailed if the process
    cannot switch to it.
    """
    if user is None:
        return _our_own()
    try:
        found = _account(pwd.getpwnam(user))
    except KeyError:
        raise CommandFailed(
            f"there is no user {user!r} on this host; create it, or name another one"
        ) from None
    if not found.is_ours and os.geteuid() != 0:
        raise CommandFailed(
            f"only root can run a command as {user!r}, and this process runs as "
            f"{_our_own().name!r}; "
            f"run it as root or as {user!r}"
        )
    return found


def _our_own() -> Account:
    """This process's account. A container may have a uid without an entry; then HOME names its
    home.
    """
    try:
        return _account(pwd.getpwuid(os.geteuid()))
    except KeyError:
        uid = os.geteuid()
        return Account(
            name=str(uid), uid=uid, gid=os.getegid(), home=os.environ.get("HOME", "/")
        )


def _account(entry: pwd.struct_passwd) -> Account:
    return Account(
        name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid, home=entry.pw_dir
    )


#: The PATH of cron.
DEFAULT_PATH: Final = "/usr/bin:/bin"


#: The worker's own addresses, with passwords. A command inherits them only by name.
ADDRESSES: Final = frozenset(
    {"DATABASE_URL", "SLOTWISE_DATABASE_URL", "SLOTWISE_WAKE_UP_URL", "PGPASSWORD"}
)


def environment(
    invocation: Invocation, account: Account, ctx: JobContext
) -> dict[str, str]:
    """Cron's variables, the worker's as far as inherited, the job's own, the slot's; later ones
    win.
    """
    identity = {"HOME": account.home, "LOGNAME": account.name, "USER": account.name}
    which = (
        os.environ.keys() - ADDRESSES
        if invocation.inherit_env is True
        else invocation.inherit_env or ()
    )
    inherited = {name: os.environ[name] for name in which if name in os.environ}
    if invocation.user is not None:
        inherited = {
            name: value for name, value in inherited.items() if name not in identity
        }
    shell = {"PATH": DEFAULT_PATH, "SHELL": invocation.shell or DEFAULT_SHELL}
    return {
        **shell,
        **identity,
        **inherited,
        **(invocation.env or {}),
        **slot_variables(ctx),
    }


def slot_variables(ctx: JobContext) -> dict[str, str]:
    """Variables for the script: the slot tells it which period to process, the token fences its
    writes.
    """
    return {
        "SLOTWISE_JOB": ctx.name,
        "SLOTWISE_SLOT": ctx.slot.isoformat().replace("+00:00", "Z"),
        "SLOTWISE_ATTEMPT": str(ctx.attempt),
        "SLOTWISE_TOKEN": str(ctx.token),
        "SLOTWISE_KEY": ctx.idempotency_key,
    }
