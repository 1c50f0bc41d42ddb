"""Which slot of a claimed plan row runs, if any, and which do not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from slotwise.decide.absence import newest_missed
from slotwise.decide.columns import catching_up, is_catching_up, missed_among, overlapped, waiting
from slotwise.decide.slot_choice import (
    around,
    choose_missed,
    cut,
    passed_over,
    slot_after,
    slots_before,
    span,
    too_late,
    undecided,
)
from slotwise.jobs.definition import Definition
from slotwise.jobs.policies import CatchUp
from slotwise.model.records import TICK, Gap, Record, Row, Transition
from slotwise.model.vocabulary import Origin, Outcome, Reason, Release
from slotwise.schedules import Schedule

#: When a slot looks again whether there is a place for it.
PLACE_PAUSE = timedelta(seconds=1)


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
    silent: datetime | None = None,
) -> Start | Advance:
    """What to do with a claimed plan row whose next slot has already come (or whose slot ran already).

    ``abreast``: how many of its slots run, or wait for their retry, in rows of their own. ``silent``: the end of the
    first lease among those that nobody renews any more; its place becomes free when the loss is seen.

    ``newest`` is the newest slot that the ledger and the gaps know: after a restore of the queue alone it
    outranks the row, so that no slot which has started starts again.
    """
    if row.slot is not None:
        spread = schedule.wait(row.slot)  # a slot of a spread schedule has come when it is due
        now, silent = now - spread, None if silent is None else silent - spread
    if not _was_handed_back(row):
        return _at_claim(row, schedule, now, newest, definition, abreast, silent)
    assert row.slot is not None
    assert row.watermark is not None
    left = undecided(schedule, row.slot, row.watermark)
    decided = _at_claim(row, left, now, row.slot - TICK, definition, abreast, silent)
    if isinstance(decided, Advance):
        watermark = max(decided.row["watermark"], row.watermark)
        moved = {**decided.row, "watermark": watermark, "schedule": str(schedule.settled(watermark))}
        decided = replace(decided, row=moved)
    return replace(decided, gaps=cut(schedule, decided.gaps, row.slot, row.watermark))


def _was_handed_back(row: Row) -> bool:
    """Whether slots after the row's own are decided: they were left out at a claim that was handed back. None of them
    is decided twice.
    """
    return row.slot is not None and row.watermark is not None and row.slot < row.watermark


def _at_claim(
    row: Row,
    schedule: Schedule,
    now: datetime,
    newest: datetime | None,
    definition: Definition | None,
    abreast: int,
    silent: datetime | None,
) -> Start | Advance:
    slot = row.slot
    if slot is None or (newest is not None and slot <= newest):
        slot = None if newest is None else schedule.next_after(newest)
        if slot is None or slot > now:
            return Advance(row=waiting(row, schedule, slot, watermark=newest))
    if not schedule.runs(slot):
        return _pass_over(row, schedule, slot, now, newest, definition, abreast, silent)
    if definition is not None and definition.overlap.detaches and abreast >= definition.overlap.max:
        return _without_a_place(row, schedule, slot, now, definition, silent)
    return _choose(row, schedule, slot, now, definition)


def _choose(
    row: Row, schedule: Schedule, slot: datetime, now: datetime, definition: Definition | None
) -> Start | Advance:
    """Of the slots from ``slot`` up to now: which one starts. Where several run one after another, each start asks
    anew; what waits in a queue has been chosen, and is asked no more than whether it is too late.
    """
    goes_on = row.catch_up_until is not None
    is_queued = goes_on and row.origin != Origin.CATCH_UP
    catch_up = CatchUp.all() if is_queued else definition.catch_up if definition else CatchUp.latest()
    until = _own_until(row, schedule, slot, now, definition)
    choice = choose_missed(
        catch_up, definition.start_within if definition else None, schedule.running, slot, now, until
    )
    gaps = around(schedule, passed_over(schedule, slot, choice.watermark), choice.gaps)
    if choice.slot is None:
        newest = newest_missed(row, schedule, choice.watermark) if is_queued else None
        if newest is not None and definition is not None:
            columns, _ = missed_among(row, definition, schedule, choice.watermark, newest, row.execution_time)
            return Advance(row=columns, gaps=gaps)
        if definition is not None and _leaves_others_to_overlap(until, is_queued=is_queued):
            came = _time_of_due(row, schedule, slot)
            columns, more = overlapped(row, definition, schedule, choice.watermark, came)
            return Advance(row=columns, gaps=(*gaps, *more))
        # A fixed delay counts from now: it would come to the present slot by slot, all of them too late.
        following = schedule.next_after(max(choice.watermark, now) if schedule.from_end else choice.watermark)
        return Advance(row=waiting(row, schedule, following, watermark=choice.watermark), gaps=gaps)
    was_missed = goes_on or choice.watermark > slot or choice.until not in (None, slot) or bool(choice.gaps)
    return Start(
        slot=choice.slot,
        next_slot=slot_after(schedule, choice.watermark),
        watermark=choice.watermark,
        collapsed=row.collapsed + choice.collapsed,
        gaps=gaps,
        until=row.catch_up_until if is_queued else choice.until if was_missed else None,
        origin=Origin.CATCH_UP if was_missed and not is_queued else row.origin,
    )


def _leaves_others_to_overlap(until: datetime | None, *, is_queued: bool) -> bool:
    """Whether the slots after a catch-up that came to nothing are overlap's, since they came due during its runs."""
    return until is not None and not is_queued


