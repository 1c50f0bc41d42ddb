"""Cron expressions. Only this file uses croniter, which parses and validates; walking is our
own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from itertools import product, starmap
from typing import ClassVar, Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

from slotwise.errors import InvalidSchedule
from slotwise.model.plugged_in import plugged_in
from slotwise.schedules.base import Schedule, Unbound
from slotwise.schedules.calendars import Calendar
from slotwise.schedules.cron_fields import (
    FIELDS,
    HOUR,
    MINUTE,
    MONTH,
    SECOND,
    has_hash,
    month_days,
    quoted,
    week_days,
)
from slotwise.schedules.cron_words import EVERY_HOUR, dates_of, few_times, times_of
from slotwise.schedules.days import DatePattern, days_of
from slotwise.schedules.hints import hinted
from slotwise.schedules.local_time import (
    Fold,
    Gap,
    LocalPattern,
    LocalSchedule,
    one_of,
    since_midnight,
)
from slotwise.schedules.zones import zone_named

DayRule = Literal["or", "and", "vixie"]
LONGEST_EXPRESSION: Final = 255
_MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class Cron(LocalSchedule):
    """A cron expression in a zone's local time (default UTC): five fields, or six with the
    **seconds first**.

    Fields take lists, ranges (also across the end: `22-2`), steps and names; the day fields take
    `?`, `L`, `L-3`, `LW`, `15W`, `5L` and `MON#2`; the macros are `@hourly` to `@yearly`.

    `day_rule` decides if day of month and day of week are both restricted: `or` (POSIX), `and`, or
    `vixie` (`and` as soon as either starts with `*`: Debian's cron).

    An expression with fixed times (neither minute nor hour starts with `*`) fires once in a night
    of a clock change: in a gap by `gap` (`end`: right after it, `shift`: later by its length,
    `skip`: not at all), in a fold by `fold` (`first`, `second`, `both`). All others are intervals
    and follow real time.

    `H` derives a value from the job's name, `H(0-29)` within a range, `H/15` for the start of
    steps: each job has its own, always the same. Such a schedule has slots only when it is bound
    to a name.

    Raises InvalidSchedule for an invalid expression and for one that can never fire.
    """

    __slots__ = ("dates", "day_rule", "expression", "texts", "values")
    expression: str
    day_rule: DayRule
    texts: tuple[str, ...]
    """The six fields as they were written, seconds first."""
    values: tuple[Sequence[int], ...]
    """The values of each field, sorted; of a day field without L, W and #; an H is some job's."""
    dates: DatePattern
    """The days that the expression picks."""
    MACROS: ClassVar[Mapping[str, str]] = _MACROS
    """The expression of each macro."""

    def __init__(
        self,
        expression: str,
        tz: str | ZoneInfo = "UTC",
        *,
        day_rule: DayRule = "or",
        gap: Gap = "end",
        fold: Fold = "first",
    ) -> None:
        if not isinstance(expression, str):
            raise InvalidSchedule(
                f"{expression!r:.40} is not the text of a cron expression"
            )
        one_of("day_rule", day_rule, DayRule)
        zone = zone_named(tz)
        try:
            found = _parse(expression, day_rule)
        except InvalidSchedule as error:
            raise hinted(error, expression, zone.key) from None
        text = " ".join(found.texts)
        pattern: LocalPattern | Unbound = found.pattern
        if any(map(has_hash, found.texts)):
            pattern = Unbound(
                f"{quoted(text)} has an H, which only the name of a job turns into a number"
            )
        self._prepare(pattern, zone, gap, fold, fixed=found.fixed)
        self._set(
            expression=text,
            day_rule=day_rule,
            texts=_six(found.texts),
            values=found.values,
            dates=found.dates,
        )
        rule = "" if day_rule == "or" else f"|day_rule={day_rule}"
        self._set(_text=f"CRON|{text}|{self.zone.key}{rule}{self._options()}")

    @classmethod
    def quartz(cls, expression: str, tz: str | ZoneInfo = "UTC") -> Schedule:
        """Return the schedule with the slots of a Quartz expression: six fields, or seven with a
        year.

        Day 1 is Sunday; a time that does not exist is skipped, and one that exists twice fires
        the second time. Raises InvalidSchedule, also for what has no counterpart, as `L-3W`.
        """
        read: Callable[[str, str | ZoneInfo], Schedule] = plugged_in(
            "slotwise.schedule_notations", "quartz"
        )
        return read(expression, tz)

    def bind(
        self, name: str, calendars: Mapping[str, Calendar] | None = None
    ) -> Schedule:
        bound = _hashed(self.expression, name)
        if bound == self.expression:
            return self
        return Cron(
            bound, self.zone, day_rule=self.day_rule, gap=self.gap, fold=self.fold
        )

    def in_words(self) -> str:
        _, _, _, day, month, weekday = self.texts
        times = ", ".join(few_times(self))
        if not times or month != "*" or day not in "*?":
            return f"{self.expression} {self.zone.key}"
        if weekday not in "*?":
            times = f"{times} {weekday}"
        return f"{times} {self.zone.key}"

    def sentences(self) -> list[str]:
        words = f"{times_of(self)}{dates_of(self)}"
        return self._by_clocks(words.replace(f"{EVERY_HOUR} every day", EVERY_HOUR))


class _Parsed(NamedTuple):
    """The fields as written, whether their times are fixed, their values, and the days and times
    that they pick.
    """

    texts: tuple[str, ...]
    fixed: bool
    values: tuple[Sequence[int], ...]
    dates: DatePattern
    pattern: LocalPattern


@lru_cache(maxsize=4096)
def _parse(expression: str, rule: DayRule) -> _Parsed:
    texts = _split(expression)
    numbers = _six(_hashed(" ".join(texts), "any").split())
    _, minute, hour, day, month, _ = numbers
    values, dates = _read(numbers, rule)
    days = days_of(dates)
    if not days:
        raise InvalidSchedule(
            f"{quoted(expression)} can never fire: day {day} and month {month} never meet"
        )
    times = starmap(since_midnight, product(*values[2::-1]))
    fixed = not (minute.startswith("*") or hour.startswith("*"))
    return _Parsed(texts, fixed, values, dates, LocalPattern(days, times))


def _read(
    texts: Sequence[str], rule: DayRule
) -> tuple[tuple[Sequence[int], ...], DatePattern]:
    """The values of six fields, and the days that they pick."""
    second, minute, hour, day, month, weekday = texts
    day, weekday = ("*" if text == "?" else text for text in (day, weekday))
    clock = (SECOND.plain(second), MINUTE.plain(minute), HOUR.plain(hour))
    of_month, from_end, nearest = month_days(day)
    of_week, nth = week_days(weekday)
    values = _expand((*clock, of_month, MONTH.plain(month), of_week))
    if rule == "or":  # an unrestricted field is always satisfied
        both = not {day, weekday}.isdisjoint(("*", "*/1"))
    else:
        both = rule == "and" or day.startswith("*") or weekday.startswith("*")
    days, months, weekdays = map(frozenset, values[3:])
    return values, DatePattern(
        months=months,
        days=days,
        from_end=from_end,
        nearest=nearest,
        weekdays=weekdays,
        nth=nth,
        both=both,
    )


def _split(expression: str) -> tuple[str, ...]:
    """The five or six fields in capitals, macros replaced."""
    if len(expression) > LONGEST_EXPRESSION:
        raise InvalidSchedule(
            f"a cron expression of {len(expression)} characters ({quoted(expression[:20])}…); "
            f"at most {LONGEST_EXPRESSION}"
        )
    text = expression.strip()
    texts = tuple((_macro(text) if text.startswith("@") else text).upper().split())
    if len(texts) not in (5, 6):
        raise InvalidSchedule(
            f"{quoted(expression)} has {len(texts)} field{'' if len(texts) == 1 else 's'}; a cron "
            "expression has 5 (minute hour day-of-month month day-of-week), or 6 with seconds first"
        )
    return texts


def _six(texts: Sequence[str]) -> tuple[str, ...]:
    return (*["0"][: 6 - len(texts)], *texts)


def _hashed(text: str, name: str) -> str:
    texts = text.split()
    return " ".join(
        field.hashed(part, name)
        for field, part in zip(FIELDS[-len(texts) :], texts, strict=True)
    )


def _macro(text: str) -> str:
    if (name := text.lower()) in _MACROS:
        return _MACROS[name]
    if name == "@reboot":
        raise InvalidSchedule(
            "@reboot: a cluster never reboots as a whole; run the command at its start instead"
        )
    near = get_close_matches(name, _MACROS, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise InvalidSchedule(
        f"{quoted(text)} is not a macro{hint}; there are {', '.join(_MACROS)}"
    )


def _expand(plain: tuple[str, ...]) -> tuple[Sequence[int], ...]:
    """The values of each field, sorted, in the order of FIELDS; none where the text is empty."""
    import croniter  # late: a worker without cron expressions does without

    found, _ = croniter.croniter.expand(
        " ".join(text or "*" for text in plain), second_at_beginning=True
    )
    seconds_first = zip(FIELDS, plain, [found[5], *found[:5]], strict=True)
    return tuple(
        ()
        if not text
        else range(field.low, field.high + 1)
        if "*" in values
        else sorted(map(int, values))
        for field, text, values in seconds_first
    )
