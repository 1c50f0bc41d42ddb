"""Expressions of other schedulers: their slots, or a refusal with what to write instead.

The truth for Quartz and Spring was recorded from Quartz 2.3.2 and Spring 4.3.30; croniter and
systemd-analyze are asked.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import pytest
from croniter import croniter

from slotwise import Cron, InvalidSchedule, Schedule, parse_schedule
from slotwise.contrib.notations import other_readings

START = datetime(2026, 3, 1, 0, 30, 30, tzinfo=UTC)
END = datetime(2099, 1, 1, tzinfo=UTC)


def first(schedule: Schedule, start: datetime = START, count: int = 6) -> list[str]:
    return [
        f"{slot:%Y-%m-%dT%H:%M:%SZ}"
        for slot in islice(schedule.slots(start, END), count)
    ]


def refusal(text: str) -> str:
    with pytest.raises(InvalidSchedule) as caught:
        parse_schedule(text)
    return str(caught.value)


def written(sentence: str) -> str:
    """What a refusal or a note says to write."""
    return re.split(r"write:? ", sentence)[-1]


def recorded(name: str) -> list[tuple[str, str, datetime, list[str]]]:
    lines = map(json.loads, Path(__file__).with_name(name).read_text().splitlines())
    return [
        (one["expr"], one["tz"], datetime.fromisoformat(one["start"]), one["next"])
        for one in lines
    ]


@pytest.mark.parametrize(("text", "tz", "start", "slots"), recorded("quartz.jsonl"))
def test_quartz_has_the_slots_of_quartz(
    text: str, tz: str, start: datetime, slots: list[str]
) -> None:
    assert first(Cron.quartz(text, tz), start) == slots


@pytest.mark.parametrize(("text", "tz", "start", "slots"), recorded("quartz.jsonl"))
def test_a_pasted_quartz_expression_is_never_silently_another(
    text: str, tz: str, start: datetime, slots: list[str]
) -> None:
    """As it is it has the same slots, or a note or a refusal says the text that has them."""
    try:
        pasted = Cron(text, tz)
    except InvalidSchedule as error:
        told = [written(str(error))]
    else:
        told = [str(pasted), *map(written, other_readings(pasted))]
    assert slots in [first(parse_schedule(one), start) for one in told]


@pytest.mark.parametrize(("text", "tz", "start", "slots"), recorded("spring.jsonl"))
def test_a_pasted_spring_expression_is_never_silently_another(
    text: str, tz: str, start: datetime, slots: list[str]
) -> None:
    pasted = Cron(text, tz)
    told = [str(pasted), *map(written, other_readings(pasted))]
    assert slots in [first(parse_schedule(one), start) for one in told]


def test_croniter_has_the_seconds_last() -> None:
    """Six fields that it reads otherwise have a note with its reading."""
    pick = random.Random(11).choice
    for _ in range(60):
        seconds, minute, hour, day, month, weekday = (
            pick(["0", "30", "*/20", "5"]),
            pick(["0", "15", "*", "*/5"]),
            pick(["3", "*", "9"]),
            pick(["*", "1", "*/2"]),
            pick(["*", "6"]),
            pick(["*", "1", "1-5"]),
        )
        text = " ".join(
            [minute, hour, day, month, weekday, seconds]
        )  # as croniter has it
        oracle = croniter(text, START, ret_type=datetime)
        slots = [f"{oracle.get_next():%Y-%m-%dT%H:%M:%SZ}" for _ in range(6)]
        try:
            pasted = Cron(text)
        except InvalidSchedule as error:
            told = [written(str(error))]
        else:
            told = [str(pasted), *map(written, other_readings(pasted))]
        assert slots in [first(parse_schedule(one)) for one in told], text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_on_calendar_has_the_slots_of_systemd() -> None:
    pick = random.Random(12).choice
    for _ in range(40):
        days = pick(["", "", "Mon", "Mon..Fri", "Sat,Sun", "Wed,Fri..Sun", "sunday"])
        date = pick(
            [
                "",
                "*-*-*",
                "*-*-1",
                "*-*-1..7",
                "*-*-01,15",
                "*-*~1",
                "*-02,08-03",
                "2027-*-2",
            ]
        )
        clock = pick(
            [
                "",
                "09:00",
                "*:0/15",
                "*:53:00",
                "0/6:30",
                "06,18:00:00",
                "8..17:00",
                "*:*:0/20",
            ]
        )
        text = " ".join(filter(None, [days, date, clock])) or "daily"
        command = ["systemd-analyze", "calendar", "--iterations=4", text]
        command.append("--base-time=2026-03-01 00:30:30 UTC")
        run = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            env={"TZ": "UTC", "LC_ALL": "C"},
        )
        found = re.findall(r"(?:elapse|#\d+): \w{3} (\S+) (\S+) UTC", run.stdout)
        slots = [f"{day}T{time}Z" for day, time in found]
        assert first(parse_schedule(written(refusal(text))), count=4) == slots, text


HINTS = [
    # fixed rates and durations
    ("5m", "EVERY|5m"),
    ("90s", "EVERY|90s"),
    ("1h30m", "EVERY|90m"),
    ("15 minutes", "EVERY|15m"),
    ("every 2 hours", "EVERY|2h"),
    ("every minute", "EVERY|1m"),
    ("45 seconds", "EVERY|45s"),
    ("PT15M", "EVERY|15m"),
    ("P7D", "EVERY|7d"),
    ("R/2026-01-01T06:00:00Z/PT8H", "EVERY|8h|2026-01-01T06:00:00Z"),
    ("@every 1h15m", "EVERY|75m"),
    ("@every 90s", "EVERY|90s"),
    ("rate(1 minute)", "EVERY|1m"),
    ("rate(12 hours)", "EVERY|12h"),
    ("rate(3 days)", "EVERY|3d"),
    ("600", "EVERY|10m"),
    # instants
    ("2026-12-24T18:00:00+01:00", "ONCE|2026-12-24T17:00:00Z"),
    ("at(2026-12-24T18:00:00)", "ONCE|2026-12-24T18:00:00Z"),
    # a zone beside the fields
    ("CRON_TZ=Europe/Paris 30 6 * * 1-5", "CRON|30 6 * * 1-5|Europe/Paris"),
    ("TZ=Asia/Tokyo 0 9 * * *", "CRON|0 9 * * *|Asia/Tokyo"),
    ("CRON_TZ=Europe/Paris @daily", "CRON|0 0 * * *|Europe/Paris"),
    ("CRON_TZ=Europe/Paris @every 4h", "EVERY|4h"),
    ("0 9 * * 1 America/New_York", "CRON|0 9 * * 1|America/New_York"),
    # EventBridge
    ("cron(0 12 * * ? *)", "CRON|0 12 * * *|UTC"),
    ("cron(0/10 * ? * MON-FRI *)", "CRON|0/10 * * * MON-FRI|UTC"),
    ("cron(15 10 ? * 6L *)", "CRON|15 10 * * FRIL|UTC"),
    ("cron(0 8 1 * ? *)", "CRON|0 8 1 * *|UTC"),
    ("5 8 ? * 1,7 *", "CRON|5 8 * * SUN,SAT|UTC"),
    # Quartz
    ("0 0 8 ? * L", "CRON|0 0 8 ? * SAT|UTC"),
    ("0 0 8 ? * 2-6 *", "CRON|0 0 8 ? * MON-FRI|UTC"),
    # words and names
    ("@quarterly", "CRON|0 0 1 1,4,7,10 *|UTC"),
    ("weekly", "CRON|0 0 * * MON|UTC"),
    ("0 9 * * MONDAY-FRIDAY", "CRON|0 9 * * MON-FRI|UTC"),
    ("0 9 1 JANUARY,JULY *", "CRON|0 9 1 JAN,JUL *|UTC"),
    ("30 23 $ * *", "CRON|30 23 L * *|UTC"),
    ("none", "-"),
    # systemd
    ("Mon..Fri 22:30", "CRON|30 22 * * MON-FRI|UTC"),
    ("*-*-* 00:00:00 Europe/Berlin", "CRON|0 0 * * *|Europe/Berlin"),
    ("every tuesday 07:30", "CRON|30 7 * * TUE|UTC"),
    # croniter
    ("15 9 * * 1-5 30", "CRON|30 15 9 * * 1-5|UTC"),
]


@pytest.mark.parametrize(("text", "equivalent"), HINTS)
def test_a_refusal_names_the_equivalent(text: str, equivalent: str) -> None:
    assert refusal(text).endswith(f"; write {equivalent}")
    assert parse_schedule(equivalent)


def test_a_refusal_keeps_the_zone_that_was_given() -> None:
    with pytest.raises(
        InvalidSchedule, match=r"write CRON\|0 9 \* \* MON\|Europe/Vienna$"
    ):
        Cron("0 9 * * MONDAY", tz="Europe/Vienna")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("solar(sunrise)", "a time of day"),
        ("sunset", "a time of day"),
        ("@once", "ONCE|"),
        ("@continuous", "FIXED_DELAY|1s"),
        ("RRULE:FREQ=DAILY", "cron fields"),
        ("P1M", "months and years differ in length"),
        ("R3/PT1H", "repetitions"),
        ("0 0 12 L-3W * ?", "has no counterpart"),
        ("@reboot", "never reboots"),
        ("02:00:00", "DAILY|02:00|UTC for a time of day, and EVERY|2h for a duration"),
    ],
)
def test_a_refusal_says_that_there_is_no_equivalent(text: str, said: str) -> None:
    assert said in refusal(text)


@pytest.mark.parametrize(
    "text", ["61 * * * *", "hello", "* * *", "x y z", "@dayly", "", "5 5"]
)
def test_a_mistake_gets_no_hint(text: str) -> None:
    assert "write" not in refusal(text)


NOTES = [
    ("0 0 12 ? * 2-6", ["CRON|0 0 12 ? * MON-FRI|UTC"]),
    ("0 0 12 ? * 6#3", ["CRON|0 0 12 ? * FRI#3|UTC"]),
    ("0 9 ? * 1", ["CRON|0 0 9 ? * SUN|UTC"]),
    ("0 0 12 ? * MON", []),
    ("0 0 12 1 * ?", []),
    ("0 9 * * 1", []),
    ("0 9 1 * MON", []),
    ("0 0 9 1 * MON", ["CRON|0 0 9 1 * MON|UTC|day_rule=and"]),
    ("CRON|0 0 9 1 * MON|UTC|day_rule=and", []),
    (
        "0 0 9 ? * 2/5",
        ["CRON|0 0 9 ? * MON/5|UTC", "CRON|0 0 9 ? * 2-7/5|UTC|day_rule=and"],
    ),
    ("0 9 */2 * FRI", ["CRON|0 9 */2 * FRI|UTC|day_rule=vixie"]),
    (
        "CRON|0 30 2 * * ?|Europe/Vienna",
        ["CRON|0 30 2 * * ?|Europe/Vienna|gap=skip|fold=second"],
    ),
    ("CRON|0 30 2 * * ?|Europe/Vienna|gap=skip|fold=second", []),
    (
        "ANY(0 0 12 ? * 1; 0 0 12 ? * 3)",
        ["CRON|0 0 12 ? * SUN|UTC", "CRON|0 0 12 ? * TUE|UTC"],
    ),
    ("EXCLUDING(0 0 12 ? * 1; AT)", ["CRON|0 0 12 ? * SUN|UTC"]),
    ("EVERY|5m", []),
]


@pytest.mark.parametrize(("text", "readings"), NOTES)
def test_other_readings(text: str, readings: list[str]) -> None:
    notes = other_readings(text)
    assert list(map(written, notes)) == readings


@pytest.mark.parametrize("text", ["0 0 12 31W * ?", "0 0 12 29W * ?"])
def test_a_weekday_near_a_day_that_short_months_lack(text: str) -> None:
    """Quartz passes these months over."""
    (note,) = other_readings(text)
    assert "has no counterpart" in note
    with pytest.raises(InvalidSchedule, match="has no counterpart"):
        Cron.quartz(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 0 12 * *", "Quartz has 6"),
        ("0 0 12 1 * MON", "requires ?"),
        ("0 0 12 ? * 0", "must be 1–7"),
        ("0 0 12 ? * 8", "must be 1–7"),
        ("0 0 12 * * ? soon", "write 2026"),
        ("0 0 12 29 2 ? 2027", "has no slot in 2027"),
        ("61 0 12 * * ?", "second must be 0–59"),
    ],
)
def test_quartz_refuses(text: str, said: str) -> None:
    with pytest.raises(InvalidSchedule, match=re.escape(said)):
        Cron.quartz(text)
