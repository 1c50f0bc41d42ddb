"""``slotwise tasks``: one-time tasks, looked at and commanded."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import click
from rich.text import Text

from slotwise.cli.shared.command import Command, Group
from slotwise.cli.shared.options import Given, common, pass_given
from slotwise.cli.shared.output import (
    as_json,
    moment,
    outcome,
    print_fields,
    print_json_list,
    print_json_object,
    print_table,
)
from slotwise.cli.taskorders import cancel_tasks, redrive_tasks, reschedule_task, retry_tasks, schedule_task, task_desk
from slotwise.client.client import STATES
from slotwise.contrib.logging import escaped
from slotwise.errors import InvalidPayload, UnknownTask
from slotwise.model.error_summary import error_summary
from slotwise.model.vocabulary import State
from slotwise.store.queue.task_views import TaskEnd, TaskLine
from slotwise.store.reading.reader import Reader
from slotwise.store.reading.task_counts import MOST, TaskCount, TaskCounts

#: Lines of a listing that does not say how many.
LINES = 50


@click.group(
    cls=Group,
    examples="""
    slotwise tasks count
    slotwise tasks list --state dead
    slotwise tasks show send-mail welcome-42
    slotwise tasks redrive send-mail --dry-run
    """,
)
@common
def tasks() -> None:
    """One-time tasks, looked at and commanded."""


for _order in (schedule_task, reschedule_task, retry_tasks, redrive_tasks, cancel_tasks):
    tasks.add_command(_order)


@tasks.command(
    "list",
    cls=Command,
    short_help="Tasks that have not ended well.",
    examples="""
    slotwise tasks list send-mail --state waiting -n 10
    slotwise tasks list send-mail --after welcome-42
    slotwise tasks list --state dead --json | jq -r '.[] | [.task, .id, .last_error] | @tsv'
    """,
)
@click.argument("name", required=False)
@click.option("--state", type=click.Choice([state.value for state in STATES]), help="Only these.")
@click.option("-n", "--limit", type=click.IntRange(1, 100_000), default=LINES, show_default=True, help="How many.")
@click.option("--after", metavar="ID", help="Go on after this id of the task NAME.")
@common
@pass_given
def list_tasks(given: Given, name: str | None, state: str | None, limit: int, after: str | None) -> None:
    """Tasks that have not ended well, of all names or of NAME, by name and id.

    One that is due, and that no live worker can take, is "unroutable"; the reason stands below.
    """
    if after is not None and name is None:
        raise click.UsageError("--after needs the NAME of the task")
    with task_desk(given) as (client, reader):
        found = client.list(name, state=state, after=after, limit=limit + 1)
        lines, reasons = _routed(reader, found[:limit])
    if given.json:
        print_json_list(_json(line, reasons) for line in lines)
        return
    if not lines:
        click.echo("no such tasks")
        return
    columns = ["TASK", "ID", "STATE", "DUE", "PRIORITY", "ATTEMPT", "LAST ERROR"]
    print_table(columns, [_row(line) for line in lines])
    _tell_reasons(reasons)
    if len(found) > limit:
        click.echo(f"… more: {_next_page(lines[-1], name, state)}", err=True)


@tasks.command(
    "count",
    cls=Command,
    short_help="How many wait, run, or are dead.",
    examples="""
    slotwise tasks count
    slotwise tasks count --json | jq -r '.[] | select(.dead > 0) | .task'
    """,
)
@common
@pass_given
def count_tasks(given: Given) -> None:
    """How many tasks of each name wait, run, are paused, blocked or dead; and when the next one is due.

    Of those that wait, more than 10,000 are not counted further.
    """
    with given.store() as store:
        reader, lines = Reader(store), TaskCounts(store).all()
        now = reader.now()
        due = {line.task for line in lines if line.next_due is not None and line.next_due <= now}
        reasons = reader.stranded(due)
    if given.json:
        print_json_list({**as_json(line), "reason": reasons.get(line.task)} for line in lines)
    elif not lines:
        click.echo("no such tasks")
    else:
        columns = ["TASK", "WAITING", "NEXT DUE", "RUNNING", "PAUSED", "BLOCKED", "DEAD"]
        print_table(columns, [_counts(line) for line in lines])
        _tell_reasons(reasons)


def _counts(line: TaskCount) -> list[str | Text]:
    waiting = f"over {MOST:,}" if line.waiting > MOST else f"{line.waiting:,}"
    others = [f"{count:,}" for count in (line.running, line.paused, line.blocked, line.dead)]
    return [line.task, waiting, moment(line.next_due), *others]


def _tell_reasons(reasons: dict[str, str]) -> None:
    for task, reason in sorted(reasons.items()):
        click.echo(f"{escaped(task)} is due, and unroutable: {escaped(reason)}", err=True)


def _next_page(last: TaskLine, name: str | None, state: str | None) -> str:
    if name is None:
        return "name the task, or raise -n"
    words = ["slotwise", "tasks", "list", name, "--after", last.id, *(["--state", state] if state else [])]
    return shlex.join(words)


def _routed(reader: Reader, lines: Sequence[TaskLine]) -> tuple[list[TaskLine], dict[str, str]]:
    """The lines, those unroutable that are due and that no live worker takes; and why, by task."""
    now = reader.now()
    due = {line.task for line in lines if line.state == State.WAITING and line.due is not None and line.due <= now}
    reasons = reader.stranded(due) if due else {}
    stuck = [
        line.state == State.WAITING and line.task in reasons and line.due is not None and line.due <= now
        for line in lines
    ]
    return [
        replace(line, state=State.UNROUTABLE) if is_stuck else line for line, is_stuck in zip(lines, stuck, strict=True)
    ], reasons


def _json(line: TaskLine, reasons: dict[str, str]) -> dict[str, Any]:
    reason = reasons.get(line.task) if line.state == State.UNROUTABLE else None
    return {**_without_bytes(line), "reason": reason}


def _without_bytes(line: TaskLine | TaskEnd) -> dict[str, Any]:
    return {name: value for name, value in as_json(line).items() if name not in ("payload", "stored")}


def _row(line: TaskLine) -> list[str | Text]:
    numbers = [str(line.priority), str(line.attempt)]
    return [line.task, line.id, outcome(line.state), moment(line.due), *numbers, error_summary(line.last_error) or "–"]


@tasks.command(
    "show",
    cls=Command,
    short_help="All about one task.",
    examples="""
    slotwise tasks show send-mail welcome-42
    slotwise tasks show send-mail welcome-42 --json | jq .task.data
    """,
)
@click.argument("name")
@click.argument("id")
@common
@pass_given
def show_task(given: Given, name: str, id: str) -> None:
    """Everything the database knows about the task ID of NAME: its row, its data, and how earlier ones have ended."""
    with task_desk(given) as (client, reader):
        line, ends = client.get(name, id), client.history(name, id)
        lines, reasons = _routed(reader, [line] if line else [])
    if line is None and not ends:
        raise UnknownTask(
            f"no task {name!r} with id {id!r} in this database; it may have succeeded, which leaves no row"
        )
    if given.json:
        shown = next(({**_json(one, reasons), "data": _data(one)} for one in lines), None)
        told = [{**_without_bytes(end), "result": end.result} for end in ends]
        print_json_object({"task": shown, "history": told})
        return
    print_fields(chain(*(_line_fields(one, reasons) for one in lines), *map(_end_fields, ends)))


def _data(line: TaskLine) -> Any:
    try:
        return line.data
    except InvalidPayload as error:
        return f"unreadable: {error}"


def _line_fields(line: TaskLine, reasons: dict[str, str]) -> list[tuple[str, str | Text]]:
    return [
        ("task", line.task),
        ("id", line.id),
        ("state", outcome(line.state)),
        *([("reason", reasons[line.task])] if line.state == State.UNROUTABLE else []),
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
        fields.append(("error", error_summary(end.error) or ""))
    if end.stored is not None:
        fields.append(("result", json.dumps(end.result, ensure_ascii=False)[:1000]))
    return fields
