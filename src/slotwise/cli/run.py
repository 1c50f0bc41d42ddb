"""``slotwise run``: one slot now, in the foreground."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from slotwise.cli.shared import exits
from slotwise.cli.shared.application import lifespan_of
from slotwise.cli.shared.crontab_options import CrontabChoice, crontab_options
from slotwise.cli.shared.exits import end_now
from slotwise.cli.shared.options import Command, Given, common, pass_given
from slotwise.cli.shared.output import print_json, span
from slotwise.cli.shared.terminal import moment, say, say_lines
from slotwise.contrib.logging import LogListener, configure
from slotwise.engine.process.foreground import Ended, SingleRun
from slotwise.engine.process.signals import StopSignals
from slotwise.errors import JobCancelled
from slotwise.model.error_text import error_summary
from slotwise.model.vocabulary import Outcome
from slotwise.settings.settings import Settings

_STATUS = {
    signal.SIGINT: exits.INTERRUPTED,
    signal.SIGTERM: exits.TERMINATED,
    signal.SIGHUP: exits.HUNG_UP,
}


@click.command(
    cls=Command,
    notes="""
    0    the job succeeded
    1    it failed, or its claim was lost; or a mistake in the application or the settings
    3    the database cannot be used
    130  ended by Ctrl-C
    143  ended by SIGTERM
    """,
    examples="""
    slotwise run nightly-report --app jobs
    slotwise run nightly-report --app jobs --log-level DEBUG
    slotwise run dump --crontab shop.crontab                     a line of a crontab, by its name
    """,
)
@click.argument("name")
@crontab_options
@common
@pass_given
def run(given: Given, name: str, crontabs: CrontabChoice) -> int:
    """Run one slot of the job NAME now, in the foreground.

    It runs beside the schedule, with heartbeats and a claim of its own; its origin in the ledger is "trigger". It needs
    no worker. Ctrl-C asks the handler to stop and waits five seconds for it; the slot ends as cancelled.
    """
    settings = given.settings()
    configure(settings.log_format, _level(given, settings))
    registry = given.registry(crontabs.jobs()).listen(LogListener())
    single = registry._make_run(name)
    signals = StopSignals(_reaction(single))
    try:
        with signals, _output_for_answers(given.json), lifespan_of(single.worker):
            ended = single.run()
    except JobCancelled as error:
        say(f"{error}", err=True)
        end_now(_STATUS[signal.Signals(signals.first or signal.SIGTERM)])
    finally:
        registry.database.close()
    _tell(given, ended)
    status = _status(ended, signals.first)
    if signals.first is not None:
        end_now(status)  # processes and threads that the handler left end here
    return status


@contextmanager
def _output_for_answers(wanted: bool) -> Iterator[None]:
    """With --json, reserve stdout for the answer: output of the handler and its commands goes to stderr."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    ours = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(ours, 1)
        os.close(ours)


def _level(given: Given, settings: Settings) -> str:
    """The log level: by default WARNING, so that the handler's own output is readable."""
    return "WARNING" if settings.log_level == "INFO" and "log_level" not in given.values else settings.log_level


def _reaction(single: SingleRun) -> Callable[[int, int], None]:
    def react(number: int, count: int) -> None:
        if count > 2:
            end_now(_STATUS[signal.Signals(number)])
        if count == 1:
            say("asked the job to stop; once more does not wait for it", err=True)
        single.cancel()

    return react


def _status(ended: Ended, stopped_by: int | None) -> int:
    if stopped_by is not None and ended.outcome == Outcome.CANCELLED:
        return _STATUS[signal.Signals(stopped_by)]
    return exits.OK if ended.succeeded else exits.FAILED


def _tell(given: Given, ended: Ended) -> None:
    if given.json:
        print_json(ended)
        return
    if ended.error and not ended.succeeded:
        say_lines(ended.error, err=True)
    reason = f" ({ended.reason})" if ended.reason and ended.reason != error_summary(ended.error) else ""
    line = f"{ended.job} {moment(ended.slot)}: {ended.outcome}{reason} in {span(ended.took)}"
    say(line, err=True)
