"""What concerns all rows of the timeline: outages, deploys, pauses, and changes of the clocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Final

from slotwise.contrib.dashboard.drawing import Axis, Band
from slotwise.contrib.dashboard.reading import Reading
from slotwise.inspect import (
    AuditEntry,
    DeployInfo,
    Pause,
    WorkerLife,
    describe_schedule,
)

_MOST_ENTRIES: Final = 500
_MOST_LIVES: Final = 2_000
#: Deploys of these many seconds are one.
_ONE_DEPLOY: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Bands:
    """What happened in a window: to all rows, and the pauses of single jobs."""

    of_all: Sequence[Band]
    of_jobs: Mapping[str, Sequence[Band]]
    deploys: Sequence[DeployInfo] = ()


def bands_of(reading: Reading, axis: Axis) -> Bands:
    """Read what happened to the cluster in a window, in the order of its beginning."""
    inspect = reading.inspect
    entries = reading.lines("pauses", lambda: inspect.audit(limit=_MOST_ENTRIES))
    present = reading.lines("pauses", inspect.pauses)
    lives = reading.lines(
        "outages",
        lambda: inspect.worker_lives(axis.start, axis.end, limit=_MOST_LIVES),
    )
    deploys = reading.lines(
        "deploys", lambda: inspect.deploys(axis.start, axis.end, limit=_MOST_ENTRIES)
    )
    pauses = pauses_of(entries, present, reading.now)
    found = [
        *axis.clock_changes(),
        *pauses.pop(None, ()),
        *outages_of(lives, reading.now),
        *deploys_of(deploys),
    ]
    seen = [one for one in found if one.end >= axis.start and one.start < axis.end]
    named = {job: bands for job, bands in pauses.items() if job is not None}
    ordered = sorted(seen, key=lambda one: one.start)
    return Bands(of_all=ordered, of_jobs=named, deploys=deploys)


def pauses_of(
    entries: Iterable[AuditEntry], present: Iterable[Pause], now: datetime
) -> dict[str | None, list[Band]]:
    """Return the pauses by job, those of everything under None; ``entries`` of the audit, the
    newest first, and the pauses that there are now, which may end later.
    """
    ends = {one.job: one.until for one in present if one.until is not None}
    bands = defaultdict[str | None, list[Band]](list)
    since = dict[str | None, AuditEntry]()
    for entry in reversed(list(entries)):
        if entry.operation == "pause":
            since.setdefault(entry.job, entry)
        elif entry.operation == "resume" and entry.job in since:
            bands[entry.job].append(_pause(since.pop(entry.job), entry.at))
    for job, entry in since.items():
        bands[job].append(_pause(entry, max(now, ends.get(job, now))))
    return dict(bands)


def _pause(entry: AuditEntry, end: datetime) -> Band:
    said = f": {entry.note}" if entry.note else ""
    has_end = "until" in entry.arguments
    what = "maintenance" if has_end else "pause"
    whom = "everything" if entry.job is None else entry.job
    title = (
        f"{whom} was paused by {entry.author}{' for a time' if has_end else ''}{said}"
    )
    return Band(kind=what, start=entry.at, end=end, title=title)


def outages_of(lives: Iterable[WorkerLife], now: datetime) -> list[Band]:
    """Return the times, up to now, between the end of the last worker and the next start."""
    bands = list[Band]()
    alive_until: datetime | None = None
    for life in sorted(lives, key=lambda one: one.started):
        if alive_until is not None and life.started > alive_until:
            bands.append(_outage(alive_until, life.started))
        end = now if life.ended is None else life.ended
        alive_until = end if alive_until is None else max(alive_until, end)
    if alive_until is not None and alive_until < now:
        bands.append(_outage(alive_until, now))
    return bands


def _outage(start: datetime, end: datetime) -> Band:
    return Band(kind="outage", start=start, end=end, title="no worker was alive")


def _change(deploy: DeployInfo) -> str:
    former = describe_schedule(deploy.former) if deploy.former else "nothing"
    return f"{deploy.job} from {former} to {describe_schedule(deploy.schedule)}"


def deploys_of(deploys: Iterable[DeployInfo]) -> list[Band]:
    """Return a band for each minute in which deploys have changed schedules."""
    ordered = sorted(deploys, key=lambda one: one.at)
    bands = list[Band]()
    for _, group in groupby(
        ordered, key=lambda one: one.at.timestamp() // _ONE_DEPLOY
    ):
        together = list(group)
        first = together[0]
        by = f" by the deploy {first.revision}" if first.revision else ""
        what = f"{len(together):,} schedules"
        if len(together) == 1:
            what = _change(first)
        title = f"planned{by}: {what}"
        bands.append(
            Band(kind="deploy", start=first.at, end=together[-1].at, title=title)
        )
    return bands
