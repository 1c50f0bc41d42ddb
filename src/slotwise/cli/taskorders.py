"""What ``slotwise tasks`` does to one-time tasks: schedule, reschedule, retry, re-drive and cancel them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import click

from slotwise.cli.shared.command import Command
from slotwise.cli.shared.operations import confirm, tell, yes
from slotwise.cli.shared.options import Given, common, pass_given
from slotwise.cli.shared.output import as_json, print_json_list, print_json_object
from slotwise.cli.taskvalues import PRIORITY, data_of, due, id_of
from slotwise.client.arguments import Receipt
from slotwise.client.client import STATES, Client
from slotwise.errors import UnknownTask
from slotwise.model.vocabulary import State
from slotwise.store.queue.queue_rows import Status
from slotwise.store.reading.reader import Reader
from slotwise.store.slots.store import Store

#: Rows that are read at once to count them.
PAGE = 5_000
#: Names or ids of tasks in a message.
MOST_NAMED = 10
NOTES = """
0  done
1  a mistake in the application, the settings or the values; or for one of the ids there was nothing to do
"""


@contextmanager
def task_desk(given: Given) -> Iterator[tuple[Client, Reader]]:
    """A client, and whoever reads; with --app it knows the application's tasks."""
    with given.store() as store:
        known = Store(store.database, given.registry().definitions) if "app" in given.values else store
        yield Client(lambda: known), Reader(store)


@contextmanager
def _scheduling(given: Given, name: str) -> Iterator[Client]:
    """A client for a new task. Where an application is named, also by SLOTWISE_APP, it must have that task."""
    app = given.settings().app
    with given.store() as store:
        known = store if app is None else Store(store.database, given.registry().definitions)
        if app is not None and name not in known.definitions:
            raise _unknown(name, app, [one.name for one in known.definitions.values() if not one.is_job])
        yield Client(lambda: known)


def _unknown(name: str, app: str, known: Sequence[str]) -> UnknownTask:
    near = get_close_matches(name, known, n=1)
    cure = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(known)[:MOST_NAMED]) or 'none'}"
    return UnknownTask(f"{app} has no task {name!r}; {cure} (one of another application: name that, or none)")


def _dry_run(function: Any) -> Any:
    return click.option("--dry-run", is_flag=True, help="Say what it would do, and change nothing.")(function)


@click.command(
    "schedule", cls=Command, short_help="Schedule a task.",
    examples="""slotwise tasks schedule send-mail --data '{"to": "ann@example.com"}' --id welcome-42 --in 10m""",
)  # fmt: skip
@click.argument("name")
@click.option("--data", metavar="JSON", callback=data_of, help="Its data; @FILE or @-: what stands there.")
@click.option("--id", metavar="ID", callback=id_of, help="Its id; default: a new one.")
@due
@click.option("--priority", type=PRIORITY, help="Higher first; default: the task's own with --app, else 50.")
@click.option(
    "--if-exists", type=click.Choice(["raise", "keep", "replace", "reschedule"]), default="raise", show_default=True,
    help="What becomes of a task with this id.",
)  # fmt: skip
@common
@pass_given
def schedule_task(given: Given, /, name: str, data: Any, if_exists: Any, **when: Any) -> None:
    """Schedule the task NAME. With --app or SLOTWISE_APP it must be one of the application, which checks its data."""
    with _scheduling(given, name) as client:
        receipt = client.schedule(name, client.typed(name, data), if_exists=if_exists, **when)
    _tell(given, receipt)


@click.command(
    "reschedule",
    cls=Command,
    short_help="Another time for a task that waits.",
    notes=NOTES,
    examples="slotwise tasks reschedule send-mail welcome-42 --in 1h",
)
@click.argument("name")
@click.argument("id")
@due
@click.option("--priority", type=PRIORITY, help="Another priority, too.")
@common
@pass_given
def reschedule_task(given: Given, /, name: str, id: str, **when: Any) -> None:
    """Another time for the task ID of NAME; without --at and --in: now."""
    with task_desk(given) as (client, _):
        _tell_all(given, [client.reschedule(name, id, **when)])


@click.command(
    "retry",
    cls=Command,
    short_help="Let tasks run now that failed.",
    notes=NOTES,
    examples="""
    slotwise tasks retry send-mail welcome-42 welcome-43
    slotwise tasks retry send-mail welcome-42 --dry-run
    """,
)
@click.argument("name")
@click.argument("ids", nargs=-1, required=True)
@_dry_run
@common
@pass_given
def retry_tasks(given: Given, name: str, ids: tuple[str, ...], dry_run: bool) -> None:
    """Let tasks of NAME run now: those that wait for their next attempt, and dead ones, with all their attempts."""
    with task_desk(given) as (client, _):
        retried = [_would(client, name, id, "scheduled") if dry_run else _retried(client, name, id) for id in ids]
    _tell_all(given, retried, dry_run=dry_run)


def _retried(client: Client, name: str, id: str) -> Receipt:
    moved = client.reschedule(name, id)
    if moved.status != "exists" or not client.redrive(name, [id]):
        return moved
    return Receipt(task=name, id=id, status="scheduled")


