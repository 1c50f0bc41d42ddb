"""What a cron expression may say, and the messages for what it may not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.unit.schedules.work import within

from slotwise import Cron, InvalidSchedule

MONDAY = datetime(2026, 6, 1, tzinfo=UTC)
JUST_BEFORE = MONDAY - timedelta(seconds=1)


def hours_of_monday(field: str) -> list[int]:
    return [
        slot.hour
        for slot in Cron(f"0 {field} * * *").slots(
            JUST_BEFORE, MONDAY + timedelta(hours=23)
        )
    ]


def weekdays(field: str) -> list[str]:
    return [
        f"{s:%a}"
        for s in Cron(f"0 0 * * {field}").slots(
            JUST_BEFORE, MONDAY + timedelta(days=6)
        )
    ]


HOURS = [
    ("5", [5]),
    ("05", [5]),
    ("1-1", [1]),
    ("0-0", [0]),
    ("1,5,3,5", [1, 3, 5]),
    ("9-12", [9, 10, 11, 12]),
    ("9-13/2", [9, 11, 13]),
    ("22-2", [0, 1, 2, 22, 23]),
    ("23-4/2", [1, 3, 23]),
    ("22-5/3", [1, 4, 22]),
    ("*/6", [0, 6, 12, 18]),
    ("5/6", [5, 11, 17, 23]),
    ("23/5", [23]),
    ("*/24", [0]),
    ("2,*/12", [0, 2, 12]),
]

WEEKDAYS = [
    ("0", ["Sun"]),
    ("7", ["Sun"]),
    ("7-7", ["Sun"]),
    ("7-1", ["Mon", "Sun"]),
    ("5-7", ["Fri", "Sat", "Sun"]),
    ("1-7/2", ["Mon", "Wed", "Fri", "Sun"]),
    ("0-7", ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]),
    ("mon-Fri", ["Mon", "Tue", "Wed", "Thu", "Fri"]),
    ("SAT-MON", ["Mon", "Sat", "Sun"]),
    ("SUN,3", ["Wed", "Sun"]),
    ("MON-MON", ["Mon"]),
]


@pytest.mark.parametrize(("field", "hours"), HOURS, ids=[field for field, _ in HOURS])
def test_values_of_a_field(field: str, hours: list[int]) -> None:
    """Lists, ranges, steps; an equal range is one value, and a range may wrap around."""
    assert hours_of_monday(field) == hours


@pytest.mark.parametrize(
    ("field", "days"), WEEKDAYS, ids=[field for field, _ in WEEKDAYS]
)
def test_values_of_the_weekday(field: str, days: list[str]) -> None:
    """Sunday is 0 and 7; names go in either case."""
    assert weekdays(field) == days


def test_six_fields_have_the_seconds_first() -> None:
    """Six fields are seconds, then the five of cron."""
    slots = Cron("*/20 30 2 * * *").slots(MONDAY, MONDAY + timedelta(days=1))
    assert [f"{slot:%H:%M:%S}" for slot in slots] == [
        "02:30:00",
        "02:30:20",
        "02:30:40",
    ]


@pytest.mark.parametrize(
    ("macro", "fields"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@Midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
    ],
)
def test_macros_stand_for_their_fields(macro: str, fields: str) -> None:
    """A macro is the same schedule as the fields it stands for."""
    assert Cron(macro) == Cron(fields)


def test_spaces_and_case_make_no_difference() -> None:
    """The text form is canonical, so that a reformatted expression is no new schedule."""
    assert str(Cron(" 0  2\t* jan  Mon ")) == "CRON|0 2 * JAN MON|UTC"


REFUSED = [
    ("61 * * * *", 'minute must be 0–59, got "61"'),
    ("60 0 0 * * *", 'second must be 0–59, got "60"'),
    ("0 24 * * *", 'hour must be 0–23, got "24"'),
    ("0 0 0 * *", 'day-of-month must be 1–31, got "0"'),
    ("0 0 * 13 *", 'month must be 1–12 or JAN–DEC, got "13"'),
    ("0 0 * * 8", 'day-of-week must be 0–7 or SUN–SAT, got "8"'),
    ("0 0 * FOO *", 'month must be 1–12 or JAN–DEC, got "FOO"'),
    ("0 0 * JANUARY *", 'month must be 1–12 or JAN–DEC, got "JANUARY"'),
    ("1,61 * * * *", 'minute must be 0–59, got "61"'),
    ("10-70 * * * *", 'minute must be 0–59, got "10-70"'),
    ("1,,2 * * * *", 'minute must be 0–59, got ""'),
    ("-1 * * * *", 'minute must be 0–59, got "-1"'),
    ("*/-12 * * * *", 'minute must be 0–59, got "*/-12"'),
    ("*/0 * * * *", 'minute field "*/0": the step must be 1–60'),
    ("5/100 * * * *", 'minute field "5/100": the step must be 1–60'),
    ("0 */25 * * *", 'hour field "*/25": the step must be 1–24'),
    (
        "*/99999999999999999999 * * * *",
        'minute field "*/99999999999999999999": the step must be 1–60',
    ),
    (
        "99999999999999999999 * * * *",
        'minute must be 0–59, got "99999999999999999999"',
    ),
    ("٣ * * * *", 'minute must be 0–59, got "٣"'),
    ("? * * * *", 'minute must be 0–59, got "?"'),
    (
        "R * * * *",
        'minute field "R": a random value would differ on each node; write 0–59',
    ),
    (
        "0 R(1-5) * * *",
        'hour field "R(1-5)": a random value would differ on each node; write 0–23',
    ),
    ("0 0 L-31 * *", 'day-of-month field "L-31": L-1 to L-30'),
    ("0 0 32W * *", 'day-of-month must be 1–31, got "32"'),
    ("0 0 * * MON#6", 'day-of-week field "MON#6": #1 to #5'),
    ("0 0 * * L", 'day-of-week must be 0–7 or SUN–SAT, got "L"'),
    ("{0.__class__} %s ${x} * *", 'minute must be 0–59, got "{0.__CLASS__}"'),
    ("\x1b]0;\x07 * * * *", 'minute must be 0–59, got "\\x1b]0;\\x07"'),
    (
        "* * * *",
        "has 4 fields; a cron expression has 5 (minute hour day-of-month month "
        "day-of-week), or 6 with",
    ),
    ("0 0 0 1 1 * 2026", "has 7 fields"),
    ("", "has 0 fields"),
    ("0 0 30 2 *", "can never fire"),
    ("0 0 31 4,6,9,11 *", "can never fire"),
    ("0 0 L-30 2 *", "can never fire"),
    ("@dayly", "did you mean @daily?"),
    ("@reboot", "a cluster never reboots"),
]


@pytest.mark.parametrize(
    ("expression", "message"), REFUSED, ids=[ascii(text) for text, _ in REFUSED]
)
def test_refusals_name_field_value_and_range(expression: str, message: str) -> None:
    """What cannot be understood, or can never fire, is refused with the place and what is
    allowed.
    """
    with pytest.raises(InvalidSchedule) as refusal:
        Cron(expression)
    assert message in str(refusal.value)
    assert str(refusal.value).isprintable()


def test_an_impossible_day_may_still_fire_by_its_weekday() -> None:
    """30 February or Monday is every Monday of February; 30 February and Monday is never."""
    assert Cron("0 0 30 2 MON").next_after(MONDAY) == datetime(2027, 2, 1, tzinfo=UTC)
    with pytest.raises(InvalidSchedule, match="can never fire"):
        Cron("0 0 30 2 MON", day_rule="and")


@pytest.mark.parametrize(
    "hostile",
    [
        "* " * 10_000,
        "x" * 10_000,
        ",".join(["*/1"] * 60) + " * * * *",
        "0-59," * 40 + "*" + " * * * *",
        "1W," * 70 + "1W * * *",
        "1-" * 100,
        "((((((((((" * 20 + " * * * *",
        "R(" + "(" * 200 + " * * * *",
    ],
    ids=lambda text: text[:8],
)
def test_hostile_expressions_are_settled_at_once(hostile: str) -> None:
    """However long or twisted, an expression costs few steps (counted: at most 20,800), and its
    message is short.
    """
    with pytest.raises(InvalidSchedule):
        Cron("x")  # which loads the readers of other notations, once
    message = ""
    try:
        within(80_000, lambda: Cron(hostile))
    except InvalidSchedule as refusal:
        message = str(refusal)
    assert len(message) < 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"day_rule": "vixxie"},
            "day_rule 'vixxie': one of or, and, vixie (did you mean vixie?)",
        ),
        ({"gap": "move"}, "gap 'move': one of end, shift, skip"),
        ({"fold": "twice"}, "fold 'twice': one of first, second, both"),
        ({"tz": "Europe/Viena"}, "did you mean Europe/Vienna"),
        ({"tz": "vienna"}, "did you mean Europe/Vienna"),
        ({"tz": "localtime"}, "unknown time zone 'localtime'"),
        ({"tz": "../../etc/passwd"}, "unknown time zone"),
        ({"tz": "Europe"}, "unknown time zone"),
        ({"tz": ""}, "unknown time zone"),
        ({"tz": "x" * 1000}, "a time zone name of 1000 characters"),
        ({"tz": None}, "None is not a time zone with a name"),
    ],
    ids=str,
)
def test_unknown_options_name_what_there_is(
    options: dict[str, str], message: str
) -> None:
    """A wrong rule or zone is refused with the allowed ones, or near matches."""
    with pytest.raises(InvalidSchedule) as refusal:
        Cron("0 2 * * *", **options)  # type: ignore[arg-type]
    assert message in str(refusal.value)


def test_what_is_not_text_is_refused() -> None:
    """A number instead of an expression is a message, not a traceback from within."""
    with pytest.raises(
        InvalidSchedule, match="5 is not the text of a cron expression"
    ):
        Cron(5)  # type: ignore[arg-type]
