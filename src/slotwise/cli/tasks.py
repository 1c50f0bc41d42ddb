"""``slotwise tasks``: list one-time tasks, and schedule, reschedule, retry, cancel them."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypedDict, Unpack
from zoneinfo import ZoneInfo

import click
from rich.text import Text

from slotwise import (
    Client,
    InstanceExists,
    InvalidJob,
    InvalidPayload,
    Receipt,
    UnknownTask,
)
from slotwise.cli.shared.options import (
    FORMS,
    Command,
    Given,
    Group,
    common,
    confirm,
    dry_run,
    duration,
    lines_option,
    named,
    pass_given,
    read_written,
    with_options,
    yes,
)
from slotwise.cli.shared.output import (
    as_json,
    outcome,
    print_attempts,
    print_fields,
    print_json,
    print_json_list,
    print_result,
    print_table,
    say_zones,
)
from slotwise.cli.shared.terminal import moment, say, unharmed
from slotwise.inspect import TaskCount, TaskInfo, TaskResult
from slotwise.spi import ListedState, error_summary

STATES: Final = (
    ListedState.WAITING,
    ListedState.RUNNING,
    ListedState.PAUSED,
    ListedState.BLOCKED,
    ListedState.DEAD,
)
LARGEST_PRIORITY: Final = 32_767
#: Names that ``slotwise tasks count`` counts.
MOST_NAMES: Final = 1_000
IfExists: TypeAlias = Literal["keep", "raise", "replace", "reschedule"]
Status: TypeAlias = Literal["scheduled", "exists", "running", "cancelled", "gone"]
#: Default number of lines in a listing.
LINES = 50
_task_name = named("task", "slotwise tasks count")


def id_of(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    if text is not None and (problem := Client.wrong_id(text)) is not None:
        raise click.BadParameter(f"{text!r:.60}: {problem}", ctx, option)
    return text


def _known_id(ctx: click.Context, option: click.Parameter, text: str) -> str:
    """Take any id that a row may have but a blank one, which an unset variable gives."""
    return text if text.strip() else str(id_of(ctx, option, text))


def _known_ids(
    ctx: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    return tuple(_known_id(ctx, option, text) for text in texts)


_REMOVE: Final = (
    "to cancel tasks: slotwise tasks cancel NAME ID, or all that are dead: --state dead"
)


@click.group(
    cls=Group,
    default="count",
    guesses={
        **dict.fromkeys(("delete", "remove", "purge", "clear", "rm", "kill"), _REMOVE),
        **dict.fromkeys(
            ("enqueue", "add", "run", "send"),
            "write: slotwise tasks schedule NAME --data JSON",
        ),
        **dict.fromkeys(
            ("redrive", "requeue", "rerun"), "write: slotwise tasks retry NAME"
        ),
    },
    examples="""
    slotwise tasks count
    slotwise tasks list --state dead
    slotwise tasks show send-mail welcome-42
    slotwise tasks retry send-mail --dry-run
    """,
)
@common
def tasks() -> None:
    """List, schedule, retry and cancel one-time tasks."""


@tasks.command(
    "list",
    cls=Command,
    short_help="List tasks that have not succeeded.",
    examples="""
    slotwise tasks list send-mail --state waiting -n 10
    slotwise tasks list send-mail --after welcome-42
    slotwise tasks list --state dead --json | jq -r '.[] | [.task, .id, .last_error] | @tsv'
    """,
)
@click.argument("name", required=False, callback=_task_name)
@click.option(
    "--state", type=click.Choice([state.value for state in STATES]), help="Only these."
)
@lines_option(LINES)
@click.option("--after", metavar="ID", help="Continue after this id of the task NAME.")
@common
@pass_given
def list_tasks(
    given: Given, name: str | None, state: str | None, count: int, after: str | None
) -> None:
    """List tasks that have not succeeded, of all names or of NAME, by name and id.

    A due task is "no_live_worker" if none is up, and "unroutable" if no live worker can claim it;
    the reason is printed below the list.
    """
    if after is not None and name is None:
        raise click.UsageError("--after needs the NAME of the task")
    with given.inspection() as inspect:
        found = inspect.tasks(name, state=state, after=after, limit=count + 1)
        lines = found[:count]
        zone = inspect.common_zone()
        if given.json:
            print_json_list(lines)
        elif not lines:
            say("no such tasks")
        if name is not None and not lines:
            inspect.check_name(name, kind="task")
    if given.json or not lines:
        return
    columns = ["TASK", "ID", "STATE", "DUE", "PRIORITY", "ATTEMPT", "LAST ERROR"]
    print_table(columns, [_row(line, zone) for line in lines])
    say_zones([zone])
    for task, line in sorted({line.task: line for line in lines if line.reason}.items()):
        _tell_reason(task, line.reason, is_unroutable=line.state == ListedState.UNROUTABLE)
    if len(found) > count:
        say(f"… more: {_next_page(lines[-1], name, state)}", err=True)


@tasks.command(
    "count",
    cls=Command,
    short_help="Count the tasks that wait, run, or are dead.",
    examples="""
    slotwise tasks count
    slotwise tasks count --json | jq -r '.[] | select(.dead > 0) | .task'
    """,
)
@common
@pass_given
def count_tasks(given: Given) -> None:
    """Count the tasks of each name that wait, run, are paused, blocked or dead; show when the next
    one is due.

    Waiting tasks are counted up to 10,000, of at most 1,000 names.
    """
    with given.inspection() as inspect:
        lines = inspect.task_counts()
        zone = inspect.common_zone()
    if given.json:
        print_json_list(lines)
    elif not lines:
        say("no such tasks")
    else:
        columns = ["TASK", "WAITING", "NEXT DUE", "RUNNING", "PAUSED", "BLOCKED", "DEAD"]
        print_table(columns, [_counts(line, zone) for line in lines])
        say_zones([zone])
        for line in lines:
            _tell_reason(line.task, line.reason, is_unroutable=line.is_unroutable)
    if len(lines) == MOST_NAMES:
        say(
            f"… at most {MOST_NAMES:,} names are counted; see one of the others: "
            "slotwise tasks list NAME",
            err=True,
        )


def _counts(line: TaskCount, zone: ZoneInfo) -> list[str | Text]:
    waiting = f"over {line.waiting - 1:,}" if line.has_more else f"{line.waiting:,}"
    others = [
        f"{count:,}" for count in (line.running, line.paused, line.blocked, line.dead)
    ]
    return [line.task, waiting, moment(line.next_due, zone), *others]


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


@tasks.command(
    "show",
    cls=Command,
    short_help="Show one task.",
    examples="""
    slotwise tasks show send-mail welcome-42
    slotwise tasks show send-mail welcome-42 --json | jq .task.data
    """,
)
@click.argument("name", callback=_task_name)
@click.argument("id", callback=_known_id)
@common
@pass_given
def show_task(given: Given, name: str, id: str) -> None:
    """Show the task ID of NAME: its row, its data, and the ends of earlier tasks with this id."""
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


PRIORITY = click.IntRange(-LARGEST_PRIORITY, LARGEST_PRIORITY)


def _at(ctx: click.Context, option: click.Parameter, text: str | None) -> datetime | None:
    if text is None:
        return None
    if ctx.params.get("delay") is not None:
        raise _both(ctx)
    try:
        return read_written(text).within(None, "--at")
    except ValueError:
        raise click.BadParameter(
            f"{text!r:.60} is not {FORMS}; from now: --delay DURATION", ctx, option
        ) from None


def _delay(
    ctx: click.Context, option: click.Parameter, text: str | None
) -> timedelta | None:
    found = duration(ctx, option, text)
    if found is not None and ctx.params.get("at") is not None:
        raise _both(ctx)
    return found


def _both(ctx: click.Context) -> click.UsageError:
    return click.UsageError("--at and --delay are both given; drop one of them", ctx)


def data_of(ctx: click.Context, option: click.Parameter, text: str | None) -> object:
    try:
        return None if text is None else json.loads(_written(text))
    except OSError as error:
        raise click.BadParameter(
            f"{text!r:.60} cannot be read: {error.strerror}", ctx, option
        ) from None
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(
            f"{text!r:.60} is not valid JSON: {error}", ctx, option
        ) from None


def _written(text: str) -> str:
    """Return the text; for ``@FILE`` and ``@-``, the contents of the file or of stdin. No JSON
    begins with @.
    """
    if text == "@-":
        return sys.stdin.read()
    return Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text


class Due(TypedDict):
    """The values of ``--at`` and ``--delay``."""

    at: datetime | None
    delay: timedelta | None


class When(Due):
    priority: int | None


due = with_options(
    click.option(
        "--at", metavar="INSTANT", callback=_at, help="ISO 8601 with an offset or a zone."
    ),
    click.option(
        "--delay",
        "delay",
        metavar="DURATION",
        callback=_delay,
        help="Delay from now: 10m, 2h.",
    ),
)


#: Rows per page when ids are collected.
PAGE = 5_000
#: Names or ids of tasks in a message.
MOST_NAMED = 10
NOTES = """
0  done
1  a mistake in the application, the settings or the values; or for an id there was nothing to do
"""


@contextmanager
def _scheduling(given: Given, name: str) -> Iterator[Client]:
    """A client for a new task. If there is an application, also by SLOTWISE_APP, it must have that
    task.
    """
    app = given.settings().app
    application = None if app is None else given.registry()
    definitions = {} if application is None else application.definitions
    if app is not None and name not in definitions:
        tasks = [one.name for one in definitions.values() if not one.is_job]
        raise _unknown(name, app, tasks)
    with Client.open(given.table_settings(), application=application) as client:
        if name in definitions:
            is_job = definitions[name].is_job
        else:
            is_job = name in client.inspect.jobs_among([name])
        if is_job:
            cure = f"to run it now: slotwise trigger {shlex.quote(name)}"
            raise InvalidJob(f"{name!r} is a job, which runs by its schedule; {cure}")
        yield client


def _unknown(name: str, app: str, known: Sequence[str]) -> UnknownTask:
    near = get_close_matches(name, known, n=1)
    cure = (
        f"did you mean {near[0]!r}?"
        if near
        else f"it has {', '.join(sorted(known)[:MOST_NAMED]) or 'none'}"
    )
    other = (
        "for a task of another application, name that application with --app, or "
        "leave --app out"
    )
    return UnknownTask(f"{app} has no task {name!r}; {cure}; {other}")


@tasks.command(
    "schedule",
    cls=Command,
    short_help="Schedule a task.",
    examples="""
    slotwise tasks schedule send-mail --data '{"to": "ann@example.com"}' --id welcome-42
    slotwise tasks schedule send-mail --data '{"to": "ann@example.com"}' --delay 10m
    """,
)
@click.argument("name", callback=_task_name)
@click.option(
    "--data",
    metavar="JSON",
    callback=data_of,
    help="Its data; @FILE or @- reads a file or stdin.",
)
@click.option("--id", metavar="ID", callback=id_of, help="Its id; default: a new one.")
@due
@click.option(
    "--priority",
    type=PRIORITY,
    help="Higher first; default: the task's own with --app, else 50.",
)
@click.option(
    "--if-exists",
    type=click.Choice(["keep", "raise", "replace", "reschedule"]),
    default="keep",
    show_default=True,
    help="What to do if the id is taken.",
)
@common
@pass_given
def schedule_task(
    given: Given,
    /,
    name: str,
    data: object,
    id: str | None,
    if_exists: IfExists,
    **when: Unpack[When],
) -> None:
    """Schedule the task NAME. With --app or SLOTWISE_APP the application must have it, and
    validates its data.
    """
    with _scheduling(given, name) as client:
        try:
            receipt = client.schedule(
                name, client.typed_data(name, data), id=id, if_exists=if_exists, **when
            )
        except InstanceExists as error:
            cures = re.sub(
                r"if_exists='(\w+)'",
                r"--if-exists \1",
                str(error).replace("another id", "another --id"),
            )
            raise InstanceExists(cures) from None
    _print_receipt(given, receipt)


@tasks.command(
    "reschedule",
    cls=Command,
    short_help="Change the time of a waiting task.",
    notes=NOTES,
    examples="slotwise tasks reschedule send-mail welcome-42 --delay 1h",
)
@click.argument("name", callback=_task_name)
@click.argument("id", callback=_known_id)
@due
@click.option("--priority", type=PRIORITY, help="Change the priority, too.")
@common
@pass_given
def reschedule_task(given: Given, /, name: str, id: str, **when: Unpack[When]) -> None:
    """Change the time of the task ID of NAME; without --at and --delay, it runs now."""
    with given.client() as client:
        _print_receipts(given, [client.reschedule(name, id, **when)])


@tasks.command(
    "retry",
    cls=Command,
    short_help="Run tasks again.",
    notes=NOTES,
    examples="""
    slotwise tasks retry send-mail welcome-42 welcome-43
    slotwise tasks retry send-mail --dry-run
    slotwise tasks retry send-mail --delay 1h --yes
    """,
)
@click.argument("name", callback=_task_name)
@click.argument("ids", nargs=-1, callback=_known_ids)
@due
@dry_run
@yes
@common
@pass_given
def retry_tasks(
    given: Given,
    /,
    name: str,
    ids: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    **when: Unpack[Due],
) -> None:
    """Run tasks of NAME again: those with these IDS, or all dead ones.

    A dead task gets all its attempts again. A task of IDS that waits for its next attempt runs
    now, too.
    """
    if not ids and not dry_run:
        confirm(f"All dead tasks of {name} will run again.", sure=yes)
    with given.client() as client:
        if not ids:
            client.inspect.check_name(name, kind="task")
        if ids:
            receipts = (
                [_would(client, name, id, "scheduled") for id in ids]
                if dry_run
                else client.retry(name, ids, **when)
            )
            _print_receipts(given, receipts, dry_run=dry_run)
            return
        found = (
            _ids(client, name, ListedState.DEAD)
            if dry_run
            else [one.id for one in client.retry(name, **when)]
        )
    print_result(
        given,
        f"{name}: {len(found)} tasks wait again",
        dry_run=dry_run,
        task=name,
        scheduled=found,
    )


@tasks.command(
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
@click.argument("name", callback=_task_name)
@click.argument("ids", nargs=-1, callback=_known_ids)
@click.option(
    "--state",
    type=click.Choice([state.value for state in STATES if state != ListedState.RUNNING]),
    help="All of these.",
)
@click.option("--all", "everything", is_flag=True, help="All that are not running.")
@dry_run
@yes
@common
@pass_given
def cancel_tasks(
    given: Given,
    name: str,
    ids: tuple[str, ...],
    state: str | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Remove tasks of NAME: those with these IDS, or all in a state, or all that are not running.

    If a task of IDS is running, its handler is asked to stop.
    """
    if sum((bool(ids), state is not None, everything)) != 1:
        raise click.UsageError("name the tasks by one of: their IDS, --state, --all")
    if not ids and not dry_run:
        confirm(
            f"All {f'{state} ' if state else ''}tasks of {name} will be removed.", sure=yes
        )
    with given.client() as client:
        if not ids:
            client.inspect.check_name(name, kind="task")
        if ids:
            receipts = [
                _would(client, name, id, "cancelled")
                if dry_run
                else client.cancel(name, id)
                for id in ids
            ]
            _print_receipts(given, receipts, dry_run=dry_run)
            return
        count = (
            len(_ids(client, name, state))
            if dry_run
            else client.cancel_all(name, state=state)
        )
    print_result(
        given,
        f"{name}: {count} tasks cancelled",
        dry_run=dry_run,
        task=name,
        cancelled=count,
    )


