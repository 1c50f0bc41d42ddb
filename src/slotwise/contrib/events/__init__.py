"""Events: an outbox whose handlers see the events of one key in order.

Imports the hall and its own files.
"""

from __future__ import annotations

from slotwise.contrib.events.events import Events
from slotwise.contrib.events.fan_out import FannedOut
from slotwise.contrib.events.handlers import RETRY, Handler

__all__ = ["RETRY", "Events", "FannedOut", "Handler"]
