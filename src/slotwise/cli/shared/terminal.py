"""The only place of the command line that writes to a stream or asks a question.

Names, notes and errors come from rows that others may write. A terminal escape, a newline or a
bidirectional mark in one of them must neither move the cursor nor forge a line: every character
that is not printable is escaped here. A test forbids any other way to print.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

import click

from slotwise.contrib.logging import escaped, escaped_lines, indented_lines

UTC: Final = ZoneInfo("UTC")


def say(*lines: object, err: bool = False) -> None:
    """Print each argument as one line, on stdout or stderr."""
    for line in lines:
        _write(escaped(str(line)), err=err)


def _write(text: str, *, err: bool, nl: bool = True) -> None:
    """What goes to stderr goes beside a command's work: a line that is lost there changes
    nothing.
    """
    if not err:
        click.echo(text, nl=nl)
        return
    with unharmed():
        click.echo(text, nl=nl, err=True)


@contextmanager
def unharmed() -> Iterator[None]:
    """Let no lost output change how the command ends: what it has done stands.

    Output is lost where the disk is full, or the stream was closed.
    """
    try:
        yield
    except (OSError, ValueError):
        discard_lost_output()


def discard_lost_output() -> bool:
    """Discard what a standard stream holds and cannot write; return whether there was any.

    Python itself would try again at its end, and change the exit status.
    """
    is_lost = False
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            is_lost = True
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
                stream.flush()
        except ValueError:  # closed, by a handler for example
            is_lost = True
    return is_lost


def say_error(text: str) -> None:
    """Print the error that ends the command, as one line on stderr."""
    _write(f"{click.style('error:', fg='red', bold=True)} {escaped(text)}", err=True)


def say_lines(text: str, *, err: bool = False) -> None:
    """Print a text of several lines, such as a traceback, indented: no line of it looks like one
    of the command.
    """
    _write(indented_lines(text), err=err)


def say_document(text: str) -> None:
    """Print a file that the command makes, such as SQL or a script: as it is, except on a
    terminal.
    """
    click.echo(escaped_lines(text) + "\n" if sys.stdout.isatty() else text, nl=False)


def say_styled(lines: str, *, color: bool) -> None:
    """Print a rendered table, whose cells are escaped already, with its colours."""
    for line in lines.splitlines():
        click.echo(line.rstrip(), color=color)


def say_json(text: str, *, end: str = "\n", err: bool = False) -> None:
    """Print JSON. Its encoder has escaped all characters beyond ASCII."""
    _write(f"{text}{end}", nl=False, err=err)


def ask(question: str) -> None:
    """Ask on stderr, and abort unless the answer is yes."""
    click.confirm(escaped(question), abort=True, err=True)


class _Shown:
    """The zone in which this command shows all times; None: each thing's own."""

    zone: ZoneInfo | None = None


def show_in(zone: ZoneInfo | None) -> None:
    """Show all times in this zone from now on, and read them; None: each in its job's own."""
    _Shown.zone = zone


def shown(zone: ZoneInfo) -> ZoneInfo:
    """Return the zone for times of this one."""
    return _Shown.zone or zone


def exact(instant: datetime, zone: ZoneInfo = UTC) -> str:
    """Format the instant as ``moment`` does, with microseconds: the slot of a trigger has them."""
    text = instant.astimezone(shown(zone)).isoformat()
    return text.removesuffix("+00:00") + "Z" if shown(zone).key == "UTC" else text


def moment(instant: datetime | None, zone: ZoneInfo = UTC) -> str:
    """Format the instant in a zone, as ISO 8601 with its offset, so that every command takes it as
    an argument.

    Milliseconds are shown only if they are not zero.
    """
    if instant is None:
        return "–"
    local = instant.astimezone(shown(zone))
    text = local.isoformat(timespec="milliseconds" if local.microsecond else "seconds")
    return text.removesuffix("+00:00") + "Z" if shown(zone).key == "UTC" else text


def moment_and_zone(instant: datetime, zone: ZoneInfo) -> str:
    """Format the instant as `moment` does, and name the zone unless it is UTC."""
    key = shown(zone).key
    return (
        moment(instant, zone) if key == "UTC" else f"{moment(instant, zone)} ({key})"
    )


@contextmanager
def output_for_answers(wanted: bool) -> Iterator[None]:
    """With --json, reserve stdout for the answer: output of the handler and its commands goes to
    stderr.
    """
    if not wanted:
        yield
        return
    discard_lost_output()
    ours = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        discard_lost_output()
        os.dup2(ours, 1)
        os.close(ours)
