"""``slotwise worker``: the pool of one machine."""

from __future__ import annotations

import gc
import logging
import signal
import sys
from collections.abc import Callable

import click

from slotwise.cli.shared import exits
from slotwise.cli.shared.application import lifespan_of
from slotwise.cli.shared.crontab_options import CrontabChoice, crontab_options
from slotwise.cli.shared.error_report import tell
from slotwise.cli.shared.exits import end_now, end_soon
from slotwise.cli.shared.options import Command, Given, common, kept, pass_given
from slotwise.contrib.logging import JsonFormatter, LogListener, configure
from slotwise.engine.process.lifeline import Lifeline
from slotwise.engine.process.signals import StopSignals
from slotwise.engine.process.supervisor import Supervisor
from slotwise.engine.worker import Worker

logger = logging.getLogger("slotwise.worker")

#: After so many new objects the collector looks at them: more than two claimed batches make.
GENERATION = 20_000


@click.command(
    cls=Command,
    notes="\n".join(f"{status:<4}{meaning}" for status, meaning in exits.MEANINGS),
    examples="""
    slotwise worker --app jobs                                   one process, its registry found by itself
    slotwise worker --app shop.jobs:registry --processes 4 --threads 8
    slotwise worker --app jobs --only nightly-report --log-format json
    slotwise worker --crontab shop.crontab --crontab-tz Europe/Vienna            a crontab instead of an application
    slotwise worker --app jobs --revision "$(git log -1 --format=%cI)"           an older deploy re-plans nothing
    """,
)
@kept("--processes", metavar="N", help="Processes, each a fresh interpreter under a supervisor; default: 1.")
@kept("--threads", metavar="N", help="Handlers at a time, per process; default: 10, or one for each job.")
@kept("--only", metavar="NAME", multiple=True, help="Run only this job or task; may be given more than once.")
@kept("--tags", metavar="TAG", multiple=True, help="What this worker offers to jobs that ask for it.")
@kept(
    "--revision",
    metavar="TEXT",
    help="Orders deploys: a number, version or time that grows; default: when this command started.",
)
@kept("--poll-interval", metavar="DURATION", help="Longest pause between two looks for due rows; default: 10s.")
@kept("--heartbeat-interval", metavar="DURATION", help="How often claims are renewed; default: 10s.")
@kept("--missed-heartbeats-limit", metavar="N", help="The lease, in heartbeat intervals; default: 6.")
@kept("--reaper-interval", metavar="DURATION", help="How often others' claims are looked at; default: as heartbeats.")
@kept("--shutdown-grace", metavar="DURATION", help="How long handlers may finish after a stop; default: 30s.")
@kept("--worker-name", metavar="TEXT", help="What this worker is called; default: the host's name.")
@kept("--pooler", is_flag=True, help="A transaction pooler stands between here and the database.")
@crontab_options
@click.option("--lifeline", type=int, hidden=True)
@click.option("--born", type=float, hidden=True)
@common
@pass_given
def worker(given: Given, lifeline: int | None, born: float | None, crontabs: CrontabChoice) -> int:
    """Run what is due, until told to stop.

    SIGTERM, Ctrl-C or a closed terminal drains: nothing new starts, what has not started is handed back at once,
    what runs may finish. The second one cancels what runs. The third one ends the process at once; its claims are
    taken over when their leases run out. What comes within a second counts as one.
    """
    settings = given.settings()
    handler = configure("json" if given.json else settings.log_format, settings.log_level)
    if lifeline is None and settings.processes > 1:
        return supervise(given, settings.processes, crontabs)
    registry = given.registry(crontabs.jobs())
    _enable_loggers()
    if lifeline is None and registry.settings.processes > 1:
        return supervise(given, registry.settings.processes, crontabs)
    made = registry.listen(LogListener()).make_worker(born=born)
    if isinstance(handler.formatter, JsonFormatter):
        handler.formatter.worker = made.name
    return serve(made, Lifeline(lifeline) if lifeline is not None else None)


def supervise(given: Given, processes: int, crontabs: CrontabChoice) -> int:
    """Children of this very command line, one process each."""
    options = {**given.values, "app_dir": str(given.app_dir)}
    flags = [f"--{name.replace('_', '-')}{'' if value is True else f'={value}'}" for name, value in options.items()]
    command = [sys.executable, "-P", "-m", "slotwise", "worker", *flags, *crontabs.flags(), "--processes=1"]
    return Supervisor(command, processes, fatal=(exits.FAILED, exits.USAGE, exits.DATABASE)).run()


def serve(made: Worker, lifeline: Lifeline | None = None) -> int:
    """One worker, in this process and in the foreground; the exit status."""
    if lifeline is not None:
        lifeline.watch(on_drain=made.request_stop, on_cancel=made.cancel)
    _spare_the_collector()
    try:
        with StopSignals(_reaction(made), final=True):
            with lifespan_of(made):
                made.start()
            if lifeline is not None and not made.wait_for_stop(0):
                lifeline.say_up()
            made.wait_for_stop()
            _stop(made)
    finally:
        made.store.database.close()
    return end_soon(exits.OK)


def _spare_the_collector() -> None:
    """What is there by now stays: it is not looked through again and again for the sake of what claims come and go.

    An application that has switched it off, or lets it come less often, keeps its will.
    """
    gc.collect()
    gc.freeze()
    young, *older = gc.get_threshold()
    if 0 < young < GENERATION:
        gc.set_threshold(GENERATION, *older)


def _stop(made: Worker) -> None:
    """Race: a handler that did not stop was handed back; until this process is gone, it may run here and elsewhere."""
    try:
        with lifespan_of(made):
            made.stop(ending=True)
    except BaseException as error:
        if made.unfinished:
            end_now(tell(error))
        raise
    if made.unfinished:
        end_now(exits.UNFINISHED)


def _reaction(made: Worker) -> Callable[[int, int], None]:
    def react(number: int, count: int) -> None:
        word = signal.Signals(number).name
        if count > 2:
            logger.warning("%s again: ending at once; the leases of what ran run out", word)
            end_now(exits.UNFINISHED)
        if count == 1:
            logger.info("%s: draining; once more, after a second, cancels what runs", word)
            made.request_stop()
        else:
            logger.info("%s: cancelling what runs", word)
            made.cancel()

    return react


def _enable_loggers() -> None:
    """An application's dictConfig switches off, by default, every logger that it does not name: ours, too."""
    for name, found in logging.root.manager.loggerDict.items():
        if isinstance(found, logging.Logger) and name.partition(".")[0] == "slotwise":
            found.disabled = False
