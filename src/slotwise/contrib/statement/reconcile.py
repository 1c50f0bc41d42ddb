"""Reconcile the slots of schedules with what the ledger has of them. Pure functions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from slotwise import InvalidSchedule, Schedule, parse_schedule
from slotwise.inspect import OutcomeCount, ScheduleSpan, SlotInfo, Value
from slotwise.spi import Origin, Outcome

#: A run that began later than this after its slot is late.
LATE: Final = timedelta(minutes=1)
#: The most slots without an explanation that are listed.
SHOWN: Final = 10
#: The fields of a statement that are a number.
NUMBERS: Final = ("expected", "ran", "late", "open", "unexplained", "beside", "pruned")
#: Begins the end of a slot that was skipped; the reason follows.
_SKIPPED: Final = f"{Outcome.SKIPPED} "
_TICK: Final = timedelta(microseconds=1)
_PLANNED: Final = (Origin.SCHEDULE, Origin.CATCH_UP, None)
_OPEN: Final = (Outcome.CLAIMED, Outcome.RUNNING, "waiting")
#: How many slots were pruned, by the hour of the slot, and the end of these slots.
Pruned: TypeAlias = Counter[tuple[datetime, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatement(Value):
    """A job, or an instance: ``expected`` = ``ran`` + ``late`` + ``failed`` + skipped + ``open``
    + ``unexplained``.

    ``late``: succeeded, and began more than a minute after the slot, or as catch-up. ``failed``
    has the outcomes of those that ended otherwise, ``skipped`` the reasons of those that did not
    begin. ``open``: due, and not over yet. ``beside``: runs that no schedule had: triggers,
    backfills of other instants, retries by hand. ``pruned``: how many of the slots are known from
    the hourly counts of what was pruned; of these nothing is ``late``. ``first_unexplained``: the
    first of the slots that nothing explains. If other slots of its hour were pruned, these are
    taken to be the oldest ones. A schedule that this release cannot read, or a FixedDelay, expects
    what it had.
    """

    job: str
    id: str
    expected: int = 0
    ran: int = 0
    late: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    open: int = 0
    unexplained: int = 0
    beside: int = 0
    pruned: int = 0
    first_unexplained: Sequence[datetime] = ()

    @property
    def balances(self) -> bool:
        """Whether everything that was expected is explained."""
        known = self.ran + self.late + self.open
        known += sum(self.failed.values()) + sum(self.skipped.values())
        return self.expected == known and not self.unexplained


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement(Value):
    """The statement of the time from ``start`` to before ``end``, of each job and in total."""

    start: datetime
    end: datetime
    jobs: Sequence[JobStatement]
    total: JobStatement


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What is known of a job or an instance in a time: the schedules that it had, and what the
    ledger has. From ``undecided`` on, slots are yet to be decided.
    """

    job: str
    id: str
    spans: Sequence[ScheduleSpan]
    entries: Sequence[SlotInfo]
    undecided: datetime | None


def reconcile(
    books: Books, start: datetime, end: datetime, pruned: Pruned
) -> JobStatement:
    """Return the statement of a job from ``start`` to before ``end``.

    A slot is explained by its row or gap in the ledger, or by one that was ``pruned`` in its hour.
    What explains a slot is taken from there, and explains no slot of another row.
    """
    expected = _expected(books, start, end)
    ends: list[str | None] = [None] * len(expected)
    beside = 0
    for entry in books.entries:
        if entry.last is not None:
            continue
        place = bisect_left(expected, entry.slot)
        if place < len(expected) and expected[place] == entry.slot:
            ends[place] = _end_of(entry)
        elif start <= entry.slot < end:
            beside += 1
    for entry in books.entries:
        if entry.last is None:
            continue
        first, last = (
            bisect_left(expected, entry.slot),
            bisect_right(expected, entry.last),
        )
        for place in range(first, last):
            ends[place] = ends[place] or f"{_SKIPPED}{entry.reason}"
    if books.undecided is not None:
        for place in range(bisect_left(expected, books.undecided), len(expected)):
            ends[place] = ends[place] or "open"
    lacking = ends.count(None)
    _take_pruned(expected, ends, pruned)
    explained = lacking - ends.count(None)
    return _stated(books, expected, ends, beside, explained)


def _take_pruned(
    expected: Sequence[datetime], ends: list[str | None], pruned: Pruned
) -> None:
    """Explain slots without an end by those that were pruned in their hour.

    The counts divide a gap by the hours as if its slots were at equal distances. So slots that
    were skipped explain those of other hours, too, after those of their own.
    """
    by_hour = defaultdict[datetime, list[str]](list)
    for hour, end in sorted(+pruned):
        by_hour[hour].append(end)
    skipped = [one for one in sorted(+pruned) if one[1].startswith(_SKIPPED)]
    missing = [place for place, end in enumerate(ends) if end is None]
    for place in missing:
        hour = _hour_of(expected[place])
        ends[place] = _taken(pruned, [(hour, end) for end in by_hour[hour]])
    for place in missing:
        ends[place] = ends[place] or _taken(pruned, skipped)


