"""Where the days of a business calendar come from: the ``holidays`` library and .ics files. Extra:
``calendars``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from slotwise import ConfigurationError

if TYPE_CHECKING:
    from holidays import HolidayBase

_DAY = timedelta(days=1)
_WITHIN_A_DAY: Final = frozenset({"HOURLY", "MINUTELY", "SECONDLY"})
_TIMES: Final = ("BYHOUR", "BYMINUTE", "BYSECOND")
#: Limits of a calendar file: events, and steps that its repeating events take together. A step
#: takes ten microseconds; without a limit, a few lines of daily events since 1900 take minutes.
_MOST_EVENTS: Final = 5_000
_MOST_STEPS: Final = 500_000
_A_YEAR: Final = {"YEARLY": 1, "MONTHLY": 12, "WEEKLY": 52}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Days with what they are called, and those of a weekend that are worked on; the weekend,
    where the source knows it; names of entries that were no days.
    """

    days: Mapping[date, str]
    worked: Mapping[date, str] = field(default_factory=dict)
    weekend: frozenset[int] | None = None
    ignored: tuple[str, ...] = ()


def from_holidays(code: str, years: Iterable[int]) -> Source:
    """Public holidays of a country (``AT``), a part of it (``DE-BY``) or a market (``XNYS``).

    Raises ConfigurationError if the library is missing, or does not know the code: with near
    matches.
    """
    wanted = sorted(years)
    found = _of_library(code, wanted)
    worked = {day for day in found.weekend_workdays if day.year in wanted}
    days = {
        day: name
        for day, name in found.items()
        if day.year in wanted and day not in worked
    }
    return Source(
        days=days,
        worked=dict.fromkeys(worked, "worked in exchange"),
        # The library counts weekdays from Monday = 0.
        weekend=frozenset((day + 1) % 7 for day in found.weekend),
    )


def _of_library(code: str, years: list[int]) -> HolidayBase:
    with _extra("holidays"):
        import holidays
    wanted = code.upper()
    country, _, part = wanted.partition("-")
    countries = holidays.list_supported_countries()
    markets = holidays.list_supported_financial()
    if country in countries:
        if part and part not in countries[country]:
            raise _unknown(
                code, [f"{country}-{known}" for known in countries[country]]
            )
        return holidays.country_holidays(country, subdiv=part or None, years=years)
    if wanted in markets:
        return holidays.financial_holidays(wanted, years=years)
    raise _unknown(code, [*countries, *markets])


def _unknown(code: str, known: Iterable[str]) -> ConfigurationError:
    near = get_close_matches(code.upper(), known, n=3)
    hint = (
        f"did you mean {' or '.join(near)}?"
        if near
        else "codes are like AT, DE-BY or XNYS"
    )
    return ConfigurationError(f"the holidays library has no {code}; {hint}")


def from_ics(text: str, years: Iterable[int]) -> Source:
    """All-day events of an iCalendar file, recurring ones repeated; events with a time of day are
    ignored. One that is called a working day, in the languages of countries that move these, is
    a day of a weekend that is worked on.

    Raises ConfigurationError if the library is missing, if this is no iCalendar, for too many or
    too old events, and for an all-day event that ends before it begins, or repeats within a day: a
    file of one line could ask for a slot per second.
    """
    with _extra("recurring_ical_events"):
        import icalendar
        import recurring_ical_events
    days: dict[date, str] = {}
    worked: dict[date, str] = {}
    ignored: list[str] = []
    try:
        calendar = icalendar.Calendar.from_ical(text)
        ignored += _made_harmless(calendar)
        if wanted := sorted(years):
            _refuse_long_walks(calendar, wanted)
        events = recurring_ical_events.of(calendar)
        for year in wanted:
            for event in events.between(date(year, 1, 1), date(year + 1, 1, 1)):
                found = list(_days_of(event, year))
                ignored += [_name(event)] * (not found)
                kind = worked if _is_working_day(event) else days
                kind.update(dict.fromkeys(found, _name(event)))
    except (
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        OverflowError,
    ) as error:
        raise ConfigurationError(
            f"this is not a readable iCalendar file: {str(error)[:100] or error!r}"
        ) from None
    free = {day: name for day, name in days.items() if day not in worked}
    return Source(days=free, worked=worked, ignored=tuple(ignored))


#: Names of days that are worked on in exchange for another one, and of their contrary.
_WORKING_DAY: Final = re.compile(
    r"\b(work(ing|ed)?|make-?up|substitute) ?-?(work ?)?(day|saturday|sunday|weekend)|workday"
    r"|рабоч(ий|ая|ее)|рабочы|працоўн|робоч(ий|а)|жұмыс күні|жумушчу күн|ish kuni|iş günü"
    r"|munkanap|darba diena|arbeitstag|làm việc|làm bù|补班|補班|上班|调休|調整上班|補行上班|^班$",
    re.IGNORECASE,
)
_FREE_DAY: Final = re.compile(
    r"non-?\s?work|not (a )?work|no work|нерабоч|непрацоў|неробоч|не рабоч|выходн|вихідн"
    r"|szüneti|brīvdiena|arbeitsfrei|nghỉ|放假",
    re.IGNORECASE,
)


