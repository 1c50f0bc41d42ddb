"""What a handler may raise to decide how its own slot continues."""

from __future__ import annotations

from datetime import timedelta

from slotwise.model.durations import format_duration, parse_duration


class Steering(Exception):
    """Raised by a handler to decide how its own slot continues; not an error."""


class Snooze(Steering):
    """Run this slot again after ``duration`` (``timedelta`` or ``"10m"``); this is not a failure.

    The slot stays the same; overlap decides about slots that come due meanwhile. A job with
    ``on_lost="give_up"`` starts a slot once, so there it fails. Raises InvalidSetting for a wrong
    duration.

    >>> Snooze("90s")
    Snooze(duration='90s')
    """

    def __init__(self, duration: timedelta | str) -> None:
        self.duration = parse_duration(duration)
        super().__init__(f"again in {format_duration(self.duration)}")

    def __repr__(self) -> str:
        return f"Snooze(duration={format_duration(self.duration)!r})"


class Resume(Snooze):
    """Run this slot again at once, on a worker that does not drain; this is not a failure.

    A handler raises it when ``ctx.stopping`` or ``ctx.check`` asks it to stop, after a
    ``ctx.checkpoint``: the next start continues from there. No attempt counts against ``retry`` or
    ``max_lost``. After ``slotwise cancel`` the slot ends as cancelled. A job with
    ``on_lost="give_up"`` starts a slot once, so there it fails.
    """

    def __init__(self) -> None:
        self.duration = timedelta(0)
        Steering.__init__(self, "again at once")

    def __repr__(self) -> str:
        return "Resume()"


class _WithReason(Steering):
    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Cancel(_WithReason):
    """End this slot as cancelled, with a reason for the ledger; the schedule continues. A one-time
    task is removed.
    """


class Skip(_WithReason):
    """End this slot as skipped before its handler starts, with a reason for the ledger. No attempt
    is counted.

    ``detail`` is a sentence for people, for example who holds a lock; ``slotwise explain`` prints
    it. A ``before_start`` hook raises it. The schedule continues; a one-time task is removed.
    Raised by a handler, which has started by then, it ends the slot as cancelled with this reason.
    """

    def __init__(self, reason: str, detail: str | None = None) -> None:
        super().__init__(reason)
        self.detail = detail


class Fail(_WithReason):
    """End this slot as failed, without another attempt, whatever ``retry`` says."""