def _taken(pruned: Pruned, wanted: Sequence[tuple[datetime, str]]) -> str | None:
    """Take one of the first of these that is left; return its end."""
    for one in wanted:
        if pruned[one] > 0:
            pruned[one] -= 1
            return one[1]
    return None


def _hour_of(slot: datetime) -> datetime:
    return slot.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def pruned_in(counts: Iterable[OutcomeCount]) -> Pruned:
    """Return what was pruned of a job, and is in no ledger any more."""
    found: Pruned = Counter()
    for one in counts:
        end = str(one.outcome)
        if one.outcome == Outcome.SUCCEEDED:
            end = "ran"
        elif one.outcome == Outcome.SKIPPED:
            end = f"{_SKIPPED}{one.reason}"
        found[one.hour, end] += one.pruned
    return +found


def _stated(
    books: Books,
    expected: Sequence[datetime],
    ends: Sequence[str | None],
    beside: int,
    pruned: int,
) -> JobStatement:
    count = Counter(end for end in ends if end is not None)
    missing = [slot for slot, end in zip(expected, ends, strict=True) if end is None]
    failed, skipped = _failed_and_skipped(count)
    return JobStatement(
        job=books.job,
        id=books.id,
        expected=len(expected),
        ran=count["ran"],
        late=count["late"],
        failed=failed,
        skipped=skipped,
        open=count["open"],
        unexplained=len(missing),
        beside=beside,
        pruned=pruned,
        first_unexplained=tuple(missing[:SHOWN]),
    )


def _failed_and_skipped(
    count: Mapping[str, int],
) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many slots have failed, by outcome, and were skipped, by reason."""
    failed, skipped = dict[str, int](), dict[str, int]()
    for end, number in count.items():
        if end.startswith(_SKIPPED):
            skipped[end.removeprefix(_SKIPPED)] = number
        elif end not in ("ran", "late", "open"):
            failed[end] = number
    return failed, dict(sorted(skipped.items()))


def _expected(books: Books, start: datetime, end: datetime) -> list[datetime]:
    """Return the slots of all schedules that the job had, each once, in order."""
    found = set[datetime]()
    former: Schedule | None = None
    for span in books.spans:
        schedule = _read(span.schedule)
        since = max([span.since, *_ahead(books.entries, span, former, schedule)])
        first, last = max(since, start - _TICK), min(span.until, end - _TICK)
        former = schedule
        if schedule is None or schedule.from_end:
            found.update(_had(books.entries, first, last))
            continue
        if span.is_first:
            slot = schedule.first_after(span.since)
            if slot is not None and start <= slot <= last:
                found.add(slot)
        planned = schedule.slots(first, last)
        found.update(planned)
    return sorted(found)


def _read(text: str) -> Schedule | None:
    try:
        return parse_schedule(text)
    except InvalidSchedule:
        return None


def _ahead(
    entries: Iterable[SlotInfo],
    span: ScheduleSpan,
    former: Schedule | None,
    schedule: Schedule | None,
) -> Iterable[datetime]:
    """Yield the slots that the former schedule alone has, and had decided before this one came,
    although they are after the change: the clock was set back between. This one owes nothing up
    to them.
    """
    if former is None or schedule is None or former.from_end or schedule.from_end:
        return
    for slot in _had(entries, span.since, span.until):
        is_former = former.first_after(slot - _TICK) == slot
        if is_former and schedule.first_after(slot - _TICK) != slot:
            yield slot


def _had(
    entries: Iterable[SlotInfo], first: datetime, last: datetime
) -> Iterable[datetime]:
    """Yield the planned slots of a time as the ledger has them."""
    for entry in entries:
        if entry.origin in _PLANNED and first < entry.slot <= last:
            yield entry.slot


def _end_of(entry: SlotInfo) -> str:
    if entry.outcome == Outcome.SUCCEEDED:
        is_late = entry.started is not None and entry.started > entry.slot + LATE
        return "late" if is_late or entry.origin == Origin.CATCH_UP else "ran"
    if entry.outcome == Outcome.SKIPPED:
        return f"{_SKIPPED}{entry.reason}"
    return "open" if entry.outcome in _OPEN else str(entry.outcome)


def added_up(jobs: Iterable[JobStatement]) -> JobStatement:
    """Return the total of several jobs."""
    count = Counter[str]()
    failed, skipped = Counter[str](), Counter[str]()
    for one in jobs:
        count.update({name: getattr(one, name) for name in NUMBERS})
        failed.update(one.failed)
        skipped.update(one.skipped)
    return JobStatement(
        job="",
        id="",
        expected=count["expected"],
        ran=count["ran"],
        late=count["late"],
        failed=dict(sorted(failed.items())),
        skipped=dict(sorted(skipped.items())),
        open=count["open"],
        unexplained=count["unexplained"],
        beside=count["beside"],
        pruned=count["pruned"],
    )
