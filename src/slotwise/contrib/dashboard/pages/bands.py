"""What concerns all rows of the timeline: outages, deploys, pauses, and changes of the clocks."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import groupby
from typing import Final

from slotwise.contrib.dashboard.drawing import Axis, Band
from slotwise.contrib.dashboard.reading import Reading
from slotwise.inspect import AuditEntry, DeployInfo, WorkerLife

_MOST_ENTRIES: Final = 500
#: Deploys of these many seconds are one.
_ONE_DEPLOY: Final = 60


def bands_of(reading: Reading, axis: Axis) -> list[Band]:
    """Read what happened to the cluster in a window, in the order of its beginning."""
    inspect = reading.inspect
    pauses = reading.lines("pauses", lambda: inspect.audit(limit=_MOST_ENTRIES))
    lives = reading.lines("outages", lambda: inspect.worker_lives(axis.start, axis.end))
    deploys = reading.lines("deploys", lambda: inspect.deploys(axis.start, axis.end))
    found = [
        *axis.clock_changes(),
        *pauses_of(pauses, reading.now),
        *outages_of(lives, reading.now),
        *deploys_of(deploys),
    ]
    seen = [one for one in found if one.end >= axis.start and one.start < axis.end]
    return sorted(seen, key=lambda one: one.start)


def pauses_of(entries: Iterable[AuditEntry], now: datetime) -> list[Band]:
    """Return the pauses of everything; ``entries`` of the audit, the newest first."""
    bands = list[Band]()
    since: AuditEntry | None = None
    for entry in reversed(list(entries)):
        if entry.job is not None:
            continue
        if entry.operation == "pause":
            since = since or entry
        elif entry.operation == "resume" and since is not None:
            bands.append(_pause(since, entry.at))
            since = None
    if since is not None:
        bands.append(_pause(since, now))
    return bands


def _pause(entry: AuditEntry, end: datetime) -> Band:
    said = f": {entry.note}" if entry.note else ""
    title = f"everything was paused by {entry.author}{said}"
    return Band(kind="pause", start=entry.at, end=end, title=title)


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


def deploys_of(deploys: Iterable[DeployInfo]) -> list[Band]:
    """Return a band for each minute in which deploys have changed schedules."""
    ordered = sorted(deploys, key=lambda one: one.at)
    bands = list[Band]()
    for _, group in groupby(ordered, key=lambda one: one.at.timestamp() // _ONE_DEPLOY):
        together = list(group)
        first = together[0]
        by = f" by the deploy {first.revision}" if first.revision else ""
        what = f"{first.job} from {first.former or 'nothing'} to {first.schedule}"
        if len(together) > 1:
            what = f"{len(together):,} schedules"
        title = f"planned{by}: {what}"
        bands.append(
            Band(kind="deploy", start=first.at, end=together[-1].at, title=title)
        )
    return bands
