"""Places on a time axis: what a template draws, in percent of the width."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from html import escape
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo

from markupsafe import Markup

from slotwise.inspect import OutcomeCount, OutcomePart, SlotInfo, SlotWindow
from slotwise.spi import Outcome, SlotState, short_duration

#: Distances between two marks of an axis, in rising order; the first that gives few enough marks
#: is taken.
_STEPS: Final = tuple(
    timedelta(seconds=seconds)
    for seconds in (
        1,
        5,
        15,
        60,
        300,
        900,
        3600,
        3 * 3600,
        6 * 3600,
        86_400,
        7 * 86_400,
    )
)
_MOST_TICKS: Final = 12
#: A run is at least this wide; one job's marks beyond this number are drawn in parts of the width.
_THIN: Final = 0.15
_MOST_MARKS: Final = 400
#: Place and height of a mark in its row; of runs that overlap, a half.
_TOP: Final = 4
_HEIGHT: Final = 14
PARTS: Final = 120
_TOGETHER: Final = PARTS // 12
#: A gap that is at least this wide has its reason on it.
_ROOM_FOR_TEXT: Final = 9.0
_ROOM_FOR_COUNT: Final = 3.0
_DAY: Final = timedelta(days=1)
#: The worst outcome of several decides the colour of a mark.
_WORST: Final = (
    Outcome.DEAD,
    Outcome.LOST,
    Outcome.FAILED,
    Outcome.CANCELLED,
    Outcome.SKIPPED,
    Outcome.RUNNING,
    Outcome.CLAIMED,
    Outcome.SUCCEEDED,
)
_RANKS: Final[Mapping[str, int]] = {one: rank for rank, one in enumerate(_WORST)}
#: Slots of a part of the axis by outcome. A page has thousands of these: a Counter takes longer.
_Outcomes: TypeAlias = dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A rectangle on a row: a run, a gap, an expected slot, or several of them."""

    kind: str
    left: float
    width: float
    title: str
    at: datetime
    text: str = ""
    #: From the upper edge of the row; runs that overlap lie one above the other.
    top: int = _TOP
    height: int = _HEIGHT
    #: Where a retry, or a take-over from a lost worker, is to be seen: "retried", "taken-over".
    sign: str = ""

    @property
    def shape(self) -> str:
        """The rectangle and what is on it, as SVG, but for its title."""
        kind = escape(self.kind)
        place = f'x="{self.left}%" width="{self.width}%" y="{self.top}" height="{self.height}"'
        return f'<rect class="{kind}" {place}>'

    @property
    def label(self) -> str:
        """The sign and the text of the mark, as SVG."""
        found = ""
        if self.sign:
            place = f'cx="{self.left}%" cy="{self.top}" r="2.5"'
            found += f'<circle class="{escape(self.sign)}" {place}/>'
        if self.text:
            left = self.left + 0.4
            found += f'<text x="{left}%" y="15">{escape(self.text)}</text>'
        return found


def drawn_marks(marks: Iterable[Mark], address: str, zone: ZoneInfo) -> Markup:
    """Return a row's marks as SVG, each a link to ``address`` with its instant; titles have the
    time by the clocks of a zone. A page has thousands: a template takes ten times as long.
    """
    begin = f'<a href="{escape(address)}&amp;at='
    drawn = [
        f'{begin}{_address_of(one.at)}" tabindex="-1">'
        f"{one.shape}<title>{escape(_told(one, zone))}</title></rect>{one.label}</a>"
        for one in marks
    ]
    return Markup("\n".join(drawn))


def _address_of(instant: datetime) -> str:
    """Write an instant as addresses have it: without a character that must be quoted."""
    return f"{instant.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"


def _told(mark: Mark, zone: ZoneInfo) -> str:
    return mark.title.replace("{at}", seconds_of(mark.at.astimezone(zone)))


