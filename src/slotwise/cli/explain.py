"""``slotwise explain``: why a slot ran or did not, and why a job or a task does not run now."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from datetime import datetime
from zoneinfo import ZoneInfo

import click

from slotwise.cli.shared import exits
from slotwise.cli.shared.given_slots import exact_slot, slot_of_day
from slotwise.cli.shared.options import (
    Command,
    Given,
    common,
    pass_given,
)
from slotwise.cli.shared.output import print_json
from slotwise.cli.shared.terminal import exact, moment, moment_and_zone, say
from slotwise.cli.shared.values import Written, instant
from slotwise.inspect import (
    RECURRING,
    Explanation,
    Inspection,
    JobExplanation,
    TaskExplanation,
)
from slotwise.spi import SlotState

_INSTANT = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")

#: How the answer begins about what is due, and live workers could take.
_TAKERS = "Live workers can:"
_LIMITS = (
    "note: concurrency, rate_limit and overlap are declared in the application; with --app "
    "MODULE they are compared, too"
)


@click.command(
    cls=Command,
    short_help="Why a slot ran, or did not; why a job does not run now.",
    notes="""
    0  explained
    1  there is no such job, slot or task; the answer names the nearest slots
    """,
    examples="""
    slotwise explain nightly-report                    why it does not run now
    slotwise explain nightly-report 2026-01-31T02:00Z
    slotwise explain nightly-report 2026-01-31T02:00Z --app jobs     also: what the job declares
    slotwise explain nightly-report 2026-01-31T02:00Z --json | jq -r .outcome
    slotwise explain send-mail --id order-42 --app jobs     a one-time task
    """,
)
@click.argument("name")
@click.argument("slot", required=False, callback=instant)
@click.option(
    "--id",
    default=RECURRING,
    metavar="ID",
    help="A recurring instance, or a one-time task.",
)
@common
@pass_given
def explain(given: Given, name: str, slot: Written | None, id: str) -> int:
    """Explain in sentences why SLOT of the job NAME ran, or did not: from ledger, gaps, operations
    and schedule.

    SLOT is any instant, as the listings show it; without a zone it is read in the job's. A date
    alone is that day's slot, if it has one. Without SLOT, explain why the job, its recurring
    instance or the one-time task with this --id does not run now, and when it will. Of one-time
    tasks without --id, explain how many are due and what holds them back. With --app, declared
    policies and limits count, too.
    """
    with given.inspection() as inspect:
        zone = inspect.zone(name, id=id)
        found: Explanation | JobExplanation | TaskExplanation
        wanted: datetime | None = None
        if slot is None:
            found = _explain_now(inspect, name, id)
            if isinstance(found, JobExplanation):
                wanted = _slot_of(inspect, found)
        else:
            inspect.check_name(name, id=id)
            wanted = slot_of_day(inspect, name, id, slot, zone)
            if wanted is None:
                wanted = exact_slot(inspect, name, id, slot.within(zone, "SLOT"))
            found = inspect.explain(name, wanted, id=id)
    if given.json:
        print_json(found)
    else:
        say(_headline(found, zone), *_localized(found.sentences, zone))
        if any(one.error for one in found.attempts):
            say(f"tracebacks: {_shows_attempts(found, id, wanted, zone)}", err=True)
        _note_limits(given, found.sentences)
    word = found.outcome if isinstance(found, Explanation) else found.state
    return exits.FAILED if word in (SlotState.UNKNOWN, SlotState.NO_SLOT) else exits.OK


def _note_limits(given: Given, sentences: Iterable[str]) -> None:
    """Without the application, say that limits may hold back what live workers could take."""
    is_due = any(sentence.startswith(_TAKERS) for sentence in sentences)
    if is_due and "app" not in given.values:
        say(_LIMITS, err=True)


def _shows_attempts(
    found: Explanation | JobExplanation | TaskExplanation,
    id: str,
    slot: datetime | None,
    zone: ZoneInfo,
) -> str:
    """Return the command that shows the attempts with their tracebacks."""
    if isinstance(found, TaskExplanation):
        return shlex.join(["slotwise", "tasks", "list", found.task, id])
    of = [] if id == RECURRING else ["--id", id]
    if slot is None:
        return shlex.join(["slotwise", "slots", found.job, *of])
    return shlex.join(["slotwise", "slots", "show", found.job, exact(slot, zone), *of])


def _slot_of(inspect: Inspection, found: JobExplanation) -> datetime | None:
    """Return the slot of the attempts: the one that the row has, or the newest that has ended."""
    row = inspect.job(found.job, id=found.id)
    slot = None if row is None else row.next_slot
    if slot is None or not inspect.attempts(found.job, slot, id=found.id):
        ended = inspect.iter_slots(found.job, id=found.id, ended=True, limit=1)
        slot = next((one.slot for one in ended), None)
    return slot


def _explain_now(
    inspect: Inspection, name: str, id: str
) -> JobExplanation | TaskExplanation:
    """Explain the row of a job or of an instance; else a one-time task."""
    job = inspect.explain_job(name, id=id)
    if job is not None:
        return job
    if id == RECURRING:
        inspect.check_name(name)
        return inspect.explain_backlog(name)
    return inspect.explain_task(name, id)


def _headline(
    found: Explanation | JobExplanation | TaskExplanation, zone: ZoneInfo
) -> str:
    if isinstance(found, Explanation):
        reason = f" ({found.reason})" if found.reason else ""
        return (
            f"{found.job} {moment_and_zone(found.slot, zone)}: {found.outcome}{reason}"
        )
    name = found.job if isinstance(found, JobExplanation) else found.task
    what = name if found.id in (RECURRING, "") else f"{name} {found.id}"
    return f"{what}: {found.state}"


def _localized(sentences: tuple[str, ...], zone: ZoneInfo) -> list[str]:
    """The sentences with all instants in the job's zone."""

    def local(found: re.Match[str]) -> str:
        return moment(datetime.fromisoformat(found[0]), zone)

    return [_INSTANT.sub(local, sentence) for sentence in sentences]