def _is_working_day(event: Mapping[str, object]) -> bool:
    if special := event.get("X-APPLE-SPECIAL-DAY"):
        return str(special) == "ALTERNATE-WORKDAY"
    name = _name(event)
    return bool(_WORKING_DAY.search(name)) and not _FREE_DAY.search(name)


def _made_harmless(calendar: Any) -> Iterator[str]:
    """Take the events out that have a time and repeat, and say their names. Raises
    ConfigurationError.

    Nobody waits until a rule within a day is written out for years, and with an INTERVAL of 0 it
    has no end.
    """
    for event in calendar.walk("VEVENT"):
        rules = event.get("RRULE", [])
        rules = rules if isinstance(rules, list) else [rules]
        if "DTSTART" not in event:
            raise _wrong(event, "it has no DTSTART")
        if not isinstance(event["DTSTART"].dt, datetime):
            _refuse_nonsense(event, rules)
        elif rules:
            calendar.subcomponents.remove(event)
            yield _name(event)


def _refuse_long_walks(calendar: Any, years: Sequence[int]) -> None:
    """Raise ConfigurationError for more events, and repetitions since their beginnings, than can
    be read in seconds.
    """
    events = calendar.walk("VEVENT")
    steps = 0.0
    if len(events) > _MOST_EVENTS:
        raise ConfigurationError(
            f"this calendar has {len(events)} events, at most {_MOST_EVENTS} are read"
        )
    for event in events:
        rules = event.get("RRULE", [])
        start = event["DTSTART"].dt
        end = event["DTEND"].dt if "DTEND" in event else event["DTSTART"].dt
        lasts = (
            event["DURATION"].dt if "DURATION" in event else end - start
        ).days / 366
        for rule in rules if isinstance(rules, list) else [rules]:
            steps += (
                len(years)
                * _per_year(rule)
                * (max(years[-1] - start.year, 0) + 10 * (1 + lasts))
            )
            if steps > _MOST_STEPS:
                raise _wrong(
                    event,
                    "with the events before it, it repeats too often; let it begin later",
                )


def _per_year(rule: Any) -> float:
    """Return how many days of a year a rule looks at, at most."""
    frequency = str(rule.get("FREQ", [""])[0]).upper()
    months = rule.get("BYMONTH", ())
    days = rule.get("BYDAY", ())
    interval: int = max(rule.get("INTERVAL", [1])[0], 1)
    width = _A_YEAR.get(frequency, 366)
    if frequency == "WEEKLY":
        width *= max(len(days), 1)
    elif (
        len(months) + len(days) > 4
        or any(str(day).isalpha() for day in days)
        or len(rule) > 5
    ):
        width = 31 * len(months) or 366
    return min(width, 366) / interval


def _refuse_nonsense(event: Any, rules: Iterable[Any]) -> None:
    end = event["DTEND"].dt if "DTEND" in event else None
    last = end.date() if isinstance(end, datetime) else end
    if (last and last < event["DTSTART"].dt) or (
        "DURATION" in event and event["DURATION"].dt < timedelta(0)
    ):
        raise _wrong(event, "it ends before it begins")
    for rule in filter(_within_days, rules):
        raise _wrong(
            event,
            f"RRULE:{rule.to_ical().decode():.60} is not for whole days; write "
            "FREQ=DAILY, or longer",
        )


def _wrong(event: Mapping[str, object], told: str) -> ConfigurationError:
    return ConfigurationError(f"event {json.dumps(_name(event)[:40])}: {told}")


def _within_days(rule: Any) -> bool:
    frequency = str(rule.get("FREQ", [""])[0]).upper()
    interval = rule.get("INTERVAL", [1])[0]
    return (
        frequency in _WITHIN_A_DAY
        or interval < 1
        or any(len(rule.get(part, ())) > 1 for part in _TIMES)
    )


def _name(event: Mapping[str, object]) -> str:
    return str(event.get("SUMMARY", ""))


def _days_of(event: Any, year: int) -> Iterator[date]:
    """The days of a year that an all-day event covers; its end is the day after."""
    start = event["DTSTART"].dt
    end = event["DTEND"].dt if "DTEND" in event else None
    if (
        isinstance(start, datetime)
        or str(event.get("STATUS", "")).upper() == "CANCELLED"
    ):
        return
    last = start if end is None else max(start, end - _DAY)
    day = max(start, date(year, 1, 1))
    last = min(last, date(year, 12, 31))
    while day <= last:
        yield day
        day += _DAY


@contextmanager
def _extra(library: str) -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise ConfigurationError(
            f"this needs {library}; run: pip install 'slotwise[calendars]'"
        ) from None
