"""Every decision, as a pure function: no I/O, no clock, no SQL. "Now" is always the database's, and given.

The life of a plan row: it waits for ``slot``, due at ``execution_time``; ``next_slot`` is the one after. While
``next_slot`` lies in the future the slot is on time; else slots were missed and ``at_claim`` says which one runs.
``at_finish`` and ``at_loss`` say what a held row becomes. Slots only move forward, by schedule arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from slotwise.definition import Definition
from slotwise.execution import (
    FOREVER,
    TICK,
    Aborted,
    Cancelled,
    Died,
    Failed,
    Gap,
    HandedBack,
    LedgerEntry,
    Outcome,
    Record,
    Row,
    SlotOutcome,
    Snoozed,
    Succeeded,
    Transition,
)
from slotwise.missed import (
    around,
    choose_missed,
    choose_overlapped,
    due_at,
    passed_over,
    slot_after,
    slots_before,
    span,
)
from slotwise.policies import CatchUp, pause_after_loss
from slotwise.schedules import Disabled, Schedule

#: When a slot looks again whether there is a place for it.
PLACE_PAUSE = timedelta(seconds=1)
#: When a row that cannot be read here comes up again.
UNREADABLE_PAUSE = timedelta(minutes=1)
#: The state of a held row that goes when it is let go.
DELETED = "deleted"
#: How the error of such a row begins; who looks after the cluster counts those.
UNREADABLE = "unreadable: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Run ``slot`` now; ``gaps`` list the missed slots that do not run."""

    slot: datetime
    next_slot: datetime | None
    watermark: datetime
    collapsed: int = 0
    gaps: tuple[Gap, ...] = ()
    until: datetime | None = None
    origin: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """Nothing to run: the row moves on and is let go."""

    row: dict[str, Any]
    gaps: tuple[Gap, ...] = ()


def at_claim(
    row: Row,
    schedule: Schedule,
    now: datetime,
    newest: datetime | None,
    definition: Definition | None = None,
    abreast: int = 0,
) -> Start | Advance:
    """What to do with a claimed plan row whose next slot has already come (or whose slot ran already).

    ``abreast``: how many of its slots run, or wait for their retry, in rows of their own.

    ``newest`` is the newest slot that the ledger and the gaps know: after a restore of the queue alone it
    outranks the row, so that no slot which has started starts again.
    """
    if row.slot is not None:
        now -= schedule.wait(row.slot)  # a slot of a spread schedule has come when it is due
    return _at_claim(row, schedule, now, newest, definition, abreast)


def _at_claim(
    row: Row,
    schedule: Schedule,
    now: datetime,
    newest: datetime | None,
    definition: Definition | None,
    abreast: int,
) -> Start | Advance:
    slot = row.slot
    if slot is None or (newest is not None and slot <= newest):
        slot = None if newest is None else schedule.next_after(newest)
        if slot is None or slot > now:
            return Advance(row=_waiting(row, schedule, slot, watermark=newest))
    if not schedule.runs(slot):
        return _pass_over(row, schedule, slot, now, newest, definition, abreast)
    if definition is not None and definition.overlap.detaches and abreast >= definition.overlap.max:
        return _without_a_place(row, schedule, slot, now, definition)
    catch_up = definition.catch_up if definition else CatchUp.latest()
    within = definition.start_within if definition else None
    if row.catch_up_until is not None:
        return _go_on(row, schedule, slot, now, within)
    choice = choose_missed(catch_up, within, schedule.running, slot, now)
    gaps = around(schedule, passed_over(schedule, slot, choice.watermark), choice.gaps)
    if choice.slot is None:
        following = schedule.next_after(choice.watermark)
        return Advance(row=_waiting(row, schedule, following, watermark=choice.watermark), gaps=gaps)
    was_missed = choice.watermark > slot or choice.until not in (None, slot) or bool(choice.gaps)
    return Start(
        slot=choice.slot,
        next_slot=slot_after(schedule, choice.watermark),
        watermark=choice.watermark,
        collapsed=row.collapsed + choice.collapsed,
        gaps=gaps,
        until=choice.until if was_missed else None,
        origin="catch_up" if was_missed else row.origin,
    )


