"""Which slot of a claimed plan row runs, if any, and which do not.

Catch-up decides about slots that were missed while no worker held the job, overlap about those
that came due while the slot before them was held. Policies see only the running slots of a
schedule; those that a calendar excludes are written down beside them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from slotwise.jobs.definition import Definition
from slotwise.jobs.policies import CatchUp, Overlap
from slotwise.model.records import FOREVER, TICK, Gap, Row
from slotwise.model.vocabulary import PLANNED, Origin, Reason, RowState
from slotwise.schedules import Disabled, Schedule, succeed
from slotwise.schedules.base import due_at, slot_after
from slotwise.schedules.text import readable

# -- which of several slots -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The slot that runs now, if any, and the newest that is decided with it; ``until`` is the end
    of a tail.
    """

    slot: datetime | None
    watermark: datetime
    gaps: tuple[Gap, ...] = ()
    collapsed: int = 0
    until: datetime | None = None


def span(schedule: Schedule, first: datetime, last: datetime, reason: str) -> Gap:
    """Return the slots from ``first`` to ``last``, both included, as a gap. ``first`` always
    counts as a slot.
    """
    return Gap(
        first=first, last=last, count=1 + schedule.count_between(first, last), reason=reason
    )


def choose_missed(
    catch_up: CatchUp,
    start_within: timedelta | None,
    schedule: Schedule,
    oldest: datetime,
    now: datetime,
    until: datetime | None = None,
) -> Choice:
    """Choose by catch-up which of the slots from ``oldest`` to ``until`` (None: to now) runs."""
    newest = (
        oldest
        if schedule.from_end
        else schedule.latest_before((until or now) + TICK, floor=oldest) or oldest
    )
    limit = _limit(catch_up, start_within)
    bound = oldest if limit is None else max(oldest, now - limit)
    first = oldest if bound == oldest else schedule.next_after(bound - TICK)
    if first is None or first > newest:
        return Choice(
            slot=None, watermark=newest, gaps=(span(schedule, oldest, newest, Reason.LATE),)
        )
    late = slots_before(schedule, oldest, first, Reason.LATE)
    match catch_up.mode:
        case "all":
            kept = (
                first
                if catch_up.max is None
                else _newest_few(schedule, first, newest, catch_up.max)
            )
            dropped = slots_before(schedule, first, kept, Reason.COLLAPSED)
            return Choice(slot=kept, watermark=kept, gaps=(*late, *dropped), until=newest)
        case "first":
            rest = slots_between(schedule, first, newest, Reason.COLLAPSED)
            return Choice(
                slot=first,
                watermark=newest,
                gaps=(*late, *rest),
                collapsed=slots_in(rest, Reason.COLLAPSED),
            )
        case mode:
            older = slots_before(
                schedule,
                oldest,
                newest,
                Reason.LATE if mode == "none" else Reason.COLLAPSED,
            )
            return Choice(
                slot=newest,
                watermark=newest,
                gaps=older,
                collapsed=slots_in(older, Reason.COLLAPSED),
            )


def choose_overlapped(
    overlap: Overlap, schedule: Schedule, base: datetime, held_until: datetime
) -> Choice:
    """Choose by overlap which of the slots after ``base`` that came due while the job was held run
    next.
    """
    newest = (
        None if schedule.from_end else schedule.latest_before(held_until + TICK, floor=base)
    )
    first = None if newest is None else schedule.next_after(base)
    if newest is None or first is None:
        return Choice(slot=None, watermark=base)
    match overlap.mode:
        case "queue_all":
            return Choice(slot=first, watermark=base)
        case "queue":
            kept = _newest_few(schedule, first, newest, overlap.max)
            gaps = slots_before(schedule, first, kept, Reason.OVERLAP)
            return Choice(slot=kept, watermark=gaps[-1].last if gaps else base, gaps=gaps)
        case _:
            return Choice(
                slot=None,
                watermark=newest,
                gaps=(span(schedule, first, newest, Reason.OVERLAP),),
            )


