"""What becomes of a row that was deleted while it was held."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from slotwise.decide.slot_choice import span
from slotwise.model.records import TICK, Gap, Row, Transition
from slotwise.model.vocabulary import Outcome, Reason, RowState
from slotwise.schedules import Schedule


def removed(
    row: Row, schedule: Schedule | None, transition: Transition, now: datetime
) -> Transition:
    """Delete a row that was deleted while it was held; slots that have come due since are
    skipped.
    """
    columns = transition.row
    record = transition.record
    if row.state != RowState.DELETED or columns is None:
        return transition
    if record is not None and (record.forget or not record.final):
        record = replace(
            record,
            outcome=Outcome.CANCELLED,
            reason=Reason.DELETED,
            final=True,
            forget=False,
        )
    gaps = transition.gaps
    slot = columns["slot"]
    if schedule is not None and slot is not None and slot != row.slot:
        gaps = (*gaps, *_come_by(schedule, slot, now))
    return replace(transition, row=None, record=record, gaps=gaps)


def _come_by(schedule: Schedule, slot: datetime, now: datetime) -> tuple[Gap, ...]:
    """Return the slots from ``slot`` to now as deleted."""
    if slot > now or schedule.from_end:
        return ()
    last = schedule.latest_before(now + TICK, floor=slot) or slot
    return (span(schedule, slot, last, Reason.DELETED),)
