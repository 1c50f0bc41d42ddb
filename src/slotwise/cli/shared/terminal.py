"""The only place of the command line that writes to a stream or asks a question.

Names, notes and errors come from rows that others may write. A terminal escape, a newline or a
bidirectional mark in one of them must neither move the cursor nor forge a line: every character
that is not printable is escaped here. A test forbids any other way to print.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, tzinfo

import click

from slotwise.contrib.logging import escaped, escaped_lines


def say(*lines: object, err: bool = False) -> None:
    """Print each argument as one line, on stdout or stderr."""
    for line in lines:
        click.echo(escaped(str(line)), err=err)


def say_error(text: str) -> None:
    """Print the error that ends the command, as one line on stderr."""
    click.echo(f"{click.style('error:', fg='red', bold=True)} {escaped(text)}", err=True)


def say_lines(text: str, *, err: bool = False) -> None:
    """Print a text of several lines, such as a traceback."""
    click.echo(escaped_lines(text), err=err)


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
    click.echo(f"{text}{end}", nl=False, err=err)


def ask(question: str) -> None:
    """Ask on stderr, and abort unless the answer is yes."""
    click.confirm(escaped(question), abort=True, err=True)


def exact(instant: datetime, zone: tzinfo = UTC) -> str:
    """Format the instant as ``moment`` does, with microseconds: the slot of a trigger has them."""
    text = instant.astimezone(zone).isoformat()
    return text.removesuffix("+00:00") + "Z" if str(zone) == "UTC" else text


def moment(instant: datetime | None, zone: tzinfo = UTC) -> str:
    """Format the instant in a zone, as ISO 8601 with its offset, so that every command takes it as
    an argument.

    Milliseconds are shown only if they are not zero.
    """
    if instant is None:
        return "–"
    local = instant.astimezone(zone)
    text = local.isoformat(timespec="milliseconds" if local.microsecond else "seconds")
    return text.removesuffix("+00:00") + "Z" if str(zone) == "UTC" else text
