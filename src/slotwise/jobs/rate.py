"""How many of a task may start in which time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from slotwise.errors import InvalidSetting
from slotwise.model.durations import parse_duration

#: How far a rate may reach back.
LONGEST_WINDOW = timedelta(days=366)
SHORTEST_WINDOW = timedelta(milliseconds=100)

_RATE = re.compile(r"\s*([0-9]{1,9})\s*/\s*(.*?)\s*")


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``count`` starts within any ``window``, in the whole cluster."""

    count: int
    window: timedelta

    @classmethod
    def read(cls, text: str) -> Rate:
        """``"100/m"``, ``"5/s"``, ``"1000/24h"``: a number and how long a time. Raises InvalidSetting."""
        match = _RATE.fullmatch(text)
        count, span = match.groups() if match else ("0", "")
        if not int(count) or not span:
            raise InvalidSetting(f'{text!r:.60} is no rate; write how many in which time: "100/m", "5/s", "1000/24h"')
        try:
            window = parse_duration(span if span[0].isdigit() or span.startswith("P") else f"1{span}")
        except InvalidSetting:
            raise InvalidSetting(
                f'{text!r:.60}: {span!r:.40} is no length of time; write "100/m", "5/s", "1000/24h"'
            ) from None
        if not SHORTEST_WINDOW <= window <= LONGEST_WINDOW:
            raise InvalidSetting(f"{text!r:.60}: the time must be from 100ms to {LONGEST_WINDOW.days}d")
        return cls(int(count), window)

    @property
    def grain(self) -> timedelta:
        """How finely starts are told apart: a place comes back at most so much late."""
        return max(self.window / 100, timedelta(milliseconds=1))
