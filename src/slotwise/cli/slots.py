"""``slotwise slots`` and ``slotwise explain``: which slots ran, which did not, and why."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import datetime
from itertools import chain, islice

import click
from rich.text import Text

from slotwise.cli.shared.options import Command, Given, common, exact_slot, instant, pass_given
from slotwise.cli.shared.output import (
    moment,
    outcome,
    print_json,
    print_json_list,
    print_table,
    shortened,
    span,
)
from slotwise.client.client import Client
from slotwise.contrib.logging import iso
from slotwise.explain.explanation import explain as explain_slot
from slotwise.explain.explanation import explain_task
from slotwise.explain.facts import facts, task_facts
from slotwise.jobs.definition import Definition
from slotwise.model.error_text import error_summary
from slotwise.model.records import RECURRING
from slotwise.model.vocabulary import Outcome, State
from slotwise.store.reading.reader import Reader
from slotwise.store.reading.views import SlotInfo
from slotwise.store.slots.store import Store

_COLUMNS = ("SLOT", "OUTCOME", "WHY", "ORIGIN", "TRIES", "STARTED", "TOOK", "WORKER")
LINES = 20


@click.command(
    cls=Command,
    short_help="What ran, what did not, and why.",
    examples="""
    slotwise slots nightly-report
    slotwise slots nightly-report --since 7d --all
    slotwise slots poll-feed --id customer-17               one recurring instance of a task
    slotwise slots nightly-report --before 2026-01-31T02:00:00Z -n 50
    slotwise slots nightly-report --all --json | jq -r '.[] | select(.outcome != "succeeded") | [.slot, .reason] | @tsv'
    """,
)
@click.argument("name")
@click.option("--id", metavar="ID", help="Only those of this recurring instance.")
@click.option("-n", "count", type=click.IntRange(1), default=LINES, show_default=True, help="At most so many lines.")
@click.option("--all", "everything", is_flag=True, help="All lines.")
@click.option("--since", callback=instant, metavar="TIME", help="Only slots since this instant.")
@click.option("--before", callback=instant, metavar="TIME", help="Only slots before this instant.")
@common
@pass_given
def slots(
    given: Given,
    name: str,
    id: str | None,
    count: int,
    everything: bool,
    since: datetime | None,
    before: datetime | None,
) -> None:
    """List the slots of the job NAME: those that wait or run, then those that ended, the newest first.

    A range of slots that did not run for the same reason is one line.
    """
    with given.store() as store:
        reader = Reader(store)
        reader.known_instance(name, id or RECURRING)
        first = None if everything else count + 1
        standing = reader.standing(name, id, limit=first, since=since) if before is None else []
        waits = not everything and len(standing) > count
        if waits:
            standing = reader.standing(name, id, limit=count, since=since)
        limit = None if everything else count + 2
        found = reader.slots(name, id, limit=limit, since=since, before=before, ended=True)
        lines, more = (found, False) if everything else _page(found, count)
        if given.json:
            print_json_list(chain(standing, lines))
        else:
            again, ended = _again(name, id, since), list(lines)
            _print(name, standing, ended)
            if waits:
                click.echo(f"… more slots wait after these: {again} --all", err=True)
            if more:
                few = f" -n {count}" if count != LINES else ""
                click.echo(f"… more: {again}{few} --before {iso(ended[-1].place)}", err=True)
            if not standing and not ended and Client(lambda: store).list(name, limit=1):
                click.echo(f"one-time tasks have no slots; see: slotwise tasks list {shlex.quote(name)}", err=True)


def _page(found: Iterator[SlotInfo], count: int) -> tuple[list[SlotInfo], bool]:
    """Take one page of lines; return whether there are more. A slot and a gap that end together stay together."""
    lines = list(islice(found, count))
    for line in found:
        if line.place != lines[-1].place:
            return lines, True
        lines.append(line)
    return lines, False


def _print(name: str, standing: list[SlotInfo], lines: list[SlotInfo]) -> None:
    if not standing and not lines:
        click.echo(f"{name}: no slots in this range")
        return
    shown = [*standing, *lines]
    if any(line.id != RECURRING for line in shown):
        print_table(("ID", *_COLUMNS), [[line.id, *_row(line)] for line in shown])
    else:
        print_table(_COLUMNS, map(_row, shown))


def _again(name: str, id: str | None, since: datetime | None) -> str:
    """The command that shows more, with the options of this one."""
    said = [shlex.quote(name)]
    said += ["--id", shlex.quote(id)] if id else []
    said += ["--since", iso(since)] if since else []
    return f"slotwise slots {' '.join(said)}"


def _row(line: SlotInfo) -> list[str | Text]:
    return [
        _slot(line),
        outcome(line.outcome),
        _why(line),
        line.origin or "–",
        str(line.attempts) if line.attempts else "–",
        _lag(line),
        span(line.took),
        shortened(line.worker),
    ]


def _slot(line: SlotInfo) -> str:
    if line.last is None:
        return moment(line.slot)
    return f"{moment(line.slot)} … {moment(line.last)}"


def _lag(line: SlotInfo) -> str:
    """The delay from the slot to its start."""
    return "–" if line.started is None else f"+{span(line.started - line.slot)}"


def _why(line: SlotInfo) -> str:
    parts = [line.reason] if line.reason else []
    if line.last is not None:
        parts.append(f"{line.count} slots" + (f", {line.run_since} of them run since" if line.run_since else ""))
    if line.missed_count:
        parts.append(f"stands for {line.missed_count} more")
    if line.outcome == State.WAITING and line.due is not None and line.due != line.slot:
        parts.append(f"due {moment(line.due)}")
    if line.error and line.outcome != Outcome.SUCCEEDED:
        parts.append(error_summary(line.error))
    return "; ".join(parts) or "–"


@click.command(
    cls=Command,
    short_help="Why a slot ran, or did not.",
    examples="""
    slotwise explain nightly-report 2026-01-31T02:00Z
    slotwise explain nightly-report 2026-01-31T02:00Z --app jobs     also: what the job declares
    slotwise explain nightly-report 2026-01-31T02:00Z --json | jq -r .outcome
    slotwise explain send-mail --id order-42 --app jobs              a one-time task, with its limits
    """,
)
@click.argument("name")
@click.argument("slot", required=False, callback=instant)
@click.option("--id", default=RECURRING, metavar="ID", help="A recurring instance; without SLOT, a one-time task.")
@common
@pass_given
def explain(given: Given, name: str, slot: datetime | None, id: str) -> None:
    """Explain in sentences why SLOT of the job NAME ran, or did not: from ledger, gaps, operations and schedule.

    SLOT is an instant as the listings show it: ISO 8601, in local time unless it has an offset. Without SLOT, explain
    why the one-time task with this --id waits, or how it ended. With --app, declared policies and limits count, too.
    """
    with given.store() as store:
        reader = Reader(store)
        if slot is None:
            _explain_task(given, store, name, id)
            return
        reader.known_instance(name, id)
        wanted = exact_slot(reader, name, id, slot)
        found = explain_slot(facts(store, name, wanted, id), _definition(given, name))
    if given.json:
        print_json(found)
        return
    reason = f" ({found.reason})" if found.reason else ""
    click.echo(f"{name} {moment(found.slot)}: {found.outcome}{reason}")
    for sentence in found.sentences:
        click.echo(sentence)


def _explain_task(given: Given, store: Store, name: str, id: str) -> None:
    if id == RECURRING:
        raise click.UsageError("name a SLOT of the job, or the --id of a one-time task")
    found = explain_task(task_facts(store, name, id), _definition(given, name))
    if given.json:
        print_json(found)
    else:
        click.echo("\n".join([f"{name} {id}: {found.state}", *found.sentences]))


def _definition(given: Given, name: str) -> Definition | None:
    return given.registry().definitions.get(name) if "app" in given.values else None
