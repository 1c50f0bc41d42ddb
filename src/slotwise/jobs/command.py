"""Jobs that run a command: a line for the shell, or a program with its arguments."""

from __future__ import annotations

import difflib
import os
import pwd
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, Unpack

from slotwise.errors import CommandFailed, InvalidJob, JobCancelled
from slotwise.jobs.context import JobContext
from slotwise.jobs.definition import POLICIES, duration
from slotwise.jobs.job import DistributedJob
from slotwise.jobs.process_group import Output, ProcessGroup, Switch, signal_name
from slotwise.model.durations import format_duration
from slotwise.model.vocabulary import Reason

if TYPE_CHECKING:
    from slotwise.jobs.job import JobPolicies
    from slotwise.schedules import Schedule

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
        if self.env is not None and not isinstance(self.env, Mapping):
            raise InvalidJob(
                f"env is a {type(self.env).__name__}; expected a mapping of names to strings"
            )
        for name, value in (self.env or {}).items():
            _check_variable(name, value)
        given = self.inherit_env
        if (
            given is None
            # another account's command gets none of the worker's environment, which may hold
            # secrets
        ):
            given = self.user is None
        elif not isinstance(given, bool):
            if isinstance(given, str) or not isinstance(given, Collection):
                raise InvalidJob(
                    f"inherit_env is {given!r:.60}; expected True, False or a list of names"
                )
            given = tuple(given)
        cwd = None if self.cwd is None else str(self.cwd)
        for word, text in (("shell", self.shell), ("cwd", cwd), ("user", self.user)):
            if text is not None:
                _check_text(word, text)
        if self.stdin is not None and not isinstance(self.stdin, str | bytes):
            raise InvalidJob(
                f"stdin is a {type(self.stdin).__name__}; expected a string or bytes"
            )
        command = self.command if isinstance(self.command, str) else tuple(self.command)
        read = {
            "command": command,
            "inherit_env": given,
            "cwd": cwd,
            "env": dict(self.env or {}),
        }
        for name in read:
            object.__setattr__(self, name, read[name])

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


def _check_variable(name: object, value: object) -> None:
    if not isinstance(name, str) or not name or "=" in name or "\0" in name:
        raise InvalidJob(
            f"env has the name {name!r:.60}; expected a string without = and NUL"
        )
    if not isinstance(value, str) or "\0" in value:
        raise InvalidJob(f"env[{name!r}] is {value!r:.60}; expected a string without a NUL")


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


#: Time from SIGTERM to SIGKILL; shorter than a stopping worker waits for cancelled handlers.
KILL_AFTER: Final = timedelta(seconds=4)
#: Interval for checking whether the claim was cancelled.
LOOK: Final = timedelta(milliseconds=100)

_HOME: Final = "~"
_HINTS: Final = {
    126: " (it cannot be executed)",
    127: " (not found; PATH is {path})",
}


def run(invocation: Invocation, ctx: JobContext, timeout: timedelta | None = None) -> None:
    """Run the command to its end. Raises CommandFailed, with the end of its output, and
    JobCancelled.

    ``timeout`` is only for the error message; the worker enforces it.
    """
    account = account_of(invocation.user)
    env = environment(invocation, account, ctx)
    say = partial(ctx.log.info, "%s")
    output = Output(say)
    with _started(invocation, account, env, output, ctx) as group:
        stop = _watch(group, ctx, timeout)
        if stop is not None:
            group.end(KILL_AFTER)
        status = group.finish(say)
    if isinstance(stop, JobCancelled):
        raise stop
    if stop is not None or status != 0:
        raise CommandFailed(
            _failure(str(stop) if stop else _told(status, env), output), status=status
        )


def _started(
    invocation: Invocation,
    account: Account,
    env: dict[str, str],
    output: Output,
    ctx: JobContext,
) -> ProcessGroup:
    cwd = _directory(invocation, env, ctx)
    try:
        return ProcessGroup(
            invocation.argv,
            output,
            stdin=invocation.input,
            cwd=cwd,
            env=env,
            **account.switch(),
        )
    except OSError as error:
        raise CommandFailed(
            f"the command could not be started: {error}; its directory is {cwd or os.curdir}"
        ) from None


def _directory(invocation: Invocation, env: dict[str, str], ctx: JobContext) -> str | None:
    """The working directory. As in cron, ``~`` is the command's HOME, or / if that is missing."""
    if invocation.cwd != _HOME:
        return None if invocation.cwd is None else str(invocation.cwd)
    home = env.get("HOME", "/")
    if os.path.isdir(home):  # noqa: PTH112 - a text for the operating system
        return home
    ctx.log.warning("HOME %s is not a directory; the command runs in /", home)
    return "/"


