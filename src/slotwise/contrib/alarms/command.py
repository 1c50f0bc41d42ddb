"""``slotwise watch`` raises alarms as a separate process; ``slotwise alarms`` shows them."""

from __future__ import annotations

import getpass
import json
import logging
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Final

import click

from slotwise import ConfigurationError, InvalidSetting, UnknownTask
from slotwise.contrib.alarms.alarms import Alarms
from slotwise.contrib.alarms.configuration import VARIABLE, configuration
from slotwise.contrib.alarms.incidents import OPENED, Incident, Silence
from slotwise.contrib.alarms.messages import message_of
from slotwise.contrib.alarms.rules import kind_named
from slotwise.contrib.reconciliation import Reconciler
from slotwise.contrib.reconciliation.reconciler import EVERY
from slotwise.spi import CommandLine, PluginCommand, Section, escaped, parse_duration

_WATCH: Final = """\b
Examples:
  slotwise watch                  with the targets of alarms.toml
  slotwise watch --app jobs       with the alarms of the application
"""
_GROUP: Final = """\b
Examples:
  slotwise alarms                 the newest incidents
  slotwise alarms test            a message to each target
"""
_LIST: Final = """\b
Examples:
  slotwise alarms list
  slotwise alarms list --limit 5 --json
"""
_SILENCE: Final = """\b
Examples:
  slotwise alarms silence nightly-report --until 2h --note "known, INC-4711"
  slotwise alarms silence nightly-report late --until 2026-11-30T06:00Z
  slotwise alarms silence "*" --until 30m
  slotwise alarms silence nightly-report --until 0s       ends it
"""
_TEST: Final = """\b
Examples:
  slotwise alarms test
"""


def alarms_of(line: CommandLine) -> Alarms:
    """Return the application's alarms; without an application, those of the file."""
    settings = line.settings()
    registry = None if settings.app is None else line.registry()
    known = None if registry is None else Alarms.of(registry)
    if known is not None:
        return known
    found = configuration()
    return Alarms(
        registry or settings,
        targets=found.targets,
        rules=found.rules,
        by_name=found.by_name,
        every=found.every,
    )


@click.command(
    short_help="Raise alarms, as a separate process, until a signal stops it.",
    epilog=_WATCH,
)
@click.pass_obj
def watch(line: CommandLine) -> None:
    """Raise alarms, as a separate process, until a signal stops it.

    It needs no worker. Several at once are harmless: each message is sent by one of them. What is
    raised and sent is said on the page on alarms; the targets are in alarms.toml, or in the file
    that SLOTWISE_ALARMS names, or in the application. Every five minutes it also compares the
    schedules with what ran, for the verdict of the dashboard.
    """
    alarms = alarms_of(line)
    _log_to_stderr()

    def end(number: int, frame: FrameType | None) -> None:
        alarms.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    if not alarms.targets:
        _say(
            "no targets: incidents are kept, and no message is sent; name some in "
            f"alarms.toml or {VARIABLE}",
            err=True,
        )
    names = ", ".join(target.name for target in alarms.targets) or "none"
    _say(f"watching; targets: {names}", err=True)
    with Reconciler(line.client, max(EVERY, alarms.every)):
        alarms.run()


def _log_to_stderr() -> None:
    if not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(_Lines("%(asctime)s %(levelname)s %(message)s"))
        logging.basicConfig(level=logging.INFO, handlers=[handler])


class _Lines(logging.Formatter):
    """Keep what a receiver has answered in one line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return escaped(super().formatMessage(record))


@click.group(
    short_help="List incidents, silence alarms, and try the targets.",
    invoke_without_command=True,
    epilog=_GROUP,
)
@click.pass_context
def alarms(ctx: click.Context) -> None:
    """List incidents, silence alarms, and try the targets."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(listing)


@alarms.command(
    "list", short_help="List incidents, the open ones first.", epilog=_LIST
)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="How many to list at most.",
)
@click.pass_obj
def listing(line: CommandLine, limit: int = 20) -> None:
    """List incidents, the open ones first, and silences."""
    with alarms_of(line) as found:
        incidents = found.incidents(limit)
        silences = found.silences()
    if line.json:
        document = {
            "incidents": [one.as_json() for one in incidents],
            "silences": [one.as_json() for one in silences],
        }
        _say_json(document)
        return
    for incident in incidents:
        _say(_incident_line(incident))
    for silence in silences:
        _say(_silence_line(silence))
    if not incidents:
        _say("no incidents")


def _incident_line(incident: Incident) -> str:
    state = "OPEN  " if incident.is_open else "over  "
    since = _moment(incident.opened)
    end = "" if incident.closed is None else f" to {_moment(incident.closed)}"
    line = f"{state} {since}{end}  {incident.kind}  {incident.summary}"
    return f"{line}  [not delivered: {incident.error}]" if incident.error else line


