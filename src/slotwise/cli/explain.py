"""``slotwise explain``: why a slot ran or did not, and why a job does not run now."""

from __future__ import annotations

import re
from datetime import datetime
from zoneinfo import ZoneInfo

import click

from slotwise.cli.shared import exits
from slotwise.cli.shared.options import Command, Given, Written, common, exact_slot, instant, pass_given
from slotwise.cli.shared.output import print_json
from slotwise.cli.shared.terminal import moment, say
from slotwise.explain.explanation import explain as explain_slot
from slotwise.explain.explanation import explain_now, explain_task
from slotwise.jobs.definition import Definition
from slotwise.model.records import RECURRING
from slotwise.model.vocabulary import State
from slotwise.store.reading.facts import facts, task_facts
from slotwise.store.reading.reader import Reader
from slotwise.store.slots.store import Store

_INSTANT = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")


@click.command(
    cls=Command,
    short_help="Why a slot ran, or did not; why a job does not run now.",
    notes="""
    0  explained
    1  there is no such job, slot or task; the answer names the nearest slots
    """,
    examples="""
    slotwise explain nightly-report                                  why it does not run now, and when it will
    slotwise explain nightly-report 2026-01-31T02:00Z
    slotwise explain nightly-report 2026-01-31T02:00Z --app jobs     also: what the job declares
    slotwise explain nightly-report 2026-01-31T02:00Z --json | jq -r .outcome
    slotwise explain send-mail --id order-42 --app jobs              a one-time task, with its limits
    """,
)
@click.argument("name")
@click.argument("slot", required=False, callback=instant)
@click.option("--id", default=RECURRING, metavar="ID", help="A recurring instance, or a one-time task.")
@common
@pass_given
def explain(given: Given, name: str, slot: Written | None, id: str) -> int:
    """Explain in sentences why SLOT of the job NAME ran, or did not: from ledger, gaps, operations and schedule.

    SLOT is any instant, as the listings show it; without a zone it is read in the job's. Without SLOT, explain why the
    job, its recurring instance or the one-time task with this --id does not run now, and when it will. With --app,
    declared policies and limits count, too.
    """
    with given.store() as store:
        reader = Reader(store)
        zone = reader.zone(name, id)
        definition = given.registry().definitions.get(name) if "app" in given.values else None
        if slot is None:
            return _now(given, store, name, id, zone, definition)
        reader.known_instance(name, id)
        wanted = exact_slot(reader, name, id, slot.within(zone, "SLOT"))
        found = explain_slot(facts(store, name, wanted, id), definition)
    if given.json:
        print_json(found)
    else:
        reason = f" ({found.reason})" if found.reason else ""
        say(f"{name} {_at(found.slot, zone)}: {found.outcome}{reason}", *_localized(found.sentences, zone))
    return exits.FAILED if found.outcome in (State.UNKNOWN, State.NO_SLOT) else exits.OK


def _now(given: Given, store: Store, name: str, id: str, zone: ZoneInfo, definition: Definition | None) -> int:
    """Explain the row of a job or of an instance; else a one-time task."""
    job = explain_now(store, name, id, definition)
    if job is None and id == RECURRING:
        Reader(store).known(name)
        raise click.UsageError(f"{name!r} is a one-time task; name one of its tasks with --id")
    found = job or explain_task(task_facts(store, name, id), definition)
    if given.json:
        print_json(found)
    else:
        what = name if id == RECURRING else f"{name} {id}"
        say(f"{what}: {found.state}", *_localized(found.sentences, zone))
    return exits.FAILED if found.state == State.UNKNOWN else exits.OK


def _at(instant: datetime, zone: ZoneInfo) -> str:
    return moment(instant, zone) if zone.key == "UTC" else f"{moment(instant, zone)} ({zone.key})"


def _localized(sentences: tuple[str, ...], zone: ZoneInfo) -> list[str]:
    """The sentences with all instants in the job's zone."""

    def local(found: re.Match[str]) -> str:
        return moment(datetime.fromisoformat(found[0]), zone)

    return [_INSTANT.sub(local, sentence) for sentence in sentences]
