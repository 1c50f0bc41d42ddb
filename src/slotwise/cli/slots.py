"""``slotwise slots``, ``failures`` and ``explain``: which slots ran, which did not, and why."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from heapq import merge
from itertools import chain, islice
from zoneinfo import ZoneInfo

import click
from rich.text import Text

from slotwise.cli.shared import exits
from slotwise.cli.shared.options import (
    LARGEST_COUNT,
    Command,
    Given,
    Written,
    common,
    exact_slot,
    instant,
    lines_option,
    pass_given,
    within,
)
from slotwise.cli.shared.output import (
    as_json,
    outcome,
    print_attempts,
    print_fields,
    print_json,
    print_json_list,
    print_table,
    print_tracebacks,
    say_zones,
    shortened,
    span,
)
from slotwise.cli.shared.terminal import exact, moment, say
from slotwise.client.client import Client
from slotwise.explain.explanation import explain as explain_slot
from slotwise.explain.explanation import explain_now, explain_task
from slotwise.inspect import Inspection
from slotwise.jobs.definition import Definition
from slotwise.model.error_text import error_summary
from slotwise.model.records import RECURRING, TICK
from slotwise.model.vocabulary import Outcome, State
from slotwise.schedules.description import UTC
from slotwise.store.reading.facts import facts, task_facts
from slotwise.store.reading.failures import Failure, failed_attempts
from slotwise.store.reading.failures import failures as failures_since
from slotwise.store.reading.reader import Reader
from slotwise.store.reading.task_counts import names_in
from slotwise.store.reading.views import SlotInfo
from slotwise.store.slots.store import Store

_COLUMNS = ("SLOT", "OUTCOME", "WHY", "ORIGIN", "TRIES", "STARTED", "TOOK", "WORKER")
LINES = 20
_INSTANT = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")
#: A slot, or a gap, of the job with this name.
Named = tuple[str, SlotInfo]


class SlotsCommand(Command):
    """``slots [NAME]``, and ``slots show NAME SLOT``."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: object,
    ) -> click.Context:
        """``slots show`` without more is the listing of a job of that name."""
        if (
            args[:1] == ["show"]
            and len(args) > 1
            and (args[1] in ("-h", "--help") or not args[1].startswith("-"))
        ):
            return show_slot.make_context(f"{info_name} show", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(
    cls=Command,
    short_help="One slot with all its attempts and their tracebacks.",
    notes="""
    0  shown
    1  the ledger has no such slot; why: slotwise explain
    """,
    examples="""
    slotwise slots show nightly-report 2026-01-31T02:00:00+01:00
    slotwise slots show nightly-report 2026-01-31T01:00Z --json | jq -r '.attempts[].error'
    """,
)
@click.argument("name")
@click.argument("slot", callback=instant)
@click.option("--id", default=RECURRING, metavar="ID", help="A recurring instance.")
@common
@pass_given
def show_slot(given: Given, name: str, slot: Written, id: str) -> int:
    """Show the SLOT of the job NAME as the ledger has it: its attempts, the worker of each, and
    each traceback.

    The attempt that succeeded is the last one. A lost attempt ended when its worker was last heard
    of.
    """
    with given.store() as store:
        reader = Reader(store)
        reader.known_instance(name, id)
        zone = reader.zone(name, id)
        wanted = exact_slot(Inspection(lambda: store), name, id, slot.within(zone, "SLOT"))
        line = reader.slot(name, wanted, id)
        attempts = reader.attempts(name, id, wanted)
    if line is None:
        again = f"slotwise explain {shlex.quote(name)} {exact(wanted, zone)}"
        say(
            f"{name} {_at(wanted, zone)}: the ledger has no such slot; why: {again}",
            err=True,
        )
        return exits.FAILED
    if given.json:
        print_json(
            {"job": name, **as_json(line), "attempts": [as_json(one) for one in attempts]}
        )
        return exits.OK
    shown = {
        "job": name,
        "id": None if id == RECURRING else id,
        "slot": moment(line.slot, zone),
        "outcome": outcome(line.outcome),
        "why": line.reason,
        "origin": line.origin,
        "stands for": f"{line.missed_count} more slots" if line.missed_count else None,
        "started": moment(line.started, zone),
        "finished": moment(line.finished, zone),
        "took": span(line.took),
        "worker": line.worker,
    }
    print_fields(
        (label, value) for label, value in shown.items() if value not in (None, "–")
    )
    print_attempts(attempts, zone)
    say_zones([zone])
    return exits.OK


@click.command(
    cls=SlotsCommand,
    short_help="What ran, what did not, and why.",
    examples="""
    slotwise slots                                          of all jobs
    slotwise slots nightly-report
    slotwise slots nightly-report --since 7d --all
    slotwise slots show nightly-report 2026-01-31T02:00Z    one slot, its attempts, and their tracebacks
    slotwise slots poll-feed --id customer-17               one recurring instance of a task
    slotwise slots nightly-report --before 2026-01-31T02:00:00Z -n 50
    slotwise slots nightly-report --all --json | jq -r '.[] | select(.outcome != "succeeded") | [.slot, .reason] | @tsv'
    """,
)
@click.argument("name", required=False)
@click.option("--id", metavar="ID", help="Only those of this recurring instance.")
@lines_option(LINES)
@click.option("--all", "everything", is_flag=True, help="All lines.")
@click.option(
    "--since", callback=instant, metavar="TIME", help="Only slots since this instant."
)
@click.option(
    "--before", callback=instant, metavar="TIME", help="Only slots before this instant."
)
@click.option(
    "--skip",
    type=click.IntRange(0, LARGEST_COUNT),
    default=0,
    help="Leave out this many lines, for the next page.",
)
@common
@pass_given
def slots(
    given: Given,
    name: str | None,
    id: str | None,
    count: int,
    everything: bool,
    since: Written | None,
    before: Written | None,
    skip: int,
) -> None:
    """List the slots of the job NAME: those that wait or run, then those that ended, the newest
    first.

    Without NAME, list those of all jobs that run or have ended. A range of slots that did not run
    for the same reason is one line. Each time is in the job's own zone.
    """
    if name is None and id is not None:
        raise click.UsageError("--id needs the NAME of the task")
    with given.store() as store:
        reader = Reader(store)
        zone = None
        if name is not None:
            reader.known_instance(name, id or RECURRING)
            zone = reader.zone(name, id or RECURRING)
        first = within(since, zone, "--since")
        end = within(before, zone, "--before")
        most = None if everything else count
        standing, waits = (
            _standing(reader, name, id, most, first)
            if name is not None and end is None
            else ([], False)
        )
        rest = None if most is None else most - len(standing)
        found = _ended(
            store, reader, name, id, None if rest is None else skip + rest + 1, first, end
        )
        lines = islice(found, skip, None if rest is None else skip + rest + 1)
        if given.json:
            listed = chain(standing, lines if rest is None else islice(lines, rest))
            print_json_list(
                as_json(line) if name else {"job": job, **as_json(line)}
                for job, line in listed
            )
            return
        ended = list(lines)
        shown = [*standing, *ended[:rest]]
        more = ended[rest:] if rest is not None else []
        zones = reader.zones({(job, line.id) for job, line in shown})
        _print(name, shown, zones)
        again = _again(name, id, None if first is None else exact(first, zone or UTC))
        if waits:
            say(f"… more slots wait after these: {again} --all", err=True)
        elif more:
            said = f" -n {count}" if count != LINES else ""
            place, left = _page([line for _, line in ended[:rest]], more[0][1], end, skip)
            further = f" --before {exact(place, zone or UTC)}" + (
                f" --skip {left}" if left is not None else ""
            )
            say(f"… more: {again}{said}{further}", err=True)
        if name is not None and not shown and Client(lambda: store).list(name, limit=1):
            say(
                f"one-time tasks have no slots; see: slotwise tasks list {shlex.quote(name)}",
                err=True,
            )


def _standing(
    reader: Reader, name: str, id: str | None, most: int | None, since: datetime | None
) -> tuple[list[Named], bool]:
    """What waits or runs, and whether there is more than is shown."""
    found = reader.standing(name, id, limit=None if most is None else most + 1, since=since)
    if most is not None and len(found) > most:
        return [
            (name, line) for line in reader.standing(name, id, limit=most, since=since)
        ], True
    return [(name, line) for line in found], False


def _ended(
    store: Store,
    reader: Reader,
    name: str | None,
    id: str | None,
    limit: int | None,
    since: datetime | None,
    before: datetime | None,
) -> Iterable[Named]:
    """The ledger and the gaps of a job; or of all, which also have what runs."""
    if name is not None:
        return (
            (name, line)
            for line in reader.slots(
                name, id, limit=limit, since=since, before=before, ended=True
            )
        )
    with store.transaction() as connection:
        names = list(names_in(connection, store.tables.slots.c.task_name))
    each = [
        _named(one, reader.slots(one, limit=limit, since=since, before=before))
        for one in names
    ]
    return merge(*each, key=lambda named: named[1].place, reverse=True)


def _named(name: str, lines: Iterable[SlotInfo]) -> Iterable[Named]:
    return ((name, line) for line in lines)


def _page(
    shown: Sequence[SlotInfo], following: SlotInfo, before: datetime | None, skip: int
) -> tuple[datetime, int | None]:
    """Where the next page begins, and how many of its lines to skip: several may end at the same
    instant.
    """
    last = shown[-1].place if shown else following.place
    if following.place != last:
        return last, None
    same = sum(line.place == last for line in shown)
    same += skip if same == len(shown) and before == last + TICK else 0
    return last + TICK, same


def _print(
    name: str | None, shown: Sequence[Named], zones: Mapping[tuple[str, str], ZoneInfo]
) -> None:
    if not shown:
        say(
            f"{name}: no slots in this range"
            if name is not None
            else "no slots in this range"
        )
        return
    by_id = any(line.id != RECURRING for _, line in shown)
    columns = (*["JOB"] * (name is None), *["ID"] * by_id, *_COLUMNS)
    rows = []
    for job, line in shown:
        zone = zones.get((job, line.id), UTC)
        rows.append(
            [
                *[job] * (name is None),
                *["–" if line.id == RECURRING else line.id] * by_id,
                *_row(line, zone),
            ]
        )
    print_table(columns, rows)
    say_zones(zones.get((job, line.id), UTC) for job, line in shown)


def _again(name: str | None, id: str | None, since: str | None) -> str:
    """The command that shows more, with the options of this one."""
    said = [shlex.quote(name)] if name else []
    said += ["--id", shlex.quote(id)] if id else []
    said += ["--since", since] if since else []
    return " ".join(["slotwise slots", *said])


def _row(line: SlotInfo, zone: ZoneInfo) -> list[str | Text]:
    slot = (
        moment(line.slot, zone)
        if line.last is None
        else f"{moment(line.slot, zone)} … {moment(line.last, zone)}"
    )
    lag = "–" if line.started is None else f"+{span(line.started - line.slot)}"
    return [
        slot,
        outcome(line.outcome),
        _why(line, zone),
        line.origin or "–",
        str(line.attempts) if line.attempts else "–",
        lag,
        span(line.took),
        shortened(line.worker),
    ]


def _why(line: SlotInfo, zone: ZoneInfo) -> str:
    parts = [line.reason] if line.reason else []
    if line.last is not None:
        parts.append(
            f"{line.count} slots"
            + (f", {line.run_since} of them run since" if line.run_since else "")
        )
    if line.missed_count:
        parts.append(f"stands for {line.missed_count} more")
    if line.outcome == State.WAITING and line.due is not None and line.due != line.slot:
        parts.append(f"due {moment(line.due, zone)}")
    if line.lost_by:
        parts.append(
            f"lost by {shortened(line.lost_by)}, silent since {moment(line.silent_since, zone)}"
        )
    if line.error and line.outcome != Outcome.SUCCEEDED:
        parts.append(error_summary(line.error))
    return "; ".join(parts) or "–"


@click.command(
    cls=Command,
    short_help="What failed lately, of all jobs and tasks.",
    examples="""
    slotwise failures
    slotwise failures --since 7d --job nightly-report
    slotwise failures --attempts                                  also what succeeded at a later attempt
    slotwise failures --since 1h --json | jq -r '.[] | [.name, .slot, .error] | @tsv'
    """,
)
@click.option(
    "--since",
    callback=instant,
    default="24h",
    show_default=True,
    metavar="TIME",
    help="Only since then.",
)
@click.option("--job", "name", metavar="NAME", help="Only this job or task.")
@click.option(
    "--attempts",
    "each",
    is_flag=True,
    help="Each attempt, also of slots that succeeded later.",
)
@lines_option(50)
@common
@pass_given
def failures(
    given: Given, since: Written, name: str | None, each: bool, count: int
) -> None:
    """List slots and one-time tasks whose last attempt failed or was lost, of all jobs and tasks,
    the newest first.

    "retry" and "rerun" mean that another attempt follows. Slots that are more than a week older
    than --since are not searched. With --attempts each attempt is a line; one-time tasks are among
    them if they keep a record.
    """
    with given.store() as store:
        reader = Reader(store)
        if name is not None:
            reader.known(name)
        start = since.within(None if name is None else reader.zone(name), "--since")
        found = (failed_attempts if each else failures_since)(
            store, start, name=name, limit=count + 1
        )
        shown = found[:count]
        zones = {} if given.json else reader.zones({(one.name, one.id) for one in shown})
    if given.json:
        print_json_list(shown)
        return
    if not shown:
        say(f"no failures since {moment(start, UTC)}")
        return
    columns = (
        "FAILED AT",
        "NAME",
        "SLOT OR ID",
        "OUTCOME",
        "ATTEMPT" if each else "TRIES",
        "ERROR",
    )
    print_table(
        columns, [_failure(one, zones.get((one.name, one.id), UTC)) for one in shown]
    )
    say_zones(zones.values())
    if len(found) > count:
        again = "slotwise failures --attempts" if each else "slotwise failures"
        say(f"… more: {again} -n {2 * count}, or a shorter --since", err=True)
    one = shown[0]
    if one.slot is None:
        say(
            f"for one of them: slotwise tasks show {shlex.quote(one.name)} {shlex.quote(one.id)}",
            err=True,
        )
    else:
        id = "" if one.id == RECURRING else f" --id {shlex.quote(one.id)}"
        slot = moment(one.slot, zones.get((one.name, one.id), UTC))
        say(
            f"for one of them: slotwise explain {shlex.quote(one.name)} {slot}{id}",
            err=True,
        )


def _failure(one: Failure, zone: ZoneInfo) -> list[str | Text]:
    what = one.id if one.slot is None else moment(one.slot, zone)
    what += f" of {one.id}" if one.slot is not None and one.id != RECURRING else ""
    again = f", {one.reason}" if one.reason else ""
    return [
        moment(one.at, zone),
        one.name,
        what,
        outcome(one.outcome) + Text(again),
        str(one.attempts),
        error_summary(one.error) or "–",
    ]


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
    slotwise explain nightly-report 2026-01-31T02:00Z --traceback    also: what each attempt failed with
    slotwise explain nightly-report 2026-01-31T02:00Z --app jobs     also: what the job declares
    slotwise explain nightly-report 2026-01-31T02:00Z --json | jq -r .outcome
    slotwise explain send-mail --id order-42 --app jobs              a one-time task, with its limits
    """,
)
@click.argument("name")
@click.argument("slot", required=False, callback=instant)
@click.option(
    "--id",
    default=RECURRING,
    metavar="ID",
    help="A recurring instance, or a one-time task.",
)
@click.option("--traceback", is_flag=True, help="Also print what each attempt failed with.")
@common
@pass_given
def explain(given: Given, name: str, slot: Written | None, id: str, traceback: bool) -> int:
    """Explain in sentences why SLOT of the job NAME ran, or did not: from ledger, gaps, operations
    and schedule.

    SLOT is any instant, as the listings show it; without a zone it is read in the job's. Without
    SLOT, explain why the job, its recurring instance or the one-time task with this --id does not
    run now, and when it will. With --app, declared policies and limits count, too.
    """
    with given.store() as store:
        reader = Reader(store)
        zone = reader.zone(name, id)
        definition = (
            given.registry().definitions.get(name) if "app" in given.values else None
        )
        if slot is None:
            return _explain_now(given, store, name, id, zone, definition, traceback)
        reader.known_instance(name, id)
        wanted = exact_slot(Inspection(lambda: store), name, id, slot.within(zone, "SLOT"))
        found = explain_slot(facts(store, name, wanted, id), definition)
    if given.json:
        print_json(found)
    else:
        reason = f" ({found.reason})" if found.reason else ""
        say(
            f"{name} {_at(found.slot, zone)}: {found.outcome}{reason}",
            *_localized(found.sentences, zone),
        )
        print_tracebacks(found.attempts if traceback else (), zone)
    return exits.FAILED if found.outcome in (State.UNKNOWN, State.NO_SLOT) else exits.OK


def _explain_now(
    given: Given,
    store: Store,
    name: str,
    id: str,
    zone: ZoneInfo,
    definition: Definition | None,
    traceback: bool,
) -> int:
    """Explain the row of a job or of an instance; else a one-time task."""
    job = explain_now(store, name, id, definition)
    if job is None and id == RECURRING:
        Reader(store).known(name)
        raise click.UsageError(
            f"{name!r} is a one-time task; name one of its tasks with --id"
        )
    found = job or explain_task(task_facts(store, name, id), definition)
    if given.json:
        print_json(found)
    else:
        what = name if id == RECURRING else f"{name} {id}"
        say(f"{what}: {found.state}", *_localized(found.sentences, zone))
        print_tracebacks(found.attempts if traceback else (), zone)
    return exits.FAILED if found.state == State.UNKNOWN else exits.OK


def _at(instant: datetime, zone: ZoneInfo) -> str:
    return (
        moment(instant, zone)
        if zone.key == "UTC"
        else f"{moment(instant, zone)} ({zone.key})"
    )


def _localized(sentences: tuple[str, ...], zone: ZoneInfo) -> list[str]:
    """The sentences with all instants in the job's zone."""

    def local(found: re.Match[str]) -> str:
        return moment(datetime.fromisoformat(found[0]), zone)

    return [_INSTANT.sub(local, sentence) for sentence in sentences]
