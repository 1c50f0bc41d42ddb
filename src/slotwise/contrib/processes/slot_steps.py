"""What a process does next about a slot of the schedule that it is to run. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from slotwise.spi import Facts, Key, Outcome, Row, RowState, SlotState, instant_text


@dataclass(frozen=True, slots=True)
class Take:
    """Claim this row."""

    key: Key


@dataclass(frozen=True, slots=True)
class Stay:
    """Look again when it is ``until``, or after a pause; ``why`` is told once."""

    why: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """Others finish the slot, which is in this state, or nobody does."""

    why: str
    state: str


@dataclass(frozen=True, slots=True)
class Over:
    """The ledger has the slot's end."""


Step: TypeAlias = Take | Stay | Leave | Over


def next_step(found: Facts, *, me: str, waits: bool) -> Step | None:
    """Return what to do about a slot; None: the job's row has passed it, and the ledger does not
    have it. Pure.

    ``me`` is this process as a holder. Without ``waits``, only a slot that can start now is taken.
    """
    row = found.row
    if found.is_over:
        return Over()
    if found.paused is not None:
        return Leave(f"{found.paused}; it starts no slot", RowState.PAUSED)
    if row is None:
        return None
    if row.picked:
        return _while_held(found, row, me=me, waits=waits)
    return _while_waiting(found, row, waits=waits)


def _while_held(found: Facts, row: Row, *, me: str, waits: bool) -> Step:
    what = "it is"
    if row.slot is not None and row.slot != found.slot:
        what = f"slot {instant_text(row.slot)} is"
    held = f"{what} held by {row.picked_by}"
    if row.picked_by == me:
        return Stay(
            held
        )  # the reply to the claim was lost: the next heartbeat hands it back
    left = _others(found, held, Outcome.RUNNING, waits=waits)
    return left or Stay(f"{held}, and no worker is live: waiting")


def _while_waiting(found: Facts, row: Row, *, waits: bool) -> Step:
    if row.state is None and row.execution_time <= found.now:
        return Take(row.key)
    if row.state == RowState.DELETED:
        return Leave("the job was deleted", RowState.DELETED)
    if row.attempt:
        why = f"attempt {row.attempt + 1} is due at {instant_text(row.execution_time)}"
        left = _others(found, why, SlotState.WAITING, waits=waits)
        return left or Stay(
            f"{why}, and no worker is live: waiting", row.execution_time
        )
    why = (
        f"it is due at {instant_text(row.due)}"
        if row.state is None
        else f"it is {row.state}"
    )
    return Stay(f"{why}: waiting", row.due) if waits else Leave(why, SlotState.WAITING)


def _others(found: Facts, why: str, state: StrEnum, *, waits: bool) -> Leave | None:
    if found.obstacle is None:
        return Leave(f"{why}, and a live worker can finish it", state)
    return None if waits else Leave(f"{why}; not waiting", state)
