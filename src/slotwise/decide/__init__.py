"""Every decision, as a pure function: no I/O, no clock, no SQL. "Now" is always the database's, and given.

The life of a plan row: it waits for ``slot``, due at ``execution_time``; ``next_slot`` is the one after. While
``next_slot`` lies in the future the slot is on time; else slots were missed and ``at_claim`` says which one runs.
``at_finish`` says what a held row becomes, also where its holder fell silent. Slots only move forward, by schedule
arithmetic.
"""

from __future__ import annotations

from slotwise.decide.claim import (
    PLACE_PAUSE,
    Advance,
    Start,
    ahead,
    anew,
    at_claim,
    beside,
    given_up,
    is_weighed,
    past,
    skipped,
    started,
    was_handed_back,
)  # fmt: skip
from slotwise.decide.ending import (
    UNREADABLE,
    UNREADABLE_PAUSE,
    at_finish,
    at_finish_unread,
    defer,
    moved,
    postponed,
    removed,
)  # fmt: skip

__all__ = [
    "PLACE_PAUSE",
    "UNREADABLE",
    "UNREADABLE_PAUSE",
    "Advance",
    "Start",
    "ahead",
    "anew",
    "at_claim",
    "at_finish",
    "at_finish_unread",
    "beside",
    "defer",
    "given_up",
    "is_weighed",
    "moved",
    "past",
    "postponed",
    "removed",
    "skipped",
    "started",
    "was_handed_back",
]
