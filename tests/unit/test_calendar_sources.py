"""Where the days of calendars come from: the holidays library, and .ics files."""

from __future__ import annotations

import builtins
import time
from datetime import date, timedelta
from typing import Any

import holidays
import pytest

from slotwise import Calendar, ConfigurationError
from slotwise.contrib import calendars
from slotwise.contrib.calendars import from_holidays, from_ics

ICS = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//slotwise//tests//EN
{events}END:VCALENDAR
"""


def ics(*events: str) -> str:
    """A calendar file with these events."""
    told = [
        f"BEGIN:VEVENT\nUID:{number}@tests\nDTSTAMP:20260101T000000Z\n{event}\nEND:VEVENT\n"
        for number, event in enumerate(events)
    ]
    return ICS.format(events="".join(told))


@pytest.mark.parametrize(
    ("code", "day"),
    [
        ("AT", date(2026, 10, 26)),
        ("at", date(2027, 1, 6)),
        ("DE-BY", date(2026, 1, 6)),
        ("XNYS", date(2026, 11, 26)),
    ],
)
def test_holidays_of_countries_parts_and_markets(code: str, day: date) -> None:
    """Each day with a name, in whatever language, and only those of the years asked for."""
    found = from_holidays(code, range(2026, 2028))
    assert found.days[day]
    assert {day.year for day in found.days} == {2026, 2027}


def test_the_weekend_is_the_countrys() -> None:
    """Where it is Friday and Saturday, too."""
    assert from_holidays("AT", [2026]).weekend == frozenset({0, 6})
    assert from_holidays("EG", [2026]).weekend == frozenset({5, 6})


@pytest.mark.parametrize(
    "code",
    [
        "AZ",
        "BY",
        "CN",
        "HU",
        "KG",
        "KZ",
        "LV",
        "MM",
        "RU",
        "TW",
        "UA",
        "UZ",
        "VN",
        "AT",
    ],
)
def test_weekend_days_that_are_worked_on(code: str) -> None:
    """In countries that move working days, business days are those of the library."""
    years = range(2022, 2028)
    found = from_holidays(code, years)
    calendar = Calendar(
        name=code,
        weekend=found.weekend or frozenset(),
        days=frozenset(found.days),
        worked=frozenset(found.worked),
    )
    library = holidays.country_holidays(code, years=years)
    days = [date(2022, 1, 1) + number * timedelta(days=1) for number in range(6 * 365)]
    for day in days:
        assert calendar.is_business_day(day) == library.is_working_day(day)
    assert bool(found.worked) == (code != "AT")


def test_events_that_are_working_days() -> None:
    """In the languages of their countries; a day off that is called one stays a day off."""
    text = ics(
        "DTSTART;VALUE=DATE:20240427\nSUMMARY:Рабочий день, перенос с 29 апреля",
        "DTSTART;VALUE=DATE:20240204\nSUMMARY:春节补班",
        "DTSTART;VALUE=DATE:20240803\nSUMMARY:Áthelyezett munkanap",
        "DTSTART;VALUE=DATE:20241228\nSUMMARY:Working day (moved from 30 December)",
        "DTSTART;VALUE=DATE:20240218\nSUMMARY:New Year\nX-APPLE-SPECIAL-DAY:ALTERNATE-WORKDAY",
        "DTSTART;VALUE=DATE:20240429\nSUMMARY:Нерабочий день",
        "DTSTART;VALUE=DATE:20240819\nSUMMARY:Munkaszüneti nap",
        "DTSTART;VALUE=DATE:20241230\nSUMMARY:Non-working day",
        "DTSTART;VALUE=DATE:20240210\nSUMMARY:春节 放假\nX-APPLE-SPECIAL-DAY:WORK-HOLIDAY",
        "DTSTART;VALUE=DATE:20240501\nSUMMARY:Workers' Day",
        "DTSTART;VALUE=DATE:20240502\nSUMMARY:Tag der Arbeit",
    )
    found = from_ics(text, [2024])
    assert sorted(f"{day:%m%d}" for day in found.worked) == [
        "0204",
        "0218",
        "0427",
        "0803",
        "1228",
    ]
    assert sorted(f"{day:%m%d}" for day in found.days) == [
        "0210",
        "0429",
        "0501",
        "0502",
        "0819",
        "1230",
    ]


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("AUX", "did you mean"),
        ("DE-BX", "DE-B"),
        ("??", "codes are like AT, DE-BY or XNYS"),
    ],
)
def test_unknown_codes_name_near_ones(code: str, hint: str) -> None:
    """In one line."""
    with pytest.raises(
        ConfigurationError, match="the holidays library has no"
    ) as refusal:
        from_holidays(code, [2026])
    assert hint in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_all_day_events_are_days() -> None:
    """One day, several (the end is the day after), each year again; what has a time or is
    cancelled is not a day.
    """
    text = ics(
        "DTSTART;VALUE=DATE:20260105\nSUMMARY:Inventory",
        "DTSTART;VALUE=DATE:20261230\nDTEND;VALUE=DATE:20270103\nSUMMARY:Closed",
        "DTSTART;VALUE=DATE:20200814\nRRULE:FREQ=YEARLY\nSUMMARY:Outing",
        "DTSTART:20260301T090000Z\nDTEND:20260301T100000Z\nSUMMARY:Meeting",
        "DTSTART;VALUE=DATE:20260401\nSTATUS:CANCELLED\nSUMMARY:Not at all",
    )
    found = from_ics(text, [2026])
    assert {day.isoformat(): name for day, name in found.days.items()} == {
        "2026-01-05": "Inventory",
        "2026-08-14": "Outing",
        "2026-12-30": "Closed",
        "2026-12-31": "Closed",
    }
    assert sorted(found.ignored) == ["Meeting", "Not at all"]
    assert date(2027, 1, 2) in from_ics(text, [2027]).days


BOMBS = [
    "FREQ=SECONDLY",
    "FREQ=MINUTELY;COUNT=100000000",
    "FREQ=HOURLY",
    "FREQ=DAILY;INTERVAL=0",
    "FREQ=DAILY;BYHOUR=1,2,3;BYMINUTE=1,2,3;BYSECOND=1,2,3",
]


@pytest.mark.parametrize("rule", BOMBS)
def test_a_rule_within_a_day_is_never_written_out(rule: str) -> None:
    """An all-day event with one is refused by its name, in one line; one with a time of day is
    ignored as ever.
    """
    with pytest.raises(
        ConfigurationError,
        match=r'event "Drip": RRULE:FREQ=.* is not for whole days; write FREQ',
    ):
        from_ics(
            ics(f"DTSTART;VALUE=DATE:20260105\nRRULE:{rule}\nSUMMARY:Drip"), [2026]
        )
    fine = "DTSTART;VALUE=DATE:20260814\nSUMMARY:Outing"
    found = from_ics(
        ics(f"DTSTART:20260301T090000Z\nRRULE:{rule}\nSUMMARY:Drip", fine), [2026]
    )
    assert (list(found.days.values()), found.ignored) == (["Outing"], ("Drip",))


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (
            "DTSTART;VALUE=DATE:20261224\nDTEND;VALUE=DATE:20261220",
            "it ends before it begins",
        ),
        ("DTSTART;VALUE=DATE:20261224\nDURATION:-P3D", "it ends before it begins"),
        ("DURATION:P3D", "it has no DTSTART"),
    ],
    ids=["end", "duration", "start"],
)
def test_an_event_that_means_nothing_is_refused(event: str, told: str) -> None:
    """By its name: the days between its end and its beginning would be anybody's guess."""
    with pytest.raises(ConfigurationError) as refusal:
        from_ics(ics(f"{event}\nSUMMARY:Odd"), [2026])
    assert str(refusal.value) == f'event "Odd": {told}'