def _own_until(
    row: Row, schedule: Schedule, slot: datetime, now: datetime, definition: Definition | None
) -> datetime | None:
    """The newest slot that a queue or a catch-up is about, where those after it came due during runs; None: up to now.

    Those are overlap's, once the others are through. But if slots were missed since the row was due, all are.
    """
    until, due = row.catch_up_until, _time_of_due(row, schedule, slot)
    if until is None or slot > until or definition is None or definition.overlap.detaches:
        return None
    if row.origin != Origin.CATCH_UP:
        return until  # a queue
    if not _came_during_runs(schedule, until, due):
        return None
    return None if _were_missed_since(schedule, due, now) else until


def _came_during_runs(schedule: Schedule, until: datetime, due: datetime) -> bool:
    """Whether slots after ``until`` had come when the row was due."""
    following = schedule.next_after(until)
    return following is not None and following <= due


def _were_missed_since(schedule: Schedule, due: datetime, now: datetime) -> bool:
    """Whether more than one slot has come since the row was due."""
    since = schedule.next_after(due)
    return since is not None and (after := schedule.next_after(since)) is not None and after <= now


def _time_of_due(row: Row, schedule: Schedule, slot: datetime) -> datetime:
    """Slots up to here had come when the row was due."""
    return (row.parked_due or row.execution_time) - schedule.wait(slot)


def _pass_over(
    row: Row,
    schedule: Schedule,
    slot: datetime,
    now: datetime,
    newest: datetime | None,
    definition: Definition | None,
    abreast: int,
    silent: datetime | None,
) -> Start | Advance:
    """A calendar passes over the slot: it is written down, and what comes after it is decided."""
    running = schedule.running.next_after(slot)
    if running is None or running > now:
        last = schedule.latest_before(now + TICK, floor=slot) or slot
        following = schedule.next_after(last)
        columns = waiting(row, schedule, following, watermark=last)
        return Advance(row=columns, gaps=(span(schedule, slot, last, Reason.CALENDAR),))
    last = schedule.latest_before(running, floor=slot) or slot
    decided = _at_claim(replace(row, slot=running), schedule, now, newest, definition, abreast, silent)
    return replace(decided, gaps=(span(schedule, slot, last, Reason.CALENDAR), *decided.gaps))


def _without_a_place(
    row: Row, schedule: Schedule, slot: datetime, now: datetime, definition: Definition, silent: datetime | None
) -> Start | Advance:
    """Other slots run beside the plan row, as many as may. A slot that catches up waits for them; of those that come
    due during them, the newest waits for the one that has been asked to stop, or none does. What has come since one
    of them fell silent is catch-up's: it waits until that loss is seen.
    """
    until = now if silent is None else min(now, silent)
    if row.catch_up_until is not None or slot > until:
        return Advance(row=_waiting_for_a_place(row, schedule, slot, now))
    newest = schedule.running.latest_before(until + TICK, floor=slot) or slot
    passed = passed_over(schedule, slot, newest)
    if definition.overlap.mode == "allow":
        gaps = around(schedule, passed, (span(schedule.running, slot, newest, Reason.OVERLAP),))
        columns = waiting(row, schedule, schedule.next_after(newest), watermark=newest)
        if silent is not None:
            columns["execution_time"] = max(columns["execution_time"], now + schedule.wait(newest) + PLACE_PAUSE)
        return Advance(row=columns, gaps=gaps)
    older = around(schedule, passed, slots_before(schedule.running, slot, newest, Reason.OVERLAP))
    return Advance(row=_waiting_for_a_place(row, schedule, newest, now), gaps=older)


def _waiting_for_a_place(row: Row, schedule: Schedule, slot: datetime, now: datetime) -> dict[str, Any]:
    """A plan row whose slot is due, and looks again in a moment. It has not started: it stands as it stood."""
    as_it_stood = {"origin": row.origin, "collapsed": row.collapsed, "catch_up_until": row.catch_up_until}
    columns = waiting(row, schedule, slot, watermark=row.watermark)
    return {**columns, **as_it_stood, "execution_time": now + schedule.wait(slot) + PLACE_PAUSE}


def beside(row: Row, schedule: Schedule, definition: Definition, now: datetime) -> dict[str, Any]:
    """The plan row after the slot that it waited for has started in a row of its own."""
    base = row.watermark or row.slot or now
    columns = catching_up(row, definition, schedule, base, now, now, now) if is_catching_up(row, definition) else None
    if columns is None:
        columns = waiting(row, schedule, schedule.settled(base).next_after(base), watermark=base)
    if definition.min_interval is not None:
        columns["execution_time"] = max(columns["execution_time"], now + definition.min_interval)
    return columns


def given_up(row: Row, definition: Definition, schedule: Schedule, now: datetime) -> Transition | None:
    """The end of a slot with a row of its own that was handed back before it began, if it is too late for it now."""
    assert row.slot is not None
    late = now - schedule.wait(row.slot)
    reason = too_late(definition.catch_up, definition.start_within, schedule.running, row.slot, late)
    if reason is None:
        return None
    return Transition(label=Release.MOVED_ON, row=None, record=Record(outcome=Outcome.SKIPPED, reason=reason))


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


def anew(row: Row) -> Row:
    """A claimed row whose slot has ended without it: what it had tried of that counts for no other one."""
    return replace(row, attempt=1, lost_count=0, trying_since=None)


def past(row: Row, schedule: Schedule) -> dict[str, Any]:
    """The row moves past a slot that ran already."""
    slot = row.slot if row.watermark is None or row.slot is None else max(row.slot, row.watermark)
    following = schedule.next_after(slot) if slot else None
    return waiting(row, schedule, following, watermark=slot)
