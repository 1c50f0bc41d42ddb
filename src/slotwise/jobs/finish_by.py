"""By when the runs of a job should have ended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from slotwise.errors import InvalidJob, located
from slotwise.model.durations import parse_duration

#: Of so many runs, the newest, the forecast is made; from so few that lasted long enough on.
RUNS: Final = 200
FEW: Final = 20
_CLOCK: Final = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class FinishBy:
    """A time of day in the zone of the job (``"06:00"``: the first one after the slot), or a
    duration after the slot; and the ``risk`` from which a slot is reported that may miss it.
    """

    by: str | timedelta
    risk: float = 0.5

    def __post_init__(self) -> None:
        """Raises InvalidJob."""
        if self._clock is None and self._after() <= timedelta(0):
            raise InvalidJob(f"{self.by!r}: expected more than zero")

    @property
    def _clock(self) -> time | None:
        found = _CLOCK.fullmatch(self.by) if isinstance(self.by, str) else None
        return time(int(found[1]), int(found[2])) if found else None

    def _after(self) -> timedelta:
        with located('write "06:00" or a duration', InvalidJob):
            return parse_duration(self.by)

    def deadline(self, slot: datetime, zone: ZoneInfo) -> datetime:
        """Return by when the run of a slot should have ended."""
        clock = self._clock
        if clock is None:
            return slot + self._after()
        day = slot.astimezone(zone).date()
        found = datetime.combine(day, clock, zone).astimezone(UTC)
        if found <= slot:
            found = datetime.combine(day + _DAY, clock, zone).astimezone(UTC)
        return found

    def document(self) -> dict[str, object]:
        """Return what a job's row keeps of it."""
        by = self.by if isinstance(self.by, str) else f"{self.by.total_seconds():g}s"
        return {"by": by, "risk": self.risk}

    @classmethod
    def read(cls, found: object) -> FinishBy | None:
        """Return what a row keeps; None for what is malformed, or missing."""
        try:
            return cls(found["by"], found["risk"])  # type: ignore[index]
        except (InvalidJob, TypeError, LookupError):
            return None


def share_at_risk(
    durations: Sequence[timedelta], elapsed: timedelta, left: timedelta
) -> tuple[float, int] | None:
    """Return which share of earlier runs would end after ``left`` from now, of those that lasted at
    least ``elapsed``, as long as this run already has; and how many these are.

    None if they are fewer than ``FEW``. A run with nothing left has missed its time.
    """
    alike = [one for one in durations[:RUNS] if one >= elapsed]
    if left < timedelta(0):
        return 1.0, len(alike)
    if len(alike) < FEW:
        return None
    return sum(one > elapsed + left for one in alike) / len(alike), len(alike)
