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
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import get_completion_class

from slotwise import SlotwiseError, UnknownTask
from slotwise.cli.plugins import BrokenCommand, plugin, plugins
from slotwise.cli.shared import exits
from slotwise.cli.shared.options import DONE, Command, Group, common
from slotwise.cli.shared.shards import run_on_each, shards_to_walk
from slotwise.cli.shared.terminal import (
    discard_lost_output,
    say,
    say_document,
    show_in,
)
from slotwise.spi import Section

#: The module of each command, and its line in the help, by its place there. The module is imported
#: on first use: a health probe that runs every few seconds must not load the engine.
SECTIONS: Final = {
    Section.SEE: {
        "audit": ("audit", "List the operations on jobs: author, time and reason."),
        "explain": (
            "explain",
            "Why a slot ran, or did not; why a job does not run now.",
        ),
        "failures": ("slots", "What failed lately, of all jobs and tasks."),
        "health": ("cluster", "One exit status for probes and alarms."),
        "jobs": ("jobs", "List the jobs in the database, by name, or show one."),
        "plan": ("deploys", "Preview what a deploy would change."),
        "shards": (
            "shards",
            "List the shards of an application, and apply its map of keys.",
        ),
        "slots": ("slots", "What ran, what did not, and why."),
        "top": (
            "top",
            "A live view of jobs, tasks and workers, with keys for operations.",
        ),
        "workers": ("cluster", "List workers, and see where their handlers are."),
    },
    Section.OPERATE: {
        "backfill": ("operations", "Run the slots of a range that never ran."),
        "cancel": ("operations", "Ask the running handlers of a job to stop."),
        "delete": ("operations", "Remove a job that is no longer in the code."),
        "pause": ("operations", "Start no slots of a job, or of all jobs."),
        "resume": ("operations", "End the pause of a job, or of all."),
        "retry": ("operations", "Retry a failed slot, as the same slot."),
        "run": ("run", "Run one slot of the job NAME in the foreground."),
        "skip-next": ("operations", "Skip a job's next slot."),
        "tasks": ("tasks", "List, schedule, retry and cancel one-time tasks."),
        "trigger": (
            "operations",
            "Run a job now, on some worker, beside its schedule.",
        ),
    },
    Section.TIME: {
        "calendar": ("calendars", "Manage business calendars."),
        "schedule": (
            "schedules",
            "Explain schedules, list their slots, compare them.",
        ),
        "simulate": ("simulate", "Preview what would run, with outages."),
    },
    Section.SET_UP: {
        "completion": (
            "entry",
            "Print the script that completes slotwise's commands in SHELL.",
        ),
        "db": ("db", "Create the tables, check them, drop them."),
        "demo": (
            "start",
            "See slotwise at work: three workers, three disasters, a verdict.",
        ),
        "init": (
            "start",
            "Write a first application: jobs.py, settings, a compose file.",
        ),
        "worker": (
            "worker",
            "Run due slots and tasks, until a signal stops the worker.",
        ),
    },
}
#: The commands that no plug-in replaces.
COMMANDS: Final = {
    name: module
    for section in SECTIONS.values()
    for name, (module, _) in section.items()
}


class OwnPlugin(NamedTuple):
    """The place in the help of a plug-in of our own, and what it needs besides slotwise."""

    section: str
    line: str
    needs: tuple[str, ...] = ()


#: By their entry points. Other plug-ins are imported for the help, as those that lack something.
OWN_PLUGINS: Final = {
    "slotwise.cli.advisory:CRON_JOBS": OwnPlugin(
        Section.TIME, "List the jobs of CRON_JOBS, or all its problems."
    ),
    "slotwise.cli.advisory:LOCK_KEYS": OwnPlugin(
        Section.SET_UP,
        "Check the registry of lock keys; list keys in use and free ones.",
    ),
    "slotwise.cli.crontabs:CRONTAB": OwnPlugin(
        Section.TIME, "Check crontabs, or convert them to Python."
    ),
    "slotwise.cli.doctor:DOCTOR": OwnPlugin(
        Section.SEE, "Examine database and cluster; say what is wrong, and the cure."
    ),
    "slotwise.cli.export:EXPORT": OwnPlugin(
        Section.SET_UP, "Print manifests, a unit of systemd, a dashboard, alert rules."
    ),
    "slotwise.contrib.alarms.command:ALARMS": OwnPlugin(
        Section.SEE, "List incidents, silence alarms, and try the targets."
    ),
    "slotwise.contrib.alarms.command:WATCH": OwnPlugin(
        Section.SEE, "Raise alarms, as a separate process, until a signal stops it."
    ),
    "slotwise.contrib.events.command:EVENTS": OwnPlugin(
        Section.SEE, "List events; retry what is dead; how far handlers are behind."
    ),
    "slotwise.contrib.batches.command:BATCHES": OwnPlugin(
        Section.OPERATE, "List rows that batches have set aside, retry or drop them."
    ),
    "slotwise.cli.statement:STATEMENT": OwnPlugin(
        Section.SEE, "Account for each slot of a month, by job and in total."
    ),
    "slotwise.cli.tick:TICK": OwnPlugin(
        Section.SET_UP, "Run what is due, and end: for external clocks."
    ),
    "slotwise.contrib.dashboard.command:DASHBOARD [dashboard]": OwnPlugin(
        Section.SEE,
        "Serve pages that show what ran, what did not, and why.",
        needs=("jinja2", "uvicorn"),
    ),
}


