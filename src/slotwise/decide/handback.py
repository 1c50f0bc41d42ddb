"""Rows that go back as if they had never been claimed, and some that come up again later."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from slotwise.decide.columns import again
from slotwise.decide.hold import moved
from slotwise.model.records import Record, Row, Transition
from slotwise.model.vocabulary import Outcome, Reason, Release

#: When a row that cannot be read here comes up again.
UNREADABLE_PAUSE = timedelta(minutes=1)
#: How the error of such a row begins; who looks after the cluster counts those.
UNREADABLE = "unreadable: "


def hand_back(row: Row, reason: str) -> Transition:
    """As if it had never been claimed: same slot, same due time, the attempt not counted.

    The ledger keeps a slot that has a row of its own: no plan row comes back to it, should that row be gone one day
    (the queue was restored alone).
    """
    attempt = max(row.attempt - 1, 0)
    forget = attempt == 0 and not row.is_detached
    return Transition(
        label=Release.HANDED_BACK,
        row=again(row, row.execution_time, attempt=attempt),
        record=Record(outcome=Outcome.CLAIMED, reason=reason, attempts=attempt, final=False, forget=forget),
    )


def defer(row: Row, due: datetime) -> Transition:
    """Return what becomes of a claimed row whose slot a gate lets start later."""
    return _later(row, hand_back(row, Reason.RECOVERY), due)


def postponed(row: Row, now: datetime, error: str) -> Transition:
    """A claimed row that this worker cannot read goes back, and comes up again later; it says why."""
    return _later(row, hand_back(row, Reason.UNREADABLE), now + UNREADABLE_PAUSE, last_error=error)


def _later(row: Row, back: Transition, due: datetime, **columns: Any) -> Transition:
    assert back.row is not None
    return replace(back, label=Release.POSTPONED, row={**back.row, **moved(row, row.wanted_due or due), **columns})
