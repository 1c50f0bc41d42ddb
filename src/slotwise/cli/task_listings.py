"""``slotwise tasks list``: what waits, runs, or is dead: counts, a list, or one task."""

from __future__ import annotations

import json
import shlex
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

import click
from rich.text import Text

from slotwise import (
    InvalidPayload,
    UnknownTask,
)
from slotwise.cli.shared.options import (
    Command,
    Given,
    common,
    lines_option,
    pass_given,
)
from slotwise.cli.shared.output import (
    outcome,
    print_attempts,
    print_fields,
    print_json,
    print_json_list,
    print_table,
    say_zones,
)
from slotwise.cli.shared.task_options import known_id, task_name
from slotwise.cli.shared.terminal import moment, say
from slotwise.inspect import TaskCount, TaskInfo, TaskResult
from slotwise.spi import TASK_STATES, ListedState, error_summary, short_duration

#: Names that ``slotwise tasks list --count`` counts.
MOST_NAMES: Final = 1_000
#: Default number of lines in a listing.
LINES = 50


@click.command(
    "list",
    cls=Command,
    short_help="List or count tasks that have not succeeded, or show one.",
    examples="""
    slotwise tasks                                         how many of each name, as --count
    slotwise tasks list send-mail --state waiting -n 10
    slotwise tasks list send-mail --after welcome-42
    slotwise tasks list send-mail welcome-42               one task, with its data
    slotwise tasks list send-mail welcome-42 --json | jq .task.data
    slotwise tasks list --count --json | jq -r '.[] | select(.dead > 0) | .task'
    slotwise tasks list --state dead --json | jq -r '.[] | [.task, .id, .last_error] | @tsv'
    """,
)
@click.argument("name", required=False, callback=task_name)
@click.argument("id", required=False, callback=known_id)
@click.option(
    "--state",
    type=click.Choice([state.value for state in TASK_STATES]),
    help="Only these.",
)
@click.option(
    "--count",
    "counted",
    is_flag=True,
    help="Count them by name; show the next due time.",
)
@lines_option(LINES)
@click.option("--after", metavar="ID", help="Continue after this id of the task NAME.")
@common
@pass_given
def list_tasks(
    given: Given,
    name: str | None,
    id: str | None,
    state: str | None,
    counted: bool,
    count: int,
    after: str | None,
) -> None:
    """List tasks that have not succeeded, of all names or of NAME, by name and id.

    A due task is "no_live_worker" if none is up, and "unroutable" if no live worker can claim it;
    the reason is printed below the list. With --count, tasks that wait, run, are paused, blocked or
    dead are counted for each name: waiting ones up to 10,000, of at most 1,000 names. OLDEST is how
    long the first of those that are due has waited; IN/H and OUT/H are how many come due and
    succeed in an hour, measured since that one came due: over at least five minutes and at most an
    hour, once workers have counted twice; ETA is in what time those that are due will have ended.
    "–": it is too early to say.

    With an ID, show this task: its row, its data, and the ends of earlier tasks with this id.
    """
    if after is not None and name is None:
        raise click.UsageError("--after needs the NAME of the task")
    _refuse_mixture(state=state is not None, counted=counted, id=id is not None)
    if counted:
        _print_counts(given, name)
    elif name is not None and id is not None:
        _show_task(given, name, id)
    else:
        _list_rows(given, name, state, count, after)


def _refuse_mixture(*, state: bool, counted: bool, id: bool) -> None:
    """A list, counts and one task exclude each other."""
    if state and (counted or id):
        raise click.UsageError("--state is for a list; leave out --count and the ID")
    if counted and id:
        raise click.UsageError("give either --count or an ID, not both")


def _list_rows(
    given: Given, name: str | None, state: str | None, count: int, after: str | None
) -> None:
    with given.inspection() as inspect:
        found = inspect.tasks(name, state=state, after=after, limit=count + 1)
        lines = found[:count]
        zone = inspect.common_zone()
        if name is not None and not lines:
            inspect.check_name(name, kind="task")
        if given.json:
            print_json_list(lines)
        elif not lines:
            say("no such tasks")
    if given.json or not lines:
        return
    columns = ["TASK", "ID", "STATE", "DUE", "PRIORITY", "ATTEMPT", "LAST ERROR"]
    print_table(
        columns,
        [_row(line, zone) for line in lines],
        spare=("PRIORITY", "ATTEMPT"),
        folds={"LAST ERROR": 16, "ID": 12},
        last="DUE",
    )
    say_zones([zone])
    for task, line in sorted(
        {line.task: line for line in lines if line.reason}.items()
    ):
        _tell_reason(
            task, line.reason, is_unroutable=line.state == ListedState.UNROUTABLE
        )
    if len(found) > count:
        say(f"… more: {_next_page(lines[-1], name, state)}", err=True)


