"""``slotwise worker``: run due slots and tasks, in one process or several."""

from __future__ import annotations

import gc
import logging
import signal
import sys
from collections.abc import Callable

import click

from slotwise.cli.crontabs import CrontabChoice, crontab_options
from slotwise.cli.shared import exits
from slotwise.cli.shared.application import lifespan_of
from slotwise.cli.shared.error_report import report_error
from slotwise.cli.shared.exits import end_now, end_soon
from slotwise.cli.shared.options import Command, Given, common, kept, pass_given
from slotwise.contrib.logging import JsonFormatter, LogListener, configure
from slotwise.engine.process.signals import StopSignals
from slotwise.engine.process.supervisor import Lifeline, Supervisor
from slotwise.engine.worker import Worker

logger = logging.getLogger("slotwise.worker")

#: Allocations between two collections: more than two claimed batches need.
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
@kept("--tags", metavar="TAG", multiple=True, help="Tags of this worker, for jobs that need one.")
@kept(
    "--revision",
    metavar="TEXT",
    help="Orders deploys: a number, version or time that grows; default: when this command started.",
)
@kept("--poll-interval", metavar="DURATION", help="Longest pause between two polls for due rows; default: 10s.")
@kept("--heartbeat-interval", metavar="DURATION", help="How often claims are renewed; default: 10s.")
@kept("--missed-heartbeats-limit", metavar="N", help="The lease, in heartbeat intervals; default: 6.")
@kept(
    "--reaper-interval", metavar="DURATION", help="How often other workers' claims are checked; default: as heartbeats."
)
@kept("--shutdown-grace", metavar="DURATION", help="How long handlers may continue after a stop; default: 30s.")
@kept("--worker-name", metavar="TEXT", help="The name of this worker; default: the host's name.")
@kept("--pooler", is_flag=True, help="The connection goes through a transaction pooler.")
@crontab_options
@click.option("--lifeline", type=int, hidden=True)
@click.option("--born", type=float, hidden=True)
@common
@pass_given
def worker(given: Given, lifeline: int | None, born: float | None, crontabs: CrontabChoice) -> int:
    """Run due slots and tasks, until a signal stops the worker.

    SIGTERM, Ctrl-C or a closed terminal drains: nothing new starts, claims that have not started are handed back at
    once, and running handlers may finish. The second signal cancels running handlers. The third one ends the process
    at once; its claims are taken over when their leases expire. Signals within a second count as one.
    """
    settings = given.settings()
    handler = configure("json" if given.json else settings.log_format, settings.log_level)
    if lifeline is None and settings.processes > 1:
        return supervise(given, settings.processes, crontabs)
    registry = given.registry(crontabs.jobs())
    _enable_loggers()
    if lifeline is None and registry.settings.processes > 1:
        return supervise(given, registry.settings.processes, crontabs)
    made = registry.listen(LogListener())._make_worker(born=born)
    if isinstance(handler.formatter, JsonFormatter):
        handler.formatter.worker = made.name
    return serve(made, Lifeline(lifeline) if lifeline is not None else None)


def supervise(given: Given, processes: int, crontabs: CrontabChoice) -> int:
    """Run this command line in child processes, one worker each."""
    options = {**given.values, "app_dir": str(given.app_dir)}
    flags = [f"--{name.replace('_', '-')}{'' if value is True else f'={value}'}" for name, value in options.items()]
    command = [sys.executable, "-P", "-m", "slotwise", "worker", *flags, *crontabs.flags(), "--processes=1"]
    return Supervisor(command, processes, fatal=(exits.FAILED, exits.USAGE, exits.DATABASE)).run()


def serve(made: Worker, lifeline: Lifeline | None = None) -> int:
    """Run one worker in this process, in the foreground; return the exit status."""
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
    """Keep the garbage collector from traversing all that exists at the start, and run it less often.

    An application that has disabled it, or has set a higher threshold, keeps its choice.
    """
    gc.collect()
    gc.freeze()
    young, *older = gc.get_threshold()
    if 0 < young < GENERATION:
        gc.set_threshold(GENERATION, *older)


def _stop(made: Worker) -> None:
    """Race: a handler that did not stop was handed back; until this process exits, it may run here and elsewhere."""
    try:
        with lifespan_of(made):
            made.stop(ending=True)
    except BaseException as error:
        if made.unfinished:
            end_now(report_error(error))
        raise
    if made.unfinished:
        end_now(exits.UNFINISHED)


def _reaction(made: Worker) -> Callable[[int, int], None]:
    def react(number: int, count: int) -> None:
        word = signal.Signals(number).name
        if count > 2:
            logger.warning("%s again: ending at once; other workers take over when the leases expire", word)
            end_now(exits.UNFINISHED)
        if count == 1:
            logger.info("%s: draining; send it again, after a second, to cancel running handlers", word)
            made.request_stop()
        else:
            logger.info("%s: cancelling running handlers", word)
            made.cancel()

    return react


def _enable_loggers() -> None:
    """Enable slotwise's loggers: by default, an application's dictConfig disables all loggers that it does not name."""
    for name, found in logging.root.manager.loggerDict.items():
        if isinstance(found, logging.Logger) and name.partition(".")[0] == "slotwise":
            found.disabled = False
