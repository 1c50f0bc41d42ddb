"""Extend slotwise: listeners and gates, the port to a database, a worker inside a host, plug-ins.

What is here is for authors of integrations, dialects and commands. Our own integrations use
nothing else of the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise.model.exports import late

if TYPE_CHECKING:
    from slotwise.model.durations import format_duration, parse_duration
    from slotwise.model.events import Event
    from slotwise.model.vocabulary import (
        Kind,
        Origin,
        Outcome,
        Reason,
        State,
        register_reason,
    )
    from slotwise.payload.payload import register_codec
    from slotwise.schedules.zones import zone_named

_HOMES = {
    # listeners
    "slotwise.model.events": ("Event",),
    # words
    "slotwise.model.vocabulary": (
        "Kind",
        "Origin",
        "Outcome",
        "Reason",
        "State",
        "register_reason",
    ),
    # durations and time zones
    "slotwise.model.durations": ("format_duration", "parse_duration"),
    "slotwise.schedules.zones": ("zone_named",),
    # codecs
    "slotwise.payload.payload": ("register_codec",),
}
__all__ = [
    "Event",
    "Kind",
    "Origin",
    "Outcome",
    "Reason",
    "State",
    "format_duration",
    "parse_duration",
    "register_codec",
    "register_reason",
    "zone_named",
]


if not TYPE_CHECKING:
    __getattr__ = late(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
