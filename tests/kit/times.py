"""What schedules are computed with, below the public names.

Tests import inner names from here: a module that moves is named in one place.
"""

from __future__ import annotations

from slotwise import schedules
from slotwise.schedules import spread_out, succeed, zones
from slotwise.schedules.base import BEGINNING, DAY, END, SECOND, due_at, slot_after
from slotwise.schedules.zones import changes_between, span_at

__all__ = [
    "BEGINNING",
    "DAY",
    "END",
    "SECOND",
    "changes_between",
    "due_at",
    "schedules",
    "slot_after",
    "span_at",
    "spread_out",
    "succeed",
    "zones",
]
