"""Today: one verdict, what did not run by cause, and what is late, paused or lost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final

from slotwise.contrib.dashboard.pages.slow import slow_runs
from slotwise.contrib.dashboard.pages.tasks import LATE, pace_of_all, paces
from slotwise.contrib.dashboard.reading import Page, Reading
from slotwise.inspect import (
    Backlog,
    Failure,
    FinishForecast,
    Health,
    OutcomeTotal,
    Pause,
    TaskCount,
    Trouble,
)
from slotwise.spi import Outcome, error_summary

#: Failures that are read and grouped; the page says when there are more.
_MOST_FAILURES: Final = 500
#: Paused jobs of which author and note are read.
_TOLD_PAUSES: Final = 5
#: What differs among failures of one cause: words with digits, such as ids, addresses and times. A
#: number that is the cause itself is kept: "exit status 69".
_KEPT_OR_VARIED: Final = re.compile(
    r"(?P<kept>\b(?:status|code|errno|signal|http) \d{1,3}\b)|[\w.@:/+-]*\d[\w.@:/+-]*",
    re.IGNORECASE,
)
_RUNNING: Final = frozenset({"claimed", Outcome.RUNNING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """How many slots of today were due, and what became of them."""

    due: int
    ran: int
    running: int
    failed: int
    skipped: int

    @property
    def not_run(self) -> int:
        """Slots that have ended without success."""
        return self.failed + self.skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Failures that look alike: ``text`` without words that have digits is the same."""

    text: str
    count: int
    first: datetime
    last: datetime
    names: Sequence[str]
    sample: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedName:
    """A name that is paused, since when, until when, and by whom and why, if that was read."""

    name: str
    id: str | None
    since: datetime
    until: datetime | None = None
    why: str | None


def today(reading: Reading) -> Page:
    """Show the verdict since midnight, and what needs attention now."""
    inspect = reading.inspect
    midnight = reading.midnight
    counts = reading.kept(
        "verdict", lambda: reading.source.totals(midnight), of=midnight
    )
    failures = reading.kept_lines(
        "failures",
        lambda: inspect.failures(midnight, limit=_MOST_FAILURES),
        of=midnight,
    )
    backlog = reading.kept_lines("late", inspect.backlog)
    tasks = reading.kept_lines("tasks", inspect.task_counts)
    health = reading.kept("health", inspect.health)
    data: dict[str, object] = {
        "since": midnight,
        "verdict": None if counts is None else totals_of(counts),
        "reconciled": reading.part("reconciled", reading.source.reconciled),
        "causes": causes_of(failures),
        "skips": [one for one in counts or () if one.outcome == Outcome.SKIPPED],
        "has_more_failures": len(failures) == _MOST_FAILURES,
        "late": _late(backlog),
        "will_miss": _misses(reading),
        "health": health,
        "slow": reading.kept_lines("slow", lambda: slow_runs(reading, health)),
        "paused": reading.part("paused", inspect.all_paused),
        "paused_jobs": [],
        "failing": [],
        "tasks": tasks,
        "pace": pace_of_all(paces(reading)),
        "workers": reading.lines("workers", inspect.workers),
    }
    troubles = reading.kept_lines("troubles", inspect.troubles)
    data["failing"] = _worst(one for one in troubles if one.failing)
    paused = [one for one in troubles if one.paused is not None]
    data["paused_jobs"] = reading.lines("pauses", lambda: _pauses(reading, paused))
    shown = {
        "task_names": {one.task for one in tasks} | _tasks_among(failures),
        "stuck": _stuck(tasks, health),
    }
    return Page(template="today.html", title="Today", data=data, shown=shown)


def _stuck(tasks: Iterable[TaskCount], health: object) -> dict[str, str]:
    """Return why no live worker takes what is due, by name."""
    found = {one.task: one.reason for one in tasks if one.reason is not None}
    if isinstance(health, Health):
        unknown = (*health.unknown_jobs, *health.orphan_tasks)
        found |= dict.fromkeys(unknown, "no live worker knows it")
        found |= health.unroutable
    return found


def _misses(reading: Reading) -> list[FinishForecast]:
    """Return the slots that will probably end too late, the surest first."""
    found = reading.kept_lines("finish_by", reading.inspect.finish_forecasts)
    return sorted((one for one in found if one.will_miss), key=lambda one: -one.share)


def _tasks_among(failures: Iterable[Failure]) -> set[str]:
    """Return the names of one-time tasks, which have no slot."""
    return {one.name for one in failures if one.slot is None}


def _worst(failing: Iterable[Trouble]) -> list[Trouble]:
    return sorted(failing, key=lambda one: (-one.in_a_row, one.name))


def _pauses(reading: Reading, paused: Sequence[Trouble]) -> list[PausedName]:
    """Return the pauses by name; then the names that were paused without one."""
    found = list[PausedName]()
    for one in reading.inspect.pauses():
        if one.job is not None:
            found.append(_paused(one, one.job))
    known = {one.name for one in found}
    rest = sorted((one for one in paused if one.name not in known), key=_by_name)
    for number, trouble in enumerate(rest):
        job = reading.inspect.job(trouble.name) if number < _TOLD_PAUSES else None
        why = None if job is None else job.reason
        since = reading.now - (trouble.paused or timedelta(0))
        found.append(PausedName(name=trouble.name, id=None, since=since, why=why))
    return found


def _paused(one: Pause, name: str) -> PausedName:
    said = f"paused by {one.author}{f': {one.note}' if one.note else ''}"
    return PausedName(name=name, id=one.id, since=one.since, until=one.until, why=said)


def _by_name(one: Trouble) -> str:
    return one.name


def totals_of(counts: Iterable[OutcomeTotal]) -> Totals:
    """Add up the slots by outcome."""
    by_outcome = Counter[str]()
    for one in counts:
        by_outcome[one.outcome] += one.count
    due = by_outcome.total()
    ran = by_outcome[Outcome.SUCCEEDED]
    skipped = by_outcome[Outcome.SKIPPED]
    running = sum(by_outcome[outcome] for outcome in _RUNNING)
    failed = due - ran - skipped - running
    return Totals(due=due, ran=ran, running=running, failed=failed, skipped=skipped)


def causes_of(failures: Iterable[Failure]) -> list[Cause]:
    """Group failures whose messages differ in numbers only, the largest group first."""
    ordered = sorted(failures, key=_cause)
    groups = [_grouped(list(group)) for _, group in groupby(ordered, key=_cause)]
    return sorted(groups, key=lambda one: (-one.count, one.first))


def _cause(failure: Failure) -> str:
    return _KEPT_OR_VARIED.sub(lambda found: found["kept"] or "…", _text(failure))


def _text(failure: Failure) -> str:
    """Return what is known of a failure: of one without an error, its outcome and the reason."""
    reason = f" ({failure.reason.replace('_', ' ')})" if failure.reason else ""
    return error_summary(failure.error) or f"{failure.outcome}{reason}"


def _grouped(alike: Sequence[Failure]) -> Cause:
    newest = max(alike, key=lambda one: one.at)
    return Cause(
        text=_text(newest),
        count=len(alike),
        first=min(one.at for one in alike),
        last=newest.at,
        names=sorted({one.name for one in alike}),
        sample=newest,
    )


def _late(backlog: Iterable[Backlog]) -> list[Backlog]:
    late = (one for one in backlog if one.oldest > LATE)
    return sorted(late, key=lambda one: one.oldest, reverse=True)