def _print_counts(given: Given, name: str | None) -> None:
    with given.inspection() as inspect:
        counted = inspect.task_counts()
        now = inspect.now()
        zone = inspect.common_zone()
        lines = [line for line in counted if name in (None, line.task)]
        if name is not None and not lines:
            inspect.check_name(name, kind="task")
    if given.json:
        print_json_list(lines)
    elif not lines:
        say("no such tasks")
    else:
        print_table(
            _COUNTED,
            [_counts(line, zone, now) for line in lines],
            spare=("BLOCKED", "PAUSED", "NEXT DUE", "IN/H", "OUT/H"),
        )
        say_zones([zone])
        for line in lines:
            _tell_reason(line.task, line.reason, is_unroutable=line.is_unroutable)
    if len(counted) == MOST_NAMES:
        say(
            f"… at most {MOST_NAMES:,} names are counted; see one of the others: "
            "slotwise tasks list NAME",
            err=True,
        )


_COUNTED = (
    "TASK",
    "WAITING",
    "NEXT DUE",
    "OLDEST",
    "IN/H",
    "OUT/H",
    "ETA",
    "RUNNING",
    "PAUSED",
    "BLOCKED",
    "DEAD",
)


def _counts(line: TaskCount, zone: ZoneInfo, now: datetime) -> list[str | Text]:
    waiting = f"over {line.waiting - 1:,}" if line.has_more else f"{line.waiting:,}"
    pace = [
        short_duration(None if line.oldest is None else now - line.oldest),
        "–" if line.came is None or line.has_more else f"{line.came:,.0f}",
        f"{line.ended:,.0f}" if line.ended else "–",
        short_duration(line.left if line.due and not line.has_more else None),
    ]
    others = [
        f"{count:,}" for count in (line.running, line.paused, line.blocked, line.dead)
    ]
    return [line.task, waiting, moment(line.next_due, zone), *pace, *others]


def _tell_reason(task: str, reason: str | None, *, is_unroutable: bool) -> None:
    if reason is not None:
        say(
            f"{task} is due{', and unroutable' if is_unroutable else ''}: {reason}",
            err=True,
        )


def _next_page(last: TaskInfo, name: str | None, state: str | None) -> str:
    if name is None:
        return "name the task, or raise -n"
    words = [
        "slotwise",
        "tasks",
        "list",
        name,
        "--after",
        last.id,
        *(["--state", state] if state else []),
    ]
    return shlex.join(words)


def _row(line: TaskInfo, zone: ZoneInfo) -> list[str | Text]:
    due = moment(line.due, zone)
    error = error_summary(line.last_error) or "–"
    return [
        line.task,
        line.id,
        outcome(line.state),
        due,
        str(line.priority),
        str(line.attempt),
        error,
    ]


def _show_task(given: Given, name: str, id: str) -> None:
    with given.inspection() as inspect:
        line = inspect.task(name, id)
        ends = inspect.task_results(name, id)
        attempts = inspect.attempts(name, id=id)
        zone = inspect.common_zone()
    if line is None and not ends:
        raise UnknownTask(
            f"no task {name!r} with id {id!r} in this database; it may have "
            "succeeded or been cancelled, "
            "which leaves no row"
        )
    if given.json:
        print_json(
            {
                "task": line and {**line.as_json(), "data": _data(line)},
                "history": [{**end.as_json(), "result": end.result} for end in ends],
                "attempts": [one.as_json() for one in attempts],
            }
        )
        return
    fields = [] if line is None else _line_fields(line, zone)
    for end in ends:
        fields += _end_fields(end, zone)
    print_fields(fields)
    print_attempts(attempts, zone, line.last_error if line else None)
    say_zones([zone])


def _data(line: TaskInfo) -> object:
    try:
        return line.data
    except InvalidPayload as error:
        return f"unreadable: {error}"


def _line_fields(line: TaskInfo, zone: ZoneInfo) -> list[tuple[str, str | Text]]:
    return [
        ("task", line.task),
        ("id", line.id),
        ("state", outcome(line.state)),
        *([("reason", line.reason)] if line.reason else []),
        ("due", moment(line.due, zone)),
        ("scheduled", moment(line.scheduled, zone)),
        ("priority", str(line.priority)),
        ("attempt", str(line.attempt)),
        ("worker", line.worker or "–"),
        ("last failure", moment(line.last_failure, zone)),
        ("last error", error_summary(line.last_error) or "–"),
        ("data", json.dumps(_data(line), ensure_ascii=False)[:1000]),
    ]


def _end_fields(end: TaskResult, zone: ZoneInfo) -> list[tuple[str, str | Text]]:
    fields: list[tuple[str, str | Text]] = [
        ("ended", moment(end.finished, zone)),
        ("outcome", outcome(end.outcome)),
    ]
    if end.error:
        fields.append(("error", error_summary(end.error) or ""))
    if end.stored is not None:
        fields.append(("result", json.dumps(end.result, ensure_ascii=False)[:1000]))
    return fields