def passed_over(schedule: Schedule, first: datetime, until: datetime) -> tuple[Gap, ...]:
    """Return the slots from ``first`` to ``until`` that a calendar excludes; those in a row are
    one gap.
    """
    found = []
    slot = schedule.skipped_after(first - TICK, until)
    while slot is not None:
        following = schedule.running.next_after(slot)
        end = until + TICK if following is None else min(following, until + TICK)
        last = schedule.latest_before(end, floor=slot) or slot
        found.append(span(schedule, slot, last, Reason.CALENDAR))
        slot = schedule.skipped_after(last, until)
    return tuple(found)


def around(
    schedule: Schedule, gaps: tuple[Gap, ...], first: datetime, until: datetime
) -> tuple[Gap, ...]:
    """Return gaps of running slots together with the slots that a calendar excludes there, in
    order.
    """
    passed = passed_over(schedule, first, until)
    holes = [(gap.first, gap.last) for gap in passed]
    parts = (part for gap in gaps for part in without(schedule.running, gap, holes))
    return tuple(sorted((*passed, *parts), key=lambda gap: gap.first))


def without(
    schedule: Schedule, gap: Gap, holes: Iterable[tuple[datetime, datetime]]
) -> Iterator[Gap]:
    """Yield a gap in parts, without the slots in these holes: each from a first to a last instant,
    in order.
    """
    first = gap.first
    for start, end in holes:
        if max(first, start) <= min(end, gap.last):
            yield from slots_before(schedule, first, start, gap.reason)
            following = schedule.next_after(end)
            if following is None or following > gap.last:
                return
            first = following
    yield gap if first == gap.first else span(schedule, first, gap.last, gap.reason)


def of_gap(schedule: Schedule, gap: Gap) -> Schedule:
    """Return the schedule that a gap of a claim or a settlement was counted with."""
    return schedule if gap.reason == Reason.CALENDAR else schedule.running


def undecided(
    schedule: Schedule, slot: datetime | None, watermark: datetime | None
) -> Schedule:
    """Return the schedule without the slots after ``slot`` that are decided, up to
    ``watermark``.
    """
    if slot is None or watermark is None or slot >= watermark:
        return schedule
    return succeed(succeed(schedule, slot, Disabled()), watermark, schedule)


def without_decided(
    schedule: Schedule, gaps: tuple[Gap, ...], slot: datetime, watermark: datetime
) -> tuple[Gap, ...]:
    """Return the gaps without the slots after ``slot`` that are decided, up to ``watermark``."""
    return tuple(
        part for gap in gaps for part in without(schedule, gap, [(slot + TICK, watermark)])
    )


def _limit(catch_up: CatchUp, start_within: timedelta | None) -> timedelta | None:
    """Return how late a slot may start; None: without a limit."""
    own = {"none": catch_up.grace, "all": catch_up.window}.get(catch_up.mode)
    return min((limit for limit in (start_within, own) if limit is not None), default=None)


def _newest_few(
    schedule: Schedule, first: datetime, newest: datetime, few: int
) -> datetime:
    """Return the oldest of the newest ``few`` slots from ``first`` to ``newest``."""
    if schedule.count_between(first, newest) < few:
        return first
    slot = newest
    for _ in range(few - 1):
        slot = schedule.latest_before(slot, floor=first - TICK) or first
    return slot


def slots_before(
    schedule: Schedule, first: datetime, end: datetime, reason: str
) -> tuple[Gap, ...]:
    """Return the slots from ``first`` to before ``end``; nothing if there are none."""
    if end <= first:
        return ()
    return (
        span(
            schedule,
            first,
            schedule.latest_before(end, floor=first - TICK) or first,
            reason,
        ),
    )


def slots_between(
    schedule: Schedule, start: datetime, last: datetime, reason: str
) -> tuple[Gap, ...]:
    """Return the slots after ``start`` to ``last``; nothing if there are none."""
    following = schedule.next_after(start)
    if following is None or following > last:
        return ()
    return (span(schedule, following, last, reason),)


def slots_in(gaps: tuple[Gap, ...], reason: str | None = None) -> int:
    """Return how many slots these gaps have, or those with this reason."""
    return sum(gap.count for gap in gaps if reason in (None, gap.reason))


