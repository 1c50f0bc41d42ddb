"""What schedules mean in words, and the slots to come as people look at them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import Any

import pytest

from slotwise import Cron, parse_schedule
from slotwise.inspect import describe_schedule, explain_schedule, outlook

FIRST_SENTENCE = [
    ("0 2 * * *", "At 02:00 every day"),
    ("15,45 9 * * *", "At 09:15 and 09:45 every day"),
    ("30 0 2 * * *", "At 02:00:30 every day"),
    ("*/5 * * * *", "Every 5 minutes every day"),
    ("0 */5 * * * *", "Every 5 minutes every day"),
    ("* * * * * *", "Every second every day"),
    ("7-59/10 * * * *", "Every 10 minutes from :07 every day"),
    ("0 9-17 * * 1-5", "At minute 0, in the hours 9 to 17, Monday to Friday"),
    ("30 * * * *", "At minute 30 of every hour"),
    ("0 */2 * * *", "At minute 0, every 2 hours every day"),
    ("*/15 9-17 * * *", "Every 15 minutes, in the hours 9 to 17 every day"),
    ("*/40 * * * *", "At minutes 0 and 40 of every hour"),
    ("*/7 * * * *", "At minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour"),
    ("*/25 * * * * *", "At seconds 0, 25 and 50 every day"),
    ("0,30 */5 * * *", "Every 30 minutes, in the hours 0, 5, 10, 15 and 20 every day"),
    ("1-3,7 * * * *", "At minutes 1 to 3 and 7 of every hour"),
    ("5 1-4,9-20 * * *", "At minute 5, in the hours 1 to 4 and 9 to 20 every day"),
    ("0 0 1 1 *", "At 00:00 on day 1 of January"),
    ("0 0 1,15 6-8 *", "At 00:00 on days 1 and 15 of June to August"),
    (
        "0 0 13 * FRI",
        "At 00:00 on day 13 of the month, and also on Friday (either is enough)",
    ),
    (
        "0 0 13 3 FRI",
        "At 00:00 on day 13 of March, and also in March on Friday (either is enough)",
    ),
    (
        "CRON|0 0 13 * FRI|UTC|day_rule=and",
        "At 00:00 on day 13 of the month if it is Friday",
    ),
    (
        "CRON|0 0 */2 * FRI|UTC|day_rule=vixie",
        "At 00:00 on days 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29 "
        "and 31 of the month if it is Friday",
    ),
    ("0 0 L * *", "At 00:00 on the last day of the month"),
    (
        "0 0 L-3,15W,LW * *",
        "At 00:00 on the day 3 before the last, the weekday nearest to day 15 and the last weekday "
        "of the month",
    ),
    (
        "0 0 * * MON#2,5L",
        "At 00:00 on the second Monday of the month and the last Friday of the month",
    ),
    ("0 3 * * 6,0", "At 03:00 on Saturday and Sunday"),
    (
        "H 2 * * *",
        "At hour 2 and minute H (H is decided by the name of the job) every day",
    ),
    (
        "0 0 H H *",
        "At 00:00 on day H (H is decided by the name of the job) of H (H is "
        "decided by the name of the job)",
    ),
]


@pytest.mark.parametrize(
    ("text", "words"), FIRST_SENTENCE, ids=[text for text, _ in FIRST_SENTENCE]
)
def test_cron_in_words(text: str, words: str) -> None:
    """However it is spelled, what it comes to."""
    assert explain_schedule(parse_schedule(text)) == [
        f"{words}, by the clocks of UTC."
    ]


SHORT = [
    ("0 2 * * *", "02:00 UTC"),
    ("CRON|30 0 2,14 ? * *|Europe/Vienna", "02:00:30, 14:00:30 Europe/Vienna"),
    ("CRON|0 9 * * MON-FRI|Europe/Vienna", "09:00 MON-FRI Europe/Vienna"),
    ("0 0 13 * FRI", "0 0 13 * FRI UTC"),
    ("*/5 * * * ?", "*/5 * * * ? UTC"),
    ("H 2 * * *", "H 2 * * * UTC"),
    ("DAILY|12:00,13:45|Europe/Rome", "12:00, 13:45 Europe/Rome"),
    ("EVERY|90m", "every 90m"),
    ("EVERY|7d|2026-01-05T06:00Z", "every 7d from 2026-01-05T06:00:00Z"),
    ("FIXED_DELAY|1500ms", "1500ms after each run"),
    ("ONCE|2026-01-01T01:00+01:00", "once at 2026-01-01T00:00:00Z"),
    ("-", "never"),
    ("ANY(0 2 * * *; EVERY|3s)", "02:00 UTC; every 3s"),
    (
        "BETWEEN(CRON|0 2 * * *|Europe/Vienna; 2026-03-31T22:00Z; 2026-10-31T23:00Z)",
        "02:00 Europe/Vienna from 2026-04-01T00:00:00+02:00 until 2026-11-01T00:00:00+01:00",
    ),
    ("BETWEEN(EVERY|3s; -; 2026-10-31T23:00Z)", "every 3s until 2026-10-31T23:00:00Z"),
    ("SPREAD(0 2 * * *; 73s)", "02:00 UTC, 73s later"),
    (
        "EXCLUDING(0 9 * * *; AT@3[SAT,SUN 2026:0101,0106], US; following)",
        "09:00 UTC excluding AT, US (following)",
    ),
    (
        "BUSINESS_DAY(0 9 * * *; -1; AT@3[SAT,SUN 2026:0101])",
        "09:00 UTC, last business day of AT",
    ),
    ("BUSINESS_DAY(0 9 * * *; 3)", "09:00 UTC, business day 3"),
    ("0 2 * * * >> 2026-01-01T00:00Z >> EVERY|3s", "every 3s"),
    ("SOLSTICE|2026", "SOLSTICE|2026"),
]


@pytest.mark.parametrize(
    ("text", "words"), SHORT, ids=[text[:40] for text, _ in SHORT]
)
def test_a_schedule_in_a_few_words(text: str, words: str) -> None:
    """As people write it: calendars by name, bounds by the clocks of the zone; a text of another
    release as it is.
    """
    assert describe_schedule(text) == words


DAYS = ("*", "?", "*/1", "*/2", "1-31", "31-30", "13", "*,13", "1-15,20", "H")
WEEKDAYS = (
    "*",
    "?",
    "*/1",
    "*/2",
    "0-6",
    "0-7",
    "FRI-THU",
    "FRI",
    "*,5",
    "1-5",
    "6,0",
)


@pytest.mark.parametrize("rule", ["or", "and", "vixie"])
@pytest.mark.parametrize("weekday", WEEKDAYS)
@pytest.mark.parametrize("day", DAYS)
def test_the_days_said_are_the_days_of_the_slots(
    day: str, weekday: str, rule: Any
) -> None:
    """For every pair of day fields under every rule: the words, read back, give the days of the
    next 60 slots.
    """
    schedule = Cron(f"0 0 {day} * {weekday}", day_rule=rule).bind("any")
    told = (
        explain_schedule(schedule)[0]
        .removeprefix("At 00:00")
        .removesuffix(", by the clocks of UTC.")
    )
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    dates = (begin.date() + timedelta(days=number) for number in range(3650))
    said = islice((found for found in dates if meant(told, found)), 60)
    slots = islice(
        schedule.slots(begin - timedelta(seconds=1), begin + timedelta(days=3650)), 60
    )
    assert [slot.date() for slot in slots] == list(said), told


def meant(told: str, day: date) -> bool:
    """Whether a person who reads this expects a slot on the day."""
    if told == " every day":
        return True
    if " of the month" not in told:
        return among(told.removeprefix(" on ").removeprefix(", "), f"{day:%A}", NAMES)
    of_month, of_week = told.removeprefix(" on ").split(" of the month")
    on_day = among(
        of_month.removeprefix("days ").removeprefix("day "), str(day.day), NUMBERS
    )
    if not of_week:
        return on_day
    named = (
        of_week.removeprefix(", and also on ")
        .removesuffix(" (either is enough)")
        .removeprefix(" if it is ")
    )
    on_weekday = among(named, f"{day:%A}", NAMES)
    return (
        on_day and on_weekday if of_week.startswith(" if ") else on_day or on_weekday
    )


NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
NUMBERS = tuple(str(number) for number in range(1, 32))


def among(told: str, value: str, order: Sequence[str]) -> bool:
    """Whether `a, b and c to d` has the value in it."""
    spans = (
        part.partition(" to ") for part in told.replace(" and ", ", ").split(", ")
    )
    return any(
        value in order[order.index(a) : order.index(b or a) + 1] for a, _, b in spans
    )


WHOLE = [
    (
        "CRON|30 2 * * *|Europe/Vienna|gap=shift|fold=both",
        "At 02:30 every day, by the clocks of Europe/Vienna. When clocks change, "
        "a time that does not exist comes "
        "later by the length of the gap, and one that exists twice comes both times.",
    ),
    (
        "CRON|*/30 * * * *|Europe/Vienna",
        "Every 30 minutes every day, by the clocks of Europe/Vienna. When clocks "
        "change, real time continues: it fires "
        "in both passes of a repeated hour, and not in an hour that does not exist.",
    ),
    ("DAILY|12:00,13:45:30", "At 12:00 and 13:45:30 every day, by the clocks of UTC."),
    (
        "EVERY|90s",
        "Every 90s of real time, counted from 1970. Changes of clocks do not matter.",
    ),
    (
        "FIXED_DELAY|2m",
        "2m after the end of the previous run, by the database's clock.",
    ),
    ("-", "Never: the job keeps its row and does not run."),
    (
        "BETWEEN(0 2 * * *; 2026-01-01T00:00Z; 2027-01-01T00:00Z)",
        "At 02:00 every day, by the clocks of UTC. Only from 2026-01-01T00:00:00Z "
        "on and before 2027-01-01T00:00:00Z.",
    ),
    (
        "EXCLUDING(0 9 * * *; AT@3[SAT,SUN 2026:0101]; following)",
        "At 09:00 every day, by the clocks of UTC. Around calendar AT (1 day, "
        "weekend SAT,SUN, revision 3): if a "
        "slot falls on a day off, it moves to the next business day, same local time.",
    ),
    (
        "BUSINESS_DAY(0 9 * * *; -2; AT)",
        "At 09:00 every day, by the clocks of UTC. Only on the 2nd business day "
        "from the end of the month of calendar "
        "AT (its days are in the database).",
    ),
    (
        "SPREAD(0 2 * * *; 90s)",
        "At 02:00 every day, by the clocks of UTC. Each run is due 90s after its slot.",
    ),
    (
        "ANY(0 2 * * *; EVERY|1h)",
        "At the slots of any of these; those that coincide are one:   1. At 02:00 "
        "every day, by the clocks of UTC.   "
        "2. Every 1h of real time, counted from 1970. Changes of clocks do not matter.",
    ),
    (
        "0 2 * * * >> 2026-01-01T00:00Z >> -",
        "Up to 2026-01-01T00:00:00Z: At 02:00 every day, by the clocks of UTC. "
        "Then: Never: the job keeps its row and does not run.",
    ),
]


@pytest.mark.parametrize(("text", "words"), WHOLE, ids=[text for text, _ in WHOLE])
def test_every_kind_in_words(text: str, words: str) -> None:
    """Zone, rules, bounds and calendars included."""
    assert " ".join(explain_schedule(parse_schedule(text))) == words


# The outlook.
# -----------------------------------------------------------------------------------------------------

NIGHTS = [
    (
        "CRON|30 2 * * *|Europe/Vienna",
        "2026-03-28T00:00Z",
        [
            "slot 03-28 02:30:00 CET ",
            "clocks 03-29 03:00:00 CEST clocks go forward from 02:00 to 03:00",
            "slot 03-29 03:00:00 CEST for 02:30:00, which does not exist",
            "slot 03-30 02:30:00 CEST ",
        ],
    ),
    (
        "CRON|30 2 * * *|Europe/Vienna|gap=skip",
        "2026-03-28T12:00Z",
        [
            "clocks 03-29 03:00:00 CEST clocks go forward from 02:00 to 03:00",
            "missing 03-29 02:30:00 does not exist",
            "slot 03-30 02:30:00 CEST ",
            "slot 03-31 02:30:00 CEST ",
            "slot 04-01 02:30:00 CEST ",
        ],
    ),
    (
        "CRON|30 2 * * *|Europe/Vienna|gap=shift",
        "2026-03-28T12:00Z",
        [
            "clocks 03-29 03:00:00 CEST clocks go forward from 02:00 to 03:00",
            "slot 03-29 03:30:00 CEST for 02:30:00, which does not exist",
            "slot 03-30 02:30:00 CEST ",
            "slot 03-31 02:30:00 CEST ",
        ],
    ),
    (
        "CRON|*/30 2 * * *|Europe/Vienna",
        "2026-10-25T00:10Z",
        [
            "slot 10-25 02:30:00 CEST the first time",
            "clocks 10-25 02:00:00 CET clocks go back from 03:00 to 02:00",
            "slot 10-25 02:00:00 CET the second time",
            "slot 10-25 02:30:00 CET the second time",
        ],
    ),
    (
        "EXCLUDING(DAILY|09:00|Europe/Vienna; AT@1[SAT,SUN 2026:0501])",
        "2026-04-30T00:00Z",
        [
            "slot 04-30 09:00:00 CEST ",
            "skipped 05-01 09:00:00 CEST does not run: not a business day",
            "skipped 05-02 09:00:00 CEST does not run: not a business day",
        ],
    ),
    (
        "BETWEEN(ANY(DAILY|02:15|Europe/Vienna; DAILY|02:45|Europe/Vienna); 2026-03-29T00:00Z; -)",
        "2026-03-28T12:00Z",
        [
            "clocks 03-29 03:00:00 CEST clocks go forward from 02:00 to 03:00",
            "slot 03-29 03:00:00 CEST for 02:15:00, 02:45:00, which does not exist",
            "slot 03-30 02:15:00 CEST ",
            "slot 03-30 02:45:00 CEST ",
        ],
    ),
    (
        "DAILY|09:00|Pacific/Apia",
        "2011-12-29T00:00Z",
        [
            "slot 12-29 09:00:00 -10 ",
            "clocks 12-31 00:00:00 +14 clocks go forward from 2011-12-30 00:00 to 2011-12-31 00:00",
            "slot 12-31 00:00:00 +14 for 2011-12-30 09:00:00, which does not exist",
            "slot 12-31 09:00:00 +14 ",
        ],
    ),
    (
        "DAILY|09:00|Pacific/Apia|gap=shift",
        "2011-12-30T00:00Z",
        [
            "clocks 12-31 00:00:00 +14 clocks go forward from 2011-12-30 00:00 to 2011-12-31 00:00",
            "slot 12-31 09:00:00 +14 for 2011-12-30 09:00:00, which does not exist",
            "slot 01-01 09:00:00 +14 ",
        ],
    ),
]


@pytest.mark.parametrize(
    ("text", "after", "expected"), NIGHTS, ids=[text for text, _, _ in NIGHTS]
)
def test_changes_of_clocks_are_marked(
    text: str, after: str, expected: list[str]
) -> None:
    """Where they fall between the slots, and what they do to them."""
    schedule = parse_schedule(text)
    zone = schedule.local_zone
    assert zone is not None
    slots = sum(line.startswith(("slot", "skipped")) for line in expected)
    found = outlook(schedule, datetime.fromisoformat(after), slots, zone)
    assert [
        f"{entry.kind} {entry.local[5:]} {entry.note}" for entry in found
    ] == expected