def _pass_over(
    row: Row,
    schedule: Schedule,
    slot: datetime,
    now: datetime,
    newest: datetime | None,
    definition: Definition | None,
    abreast: int,
) -> Start | Advance:
    """A calendar passes over the slot: it is written down, and what comes after it is decided."""
    running = schedule.running.next_after(slot)
    if running is None or running > now:
        last = schedule.latest_before(now + TICK, floor=slot) or slot
        following = schedule.next_after(last)
        columns = _waiting(row, schedule, following, watermark=last)
        return Advance(row=columns, gaps=(span(schedule, slot, last, "calendar"),))
    last = schedule.latest_before(running, floor=slot) or slot
    decided = _at_claim(replace(row, slot=running), schedule, now, newest, definition, abreast)
    return replace(decided, gaps=(span(schedule, slot, last, "calendar"), *decided.gaps))


def _without_a_place(
    row: Row, schedule: Schedule, slot: datetime, now: datetime, definition: Definition
) -> Start | Advance:
    """Other slots run beside the plan row, as many as may. A slot that catches up waits for them; of those that come
    due during them, the newest waits for the one that has been asked to stop, or none does.
    """
    if row.catch_up_until is not None:
        return Advance(row=_waiting_for_a_place(row, schedule, slot, now))
    newest = schedule.running.latest_before(now + TICK, floor=slot) or slot
    passed = passed_over(schedule, slot, newest)
    if definition.overlap.mode == "allow":
        gaps = around(schedule, passed, (span(schedule.running, slot, newest, "overlap"),))
        return Advance(row=_waiting(row, schedule, schedule.next_after(newest), watermark=newest), gaps=gaps)
    older = around(schedule, passed, slots_before(schedule.running, slot, newest, "overlap"))
    return Advance(row=_waiting_for_a_place(row, schedule, newest, now), gaps=older)


def _waiting_for_a_place(row: Row, schedule: Schedule, slot: datetime, now: datetime) -> dict[str, Any]:
    """A plan row whose slot is due, and looks again in a moment. It has not started: it stands as it stood."""
    as_it_stood = {"origin": row.origin, "collapsed": row.collapsed, "catch_up_until": row.catch_up_until}
    columns = _waiting(row, schedule, slot, watermark=row.watermark)
    return {**columns, **as_it_stood, "execution_time": now + schedule.wait(slot) + PLACE_PAUSE}


def beside(row: Row, schedule: Schedule, definition: Definition, now: datetime) -> dict[str, Any]:
    """The plan row after the slot that it waited for has started in a row of its own."""
    base = row.watermark or row.slot or now
    if row.origin == "catch_up" and row.catch_up_until is not None and definition.catch_up.mode == "all":
        columns = _catching_up(row, definition, schedule, base, now, None)
    else:
        columns = _waiting(row, schedule, schedule.settled(base).next_after(base), watermark=base)
    if definition.min_interval is not None:
        columns["execution_time"] = max(columns["execution_time"], now + definition.min_interval)
    return columns


def _go_on(row: Row, schedule: Schedule, slot: datetime, now: datetime, within: timedelta | None) -> Start | Advance:
    """The next of several slots that run one after another, as was decided when they were first seen."""
    if within is not None and now - slot > within:
        late = span(schedule, slot, slot, "late")
        following = schedule.next_after(slot)
        going_on = _waiting(row, schedule, following, watermark=slot)
        if following is not None and following <= now:
            going_on = {**going_on, "catch_up_until": row.catch_up_until, "origin": row.origin}
        return Advance(row=going_on, gaps=(late,))
    return Start(
        slot=slot,
        next_slot=slot_after(schedule, slot),
        watermark=slot,
        until=row.catch_up_until,
        origin=row.origin,
    )


def at_finish(
    row: Row,
    definition: Definition,
    schedule: Schedule | None,
    outcome: Outcome,
    now: datetime,
    ledger: LedgerEntry | None,
) -> Transition:
    """What a held row becomes when its holder lets it go with ``outcome``."""
    return _apart(_at_finish(row, definition, schedule, outcome, now, ledger), definition, ledger)


def _apart(transition: Transition, definition: Definition, ledger: LedgerEntry | None) -> Transition:
    """Whatever starts next from this row starts at least ``min_interval`` after the attempt that has ended."""
    least, row = definition.min_interval, transition.row
    if least is None or row is None or ledger is None or ledger.started is None or transition.label == "handed-back":
        return transition
    return replace(transition, row={**row, "execution_time": max(row["execution_time"], ledger.started + least)})


