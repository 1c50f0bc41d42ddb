"""What others read: hints for a text that is no schedule, and notations. Found by entry points."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, TypeAlias

from slotwise.errors import InvalidSchedule

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from slotwise.schedules.base import Schedule

    #: Makes a schedule of an expression and a zone. Raises InvalidSchedule.
    Notation: TypeAlias = Callable[[str, str | ZoneInfo], Schedule]

GROUP: Final = "slotwise.schedule_hints"
NOTATIONS: Final = "slotwise.schedule_notations"


#: Whether a hint is being looked for: those who give hints make schedules, too.
_looking: Final = ContextVar("looking", default=False)


def hinted(error: InvalidSchedule, text: str, tz: str) -> InvalidSchedule:
    """Return the error, with what to write if the text is of another scheduler."""
    if _looking.get():
        return error
    token = _looking.set(True)
    try:
        hint = next(filter(None, (read(text, tz) for read in _readers())), None)
    finally:
        _looking.reset(token)
    if hint is None:
        return error
    found = InvalidSchedule(f"{error}; {hint}")
    found.may_be_newer = error.may_be_newer
    return found


@cache
def _readers() -> tuple[Callable[[str, str], str | None], ...]:
    return tuple(entry.load() for entry in entry_points(group=GROUP))


@cache
def notation(name: str) -> Notation:
    """Return what reads the expressions of another scheduler."""
    (entry,) = entry_points(group=NOTATIONS, name=name)
    read: Notation = entry.load()
    return read
