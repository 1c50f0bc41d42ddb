"""``slotwise tick``: run what is due, and end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from zoneinfo import ZoneInfo

import click

from slotwise import JobCancelled
from slotwise.cli.crontabs import CrontabChoice, crontab_options
from slotwise.cli.shared import exits
from slotwise.cli.shared.application import lifespan_errors
from slotwise.cli.shared.exits import end_now
from slotwise.cli.shared.options import Command, Given, common, kept, pass_given
from slotwise.cli.shared.output import print_json
from slotwise.cli.shared.terminal import (
    moment,
    output_for_answers,
    say,
    shown,
    unharmed,
)
from slotwise.cli.shared.values import duration
from slotwise.contrib.logging import LogListener, configure, keep_one_console
from slotwise.contrib.processes.process_one import reap_as_process_one
from slotwise.contrib.processes.signals import StopSignals
from slotwise.contrib.tick.resting import Resting
from slotwise.contrib.tick.tick import Tick, TickResult, TickState
from slotwise.spi import PluginCommand, Section, elapsed, short_duration


class _Tick(Tick):
    """A tick that shows the traceback of a lifespan that fails."""

    def run(self, *, ending: bool = False) -> TickResult:
        with lifespan_errors(self.worker):
            return super().run(ending=ending)


@click.command(
    "tick",
    cls=Command,
    short_help="Run what is due, and end: for external clocks.",
    notes="""
    0    nothing is due any more, or the time is up; the line says which. Handlers may have failed;
         with --every: a signal has ended it
    1    a mistake in the application or the settings
    3    the database cannot be used
    4    drained, but a handler did not stop, or an outcome was not written
    130  ended by Ctrl-C
    143  ended by SIGTERM
    """,
    examples="""
    slotwise tick --app jobs
    slotwise tick --app jobs --budget 5m              start nothing any more after five minutes
    slotwise tick --app jobs --json | jq -r .until    when the next one is to come at the latest
    slotwise tick --app jobs --every 1h --listen      a worker that sends nothing while it rests
    slotwise tick --crontab shop.crontab              without an application
    """,
)
@click.option(
    "--budget",
    default="50s",
    show_default=True,
    metavar="DURATION",
    callback=duration,
    help="For how long it starts what is due.",
)
@click.option(
    "--early",
    default="2s",
    show_default=True,
    metavar="DURATION",
    callback=duration,
    help="Wait this long for what is about to be due; the caller's clock may be ahead.",
)
@click.option(
    "--every",
    metavar="DURATION",
    callback=duration,
    help="Stay, rest until the next one is to come, and tick again: after this time at the latest.",
)
@click.option(
    "--listen",
    is_flag=True,
    help="With --every: a notification of PostgreSQL ends a rest; this keeps one connection.",
)
@kept(
    "--only",
    metavar="NAME",
    multiple=True,
    help="Run only this job or task; may be given more than once.",
)
@kept(
    "--tags",
    metavar="TAG",
    multiple=True,
    help="Tags of this process, for jobs that need one.",
)
@crontab_options
@common
@pass_given
def command(
    given: Given,
    budget: timedelta,
    early: timedelta,
    every: timedelta | None,
    listen: bool,
    crontabs: CrontabChoice,
) -> int:
    """Run what is due, and end, where a cloud scheduler, a CronJob or a timer is the clock.

    It is a worker that ends when nothing is due any more, or when its budget is spent: then
    running handlers may finish within shutdown_grace. It takes over what a dead process held. Two
    at once share the work. It prints when the next one is to come at the latest; an earlier one
    does no harm.

    With --every it stays as a process, and rests between its ticks without a statement: with
    --listen on one connection, else on none.

    A signal drains it like a worker. Without a worker, a job starts when a tick comes: policies
    such as catch_up and start_within decide about the slots between.
    """
    if listen and every is None:
        raise click.UsageError("--listen is about rests; add --every 1h")
    reap_as_process_one()
    born = elapsed()
    settings = given.settings()
    handler = configure(settings.log_format, settings.log_level)
    registry = given.registry(crontabs.jobs()).listen(LogListener())
    keep_one_console(handler, settings.log_level)

    def make_tick() -> Tick:
        return _Tick(
            registry,
            budget=budget,
            early=early,
            born=born,
            rests=every is not None,
        )

    if every is not None:
        tell = partial(_tell, given)
        return _stay(
            Resting(
                registry,
                make_tick,
                every=every,
                early=early,
                listens=listen,
                tell=tell,
            )
        )
    tick = make_tick()
    signals = StopSignals(_reaction(tick))
    try:
        with signals, output_for_answers(given.json):
            found = tick.run(ending=True)
    except JobCancelled as error:
        say(error, err=True)
        end_now(_status(signals, None))
    with unharmed():
        _tell(given, found)
    status = _status(signals, found)
    if found.unfinished or signals.first is not None:
        end_now(status)
    registry.database.close()
    return status


def _stay(resting: Resting) -> int:
    """Tick and rest until a signal; return the exit status."""
    with StopSignals(_reaction(resting)):
        unfinished = resting.run()
    if unfinished:
        end_now(exits.UNFINISHED)
    return exits.OK


def _reaction(tick: Tick | Resting) -> Callable[[int, int], None]:
    def react(number: int, count: int) -> None:
        if count > 2:
            end_now(exits.of_signal(number))
        tick.stop(signal.Signals(number).name)

    return react


def _status(signals: StopSignals, found: TickResult | None) -> int:
    if found is not None and found.unfinished:
        return exits.UNFINISHED
    if found is not None and found.state != TickState.STOPPED:
        return exits.OK
    return exits.of_signal(signals.first or signal.SIGTERM)


def _tell(given: Given, found: TickResult) -> None:
    if given.json:
        print_json(found)
        return
    for name, outcomes in found.ran.items():
        say(
            f"{name}: {', '.join(f'{count} {one}' for one, count in outcomes.items())}"
        )
    took = short_duration(found.took)
    if found.state == TickState.STOPPED:
        say(f"stopped after {took}; more may be due")
    elif found.state == TickState.MORE:
        say(f"the time is up after {took}, and more may be due: tick again at once")
    elif found.until is None:
        say(f"nothing is due after {took}, and nothing is known to come")
    else:
        at = moment(found.until, shown(ZoneInfo("UTC")))
        say(f"nothing is due after {took}; the next one: {at} at the latest")


TICK = PluginCommand(command=command, section=Section.SET_UP)
