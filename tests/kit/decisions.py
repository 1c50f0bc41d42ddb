"""The decisions: pure functions from a row to what becomes of it.

Tests import inner names from here: a module that moves is named in one place.
"""

from __future__ import annotations

from slotwise.decide import (
    claim,
    deletion,
    ending,
    going_back,
    pause,
    slot_choice,
)
from slotwise.decide.ending import Ending, at_finish
from slotwise.decide.slot_choice import (
    Choice,
    around,
    choose_missed,
    choose_overlapped,
    passed_over,
)

__all__ = [
    "Choice",
    "Ending",
    "around",
    "at_finish",
    "choose_missed",
    "choose_overlapped",
    "claim",
    "deletion",
    "ending",
    "going_back",
    "passed_over",
    "pause",
    "slot_choice",
]
