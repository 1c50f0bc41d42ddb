"""What would run: days in seconds, on the kit's own worker, with outages in between. No handler of
a user is called.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import NamedTuple

from slotwise import Calendar, ConfigurationError, JobContext
from slotwise.inspect import SlotInfo
from slotwise.operations import Calendars
from slotwise.spi import (
    Aborted,
    AttemptOutcome,
    Claim,
    Database,
    Definition,
    Event,
    Failed,
    Origin,
    Outcome,
    Reason,
    Succeeded,
    format_duration,
)
from slotwise.testing import ManualClock, ManualWorker

#: Attempts of one forecast; a job of each second has so many in a day and a bit.
LONGEST = 100_000
#: As often as the reaper of a new worker looks, so that it takes over what the outage has left.
_LOOKS = 10
_BLINK = timedelta(seconds=1)


class Outage(NamedTuple):
    """No worker is there from ``start`` on and before ``end``; what runs then dies."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What became of each job's slots, the oldest first. ``until`` is earlier than asked if there
    were too many.
    """

    start: datetime
    until: datetime
    complete: bool
    slots: Mapping[str, Sequence[SlotInfo]]


def forecast(
    definitions: Mapping[str, Definition],
    start: datetime,
    end: datetime,
    *,
    outages: Sequence[Outage] = (),
    takes: Mapping[str, timedelta] | None = None,
    calendars: Sequence[Calendar] = (),
    tell: Callable[[datetime, int], None] = lambda now, attempts: None,
) -> Forecast:
    """Play the jobs from ``start`` to ``end``, planned at ``start``, with one worker of unlimited
    capacity.

    ``tell`` is called at each instant at which something happens, with the number of attempts so
    far.

    ``takes``: how long a run of each job takes (none at all); one that takes longer than its
    timeout fails. ``calendars``: those of the database, for schedules that name them.
    Raises ConfigurationError for outages that overlap or lie outside.
    """
    ordered = _checked(outages, start, end)
    with closing(ManualWorker.database_in_memory()) as database:
        jobs = {name: found for name, found in definitions.items() if found.is_planned}
        return _Play(
            database, jobs, start, end, ordered, takes or {}, calendars, tell
        ).run()


def _checked(
    outages: Sequence[Outage], start: datetime, end: datetime
) -> list[Outage]:
    ordered = sorted(outages)
    before = start
    for outage in ordered:
        if not before <= outage.start < outage.end <= end:
            raise ConfigurationError(
                f"an outage from {outage.start.isoformat()} to "
                f"{outage.end.isoformat()} lies outside "
                f"{start.isoformat()} to {end.isoformat()}, or within another one"
            )
        before = outage.end
    return ordered


class _Quiet:
    """A listener that keeps dead slots of a forecast out of the log."""

    writes_log = True

    def __call__(self, event: Event) -> None:
        """Ignore the event."""


def _instead(calendar: Calendar, before: Calendar | None) -> Calendar:
    """The edit that puts this calendar in the place of any other."""
    return calendar


@dataclass
class _Play:
    _database: Database
    _definitions: Mapping[str, Definition]
    _start: datetime
    _end: datetime
    _outages: list[Outage]
    _takes: Mapping[str, timedelta]
    _calendars: Sequence[Calendar]
    _tell: Callable[[datetime, int], None]

    def __post_init__(self) -> None:
        self._clock = ManualClock(self._start)
        self._number = count()
        self._running: list[tuple[datetime, int, Claim, AttemptOutcome]] = []
        self._looks: list[datetime] = []
        self._attempts = 0
        self._worker: ManualWorker | None = self._make_worker()
        self._inspect = self._worker.inspect
        stored = Calendars(self._worker.store, "forecast")
        for one in self._calendars:
            stored.change(one.name, partial(_instead, one), "forecast")
        self._worker.plan()

    def run(self) -> Forecast:
        while self._clock.now() < self._end and self._attempts < LONGEST:
            self._step()
            self._tell(self._clock.now(), self._attempts)
            self._clock.tick(min(self._next(), self._end) - self._clock.now())
        self._step()
        return self._result()

    def _result(self) -> Forecast:
        now = self._clock.now()
        slots = {
            name: self._inspect.slots(name, limit=None)[::-1]
            for name in self._definitions
        }
        return Forecast(
            start=self._start, until=now, complete=now >= self._end, slots=slots
        )

    def _make_worker(self) -> ManualWorker:
        tags = frozenset(
            tag for found in self._definitions.values() for tag in found.runs_on
        )
        stubs = [_stub(found) for found in self._definitions.values()]
        worker = ManualWorker(
            stubs, self._database, self._clock, threads=10_000, tags=tags
        )
        worker.listen(_Quiet())
        return worker

    def _step(self) -> None:
        now = self._clock.now()
        if (
            self._worker is not None
            and self._outages
            and self._outages[0].start <= now
        ):
            self._worker.crash()
            self._worker = None
            self._running = []
        if self._outages and self._outages[0].end <= now:
            self._outages.pop(0)
            self._worker = self._make_worker()
            self._worker.plan()
            self._looks = [
                now + number * timedelta(seconds=10) for number in range(_LOOKS)
            ]
        if self._worker is not None:
            self._work(self._worker, now)

    def _work(self, worker: ManualWorker, now: datetime) -> None:
        while self._running and self._running[0][0] <= now:
            _, _, claim, outcome = heapq.heappop(self._running)
            worker.finish(claim, outcome)
        worker.settle()
        if self._looks and self._looks[0] <= now:
            self._looks.pop(0)
            worker.beat()
            worker.reap()
        while claims := worker.poll():
            for claim in claims:
                self._begin(worker, claim, now)
            worker.settle()
        if any(
            found.overlap.mode == "cancel_previous"
            for found in self._definitions.values()
        ):
            self._stop_replaced(worker)

    def _stop_replaced(self, worker: ManualWorker) -> None:
        """What a newer slot has called off ends at once: how long a handler takes to stop is
        not played.
        """
        worker.beat()
        runs = self._running
        self._running = []
        for run in runs:
            if worker.cancel_reason(run[2]) == Reason.OVERLAP:
                worker.finish(run[2], Aborted(Reason.OVERLAP))
            else:
                heapq.heappush(self._running, run)
        worker.settle()

    def _begin(self, worker: ManualWorker, claim: Claim, now: datetime) -> None:
        self._attempts += 1
        took, outcome = self._course(claim)
        if not took:
            worker.finish(claim, outcome)
        elif worker.begin(claim):
            heapq.heappush(
                self._running, (now + took, next(self._number), claim, outcome)
            )

    def _course(self, claim: Claim) -> tuple[timedelta, AttemptOutcome]:
        """How long this run takes, and how it ends."""
        name = claim.row.task_name
        took = self._takes.get(name, timedelta(0))
        timeout = self._definitions[name].timeout
        if timeout is not None and took > timeout:
            return timeout, Failed(f"timed out after {format_duration(timeout)}")
        return took, Succeeded()

    def _next(self) -> datetime:
        now = self._clock.now()
        instants = [running[0] for running in self._running[:1]] + self._looks[:1]
        for outage in self._outages[:1]:
            instants.append(outage.end if self._worker is None else outage.start)
        if self._worker is not None:
            due = self._worker.store.due.next_due(sorted(self._definitions))
            if due is not None:
                instants.append(now + (due if due > timedelta(0) else _BLINK))
        return min(instants, default=self._end)


def _stub(definition: Definition) -> Definition:
    """Return the job without its handler."""

    def nothing(ctx: JobContext) -> None:
        """Return at once, in place of the handler."""

    return replace(definition, handler=nothing, is_async=False, isolation=None)


def remarkable(lines: Sequence[SlotInfo]) -> Iterator[SlotInfo]:
    """What did not run as planned: all but slots of the schedule that succeeded on time."""
    for line in lines:
        on_time = line.started is not None and line.started - line.slot < _BLINK
        if (
            line.outcome != Outcome.SUCCEEDED
            or line.origin != Origin.SCHEDULE
            or not on_time
        ):
            yield line