# -- the columns of a row that waits --------------------------------------------------------------


#: Columns that a row keeps unless its transition changes them.
_CARRIED = (
    "execution_time",
    "slot",
    "next_slot",
    "watermark",
    "schedule",
    "origin",
    "collapsed",
    "catch_up_until",
    "unheld_since",
    "attempt",
    "lost_count",
    "trying_since",
    "state",
    "consecutive_failures",
    "last_success",
    "last_failure",
)
#: Columns that a plan row resets when it goes on to its next slot.
_FORGOTTEN: dict[str, object] = {
    "origin": None,
    "collapsed": 0,
    "catch_up_until": None,
    "unheld_since": None,
    "attempt": 0,
    "lost_count": 0,
    "trying_since": None,
}


def carried(row: Row) -> dict[str, Any]:
    """Return the columns of a row that keeps its slot."""
    kept = {name: getattr(row, name) for name in _CARRIED} | dict.fromkeys(
        ("parked_due", "last_error", "called_off")
    )
    # The number of the operation stays if it has paused the row, or created it.
    is_requested = (
        row.state == RowState.PAUSED if row.is_plan else row.origin not in PLANNED
    )
    return kept | {"control": row.control if is_requested else None}


def again(row: Row, due: datetime) -> dict[str, object]:
    """Return the columns of a row that waits for the same slot again, due at ``due`` or at an
    operator's wish.
    """
    return carried(row) | {"execution_time": row.wanted_due or due}


def waiting(
    row: Row, schedule: Schedule, watermark: datetime | None, slot: datetime | None = None
) -> dict[str, Any]:
    """Return the columns of a plan row that waits for ``slot``, or the one after ``watermark``, or
    for none.
    """
    remaining = schedule.settled(watermark) if watermark else schedule
    following = slot or (remaining.next_after(watermark) if watermark else None)
    decided = {"watermark": watermark or row.watermark, "schedule": str(remaining)}
    return carried(row) | _FORGOTTEN | ahead(remaining, following) | decided


def ahead(schedule: Schedule, slot: datetime | None) -> dict[str, Any]:
    """Return when a plan row with this slot, or with none, is due."""
    if slot is None:
        return {"execution_time": FOREVER, "slot": None, "next_slot": None}
    return {
        "execution_time": due_at(schedule, slot),
        "slot": slot,
        "next_slot": slot_after(schedule, slot),
    }


# -- what a claim starts --------------------------------------------------------------------------

#: How long a slot waits before it looks again for a place.
PLACE_PAUSE = timedelta(seconds=1)


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
class _Look:
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
    look = _Look(
        schedule=schedule,
        now=now - spread,
        since=row.unheld_since and row.unheld_since - spread,
        newest=newest,
        definition=definition,
        is_full=is_full,
        poll=poll,
    )
    if row.slot is None or row.watermark is None or not has_decided_ahead(row, newest):
        return _at_claim(row, look)
    left = undecided(schedule, row.slot, row.watermark)
    decided = _at_claim(row, replace(look, schedule=left, newest=row.slot - TICK))
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


def _at_claim(row: Row, look: _Look) -> Start | Advance:
    slot = row.slot
    newest = look.newest
    schedule = look.schedule
    if slot is None or (newest is not None and slot <= newest):
        slot = None if newest is None else schedule.next_after(newest)
        if slot is None or slot > look.now:
            return Advance(row=waiting(row, schedule, newest))
    if schedule.runs(slot):
        return (_concurrent_slots if look.definition.overlap.detaches else _choose)(
            row, slot, look
        )
    # A calendar excludes the slot: record it, and decide about what follows.
    running = schedule.running.next_after(slot)
    come = running if running is not None and running <= look.now else None
    passed = span(
        schedule,
        slot,
        schedule.latest_before(come or look.now + TICK, floor=slot) or slot,
        Reason.CALENDAR,
    )
    decided = (
        _at_claim(replace(row, slot=come), look)
        if come
        else Advance(row=waiting(row, schedule, passed.last))
    )
    return replace(decided, gaps=(passed, *decided.gaps))


