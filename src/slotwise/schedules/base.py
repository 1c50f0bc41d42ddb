"""What a schedule is, a pure function from one instant to the next slot; and the schedules that
need no time zone.

Every schedule has its slots as a line, in microseconds since 1970. Schedules made of others
combine their lines.
"""

from __future__ import annotations

from abc import ABC
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import (
    TYPE_CHECKING,
    ClassVar,
    Final,
    NoReturn,
    Protocol,
    TypedDict,
    Unpack,
)

from slotwise.errors import InvalidSchedule, located
from slotwise.model.durations import format_duration, parse_duration
from slotwise.model.records import (
    EARLIEST,
    EPOCH,
    FOREVER,
    TICK,
    from_micros,
    to_micros,
)

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from slotwise.schedules.calendars import Arrangement, Calendar, Roll


SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND
BEGINNING: Final = to_micros(EARLIEST)
"""Schedules know no slot before this instant…"""
END: Final = to_micros(FOREVER)
"""… and none from this one on."""

_DAY: Final = timedelta(days=1)


def instant_text(instant: datetime) -> str:
    """ISO 8601 in UTC with a Z; microseconds only where there are any."""
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def in_utc(value: datetime | str) -> datetime:
    """The instant in UTC of an aware datetime, or of ISO 8601 with an offset. Raises
    InvalidSchedule.
    """
    cure = "is not an aware datetime; give it a tzinfo"
    if isinstance(value, str):
        value = value.strip()
        cure = (
            "is not an instant; write ISO 8601 with an offset, as 2026-11-21T02:00:00Z"
        )
    with suppress(ValueError, OverflowError):
        instant = datetime.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(instant, datetime) and instant.utcoffset() is not None:
            return instant.astimezone(UTC)
    raise InvalidSchedule(f"{value!r:.60} {cure}")


def _micros(instant: datetime) -> int:
    """Return the instant in microseconds. Raise InvalidSchedule for a naive datetime."""
    try:
        return to_micros(instant)
    except TypeError:
        return to_micros(in_utc(instant))


