"""The text forms, and what it means that schedules are values."""

from __future__ import annotations

import copy
import pickle
from zoneinfo import ZoneInfo

import pytest

from slotwise.errors import InvalidSchedule
from slotwise.schedules import Cron, Daily, Disabled, Every, FixedDelay, Schedule, parse_schedule

FORMS = [
    ("0 2 * * *", Cron("0 2 * * *"), "CRON|0 2 * * *|UTC"),
    ("0 */5 * * * *", Cron("0 */5 * * * *"), "CRON|0 */5 * * * *|UTC"),
    ("@hourly", Cron("0 * * * *"), "CRON|0 * * * *|UTC"),
    ("CRON|0 2 * * *", Cron("0 2 * * *"), "CRON|0 2 * * *|UTC"),
    ("cron | 0 2 * * * | Europe/Vienna", Cron("0 2 * * *", "Europe/Vienna"), "CRON|0 2 * * *|Europe/Vienna"),
    (
        "CRON|0 2 1 * MON|Europe/Vienna|fold=both|gap=shift|day_rule=and",
        Cron("0 2 1 * MON", ZoneInfo("Europe/Vienna"), day_rule="and", gap="shift", fold="both"),
        "CRON|0 2 1 * MON|Europe/Vienna|day_rule=and|gap=shift|fold=both",
    ),
    ("DAILY|12:00,13:45|Europe/Rome", Daily("12:00", "13:45", tz="Europe/Rome"), "DAILY|12:00,13:45|Europe/Rome"),
    ("DAILY|12:00", Daily("12:00"), "DAILY|12:00|UTC"),
    ("DAILY|12:00|UTC|gap=skip", Daily("12:00", gap="skip"), "DAILY|12:00|UTC|gap=skip"),
    ("EVERY|90s", Every("90s"), "EVERY|90s|1970-01-01T00:00:00Z"),
    ("EVERY|1h|2026-01-01T01:00:00+01:00", Every("1h"), None),
    ("FIXED_DELAY|120s", FixedDelay("2m"), "FIXED_DELAY|2m"),
    (" - ", Disabled(), "-"),
]


@pytest.mark.parametrize(("text", "schedule", "canonical"), FORMS, ids=[text for text, _, _ in FORMS])
def test_text_forms(text: str, schedule: Schedule, canonical: str | None) -> None:
    """Each form is read, and written completely: zone, anchor and whatever is not the default."""
    if canonical is None:
        assert parse_schedule(text) != schedule
    else:
        assert parse_schedule(text) == schedule
        assert str(schedule) == canonical


REFUSED = [
    ("EVRY|90s", '"EVRY" is not a kind of schedule (did you mean EVERY?)'),
    ("ONCE|2026-01-01", '"ONCE" is not a kind of schedule; there are CRON, DAILY, EVERY, FIXED_DELAY'),
    ("CRON", "has 1 field"),
    ("CRON|0 2 * * *|UTC|more", "1 to 2 values after CRON"),
    ("FIXED_DELAY|1m|2m", "1 to 1 values after FIXED_DELAY"),
    ("CRON|0 2 * * *|UTC|gab=skip", 'option "gab=skip": day_rule or gap or fold allowed here'),
    ("EVERY|1m|gap=skip", 'option "gap=skip": none allowed here'),
    ("CRON|0 2 * * *|UTC|gap=jump", "gap 'jump': one of end, shift, skip"),
    ("CRON|61 2 * * *|UTC", 'minute field "61": 0–59'),
    ("CRON|0 2 * * *|Europe/Viena", "did you mean Europe/Vienna"),
    ("EVERY|90s|tomorrow", "'tomorrow' is not an instant"),
    ("EVERY|90s|2026-01-01T00:00:00", "is not an aware datetime"),
    ("DAILY||UTC", "time of day ''"),
    ("- >> -", "write SCHEDULE >> INSTANT >> SCHEDULE"),
    ("- >> soon >> -", "'soon' is not an instant"),
    (" >> 2026-01-01T00:00:00Z >> ", "has 0 fields"),
    ("x" * 100_000, "a schedule of 100000 characters"),
    ("- >> " * 20, "has 0 fields"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[text[:40] for text, _ in REFUSED])
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
    assert len({Cron("0 2 * * *"), Cron("0 2 * * *", "Europe/Vienna"), Cron("0 2 * * *", gap="skip")}) == 3


def test_parsing_is_cached() -> None:
    """The text of a row is parsed once, not at each claim."""
    assert parse_schedule("0 2 * * *") is parse_schedule("0 2 * * *")
