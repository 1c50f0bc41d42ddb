"""``slotwise tasks``: one-time tasks, looked at and commanded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import chain
from typing import Any

import click
from rich.text import Text

from slotwise.cli.command import Command, Group
from slotwise.cli.options import Given, common, pass_given
from slotwise.cli.orders import confirm, yes
from slotwise.cli.output import (
    as_json,
    last_line,
    moment,
    outcome,
    print_fields,
    print_json_list,
    print_json_object,
    print_table,
)
from slotwise.client import Client
from slotwise.errors import ConfigurationError, InvalidPayload, UnknownTask
from slotwise.store.store import Store
from slotwise.store.task_lines import TaskEnd, TaskLine

#: Lines of a listing that does not say how many.
LINES = 50


@click.group(cls=Group, examples="slotwise tasks list --state dead\nslotwise tasks redrive send-mail")
@common
def tasks() -> None:
    """One-time tasks, looked at and commanded."""


@contextmanager
def _client(given: Given) -> Iterator[Client]:
    """With --app it knows the application's tasks, and what data they take."""
    with given.store() as store:
        known = Store(store.database, given.registry().definitions) if "app" in given.values else store
        yield Client(lambda: known)


@tasks.command(
    "list", cls=Command,
    examples="slotwise tasks list send-mail --state waiting -n 10\nslotwise tasks list --state dead --json",
)  # fmt: skip
@click.argument("name", required=False)
@click.option("--state", type=click.Choice(["waiting", "running", "paused", "blocked", "dead"]), help="Only these.")
@click.option("-n", "--limit", type=click.IntRange(1, 100_000), default=LINES, show_default=True, help="How many.")
@click.option("--after", metavar="ID", help="Go on after this id of the task NAME.")
@common
@pass_given
def list_tasks(given: Given, name: str | None, state: str | None, limit: int, after: str | None) -> None:
    """Tasks that have not ended well, of all names or of NAME, by name and id."""
    if after is not None and name is None:
        raise click.UsageError("--after needs the NAME of the task")
    with _client(given) as client:
        lines = client.list(name, state=state, after=after, limit=limit)
    if given.json:
        print_json_list(map(_json, lines))
    elif not lines:
        click.echo("no such tasks")
    else:
        columns = ["TASK", "ID", "STATE", "DUE", "PRIORITY", "ATTEMPT", "LAST ERROR"]
        print_table(columns, [_row(line) for line in lines])


def _json(line: TaskLine | TaskEnd) -> dict[str, Any]:
    return {name: value for name, value in as_json(line).items() if name not in ("payload", "stored")}


def _row(line: TaskLine) -> list[str | Text]:
    numbers = [str(line.priority), str(line.attempt)]
    return [line.task, line.id, outcome(line.state), moment(line.due), *numbers, last_line(line.last_error) or "–"]


@tasks.command("show", cls=Command, examples="slotwise tasks show send-mail welcome-42")
@click.argument("name")
@click.argument("id")
@common
@pass_given
def show_task(given: Given, name: str, id: str) -> None:
    """Everything the database knows about the task ID of NAME: its row, its data, and how earlier ones have ended."""
    with _client(given) as client:
        line, ends = client.get(name, id), client.history(name, id)
    if line is None and not ends:
        raise UnknownTask(
            f"no task {name!r} with id {id!r} in this database; it may have succeeded, which leaves no row"
        )
    if given.json:
        shown = None if line is None else {**_json(line), "data": _data(line)}
        told = [{**_json(end), "result": end.result} for end in ends]
        print_json_object({"task": shown, "history": told})
        return
    rows = chain(_line_fields(line) if line else (), *map(_end_fields, ends))
    print_fields(rows)


def _data(line: TaskLine) -> Any:
    try:
        return line.data
    except InvalidPayload as error:
        return f"unreadable: {error}"


def _line_fields(line: TaskLine) -> list[tuple[str, str | Text]]:
    return [
        ("task", line.task),
        ("id", line.id),
        ("state", outcome(line.state)),
        ("due", moment(line.due)),
        ("scheduled", moment(line.scheduled)),
        ("priority", str(line.priority)),
        ("attempt", str(line.attempt)),
        ("worker", line.worker or "–"),
        ("last failure", moment(line.last_failure)),
        ("last error", line.last_error or "–"),
        ("data", json.dumps(_data(line), ensure_ascii=False)[:1000]),
    ]


