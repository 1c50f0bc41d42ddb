"""``slotwise run``: one slot in the foreground: one of its own now, or one of the schedule."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Literal
from zoneinfo import ZoneInfo

import click

from slotwise import ConfigurationError, JobCancelled, JobRegistry, Settings
from slotwise.cli.crontabs import CrontabChoice, crontab_options
from slotwise.cli.shared import exits
from slotwise.cli.shared.application import lifespan_errors
from slotwise.cli.shared.exits import end_now
from slotwise.cli.shared.options import Command, Given, common, pass_given
from slotwise.cli.shared.output import as_json, print_json
from slotwise.cli.shared.terminal import moment, output_for_answers, say, unharmed
from slotwise.cli.shared.values import FORMS, Written, duration, read_written
from slotwise.contrib.logging import LogListener, configure, keep_one_console
from slotwise.contrib.processes.process_one import reap_as_process_one
from slotwise.contrib.processes.signals import StopSignals
from slotwise.contrib.processes.slot_run import SlotEnd, SlotRun
from slotwise.spi import (
    Ended,
    Outcome,
    Reason,
    SingleRun,
    error_summary,
    short_duration,
)


def _slot(
    ctx: click.Context, option: click.Parameter, text: str | None
) -> Literal["due", "previous"] | Written | None:
    """Callback of --slot: one of two words, or an instant in ISO 8601."""
    if text is None:
        return None
    if text in ("due", "previous"):
        return "due" if text == "due" else "previous"
    try:
        return read_written(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r:.60} is neither due, nor previous, nor {FORMS}", ctx, option
        ) from None


@click.command(
    cls=Command,
    notes="""
    0    the job succeeded; with --slot also: nothing is left to do here
    1    it failed, or its claim was lost; or a mistake in the application or the settings
    3    the database cannot be used
    130  ended by Ctrl-C
    143  ended by SIGTERM
    """,
    examples="""
    slotwise run nightly-report --app jobs
    slotwise run nightly-report --app jobs --log-level DEBUG
    slotwise run dump --crontab shop.crontab                     a line of a crontab, by its name
    slotwise run nightly-report --app jobs --slot due --early 30s       in the pod of a CronJob
    slotwise run nightly-report --app jobs --slot 2026-01-31T02:00:00Z --no-wait
    """,
)
@click.argument("name")
@click.option(
    "--slot",
    "wanted",
    metavar="due|previous|TIME",
    callback=_slot,
    help="Run the schedule's own slot: the newest that has come, the one before it, or "
    "the one at this instant.",
)
@click.option(
    "--early",
    default="0s",
    metavar="DURATION",
    callback=duration,
    help="With --slot: wait this long for a slot that is about to come; the caller's "
    "clock may be ahead.  [0s]",
)
@click.option(
    "--no-wait",
    is_flag=True,
    help="With --slot: end with 0 if the slot is held, or cannot start yet.",
)
@crontab_options
@common
@pass_given
def run(
    given: Given,
    name: str,
    wanted: Literal["due", "previous"] | Written | None,
    early: timedelta,
    no_wait: bool,
    crontabs: CrontabChoice,
) -> int:
    """Run one slot of the job NAME in the foreground.

    It needs no worker. Without --slot, it runs now, beside the schedule, with heartbeats and a
    claim of its own; its origin in the ledger is "trigger". Ctrl-C asks the handler to stop and
    waits five seconds for it; the slot ends as cancelled.

    With --slot, it runs a slot of the schedule under the same claim, policies and guarantees as a
    worker. If the slot has ended elsewhere, nothing runs. If another process holds it and no
    worker is live, the command waits, and takes the slot over if its claim is lost. A stop drains
    like a worker: a slot that does not end in time is handed back.
    """
    if wanted is None and (early or no_wait):
        raise click.UsageError(
            "--early and --no-wait are about a slot of the schedule; add --slot due"
        )
    reap_as_process_one()
    settings = given.settings()
    level = _level(given, settings)
    handler = configure(settings.log_format, level)
    registry = given.registry(crontabs.jobs()).listen(LogListener())
    keep_one_console(handler, level)
    if (found := registry.definitions.get(name)) is not None and not found.is_job:
        raise ConfigurationError(
            f"{name!r} is a one-time task; schedule it: slotwise tasks schedule {shlex.quote(name)}"
        )
    if wanted is not None:
        slot = (
            wanted.within(_zone(registry, name), "--slot")
            if isinstance(wanted, Written)
            else wanted
        )
        slot_run = SlotRun(
            registry, name, slot, early=early, waits=not no_wait, tell=_say
        )
        return _run_slot(given, registry, slot_run)
    single = registry.single_run(name)
    signals = StopSignals(_reaction(single))
    try:
        with signals, output_for_answers(given.json), lifespan_errors(single.worker):
            ended = single.run()
    except JobCancelled as error:
        say(f"{error}", err=True)
        end_now(exits.of_signal(signals.first or signal.SIGTERM))
    finally:
        registry.database.close()
    with unharmed():
        _tell(given, ended)
    status = _status(ended, signals.first)
    if signals.first is not None:
        end_now(status)  # processes and threads that the handler left end here
    return status


def _run_slot(given: Given, registry: JobRegistry, slot_run: SlotRun) -> int:
    signals = StopSignals(_drain(slot_run))
    try:
        with (
            signals,
            output_for_answers(given.json),
            lifespan_errors(slot_run.worker),
        ):
            end = slot_run.run()
            if end.unfinished:  # its slot was handed back as the last write
                end_now(exits.of_signal(signals.first or signal.SIGTERM))
    except JobCancelled as error:
        say(error, err=True)
        end_now(exits.of_signal(signals.first or signal.SIGTERM))
    finally:
        registry.database.close()
    with unharmed():
        _tell_slot(given, end)
    stopped = signals.first is not None and any(
        one.left is not None for one in (end, *end.others)
    )
    status = (
        exits.of_signal(signals.first)
        if stopped and signals.first
        else _slot_status(end)
    )
    if signals.first is not None:
        end_now(status)
    return status


def _zone(registry: JobRegistry, name: str) -> ZoneInfo | None:
    """Return the zone of the job's schedule, in which an instant without one is read."""
    found = registry.definitions.get(name)
    return (
        None if found is None or found.schedule is None else found.schedule.local_zone
    )


