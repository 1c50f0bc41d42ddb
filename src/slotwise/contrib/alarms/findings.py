"""What is wrong, from one observation: pure, so that tables of cases prove it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from slotwise.contrib.alarms.observation import Observation
from slotwise.contrib.alarms.rules import AlarmKind, RuleBook, Rules
from slotwise.contrib.wording import counted
from slotwise.inspect import Backlog, Failure
from slotwise.spi import Outcome, Reason, error_summary, format_duration

_SECOND: Final = timedelta(seconds=1)
#: How old a failure may be that was followed by a success.
NEWS: Final = timedelta(hours=1)
#: Ledger rows with these reasons run again.
_GOES_ON: Final = frozenset({Reason.RETRY, Reason.RERUN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong.

    ``at`` is the newest evidence: only evidence that is newer than that of the last incident opens
    another one. What is measured at each round has its time as evidence.
    """

    kind: AlarmKind
    name: str
    summary: str
    at: datetime

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.name


def findings(seen: Observation, rules: RuleBook) -> list[Finding]:
    """Return all that is wrong, at most one finding of each kind and name."""
    found = [*_of_slots(seen), *_of_troubles(seen, rules), *_of_times(seen, rules)]
    found += [*_of_forecasts(seen), *_of_cluster(seen)]
    return [one for one in found if rules.of(one.name).raises(one.kind)]


def _of_slots(seen: Observation) -> Iterator[Finding]:
    """Yield the newest failed and the newest lost slot of each job.

    An old one of a job that has succeeded since is no news.
    """
    found = set[tuple[str, str]]()
    news = seen.now - NEWS
    for failure in sorted(seen.failures, key=lambda one: one.at, reverse=True):
        if failure.slot is None or failure.reason in _GOES_ON:
            continue
        is_lost = failure.outcome == Outcome.LOST
        kind = AlarmKind.LOST if is_lost else AlarmKind.FAILED
        is_news = failure.at > news or failure.name in seen.failing
        if is_news and (kind, failure.name) not in found:
            found.add((kind, failure.name))
            yield _of_slot(kind, failure)


def _of_slot(kind: AlarmKind, failure: Failure) -> Finding:
    assert failure.slot is not None
    slot = failure.slot.isoformat(timespec="seconds")
    why = error_summary(failure.error) or failure.reason or ""
    summary = f"{failure.name}: the slot {slot} ended as {failure.outcome}"
    return Finding(
        kind=kind,
        name=failure.name,
        summary=f"{summary}: {why}" if why else summary,
        at=failure.at,
    )


def _of_troubles(seen: Observation, rules: RuleBook) -> Iterator[Finding]:
    for name, trouble in seen.troubles.items():
        most = rules.of(name).in_a_row
        if most is not None and trouble.in_a_row >= most:
            summary = f"{name} has failed {counted(trouble.in_a_row, 'time')} in a row"
            if trouble.failing > 1:
                summary += f"; {trouble.failing} of its instances fail"
            yield Finding(
                kind=AlarmKind.IN_A_ROW, name=name, summary=summary, at=seen.now
            )
        if trouble.dead:
            summary = f"{name} has {counted(trouble.dead, 'dead row')}, which no worker retries"
            yield Finding(kind=AlarmKind.DEAD, name=name, summary=summary, at=seen.now)


def _of_times(seen: Observation, rules: RuleBook) -> Iterator[Finding]:
    """Yield successes that are overdue, and what has waited too long for a worker."""
    for name, success in seen.since_success.items():
        if _exceeds(success.overdue, rules.of(name).no_success_after):
            summary = (
                f"{name} has not succeeded since a slot that was due "
                f"{_rounded(success.overdue)} ago"
            )
            yield Finding(
                kind=AlarmKind.NO_SUCCESS, name=name, summary=summary, at=seen.now
            )
    for backlog in seen.backlog:
        is_recurring = backlog.name in seen.since_success
        kind = AlarmKind.LATE if is_recurring else AlarmKind.BACKLOG
        if _exceeds(backlog.oldest, _patience(kind, rules.of(backlog.name))):
            yield _waits(kind, backlog, seen.now)


def _patience(kind: AlarmKind, rules: Rules) -> timedelta | str | None:
    return rules.late_after if kind is AlarmKind.LATE else rules.backlog_after


def _waits(kind: AlarmKind, backlog: Backlog, now: datetime) -> Finding:
    what = "slots" if kind is AlarmKind.LATE else "tasks"
    summary = (
        f"{backlog.name}: the oldest of {backlog.waiting} due {what} has waited for "
        f"{_rounded(backlog.oldest)}"
    )
    return Finding(kind=kind, name=backlog.name, summary=summary, at=now)


def _of_cluster(seen: Observation) -> Iterator[Finding]:
    health = seen.health
    if not health.live_workers and (seen.since_success or seen.backlog):
        yield Finding(
            kind=AlarmKind.NO_WORKER,
            name="",
            summary="no worker is alive: nothing runs",
            at=seen.now,
        )
    for name, why in _unroutable(seen).items():
        summary = f"{name} is due, and no live worker can run it: {why}"
        yield Finding(
            kind=AlarmKind.UNROUTABLE, name=name, summary=summary, at=seen.now
        )
    for name, year in health.ended_calendars.items():
        yield Finding(
            kind=AlarmKind.CALENDAR,
            name=name,
            summary=f"the calendar {name} lists no days after {year}",
            at=seen.now,
        )


def _unroutable(seen: Observation) -> dict[str, str]:
    unknown = dict.fromkeys(seen.health.orphan_tasks, "its name is unknown to them")
    return {**unknown, **seen.health.unroutable}


def _of_forecasts(seen: Observation) -> Iterator[Finding]:
    """Yield the oldest slot of each job that has missed, or will miss, its ``finish_by``."""
    late = [one for one in seen.forecasts if one.will_miss]
    oldest = {
        one.job: one for one in sorted(late, key=lambda one: one.slot, reverse=True)
    }
    for name, forecast in sorted(oldest.items()):
        slot = forecast.slot.isoformat(timespec="seconds")
        end = forecast.finish_by.isoformat(timespec="seconds")
        summary = (
            f"{name}: the slot {slot} will miss its finish_by {end}, as "
            f"{forecast.share:.0%} of {forecast.runs} earlier runs would"
        )
        if forecast.finish_by <= seen.now:
            summary = f"{name}: the slot {slot} has missed its finish_by {end}"
        yield Finding(
            kind=AlarmKind.FINISH_BY, name=name, summary=summary, at=seen.now
        )


def _exceeds(span: timedelta, limit: timedelta | str | None) -> bool:
    return isinstance(limit, timedelta) and span > limit


def _rounded(span: timedelta) -> str:
    return format_duration(span - span % _SECOND)
