"""The command ``slotwise`` and how it ends."""

from __future__ import annotations

import io
import os
import platform
import sys
from collections.abc import Sequence
from typing import Any

import click
import sqlalchemy

from slotwise.cli import exits
from slotwise.cli.bench import bench
from slotwise.cli.calendar import calendar
from slotwise.cli.command import Group
from slotwise.cli.completion import completion
from slotwise.cli.crontab import crontab
from slotwise.cli.db import db
from slotwise.cli.failures import tell
from slotwise.cli.health import health
from slotwise.cli.jobs import jobs
from slotwise.cli.options import common
from slotwise.cli.run import run
from slotwise.cli.schedule import schedule
from slotwise.cli.slots import slots
from slotwise.cli.worker import worker
from slotwise.cli.workers import workers
from slotwise.registry import own_version


class PipeClosed(Exception):
    """Nobody reads our output any more."""


class Program(Group):
    """The root; click itself would end a closed pipe with status 1, like a failure."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise PipeClosed from None


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    examples="""
    export DATABASE_URL=postgresql://user@host/database
    slotwise db upgrade                           make the tables
    slotwise run nightly-report --app jobs        run one slot now, in the foreground
    slotwise worker --app jobs                    run what is due
    slotwise slots nightly-report                 what ran, what did not, and why
    """,
)
@click.version_option(
    own_version(),
    prog_name="slotwise",
    message=f"%(prog)s %(version)s (Python {platform.python_version()}, SQLAlchemy {sqlalchemy.__version__})",
)
@common
def cli() -> None:
    """Recurring jobs and one-time tasks on a cluster, coordinated only by your database."""


for command in (worker, run, jobs, slots, workers, health, schedule, calendar, crontab, db, bench, completion):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ends the process with one of ``cli.exits``."""
    sys.exit(status(arguments))


def status(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name need not exist in the terminal's encoding
    try:
        result = cli.main(arguments, prog_name="slotwise", standalone_mode=False)
        sys.stdout.flush()
    except (PipeClosed, BrokenPipeError):
        return _pipe_closed()
    except (click.Abort, KeyboardInterrupt):
        return exits.INTERRUPTED
    except Exception as error:
        return tell(error)
    return result if isinstance(result, int) else exits.OK


def _pipe_closed() -> int:
    """Whoever read our output has left (``| head``): nothing to say, and nobody to say it to."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exits.PIPE_CLOSED
