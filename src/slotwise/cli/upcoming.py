"""``slotwise slots --until``: what is to run until then, of all jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache

from rich.text import Text

from slotwise import InvalidSchedule, Schedule, parse_schedule
from slotwise.cli.shared.output import (
    outcome,
    print_json_list,
    print_table,
    say_zones,
    warn_paused,
)
from slotwise.cli.shared.terminal import moment, say
from slotwise.contrib.wording import counted
from slotwise.inspect import RECURRING, Inspection, JobInfo, SlotWindow, zone_of
from slotwise.spi import ListedState

#: Jobs and instances that are read at once.
PAGE = 500
#: What the list says about a slot that a calendar excludes.
NOT_A_BUSINESS_DAY = "does not run: not a business day"
_COLUMNS = ("JOB", "ID", "NEXT SLOT", "SLOTS", "LAST", "STATE", "WHY")


@lru_cache(maxsize=1_000)
def _read(text: str) -> Schedule | None:
    """Return a schedule from its text in a row; None if this release cannot read it."""
    try:
        return parse_schedule(text)
    except InvalidSchedule:
        return None


def passed_over(line: JobInfo) -> datetime | None:
    """Return the slot for which the row of a job waits, if a calendar excludes it."""
    schedule = None if line.next_slot is None else _read(line.schedule)
    if schedule is None or line.next_slot is None or schedule.runs(line.next_slot):
        return None
    return line.next_slot


def as_it_runs(line: JobInfo) -> JobInfo:
    """Return a line with the next slot that runs, in place of one that a calendar excludes."""
    excluded = passed_over(line)
    schedule = _read(line.schedule)
    if excluded is None or schedule is None:
        return line
    return replace(line, next_slot=schedule.running.next_after(excluded))


@dataclass(frozen=True, slots=True, kw_only=True)
class Upcoming:
    """The slots of a job, or of an instance, that are yet to come until an instant.

    ``is_excluded``: a calendar excludes each of them. ``is_more``: there are more than ``count``.
    """

    window: SlotWindow
    first: datetime
    last: datetime
    count: int
    is_excluded: bool
    is_more: bool

    def why(self, line: JobInfo | None) -> str:
        """Return why they may not start."""
        if self.is_excluded:
            return NOT_A_BUSINESS_DAY
        return (line.reason if line is not None else None) or ""

    def json(self, line: JobInfo | None) -> dict[str, object]:
        return {
            "job": self.window.job,
            "id": self.window.id,
            "next_slot": self.first.isoformat(),
            "last_slot": self.last.isoformat(),
            "slots": self.count,
            "is_more": self.is_more,
            "runs": not self.is_excluded,
            "state": None if line is None else line.state,
            "reason": self.why(line) or None,
        }


def upcoming(inspect: Inspection, name: str | None, end: datetime) -> list[Upcoming]:
    """Return what is to come, of all jobs or of one with its instances, the soonest first."""
    found = [
        one
        for window in _windows(inspect, name, end)
        if (one := _upcoming(window)) is not None
    ]
    return sorted(found, key=lambda one: (one.first, one.window.job, one.window.id))


def _windows(
    inspect: Inspection, name: str | None, end: datetime
) -> Iterator[SlotWindow]:
    now = inspect.now()
    after = (name or "", "")
    while page := inspect.windows(now, end, after=after, limit=PAGE):
        for window in page:
            if name is not None and window.job != name:
                return
            yield window
        after = (page[-1].job, page[-1].id)


def _upcoming(window: SlotWindow) -> Upcoming | None:
    slots = window.missing
    if not slots:
        return None
    schedule = _read(window.schedule)
    runs = slots if schedule is None else [one for one in slots if schedule.runs(one)]
    shown = runs or slots
    return Upcoming(
        window=window,
        first=shown[0],
        last=shown[-1],
        count=len(shown),
        is_excluded=not runs,
        is_more=not window.complete,
    )


def list_upcoming(
    inspect: Inspection,
    name: str | None,
    end: datetime,
    count: int | None,
    *,
    in_json: bool,
) -> None:
    """Print what is to come until ``end``; at most ``count`` lines."""
    found = upcoming(inspect, name, end)
    lines = (
        (one, inspect.job(one.window.job, id=one.window.id)) for one in found[:count]
    )
    if in_json:
        print_json_list(one.json(line) for one, line in lines)
        return
    warn_paused(inspect.all_paused())
    if not found:
        say(f"{name or 'all jobs'}: no slots until {moment(end)}")
        return
    shown = list(lines)
    print_table(
        _COLUMNS,
        [_row(one, line) for one, line in shown],
        spare=("LAST", "SLOTS", "ID"),
        folds="WHY",
    )
    say_zones(zone_of(one.window.schedule) for one, _ in shown)
    if left := len(found) - len(shown):
        say(f"… {counted(left, 'more job')}; --all lists them", err=True)


def _row(one: Upcoming, line: JobInfo | None) -> list[str | Text]:
    zone = zone_of(one.window.schedule)
    state = ListedState.WAITING if line is None else line.state
    return [
        one.window.job,
        "–" if one.window.id == RECURRING else one.window.id,
        moment(one.first, zone),
        f"{one.count:,}{'+' if one.is_more else ''}",
        moment(one.last, zone) if one.count > 1 else "–",
        outcome(state),
        one.why(line) or "–",
    ]