class Line(Protocol):
    """Slots in order; every method asks for those with `low <= slot < high`: none if `high` is
    below `low`.

    `Schedule` keeps both within BEGINNING and END.
    """

    def first(self, low: int, high: int) -> int | None: ...
    def last(self, low: int, high: int) -> int | None: ...
    def count(self, low: int, high: int) -> int: ...

    def within(self, low: int, high: int) -> Iterable[int]:
        """All of them, in no order; for a few."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Every `step`, through `start`."""

    start: int
    step: int

    def first(self, low: int, high: int) -> int | None:
        found = low + (self.start - low) % self.step
        return found if found < high else None

    def last(self, low: int, high: int) -> int | None:
        found = high - 1 - (high - 1 - self.start) % self.step
        return found if found >= low else None

    def count(self, low: int, high: int) -> int:
        return max(
            0,
            (high - 1 - self.start) // self.step - (low - 1 - self.start) // self.step,
        )

    def within(self, low: int, high: int) -> Iterable[int]:
        return range(low + (self.start - low) % self.step, high, self.step)


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a line with `start <= slot < end`."""

    line: Line
    start: int
    end: int

    def first(self, low: int, high: int) -> int | None:
        return self.line.first(*self._within(low, high))

    def last(self, low: int, high: int) -> int | None:
        return self.line.last(*self._within(low, high))

    def count(self, low: int, high: int) -> int:
        return self.line.count(*self._within(low, high))

    def within(self, low: int, high: int) -> Iterable[int]:
        return self.line.within(*self._within(low, high))

    def _within(self, low: int, high: int) -> tuple[int, int]:
        return max(low, self.start), min(high, self.end)


NOTHING: Final = Window(Grid(0, DAY), 0, 0)


@dataclass(frozen=True, slots=True)
class Delay:
    """One slot: `by` after the end of a run. The tick after that end is `low`; without an end
    there is no slot.
    """

    by: int

    def first(self, low: int, high: int) -> int | None:
        found = low - 1 + self.by
        return found if found < high else None

    def last(self, low: int, high: int) -> int | None:
        return None if low == BEGINNING else self.first(low, high)

    def count(self, low: int, high: int) -> int:
        return len(self.within(low, high))

    def within(self, low: int, high: int) -> list[int]:
        found = self.first(low, high)
        return [] if found is None else [found]


@dataclass(frozen=True, slots=True)
class Unbound:
    """The line of a schedule that lacks something until it is bound: asking it is an error that
    says what.
    """

    lack: str

    def _refuse(self, low: object = None, high: object = None) -> NoReturn:
        raise InvalidSchedule(self.lack)

    first = last = count = within = _refuse


class Schedule(ABC):
    """When a job is due: a strictly increasing sequence of slots, each an instant in UTC.

    Immutable, and equal to every schedule with the same text form. Holds no state: the slots after
    an instant do not depend on earlier calls. All datetimes given must be aware; all returned are
    in UTC.
    """

    __slots__ = ("_text", "line")
    _text: str
    line: Line

    from_end: ClassVar[bool] = False
    """Whether the next slot is defined by the end of the run, which `next_after` then takes."""

    combines: ClassVar[bool] = False
    """Whether AnyOf takes it: all slots are at whole seconds of real time."""

    def next_after(self, t: datetime) -> datetime | None:
        """The first slot strictly after `t`; None if there is none."""
        return _instant(self.line.first(max(_micros(t) + 1, BEGINNING), END))

    def latest_before(
        self, t: datetime, *, floor: datetime | None = None
    ) -> datetime | None:
        """The newest slot strictly before `t`, and strictly after `floor` if given; None
        without one.
        """
        low = BEGINNING if floor is None else max(_micros(floor) + 1, BEGINNING)
        return _instant(self.line.last(low, min(_micros(t), END)))

    def count_between(self, a: datetime, b: datetime) -> int:
        """The number of slots after `a` up to and including `b`: exact, and cheap over years of
        seconds.
        """
        return self.line.count(
            max(_micros(a) + 1, BEGINNING), min(_micros(b) + 1, END)
        )

    def slots(self, a: datetime, b: datetime) -> Iterator[datetime]:
        """The slots after `a` up to and including `b`, in order."""
        slot = self.next_after(a)
        end = in_utc(b)
        while slot is not None and slot <= end:
            yield slot
            slot = None if self.from_end else self.next_after(slot)

    def first_after(self, t: datetime) -> datetime | None:
        """The slot of a job that is planned for the first time at `t`."""
        return self.next_after(t)

    def settled(self, t: datetime) -> Schedule:
        """The simplest schedule with the same slots after `t`."""
        return self

    def wait(self, slot: datetime) -> timedelta:
        """How long after its slot a run is due: zero, unless the schedule has a spread."""
        return timedelta(0)

    @property
    def last(self) -> Schedule:
        """The schedule that finally applies: the one that code proposed last."""
        return self

    @property
    def running(self) -> Schedule:
        """The schedule without the slots that a calendar excludes."""
        return self

    def runs(self, slot: datetime) -> bool:
        """Whether a slot runs: false if a calendar excludes it."""
        before = in_utc(slot) - TICK
        return (
            self.running is self
            or self.running.next_after(before) == slot
            or self.next_after(before) != slot
        )

    def skipped_after(self, t: datetime, until: datetime) -> datetime | None:
        """The first slot after `t` up to and including `until` that does not run."""
        return (
            None
            if self.running is self
            else first_beyond(self.running, self, t, until)
        )

    def leaves(self) -> Iterator[Schedule]:
        """The schedules of a union, bound or succession; else itself."""
        yield self

    @property
    def calendars(self) -> Mapping[str, Calendar | None]:
        """The business calendars it uses: under each name the bound days, or None."""
        return {}

    def bind(
        self, name: str, calendars: Mapping[str, Calendar] | None = None
    ) -> Schedule:
        """The same schedule for the job of this name: `H` becomes a number, calendars become
        these.

        The result has a complete text form. A schedule that needs no binding stays as it is.
        Raises InvalidSchedule if a calendar is missing, or if no slot is left.
        """
        return self

    def between(
        self, start: datetime | str | None = None, end: datetime | str | None = None
    ) -> Schedule:
        """Only its slots from `start` on and before `end`: aware datetimes, ISO 8601 with an
        offset, or None.
        """
        from slotwise.schedules.combinators import Between

        return Between(self, start, end)

    def excluding(self, *calendars: str | Calendar, roll: Roll = "skip") -> Schedule:
        """Without the days that these business calendars exclude.

        `roll` selects what happens to a slot on such a day: `skip` (it exists and does not run;
        the ledger lists it), `drop` (it does not exist), `following` (the next business day, same
        local time), `preceding`, `modified_following` (the next one, or the previous one if the
        next is in another month). For Cron and Daily only, alone or combined. Raises
        InvalidSchedule.
        """
        return self._arranged(roll, calendars)

    def nth_business_day(self, n: int, *calendars: str | Calendar) -> Schedule:
        """Only its slots on the n-th business day of a month; from the month's end where `n` is
        negative.

        Without a calendar, Monday to Friday are business days. Cron and Daily only, alone or
        combined. Raises InvalidSchedule.
        """
        return self._arranged(n, calendars)

    def last_business_day(self, *calendars: str | Calendar) -> Schedule:
        """Only its slots on the last business day of a month; as `nth_business_day(-1)`."""
        return self.nth_business_day(-1, *calendars)

    def _arranged(
        self, how: Arrangement, calendars: Sequence[Calendar | str]
    ) -> Schedule:
        """The same schedule with each of its parts that have local days around the calendars.
        Raises InvalidSchedule.
        """
        raise InvalidSchedule(
            f"{self} has no local days, so a calendar cannot apply; write "
            'Cron("*/5 * * * *", tz="Europe/Vienna")'
        )

    @property
    def local_zone(self) -> ZoneInfo | None:
        """The time zone of its local times; None if it has none, or several."""
        return None

    def in_words(self) -> str:
        """In a few words: ``02:00 Europe/Vienna``, ``every 5m``."""
        return str(self)

    def sentences(self) -> list[str]:
        """Sentences that say when it has slots."""
        return [str(self)]

    def local_text(self, instant: datetime) -> str:
        """The instant by the clocks of the schedule's zone, with its offset."""
        zone = self.local_zone
        if zone is None or zone.key == "UTC":
            return instant_text(instant)
        return instant.astimezone(zone).isoformat()

    def __str__(self) -> str:
        """The complete text form: `parse_schedule` makes an equal schedule of it."""
        return self._text

    def __repr__(self) -> str:
        return f"parse_schedule({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return (
            self._text == other._text
            if isinstance(other, Schedule)
            else NotImplemented
        )

    def __hash__(self) -> int:
        return hash(self._text)

    def __setattr__(self, name: str, value: object = None) -> None:
        raise AttributeError(
            f"{type(self).__name__} is immutable; make a new one instead of changing {name}"
        )

    __delattr__ = __setattr__

    def __reduce__(self) -> tuple[Callable[[str], Schedule], tuple[str]]:
        from slotwise.schedules.text import (
            parse_schedule,
        )  # which knows every kind of schedule

        return parse_schedule, (self._text,)

    def _set(self, **values: object) -> None:
        """Fill the slots of a new instance; for constructors only."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _instant(found: int | None) -> datetime | None:
    return None if found is None else from_micros(found)


def first_beyond(
    part: Schedule, whole: Schedule, t: datetime, until: datetime
) -> datetime | None:
    """Return the first slot in `(t, until]` that `whole` has and its subset `part` lacks; at whole
    seconds.
    """

    def has_more(end: datetime) -> bool:
        return whole.count_between(t, end) > part.count_between(t, end)

    reach = timedelta(minutes=1)
    while t < until and not has_more(end := t + min(reach, until - t)):
        t, reach = end, 2 * reach  # each stretch is counted once
    if t >= until:
        return None
    seconds = range(
        to_micros(t) // SECOND * SECOND + SECOND, to_micros(end) + 1, SECOND
    )
    return from_micros(
        seconds[
            bisect_left(
                seconds, True, key=lambda second: has_more(from_micros(second))
            )
        ]
    )


def due_at(schedule: Schedule, slot: datetime) -> datetime:
    """When the row that waits for ``slot`` is due: at its time, or as much later as the schedule
    is spread.

    A slot that a calendar excludes waits for the next one that runs, or for the last one within a
    day.
    """
    if schedule.from_end or schedule.runs(slot):
        return slot + schedule.wait(slot)
    following = schedule.running.next_after(slot)
    if following is None or following - slot > _DAY:
        following = schedule.latest_before(slot + _DAY, floor=slot) or slot
    return following + schedule.wait(following)


def slot_after(schedule: Schedule, slot: datetime) -> datetime | None:
    """Return from when on a claim of the row that waits for ``slot`` has to decide: from the
    following slot on.

    That is at once for a slot that a calendar excludes.
    """
    if schedule.from_end:
        return None
    return schedule.running.next_after(slot) if schedule.runs(slot) else slot


class SpanParts(TypedDict, total=False):
    """The parts of a duration, in place of a duration."""

    days: int
    hours: int
    minutes: int
    seconds: float


class Every(Schedule):
    """A fixed rate: `Every("5m")`, `Every(minutes=5)` or a timedelta. Slots lie both before and
    after the anchor.

    Without an anchor the grid counts from 1970-01-01T00:00Z. Real time: changes of the clocks do
    not matter. Raises InvalidSchedule.
    """

    __slots__ = ("anchor", "combines", "interval")
    interval: timedelta
    anchor: datetime

    def __init__(
        self,
        interval: timedelta | str | None = None,
        anchor: datetime | str = EPOCH,
        **parts: Unpack[SpanParts],
    ) -> None:
        span = _positive("Every", interval, parts)
        grid = Grid(to_micros(in_utc(anchor)), span // TICK)
        self._set(interval=span, anchor=in_utc(anchor), line=grid)
        self._set(combines=not (grid.start % SECOND or grid.step % SECOND))
        self._set(_text=f"EVERY|{format_duration(span)}|{instant_text(self.anchor)}")

    def in_words(self) -> str:
        every = f"every {format_duration(self.interval)}"
        if self.anchor == EPOCH:
            return every
        return f"{every} from {instant_text(self.anchor)}"

    def sentences(self) -> list[str]:
        begin = "1970" if self.anchor == EPOCH else instant_text(self.anchor)
        interval = format_duration(self.interval)
        return [
            f"Every {interval} of real time, counted from {begin}.",
            "Changes of clocks do not matter.",
        ]


def _positive(kind: str, value: timedelta | str | None, given: SpanParts) -> timedelta:
    """Return the one duration that a constructor was given, as a value or in parts. Raises
    InvalidSchedule.
    """
    parts = timedelta(**given)
    if (value is None) == (not parts):
        raise InvalidSchedule(
            f'{kind} takes one duration, as {kind}("5m") or {kind}(minutes=5)'
        )
    with located(kind, InvalidSchedule):
        duration = parse_duration(parts if value is None else value)
    if not duration:
        raise InvalidSchedule(
            f"{kind}: {format_duration(duration)} is too short; it must be above zero"
        )
    return duration


class FixedDelay(Schedule):
    """The end of a run plus a delay: `FixedDelay("2m")`, `FixedDelay(minutes=2)` or a timedelta.

    `next_after(t)` takes the end of the run. Until the next run has ended, only one slot
    is known, so at most one is counted. Raises InvalidSchedule.
    """

    __slots__ = ("delay",)
    from_end = True
    delay: timedelta

    def __init__(
        self,
        delay: timedelta | str | None = None,
        **parts: Unpack[SpanParts],
    ) -> None:
        span = _positive("FixedDelay", delay, parts)
        self._set(
            delay=span,
            line=Delay(span // TICK),
            _text=f"FIXED_DELAY|{format_duration(span)}",
        )

    def first_after(self, t: datetime) -> datetime | None:
        return in_utc(t)

    def in_words(self) -> str:
        return f"{format_duration(self.delay)} after each run"

    def sentences(self) -> list[str]:
        delay = format_duration(self.delay)
        return [f"{delay} after the end of the previous run, by the database's clock."]


class Once(Schedule):
    """One slot: an aware datetime, or its ISO 8601 text with an offset.

    A job that is planned for the first time after that instant runs at once, unless the ledger
    knows the slot. Raises InvalidSchedule.
    """

    __slots__ = ("at", "combines")
    at: datetime

    def __init__(self, at: datetime | str) -> None:
        self._set(at=in_utc(at))
        slot = to_micros(self.at)
        self._set(
            line=Window(Grid(slot, DAY), slot, slot + 1), combines=not slot % SECOND
        )
        self._set(_text=f"ONCE|{instant_text(self.at)}")

    def first_after(self, t: datetime) -> datetime | None:
        return self.at

    def in_words(self) -> str:
        return f"once at {instant_text(self.at)}"

    def sentences(self) -> list[str]:
        late = "a job that is planned later runs at once, unless the slot ran already"
        return [f"Once, at {instant_text(self.at)}; {late}."]


class Disabled(Schedule):
    """No slot at all: the job keeps its row and does not run. Its text is `-`."""

    __slots__ = ()

    def __init__(self) -> None:
        self._set(line=NOTHING, _text="-")

    def in_words(self) -> str:
        return "never"

    def sentences(self) -> list[str]:
        return ["Never: the job keeps its row and does not run."]
