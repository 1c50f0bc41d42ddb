"""Rows that go back to wait, as before their claim or for another time."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from slotwise.decide.row_columns import again
from slotwise.decide.tuning import NEWER_PAUSE, UNREADABLE_PAUSE
from slotwise.model.records import FOREVER, Record, Row, Transition
from slotwise.model.vocabulary import Outcome, Reason, Release, RowState

#: How the error of a row begins that this release cannot read, and of one that a newer release has
#: written.
UNREADABLE = "unreadable: "
NEWER = "waits for a newer worker: "


def hand_back(row: Row, reason: str | None) -> Transition:
    """Return a row to how it was before its claim: the same slot and due time, the attempt not
    counted.

    The ledger keeps the slot of a detached row: if that row is lost, no plan row comes back to it.
    """
    row = without_attempt(row)
    forget = row.attempt == 0 and not row.is_detached
    record = Record(
        outcome=Outcome.CLAIMED,
        reason=reason,
        attempts=row.attempt,
        final=False,
        forget=forget,
    )
    return Transition(
        label=Release.HANDED_BACK, row=again(row, row.execution_time), record=record
    )


def refuse(row: Row, now: datetime, flaw: str) -> Transition:
    """A claimed row that must not run goes back: a job's comes up again in a minute, a task is
    dead.
    """
    flaw = (flaw if flaw.startswith(NEWER) else f"{UNREADABLE}{flaw}").replace(
        "\0", "\\0"
    )
    back = defer(row, now + UNREADABLE_PAUSE, Reason.UNREADABLE, flaw)
    if row.has_slot:
        return back
    dead = {
        "state": RowState.DEAD,
        "execution_time": FOREVER,
        "parked_due": row.execution_time,
        "last_error": flaw,
    }
    return Transition(label=Outcome.DEAD, row={**(back.row or {}), **dead})


def left_alone(row: Row, now: datetime, error: str) -> Transition:
    """The row goes back to wait for a newer worker. It comes up again the later the longer it has
    waited, so that rows that no live worker can read cost little.
    """
    pause = min(max((now - (row.slot or row.due)) / 2, NEWER_PAUSE), UNREADABLE_PAUSE)
    return replace(
        defer(row, now + pause, Reason.NEWER, f"{NEWER}{error}"),
        label=Release.HANDED_BACK,
    )


def defer(
    row: Row, due: datetime, reason: str | None = None, error: str | None = None
) -> Transition:
    """Return a claimed row, due again at ``due``: a gate delays its start, or this release cannot
    read it.
    """
    back = hand_back(row, reason)
    assert back.row is not None
    columns = {**back.row, **moved(row, row.wanted_due or due), "last_error": error}
    return replace(back, label=Release.POSTPONED, row=columns)


def moved(row: Row, due: datetime) -> dict[str, datetime | None]:
    """Return the columns of a waiting row that is due at another time; it still holds its job, if
    it did.
    """
    before = row.due
    since = row.unheld_since
    if since is not None and since >= before:
        since += due - before
    return {"execution_time": due, "unheld_since": since}


def without_attempt(row: Row) -> Row:
    """Return the row without this claim's attempt, which is not counted."""
    return replace(row, attempt=max(row.attempt - 1, 0))
