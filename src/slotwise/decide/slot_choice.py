"""Which of several due slots runs, and what becomes of the others. Pure: catch-up for slots that were missed
while nobody held the job, overlap for those that came due while the slot before them was held. Slots that a calendar
passes over are no choice: policies look at a schedule's running slots, and the others are written down beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from slotwise.jobs.policies import CatchUp, Overlap
from slotwise.model.records import TICK, Gap
from slotwise.model.vocabulary import Reason
from slotwise.schedules import Disabled, Schedule, succeed

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """``slot`` runs now (None: none of them); ``watermark`` is the newest that is decided with it.

    ``until``: the end of a tail, whose slots run one after another.
    """

    slot: datetime | None
    watermark: datetime
    gaps: tuple[Gap, ...] = ()
    collapsed: int = 0
    until: datetime | None = None


def span(schedule: Schedule, first: datetime, last: datetime, reason: str) -> Gap:
    """The slots from ``first`` to ``last``, both included, as a gap. The first counts whatever the text says now."""
    return Gap(first=first, last=last, count=1 + schedule.count_between(first, last), reason=reason)


def choose_missed(
    catch_up: CatchUp,
    start_within: timedelta | None,
    schedule: Schedule,
    oldest: datetime,
    now: datetime,
    until: datetime | None = None,
) -> Choice:
    """Of the slots from ``oldest`` (due) up to ``until`` (None: up to now): which one runs, by the job's catch-up."""
    newest = oldest if schedule.from_end else schedule.latest_before((until or now) + TICK, floor=oldest) or oldest
    limit = _limit(catch_up, start_within)
    first = _first_from(schedule, oldest, newest, None if limit is None else now - limit)
    if first is None:
        return Choice(slot=None, watermark=newest, gaps=(span(schedule, oldest, newest, Reason.LATE),))
    late = slots_before(schedule, oldest, first, Reason.LATE)
    match catch_up.mode:
        case "all":
            kept = first if catch_up.max is None else _newest_few(schedule, first, newest, catch_up.max)
            dropped = slots_before(schedule, first, kept, Reason.COLLAPSED)
            return Choice(slot=kept, watermark=kept, gaps=(*late, *dropped), until=newest)
        case "first":
            rest = slots_between(schedule, first, newest, Reason.COLLAPSED)
            return Choice(slot=first, watermark=newest, gaps=(*late, *rest), collapsed=_count(rest))
        case "none":
            return Choice(slot=newest, watermark=newest, gaps=slots_before(schedule, oldest, newest, Reason.LATE))
        case _:
            older = slots_before(schedule, oldest, newest, Reason.COLLAPSED)
            return Choice(slot=newest, watermark=newest, gaps=older, collapsed=_count(older))


def too_late(
    catch_up: CatchUp, start_within: timedelta | None, schedule: Schedule, slot: datetime, now: datetime
) -> str | None:
    """Why a slot that was handed back before it began does not start any more: ``late``, or ``collapsed`` where the
    newest ``max`` have come since. None: it may start.
    """
    limit = _limit(catch_up, start_within)
    if limit is not None and slot < now - limit:
        return Reason.LATE
    few = catch_up.max if catch_up.mode == "all" else None
    return Reason.COLLAPSED if few is not None and schedule.count_between(slot, now) >= few else None


def choose_overlapped(overlap: Overlap, schedule: Schedule, base: datetime, held_until: datetime) -> Choice:
    """Of the slots after ``base`` that came due while it was held: which are kept to run next, by the job's overlap."""
    newest = None if schedule.from_end else schedule.latest_before(held_until + TICK, floor=base)
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
            return Choice(slot=None, watermark=newest, gaps=(span(schedule, first, newest, Reason.OVERLAP),))


def passed_over(schedule: Schedule, first: datetime, until: datetime) -> tuple[Gap, ...]:
    """The slots from ``first`` up to ``until`` that a calendar passes over: each run of them a gap."""
    found, slot = [], schedule.skipped_after(first - TICK, until)
    while slot is not None:
        following = schedule.running.next_after(slot)
        end = until + TICK if following is None else min(following, until + TICK)
        last = schedule.latest_before(end, floor=slot) or slot
        found.append(span(schedule, slot, last, Reason.CALENDAR))
        slot = schedule.skipped_after(last, until)
    return tuple(found)