def _at_finish(
    row: Row,
    definition: Definition,
    schedule: Schedule | None,
    outcome: Outcome,
    now: datetime,
    ledger: LedgerEntry | None,
) -> Transition:
    if row.cancel_requested is not None:
        row, outcome = _called_off(row, outcome)
    if ledger is not None and ledger.outcome == "succeeded" and ledger.token == row.version:
        outcome = Succeeded()  # complete_in has committed: whatever came after it, the slot is done
    elif isinstance(outcome, Succeeded) and outcome.promised:
        outcome = Failed("complete_in was called, but its transaction was not committed")
    match outcome:
        case Succeeded():
            return _final(row, definition, schedule, now, now, "succeeded", ledger=ledger)
        case Failed():
            return _failed(row, definition, schedule, outcome, now, ledger)
        case Snoozed(duration):
            return _snoozed(row, definition, schedule, duration, now)
        case Cancelled(reason):
            return _final(row, definition, schedule, now, now, "cancelled", reason=reason)
        case HandedBack(reason):
            return _hand_back(row, reason)
        case Aborted(reason):
            return _aborted(row, definition, schedule, reason, now)
        case Died(lease_end):
            return at_loss(row, definition, schedule, lease_end, now, ledger)


def _called_off(row: Row, outcome: Outcome) -> tuple[Row, Outcome]:
    """An operator, or a newer slot, has called the slot off: it ends with this attempt, however that ended."""
    by = row.called_off_by or "operator"
    match outcome:
        case HandedBack():
            return replace(row, attempt=max(row.attempt - 1, 0)), Cancelled(by)
        case Aborted() | Died() | Snoozed():
            return row, Cancelled(by)
        case Failed():
            return row, replace(outcome, final=True)
    return row, outcome


def at_finish_unread(
    row: Row, definition: Definition, outcome: Outcome, now: datetime, ledger: LedgerEntry | None, error: str
) -> Transition:
    """As ``at_finish``, where this worker cannot read the row's schedule: a newer release wrote it, or a zone lacks.

    The slot ends as it would; which one is next is left to a worker that can read it: the row comes up again in a
    minute, and whoever takes it finds in the ledger that this slot has run.
    """
    ended = at_finish(row, definition, Disabled(), outcome, now, ledger)
    if ended.row is None or ended.row["schedule"] == row.schedule:
        return ended  # gone, or once more the same slot: no schedule was asked
    unmoved = {name: _carried(row)[name] for name in ("schedule", "slot", "next_slot", "origin", "collapsed")}
    return replace(
        ended,
        row={**ended.row, **unmoved, "execution_time": now + UNREADABLE_PAUSE, "last_error": error},
    )


def at_loss(
    row: Row,
    definition: Definition,
    schedule: Schedule | None,
    lease_end: datetime,
    now: datetime,
    ledger: LedgerEntry | None,
) -> Transition:
    """What becomes of a row whose holder fell silent."""
    if ledger is not None and ledger.outcome == "succeeded" and ledger.token == row.version:
        return _final(row, definition, schedule, now, now, "succeeded", ledger=ledger)
    if ledger is not None and ledger.outcome == "claimed":
        return _hand_back(row, "lost")  # the mark was never set, so the handler never started
    end = min(lease_end, now)
    lost = row.lost_count + 1
    if definition.gives_up:
        return _final(row, definition, schedule, now, end, "lost", reason="may still be running", lost=1)
    if lost >= definition.max_lost:
        error = f"lost {lost} times with its worker; its handler may be what takes workers down"
        return _final(row, definition, schedule, now, end, "dead", reason="max_lost", error=error, lost=1)
    return Transition(
        label="lost",
        row=_again(row, now + pause_after_loss(lost, row.key), lost_count=lost),
        record=Record(outcome="lost", reason="rerun", lost=1, attempts=row.attempt, final=False),
    )


def _failed(
    row: Row,
    definition: Definition,
    schedule: Schedule | None,
    outcome: Failed,
    now: datetime,
    ledger: LedgerEntry | None,
) -> Transition:
    due = None if outcome.final else _retry_due(row, definition, now, ledger)
    if due is None:
        return _final(row, definition, schedule, now, now, "failed", error=outcome.error, ledger=ledger)
    counters = {
        "consecutive_failures": row.consecutive_failures + 1,
        "last_failure": now,
        "last_error": outcome.error,
    }
    return Transition(
        label="failed",
        row={**_again(row, due), **counters},
        record=Record(outcome="failed", reason="retry", error=outcome.error, attempts=row.attempt, final=False),
    )


