"""Handlers that run for longer than their ``warn_after``: since when, and how long they usually
take.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from slotwise.contrib.dashboard.reading import Reading
from slotwise.inspect import RECURRING, Health, Rate, SlotInfo
from slotwise.spi import Outcome, pasteable

#: Names that are searched for slow runs, and runs of each.
_MOST_NAMES: Final = 20
_MOST_RUNS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRun:
    """A run on a worker that reports a slow handler. ``usual`` and ``at_most`` are the median and
    the 95th percentile of the last week's runs; ``id``, ``slot`` and ``started`` are None of a
    one-time task.
    """

    name: str
    worker: str
    id: str | None = None
    slot: datetime | None = None
    started: datetime | None = None
    elapsed: timedelta | None = None
    usual: timedelta | None = None
    at_most: timedelta | None = None
    warn_after: timedelta | None = None

    @property
    def is_long(self) -> bool:
        """Whether this run, as far as is known, is the one that the worker reports."""
        bound = self.warn_after or self.at_most
        return self.elapsed is not None and (bound is None or self.elapsed > bound)

    @property
    def stack(self) -> str:
        """The command that shows where the handler is."""
        words = ["slotwise", "workers", "stack", self.name]
        if self.id not in (None, RECURRING):
            words += ["--id", str(self.id)]
        return pasteable(shlex.join(words))


def slow_runs(reading: Reading, health: object) -> list[SlowRun]:
    """Return the runs that workers report as slow, the longest first.

    A worker reports that a handler is slow, not which one. Where none of its runs is known to be
    long, all are returned.
    """
    if not isinstance(health, Health) or not health.slow:
        return []
    named = {name for names in health.slow.values() for name in names}
    runs = _runs(reading, sorted(named)[:_MOST_NAMES])
    found = list[SlowRun]()
    for worker, names in health.slow.items():
        found += _of_worker(worker, names, runs)
    return sorted(found, key=_longest_first)


def _of_worker(
    worker: str, names: Iterable[str], runs: Iterable[SlowRun]
) -> list[SlowRun]:
    mine = [one for one in runs if one.worker == worker]
    long = [one for one in mine if one.is_long]
    others = set(names).difference(one.name for one in mine)
    return long or mine + [SlowRun(name=name, worker=worker) for name in others]


def _runs(reading: Reading, names: Sequence[str]) -> list[SlowRun]:
    """Return the runs of the jobs among these names."""
    rates = reading.inspect.rates_of(names)
    found = list[SlowRun]()
    for name in names:
        pending = reading.inspect.pending(name, limit=_MOST_RUNS)
        running = [one for one in pending if one.outcome == Outcome.RUNNING]
        found += [_run(reading, name, one, rates[name].week) for one in running]
    return found


def _run(reading: Reading, name: str, one: SlotInfo, week: Rate) -> SlowRun:
    return SlowRun(
        name=name,
        worker=one.worker or "",
        id=one.id,
        slot=one.slot,
        started=one.started,
        elapsed=reading.now - (one.started or reading.now),
        usual=week.duration_p50,
        at_most=week.duration_p95,
        warn_after=_warn_after(reading, name),
    )


def _warn_after(reading: Reading, name: str) -> timedelta | None:
    definition = reading.source.definition(name)
    return None if definition is None else definition.warn_after


def _longest_first(one: SlowRun) -> tuple[timedelta, str]:
    return -(one.elapsed or timedelta(0)), one.name
