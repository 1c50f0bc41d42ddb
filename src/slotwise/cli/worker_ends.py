"""Which workers have ended lately, and what was lost with them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from slotwise.cli.shared.terminal import moment
from slotwise.contrib.tick.tick import REASON
from slotwise.contrib.wording import counted
from slotwise.inspect import RECURRING, Failure, Inspection, WorkerLife
from slotwise.spi import Outcome, WorkerState

#: How long ago a worker may have ended that is still told, and the attempts searched for it.
_PAST = timedelta(days=1)
_MOST_ATTEMPTS = 1_000
#: Runs that are named of a worker.
_MOST_RUNS = 5


def worker_ends(
    inspect: Inspection, now: datetime, count: int | None, zone: ZoneInfo
) -> list[str]:
    """Return a line for each worker that has ended lately: when, why, and what was lost."""
    since = now - _PAST
    lives = [one for one in inspect.worker_lives(since, now) if one.ended is not None]
    ticks = [one for one in lives if _is_tick(one)]
    ended = [one for one in lives if not _is_tick(one)][:count]
    return [*_told_ends(inspect, since, ended, zone), *_told_ticks(ticks, zone)]


def _is_tick(life: WorkerLife) -> bool:
    """Whether it ended as ``slotwise tick`` ends, which may come each minute."""
    return life.outcome != WorkerState.GONE and life.reason == REASON


def _told_ticks(ticks: Sequence[WorkerLife], zone: ZoneInfo) -> list[str]:
    if not ticks:
        return []
    last = max(one.ended for one in ticks if one.ended is not None)
    count = counted(len(ticks), "tick")
    return [f"{count} within the last day, the last one at {moment(last, zone)}"]


def _told_ends(
    inspect: Inspection, since: datetime, ended: Sequence[WorkerLife], zone: ZoneInfo
) -> list[str]:
    if not any(one.outcome == WorkerState.GONE for one in ended):
        return [_end(one, [], zone) for one in ended]
    failed = inspect.failures(since, attempts=True, limit=_MOST_ATTEMPTS)
    lost = [one for one in failed if one.outcome == Outcome.LOST]
    return [
        _end(one, [each for each in lost if each.worker == one.worker], zone)
        for one in ended
    ]


def _end(life: WorkerLife, lost: Sequence[Failure], zone: ZoneInfo) -> str:
    at = moment(life.ended, zone)
    if life.outcome != WorkerState.GONE:
        why = f" ({life.reason})" if life.reason else ""
        return f"{life.worker} signed out at {at}{why}"
    began = f"; it was draining ({life.reason})" if life.reason else ""
    told = f"{life.worker} is gone, last seen at {at}{began}"
    if not lost:
        return f"{told}; no lost run is recorded"
    names = ", ".join(_lost_run(one, zone) for one in lost[:_MOST_RUNS])
    more = len(lost) - _MOST_RUNS
    return f"{told}; lost: {names}{f' and {more} more' if more > 0 else ''}"


def _lost_run(one: Failure, zone: ZoneInfo) -> str:
    name = one.name if one.id == RECURRING else f"{one.name} {one.id}"
    return name if one.slot is None else f"{name} {moment(one.slot, zone)}"
