"""What the tables say about everything that an alarm may be raised for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from slotwise.inspect import (
    Backlog,
    Failure,
    FinishForecast,
    Health,
    Inspection,
    SinceSuccess,
    Trouble,
)

#: The newest failures that one round reads.
MOST_FAILURES: Final = 1_000
#: With more than these, the newest of each name.
MOST_OF_NAME: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The cluster at one instant, as far as alarms need it."""

    health: Health
    #: Failed slots, in no order.
    failures: Sequence[Failure] = ()
    #: Of all jobs, and tasks with recurring instances, that have further slots.
    since_success: Mapping[str, SinceSuccess] = field(default_factory=dict)
    backlog: Sequence[Backlog] = ()
    troubles: Mapping[str, Trouble] = field(default_factory=dict)
    #: Of the due slots of jobs with ``finish_by``.
    forecasts: Sequence[FinishForecast] = ()

    @property
    def failing(self) -> set[str]:
        """Return the names with a failure since the last success."""
        return {name for name, trouble in self.troubles.items() if trouble.failing}

    @property
    def now(self) -> datetime:
        return self.health.now


def observe(inspect: Inspection, since: datetime) -> Observation:
    """Read all of it. ``since``: when the oldest failure ended that is not known yet.

    Race: the reads are no snapshot. A job that fails between two of them is found by the next
    round; an incident opens or closes at most one round late.
    """
    health = inspect.health()
    since_success = inspect.since_success()
    troubles = {one.name: one for one in inspect.troubles()}
    return Observation(
        health=health,
        failures=_failures(inspect, since, {*since_success, *troubles}),
        since_success=since_success,
        backlog=inspect.backlog(),
        troubles=troubles,
        forecasts=inspect.finish_forecasts(),
    )


def _failures(
    inspect: Inspection, since: datetime, names: Iterable[str]
) -> list[Failure]:
    """Return the newest failures. If there are too many, those of each name are read by
    themselves: a flood of failed tasks or retries hides no failed slot of another job.
    """
    found = inspect.failures(since, limit=MOST_FAILURES)
    if len(found) < MOST_FAILURES:
        return found
    known = {(one.name, one.id, one.slot, one.at) for one in found}
    for name in sorted(names):
        of_name = inspect.failures(since, name=name, limit=MOST_OF_NAME)
        found += [
            one for one in of_name if (one.name, one.id, one.slot, one.at) not in known
        ]
    return found
