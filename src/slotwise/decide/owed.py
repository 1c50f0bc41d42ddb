"""Which slots a stored row still owes."""

from __future__ import annotations

from slotwise.model.records import Row
from slotwise.schedules import Disabled, Once, Schedule
from slotwise.schedules.text import readable


def owed_by(row: Row) -> Schedule:
    """The schedule of a row's text; of one that nobody can read no more is known than the slot that it waits for."""
    return readable(row.schedule) or (Disabled() if row.slot is None else Once(row.slot))
