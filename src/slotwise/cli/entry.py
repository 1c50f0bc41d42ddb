"""The command ``slotwise``: its commands, and its exit status."""

from __future__ import annotations

import gc
import io
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from typing import Any, Final

import click
from click.shell_completion import get_completion_class

from slotwise import __version__
from slotwise.cli.plugins import BrokenCommand, plugin, plugins
from slotwise.cli.shared import exits
from slotwise.cli.shared.options import DONE, Command, Group, common
from slotwise.cli.shared.terminal import discard_lost_output, say, say_document
from slotwise.spi import Section

#: The module of each command, by its place in the help. It is imported on first use: a health
#: probe that runs every few seconds must not load the engine.
SECTIONS: Final = {
    Section.SEE: {
        "audit": "operations",
        "explain": "slots",
        "failures": "slots",
        "health": "cluster",
        "jobs": "jobs",
        "plan": "deploys",
        "slots": "slots",
        "workers": "cluster",
    },
    Section.OPERATE: {
        "backfill": "operations",
        "cancel": "operations",
        "delete": "operations",
        "pause": "operations",
        "resume": "operations",
        "retry": "operations",
        "run": "run",
        "skip-next": "operations",
        "tasks": "tasks",
        "trigger": "operations",
    },
    Section.TIME: {
        "calendar": "calendars",
        "schedule": "schedules",
        "simulate": "simulate",
    },
    Section.SET_UP: {
        "completion": "entry",
        "db": "db",
        "demo": "start",
        "init": "start",
        "worker": "worker",
    },
}
#: The commands that no plug-in replaces.
COMMANDS: Final = {
    name: module for section in SECTIONS.values() for name, module in section.items()
}


_TABLES: Final = "to create or upgrade the tables: slotwise db upgrade"
_START: Final = "to run what is due: slotwise worker --app MODULE"
_RAN: Final = (
    "to see what ran, what did not, and why: slotwise slots [NAME]; "
    "a worker logs on stderr"
)
_PAGES: Final = (
    "slotwise has no web page; see: slotwise health, slots, failures, or for Grafana: "
    "slotwise export dashboard"
)
_DEAD: Final = (
    "see: slotwise failures, or for dead tasks: slotwise tasks list --state dead"
)
_ADD: Final = "to schedule a one-time task: slotwise tasks schedule NAME --data JSON"
_STOP: Final = (
    "to stop a job's handlers: slotwise cancel NAME; "
    "to start no more: slotwise pause NAME"
)
_NOW: Final = (
    "to run a job now: slotwise trigger NAME on a worker, slotwise run NAME --app "
    "MODULE in the foreground"
)
_LISTS: Final = "see: slotwise jobs, slotwise tasks list, slotwise workers"

#: Commands that people try, from other tools or by guessing, and what to write instead.
GUESSES: Final = {
    **dict.fromkeys(
        ("install", "setup", "migrate", "upgrade", "migration", "migrations", "schema"),
        _TABLES,
    ),
    **dict.fromkeys(
        ("start", "serve", "up", "consumer", "consume", "beat", "work", "scheduler"),
        _START,
    ),
    **dict.fromkeys(
        ("log", "logs", "history", "runs", "ledger", "executions", "results"), _RAN
    ),
    **dict.fromkeys(
        ("dashboard", "ui", "web", "flower", "monitor", "top", "admin", "metrics"), _PAGES
    ),
    **dict.fromkeys(("dead", "dlq", "errors", "failed", "dead-letter", "redrive"), _DEAD),
    **dict.fromkeys(("enqueue", "defer", "submit", "send", "call", "add"), _ADD),
    **dict.fromkeys(("stop", "kill", "abort", "disable", "suspend"), _STOP),
    **dict.fromkeys(("now", "execute", "fire", "exec", "call-now"), _NOW),
    **dict.fromkeys(("list", "ls", "show", "ps", "job", "task"), _LISTS),
    **dict.fromkeys(
        ("queue", "queues", "count", "purge", "flush"), "see: slotwise tasks --help"
    ),
    **dict.fromkeys(
        ("status", "ping", "check", "inspect"),
        "see: slotwise health, or slotwise jobs",
    ),
    **dict.fromkeys(
        ("enable", "unpause", "continue"), "to end a pause: slotwise resume NAME"
    ),
    **dict.fromkeys(
        ("cron", "crontabs"),
        "see: slotwise crontab FILE, or for an expression: slotwise schedule",
    ),
    **dict.fromkeys(
        ("next", "preview", "forecast"),
        "see: slotwise schedule next TEXT, or slotwise simulate --app M",
    ),
    **dict.fromkeys(("controls", "orders"), "see: slotwise audit"),
    "why": "write: slotwise explain NAME",
    "config": "settings are options, SLOTWISE_… in the environment, or slotwise.toml; see: "
    "slotwise worker --help",
    "settings": "settings are options, SLOTWISE_… in the environment, or slotwise.toml; see: "
    "slotwise worker --help",
    **dict.fromkeys(
        ("new", "quickstart", "startproject", "scaffold"),
        "to write a first application: slotwise init",
    ),
    "help": "write: slotwise --help, or slotwise COMMAND --help",
    "version": "write: slotwise --version",
    "diff": "write: slotwise plan --app MODULE, or slotwise schedule diff OLD NEW",
    "deploy": "write: slotwise plan --app MODULE, which shows what a deploy would change",
}


