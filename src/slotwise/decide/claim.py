"""Which slot of a claimed plan row runs, if any, and which do not.

Catch-up decides about slots that were missed while no worker held the job, overlap about those
that came due while the slot before them was held.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from slotwise.decide.row_columns import waiting
from slotwise.decide.slot_choice import (
    Choice,
    around,
    choose_missed,
    latest_start,
    slots_before,
    span,
    undecided,
    without_decided,
)
from slotwise.decide.tuning import PLACE_PAUSE
from slotwise.jobs.definition import Definition
from slotwise.jobs.policies import CatchUp
from slotwise.model.records import TICK, Gap, Row
from slotwise.model.vocabulary import PLANNED, Origin, Reason
from slotwise.schedules import Schedule
from slotwise.schedules.base import slot_after
from slotwise.schedules.text import readable

#: Columns of a claimed row that the choice of its slot decides.
CHOSEN = ("slot", "next_slot", "watermark", "origin", "collapsed", "catch_up_until")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The claimed row with the slot that starts; ``gaps`` are slots that do not run."""

    row: Row
    gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """Nothing starts: the row moves on. Earlier slots with an origin in ``replaces`` are asked to
    stop.
    """

    row: dict[str, Any]
    gaps: tuple[Gap, ...] = ()
    replaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Basis:
    """What a claim is decided from. ``now`` and ``since`` (``unheld_since``) are earlier by the
    spread.
    """

    schedule: Schedule
    now: datetime
    since: datetime | None
    newest: datetime | None
    definition: Definition
    is_full: bool
    poll: timedelta


def at_claim(
    row: Row,
    schedule: Schedule,
    now: datetime,
    newest: datetime | None,
    definition: Definition,
    *,
    is_full: bool = False,
    poll: timedelta,
) -> Start | Advance:
    """Decide about a claimed plan row with missed slots, or with a slot that has already run.

    ``newest``: the newest slot that ledger or gaps have decided. ``is_full``: no more slots may
    run side by side.
    """
    spread = timedelta(0) if row.slot is None else schedule.wait(row.slot)
    basis = _Basis(
        schedule=schedule,
        now=now - spread,
        since=row.unheld_since and row.unheld_since - spread,
        newest=newest,
        definition=definition,
        is_full=is_full,
        poll=poll,
    )
    if row.slot is None or row.watermark is None or not has_decided_ahead(row, newest):
        return _at_claim(row, basis)
    left = undecided(schedule, row.slot, row.watermark)
    decided = _at_claim(row, replace(basis, schedule=left, newest=row.slot - TICK))
    gaps = without_decided(schedule, decided.gaps, row.slot, row.watermark)
    if isinstance(decided, Start):
        return replace(decided, gaps=gaps)
    watermark = max(decided.row["watermark"], row.watermark)
    columns = {
        **decided.row,
        "watermark": watermark,
        "schedule": str(schedule.settled(watermark)),
    }
    return replace(decided, row=columns, gaps=gaps)


def has_decided_ahead(row: Row, newest: datetime | None) -> bool:
    """Return whether later slots than the row's are decided: by a claim that was handed back, or
    by an operator.

    Not if ledger or gaps have decided beyond those (``newest``): then the row was restored alone,
    and all are decided.
    """
    if row.slot is None or row.watermark is None or row.slot >= row.watermark:
        return False
    return newest is None or newest <= row.watermark


def _at_claim(row: Row, basis: _Basis) -> Start | Advance:
    slot = _first_undecided(row, basis)
    if slot is None:
        return Advance(row=waiting(row, basis.schedule, basis.newest))
    if not basis.schedule.runs(slot):
        return _pass_over(row, slot, basis)
    if basis.definition.overlap.detaches:
        return _concurrent_slots(row, slot, basis)
    return _choose(row, slot, basis)


def _first_undecided(row: Row, basis: _Basis) -> datetime | None:
    """Return the row's slot, or the next one that has come if that is decided; None: there is
    none.
    """
    newest = basis.newest
    if row.slot is not None and (newest is None or row.slot > newest):
        return row.slot
    slot = None if newest is None else basis.schedule.next_after(newest)
    return slot if slot is not None and slot <= basis.now else None


