"""Events of a worker and their listeners.

Tests import inner names from here: a module that moves is named in one place.
"""

from __future__ import annotations

from slotwise.model import events
from slotwise.model.events import (
    Claimed,
    ClaimSuspect,
    DatabaseBack,
    HandlerEnded,
    HandlerHangs,
    HandlerSlow,
    Listener,
    Listeners,
    Planned,
    PollBegan,
    SettledDead,
    SettleSent,
    about,
)

__all__ = [
    "ClaimSuspect",
    "Claimed",
    "DatabaseBack",
    "HandlerEnded",
    "HandlerHangs",
    "HandlerSlow",
    "Listener",
    "Listeners",
    "Planned",
    "PollBegan",
    "SettleSent",
    "SettledDead",
    "about",
    "events",
]