@click.command(
    "cancel",
    cls=Command,
    short_help="Remove tasks, or ask them to stop.",
    notes=NOTES,
    examples="""
    slotwise tasks cancel send-mail welcome-42
    slotwise tasks cancel send-mail --state dead --dry-run
    slotwise tasks cancel send-mail --all --yes
    """,
)
@click.argument("name")
@click.argument("ids", nargs=-1)
@click.option(
    "--state", type=click.Choice([state.value for state in STATES if state != State.RUNNING]), help="All of these."
)
@click.option("--all", "everything", is_flag=True, help="All that nobody runs.")
@_dry_run
@yes
@common
@pass_given
def cancel_tasks(
    given: Given, name: str, ids: tuple[str, ...], state: str | None, everything: bool, dry_run: bool, yes: bool
) -> None:
    """Remove tasks of NAME: those with these IDS, or all in a state, or all that nobody runs.

    Of IDS that run, the handlers are asked to stop.
    """
    if sum((bool(ids), state is not None, everything)) != 1:
        raise click.UsageError("say which tasks: IDS, or --state, or --all")
    if not ids and not dry_run:
        confirm(f"Remove all {f'{state} ' if state else ''}tasks of {name}?", sure=yes)
    with task_desk(given) as (client, _):
        if ids:
            receipts = [_would(client, name, id, "cancelled") if dry_run else client.cancel(name, id) for id in ids]
            _tell_all(given, receipts, dry_run=dry_run)
            return
        count = len(_ids(client, name, state)) if dry_run else client.cancel_all(name, state=state)
    tell(given, f"{count} of {name} cancelled", dry_run=dry_run, task=name, cancelled=count)


def _would(client: Client, name: str, id: str, idle: Status) -> Receipt:
    """``idle``: what becomes of a task that nobody runs."""
    line = client.get(name, id)
    status: Status = "gone" if line is None else "running" if line.state == State.RUNNING else idle
    return Receipt(task=name, id=id, status=status)


def _ids(client: Client, name: str, state: str | None) -> list[str]:
    """All that nobody runs, of one state or of any."""
    found: list[str] = []
    last: str | None = None
    while page := client.list(name, state=state, after=last, limit=PAGE):
        found += [line.id for line in page if line.state != State.RUNNING]
        last = page[-1].id
    return found


@click.command(
    "redrive",
    cls=Command,
    short_help="Let dead tasks run again.",
    notes=NOTES,
    examples="""
    slotwise tasks redrive send-mail welcome-42
    slotwise tasks redrive send-mail --dry-run
    slotwise tasks redrive send-mail --in 1h --yes
    """,
)
@click.argument("name")
@click.argument("ids", nargs=-1)
@due
@_dry_run
@yes
@common
@pass_given
def redrive_tasks(given: Given, /, name: str, ids: tuple[str, ...], dry_run: bool, yes: bool, **when: Any) -> None:
    """Let dead tasks of NAME run again, with all their attempts: those with these IDS, or all."""
    if not ids and not dry_run:
        confirm(f"Let all dead tasks of {name} run again?", sure=yes)
    with task_desk(given) as (client, _):
        if dry_run:
            driven = [id for id in _ids(client, name, State.DEAD) if not ids or id in ids]
        else:
            driven = client.redrive(name, list(ids) or None, **when)
    tell(given, f"{len(driven)} of {name} wait again", dry_run=dry_run, task=name, scheduled=driven)
    if missing := sorted(set(ids).difference(driven)):
        raise UnknownTask(f"no dead task {name!r} has the id {_some(missing)}; see: slotwise tasks list --state dead")


def _tell(given: Given, receipt: Receipt, *, dry_run: bool = False) -> None:
    if given.json:
        print_json_object(_json(receipt, dry_run))
    else:
        click.echo(f"{'would be: ' if dry_run else ''}{receipt.task} {receipt.id}: {receipt.status}")


def _tell_all(given: Given, receipts: Sequence[Receipt], *, dry_run: bool = False) -> None:
    """All of them; raises UnknownTask if one was of no use."""
    if given.json and len(receipts) != 1:
        print_json_list(_json(receipt, dry_run) for receipt in receipts)
    else:
        for receipt in receipts:
            _tell(given, receipt, dry_run=dry_run)
    _refuse(receipts, "gone", "no task {name!r} has the id {ids}: it has ended, or never was")
    _refuse(receipts, "exists", "dead, and stays so: of {name!r} {ids}; run: slotwise tasks redrive")


def _refuse(receipts: Sequence[Receipt], status: Status, text: str) -> None:
    if found := [receipt for receipt in receipts if receipt.status == status]:
        raise UnknownTask(text.format(name=found[0].task, ids=_some([receipt.id for receipt in found])))


def _json(receipt: Receipt, dry_run: bool) -> dict[str, Any]:
    return {**as_json(receipt), **({"dry_run": True} if dry_run else {})}


def _some(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - MOST_NAMED} more" if len(ids) > MOST_NAMED else ""
    return ", ".join(map(repr, ids[:MOST_NAMED])) + more
