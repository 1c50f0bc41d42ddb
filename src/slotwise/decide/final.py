"""The end of a slot: its plan row moves on, a detached row goes, a one-time task goes or stays as dead."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from slotwise.decide.absence import newest_missed
from slotwise.decide.columns import carried, catching_up, is_catching_up, missed_among, overlapped, waiting
from slotwise.decide.slot_choice import span
from slotwise.jobs.definition import Definition
from slotwise.model.records import FOREVER, TICK, Gap, LedgerEntry, Record, Row, Transition
from slotwise.model.vocabulary import Outcome, Reason, State
from slotwise.schedules import Schedule


def final(
    row: Row,
    definition: Definition,
    schedule: Schedule | None,
    now: datetime,
    held_until: datetime,
    outcome: Outcome,
    *,
    reason: str | None = None,
    error: str | None = None,
    lost: int = 0,
    ledger: LedgerEntry | None = None,
) -> Transition:
    """The slot has ended: a plan row moves on, a detached row goes, a task goes or stays as dead."""
    record = Record(outcome=outcome, reason=reason, error=error, attempts=row.attempt, lost=lost)
    if row.is_detached:
        return Transition(label=outcome, row=None, record=record)
    if not row.is_plan or schedule is None:
        return _end_task(row, now, outcome, error, record)
    base = max(row.slot or held_until, row.watermark or row.slot or held_until)
    columns, gaps = _onward(row, definition, schedule, base, now, held_until, ledger)
    return Transition(
        label=outcome,
        row={**columns, **counters(row, outcome, now), "last_error": error},
        record=record,
        gaps=gaps,
    )


def _onward(
    row: Row,
    definition: Definition,
    schedule: Schedule,
    base: datetime,
    now: datetime,
    held_until: datetime,
    ledger: LedgerEntry | None,
) -> tuple[dict[str, Any], tuple[Gap, ...]]:
    """What a plan row waits for after ``base``, and which slots that came due meanwhile will not run."""
    if schedule.from_end:
        following = schedule.settled(base).next_after(max(now, base))
        return waiting(row, schedule, following, watermark=base), ()
    newest = newest_missed(row, schedule, base)
    if is_catching_up(row, definition):
        row = replace(row, catch_up_until=max(row.catch_up_until or base, newest or base))
        began = ledger.started if ledger else now
        if (columns := catching_up(row, definition, schedule, base, now, began, held_until)) is not None:
            return columns, ()
    elif newest is not None:
        return missed_among(row, definition, schedule, base, newest, held_until)
    return overlapped(row, definition, schedule, base, held_until - schedule.wait(base))


def _end_task(row: Row, now: datetime, outcome: Outcome, error: str | None, record: Record) -> Transition:
    """A one-time task leaves when it succeeded; otherwise it stays as dead, parked, with the reason."""
    if outcome == Outcome.SUCCEEDED:
        return Transition(label=outcome, row=None, ended=record)
    parked = {"state": State.DEAD, "execution_time": FOREVER, "parked_due": row.execution_time}
    parked["last_error"] = error or record.reason or outcome
    return Transition(
        label=Outcome.DEAD,
        row={**carried(row), **counters(row, outcome, now), **parked},
        ended=record,
    )


def counters(row: Row, outcome: Outcome, now: datetime) -> dict[str, Any]:
    match outcome:
        case Outcome.SUCCEEDED:
            return {"consecutive_failures": 0, "last_success": now}
        case Outcome.CANCELLED:
            return {}
        case _:
            return {"consecutive_failures": row.consecutive_failures + 1, "last_failure": now}


def removed(row: Row, schedule: Schedule | None, transition: Transition, now: datetime) -> Transition:
    """A row that was deleted while it was held goes now; what it would have waited for, and has come, is skipped."""
    columns, record = transition.row, transition.record
    if row.state != State.DELETED or columns is None:
        return transition
    if record is not None and (record.forget or not record.final):
        record = replace(record, outcome=Outcome.CANCELLED, reason=Reason.DELETED, final=True, forget=False)
    gaps, slot = transition.gaps, columns["slot"]
    if schedule is not None and slot is not None and slot <= now and slot != row.slot and not schedule.from_end:
        gaps = (*gaps, span(schedule, slot, schedule.latest_before(now + TICK, floor=slot) or slot, Reason.DELETED))
    return replace(transition, row=None, record=record, gaps=gaps)