def _retry_due(row: Row, definition: Definition, now: datetime, ledger: LedgerEntry | None) -> datetime | None:
    """When the next attempt of a failed slot is due; None if there is none, or the next slot comes first."""
    if definition.retry is None:
        return None
    tries = row.attempt - row.lost_count - (ledger.aborted if ledger else 0)
    delay = definition.retry.delay_after(max(tries, 1), max(now - (row.slot or now), TICK * 0))
    if delay is None:
        return None
    due = now + delay
    if row.next_slot is None or definition.retry.past_next_slot:
        return due
    return None if due >= row.next_slot else due


def _aborted(row: Row, definition: Definition, schedule: Schedule | None, reason: str, now: datetime) -> Transition:
    """Stopped while it ran: by an operator, or a job that gives up, it ends here; any other starts again elsewhere."""
    if definition.gives_up or reason == "operator":
        outcome: SlotOutcome = "lost" if reason == "lost" else "cancelled"
        return _final(row, definition, schedule, now, now, outcome, reason=reason)
    return Transition(
        label="aborted",
        row=_again(row, now),
        record=Record(outcome="cancelled", reason=reason, aborted=1, attempts=row.attempt, final=False),
    )


def _snoozed(
    row: Row, definition: Definition, schedule: Schedule | None, duration: timedelta, now: datetime
) -> Transition:
    """The same slot later; an attempt that counts as none for the retries."""
    if definition.gives_up:
        error = 'Snooze asks for a second start, and on_lost="give_up" allows one'
        return _final(row, definition, schedule, now, now, "failed", error=error)
    return Transition(
        label="snoozed",
        row=_again(row, now + duration),
        record=Record(outcome="cancelled", reason="snoozed", aborted=1, attempts=row.attempt, final=False),
    )


def _hand_back(row: Row, reason: str) -> Transition:
    """As if it had never been claimed: same slot, same due time, the attempt not counted."""
    attempt = max(row.attempt - 1, 0)
    return Transition(
        label="handed-back",
        row=_again(row, row.execution_time, attempt=attempt),
        record=Record(outcome="claimed", reason=reason, attempts=attempt, final=False, forget=attempt == 0),
    )


def _again(row: Row, due: datetime, *, attempt: int | None = None, lost_count: int | None = None) -> dict[str, Any]:
    """The same slot once more, due at ``due``, or when somebody wished meanwhile."""
    return {
        **_carried(row),
        "execution_time": row.wanted_due or due,
        "attempt": row.attempt if attempt is None else attempt,
        "lost_count": row.lost_count if lost_count is None else lost_count,
    }


def _carried(row: Row) -> dict[str, Any]:
    """The columns that a transition may change, as they stand."""
    return {
        "execution_time": row.execution_time,
        "slot": row.slot,
        "next_slot": row.next_slot,
        "watermark": row.watermark,
        "schedule": row.schedule,
        "origin": row.origin,
        "collapsed": row.collapsed,
        "catch_up_until": row.catch_up_until,
        "attempt": row.attempt,
        "lost_count": row.lost_count,
        "state": row.state,
        "parked_due": None,
        "consecutive_failures": row.consecutive_failures,
        "last_success": row.last_success,
        "last_failure": row.last_failure,
        "last_error": None,
    }


