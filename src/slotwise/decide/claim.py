"""Which slot of a claimed plan row runs, if any, and which do not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from slotwise.decide.columns import waiting
from slotwise.decide.hold import is_catching_up
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
from slotwise.model.records import TICK, Gap, Row
from slotwise.model.vocabulary import PLANNED, Origin, Reason
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
    """Nothing to run: the row moves on and is let go. Its slot waits for those before it whose origin is one of
    ``replaces``, and they are asked to stop.
    """

    row: dict[str, Any]
    gaps: tuple[Gap, ...] = ()
    replaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What a claim is decided from, beside its row. ``now``: a slot has come that is not later."""

    schedule: Schedule
    now: datetime
    newest: datetime | None
    definition: Definition | None
    is_full: bool
    poll: timedelta


def at_claim(
    row: Row,
    schedule: Schedule,
    now: datetime,
    newest: datetime | None,
    definition: Definition | None = None,
    *,
    is_full: bool = False,
    poll: timedelta,
) -> Start | Advance:
    """What to do with a claimed plan row whose next slot has already come (or whose slot ran already).

    ``is_full``: no more of its slots may run side by side. ``poll``: the poll interval of the worker that claims.
    ``newest`` is the newest slot that the ledger and the gaps know: after a restore of the queue alone it outranks the
    row, so that no slot which has started starts again.
    """
    if row.slot is not None:
        spread = schedule.wait(row.slot)  # a slot of a spread schedule has come when it is due
        now -= spread
        row = replace(row, unheld_since=None if row.unheld_since is None else row.unheld_since - spread)
    look = _Look(schedule=schedule, now=now, newest=newest, definition=definition, is_full=is_full, poll=poll)
    if not was_handed_back(row):
        return _at_claim(row, look)
    assert row.slot is not None
    assert row.watermark is not None
    left = undecided(schedule, row.slot, row.watermark)
    decided = _at_claim(row, replace(look, schedule=left, newest=row.slot - TICK))
    if isinstance(decided, Advance):
        watermark = max(decided.row["watermark"], row.watermark)
        moved = {**decided.row, "watermark": watermark, "schedule": str(schedule.settled(watermark))}
        decided = replace(decided, row=moved)
    return replace(decided, gaps=cut(schedule, decided.gaps, row.slot, row.watermark))


def was_handed_back(row: Row) -> bool:
    """Whether slots after the row's own are decided: they were left out at a claim that was handed back. None of them
    is decided twice.
    """
    return row.slot is not None and row.watermark is not None and row.slot < row.watermark


def _at_claim(row: Row, look: _Look) -> Start | Advance:
    slot, newest, schedule = row.slot, look.newest, look.schedule
    if slot is None or (newest is not None and slot <= newest):
        slot = None if newest is None else schedule.next_after(newest)
        if slot is None or slot > look.now:
            return Advance(row=waiting(row, schedule, slot, watermark=newest))
    if not schedule.runs(slot):
        return _pass_over(row, slot, look)
    definition = look.definition
    if definition is not None and definition.overlap.detaches:
        return _concurrent_slots(row, slot, look, definition)
    return _choose(row, slot, look)


def _choose(row: Row, slot: datetime, look: _Look) -> Start | Advance:
    """Of the slots from ``slot`` up to now: which one starts. One that waits in a queue was chosen when it was put
    there, and is asked no more than whether it is too late.
    """
    schedule, definition, since = look.schedule, look.definition, row.unheld_since
    goes_on = definition is not None and is_catching_up(row, definition)
    is_queued = since is not None and slot <= since and row.origin != Origin.CATCH_UP
    catch_up = CatchUp.all() if is_queued else definition.catch_up if definition else CatchUp.latest()
    within = definition.start_within if definition else None
    until = min(since, look.now) if is_queued and since is not None else _end_of_tail(row, slot, look)
    choice = choose_missed(catch_up, within, schedule.running, slot, look.now, until)
    gaps = around(schedule, passed_over(schedule, slot, choice.watermark), choice.gaps)
    if choice.slot is None:
        # A fixed delay counts from now: it would come to the present slot by slot, all of them too late.
        following = schedule.next_after(max(choice.watermark, look.now) if schedule.from_end else choice.watermark)
        return Advance(row=waiting(row, schedule, following, watermark=choice.watermark), gaps=gaps)
    missed_others = choice.watermark > slot or choice.until not in (None, slot) or bool(choice.gaps)
    is_catch_up = goes_on or (missed_others and not is_queued)
    return Start(
        slot=choice.slot,
        next_slot=slot_after(schedule, choice.watermark),
        watermark=choice.watermark,
        collapsed=row.collapsed + choice.collapsed,
        gaps=gaps,
        until=choice.until if is_catch_up else None,
        origin=Origin.CATCH_UP if is_catch_up else None,
    )


def _end_of_tail(row: Row, slot: datetime, look: _Look) -> datetime | None:
    """Up to where a catch-up runs all slots, with those that came while nobody held it; None: up to now."""
    definition, until = look.definition, row.catch_up_until
    if definition is None or not is_catching_up(row, definition):
        return None
    if until is None or slot > until:
        return None
    newest = look.schedule.running.latest_before(look.now + TICK, floor=until)
    since = (
        row.unheld_since or row.due - look.schedule.wait(slot) + look.poll
    )  # None: the first slot of the tail was handed back
    return newest if newest is not None and newest > since else until