def _silence_line(silence: Silence) -> str:
    what = silence.name or "everything"
    kind = _in_brackets(silence.kind)
    note = f": {silence.note}" if silence.note else ""
    return f"silent {what}{kind} until {_moment(silence.until)}, by {silence.author}{note}"


def _in_brackets(kind: str) -> str:
    return f" ({kind})" if kind else ""


def _moment(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _say(text: str, *, err: bool = False) -> None:
    """Print one line: names, notes and errors come from rows that others may write."""
    click.echo(escaped(text), err=err)


def _say_json(document: Mapping[str, object]) -> None:
    click.echo(json.dumps(document))


@alarms.command(
    "silence",
    short_help="Send no messages of a job's alarms for a time.",
    epilog=_SILENCE,
)
@click.argument("name")
@click.argument("kind", required=False)
@click.option(
    "--until",
    required=True,
    metavar="WHEN",
    help="For so long (2h), or until an instant with its offset; 0s ends a silence.",
)
@click.option("--note", help="Why.")
@click.option(
    "--author", envvar="SLOTWISE_AUTHOR", help="Who; by default this account."
)
@click.pass_obj
def silence(
    line: CommandLine,
    name: str,
    kind: str | None,
    until: str,
    note: str | None,
    author: str | None,
) -> int:
    """Send no messages about NAME, or of one KIND of its alarms, for a time.

    NAME is that of a job, task or calendar; "*" means all. Incidents are still kept. One that
    is open when the silence ends is reported then. Exit status 1 if there is no silence to end.
    """
    covered = "" if kind is None else str(kind_named(kind))
    covers = "" if name == "*" else name
    end = _until(until)
    with alarms_of(line) as found:
        if end == timedelta(0):
            return _end(line, found, covers, covered)
        _check_name(line, covers)
        made = found.silence(
            covers, covered, until=end, author=author or _account(), note=note
        )
    if line.json:
        _say_json(made.as_json())
    else:
        _say(_silence_line(made))
    return 0


def _end(line: CommandLine, found: Alarms, name: str, kind: str) -> int:
    told = f"{name or 'everything'}{_in_brackets(kind)}"
    if not found.end_silence(name, kind):
        _say(f"there is no silence of {told}", err=True)
        return 1
    if line.json:
        _say_json({"name": name, "kind": kind, "ended": True})
    else:
        _say(f"{told} is silent no more")
    return 0


def _check_name(line: CommandLine, name: str) -> None:
    """Raise UnknownTask unless a job, a task or a calendar has this name, or it is empty."""
    if not name:
        return
    with line.client() as client:
        try:
            client.inspect.check_name(name)
        except UnknownTask:
            calendars = client.operations.calendars.all()
            if name not in {one.name for one in calendars}:
                raise


def _until(text: str) -> datetime | timedelta:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return parse_duration(text)
    if instant.tzinfo is None:
        raise InvalidSetting(
            f"--until {text!r:.60} has no offset; write +00:00 or Z at its end"
        )
    return instant


def _account() -> str:
    user = f"uid {os.getuid()}"
    with suppress(Exception):  # a container's user need not have a name
        user = getpass.getuser()
    return f"{user}@{socket.gethostname()}"


@alarms.command("test", short_help="Send a test message to each target.", epilog=_TEST)
@click.pass_obj
def test(line: CommandLine) -> int:
    """Send a test message to each target, and say which accepted it."""
    targets = alarms_of(line).targets
    if not targets:
        raise ConfigurationError(
            f"there are no targets; name some in alarms.toml or {VARIABLE}"
        )
    now = datetime.now().astimezone()
    message = message_of(_example(now), OPENED)
    errors: dict[str, str | None] = {}
    for target in targets:
        try:
            target.send(message)
        except Exception as error:  # whatever a target of the application raises
            errors[target.name] = f"{type(error).__name__}: {error}"
        else:
            errors[target.name] = None
    _say_results(line, errors)
    return 1 if any(errors.values()) else 0


def _say_results(line: CommandLine, errors: dict[str, str | None]) -> None:
    if line.json:
        _say_json(errors)
        return
    for name, error in errors.items():
        _say(f"{name}: {error or 'accepted'}")


def _example(now: datetime) -> Incident:
    return Incident(
        kind="test",
        name="",
        number=int(now.timestamp()),
        opened=now,
        seen=now,
        closed=None,
        summary="a test of this target, by slotwise alarms test",
    )


WATCH: Final = PluginCommand(command=watch, section=Section.SEE)
ALARMS: Final = PluginCommand(command=alarms, section=Section.SEE)
