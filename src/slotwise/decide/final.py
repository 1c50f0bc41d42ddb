"""The end of a slot: its plan row moves on, a detached row goes, a one-time task goes or stays as dead."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from slotwise.decide.columns import carried, waiting
from slotwise.decide.hold import Ending, is_catching_up, newest_come
from slotwise.decide.slot_choice import around, choose_missed, choose_overlapped, passed_over, span
from slotwise.model.records import FOREVER, TICK, Gap, Record, Row, Transition
from slotwise.model.vocabulary import Origin, Outcome, Reason, State
from slotwise.schedules import Schedule

_Waiting = tuple[dict[str, Any], tuple[Gap, ...]]


def final(
    row: Row,
    ending: Ending,
    outcome: Outcome,
    *,
    reason: str | None = None,
    error: str | None = None,
    lost: int = 0,
) -> Transition:
    """The slot has ended: a plan row moves on, a detached row goes, a task goes or stays as dead."""
    record = Record(outcome=outcome, reason=reason, error=error, attempts=row.attempt, lost=lost)
    if row.is_detached:
        return Transition(label=outcome, row=None, record=record)
    if not row.is_plan or ending.schedule is None:
        return _end_task(row, ending.now, outcome, error, record)
    base = max(row.slot or ending.held_until, row.watermark or row.slot or ending.held_until)
    columns, gaps = _onward(row, ending, ending.schedule, base)
    columns["execution_time"] = ending.spaced(columns["execution_time"])
    return Transition(
        label=outcome,
        row={**columns, **counters(row, outcome, ending.now), "last_error": error},
        record=record,
        gaps=gaps,
    )


def _onward(row: Row, ending: Ending, schedule: Schedule, base: datetime) -> _Waiting:
    """What a plan row waits for after ``base``, and which slots that have come will not run."""
    if schedule.from_end:
        following = schedule.settled(base).next_after(max(ending.now, base))
        return waiting(row, schedule, following, watermark=base), ()
    if is_catching_up(row, ending.definition):
        return _tail(row, ending, schedule, base)
    return _overlapped(row, ending, schedule, base)


def _tail(row: Row, ending: Ending, schedule: Schedule, base: datetime) -> _Waiting:
    """The next slot of the tail that may still start. After the last one: what came due meanwhile is a new tail if the
    last run was shorter than the interval, for then the job gains on its schedule. Else it is overlap's.
    """
    catch_up, late, due = ending.definition.catch_up, tuple[Gap, ...](), ending.spaced(ending.now)
    if catch_up.pace is not None and ending.began is not None:  # None: called off before it started
        due = max(due, ending.began + catch_up.pace)
    slot, until = schedule.running.next_after(base), row.catch_up_until
    newest = newest_come(schedule, until or base, ending.now)
    if newest is not None and newest + schedule.wait(newest) > ending.held_until + ending.poll:
        until = newest  # it came after the handler's end, and this settlement had to wait
    if slot is not None and until is not None and slot <= until:
        then = due + ending.poll - schedule.wait(slot)
        choice = choose_missed(catch_up, ending.definition.start_within, schedule.running, slot, then, until)
        if choice.slot is not None:
            return _of_tail(row, ending, schedule, base, due, until), ()
        late = around(schedule, passed_over(schedule, base + TICK, choice.watermark), choice.gaps)
        base = choice.watermark
    newest, following = newest_come(schedule, base, ending.now), schedule.settled(base).next_after(base)
    took = ending.held_until - (ending.began or ending.held_until)
    if newest is not None and following is not None and took < following - base:
        return _of_tail(row, ending, schedule, base, due, newest_come(schedule, base, due) or newest), late
    columns, gaps = _overlapped(row, ending, schedule, base)
    return columns, (*late, *gaps)


def _of_tail(
    row: Row, ending: Ending, schedule: Schedule, base: datetime, due: datetime, until: datetime
) -> dict[str, Any]:
    columns = waiting(row, schedule, schedule.settled(base).next_after(base), watermark=base)
    return {**columns, "origin": Origin.CATCH_UP, "catch_up_until": until, **ending.waiting(row, due)}


def _overlapped(row: Row, ending: Ending, schedule: Schedule, base: datetime) -> _Waiting:
    """Overlap decides about the slots that came due while the job was held; what it keeps runs first."""
    until = (row.unheld_since or ending.held_until) - schedule.wait(base)
    choice = choose_overlapped(ending.definition.overlap, schedule.running, base, until)
    gaps = around(schedule, passed_over(schedule, base + TICK, choice.slot or choice.watermark), choice.gaps)
    base = choice.watermark
    if choice.slot is None:
        return waiting(row, schedule, schedule.settled(base).next_after(base), watermark=base), gaps
    columns = waiting(row, schedule, choice.slot, watermark=base)
    return {**columns, **ending.waiting(row, max(columns["execution_time"], ending.now))}, gaps


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
        case Outcome.CANCELLED | Outcome.SKIPPED:
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
