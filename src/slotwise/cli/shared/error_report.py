"""Prints an error as a line with its cure for each problem, or as JSON, and chooses the exit
status.
"""

from __future__ import annotations

import errno
import json
import re
import traceback
from typing import Final

import click
from sqlalchemy.exc import SQLAlchemyError

from slotwise import ConfigurationError, DatabaseProblem, SlotwiseError
from slotwise.cli.shared import exits
from slotwise.cli.shared.application import ApplicationFailed
from slotwise.cli.shared.terminal import say_error, say_json, say_lines
from slotwise.spi import describe_error, hide_password

BUG = "this is a bug in slotwise; please report it with the lines above"


def report_error(error: BaseException, *, as_json: bool = False) -> int:
    """Print the error on stderr; return the exit status. ``as_json``: as ``{"error": …, "status":
    …}``.
    """
    if (
        isinstance(error, click.UsageError)
        and type(error).__name__ == "NoArgsIsHelpError"
    ):  # click 8.2 and later
        error.show()
        return exits.USAGE
    text, status, trace = _told(error)
    trace = "\n".join(
        map(hide_password, trace.splitlines())
    )  # an @ in a later line must not hide the lines before it
    # Each line of a mistake in the configuration is a problem of its own; others have one line.
    lines = text.split("\n") if isinstance(error, ConfigurationError) else [text]
    if as_json:
        document = {"error": text, "status": status}
        say_json(
            json.dumps(document | ({"traceback": trace} if trace else {})), err=True
        )
        return status
    if trace:
        say_lines(trace, err=True)
    for line in lines:
        say_error(line)
    return status


def _told(error: BaseException) -> tuple[str, int, str]:
    """Return the line, the exit status and the traceback, which is empty unless it helps."""
    match error:
        case click.UsageError():
            return _usage(error), exits.USAGE, ""
        case click.ClickException():
            return error.format_message(), exits.FAILED, ""
        case ApplicationFailed():
            head, _, trace = str(error).partition("\n")
            return head.rstrip(":"), exits.FAILED, trace
        case DatabaseProblem():
            return str(error), exits.DATABASE, ""
        case SlotwiseError():
            return str(error), exits.FAILED, ""
        case SQLAlchemyError():
            return f"database error: {describe_error(error)}", exits.DATABASE, ""
        case OSError():
            cure = (
                "; make room there, or send the output elsewhere"
                if error.errno == errno.ENOSPC
                else ""
            )
            return hide_password(str(error)) + cure, exits.FAILED, ""
    return BUG, exits.BUG, "".join(traceback.format_exception(error))


#: What click calls a number.
_KINDS: Final = re.compile(r"is not a valid (integer|float)( range)?")


def _kind(found: re.Match[str]) -> str:
    return f"is not a {'whole ' if found[1] == 'integer' else ''}number"


def _usage(error: click.UsageError) -> str:
    message = _KINDS.sub(_kind, " ".join(error.format_message().split()).rstrip("."))
    path = error.ctx.command_path if error.ctx else "slotwise"
    return f"{message}; see: {path} --help"