def _would(client: Client, name: str, id: str, idle: Status) -> Receipt:
    """Preview; ``idle`` is the status of a task that is not running."""
    line = client.get(name, id)
    status: Status = (
        "gone" if line is None else "running" if line.state == ListedState.RUNNING else idle
    )
    return Receipt(task=name, id=id, status=status)


def _ids(client: Client, name: str, state: str | None) -> list[str]:
    """The ids of all tasks that are not running, of one state or of any."""
    found: list[str] = []
    last: str | None = None
    while page := client.list(name, state=state, after=last, limit=PAGE):
        found += [line.id for line in page if line.state != ListedState.RUNNING]
        last = page[-1].id
    return found


def _print_receipt(given: Given, receipt: Receipt, *, dry_run: bool = False) -> None:
    with unharmed():
        if given.json:
            print_json(_receipt_json(receipt, dry_run))
        elif receipt.status != "gone":  # the error that follows says more
            dry = "dry run: " if dry_run else ""
            say(f"{dry}{receipt.task} {receipt.id}: {receipt.status}")


def _print_receipts(
    given: Given, receipts: Sequence[Receipt], *, dry_run: bool = False
) -> None:
    """Print all of them; raise UnknownTask if one had no effect."""
    if given.json and len(receipts) != 1:
        with unharmed():
            print_json_list(_receipt_json(receipt, dry_run) for receipt in receipts)
    else:
        for receipt in receipts:
            _print_receipt(given, receipt, dry_run=dry_run)
    _refuse(
        receipts,
        "gone",
        "no task {name!r} has the id {ids}; it has ended, was cancelled, or was never scheduled",
    )
    _refuse(
        receipts,
        "exists",
        "these tasks of {name!r} are dead: {ids}; to run them again: slotwise tasks retry",
    )


def _refuse(receipts: Sequence[Receipt], status: Status, text: str) -> None:
    if found := [receipt for receipt in receipts if receipt.status == status]:
        raise UnknownTask(
            text.format(name=found[0].task, ids=_some([receipt.id for receipt in found]))
        )


def _receipt_json(receipt: Receipt, dry_run: bool) -> dict[str, object]:
    return {**as_json(receipt), **({"dry_run": True} if dry_run else {})}


def _some(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - MOST_NAMED} more" if len(ids) > MOST_NAMED else ""
    return ", ".join(map(repr, ids[:MOST_NAMED])) + more