def around(schedule: Schedule, passed: tuple[Gap, ...], gaps: tuple[Gap, ...]) -> tuple[Gap, ...]:
    """The gaps of a schedule's running slots, cut where passed over slots lie among them; with those, in order."""
    if not passed:
        return gaps
    running = schedule.running
    found = list(passed)
    for gap in gaps:
        first = gap.first
        for between in passed:
            if first < between.first < gap.last:
                found.extend(slots_before(running, first, between.first, gap.reason))
                first = running.next_after(between.last) or gap.last
        found.append(span(running, first, gap.last, gap.reason))
    return tuple(sorted(found, key=lambda gap: gap.first))


def undecided(schedule: Schedule, slot: datetime | None, watermark: datetime | None) -> Schedule:
    """The schedule as it is still to be decided, for a row that waits for ``slot``: without slots between that and
    ``watermark``. They were left out when the slot was held, and it was handed back.
    """
    if slot is None or watermark is None or slot >= watermark:
        return schedule
    return succeed(succeed(schedule, slot, Disabled()), watermark, schedule)


def cut(schedule: Schedule, gaps: tuple[Gap, ...], slot: datetime, watermark: datetime) -> tuple[Gap, ...]:
    """The gaps of what was still to be decided, each without the slots between ``slot`` and ``watermark``."""
    found: list[Gap] = []
    for gap in gaps:
        if not gap.first <= slot < watermark < gap.last:
            found.append(gap)
            continue
        found.append(span(schedule, gap.first, slot, gap.reason))
        found.extend(slots_between(schedule, watermark, gap.last, gap.reason))
    return tuple(found)


def due_at(schedule: Schedule, slot: datetime) -> datetime:
    """When the row that waits for ``slot`` is due: at its time, or as much later as the schedule is spread.

    A slot that a calendar passes over waits for the next one that runs, or for the last one within a day: a claim
    then writes down the whole run of them.
    """
    if schedule.from_end or schedule.runs(slot):
        return slot + schedule.wait(slot)
    following = schedule.running.next_after(slot)
    if following is None or following - slot > _DAY:
        following = schedule.latest_before(slot + _DAY, floor=slot) or slot
    return following + schedule.wait(following)


def slot_after(schedule: Schedule, slot: datetime) -> datetime | None:
    """What a row notes as its next slot while it waits for ``slot``: once that has come, slots were missed.

    For a slot that a calendar passes over it is that slot itself: it is always for a decision.
    """
    if schedule.from_end:
        return None
    return schedule.running.next_after(slot) if schedule.runs(slot) else slot


def _limit(catch_up: CatchUp, start_within: timedelta | None) -> timedelta | None:
    """How late a slot may start, at the most."""
    limits = [start_within]
    if catch_up.mode == "none":
        limits.append(catch_up.grace)
    if catch_up.mode == "all":
        limits.append(catch_up.window)
    return min((limit for limit in limits if limit is not None), default=None)


def _first_from(schedule: Schedule, oldest: datetime, newest: datetime, bound: datetime | None) -> datetime | None:
    """The first slot at or after ``bound``, of those from ``oldest`` to ``newest``."""
    if bound is None or bound <= oldest:
        return oldest
    found = schedule.next_after(bound - TICK)
    return found if found is not None and found <= newest else None


def _newest_few(schedule: Schedule, first: datetime, newest: datetime, few: int) -> datetime:
    """The oldest of the newest ``few`` slots from ``first`` to ``newest``."""
    if schedule.count_between(first, newest) < few:
        return first
    slot = newest
    for _ in range(few - 1):
        before = schedule.latest_before(slot, floor=first - TICK)
        if before is None:
            return slot
        slot = before
    return slot


def slots_before(schedule: Schedule, first: datetime, end: datetime, reason: str) -> tuple[Gap, ...]:
    """The slots from ``first`` up to, and without, ``end``; nothing if there are none."""
    if end <= first:
        return ()
    return (span(schedule, first, schedule.latest_before(end, floor=first - TICK) or first, reason),)


def slots_between(schedule: Schedule, start: datetime, last: datetime, reason: str) -> tuple[Gap, ...]:
    """The slots after ``start`` up to ``last``; nothing if there are none."""
    following = schedule.next_after(start)
    if following is None or following > last:
        return ()
    return (span(schedule, following, last, reason),)


def _count(gaps: tuple[Gap, ...]) -> int:
    return sum(gap.count for gap in gaps)
