"""Which of several slots of a schedule runs, by catch-up or by overlap, and which do not.

Policies see only the running slots of a schedule; those that a calendar excludes are written down
beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from slotwise.jobs.policies import CatchUp, Overlap
from slotwise.model.records import TICK, Gap
from slotwise.model.vocabulary import Reason
from slotwise.schedules import Disabled, Schedule, succeed


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

    def stands_for_others(self, oldest: datetime) -> bool:
        """Whether more slots than ``oldest`` were missed."""
        is_newer = self.watermark > oldest or self.until not in (None, oldest)
        return is_newer or bool(self.gaps)


def span(schedule: Schedule, first: datetime, last: datetime, reason: str) -> Gap:
    """Return the slots from ``first`` to ``last``, both included, as a gap. ``first`` always
    counts as a slot.
    """
    return Gap(
        first=first,
        last=last,
        count=1 + schedule.count_between(first, last),
        reason=reason,
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
    newest = oldest
    if not schedule.from_end:
        newest = schedule.latest_before((until or now) + TICK, floor=oldest) or oldest
    limit = latest_start(catch_up, start_within)
    bound = oldest if limit is None else max(oldest, now - limit)
    first = oldest if bound == oldest else schedule.next_after(bound - TICK)
    if first is None or first > newest:
        late = span(schedule, oldest, newest, Reason.LATE)
        return Choice(slot=None, watermark=newest, gaps=(late,))
    return _choose_from(catch_up, schedule, oldest, first, newest)


def _choose_from(
    catch_up: CatchUp,
    schedule: Schedule,
    oldest: datetime,
    first: datetime,
    newest: datetime,
) -> Choice:
    """Choose which of the slots from ``first`` to ``newest`` runs; those from ``oldest`` on that
    are older are too late.
    """
    late = slots_before(schedule, oldest, first, Reason.LATE)
    if catch_up.mode == "all":
        kept = first
        if catch_up.max is not None:
            kept = _newest_few(schedule, first, newest, catch_up.max)
        gaps = (*late, *slots_before(schedule, first, kept, Reason.COLLAPSED))
        return Choice(slot=kept, watermark=kept, gaps=gaps, until=newest)
    slot = newest
    if catch_up.mode == "first":
        slot = first
        gaps = (*late, *slots_between(schedule, first, newest, Reason.COLLAPSED))
    else:
        reason = Reason.LATE if catch_up.mode == "none" else Reason.COLLAPSED
        gaps = slots_before(schedule, oldest, newest, reason)
    collapsed = slots_in(gaps, Reason.COLLAPSED)
    return Choice(slot=slot, watermark=newest, gaps=gaps, collapsed=collapsed)


def choose_overlapped(
    overlap: Overlap, schedule: Schedule, base: datetime, held_until: datetime
) -> Choice:
    """Choose by overlap which of the slots after ``base`` that came due while the job was held run
    next.
    """
    newest = (
        None
        if schedule.from_end
        else schedule.latest_before(held_until + TICK, floor=base)
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
            return Choice(
                slot=kept, watermark=gaps[-1].last if gaps else base, gaps=gaps
            )
        case _:
            return Choice(
                slot=None,
                watermark=newest,
                gaps=(span(schedule, first, newest, Reason.OVERLAP),),
            )


def passed_over(
    schedule: Schedule, first: datetime, until: datetime
) -> tuple[Gap, ...]:
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
        part
        for gap in gaps
        for part in without(schedule, gap, [(slot + TICK, watermark)])
    )


def latest_start(
    catch_up: CatchUp, start_within: timedelta | None
) -> timedelta | None:
    """Return how late a slot may start; None: without a limit."""
    own = {"none": catch_up.grace, "all": catch_up.window}.get(catch_up.mode)
    return min(
        (limit for limit in (start_within, own) if limit is not None), default=None
    )


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