def _final(
    row: Row,
    definition: Definition,
    schedule: Schedule | None,
    now: datetime,
    held_until: datetime,
    outcome: SlotOutcome,
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
        return _waiting(row, schedule, following, watermark=base), ()
    if row.origin == "catch_up" and row.catch_up_until is not None and definition.catch_up.mode == "all":
        return _catching_up(row, definition, schedule, base, now, ledger), ()
    came = held_until - schedule.wait(base)
    choice = choose_overlapped(definition.overlap, schedule.running, base, came)
    gaps = around(schedule, passed_over(schedule, base + TICK, choice.slot or choice.watermark), choice.gaps)
    base = choice.watermark
    slot = choice.slot or schedule.settled(base).next_after(base)
    columns = _waiting(row, schedule, slot, watermark=base)
    return {**columns, "catch_up_until": choice.until}, gaps


def _catching_up(
    row: Row, definition: Definition, schedule: Schedule, base: datetime, now: datetime, ledger: LedgerEntry | None
) -> dict[str, Any]:
    """The next missed slot, in its pace; slots that came due during the catch-up join the tail, without one."""
    slot = schedule.settled(base).next_after(base)
    columns = _waiting(row, schedule, slot, watermark=base)
    if slot is None or columns["execution_time"] > now or row.catch_up_until is None:
        return columns
    due, pace = columns["execution_time"], definition.catch_up.pace
    if pace is not None and slot <= row.catch_up_until:
        due = max(slot, (ledger.started if ledger and ledger.started else now) + pace)
    return {**columns, "execution_time": due, "catch_up_until": row.catch_up_until, "origin": "catch_up"}


def _waiting(row: Row, schedule: Schedule, slot: datetime | None, watermark: datetime | None) -> dict[str, Any]:
    """A plan row that waits for ``slot`` (None: the schedule has ended, the row stays, parked)."""
    remaining = schedule.settled(watermark) if watermark else schedule
    return {
        **_carried(row),
        **ahead(remaining, slot),
        "watermark": watermark or row.watermark,
        "schedule": str(remaining),
        "origin": None,
        "collapsed": 0,
        "catch_up_until": None,
        "attempt": 0,
        "lost_count": 0,
    }


def ahead(schedule: Schedule, slot: datetime | None) -> dict[str, Any]:
    """The columns of a plan row that waits for ``slot``; None: for nothing any more."""
    return {
        "execution_time": FOREVER if slot is None else due_at(schedule, slot),
        "slot": slot,
        "next_slot": None if slot is None else slot_after(schedule, slot),
    }


def _end_task(row: Row, now: datetime, outcome: SlotOutcome, error: str | None, record: Record) -> Transition:
    """A one-time task leaves when it succeeded; otherwise it stays as dead, parked, with the reason."""
    if outcome == "succeeded":
        return Transition(label=outcome, row=None, ended=record)
    parked = {"state": "dead", "execution_time": FOREVER, "parked_due": row.execution_time}
    parked["last_error"] = error or record.reason or outcome
    return Transition(
        label="dead",
        row={**_carried(row), **counters(row, outcome, now), **parked},
        ended=record,
    )


def counters(row: Row, outcome: SlotOutcome, now: datetime) -> dict[str, Any]:
    match outcome:
        case "succeeded":
            return {"consecutive_failures": 0, "last_success": now}
        case "cancelled":
            return {}
        case _:
            return {"consecutive_failures": row.consecutive_failures + 1, "last_failure": now}


def started(row: Row, decision: Start) -> Row:
    """The claimed row, now for the slot that was decided."""
    return replace(
        row,
        slot=decision.slot,
        next_slot=decision.next_slot,
        watermark=max(decision.watermark, row.watermark or decision.watermark),
        origin=decision.origin,
        collapsed=decision.collapsed,
        catch_up_until=decision.until,
    )


def past(row: Row, schedule: Schedule) -> dict[str, Any]:
    """The row moves past a slot that ran already."""
    slot = row.slot
    following = schedule.next_after(slot) if slot else None
    return _waiting(row, schedule, following, watermark=slot)


def removed(row: Row, schedule: Schedule | None, transition: Transition, now: datetime) -> Transition:
    """A row that was deleted while it was held goes now; what it would have waited for, and has come, is skipped."""
    columns, record = transition.row, transition.record
    if row.state != DELETED or columns is None:
        return transition
    if record is not None and (record.forget or not record.final):
        record = Record(outcome="cancelled", reason=DELETED, error=record.error, attempts=row.attempt, lost=record.lost)
    gaps, slot = transition.gaps, columns["slot"]
    if schedule is not None and slot is not None and slot <= now and slot != row.slot and not schedule.from_end:
        gaps = (*gaps, span(schedule, slot, schedule.latest_before(now + TICK, floor=slot) or slot, DELETED))
    return replace(transition, row=None, record=record, gaps=gaps)


def put_off(row: Row, due: datetime) -> Transition:
    """A claimed row whose slot is to start later goes back, with the place that it has been given."""
    back = _hand_back(row, "recovery")
    columns = {**_again(row, due, attempt=max(row.attempt - 1, 0)), "parked_due": row.parked_due or row.execution_time}
    return replace(back, label="postponed", row=columns)


def postponed(row: Row, now: datetime, error: str) -> Transition:
    """A claimed row that this worker cannot read goes back, and comes up again later; it says why."""
    back = _hand_back(row, "unreadable")
    later = _again(row, now + UNREADABLE_PAUSE, attempt=max(row.attempt - 1, 0))
    return replace(back, label="postponed", row={**later, "last_error": error})