def _pass_over(row: Row, slot: datetime, look: _Look) -> Start | Advance:
    """A calendar passes over the slot: it is written down, and what comes after it is decided."""
    schedule = look.schedule
    running = schedule.running.next_after(slot)
    if running is None or running > look.now:
        last = schedule.latest_before(look.now + TICK, floor=slot) or slot
        following = schedule.next_after(last)
        columns = waiting(row, schedule, following, watermark=last)
        return Advance(row=columns, gaps=(span(schedule, slot, last, Reason.CALENDAR),))
    last = schedule.latest_before(running, floor=slot) or slot
    decided = _at_claim(replace(row, slot=running), look)
    return replace(decided, gaps=(span(schedule, slot, last, Reason.CALENDAR), *decided.gaps))


def _concurrent_slots(row: Row, slot: datetime, look: _Look, definition: Definition) -> Start | Advance:
    """Slots run beside the plan row, as many as may. Without a place for it, a slot that is looked at in time is
    overlap's: it does not run, or the newest waits for the one that is asked to stop. A later one is catch-up's, and
    waits for a place.
    """
    schedule, now, is_full = look.schedule, look.now, look.is_full
    newest = schedule.running.latest_before(now + TICK, floor=slot) or slot
    stops = definition.overlap.mode == "cancel_previous"
    # One that waits for another to stop stays overlap's, as long as somebody looks.
    waits_on = stops and row.unheld_since is not None and newest <= row.unheld_since
    if not (waits_on or (is_full and now - slot <= look.poll)):
        if not is_full:
            return _choose(replace(row, unheld_since=None), slot, look)
        # With "all", the slots of a catch-up do not stop each other.
        replaced = () if not stops else (Origin.SCHEDULE,) if definition.catch_up.mode == "all" else PLANNED
        return Advance(row=_waiting_for_a_place(row, schedule, slot, now), replaces=replaced)
    passed = passed_over(schedule, slot, newest)
    if not stops:
        gaps = around(schedule, passed, (span(schedule.running, slot, newest, Reason.OVERLAP),))
        return Advance(row=waiting(row, schedule, schedule.next_after(newest), watermark=newest), gaps=gaps)
    older = around(schedule, passed, slots_before(schedule.running, slot, newest, Reason.OVERLAP))
    if not is_full:
        decided = _choose(row, newest, look)
        return replace(decided, gaps=(*older, *decided.gaps))
    columns = _waiting_for_a_place(row, schedule, newest, now)
    columns["unheld_since"] = columns["execution_time"] + look.poll
    return Advance(row=columns, gaps=older, replaces=PLANNED)


def _waiting_for_a_place(row: Row, schedule: Schedule, slot: datetime, now: datetime) -> dict[str, Any]:
    """A plan row whose slot is due, and looks again in a moment. It has not started: it stands as it stood."""
    as_it_stood = {"origin": row.origin, "collapsed": row.collapsed, "catch_up_until": row.catch_up_until}
    columns = waiting(row, schedule, slot, watermark=row.watermark)
    return {**columns, **as_it_stood, "execution_time": now + schedule.wait(slot) + PLACE_PAUSE}


def beside(row: Row, schedule: Schedule, definition: Definition, now: datetime) -> dict[str, Any]:
    """The plan row after the slot that it waited for has started in a row of its own."""
    base = row.watermark or row.slot or now
    columns = waiting(row, schedule, schedule.settled(base).next_after(base), watermark=base)
    pace = definition.catch_up.pace
    if pace is not None and columns["execution_time"] <= now:
        columns["execution_time"] = now + pace
    return columns


def given_up(row: Row, definition: Definition, schedule: Schedule, now: datetime) -> str | None:
    """Return why a slot with a row of its own that was handed back before it began is too late by now, or None."""
    assert row.slot is not None
    late = now - schedule.wait(row.slot)
    return too_late(definition.catch_up, definition.start_within, schedule.running, row.slot, late)


def skipped(row: Row, schedule: Schedule, start: Start, reason: str) -> Advance:
    """Return what becomes of a row whose slot was to start, and is skipped at a gate."""
    gap = Gap(first=start.slot, last=start.slot, count=1, reason=reason)
    watermark = max(start.watermark, row.watermark or start.watermark)
    following = schedule.settled(watermark).next_after(watermark)
    return Advance(row=waiting(row, schedule, following, watermark=watermark), gaps=(*start.gaps, gap))


def is_weighed(row: Row, now: datetime, names: Collection[str], late: timedelta | None) -> bool:
    """Return whether a claimed slot is to be decided on, or asked about at a gate, before the ledger has it.

    Each new slot of the jobs ``names`` is; with ``late`` also each that is later, and each of a catch-up. A retry has
    been admitted before. PostgreSQL's claim statement has the same condition.
    """
    if row.attempt != 1 or not (row.is_plan or row.origin in PLANNED):
        return False
    if row.task_name in names:
        return True
    return late is not None and (row.origin == Origin.CATCH_UP or (row.slot is not None and row.slot < now - late))


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
    return replace(row, attempt=1, lost_count=0, trying_since=None, unheld_since=None, catch_up_until=None)


def past(row: Row, schedule: Schedule) -> dict[str, Any]:
    """The row moves past a slot that ran already."""
    slot = row.slot if row.watermark is None or row.slot is None else max(row.slot, row.watermark)
    following = schedule.next_after(slot) if slot else None
    return waiting(row, schedule, following, watermark=slot)
