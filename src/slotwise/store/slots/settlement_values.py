"""What settling one claim did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from slotwise.model.records import Claim, Row, Transition
from slotwise.model.vocabulary import Outcome

#: Looked up once: Python 3.11 takes long to find a member, and this is asked for each execution.
_SUCCEEDED = Outcome.SUCCEEDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What settling one claim did: a transition, or None because the claim was lost, or the error that stood alone."""

    claim: Claim
    transition: Transition | None = None
    error: Exception | None = None

    @property
    def reason(self) -> str | None:
        """As the ledger has it: ``retry`` or ``rerun`` where another attempt follows."""
        done = self.transition
        record = (done.record or done.ended) if done is not None else None
        return record.reason if record is not None else None

    @property
    def is_usual(self) -> bool:
        """The slot, or the task, succeeded, and no slot was passed over."""
        done = self.transition
        return done is not None and done.label == _SUCCEEDED and not done.gaps


def claim_of(row: Row) -> Claim:
    """The claim under which ``row`` is held, whoever holds it."""
    return Claim(
        row=row,
        holder=row.picked_by or "",
        lease=row.lease or timedelta(0),
        claimed_at=row.last_heartbeat or row.execution_time,
    )
