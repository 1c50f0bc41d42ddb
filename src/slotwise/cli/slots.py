"""``slotwise slots`` and ``failures``: which slots ran, which did not, and why."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from heapq import merge
from itertools import chain, islice
from typing import Final
from zoneinfo import ZoneInfo

import click
from rich.text import Text

from slotwise.cli.shared import exits
from slotwise.cli.shared.given_slots import exact_slot
from slotwise.cli.shared.options import (
    Command,
    Given,
    common,
    lines_option,
    pass_given,
)
from slotwise.cli.shared.output import (
    RANGE,
    outcome,
    print_attempts,
    print_fields,
    print_json,
    print_json_list,
    print_table,
    say_zones,
    shortened,
)
from slotwise.cli.shared.terminal import UTC, exact, moment, moment_and_zone, say
from slotwise.cli.shared.values import (
    LARGEST_COUNT,
    Written,
    ahead,
    instant,
    within,
)
from slotwise.cli.upcoming import list_upcoming
from slotwise.contrib.wording import counted
from slotwise.inspect import (
    RECURRING,
    Failure,
    Inspection,
    SlotInfo,
)
from slotwise.spi import Outcome, SlotState, error_summary, short_duration

#: The smallest step between two slots.
_TICK: Final = timedelta(microseconds=1)
_COLUMNS = ("SLOT", "OUTCOME", "WHY", "ORIGIN", "TRIES", "STARTED", "TOOK", "WORKER")
LINES = 20
#: How far ahead slots are listed.
_FURTHEST: Final = timedelta(days=366)
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
            return show_slot.make_context(
                f"{info_name} show", args[1:], parent, **extra
            )
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
    with given.inspection() as inspect:
        inspect.check_name(name, id=id)
        zone = inspect.zone(name, id=id)
        wanted = exact_slot(inspect, name, id, slot.within(zone, "SLOT"))
        line = inspect.slot(name, wanted, id=id)
        attempts = inspect.attempts(name, wanted, id=id)
    if line is None:
        again = f"slotwise explain {shlex.quote(name)} {exact(wanted, zone)}"
        say(
            f"{name} {moment_and_zone(wanted, zone)}: the ledger has no such slot; why: {again}",
            err=True,
        )
        return exits.FAILED
    if given.json:
        print_json(
            {
                "job": name,
                **line.as_json(),
                "attempts": [one.as_json() for one in attempts],
            }
        )
        return exits.OK
    shown = {
        "job": name,
        "id": None if id == RECURRING else id,
        "slot": moment(line.slot, zone),
        "outcome": outcome(line.outcome),
        "why": line.reason,
        "origin": line.origin,
        "stands for": counted(line.missed_count, "more slot")
        if line.missed_count
        else None,
        "started": moment(line.started, zone),
        "finished": moment(line.finished, zone),
        "took": short_duration(line.took),
        "progress": line.progress,
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
    slotwise slots --until 1h                               what is to come, of all jobs
    slotwise slots show nightly-report 2026-01-31T02:00Z    one slot, and its attempts
    slotwise slots poll-feed --id customer-17               one recurring instance of a task
    slotwise slots nightly-report --before 2026-01-31T02:00:00Z -n 50
    slotwise slots nightly-report --all --json | jq -r '.[] | [.slot, .reason] | @tsv'
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
    "--before",
    callback=instant,
    metavar="TIME",
    help="Only slots before this instant.",
)
@click.option(
    "--until",
    callback=ahead,
    metavar="TIME",
    help="In place of what was, what is to come: 1h, or an instant.",
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
    until: Written | timedelta | None,
    skip: int,
) -> None:
    """List the slots of the job NAME: those that wait or run, then those that ended, the newest
    first.

    With --until, list the jobs and recurring instances that have slots from now to this instant,
    the soonest first: how many slots, and whether a pause, a calendar or a missing worker keeps
    them from starting.

    Without NAME, list those of all jobs that run or have ended. A range of slots that did not run
    for the same reason is one line. Each time is in the job's own zone.
    """
    if name is None and id is not None:
        raise click.UsageError("--id needs the NAME of the task")
    if until is not None:
        _refuse_of_the_past(id, since, before, skip)
        _show_upcoming(given, name, until, None if everything else count)
        return
    with given.inspection() as inspect:
        zone = UTC
        if name is not None:
            inspect.check_name(name, id=id)
            zone = inspect.zone(name, id=id)
        listing = _Listing(
            inspect=inspect,
            name=name,
            id=id,
            count=None if everything else count,
            since=within(since, None if name is None else zone, "--since"),
            before=within(before, None if name is None else zone, "--before"),
            skip=skip,
        )
        if given.json:
            pending, _ = listing.pending()
            rest = listing.rest(pending)
            print_json_list(map(listing.json, chain(pending, listing.ended(rest))))
        else:
            _show(listing, zone)


def _refuse_of_the_past(*given: object) -> None:
    if any(given):
        raise click.UsageError(
            "--until lists what is to come; leave out --id, --since, --before and --skip"
        )


def _show_upcoming(
    given: Given, name: str | None, until: Written | timedelta, count: int | None
) -> None:
    with given.inspection() as inspect:
        zone = None
        if name is not None:
            inspect.check_name(name)
            zone = inspect.zone(name)
        end = _end(inspect, until, zone)
        list_upcoming(inspect, name, end, count, in_json=given.json)


def _end(
    inspect: Inspection, until: Written | timedelta, zone: ZoneInfo | None
) -> datetime:
    """Return the instant of --until. Raises UsageError for one that has passed, or that is more
    than a year away.
    """
    now = inspect.now()
    end = until.within(zone, "--until") if isinstance(until, Written) else now + until
    if not now < end <= now + _FURTHEST:
        raise click.UsageError(
            f"--until: {moment(end)} is not within a year from now; for what was: --since"
        )
    return end


def _show(listing: _Listing, zone: ZoneInfo) -> None:
    """Print one page, and the command for the next one."""
    inspect = listing.inspect
    name = listing.name
    pending, waits = listing.pending()
    rest = listing.rest(pending)
    ended = list(listing.ended(rest, more=1))
    shown = [*pending, *ended[:rest]]
    _print(name, shown, inspect.zones({(job, line.id) for job, line in shown}))
    if waits:
        say(f"… more slots wait after these: {listing.again(zone)} --all", err=True)
    elif rest is not None and len(ended) > rest:
        say(f"… more: {listing.next_page(ended, rest, zone)}", err=True)
    if name is not None and not shown and inspect.tasks(name, limit=1):
        say(
            f"one-time tasks have no slots; see: slotwise tasks list {shlex.quote(name)}",
            err=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """The slots of one job, or of all; ``count`` None lists all of them."""

    inspect: Inspection
    name: str | None
    id: str | None
    count: int | None
    since: datetime | None
    before: datetime | None
    skip: int

    def pending(self) -> tuple[list[Named], bool]:
        """Return what waits or runs, on the first page of one job, and whether there is more than
        that.
        """
        name = self.name
        if name is None or self.before is not None:
            return [], False
        most = None if self.count is None else self.count + 1
        read = partial(self.inspect.pending, name, id=self.id, since=self.since)
        found = read(limit=most)
        has_more = self.count is not None and len(found) > self.count
        if has_more:  # chosen anew: of more lines others come first
            found = read(limit=self.count)
        return [(name, line) for line in found], has_more

    def rest(self, pending: Sequence[Named]) -> int | None:
        """Return how many lines are left for what has ended; None: any number."""
        return None if self.count is None else self.count - len(pending)

    def ended(self, rest: int | None, more: int = 0) -> Iterator[Named]:
        """Yield ``rest`` lines of the ledger with its gaps, and ``more``; of all jobs, what runs
        is among them.
        """
        end = None if rest is None else self.skip + rest + more
        read = partial(
            self.inspect.iter_slots, since=self.since, before=self.before, limit=end
        )
        if self.name is not None:
            lines = read(self.name, id=self.id, ended=True)
            return islice(_named(self.name, lines), self.skip, end)
        each = [_named(name, read(name)) for name in self.inspect.ledger_names()]
        merged = merge(*each, key=lambda named: named[1].place, reverse=True)
        return islice(merged, self.skip, end)

    def json(self, named: Named) -> dict[str, object]:
        job, line = named
        return line.as_json() if self.name else {"job": job, **line.as_json()}

    def again(self, zone: ZoneInfo) -> str:
        """Return the command that shows more, with the options of this one."""
        words = ["slotwise", "slots"]
        if self.name:
            words.append(shlex.quote(self.name))
        if self.id:
            words += ["--id", shlex.quote(self.id)]
        if self.since:
            words += ["--since", exact(self.since, zone)]
        return " ".join(words)

    def next_page(self, ended: Sequence[Named], rest: int, zone: ZoneInfo) -> str:
        """Return the command for the lines after the first ``rest`` of these."""
        lines = [line for _, line in ended]
        place, left = _page(lines[:rest], lines[rest], self.before, self.skip)
        words = [self.again(zone)]
        if self.count != LINES:
            words.append(f"-n {self.count}")
        words.append(f"--before {exact(place, zone)}")
        if left is not None:
            words.append(f"--skip {left}")
        return " ".join(words)


def _named(name: str, lines: Iterable[SlotInfo]) -> Iterator[Named]:
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
    same += skip if same == len(shown) and before == last + _TICK else 0
    return last + _TICK, same


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
    spare = ("WORKER", "ORIGIN", "TRIES", "TOOK", "STARTED")
    folds = {"WHY": 18, "SLOT": RANGE, "ID": 12}
    print_table(columns, rows, spare=spare, folds=folds, last="WHY")
    say_zones(zones.get((job, line.id), UTC) for job, line in shown)


def _row(line: SlotInfo, zone: ZoneInfo) -> list[str | Text]:
    slot = (
        moment(line.slot, zone)
        if line.last is None
        else f"{moment(line.slot, zone)} … {moment(line.last, zone)}"
    )
    lag = (
        "–" if line.started is None else f"+{short_duration(line.started - line.slot)}"
    )
    return [
        slot,
        outcome(line.outcome),
        _why(line, zone),
        line.origin or "–",
        str(line.attempts) if line.attempts else "–",
        lag,
        short_duration(line.took),
        shortened(line.worker),
    ]


def _why(line: SlotInfo, zone: ZoneInfo) -> str:
    parts = [line.reason] if line.reason else []
    if line.last is not None:
        parts.append(
            counted(line.count, "slot")
            + (f", {line.run_since} of them run since" if line.run_since else "")
        )
    if line.missed_count:
        parts.append(f"stands for {line.missed_count} more")
    if (
        line.outcome == SlotState.WAITING
        and line.due is not None
        and line.due != line.slot
    ):
        parts.append(f"due {moment(line.due, zone)}")
    if line.progress is not None:
        parts.append(line.progress)
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
    slotwise failures nightly-report --since 7d
    slotwise failures --all               also what succeeded at a later attempt
    slotwise failures --since 1h --json | jq -r '.[] | [.name, .slot, .error] | @tsv'
    """,
)
@click.argument("name", required=False)
@click.option(
    "--since",
    callback=instant,
    default="24h",
    show_default=True,
    metavar="TIME",
    help="Only since then.",
)
@click.option(
    "--all",
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
    """List slots and one-time tasks whose last attempt failed or was lost, of all jobs and tasks
    or of NAME, the newest first.

    "retry" and "rerun" mean that another attempt follows. Slots that are more than a week older
    than --since are not searched. With --all each attempt is a line; one-time tasks are among
    them if they keep a record.
    """
    with given.inspection() as inspect:
        if name is not None:
            inspect.check_name(name)
        start = since.within(None if name is None else inspect.zone(name), "--since")
        found = inspect.failures(start, name=name, limit=count + 1, attempts=each)
        shown = found[:count]
        zones = (
            {} if given.json else inspect.zones({(one.name, one.id) for one in shown})
        )
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
        columns,
        [_failure(one, zones.get((one.name, one.id), UTC)) for one in shown],
        spare=("TRIES", "ATTEMPT"),
        folds={"ERROR": 18, "SLOT OR ID": 14},
        last="OUTCOME",
    )
    say_zones(zones.values())
    if len(found) > count:
        words = ["slotwise", "failures", *([name] if name else []), *["--all"] * each]
        say(
            f"… more: {shlex.join(words)} -n {2 * count}, or a shorter --since",
            err=True,
        )
    say(f"for one of them: {_further(shown[0], zones)}", err=True)


def _further(one: Failure, zones: Mapping[tuple[str, str], ZoneInfo]) -> str:
    """Return the command that shows more about a failure."""
    name = shlex.quote(one.name)
    if one.slot is None:
        return f"slotwise tasks list {name} {shlex.quote(one.id)}"
    id = "" if one.id == RECURRING else f" --id {shlex.quote(one.id)}"
    slot = moment(one.slot, zones.get((one.name, one.id), UTC))
    return f"slotwise explain {name} {slot}{id}"


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