def _end_fields(end: TaskEnd) -> list[tuple[str, str | Text]]:
    fields: list[tuple[str, str | Text]] = [("ended", moment(end.finished)), ("outcome", outcome(end.outcome))]
    if end.error:
        fields.append(("error", last_line(end.error) or ""))
    if end.stored is not None:
        fields.append(("result", json.dumps(end.result, ensure_ascii=False)[:1000]))
    return fields


def _instant(ctx: click.Context, option: click.Parameter, text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(f"{text!r} is no instant; for instance 2026-01-31T02:00Z", ctx, option) from None


def _due(function: Any) -> Any:
    for option in (
        click.option("--in", "in_", metavar="DURATION", help="So long from now: 10m, 2h."),
        click.option("--at", metavar="INSTANT", callback=_instant, help="ISO 8601; local unless it says otherwise."),
    ):
        function = option(function)
    return function


@tasks.command(
    "schedule", cls=Command,
    examples="""slotwise tasks schedule send-mail --data '{"to": "ann@example.com"}' --id welcome-42 --in 10m""",
)  # fmt: skip
@click.argument("name")
@click.option("--data", metavar="JSON", help="Its data.")
@click.option("--id", metavar="ID", help="Its id; default: a new one.")
@_due
@click.option("--priority", type=int, help="Higher first; default: the task's own with --app, else 50.")
@click.option(
    "--if-exists", type=click.Choice(["raise", "keep", "replace", "reschedule"]), default="raise", show_default=True,
    help="What becomes of a task with this id.",
)  # fmt: skip
@common
@pass_given
def schedule_task(given: Given, /, name: str, data: str | None, if_exists: Any, **when: Any) -> None:
    """Schedule the task NAME. Its data are checked with --app, or else by the worker."""
    try:
        plain = None if data is None else json.loads(data)
    except ValueError as error:
        raise ConfigurationError(f"--data {data!r:.60} is no JSON: {error}") from None
    with _client(given) as client:
        receipt = client.schedule(name, client.typed(name, plain), if_exists=if_exists, **when)
    _tell(given, receipt)


@tasks.command("reschedule", cls=Command, examples="slotwise tasks reschedule send-mail welcome-42 --in 1h")
@click.argument("name")
@click.argument("id")
@_due
@click.option("--priority", type=int, help="Another priority, too.")
@common
@pass_given
def reschedule_task(given: Given, /, name: str, id: str, **when: Any) -> None:
    """Another time for the task ID of NAME; without --at and --in: now."""
    with _client(given) as client:
        _tell(given, client.reschedule(name, id, **when))


@tasks.command("cancel", cls=Command, examples="slotwise tasks cancel send-mail welcome-42")
@click.argument("name")
@click.argument("id")
@common
@pass_given
def cancel_task(given: Given, name: str, id: str) -> None:
    """Remove the task ID of NAME; ask its handler to stop, if it runs."""
    with _client(given) as client:
        _tell(given, client.cancel(name, id))


def _tell(given: Given, receipt: Any) -> None:
    if given.json:
        print_json_object(as_json(receipt))
    else:
        click.echo(f"{receipt.task} {receipt.id}: {receipt.status}")


@tasks.command(
    "redrive",
    cls=Command,
    examples="slotwise tasks redrive send-mail welcome-42\nslotwise tasks redrive send-mail --yes",
)
@click.argument("name")
@click.argument("ids", nargs=-1)
@_due
@yes
@common
@pass_given
def redrive_tasks(given: Given, /, name: str, ids: tuple[str, ...], yes: bool, **when: Any) -> None:
    """Let dead tasks of NAME run again, with all their attempts: those with these IDS, or all."""
    if not ids:
        confirm(f"Let all dead tasks of {name} run again?", sure=yes)
    with _client(given) as client:
        driven = client.redrive(name, list(ids) or None, **when)
    if given.json:
        print_json_object({"task": name, "scheduled": driven})
    else:
        click.echo(f"{len(driven)} of {name} wait again")