def _watch(
    group: ProcessGroup, ctx: JobContext, timeout: timedelta | None
) -> JobCancelled | CommandFailed | None:
    """Wait until the command has ended (None) or must be ended (the reason)."""
    while not group.wait(LOOK):
        if ctx.cancel_reason == Reason.TIMEOUT:
            after = f" after {format_duration(timeout)}" if timeout else ""
            return CommandFailed(f"timed out{after}; ended with all that it had started")
        if ctx.cancelled or ctx.lost:
            return JobCancelled(f"the command was ended: {ctx.cancel_reason or 'lost'}")
    return None


def _told(status: int | None, env: dict[str, str]) -> str:
    if status is None:
        return (
            "exit status unknown: this process ignores SIGCHLD, or other code waits "
            "for its children"
        )
    if status < 0:
        return f"ended by {signal_name(-status)}"
    # Above that, it is a program's own: ssh, php and xargs end with 255.
    if 128 < status <= 128 + max(signal.valid_signals()):
        return f"exit status {status} (of a shell: ended by {signal_name(status - 128)})"
    return f"exit status {status}{_HINTS.get(status, '').format(path=env.get('PATH', ''))}"


def _failure(told: str, output: Output) -> str:
    """The error message. Listings show its first line: how the command ended, and its last line of
    output.
    """
    if not output.last_line:
        return f"{told}; it wrote nothing"
    shown = "\n".join(f"  {line}" for line in output.tail)
    return (
        f"{told}; its last line: {output.last_line[:200]}\nthe end of what the command "
        f"wrote:\n{shown}"
    )


class CommandJob(DistributedJob):
    """A job that runs a command: a string for a shell, or a list of a program and its arguments.

    >>> from slotwise import CommandJob, Cron
    >>> nightly = CommandJob(
    ...     name="nightly-dump",
    ...     schedule=Cron("0 2 * * *", tz="Europe/Vienna"),
    ...     command="pg_dump shop | gzip > /backup/shop.gz",
    ...     timeout="1h",
    ... )

    ``shell``: the shell for a string; default /bin/sh. ``env``: additional variables.
    ``inherit_env``: whether the command inherits the worker's environment without the database's
    address and password, or the names of the variables that it inherits; by default all, unless
    ``user`` is given. ``cwd``: the directory; ``"~"`` is the command's HOME, or / if that is
    missing; default: the worker's. ``user``: the user to run as, with all groups; the worker must
    be root, or that user. ``stdin``: its standard input; default: empty. ``timeout``: a timedelta
    or a string such as ``"10m"``. On a timeout, when the claim is lost or cancelled, or when the
    worker ends, the command and its process group get SIGTERM, and SIGKILL four seconds later.
    Further keywords are policies.

    Each line of its output is logged as it comes (logger ``slotwise.job``, INFO). A non-zero exit
    code fails the attempt; the ledger keeps the end of the output. The command's environment
    contains SLOTWISE_JOB, SLOTWISE_SLOT, SLOTWISE_ATTEMPT, SLOTWISE_TOKEN and SLOTWISE_KEY (the
    idempotency key).

    Raises InvalidJob for a command that can never run.
    """

    #: What is run.
    command: Invocation
    timeout: timedelta | None

    def __init__(
        self,
        *,
        name: str,
        schedule: Schedule,
        command: str | Sequence[str],
        shell: str | None = None,
        env: Mapping[str, str] | None = None,
        inherit_env: bool | Collection[str] | None = None,
        cwd: str | PurePath | None = None,
        user: str | None = None,
        stdin: str | bytes | None = None,
        **policies: Unpack[JobPolicies],
    ) -> None:
        self.name = name
        self.schedule = schedule
        try:
            self.command = Invocation(
                command=command,
                shell=shell,
                env=env,
                inherit_env=inherit_env,
                cwd=cwd,
                user=user,
                stdin=stdin,
            )
            timeout = policies.pop("timeout", None)
            self.timeout = None if timeout is None else duration(timeout, "timeout")
        except InvalidJob as error:
            raise InvalidJob(f"CommandJob({name!r}): {error}") from None
        for word, value in policies.items():
            if word not in POLICIES:
                known = [*Invocation.__dataclass_fields__, *POLICIES]
                near = difflib.get_close_matches(word, known, n=1)
                cure = (
                    f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                )
                raise InvalidJob(f"CommandJob({name!r}): {word} is not a keyword; {cure}")
            setattr(self, word, value)

    def execute(self, ctx: JobContext, /) -> None:
        """Run the command once. Raises CommandFailed, and JobCancelled if it was asked to stop."""
        run(self.command, ctx, self.timeout)

    def __repr__(self) -> str:
        return (
            f"CommandJob(name={self.name!r}, schedule={self.schedule!r}, "
            f"command={self.command.command!r:.80})"
        )