def _choose(row: Row, slot: datetime, look: _Look) -> Start | Advance:
    """Choose which of the slots from ``slot`` to now starts. Overlap has already chosen a
    queued one.
    """
    schedule = look.schedule
    definition = look.definition
    since = look.since
    is_queued = since is not None and slot <= since and row.origin != Origin.CATCH_UP
    catch_up = CatchUp.all() if is_queued else definition.catch_up
    until = (
        min(since, look.now)
        if is_queued and since is not None
        else _end_of_tail(row, slot, look)
    )
    choice = choose_missed(
        catch_up, definition.start_within, schedule.running, slot, look.now, until
    )
    gaps = around(schedule, choice.gaps, slot, choice.watermark)
    if choice.slot is None:
        # A fixed delay counts from now: else it would step through slots that are all too late.
        following = (
            schedule.next_after(max(choice.watermark, look.now))
            if schedule.from_end
            else None
        )
        return Advance(row=waiting(row, schedule, choice.watermark, following), gaps=gaps)
    missed_others = (
        choice.watermark > slot or choice.until not in (None, slot) or bool(choice.gaps)
    )
    is_catch_up = is_catching_up(row, definition) or (missed_others and not is_queued)
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


def _end_of_tail(row: Row, slot: datetime, look: _Look) -> datetime | None:
    """Return the end of the tail that a catch-up runs; None: now."""
    until = row.catch_up_until
    if not is_catching_up(row, look.definition) or until is None or slot > until:
        return None
    newest = look.schedule.running.latest_before(look.now + TICK, floor=until)
    # Without ``since`` the first slot of the tail was handed back.
    since = look.since or row.due - look.schedule.wait(slot) + look.poll
    return newest if newest is not None and newest > since else until


def _concurrent_slots(row: Row, slot: datetime, look: _Look) -> Start | Advance:
    """Decide about slots that run beside the plan row.

    Overlap decides about a slot that finds no place within a poll interval of its time, else
    catch-up.
    """
    schedule = look.schedule
    now = look.now
    is_full = look.is_full
    definition = look.definition
    newest = schedule.running.latest_before(now + TICK, floor=slot) or slot
    stops = definition.overlap.mode == "cancel_previous"
    # Overlap still decides about a slot that waits for another one to stop.
    waits_on = stops and look.since is not None and newest <= look.since
    if not (waits_on or (is_full and now - slot <= look.poll)):
        if not is_full:
            return _choose(row, slot, replace(look, since=None))
        # With "all", the slots of a catch-up do not stop each other.
        replaced = (
            ()
            if not stops
            else (Origin.SCHEDULE,)
            if definition.catch_up.mode == "all"
            else PLANNED
        )
        return Advance(
            row=_waiting_for_a_place(row, schedule, slot, now), replaces=replaced
        )
    if not stops:
        gaps = around(
            schedule, (span(schedule.running, slot, newest, Reason.OVERLAP),), slot, newest
        )
        return Advance(row=waiting(row, schedule, newest), gaps=gaps)
    older = around(
        schedule, slots_before(schedule.running, slot, newest, Reason.OVERLAP), slot, newest
    )
    if not is_full:
        decided = _choose(row, newest, look)
        return replace(decided, gaps=(*older, *decided.gaps))
    columns = _waiting_for_a_place(row, schedule, newest, now)
    columns["unheld_since"] = columns["execution_time"] + look.poll
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
        waiting(row, schedule, row.watermark, slot) | as_it_stood | {"execution_time": due}
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
    limit = _limit(catch_up, definition.start_within)
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
        row.origin == Origin.CATCH_UP or (row.slot is not None and row.slot < now - late)
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
    return waiting(row, schedule, row.slot and max(row.slot, row.watermark or row.slot))


def is_catching_up(row: Row, definition: Definition) -> bool:
    """Return whether the row's slot is part of a tail of missed slots that all run."""
    runs_all = definition.catch_up.mode == "all" and not definition.overlap.detaches
    return runs_all and row.origin == Origin.CATCH_UP and row.catch_up_until is not None
