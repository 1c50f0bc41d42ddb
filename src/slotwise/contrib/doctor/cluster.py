"""Conditions of jobs, calendars, tasks and workers, from the reads. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from slotwise.contrib.doctor.findings import Finding, Limits, Severity
from slotwise.inspect import Health, JobInfo, Pause, WorkerInfo
from slotwise.spi import ListedState


def drifting(workers: Iterable[WorkerInfo], limits: Limits) -> Iterator[Finding]:
    for one in workers:
        if one.live and one.skew is not None and abs(one.skew) >= limits.drift:
            yield Finding(
                check="clock_drift",
                severity=Severity.WARNING,
                evidence=f"the clock of {one.host} (worker {one.worker}) differs from the "
                f"database's by {one.skew.total_seconds():+.1f} s",
                cure="synchronize the host's clock, by chrony or systemd-timesyncd; slots "
                "go by the database's",
            )


_IDLE = (ListedState.DISABLED, ListedState.INSTANCES, ListedState.PAUSED)


def never_succeeded(
    jobs: Iterable[JobInfo], now: datetime, limits: Limits
) -> Iterator[Finding]:
    """Of jobs that have tried, or were deployed long ago."""
    for one in jobs:
        is_old = one.deployed is not None and one.deployed < now - limits.never
        has_tried = one.last_failure is not None
        is_fine = one.last_success is not None or one.state in _IDLE
        if is_fine or not (is_old or has_tried):
            continue
        if not has_tried and one.due is not None and one.due > now:
            continue
        tried = f"; its last failure was at {one.last_failure}" if has_tried else ""
        yield Finding(
            check="never_succeeded",
            severity=Severity.WARNING,
            evidence=f"job {one.job} has never succeeded{tried}",
            cure=f"see: slotwise explain {one.job}",
        )


def forgotten_pauses(
    pauses: Iterable[Pause], now: datetime, limits: Limits
) -> Iterator[Finding]:
    """Of jobs, and names of one-time tasks, that nobody has resumed for long. A pause that ends by
    itself is not forgotten, nor is that of an instance.
    """
    since = {
        one.job: one.since
        for one in pauses
        if one.job is not None and one.id is None and one.until is None
    }
    for name, at in sorted(since.items()):
        if at < now - limits.forgotten:
            yield Finding(
                check="forgotten_pause",
                severity=Severity.WARNING,
                evidence=f"{name} has been paused since {at.isoformat()}",
                cure=f"resume it (slotwise resume {name}), or delete it",
            )


def ending_calendars(ended: Mapping[str, int]) -> Iterator[Finding]:
    for name, year in sorted(ended.items()):
        yield Finding(
            check="calendar_ends",
            severity=Severity.WARNING,
            evidence=f"the days of calendar {name} end with {year}; later days count as "
            "business days",
            cure=f"add the days of the next years: slotwise calendar add {name}",
        )


def unknown_tasks(found: Health) -> Iterator[Finding]:
    names = sorted({*found.orphan_tasks, *found.unknown_jobs})
    if names:
        told = ", ".join(names[:10]) + (" …" if len(names) > 10 else "")
        due = (
            "1 of their rows is"
            if found.orphans == 1
            else f"{found.orphans} of their rows are"
        )
        yield Finding(
            check="unknown_tasks",
            severity=Severity.WARNING,
            evidence=f"no live worker knows {told}; {due} due",
            cure="start a worker that registers them, or delete them: slotwise delete NAME, "
            "slotwise tasks cancel NAME",
        )


def fleet(
    workers: Iterable[WorkerInfo],
    used: int | None,
    most: int | None,
    per_worker: int,
    limits: Limits,
) -> Iterator[Finding]:
    """Of connections: those in use, and those that all live workers may open together."""
    if used is None or most is None:
        return
    live = sum(one.live for one in workers)
    for count, what in (
        (used, "are in use"),
        (live * per_worker, f"{live} workers may open, {per_worker} each"),
    ):
        if count >= limits.connections * most:
            yield Finding(
                check="connections",
                severity=Severity.ERROR if count >= most else Severity.WARNING,
                evidence=f"{count} of {most} connections {what}",
                cure="raise max_connections, put a pooler in between, or run fewer workers with "
                "more threads",
            )
            return