class PipeClosed(Exception):
    """The reader of the output has closed the pipe."""


class Commands(Mapping[str, click.Command]):
    """All commands by name, each imported on first use: the built-in ones, and plug-ins."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in COMMANDS:
            return plugin(name).command
        module = import_module(f"slotwise.cli.{COMMANDS[name]}")
        found: click.Command = getattr(module, name.replace("-", "_"))
        return found

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS or name in plugins()

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS | plugins())

    def __len__(self) -> int:
        return len(COMMANDS | plugins())


class Program(Group):
    """The root command. Click itself would exit with status 1 on a closed pipe, as for a
    failure.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Commands()  # type: ignore[assignment]  # click only reads them

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section; of a plug-in that cannot be loaded, say why on stderr."""
        names = {section: list(built_in) for section, built_in in SECTIONS.items()}
        for name in plugins().keys() - COMMANDS.keys():
            names.setdefault(plugin(name).section, []).append(name)
        width = formatter.width - 6 - max(map(len, self.commands))
        for section, listed in names.items():
            rows = []
            for name in sorted(listed):
                command = self.commands[name]
                if isinstance(command, BrokenCommand) and command.hidden:
                    say(f"warning: {command.problem}", err=True)
                elif not command.hidden:
                    rows.append((name, command.get_short_help_str(width)))
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise PipeClosed from None


@click.group(
    cls=Program,
    guesses=GUESSES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    examples="""
    slotwise demo                                 see it at work, in under a minute
    slotwise init                                 write a first application here
    export DATABASE_URL=postgresql://user@host/database
    slotwise db upgrade                           create the tables
    slotwise run nightly-report --app jobs        run one slot now, in the foreground
    slotwise worker --app jobs                    run what is due
    slotwise slots nightly-report                 what ran, what did not, and why
    """,
)
@click.version_option(
    __version__,
    prog_name="slotwise",
    message=f"%(prog)s %(version)s (Python {platform.python_version()}, SQLAlchemy "
    f"{version('SQLAlchemy')})",
)
@common
def cli() -> None:
    """Recurring jobs and one-time tasks on a cluster, coordinated only by your database."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and exit with one of the statuses in ``cli.shared.exits``."""
    found = status(arguments)
    discard_lost_output()
    # the last collections would traverse all imported modules: a fifth of the time of a short
    # command
    gc.freeze()
    sys.exit(found)


def status(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    DONE.rows = 0
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # the terminal's encoding may lack a character of a name
    try:
        result = cli.main(arguments, prog_name="slotwise", standalone_mode=False)
        if not isinstance(result, int):  # then the output is all that the command is for
            sys.stdout.flush()
    except (PipeClosed, BrokenPipeError):
        return _pipe_closed()
    except (click.Abort, KeyboardInterrupt):
        DONE.tell_interrupted()
        return exits.INTERRUPTED
    except Exception as error:
        from slotwise.cli.shared.error_report import report_error

        return report_error(error, as_json="--json" in given)
    return result if isinstance(result, int) else exits.OK


def _open_streams() -> None:
    """Open /dev/null for standard streams that the caller closed (``>&-``).

    Call this before any other file is opened: that file would get the descriptor of a standard
    stream, and the output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with suppress(OSError):
                os.fstat(number)
                continue
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _pipe_closed() -> int:
    """Discard the rest of the output: its reader has exited (``| head``)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exits.PIPE_CLOSED


@click.command(
    cls=Command,
    examples="""
    eval "$(slotwise completion bash)"                                       in ~/.bashrc
    eval "$(slotwise completion zsh)"                                        in ~/.zshrc
    slotwise completion fish > ~/.config/fish/completions/slotwise.fish
    """,
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes slotwise's commands in SHELL."""
    complete = get_completion_class(shell)
    assert complete is not None  # the three that click knows
    say_document(
        complete(ctx.find_root().command, {}, "slotwise", "_SLOTWISE_COMPLETE").source()
        + "\n"
    )
