"""Slots of schedules that a deploy has replaced since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from slotwise import SlotwiseError, parse_schedule
from slotwise.inspect import DeployInfo, ScheduleSpan, SlotWindow

_MOST: Final = 1_000
_MOMENT: Final = timedelta(microseconds=1)


def as_planned(
    window: SlotWindow, deploys: Iterable[DeployInfo], start: datetime
) -> SlotWindow:
    """Return a window from ``start`` on, whose slots before a deploy are those of the schedule that
    it replaced.
    """
    mine = (one for one in deploys if (one.job, one.id) == (window.job, window.id))
    changes = sorted(mine, key=lambda one: one.at)
    if not changes:
        return window
    expected = list[datetime]()
    since = start - _MOMENT
    for one in changes:
        if one.former is not None:
            expected += islice(_slots(one.former, since, one.at), _MOST)
        since = one.at
    expected += (slot for slot in window.expected if slot > since)
    return replace(window, expected=tuple(expected))


def was_planned(slot: datetime, id: str, spans: Sequence[ScheduleSpan]) -> bool:
    """Whether the schedule that a job or instance had at that time has this slot."""
    return any(
        slot in _slots(span.schedule, slot - _MOMENT, slot)
        for span in spans
        if span.id == id and span.since < slot <= span.until
    )


def _slots(text: str, after: datetime, until: datetime) -> Iterator[datetime]:
    """Yield the slots of a schedule; none of one that cannot be read, or whose slots are decided by
    the end of its runs.
    """
    try:
        schedule = parse_schedule(text)
    except SlotwiseError:
        return iter(())
    return iter(()) if schedule.from_end else schedule.slots(after, until)