_TABLES: Final = "to create or upgrade the tables: slotwise db upgrade"
_START: Final = "to run what is due: slotwise worker --app MODULE"
_RAN: Final = (
    "to see what ran, what did not, and why: slotwise slots [NAME]; "
    "a worker logs on stderr"
)
_PAGES: Final = (
    "see: slotwise dashboard in a browser; slotwise health, slots, failures here; for Grafana: "
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
        (
            "install",
            "setup",
            "migrate",
            "upgrade",
            "migration",
            "migrations",
            "schema",
        ),
        _TABLES,
    ),
    **dict.fromkeys(
        ("start", "serve", "up", "consumer", "consume", "beat", "work", "scheduler"),
        _START,
    ),
    **dict.fromkeys(
        ("log", "logs", "history", "runs", "ledger", "executions", "results"), _RAN
    ),
    **dict.fromkeys(("ui", "web", "flower", "monitor", "admin", "metrics"), _PAGES),
    **dict.fromkeys(
        ("dead", "dlq", "errors", "failed", "dead-letter", "redrive"), _DEAD
    ),
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


#: New objects before the garbage collector looks. Imports make many that stay: with Python's own
#: number, its looks at them take a fifth of the time of a short command.
NEW_OBJECTS: Final = 20_000


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

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """List the commands by section; of a plug-in that cannot be loaded, say why on stderr."""
        rows: dict[str, list[tuple[str, str]]] = {
            section: [(name, line) for name, (_, line) in built_in.items()]
            for section, built_in in SECTIONS.items()
        }
        width = formatter.width - 6 - max(map(len, self.commands))
        for name in plugins().keys() - COMMANDS.keys():
            if (listed := _listed(name, width)) is not None:
                section, line = listed
                rows.setdefault(section, []).append((name, line))
        for section, lines in rows.items():
            with formatter.section(section):
                formatter.write_dl(sorted(lines))

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise PipeClosed from None


def _tell_version(ctx: click.Context, option: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        from slotwise import __version__

        libraries = (
            f"Python {platform.python_version()}, SQLAlchemy {version('SQLAlchemy')}"
        )
        say(f"slotwise {__version__} ({libraries})")
        ctx.exit()


def _listed(name: str, width: int) -> tuple[str, str] | None:
    """Return section and line of a plug-in in the help; None if it is not listed."""
    own = OWN_PLUGINS.get(plugins()[name].value)
    if own is not None and all(map(find_spec, own.needs)):
        return own.section, own.line
    found = plugin(name)
    if isinstance(found.command, BrokenCommand) and found.command.hidden:
        say(f"warning: {found.command.problem}", err=True)
    if found.command.hidden:
        return None
    return found.section, found.command.get_short_help_str(width)


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
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_tell_version,
    help="Show the version and exit.",
)
@common
def cli() -> None:
    """Recurring jobs and one-time tasks on a cluster, coordinated only by your database."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and exit with one of the statuses in ``cli.shared.exits``."""
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])
    found = status(arguments)
    discard_lost_output()
    # the last collections would traverse all imported modules: a fifth of the time of a short
    # command
    gc.freeze()
    sys.exit(found)


def status(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, on each shard if it is about all of them; return the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    _open_streams()
    try:
        walked = shards_to_walk(given)
    except SlotwiseError as error:
        from slotwise.cli.shared.error_report import report_error

        return report_error(error, as_json="--json" in given)
    if walked:
        return run_on_each(walked, given, _status)
    return _status(given, None)


def _status(given: Sequence[str], unknown: list[str] | None) -> int:
    """Run one command line. An error about a name goes into ``unknown``, if that is a list."""
    DONE.rows = 0
    show_in(None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # the terminal's encoding may lack a character of a name
    try:
        result = cli.main(given, prog_name="slotwise", standalone_mode=False)
        if not isinstance(
            result, int
        ):  # then the output is all that the command is for
            sys.stdout.flush()
    except (PipeClosed, BrokenPipeError):
        return _pipe_closed()
    except (click.Abort, KeyboardInterrupt):
        DONE.tell_interrupted()
        return exits.INTERRUPTED
    except Exception as error:
        from slotwise.cli.shared.error_report import report_error

        if unknown is not None and isinstance(error, UnknownTask):
            unknown.append(" ".join(str(error).split()))
            return exits.FAILED
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
        complete(
            ctx.find_root().command, {}, "slotwise", "_SLOTWISE_COMPLETE"
        ).source()
        + "\n"
    )
