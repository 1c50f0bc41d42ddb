"""The text forms, and what it means that schedules are values."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest

from slotwise import (
    AnyOf,
    Calendar,
    Cron,
    Daily,
    Disabled,
    Every,
    FixedDelay,
    InvalidSchedule,
    Once,
    Schedule,
    parse_schedule,
)
from slotwise.spi import Spread

AUSTRIA = Calendar(
    name="AT",
    revision=3,
    days=frozenset({date(2026, 1, 1), date(2026, 1, 6), date(2027, 1, 1)}),
)
FORMS = [
    ("0 2 * * *", Cron("0 2 * * *"), "CRON|0 2 * * *|UTC"),
    ("0 */5 * * * *", Cron("0 */5 * * * *"), "CRON|0 */5 * * * *|UTC"),
    ("@hourly", Cron("0 * * * *"), "CRON|0 * * * *|UTC"),
    ("CRON|0 2 * * *", Cron("0 2 * * *"), "CRON|0 2 * * *|UTC"),
    (
        "cron | 0 2 * * * | Europe/Vienna",
        Cron("0 2 * * *", "Europe/Vienna"),
        "CRON|0 2 * * *|Europe/Vienna",
    ),
    (
        "CRON|0 2 1 * MON|Europe/Vienna|fold=both|gap=shift|day_rule=and",
        Cron(
            "0 2 1 * MON",
            ZoneInfo("Europe/Vienna"),
            day_rule="and",
            gap="shift",
            fold="both",
        ),
        "CRON|0 2 1 * MON|Europe/Vienna|day_rule=and|gap=shift|fold=both",
    ),
    (
        "DAILY|12:00,13:45|Europe/Rome",
        Daily("12:00", "13:45", tz="Europe/Rome"),
        "DAILY|12:00,13:45|Europe/Rome",
    ),
    ("DAILY|12:00", Daily("12:00"), "DAILY|12:00|UTC"),
    (
        "DAILY|12:00|UTC|gap=skip",
        Daily("12:00", gap="skip"),
        "DAILY|12:00|UTC|gap=skip",
    ),
    ("EVERY|90s", Every("90s"), "EVERY|90s|1970-01-01T00:00:00Z"),
    ("EVERY|1h|2026-01-01T01:00:00+01:00", Every("1h"), None),
    ("FIXED_DELAY|120s", FixedDelay("2m"), "FIXED_DELAY|2m"),
    (" - ", Disabled(), "-"),
    (
        "ONCE|2026-01-01T01:00:00+01:00",
        Once(datetime(2026, 1, 1, tzinfo=UTC)),
        "ONCE|2026-01-01T00:00:00Z",
    ),
    ("H 2 * * *", Cron("H 2 * * *"), "CRON|H 2 * * *|UTC"),
    (
        "any(0 2 * * *; EVERY|1h)",
        AnyOf(Cron("0 2 * * *"), Every("1h")),
        "ANY(CRON|0 2 * * *|UTC; EVERY|1h|1970-01-01T00:00:00Z)",
    ),
    (
        "BETWEEN(H(0-29) H(2-5) * * *; 2026-01-01T00:00Z; -)",
        Cron("H(0-29) H(2-5) * * *").between("2026-01-01T00:00Z"),
        "BETWEEN(CRON|H(0-29) H(2-5) * * *|UTC; 2026-01-01T00:00:00Z; -)",
    ),
    (
        "EXCLUDING(DAILY|09:00; AT)",
        Daily("09:00").excluding("AT"),
        "EXCLUDING(DAILY|09:00|UTC; AT; skip)",
    ),
    (
        "EXCLUDING(DAILY|09:00; AT, company; preceding)",
        Daily("09:00").excluding("AT", "company", roll="preceding"),
        "EXCLUDING(DAILY|09:00|UTC; AT, company; preceding)",
    ),
    (
        "EXCLUDING(DAILY|09:00; AT@3[SAT,SUN 2026:0101,0106 2027:0101], CO@1[-]; following)",
        Daily("09:00").excluding(
            AUSTRIA,
            Calendar(name="CO", revision=1, weekend=frozenset()),
            roll="following",
        ),
        "EXCLUDING(DAILY|09:00|UTC; AT@3[SAT,SUN 2026:0101,0106 2027:0101], CO@1[-]; following)",
    ),
    (
        "spread(EVERY|1h; 90s)",
        Spread(Every("1h"), "90s"),
        "SPREAD(EVERY|1h|1970-01-01T00:00:00Z; 90s)",
    ),
    (
        "BUSINESS_DAY(0 9 * * *; 3)",
        Cron("0 9 * * *").nth_business_day(3),
        "BUSINESS_DAY(CRON|0 9 * * *|UTC; 3)",
    ),
    (
        "BUSINESS_DAY(DAILY|09:00; -1; AT@3[SAT,SUN 2026:0101,0106 2027:0101])",
        Daily("09:00").last_business_day(AUSTRIA),
        "BUSINESS_DAY(DAILY|09:00|UTC; -1; AT@3[SAT,SUN 2026:0101,0106 2027:0101])",
    ),
    (
        "EXCLUDING(ANY(0 9 * * *; BETWEEN(0 10 * * *; -; 2027-01-01T00:00Z)); AT; drop)",
        AnyOf(
            Cron("0 9 * * *").excluding("AT", roll="drop"),
            Cron("0 10 * * *")
            .between(end="2027-01-01T00:00Z")
            .excluding("AT", roll="drop"),
        ),
        "ANY(EXCLUDING(CRON|0 9 * * *|UTC; AT; drop); "
        "BETWEEN(EXCLUDING(CRON|0 10 * * *|UTC; AT; drop); -; 2027-01-01T00:00:00Z))",
    ),
]


@pytest.mark.parametrize(
    ("text", "schedule", "canonical"), FORMS, ids=[text for text, _, _ in FORMS]
)
def test_text_forms(text: str, schedule: Schedule, canonical: str | None) -> None:
    """Each form is read, and written completely: zone, anchor and whatever is not the default."""
    if canonical is None:
        assert parse_schedule(text) != schedule
    else:
        assert parse_schedule(text) == schedule
        assert str(schedule) == canonical


REFUSED = [
    ("EVRY|90s", '"EVRY" is not a kind of schedule (did you mean EVERY?)'),
    (
        "TWICE|2026-01-01",
        '"TWICE" is not a kind of schedule; there are CRON, DAILY, EVERY, FIXED_DELAY, ONCE',
    ),
    (
        "ONCE|2026-01-01",
        "'2026-01-01' is not an instant; write ISO 8601 with an offset",
    ),
    ("ONCE", "has 1 field"),
    ("CRON", "has 1 field"),
    ("CRON|0 2 * * *|UTC|more", "1 to 2 values after CRON"),
    ("FIXED_DELAY|1m|2m", "1 to 1 values after FIXED_DELAY"),
    (
        "CRON|0 2 * * *|UTC|gab=skip",
        'option "gab=skip": day_rule or gap or fold allowed here',
    ),
    ("EVERY|1m|gap=skip", 'option "gap=skip": none allowed here'),
    ("CRON|0 2 * * *|UTC|gap=jump", "gap 'jump': one of end, shift, skip"),
    ("CRON|61 2 * * *|UTC", 'minute must be 0–59, got "61"'),
    ("CRON|0 2 * * *|Europe/Viena", "did you mean Europe/Vienna"),
    ("EVERY|90s|tomorrow", "'tomorrow' is not an instant"),
    ("EVERY|90s|2026-01-01T00:00:00", "write ISO 8601 with an offset"),
    ("DAILY||UTC", "as 02:00:30, got ''"),
    ("- >> -", "write SCHEDULE >> INSTANT >> SCHEDULE"),
    ("- >> soon >> -", "'soon' is not an instant"),
    (" >> 2026-01-01T00:00:00Z >> ", "has 0 fields"),
    ("ANYOF(0 2 * * *)", '"ANYOF" is not a kind of schedule (did you mean ANY?)'),
    ("ANY(0 2 * * *; 61 2 * * *)", 'minute must be 0–59, got "61"'),
    ("ANY()", "has 0 fields"),
    ("ANY(-; FIXED_DELAY|1m)", "- cannot be combined"),
    (
        "BETWEEN(0 2 * * *; 2026-01-01T00:00Z)",
        '"BETWEEN" with 2 parts: write BETWEEN(A; 2026-01-01T00:00:00Z; -)',
    ),
    ("BETWEEN(0 2 * * *; -; -)", "between takes a start, an end or both"),
    (
        f"ANY({'; '.join(['@daily'] * 40)})",
        '"ANY" with 40 parts: write ANY(A; B; …), at most 32 parts',
    ),
    (
        "EXCLUDING(0 2 * * *)",
        '"EXCLUDING" with 1 parts: write EXCLUDING(A; AT; following)',
    ),
    (
        "EXCLUDING(0 2 * * *; AT; forward)",
        "roll 'forward': one of skip, drop, following, preceding",
    ),
    ("EXCLUDING(0 2 * * *; )", "excluding takes calendars"),
    ("EXCLUDING(0 2 * * *; A T)", 'calendar name "A T": at most 40 letters'),
    ("EXCLUDING(0 2 * * *; AT, AT)", "2 calendars: each once, and at most 8"),
    ("EXCLUDING(EVERY|5m; AT)", "EVERY|5m|1970-01-01T00:00:00Z has no local days"),
    (
        "EXCLUDING(EXCLUDING(0 2 * * *; AT); CO)",
        "has calendars already; pass all of them in one call",
    ),
    (
        "EXCLUDING(0 2 * * *; AT@3[SAT,SUN 2026:0101,1301])",
        'calendar day "20261301": there is no such date',
    ),
    (
        "EXCLUDING(0 2 * * *; AT@3[SAT,SUN 20260101])",
        'calendar year "20260101": write 2026:0101,0106',
    ),
    (
        "EXCLUDING(0 2 * * *; AT@3)",
        'calendar "AT@3": write a name, or AT@3[SAT,SUN 2026:0101,0106]',
    ),
    (
        "EXCLUDING(0 2 * * *; AT@3[SAT,SUM])",
        'day-of-week must be 0–7 or SUN–SAT, got "SUM"',
    ),
    (
        "EXCLUDING(0 2 * * *; AT@3[SUN,MON,TUE,WED,THU,FRI,SAT])",
        "calendar AT: a week needs a working day",
    ),
    ("EXCLUDING(0 2 * * SAT; AT@3[SAT,SUN])", "never fires: none of its days is left"),
    (
        "BUSINESS_DAY(0 2 * * *; 0)",
        "business day 0: 1–23, or -1 to -23 from the month's end",
    ),
    ("BUSINESS_DAY(0 2 * * *; first)", 'business day "first": 1–23'),
    ("BUSINESS_DAY(0 2 1 * *; 5)", "never fires: none of its days is left"),
    ("SPREAD(0 2 * * *; -3s)", "CRON|0 2 * * *|UTC spread by: '-3s'"),
    (
        "BETWEEN(0 0 29 2 *; 2026-01-01T00:00Z; 2026-03-01T00:00Z)",
        "has no slot from 2026-01-01T00:00:00Z on and before",
    ),
    (
        "BETWEEN(ONCE|2026-03-01T00:00Z; -; 2026-03-01T00:00Z)",
        "has no slot before 2026-03-01T00:00:00Z",
    ),
    (
        "ANY(@daily; BETWEEN(@yearly; 2026-01-02T00:00Z; 2026-12-31T00:00Z))",
        "CRON|0 0 1 1 *|UTC has no slot from",
    ),
    ("ANY(" * 9 + "-" + ")" * 9, "nested more than 8 deep"),
    ("ANY(" * 5000, "nested more than 8 deep"),
    ("ANY(0 2 * * *", '"ANY(0 2 * * *": its brackets do not match'),
    (")(", "its brackets do not match"),
    ("x" * 100_000, "a schedule of 100000 characters"),
    ("- >> " * 20, "write SCHEDULE >> INSTANT >> SCHEDULE"),
]


@pytest.mark.parametrize(
    ("text", "message"), REFUSED, ids=[text[:40] for text, _ in REFUSED]
)
def test_refusals_show_the_place(text: str, message: str) -> None:
    """One line: the part that is wrong, and what could stand there."""
    with pytest.raises(InvalidSchedule) as refusal:
        parse_schedule(text)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_what_is_not_text_is_refused() -> None:
    """A row without a schedule is a message."""
    with pytest.raises(InvalidSchedule, match="None is not the text of a schedule"):
        parse_schedule(None)


SCHEDULES = [schedule for _, schedule, _ in FORMS]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_schedules_are_values(schedule: Schedule) -> None:
    """Equal by text, hashable, copied and pickled by text, shown as the call that makes them."""
    again = parse_schedule(str(schedule))
    assert again == schedule
    assert hash(again) == hash(schedule)
    assert pickle.loads(pickle.dumps(schedule)) == schedule  # noqa: S301
    assert copy.deepcopy(schedule) == schedule
    assert eval(repr(schedule), {"parse_schedule": parse_schedule}) == schedule
    assert schedule != str(schedule)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_schedules_do_not_change(schedule: Schedule) -> None:
    """Neither by setting, nor by deleting, nor by adding."""
    for name in ("zone", "_text", "colour"):
        with pytest.raises(AttributeError, match="immutable"):
            setattr(schedule, name, "x")
        with pytest.raises(AttributeError, match="immutable"):
            delattr(schedule, name)
    assert not hasattr(schedule, "__dict__")


def test_different_schedules_differ() -> None:
    """Zone, anchor and rules are part of what a schedule is."""
    assert (
        len(
            {
                Cron("0 2 * * *"),
                Cron("0 2 * * *", "Europe/Vienna"),
                Cron("0 2 * * *", gap="skip"),
            }
        )
        == 3
    )


def test_parsing_is_cached() -> None:
    """The text of a row is parsed once, not at each claim."""
    assert parse_schedule("0 2 * * *") is parse_schedule("0 2 * * *")
