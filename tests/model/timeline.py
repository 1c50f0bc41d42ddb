"""The slots of a schedule, found by asking each second whether it is one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from slotwise import AnyOf, Disabled, Every, FixedDelay, Once, Schedule

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
#: How far ahead slots are looked for. Scripts end long before.
AHEAD = timedelta(hours=2)

Fires = Callable[[datetime], bool]


@dataclass(frozen=True)
class Times:
    """A schedule, and a predicate that says the same of each second. ``delay`` is that of a
    ``FixedDelay``.
    """

    schedule: Schedule
    fires: Fires
    delay: timedelta | None = None

    def __repr__(self) -> str:
        return f"<{self.schedule}>"

    def shortest_interval(self) -> timedelta | None:
        """Return the shortest time between two slots, as far as ``AHEAD`` shows it."""
        slots = [
            t
            for t in (EPOCH + n * SECOND for n in range(AHEAD // SECOND))
            if self.fires(t)
        ]
        return min((later - slot for slot, later in pairwise(slots)), default=None)


def every(seconds: int, offset: int = 0) -> Times:
    def fires(t: datetime) -> bool:
        return (t - EPOCH) // SECOND % seconds == offset

    return Times(
        Every(timedelta(seconds=seconds), anchor=EPOCH + offset * SECOND), fires
    )


def either(one: Times, other: Times) -> Times:
    return Times(
        AnyOf(one.schedule, other.schedule), lambda t: one.fires(t) or other.fires(t)
    )


def once(at: datetime) -> Times:
    return Times(Once(at), lambda t: t == at)


def never() -> Times:
    return Times(Disabled(), lambda t: False)


def after_the_end(seconds: int) -> Times:
    delay = timedelta(seconds=seconds)
    return Times(FixedDelay(delay), lambda t: False, delay)


@dataclass
class Timeline:
    """The slots of a job whose schedule may change: up to each change those of the old one, then
    those of the new.
    """

    begin: datetime
    times: Times
    _found: list[datetime] = field(default_factory=list)
    _looked: datetime = field(init=False)
    #: The newest schedule is valid from here on, and ``former`` was before it.
    changed: datetime = EPOCH
    former: Times = field(default_factory=never)

    def __post_init__(self) -> None:
        self._looked = self.begin.replace(microsecond=0)

    def is_one_change(self, at: datetime) -> bool:
        """Whether a change at ``at`` and the one before count as one: neither schedule has a slot
        between them.
        """
        if self.changed == EPOCH:
            return False
        t = self.changed.replace(microsecond=0)
        while t <= at:
            if t >= self.changed and (self.former.fires(t) or self.times.fires(t)):
                return False
            t += SECOND
        return True

    def change(self, at: datetime, times: Times) -> None:
        """From after ``at`` on, the slots are those of ``times``."""
        if not self.is_one_change(at):
            self.former = self.times
        self._look_until(at)
        self._found = [slot for slot in self._found if slot <= at]
        self.changed = at + timedelta(microseconds=1)
        self._looked, self.times = at.replace(microsecond=0), times

    def slots(self, until: datetime) -> list[datetime]:
        """Return all slots after the beginning and up to ``until``, the oldest first."""
        self._look_until(until)
        return self._found[: bisect_right(self._found, until)]

    def after(self, t: datetime) -> datetime | None:
        """Return the first slot after ``t``, or None if ``AHEAD`` has none."""
        self._look_until(t + AHEAD)
        later = bisect_right(self._found, t)
        return self._found[later] if later < len(self._found) else None

    def before(self, slot: datetime) -> datetime | None:
        """Return the slot before this one by the job's text: ``former`` up to the newest change,
        ``times`` after it.
        """
        t = slot - SECOND
        while slot - t < AHEAD:
            if (self.former if t < self.changed else self.times).fires(t):
                return t
            t -= SECOND
        return None

    def _look_until(self, t: datetime) -> None:
        while self._looked < t:
            self._looked += SECOND
            if self.times.fires(self._looked):
                self._found.append(self._looked)