def _pass_over(row: Row, slot: datetime, basis: _Basis) -> Start | Advance:
    """Record a slot that a calendar excludes, and decide about what follows."""
    schedule = basis.schedule
    running = schedule.running.next_after(slot)
    come = running if running is not None and running <= basis.now else None
    last = schedule.latest_before(come or basis.now + TICK, floor=slot) or slot
    passed = span(schedule, slot, last, Reason.CALENDAR)
    if come is None:
        return Advance(row=waiting(row, schedule, passed.last), gaps=(passed,))
    decided = _at_claim(replace(row, slot=come), basis)
    return replace(decided, gaps=(passed, *decided.gaps))


def _choose(row: Row, slot: datetime, basis: _Basis) -> Start | Advance:
    """Choose which of the slots from ``slot`` to now starts. Overlap has already chosen a
    queued one.
    """
    schedule = basis.schedule
    is_catch_up = is_catching_up(row, basis.definition)
    since = basis.since
    if since is not None and slot <= since and row.origin != Origin.CATCH_UP:
        choice = _missed(CatchUp.all(), slot, basis, min(since, basis.now))
    else:
        until = _end_of_tail(row, slot, basis)
        choice = _missed(basis.definition.catch_up, slot, basis, until)
        is_catch_up = is_catch_up or choice.stands_for_others(slot)
    gaps = around(schedule, choice.gaps, slot, choice.watermark)
    if choice.slot is None:
        # A fixed delay counts from now: else it would step through slots that are all too late.
        latest = max(choice.watermark, basis.now)
        following = schedule.next_after(latest) if schedule.from_end else None
        return Advance(
            row=waiting(row, schedule, choice.watermark, following), gaps=gaps
        )
    started = replace(
        row,
        slot=choice.slot,
        next_slot=slot_after(schedule, choice.watermark),
        watermark=max(choice.watermark, row.watermark or choice.watermark),
        origin=Origin.CATCH_UP if is_catch_up else None,
        collapsed=row.collapsed + choice.collapsed,
        catch_up_until=choice.until if is_catch_up else None,
    )
    return Start(row=started, gaps=gaps)


def _missed(
    catch_up: CatchUp, slot: datetime, basis: _Basis, until: datetime | None
) -> Choice:
    limit = basis.definition.start_within
    return choose_missed(
        catch_up, limit, basis.schedule.running, slot, basis.now, until
    )


def _end_of_tail(row: Row, slot: datetime, basis: _Basis) -> datetime | None:
    """Return the end of the tail that a catch-up runs; None: now."""
    until = row.catch_up_until
    if not is_catching_up(row, basis.definition) or until is None or slot > until:
        return None
    newest = basis.schedule.running.latest_before(basis.now + TICK, floor=until)
    # Without ``since`` the first slot of the tail was handed back.
    since = basis.since or row.due - basis.schedule.wait(slot) + basis.poll
    return newest if newest is not None and newest > since else until


def _concurrent_slots(row: Row, slot: datetime, basis: _Basis) -> Start | Advance:
    """Decide about slots that run beside the plan row.

    Overlap decides about a slot that finds no place within a poll interval of its time, else
    catch-up.
    """
    newest = basis.schedule.running.latest_before(basis.now + TICK, floor=slot) or slot
    stops = basis.definition.overlap.mode == "cancel_previous"
    # Overlap still decides about a slot that waits for another one to stop.
    waits_on = stops and basis.since is not None and newest <= basis.since
    if waits_on or (basis.is_full and basis.now - slot <= basis.poll):
        return _overlap(row, slot, newest, basis)
    if not basis.is_full:
        return _choose(row, slot, replace(basis, since=None))
    replaced: tuple[str, ...] = ()
    if stops:
        # With "all", the slots of a catch-up do not stop each other.
        runs_all = basis.definition.catch_up.mode == "all"
        replaced = (Origin.SCHEDULE,) if runs_all else PLANNED
    columns = _waiting_for_a_place(row, basis.schedule, slot, basis.now)
    return Advance(row=columns, replaces=replaced)


