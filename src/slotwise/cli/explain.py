"""``slotwise explain``: why a slot ran, or did not."""

from __future__ import annotations

from datetime import datetime

import click

from slotwise.cli.shared.command import Command
from slotwise.cli.shared.instants import instant
from slotwise.cli.shared.operations import exact_slot
from slotwise.cli.shared.options import Given, common, pass_given
from slotwise.cli.shared.output import moment, print_json
from slotwise.explain.explanation import explain as explain_slot
from slotwise.explain.facts import facts
from slotwise.jobs.definition import Definition
from slotwise.model.records import RECURRING
from slotwise.store.reading.reader import Reader


@click.command(
    cls=Command,
    short_help="Why a slot ran, or did not.",
    examples="""
    slotwise explain nightly-report 2026-01-31T02:00Z
    slotwise explain nightly-report 2026-01-31T02:00Z --app jobs     also: what the job declares
    slotwise explain nightly-report 2026-01-31T02:00Z --json | jq -r .outcome
    """,
)
@click.argument("name")
@click.argument("slot", callback=instant)
@click.option("--instance", default=RECURRING, metavar="ID", help="An instance that was scheduled at run time.")
@common
@pass_given
def explain(given: Given, name: str, slot: datetime, instance: str) -> None:
    """Why SLOT of the job NAME ran, or did not: from ledger, gaps, orders and schedule; in sentences.

    SLOT is an instant as the listings show it: ISO 8601, in local time unless it says otherwise.
    """
    with given.store() as store:
        reader = Reader(store)
        reader.known_instance(name, instance)
        wanted = exact_slot(reader, name, instance, slot)
        found = explain_slot(facts(store, name, wanted, instance), _definition(given, name))
    if given.json:
        print_json(found)
        return
    reason = f" ({found.reason})" if found.reason else ""
    click.echo(f"{name} {moment(found.slot)}: {found.outcome}{reason}")
    for sentence in found.sentences:
        click.echo(sentence)


def _definition(given: Given, name: str) -> Definition | None:
    return given.registry().definitions.get(name) if "app" in given.values else None