def drawn_strip(slots: Iterable[SlotInfo], address: str, zone: ZoneInfo) -> Markup:
    """Return slots as items of a list, each a link to ``address`` with its instant."""
    begin = f'<a href="{escape(address)}&amp;at='
    drawn = [
        f'<li class="{escape(one.outcome)}">{begin}{_address_of(one.slot)}" '
        f'title="{escape(_told_slot(one, zone))}"><span class="hide">'
        f"{one.slot.isoformat()} {escape(one.outcome)}</span></a></li>"
        for one in slots
    ]
    return Markup("\n".join(drawn))


def _told_slot(one: SlotInfo, zone: ZoneInfo) -> str:
    reason = f" ({one.reason.replace('_', ' ')})" if one.reason else ""
    count = f", {one.count} slots" if one.last else ""
    return f"{seconds_of(one.slot.astimezone(zone))} {one.outcome}{reason}{count}"


def seconds_of(local: datetime) -> str:
    """Write a time by its own clock, to the second; ``strftime`` takes twice as long."""
    return local.replace(tzinfo=None).isoformat(" ", "seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """What concerns all rows, from one instant to another."""

    kind: str
    start: datetime
    end: datetime
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnBand:
    """A band with its place on an axis."""

    band: Band
    left: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A window of time, by the clocks of a zone."""

    start: datetime
    end: datetime
    zone: ZoneInfo

    @property
    def length(self) -> timedelta:
        """How long the window is."""
        return self.end - self.start

    def left(self, instant: datetime) -> float:
        """Return the place of an instant; of one outside, that of the nearer end."""
        share = (instant - self.start) / self.length
        return round(100 * min(max(share, 0.0), 1.0), 3)

    def width(self, start: datetime, end: datetime) -> float:
        """Return the width of a range, at least that of a thin line."""
        return max(round(self.left(end) - self.left(start), 3), _THIN)

    def drawn(self, band: Band) -> DrawnBand:
        """Return a band with its place."""
        return DrawnBand(
            band=band,
            left=self.left(band.start),
            width=self.width(band.start, band.end),
        )

    def ticks(self) -> list[tuple[float, str]]:
        """Return the marks of the axis: places and texts."""
        step = next((one for one in _STEPS if self.length / one <= _MOST_TICKS), None)
        if step is None:
            step = timedelta(days=-(-self.length // (_MOST_TICKS * _DAY)))
        form = (
            "%d %b"
            if step >= _DAY
            else "%H:%M"
            if step.seconds % 60 == 0
            else "%H:%M:%S"
        )
        found = list[tuple[float, str]]()
        instant = self._first(step)
        while instant < self.end:
            local = instant.astimezone(self.zone)
            is_midnight = (local.hour, local.minute, local.second) == (0, 0, 0)
            text = f"{local:%d %b}" if is_midnight else f"{local:{form}}"
            found.append((self.left(instant), text))
            instant += step
        return found

    def _first(self, step: timedelta) -> datetime:
        """The first local time in the window that is a multiple of the step since midnight."""
        local = self.start.astimezone(self.zone)
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
        passed = self.start - midnight
        return midnight + -(-passed // step) * step

    def clock_changes(self) -> Iterator[Band]:
        """Yield a band for each change of the clocks in the window."""
        day = self.start
        while day < self.end:
            following = min(day + _DAY, self.end)
            before = day.astimezone(self.zone).utcoffset()
            after = following.astimezone(self.zone).utcoffset()
            if before != after:
                yield self._change(day, following)
            day = following

    def _change(self, low: datetime, high: datetime) -> Band:
        """Find the change between two instants with different offsets, to the minute."""
        offset = low.astimezone(self.zone).utcoffset()
        while high - low > timedelta(minutes=1):
            middle = low + (high - low) / 2
            if middle.astimezone(self.zone).utcoffset() == offset:
                low = middle
            else:
                high = middle
        after = high.astimezone(self.zone)
        hour = timedelta(hours=1)
        title = f"the clocks change to {after:%Z} at {after:%Y-%m-%d %H:%M}"
        return Band(kind="clocks", start=high - hour, end=high + hour, title=title)


def marks_of(window: SlotWindow, axis: Axis, now: datetime) -> list[Mark]:
    """Return what a job's row shows: expected slots as outlines, runs, gaps as one mark each."""
    runs = [line for line in window.actual if line.last is None]
    gaps = [line for line in window.actual if line.last is not None]
    coming = [slot for slot in window.expected if slot > now]
    started = {line.slot for line in runs}
    expected = [
        slot for slot in window.expected if slot <= now and slot not in started
    ]
    if len(runs) + len(expected) + len(coming) > _MOST_MARKS:
        marks = list(_in_parts(runs, coming, axis))
    else:
        marks = [_expected(slot, axis, SlotState.UPCOMING) for slot in coming]
        marks += [
            _expected(slot, axis, "expected")
            for slot in expected
            if not any(gap.slot <= slot <= (gap.last or slot) for gap in gaps)
        ]
        marks += _side_by_side([_run(line, axis, now) for line in runs])
    return marks + [_gap(line, axis) for line in gaps]


def counted_marks(counts: Iterable[OutcomePart], axis: Axis) -> list[Mark]:
    """Return what a job's row shows of parts of the window, where single slots are closer than the
    eye can tell.
    """
    by_part = defaultdict[int, _Outcomes](dict)
    for one in counts:
        _count(by_part[one.part], one.outcome, one.count)
    return _joined(by_part, axis)


def pause_marks(bands: Iterable[Band], axis: Axis) -> list[Mark]:
    """Return what a job's row shows of its pauses."""
    return [
        Mark(
            kind=one.kind,
            left=axis.left(one.start),
            width=axis.width(one.start, one.end),
            title=f"{{at}} {one.title}",
            at=one.start,
            top=_TOP + _HEIGHT,
            height=3,
        )
        for one in bands
        if one.end >= axis.start and one.start < axis.end
    ]


def _side_by_side(runs: Sequence[Mark]) -> list[Mark]:
    """Return these runs; those that overlap with the one before in halves of the row's height."""
    ordered = sorted(runs, key=lambda one: one.left)
    half = _HEIGHT // 2
    found = list[Mark]()
    until = -1.0
    for one in ordered:
        overlaps = one.left < until and one.width > _THIN
        if overlaps:
            is_upper = found[-1].height == half and found[-1].top == _TOP + half
            if found[-1].height != half:
                found[-1] = replace(found[-1], height=half)
            top = _TOP if is_upper else _TOP + half
            found.append(replace(one, top=top, height=half))
        else:
            found.append(one)
        until = max(until, one.left + one.width)
    return found


def _expected(slot: datetime, axis: Axis, kind: str) -> Mark:
    said = (
        "is to come"
        if kind == SlotState.UPCOMING
        else "was expected, and has not been decided"
    )
    return Mark(
        kind=kind,
        left=axis.left(slot),
        width=_THIN * 3,
        title=f"{{at}} {said}",
        at=slot,
    )


def _run(line: SlotInfo, axis: Axis, now: datetime) -> Mark:
    start = line.started or line.slot
    end = line.finished or (
        now if line.outcome in (Outcome.RUNNING, Outcome.CLAIMED) else start
    )
    retries = f", {line.attempts} attempts" if line.attempts > 1 else ""
    if line.lost_by is not None:
        retries += f", taken over from {line.lost_by}"
    reason = f" ({line.reason.replace('_', ' ')})" if line.reason else ""
    return Mark(
        kind=line.outcome,
        left=axis.left(start),
        width=axis.width(start, end),
        title=f"{{at}} {line.outcome}{reason}{retries}",
        at=line.slot,
        sign=_sign(line),
    )


def _sign(line: SlotInfo) -> str:
    if line.lost_by is not None:
        return "taken-over"
    return "retried" if line.attempts > 1 else ""


def _gap(line: SlotInfo, axis: Axis) -> Mark:
    last = line.last or line.slot
    reason = (line.reason or "skipped").replace("_", " ")
    said = f"{reason}: {line.count:,} slot{'' if line.count == 1 else 's'}"
    width = axis.width(line.slot, last)
    return Mark(
        kind="gap",
        left=axis.left(line.slot),
        width=max(width, 4 * _THIN),
        title=f"{{at}} {said} did not run",
        at=line.slot,
        text=_short(said, line.count, width),
    )


def _short(said: str, count: int, width: float) -> str:
    if width >= _ROOM_FOR_TEXT:
        return said
    return f"{count:,} ×" if width >= _ROOM_FOR_COUNT else ""


def _in_parts(
    runs: Iterable[SlotInfo], coming: Sequence[datetime], axis: Axis
) -> Iterator[Mark]:
    by_part = defaultdict[int, _Outcomes](dict)
    for line in runs:
        _count(by_part[_part(line.slot, axis)], line.outcome, 1)
    for slot in coming:
        _count(by_part[_part(slot, axis)], SlotState.UPCOMING, 1)
    yield from _joined(by_part, axis)


def _count(outcomes: _Outcomes, outcome: str, count: int) -> None:
    outcomes[outcome] = outcomes.get(outcome, 0) + count


@dataclass(slots=True)
class _Together:
    """Neighbouring parts with the same worst outcome, and what they have counted."""

    first: int
    last: int
    worst: str
    outcomes: _Outcomes


def _joined(by_part: Mapping[int, _Outcomes], axis: Axis) -> list[Mark]:
    """Return the marks of these parts. Neighbours with the same worst outcome are one mark, up to a
    twelfth of the axis, so that a click still finds the time.
    """
    runs = list[_Together]()
    for part, outcomes in sorted(by_part.items()):
        worst = min(outcomes, key=_rank)
        before = runs[-1] if runs and part % _TOGETHER else None
        if before is None or (before.last + 1, before.worst) != (part, worst):
            runs.append(_Together(part, part, worst, outcomes.copy()))
            continue
        before.last = part
        for outcome, count in outcomes.items():
            _count(before.outcomes, outcome, count)
    return [_counted(one, axis) for one in runs]


def _rank(outcome: str) -> int:
    """Return the place of an outcome among the worst: 0 is the worst of all."""
    return _RANKS.get(outcome, len(_RANKS))


def _part(instant: datetime, axis: Axis) -> int:
    return min(int(axis.left(instant) * PARTS / 100), PARTS - 1)


def _counted(run: _Together, axis: Axis) -> Mark:
    parts = run.last - run.first + 1
    ordered = sorted(run.outcomes.items(), key=lambda one: -one[1])
    said = ", ".join(f"{count:,} {outcome}" for outcome, count in ordered)
    within = f" within {short_duration(axis.length * parts / PARTS)}"
    return Mark(
        kind=run.worst,
        left=round(100 * run.first / PARTS, 3),
        width=round(100 * parts / PARTS, 3),
        title=f"{{at}} {said}{within if parts > 1 else ''}",
        at=axis.start + axis.length * run.first / PARTS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """A day of a job in a calendar of weeks: its column and row, and its worst outcome."""

    day: date
    column: int
    row: int
    kind: str
    title: str


def days_of(
    counts: Iterable[OutcomeCount], start: datetime, end: datetime, zone: ZoneInfo
) -> list[Day]:
    """Return the days from one instant to another, with what the hours of each have counted."""
    by_day = defaultdict[date, Counter[str]](Counter)
    for one in counts:
        by_day[one.hour.astimezone(zone).date()][one.outcome] += one.count
    first = start.astimezone(zone).date()
    last = end.astimezone(zone).date()
    monday = first - timedelta(days=first.weekday())
    found = list[Day]()
    for number in range((last - first).days + 1):
        day = first + timedelta(days=number)
        outcomes = by_day[day]
        kind = next((str(one) for one in _WORST if outcomes[one]), "none")
        said = ", ".join(f"{n:,} {outcome}" for outcome, n in outcomes.most_common())
        found.append(
            Day(
                day=day,
                column=(day - monday).days // 7,
                row=day.weekday(),
                kind=kind,
                title=f"{day:%a %Y-%m-%d}: {said or 'no slot'}",
            )
        )
    return found
