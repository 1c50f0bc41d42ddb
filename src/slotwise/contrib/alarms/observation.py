"""What the tables say about everything that an alarm may be raised for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The cluster at one instant, as far as alarms need it."""

    health: Health
    #: Failed slots, the newest first.
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
    return Observation(
        health=inspect.health(),
        failures=inspect.failures(since, limit=MOST_FAILURES),
        since_success=inspect.since_success(),
        backlog=inspect.backlog(),
        troubles={one.name: one for one in inspect.troubles()},
        forecasts=inspect.finish_forecasts(),
    )