def _slot_status(end: SlotEnd) -> int:
    return exits.OK if end.succeeded else exits.FAILED


def _drain(slot_run: SlotRun) -> Callable[[int, int], None]:
    def react(number: int, count: int) -> None:
        if count > 2:
            end_now(exits.of_signal(number))
        if count == 1:
            _say(
                "draining: the handler may finish within shutdown_grace; a second "
                "signal asks it to stop now"
            )
        slot_run.stop()

    return react


def _say(line: str) -> None:
    say(line, err=True)


def _tell_slot(given: Given, end: SlotEnd) -> None:
    if given.json:
        others = [
            {key: value for key, value in as_json(one).items() if key != "others"}
            for one in end.others
        ]
        print_json(as_json(end) | {"others": others})
        return
    instead = ""
    if end.reason == Reason.COLLAPSED and len(end.others) == 1:
        instead = f"; slot {moment(end.others[0].slot)} ran for it"
    for one in sorted(
        (end, *end.others), key=lambda one: one.slot.timestamp() if one.slot else 0.0
    ):
        _tell_end(one, instead=instead if one is end else "")


def _tell_end(end: SlotEnd, *, instead: str) -> None:
    slot = "" if end.slot is None else f" {moment(end.slot)}"
    if end.left is not None:
        _say(f"{end.job}{slot}: {end.outcome}; {end.left}")
        return
    reason = (
        f" ({end.reason})"
        if end.reason and end.reason != error_summary(end.error)
        else ""
    )
    took = (
        f" in {short_duration(end.finished - end.started)}"
        if end.ended_here and end.started and end.finished
        else ""
    )
    where = f", elsewhere: {end.worker}" if not end.ended_here and end.worker else ""
    _say(f"{end.job}{slot}: {end.outcome}{reason}{took}{where}{instead}")


def _level(given: Given, settings: Settings) -> str:
    """The log level: by default WARNING, so that the handler's own output is readable."""
    return (
        "WARNING"
        if settings.log_level == "INFO" and "log_level" not in given.values
        else settings.log_level
    )


def _reaction(single: SingleRun) -> Callable[[int, int], None]:
    def react(number: int, count: int) -> None:
        if count > 2:
            end_now(exits.of_signal(number))
        if count == 1:
            say(
                "asked the job to stop; a second signal does not wait for it", err=True
            )
        single.cancel()

    return react


def _status(ended: Ended, stopped_by: int | None) -> int:
    if stopped_by is not None and ended.outcome == Outcome.CANCELLED:
        return exits.of_signal(stopped_by)
    return exits.OK if ended.succeeded else exits.FAILED


def _tell(given: Given, ended: Ended) -> None:
    if given.json:
        print_json(ended)
        return
    reason = (
        f" ({ended.reason})"
        if ended.reason and ended.reason != error_summary(ended.error)
        else ""
    )
    took = short_duration(ended.took)
    line = f"{ended.job} {moment(ended.slot)}: {ended.outcome}{reason} in {took}"
    say(line, err=True)
