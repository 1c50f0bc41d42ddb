"""``slotwise tasks schedule``, ``reschedule``, ``retry`` and ``cancel``."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypedDict

import click

from slotwise import (
    Client,
    InstanceExists,
    InvalidJob,
    InvalidSetting,
    Receipt,
    UnknownTask,
)
from slotwise.cli.shared.options import (
    Command,
    Given,
    common,
    confirm,
    dry_run,
    pass_given,
    yes,
)
from slotwise.cli.shared.output import (
    as_json,
    print_json,
    print_json_list,
    print_result,
)
from slotwise.cli.shared.task_options import id_of, known_id, known_ids, task_name
from slotwise.cli.shared.terminal import say, unharmed
from slotwise.cli.shared.values import DURATIONS, FORMS, read_written
from slotwise.contrib.wording import counted
from slotwise.inspect import TaskFilter
from slotwise.spi import TASK_STATES, ListedState, parse_duration

LARGEST_PRIORITY: Final = 32_767
IfExists: TypeAlias = Literal["keep", "raise", "replace", "reschedule"]
Status: TypeAlias = Literal["scheduled", "exists", "running", "cancelled", "gone"]


class Due(TypedDict):
    """The value of ``--at``: at most one of these."""

    at: datetime | None
    delay: timedelta | None


PRIORITY = click.IntRange(-LARGEST_PRIORITY, LARGEST_PRIORITY)


def _when(ctx: click.Context, option: click.Parameter, text: str | None) -> Due:
    """Callback of ``--at``: an instant, or a delay from the database's now."""
    if text is None:
        return {"at": None, "delay": None}
    with suppress(InvalidSetting):
        return {"at": None, "delay": parse_duration(text)}
    try:
        return {"at": read_written(text).within(None, "--at"), "delay": None}
    except ValueError:
        raise click.BadParameter(
            f"{text!r:.60} is neither {FORMS} nor {DURATIONS} from now (2h)",
            ctx,
            option,
        ) from None


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


due = click.option(
    "--at",
    "when",
    metavar="TIME",
    callback=_when,
    help="When it is due: 10m from now, or ISO 8601 with an offset or a zone; default: now.",
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


@click.command(
    "schedule",
    cls=Command,
    short_help="Schedule a task.",
    examples="""
    slotwise tasks schedule send-mail --data '{"to": "ann@example.com"}' --id welcome-42
    slotwise tasks schedule send-mail --data '{"to": "ann@example.com"}' --at 10m
    """,
)
@click.argument("name", callback=task_name)
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
    name: str,
    data: object,
    id: str | None,
    when: Due,
    priority: int | None,
    if_exists: IfExists,
) -> None:
    """Schedule the task NAME. With --app or SLOTWISE_APP the application must have it, and
    validates its data.
    """
    with _scheduling(given, name) as client:
        try:
            receipt = client.schedule(
                name,
                client.typed_data(name, data),
                id=id,
                if_exists=if_exists,
                priority=priority,
                **when,
            )
        except InstanceExists as error:
            cures = re.sub(
                r"if_exists='(\w+)'",
                r"--if-exists \1",
                str(error).replace("another id", "another --id"),
            )
            raise InstanceExists(cures) from None
    _print_receipt(given, receipt)


@click.command(
    "reschedule",
    cls=Command,
    short_help="Change the time of a waiting task.",
    notes=NOTES,
    examples="slotwise tasks reschedule send-mail welcome-42 --at 1h",
)
@click.argument("name", callback=task_name)
@click.argument("id", callback=known_id)
@due
@click.option("--priority", type=PRIORITY, help="Change the priority, too.")
@common
@pass_given
def reschedule_task(
    given: Given, name: str, id: str, when: Due, priority: int | None
) -> None:
    """Change the time of the task ID of NAME; without --at, it runs now."""
    with given.client() as client:
        _print_receipts(
            given, [client.reschedule(name, id, priority=priority, **when)]
        )


@click.command(
    "retry",
    cls=Command,
    short_help="Run tasks again.",
    notes=NOTES,
    examples="""
    slotwise tasks retry send-mail welcome-42 welcome-43
    slotwise tasks retry send-mail --dry-run
    slotwise tasks retry send-mail --at 1h --yes
    """,
)
@click.argument("name", callback=task_name)
@click.argument("ids", nargs=-1, callback=known_ids)
@due
@dry_run
@yes
@common
@pass_given
def retry_tasks(
    given: Given,
    name: str,
    ids: tuple[str, ...],
    when: Due,
    dry_run: bool,
    yes: bool,
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
                else [_retried(client, name, id, when) for id in ids]
            )
            _print_receipts(given, receipts, dry_run=dry_run)
            if not given.json:
                _name_blocked(client, receipts)
            return
        found = (
            _ids(client, name, ListedState.DEAD)
            if dry_run
            else _all_retried(client, name, when)
        )
    print_result(
        given,
        f"{name}: {counted(len(found), 'task', 'waits', 'wait')} again",
        dry_run=dry_run,
        task=name,
        scheduled=found,
    )


def _is_now(when: Due) -> bool:
    return when["at"] is None and when["delay"] is None


def _retried(client: Client, name: str, id: str, when: Due) -> Receipt:
    """Run a task again: a dead one that is to run now by an operation, which the audit lists."""
    where = TaskFilter(id=id)
    if _is_now(when) and client.operations.retry_tasks(name, where=where):
        return Receipt(task=name, id=id, status="scheduled")
    return client.retry(name, id, **when)[0]


def _all_retried(client: Client, name: str, when: Due) -> list[str]:
    """Run all dead tasks again; return their ids. The second call finds those of former names."""
    found: list[str] = []
    if _is_now(when):
        found = _ids(client, name, ListedState.DEAD)
        client.operations.retry_tasks(name)
    rest = [one.id for one in client.retry(name, **when)]
    return list(dict.fromkeys([*found, *rest]))


def _name_blocked(client: Client, receipts: Sequence[Receipt]) -> None:
    """Say which of these tasks wait for an earlier one all the same."""
    for one in receipts:
        line = client.get(one.task, one.id) if one.status == "scheduled" else None
        if line is not None and line.state == ListedState.BLOCKED:
            say(
                f"{one.task} {one.id} stays blocked: an earlier one of its key is first"
            )


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
@click.argument("name", callback=task_name)
@click.argument("ids", nargs=-1, callback=known_ids)
@click.option(
    "--state",
    type=click.Choice(
        [state.value for state in TASK_STATES if state != ListedState.RUNNING]
    ),
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
            f"All {f'{state} ' if state else ''}tasks of {name} will be removed.",
            sure=yes,
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
        f"{name}: {counted(count, 'task')} cancelled",
        dry_run=dry_run,
        task=name,
        cancelled=count,
    )


def _would(client: Client, name: str, id: str, idle: Status) -> Receipt:
    """Preview; ``idle`` is the status of a task that is not running."""
    line = client.get(name, id)
    status: Status = (
        "gone"
        if line is None
        else "running"
        if line.state == ListedState.RUNNING
        else idle
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
            text.format(
                name=found[0].task, ids=_some([receipt.id for receipt in found])
            )
        )


def _receipt_json(receipt: Receipt, dry_run: bool) -> dict[str, object]:
    return {**as_json(receipt), **({"dry_run": True} if dry_run else {})}


def _some(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - MOST_NAMED} more" if len(ids) > MOST_NAMED else ""
    return ", ".join(map(repr, ids[:MOST_NAMED])) + more
