"""``slotwise workers`` and ``slotwise health``: which workers live, and whether due rows get
claimed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from datetime import datetime, timedelta
from typing import TypeVar
from zoneinfo import ZoneInfo

import click
from rich.text import Text
from sqlalchemy.exc import SQLAlchemyError

from slotwise import DatabaseProblem, DatabaseUnreachable, UnknownTask
from slotwise.cli.shared import exits
from slotwise.cli.shared.nodes import WorkerNodes
from slotwise.cli.shared.options import (
    Command,
    Given,
    Group,
    common,
    lines_option,
    pass_given,
)
from slotwise.cli.shared.output import (
    ago,
    as_json,
    outcome,
    print_json,
    print_json_list,
    print_table,
    say_zones,
    shortened,
)
from slotwise.cli.shared.terminal import UTC, moment, say, say_lines
from slotwise.cli.shared.values import LARGEST_COUNT, duration
from slotwise.contrib.wording import counted
from slotwise.inspect import (
    RECURRING,
    Health,
    Inspection,
    Unreadable,
    WorkerInfo,
)
from slotwise.operations import HandlerStack
from slotwise.spi import (
    WorkerState,
    describe_error,
    error_summary,
    format_duration,
    pasteable,
    short_duration,
)

Answer = TypeVar("Answer")

_COLUMNS = (
    "WORKER",
    "STATE",
    "RUNNING",
    "TAGS",
    "STARTED",
    "LAST SEEN",
    "SKEW",
    "VERSION",
)


@click.group(
    cls=Group,
    default=("list",),
    examples="""
    slotwise workers
    slotwise workers stack nightly-report
    """,
)
@common
def workers() -> None:
    """List workers, and see where their handlers are."""


@workers.command(
    "list",
    cls=Command,
    examples="""
    slotwise workers
    slotwise workers list -n 5
    slotwise workers --json | jq '[.[] | select(.live)] | length'
    """,
)
@lines_option(None)
@common
@pass_given
def list_workers(given: Given, count: int | None) -> None:
    """List workers that have signed in and not out. A "gone" worker was not seen within its lease:
    others take over. Without --json, also say which workers ended within the last day, why, and
    which runs were lost with them.
    """
    nodes = WorkerNodes(given.settings())
    with given.inspection() as inspect:
        lines = inspect.workers()[:count]
        now = inspect.now()
        zone = inspect.common_zone()
        # Loads the engine, for which a probe of health has no use.
        from slotwise.cli.worker_ends import worker_ends

        ends = [] if given.json else worker_ends(inspect, now, count, zone)
    if given.json:
        print_json_list(
            {**as_json(line), "state": _state(line), **nodes.told(line)}
            for line in lines
        )
    elif not lines:
        say(pasteable("no workers; start one: slotwise worker --app …"))
    else:
        told = any(line.revision for line in lines)
        print_table(
            [*_COLUMNS, *["REVISION"] * told, *nodes.title],
            [[*_row(line, now, told, zone), *nodes.cells(line)] for line in lines],
            spare=("VERSION", "REVISION", "SKEW", "TAGS", "STARTED"),
        )
        say_zones([zone])
        for refusal in nodes.refusals:
            say(refusal)
    if ends:
        say("ended within the last day:")
        say_lines("\n".join(ends))


def _state(line: WorkerInfo) -> str:
    return (
        line.state
        if line.live or line.state == WorkerState.UNREADABLE
        else WorkerState.GONE
    )


def _row(
    line: WorkerInfo, now: datetime, told: bool, zone: ZoneInfo
) -> list[str | Text]:
    return [
        line.worker,
        outcome(_state(line)),
        f"{line.running} of {line.capacity}",
        ", ".join(line.tags) or "–",
        moment(line.started, zone),
        ago(line.last_seen, now),
        short_duration(line.skew),
        line.version,
        *[line.revision or "–"] * told,
    ]


def _timeout(
    ctx: click.Context, option: click.Parameter, text: str | None
) -> timedelta | None:
    found = duration(ctx, option, text)
    if found == timedelta(0):
        raise click.BadParameter(
            f"{text!r} leaves no time for an answer; write 5s, for instance",
            ctx,
            option,
        )
    return found


@workers.command(
    "stack",
    cls=Command,
    short_help="Show where the handlers of a job, a task or a worker are.",
    notes="""
    0  shown
    1  nothing runs, or a worker has not answered
    3  the database cannot be used, or the role may not ask: it needs the rights of an operator
    """,
    examples="""
    slotwise workers stack nightly-report
    slotwise workers stack send-mail --id order-42
    slotwise workers stack host-1                 all that runs on a worker
    """,
)
@click.argument("name")
@click.option("--id", metavar="ID", help="This recurring instance, or one-time task.")
@click.option(
    "--timeout",
    default="10s",
    show_default=True,
    metavar="DURATION",
    callback=_timeout,
    help="How long to wait for the workers' answers.",
)
@common
@pass_given
def show_stacks(given: Given, name: str, id: str | None, timeout: timedelta) -> int:
    """Show the lines of code that the handlers of NAME are in: of a job, a task, or a worker.

    The workers that run them are asked through the database, and answer with their next heartbeat;
    with PostgreSQL they are woken. Values of variables are not shown. A worker that has not
    answered within --timeout is frozen, or its heartbeats hang.
    """
    with given.operations() as (operations, inspect):
        found = operations.stacks(name, id=id, timeout=timeout)
        now = inspect.now()
        if not found:
            _check_named(inspect, name, id)
    if given.json:
        print_json_list(found)
    elif not found:
        say(f"nothing of {name} runs now", err=True)
    for one in () if given.json else found:
        _say_stack(one, now, timeout)
    return exits.OK if found and all(one.stack for one in found) else exits.FAILED


def _check_named(inspect: Inspection, name: str, id: str | None) -> None:
    """Raise UnknownTask if neither a worker nor a job or task has this name."""
    known = inspect.workers()
    if not any(name in (one.host, one.worker, shortened(one.worker)) for one in known):
        try:
            inspect.check_name(name, id=id)
        except UnknownTask as error:
            problem = str(error).replace("no job ", "no worker, job or task ", 1)
            raise UnknownTask(problem) from None


def _say_stack(one: HandlerStack, now: datetime, timeout: timedelta) -> None:
    since = one.running_since
    ran = "" if since is None else f", for {short_duration(now - since)}"
    what = one.name if one.id == RECURRING else f"{one.name} {one.id}"
    say(f"{what}, attempt {one.attempt}{ran}, on {one.worker}:")
    if one.stack is not None:
        say_lines(one.stack)
        return
    say(
        f"  no answer within {short_duration(timeout)}: this worker is frozen, or its heartbeats "
        f"hang; see its log, and restart it",
        err=True,
    )


@click.command(
    cls=Command,
    short_help="One exit status for probes and alarms.",
    notes="""
    0  healthy; notes change nothing
    1  too few workers, rows that wait too long or cannot be read, a handler that does not stop,
       jobs that no live worker knows; with --worker: that worker is not live
    3  the database cannot be used or does not answer within --timeout, or its tables are
       missing or of another version
    """,
    examples="""
    slotwise health
    slotwise health --min-workers 3 --max-overdue 5m
    slotwise health --allow-orphans               jobs that no live worker knows are a note
    slotwise health --worker                      only this host's worker, in its container
    """,
)
@click.option(
    "--min-workers",
    type=click.IntRange(0, LARGEST_COUNT),
    default=1,
    show_default=True,
    help="Live workers wanted.",
)
@click.option(
    "--max-overdue",
    default="1m",
    show_default=True,
    metavar="DURATION",
    callback=duration,
    help="How long a due row may wait.",
)
@click.option(
    "--max-rows",
    type=click.IntRange(0, LARGEST_COUNT),
    default=0,
    show_default=True,
    help="How many rows may wait longer than that.",
)
@click.option(
    "--allow-orphans",
    is_flag=True,
    help="Jobs and due rows that no live worker knows are only a note.",
)
@click.option(
    "--timeout",
    default="5s",
    show_default=True,
    metavar="DURATION",
    callback=_timeout,
    help="How long the check may take.",
)
@click.option(
    "--worker",
    metavar="[NAME]",
    is_flag=False,
    flag_value="",
    help="Check one worker alone; default: this host's.",
)
@common
@pass_given
def health(
    given: Given,
    worker: str | None,
    min_workers: int,
    max_overdue: timedelta,
    max_rows: int,
    allow_orphans: bool,
    timeout: timedelta,
) -> int:
    """Check that the database is reachable, its tables are right, workers are alive, and due rows
    are claimed.

    A job or a due row that no live worker knows is an orphan: it is no longer in the code, or its
    workers are down. It fails the check, unless --allow-orphans is given. The application is never
    imported.

    With --worker, check that the workers of this name (worker_name, or the host's) have sent
    heartbeats lately. A worker whose poller hangs still sends them: the port of `slotwise worker
    --http` and the alive-file notice that, without a database.
    """

    def check() -> tuple[Health | list[WorkerInfo], ZoneInfo]:
        with given.inspection(import_app=False) as inspect:
            found = (
                inspect.health(max_overdue) if worker is None else inspect.workers()
            )
            return found, UTC if given.json else inspect.common_zone()

    try:
        found, zone = _answered(check, timeout)
    except (DatabaseProblem, SQLAlchemyError) as error:
        if given.json:  # the check has an answer even without a database
            problems = [_unusable(error)]
            print_json({"healthy": False, "problems": problems, "notes": []})
        raise
    if isinstance(found, list):
        return _report_worker(given, worker or given.settings().worker, found, zone)
    problems = _problems(
        found, min_workers, max_rows, format_duration(max_overdue), zone
    )
    notes = _notes(found, zone)
    problems += WorkerNodes(given.settings()).refusals
    orphans = _orphans(found)
    if allow_orphans:
        notes = [*orphans, *notes]
    else:
        problems += orphans
    _report(given, found, problems, notes)
    return exits.FAILED if problems else exits.OK


def _unusable(error: DatabaseProblem | SQLAlchemyError) -> str:
    if isinstance(error, DatabaseProblem):
        return str(error)
    return f"database error: {describe_error(error)}"


def _report(
    given: Given, found: Health, problems: Sequence[str], notes: Sequence[str]
) -> None:
    if given.json:
        told = {"healthy": not problems, "problems": problems, "notes": notes}
        print_json({**told, **found.as_json()})
        return
    if problems:
        say(f"unhealthy: {'; '.join(problems)}", err=True)
    else:
        say(f"healthy: {_summary(found)}")
    for note in notes:
        say(f"note: {note}", err=True)


def _report_worker(
    given: Given, name: str, workers: Sequence[WorkerInfo], zone: ZoneInfo
) -> int:
    """Report on the processes of one name; those that are gone count only if none is live."""
    mine = [
        one for one in workers if name in (one.host, one.worker, shortened(one.worker))
    ]
    live = [one for one in mine if one.live]
    if not mine:
        problem = f"no worker {name} has signed in"
    else:
        problem = (
            f"worker {name} was last seen at "
            f"{moment(max(one.last_seen for one in mine), zone)}"
        )
    if given.json:
        problems = [] if live else [problem]
        print_json(
            {
                "healthy": bool(live),
                "problems": problems,
                "workers": [as_json(one) for one in live or mine],
            }
        )
    elif live:
        running = sum(one.running for one in live)
        capacity = sum(one.capacity for one in live)
        say(
            f"healthy: worker {name}: "
            f"{', '.join(sorted({one.state for one in live}))}, {running} of "
            f"{capacity}"
        )
    else:
        say(f"unhealthy: {problem}", err=True)
    return exits.OK if live else exits.FAILED


def _answered(check: Callable[[], Answer], timeout: timedelta) -> Answer:
    """Return what ``check`` returns. Raise what it raises, or DatabaseUnreachable when the time is
    up.

    A thread makes the check, and is left behind then: the database may answer nothing, and a probe
    must end.
    """
    answer: Future[Answer] = Future()

    def work() -> None:
        try:
            answer.set_result(check())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, name="slotwise-health", daemon=True).start()
    if not wait([answer], timeout.total_seconds()).done:
        raise DatabaseUnreachable(
            f"the database has not answered within {format_duration(timeout)}"
        )
    return answer.result()


def _notes(found: Health, zone: ZoneInfo) -> list[str]:
    """Notes that need no alarm."""
    notes = []
    if found.behind:
        cure = "give them more threads or workers, or a longer interval"
        notes.append(
            "jobs that have skipped slots at each start for a minute: "
            f"{_some(found.behind)}; {cure}"
        )
    if found.locked_out:
        names = list(found.locked_out)
        notes.append(
            "jobs whose last three slots were skipped because another program held their lock: "
            f"{_some(names)}; slotwise explain NAME says which program"
        )
    notes += [
        _unreadable(one, zone)
        for one in found.unreadable
        if one.dead or one.waits_for_deploy(found.now)
    ]
    notes += [
        f"a handler of worker {worker} runs for longer than its warn_after; it runs "
        f"{_some(names)}; see where it is: slotwise workers stack {names[0]}"
        for worker, names in found.slow.items()
        if names
    ]
    if found.gone_workers:
        notes.append(
            f"workers that vanished without signing out: {_some(found.gone_workers)}"
        )
    if found.unreadable_workers:
        notes.append(
            f"rows of workers that cannot be read: {_some(found.unreadable_workers)}"
        )
    notes += [
        f"calendar {name} lists no days after {year}, so holidays count as business days then; "
        f"extend it: slotwise calendar import, or add"
        for name, year in found.ended_calendars.items()
    ]
    if found.paused:
        notes.append(f"nothing starts: everything was {found.paused}")
    if found.refused:
        notes.append(
            f"live workers have other schedules, which were refused: {_some(found.refused)}"
        )
    return notes


def _orphans(found: Health) -> list[str]:
    """What no live worker knows."""
    told = []
    if found.orphans:
        told.append(
            f"orphans, due rows that no live worker runs: {found.orphans}, of "
            f"{_some(found.orphan_tasks)}"
        )
    unknown = [name for name in found.unknown_jobs if name not in found.orphan_tasks]
    if unknown:
        told.append(
            f"jobs that no live worker knows: {_some(unknown)}; start their workers, or: "
            f"slotwise delete {unknown[0]}, or --allow-orphans"
        )
    return [pasteable(one) for one in told]


def _some(names: Sequence[str]) -> str:
    return ", ".join(
        [*names[:5], *([f"{len(names) - 5} more"] if len(names) > 5 else [])]
    )


def _problems(
    found: Health, min_workers: int, max_rows: int, limit: str, zone: ZoneInfo
) -> list[str]:
    problems = []
    if found.live_workers < min_workers:
        problems.append(f"live workers: {found.live_workers}, wanted: {min_workers}")
    if found.overdue > max_rows:
        oldest = moment(found.oldest_due, zone)
        problems.append(
            f"rows due for more than {limit}: {found.overdue}, the oldest since {oldest}"
        )
    problems += [
        f"{name} is due, and unroutable: {why}"
        for name, why in found.unroutable.items()
    ]
    problems += [
        _unreadable(one, zone)
        for one in found.unreadable
        if not (one.dead or one.waits_for_deploy(found.now))
    ]
    problems += [
        f"a handler of worker {worker} does not stop, its log names it; it runs "
        f"{_some(names)}; restart that worker"
        for worker, names in found.hanging.items()
    ]
    if found.silent:
        problems.append(
            f"claims whose lease ran out and that no worker takes over: {found.silent}"
        )
    return problems


def _unreadable(found: Unreadable, zone: ZoneInfo) -> str:
    rows = counted(found.rows, "row", "is", "are")
    since = f", due since {moment(found.since, zone)}" if found.since else ""
    what = "waiting for a newer worker" if found.newer else "unreadable"
    return f"{found.task}: {rows} {what}{since}: {error_summary(found.error)}"


def _summary(found: Health) -> str:
    return (
        f"live workers: {found.live_workers}, overdue rows: {found.overdue}, dead "
        f"tasks: {found.dead}"
    )
