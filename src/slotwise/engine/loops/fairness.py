"""Whose turn it is: the order in which one-time tasks are claimed, so that none keeps another waiting."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from slotwise.engine.run.active_claims import ActiveClaims
from slotwise.jobs.definition import Definition
from slotwise.model.clock import Stopwatch
from slotwise.model.records import Claim

#: How soon to ask again for a place that somebody else may have left, or that comes back with time.
FULL_PAUSE = timedelta(milliseconds=250)
LEAST_PAUSE = timedelta(milliseconds=100)


@dataclass(slots=True)
class _Limited:
    """A task of which only so many may run, or start. Where there was no place, it rests for so many seconds."""

    pause: float
    rests_until: float = 0.0
    held: Sequence[Claim] = ()


class Fairness:
    """Whoever was served goes to the end of the line: a row waits for one claim of each task that floods, at most.

    The tasks without a limit are one in that line, with an order of their own: one statement claims them.
    Each with a limit is claimed by itself.
    """

    def __init__(self, tasks: Iterable[Definition], active_claims: ActiveClaims, elapsed: Stopwatch) -> None:
        limited = [found for found in tasks if found.is_limited]
        self.tasks = [found.name for found in tasks if not found.is_limited]
        self.limited = {found.name: _Limited(_pause(found).total_seconds()) for found in limited}
        self._line: list[str | None] = [None, *self.limited]
        self._active_claims = active_claims
        self._elapsed = elapsed

    @property
    def shortest_pause(self) -> timedelta:
        return timedelta(seconds=min(one.pause for one in self.limited.values()))

    def line(self) -> Sequence[str | None]:
        """Tasks with a limit by name, all others together as None; first whoever has waited for the longest time."""
        return tuple(self._line)

    def awake(self) -> list[str]:
        """The tasks with a limit that do not rest. An end of a claim of our own wakes its task: it leaves a place."""
        now, held = self._elapsed(), self._active_claims
        return [
            name
            for name, one in self.limited.items()
            if now >= one.rests_until or any(claim not in held for claim in one.held)
        ]

    def rest(self, name: str) -> None:
        """Rows of it are due, and there was no place for them."""
        one = self.limited[name]
        one.held = [holding.claim for holding in self._active_claims if holding.claim.row.task_name == name]
        one.rests_until = self._elapsed() + one.pause

    def served(self, turn: str | None, names: Collection[str] = ()) -> None:
        """Rows were claimed in this turn, of these tasks."""
        if len(self._line) > 1:
            self._line.remove(turn)
            self._line.append(turn)
        if len(self.tasks) > 1:
            self.tasks.sort(key=names.__contains__)  # it keeps the order of those that are alike


def _pause(task: Definition) -> timedelta:
    rate = task.max_starts
    return FULL_PAUSE if rate is None else max(min(FULL_PAUSE, rate.window / rate.count), LEAST_PAUSE)
