"""Schedules in the words of other schedulers: what they are called here, and which of ours they
would read otherwise.

The core refuses a text of another notation. It finds ``hint`` as an entry point of
``slotwise.schedule_hints``, and appends what that returns to its message.
"""

from __future__ import annotations

from slotwise.contrib.notations.hints import hint
from slotwise.contrib.notations.readings import other_readings

__all__ = ["hint", "other_readings"]
