"""``slotwise watch`` raises alarms as a separate process; ``slotwise alarms`` shows them."""

from __future__ import annotations

import getpass
import json
import logging
import os
import signal
from contextlib import suppress
from datetime import datetime, timedelta
from types import FrameType
from typing import Final

import click

from slotwise import ConfigurationError, InvalidSetting
from slotwise.contrib.alarms.alarms import Alarms
from slotwise.contrib.alarms.configuration import VARIABLE, configuration
from slotwise.contrib.alarms.incidents import OPENED, Incident, Silence
from slotwise.contrib.alarms.messages import message_of
from slotwise.contrib.alarms.rules import kind_named
from slotwise.spi import CommandLine, PluginCommand, Section, parse_duration

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
    that SLOTWISE_ALARMS names, or in the application.
    """
    alarms = alarms_of(line)
    _log_to_stderr()

    def end(number: int, frame: FrameType | None) -> None:
        alarms.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    if not alarms.targets:
        click.echo(
            "no targets: incidents are kept, and no message is sent; name some in "
            f"alarms.toml or {VARIABLE}",
            err=True,
        )
    names = ", ".join(target.name for target in alarms.targets) or "none"
    click.echo(f"watching; targets: {names}", err=True)
    alarms.run()


def _log_to_stderr() -> None:
    if not logging.getLogger().handlers:
        logging.basicConfig(
            level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
        )


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
        click.echo(json.dumps(document, ensure_ascii=False))
        return
    for incident in incidents:
        click.echo(_incident_line(incident))
    for silence in silences:
        click.echo(_silence_line(silence))
    if not incidents:
        click.echo("no incidents")


def _incident_line(incident: Incident) -> str:
    state = "OPEN  " if incident.is_open else "over  "
    since = _moment(incident.opened)
    end = "" if incident.closed is None else f" to {_moment(incident.closed)}"
    line = f"{state} {since}{end}  {incident.kind}  {incident.summary}"
    return f"{line}  [not delivered: {incident.error}]" if incident.error else line


def _silence_line(silence: Silence) -> str:
    what = silence.name or "everything"
    kind = f" ({silence.kind})" if silence.kind else ""
    note = f": {silence.note}" if silence.note else ""
    return f"silent {what}{kind} until {_moment(silence.until)}, by {silence.author}{note}"


def _moment(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%d %H:%M:%SZ")


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
) -> None:
    """Send no messages about NAME, or of one KIND of its alarms, for a time.

    NAME is that of a job, task or calendar; "*" means all. Incidents are still kept. One that
    is open when the silence ends is reported then.
    """
    covered = "" if kind is None else str(kind_named(kind))
    with alarms_of(line) as found:
        made = found.silence(
            "" if name == "*" else name,
            covered,
            until=_until(until),
            author=author or _account(),
            note=note,
        )
    if line.json:
        click.echo(json.dumps(made.as_json(), ensure_ascii=False))
    elif made.until <= made.created:
        click.echo(f"{name} is silent no more")
    else:
        click.echo(_silence_line(made))


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
    with suppress(Exception):
        return getpass.getuser()
    return f"uid {os.getuid()}"


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
        click.echo(json.dumps(errors, ensure_ascii=False))
        return
    for name, error in errors.items():
        click.echo(f"{name}: {error or 'accepted'}")


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