def _overlap(
    row: Row, slot: datetime, newest: datetime, basis: _Basis
) -> Start | Advance:
    """Skip the slots from ``slot`` to ``newest``, or let the newest replace what runs."""
    schedule = basis.schedule
    if basis.definition.overlap.mode != "cancel_previous":
        skipped = span(schedule.running, slot, newest, Reason.OVERLAP)
        gaps = around(schedule, (skipped,), slot, newest)
        return Advance(row=waiting(row, schedule, newest), gaps=gaps)
    skipped_before = slots_before(schedule.running, slot, newest, Reason.OVERLAP)
    older = around(schedule, skipped_before, slot, newest)
    if not basis.is_full:
        decided = _choose(row, newest, basis)
        return replace(decided, gaps=(*older, *decided.gaps))
    columns = _waiting_for_a_place(row, schedule, newest, basis.now)
    columns["unheld_since"] = columns["execution_time"] + basis.poll
    return Advance(row=columns, gaps=older, replaces=PLANNED)


def _waiting_for_a_place(
    row: Row, schedule: Schedule, slot: datetime, now: datetime
) -> dict[str, Any]:
    """Return the columns of a plan row whose slot is due, and looks for a place again in a
    moment.
    """
    as_it_stood = {
        "origin": row.origin,
        "collapsed": row.collapsed,
        "catch_up_until": row.catch_up_until,
    }
    due = now + schedule.wait(slot) + PLACE_PAUSE
    return (
        waiting(row, schedule, row.watermark, slot)
        | as_it_stood
        | {"execution_time": due}
    )


def beside(
    row: Row, schedule: Schedule, definition: Definition, now: datetime
) -> dict[str, object]:
    """Return the columns of a plan row whose slot has started in a detached row."""
    columns = waiting(row, schedule, row.watermark or row.slot or now)
    pace = definition.catch_up.pace
    if pace is not None and columns["execution_time"] <= now:
        columns["execution_time"] = now + pace
    return columns


def given_up(row: Row, definition: Definition, now: datetime) -> Reason | None:
    """Return why a detached slot that was handed back no longer starts: it is late, or ``max``
    slots are newer.
    """
    schedule = readable(row.schedule)
    if (
        row.attempt != 1
        or row.origin not in PLANNED
        or schedule is None
        or row.slot is None
    ):
        return None
    catch_up = definition.catch_up
    now = now - schedule.wait(row.slot)
    limit = latest_start(catch_up, definition.start_within)
    if limit is not None and row.slot < now - limit:
        return Reason.LATE
    few = catch_up.max if catch_up.mode == "all" else None
    return (
        Reason.COLLAPSED
        if few is not None and schedule.running.count_between(row.slot, now) >= few
        else None
    )


def skipped(schedule: Schedule, start: Start, reason: str) -> Advance:
    """Return the decision about a row whose slot a gate skips."""
    row = start.row
    assert row.slot is not None
    gap = Gap(first=row.slot, last=row.slot, count=1, reason=reason)
    return Advance(row=past_slot(row, schedule), gaps=(*start.gaps, gap))


def is_weighed(
    row: Row, now: datetime, names: Collection[str], late: timedelta | None
) -> bool:
    """Return whether a claimed slot must be decided about, or pass a gate, before it enters the
    ledger.

    Each new slot of ``names`` must, and with ``late`` each later one and each catch-up. CLAIM has
    the same condition.
    """
    if row.attempt != 1 or not (row.is_plan or row.origin in PLANNED):
        return False
    if row.task_name in names:
        return True
    return late is not None and (
        row.origin == Origin.CATCH_UP
        or (row.slot is not None and row.slot < now - late)
    )


def without_attempts(row: Row) -> Row:
    """Return a claimed row whose slot has already ended, without the attempts at it, and without
    the older slots that it stood for.
    """
    return replace(
        row,
        attempt=1,
        collapsed=0,
        lost_count=0,
        trying_since=None,
        unheld_since=None,
        catch_up_until=None,
    )


def past_slot(row: Row, schedule: Schedule) -> dict[str, Any]:
    return waiting(
        row, schedule, row.slot and max(row.slot, row.watermark or row.slot)
    )


def is_catching_up(row: Row, definition: Definition) -> bool:
    """Return whether the row's slot is part of a tail of missed slots that all run."""
    runs_all = definition.catch_up.mode == "all" and not definition.overlap.detaches
    return (
        runs_all and row.origin == Origin.CATCH_UP and row.catch_up_until is not None
    )
