"""Since when a success of a job is overdue, by its own schedule."""

from __future__ import annotations

from datetime import datetime

from slotwise.schedules import Schedule


def overdue_since(
    schedule: Schedule | None,
    *,
    since: datetime,
    is_failing: bool,
    undecided: datetime | None,
    skipped: datetime | None,
    now: datetime,
) -> datetime | None:
    """Return the first slot that should have succeeded and has not; None if there is none.

    ``since`` is the last success, or the planning of a job that never succeeded. ``undecided`` is
    the oldest slot that has not ended, and ``skipped`` the oldest since then that was skipped
    although nobody requested that: slots of a pause, or of a former schedule, are not expected.
    If the job is failing, its schedule says which slot failed first.
    """
    expected = [one for one in (undecided, skipped) if one is not None]
    if is_failing and schedule is not None:
        failed = schedule.next_after(since)
        expected += [] if failed is None else [failed]
    first = min(expected, default=now)
    return first if first < now else None
