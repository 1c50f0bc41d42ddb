"""Prints an error as one line with its cure, and chooses the exit status."""

from __future__ import annotations

import errno
import traceback

import click
from sqlalchemy.exc import SQLAlchemyError

from slotwise.cli.shared import exits
from slotwise.cli.shared.application import ApplicationFailed
from slotwise.contrib.logging import escaped, escaped_lines
from slotwise.errors import DatabaseProblem, SlotwiseError
from slotwise.model.error_text import hide_password
from slotwise.store.connect.database_errors import describe


def report_error(error: BaseException) -> int:
    """Print the error on stderr; return the exit status."""
    match error:
        case click.UsageError() if type(error).__name__ == "NoArgsIsHelpError":  # click 8.2 and later
            error.show()
            return exits.USAGE
        case click.UsageError():
            return _line(_usage(error), exits.USAGE)
        case click.ClickException():
            return _line(error.format_message(), exits.FAILED)
        case ApplicationFailed():
            return _traceback(error)
        case DatabaseProblem():
            return _line(str(error), exits.DATABASE)
        case SlotwiseError():
            return _line(str(error), exits.FAILED)
        case SQLAlchemyError():
            return _line(f"the database refused: {describe(error)}", exits.DATABASE)
        case OSError():
            cure = "; make room there, or send the output elsewhere" if error.errno == errno.ENOSPC else ""
            return _line(hide_password(str(error)) + cure, exits.FAILED)
    return _bug(error)


def _line(text: str, status: int) -> int:
    prefix = click.style("error:", fg="red", bold=True)
    click.echo(f"{prefix} {escaped(text)}", err=True)
    return status


def _usage(error: click.UsageError) -> str:
    message = error.format_message().rstrip(".")
    path = error.ctx.command_path if error.ctx else "slotwise"
    return f"{message}; see: {path} --help"


def _traceback(error: ApplicationFailed) -> int:
    head, _, trace = str(error).partition("\n")
    click.echo(_safe(trace), err=True)
    return _line(head.rstrip(":"), exits.FAILED)


def _safe(trace: str) -> str:
    """Redact line by line: an @ in a later line must not hide the lines before it."""
    return escaped_lines("\n".join(map(hide_password, trace.splitlines())))


def _bug(error: BaseException) -> int:
    click.echo(_safe("".join(traceback.format_exception(error))), err=True)
    return _line("this is a mistake in slotwise, please report it with the lines above", exits.BUG)
