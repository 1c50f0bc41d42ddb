"""What a handler may raise to say itself how its attempt ends."""

from __future__ import annotations

from datetime import timedelta

from slotwise.jobs.signatures import told
from slotwise.model.durations import format_duration, parse_duration


class Steering(Exception):
    """A handler steers its own slot; not an error."""


class Snooze(Steering):
    """Run this slot again after ``duration`` (``timedelta`` or ``"10m"``); no failure, and no try of ``retry``.

    The slot stays the same; slots that come due meanwhile are the overlap policy's. A job with
    ``on_lost="give_up"`` starts a slot once, so there it fails. Raises InvalidSetting for a wrong duration.

    >>> Snooze("90s")
    Snooze(duration='90s')
    """

    @told("Snooze")
    def __init__(self, duration: timedelta | str) -> None:
        self.duration = parse_duration(duration)
        super().__init__(f"again in {format_duration(self.duration)}")

    def __repr__(self) -> str:
        return f"Snooze(duration={format_duration(self.duration)!r})"


class Cancel(Steering):
    """End this slot as cancelled, with a reason for the ledger; the schedule goes on. A one-time task is gone then."""

    @told("Cancel")
    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Fail(Steering):
    """End this slot as failed, without another attempt, whatever ``retry`` says."""

    @told("Fail")
    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)