@pytest.mark.parametrize(
    ("events", "told"),
    [
        (
            ["DTSTART;VALUE=DATE:19000101\nRRULE:FREQ=DAILY"] * 20,
            "it repeats too often",
        ),
        (
            ["DTSTART;VALUE=DATE:00010101\nRRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=31"],
            "it repeats too often",
        ),
        (
            ["DTSTART;VALUE=DATE:20200101\nDURATION:P36500D\nRRULE:FREQ=DAILY"] * 2,
            "it repeats too often",
        ),
        (
            ["DTSTART;VALUE=DATE:20260101"] * 31,
            "this calendar has 31 events, at most 30 are read",
        ),
    ],
    ids=["old", "never", "long", "many"],
)
def test_a_calendar_that_would_take_minutes(
    events: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before anything is walked, whatever it would come to."""
    monkeypatch.setattr(calendars, "_MOST_EVENTS", 30)
    began = time.process_time()
    with pytest.raises(ConfigurationError, match=told):
        from_ics(ics(*(f"{event}\nSUMMARY:Drip" for event in events)), [2026])
    assert time.process_time() - began < 1


def test_a_large_calendar_is_read() -> None:
    """Four holidays in each month that repeat since 1970; two hundred take a second."""
    yearly = [
        f"DTSTART;VALUE=DATE:197001{day:02}\nRRULE:FREQ=YEARLY;BYMONTH={month};BYDAY=2MO\nSUMMARY:h"
        for day in range(1, 5)
        for month in range(1, 13)
    ]
    assert len(from_ics(ics(*yearly), [2026, 2027]).days) == 24


def test_an_event_of_ages_costs_a_year() -> None:
    """Each year asked for has its days, and nothing walks the others."""
    found = from_ics(
        ics("DTSTART;VALUE=DATE:19000101\nDTEND;VALUE=DATE:21000101\nSUMMARY:Ever"),
        [2026],
    )
    assert (min(found.days), max(found.days), len(found.days)) == (
        date(2026, 1, 1),
        date(2026, 12, 31),
        365,
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "BEGIN:VCALENDAR",
        ics("DTSTART;VALUE=DATE:tomorrow"),
        ics(
            "DTSTART;VALUE=DATE:00010101\nRRULE:FREQ=DAILY\nDTEND;VALUE=DATE:99991231"
        ),
    ],
    ids=range(5),
)
def test_what_is_no_calendar_is_refused(text: str) -> None:
    """One line, whatever is wrong with it."""
    with pytest.raises(ConfigurationError) as refusal:
        from_ics(text, [2026])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("library", "read"), [("holidays", from_holidays), ("icalendar", from_ics)]
)
def test_without_the_extra(
    library: str, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says what to install."""
    importing = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name == library:
            raise ImportError(name)
        return importing(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        ConfigurationError, match=r"pip install 'slotwise\[calendars\]'"
    ):
        read("AT", [2026])
