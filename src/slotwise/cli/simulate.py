"""``slotwise simulate``: preview what would run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Final
from zoneinfo import ZoneInfo

import click

from slotwise import Calendar, InvalidSetting, SlotwiseError
from slotwise.cli.shared.options import Command, Given, common, pass_given
from slotwise.cli.shared.output import as_json, print_json_list, print_table
from slotwise.cli.shared.terminal import moment, say
from slotwise.cli.shared.terminal import shown as zone_shown
from slotwise.cli.shared.values import LARGEST_COUNT, Written, instant, read_written
from slotwise.contrib.wording import counted
from slotwise.inspect import SlotInfo, clock, slot_note
from slotwise.simulate.forecast import LONGEST, Forecast, Outage, forecast, remarkable
from slotwise.spi import (
    KNOWN_YEARS,
    Definition,
    Outcome,
    elapsed,
    error_summary,
    is_known,
    parse_duration,
    short_duration,
)

#: Seconds between two lines of progress.
PROGRESS: Final = 5.0
_OUTAGE = re.compile(r"(?P<start>.+)/(?P<length>[^/]+)")


@click.command(
    cls=Command,
    short_help="Preview what would run, with outages.",
    examples="""
    slotwise simulate --app jobs --days 30
    slotwise simulate --app jobs --from 2026-10-24 --days 2     the night when clocks go back
    slotwise simulate --app jobs --outage 2026-02-01T01:00Z/3h --takes nightly-report=90m
    slotwise simulate --app jobs --only nightly-report --json
    """,
)
@click.option(
    "--days",
    type=click.FloatRange(0, 3660, min_open=True),
    default=7,
    show_default=True,
    help="How long.",
)
@click.option(
    "--from",
    "start",
    callback=instant,
    default="now",
    metavar="TIME",
    help="When it begins; default: now.",
)
@click.option(
    "--outage",
    "outages",
    multiple=True,
    metavar="TIME/DURATION",
    help="No worker runs then; repeatable.",
)
@click.option(
    "--takes",
    multiple=True,
    metavar="[NAME=]DURATION",
    help="How long runs take; default: no time at all.",
)
@click.option(
    "--only", "names", multiple=True, metavar="NAME", help="Only this job; repeatable."
)
@click.option(
    "-n",
    "count",
    type=click.IntRange(0, LARGEST_COUNT),
    default=10,
    show_default=True,
    help="Lines for each job.",
)
@click.option(
    "--all", "everything", is_flag=True, help="Also slots that run on time; all lines."
)
@common
@pass_given
def simulate(
    given: Given,
    days: float,
    start: Written,
    outages: tuple[str, ...],
    takes: tuple[str, ...],
    names: tuple[str, ...],
    count: int,
    everything: bool,
) -> None:
    """Preview which slots of the application's jobs would run, which would not, and why.

    The engine itself runs in memory, with its policies, on a clock that jumps from slot to slot.
    No handler is called, and the database is read only for the calendars of schedules. The output
    has counts, and unusual slots: missed, late, skipped, moved or doubled by a clock change.
    """
    jobs = _chosen(given, names)
    zones = {_zone(job) for job in jobs.values()}
    zone = zones.pop() if len(zones) == 1 else None
    begin = start.within(zone, "--from")
    end = begin + timedelta(days=days)
    if not is_known(end):
        raise click.UsageError(f"--days {days:g}: {end.year} is beyond {KNOWN_YEARS}")
    found = forecast(
        jobs,
        begin,
        end,
        outages=[_outage(text, zone) for text in outages],
        takes=_takes(takes, jobs),
        calendars=_calendars(given, jobs),
        tell=_Progress(),
    )
    if given.json:
        print_json_list(_objects(found, jobs))
        return
    _print(found, jobs, None if everything else count, everything)


class _Progress:
    """Prints every few seconds how far the simulation is."""

    def __init__(self) -> None:
        self._told = elapsed()

    def __call__(self, now: datetime, attempts: int) -> None:
        if elapsed() - self._told > PROGRESS:
            self._told = elapsed()
            cure = "for a shorter run: fewer --days, or --only NAME"
            say(
                f"{attempts:,} runs up to {moment(now)}, of at most {LONGEST:,}; {cure}",
                err=True,
            )


def _chosen(given: Given, names: tuple[str, ...]) -> dict[str, Definition]:
    jobs = {job.name: job for job in given.registry().jobs}
    if unknown := sorted(set(names) - jobs.keys()):
        raise click.UsageError(
            f"--only {unknown[0]}: there is no such job; known are {', '.join(jobs)}"
        )
    return {name: job for name, job in jobs.items() if not names or name in names}


def _outage(text: str, zone: ZoneInfo | None) -> Outage:
    match = _OUTAGE.fullmatch(text)
    if match is None:
        raise click.UsageError(
            f"--outage {text}: write TIME/DURATION, for instance 2026-02-01T01:00Z/3h"
        )
    try:
        start = read_written(match["start"], "--outage").within(zone, "--outage")
        length = parse_duration(match["length"])
    except (ValueError, SlotwiseError) as error:
        raise click.UsageError(f"--outage {text}: {error}") from None
    return Outage(start, start + length)


def _takes(
    texts: Sequence[str], jobs: Mapping[str, Definition]
) -> dict[str, timedelta]:
    """The duration of each job: by name, else the one for all."""
    told = [text.rpartition("=")[::2] for text in texts]
    if unknown := [name for name, _ in told if name and name not in jobs]:
        raise click.UsageError(
            f"--takes {unknown[0]}: there is no such job; known are {', '.join(jobs)}"
        )
    found: dict[str, timedelta] = {}
    for name, text in sorted(told):
        try:
            found |= dict.fromkeys([name] if name else jobs, parse_duration(text))
        except InvalidSetting as error:
            raise click.UsageError(
                f"--takes {f'{name}=' if name else ''}{text}: {error}"
            ) from None
    return found


def _calendars(given: Given, jobs: Mapping[str, Definition]) -> list[Calendar]:
    """Read the calendars from the database, if a schedule names one that it does not contain."""
    if not any(
        job.schedule and None in job.schedule.calendars.values()
        for job in jobs.values()
    ):
        return []
    with given.operations() as (operations, _):
        found = operations.calendars.all()
    return [one.calendar for one in found if one.calendar is not None]


def _objects(
    found: Forecast, jobs: Mapping[str, Definition]
) -> Iterator[dict[str, object]]:
    for name, lines in found.slots.items():
        zone = _zone(jobs[name])
        for line in lines:
            yield {
                "job": name,
                **as_json(line),
                "local": clock(line.slot, zone),
                "note": _note(jobs[name], line),
            }


def _print(
    found: Forecast,
    jobs: Mapping[str, Definition],
    count: int | None,
    everything: bool,
) -> None:
    print_table(
        ("JOB", "RAN", "OF THESE LATE", "SKIPPED", "OTHERWISE"),
        [_sums(*one) for one in found.slots.items()],
    )
    for name, lines in found.slots.items():
        job = jobs[name]
        odd = set(map(id, remarkable(lines)))
        shown = [
            line for line in lines if everything or id(line) in odd or _note(job, line)
        ]
        if shown and count != 0:
            zone = _zone(job)
            say(
                "",
                name
                if zone_shown(zone).key == "UTC"
                else f"{name} (times in {zone_shown(zone).key})",
            )
            print_table(
                ("SLOT", "OUTCOME", "WHY"),
                [_row(job, line) for line in islice(shown, count)],
            )
            if count is not None and len(shown) > count:
                say(f"… {len(shown) - count} more; -n or --all shows them", err=True)
    if not found.complete:
        say(
            f"stopped at {moment(found.until)}, after {LONGEST} attempts; use "
            "--only or fewer --days",
            err=True,
        )


def _sums(name: str, lines: Sequence[SlotInfo]) -> list[str]:
    ran = [line for line in lines if line.outcome == Outcome.SUCCEEDED]
    late = sum(
        line.started is not None and line.started - line.slot >= timedelta(seconds=1)
        for line in ran
    )
    skipped = Counter[str]()
    for line in lines:
        if line.outcome == Outcome.SKIPPED:
            skipped[line.reason or ""] += line.count
    others = Counter(
        line.outcome
        for line in lines
        if line.outcome not in (Outcome.SUCCEEDED, Outcome.SKIPPED)
    )
    return [
        name,
        str(len(ran)),
        str(late) if late else "–",
        _counts(skipped),
        _counts(others),
    ]


def _counts(counter: Counter[str]) -> str:
    return (
        ", ".join(f"{count} {word}" for word, count in sorted(counter.items())) or "–"
    )


def _row(job: Definition, line: SlotInfo) -> list[str]:
    zone = _zone(job)
    slot = moment(line.slot, zone) + (
        f" … {moment(line.last, zone)}" if line.last else ""
    )
    return [slot, line.outcome, _why(job, line)]


def _why(job: Definition, line: SlotInfo) -> str:
    parts = [
        line.reason or "",
        counted(line.count, "slot") if line.last else "",
        _note(job, line),
    ]
    if line.started is not None and line.started - line.slot >= timedelta(seconds=1):
        parts.append(f"{short_duration(line.started - line.slot)} late")
    if line.error and line.outcome != Outcome.SUCCEEDED:
        parts.append(error_summary(line.error))
    if line.missed_count:
        parts.append(f"stands for {line.missed_count} more")
    return "; ".join(filter(None, parts)) or "–"


def _note(job: Definition, line: SlotInfo) -> str:
    """The effect of a clock change on the slot."""
    return (
        slot_note(job.schedule, line.slot, _zone(job))
        if job.schedule is not None and line.last is None
        else ""
    )


def _zone(job: Definition) -> ZoneInfo:
    assert job.schedule is not None
    return job.schedule.local_zone or ZoneInfo("UTC")
