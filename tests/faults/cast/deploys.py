"""Another deploy of the same jobs: ``rerun=EVERY|2s`` is the job ``rerun`` with another schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slotwise.schedules import parse_schedule


def edited(known: Mapping[str, type[Any]], spelled: str) -> Any:
    """The job or task of that name, with the schedule that stands after its name, if any."""
    name, _, schedule = spelled.partition("=")
    made = known[name]()
    if schedule:
        made.schedule = parse_schedule(schedule)
    return made
