"""Two schedules compared: which slots a change removes, adds and keeps."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from slotwise.errors import ConfigurationError
from slotwise.schedules.base import Disabled, Schedule, first_beyond
from slotwise.schedules.combinators import AnyOf, Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleComparison:
    """The slots after ``start`` up to and including ``end`` that a change of a schedule removes,
    adds and keeps.
    """

    before: Schedule
    after: Schedule
    start: datetime
    end: datetime
    removed: int
    added: int
    kept: int

    def differences(self) -> Iterator[tuple[datetime, Literal["-", "+"]]]:
        """Yield the slots that are removed (``-``) and added (``+``), in order."""
        both = _both(self.before, self.after)
        gone = first_beyond(self.after, both, self.start, self.end)
        come = first_beyond(self.before, both, self.start, self.end)
        while gone is not None or come is not None:
            if gone is not None and (come is None or gone < come):
                yield gone, "-"
                gone = first_beyond(self.after, both, gone, self.end)
            elif come is not None:
                yield come, "+"
                come = first_beyond(self.before, both, come, self.end)


def compare_schedules(
    before: Schedule, after: Schedule, start: datetime, end: datetime
) -> ScheduleComparison:
    """Compare the slots that run, after ``start`` up to and including ``end``, without iterating
    over them.

    A spread moves no slot. Raise ConfigurationError for FixedDelay, whose slots are unknown before
    its runs have ended.
    """
    before = _slots_of(before)
    after = _slots_of(after)
    both = _both(before, after).count_between(start, end)
    had = before.count_between(start, end)
    has = after.count_between(start, end)
    return ScheduleComparison(
        before=before,
        after=after,
        start=start,
        end=end,
        removed=both - has,
        added=both - had,
        kept=had + has - both,
    )


def _slots_of(schedule: Schedule) -> Schedule:
    running = schedule.running
    if running.from_end:
        raise ConfigurationError(
            f"{schedule}: its slots are unknown before its runs have ended, so they cannot be "
            f"compared; see what it means: slotwise schedule explain {shlex.quote(str(schedule))}"
        )
    return running.schedule if isinstance(running, Spread) else running


def _both(before: Schedule, after: Schedule) -> Schedule:
    """The slots of both; a disabled schedule has none."""
    if before == after:
        return before
    return AnyOf(*(one for one in (before, after) if one != Disabled()))
