"""Where the days of a business calendar come from: the ``holidays`` library and .ics files. Extra: ``calendars``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from difflib import get_close_matches
from typing import Any

from slotwise.errors import ConfigurationError

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Days with what they are called; the weekend, where the source knows it; how many entries were not days."""

    days: Mapping[date, str]
    weekend: frozenset[int] | None = None
    ignored: int = 0


def from_holidays(code: str, years: Iterable[int]) -> Source:
    """Public holidays of a country (``AT``), a part of it (``DE-BY``) or a market (``XNYS``).

    Raises ConfigurationError if the library is missing, or does not know the code: with near matches.
    """
    with _extra("holidays"):
        import holidays
    wanted = sorted(years)
    country, _, part = code.upper().partition("-")
    countries, markets = holidays.list_supported_countries(), holidays.list_supported_financial()
    if country in countries:
        if part and part not in countries[country]:
            raise _unknown(code, [f"{country}-{known}" for known in countries[country]])
        found: Any = holidays.country_holidays(country, subdiv=part or None, years=wanted)
    elif code.upper() in markets:
        found = holidays.financial_holidays(code.upper(), years=wanted)
    else:
        raise _unknown(code, [*countries, *markets])
    days = {day: name for day, name in found.items() if day.year in wanted}
    # The library counts weekdays from Monday = 0.
    return Source(days=days, weekend=frozenset((day + 1) % 7 for day in found.weekend))


def _unknown(code: str, known: Iterable[str]) -> ConfigurationError:
    near = get_close_matches(code.upper(), known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "codes are like AT, DE-BY or XNYS"
    return ConfigurationError(f"the holidays library knows no {code}; {hint}")


def from_ics(text: str, years: Iterable[int]) -> Source:
    """All-day events of an iCalendar file, recurring ones repeated; events with a time of day are ignored.

    Raises ConfigurationError if the library is missing, or if this is no iCalendar.
    """
    with _extra("recurring_ical_events"):
        import icalendar
        import recurring_ical_events
    days: dict[date, str] = {}
    ignored = 0
    try:
        calendar = icalendar.Calendar.from_ical(text)
        for year in sorted(years):
            for event in recurring_ical_events.of(calendar).between(date(year, 1, 1), date(year + 1, 1, 1)):
                found = list(_days_of(event, year))
                ignored += not found
                days.update(dict.fromkeys(found, str(event.get("SUMMARY", ""))))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ConfigurationError(f"this is no iCalendar that can be read: {str(error)[:100] or error!r}") from None
    return Source(days=days, ignored=ignored)


def _days_of(event: Any, year: int) -> Iterator[date]:
    """The days of a year that an all-day event covers; its end is the day after."""
    start, end = event["DTSTART"].dt, event["DTEND"].dt if "DTEND" in event else None
    if isinstance(start, datetime) or str(event.get("STATUS", "")).upper() == "CANCELLED":
        return
    day = start
    while day == start or (end is not None and day < end):
        if day.year == year:
            yield day
        day += _DAY


@contextmanager
def _extra(library: str) -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise ConfigurationError(f"this needs {library}; run: pip install 'slotwise[calendars]'") from None
