"""Durations: every spelling that people use, and one that is written."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise import InvalidSetting
from slotwise.spi import (
    LONGEST_DURATION,
    format_duration,
    parse_duration,
    short_duration,
)

SPELLINGS = [
    ("10s", timedelta(seconds=10)),
    ("5m", timedelta(minutes=5)),
    ("1h30m", timedelta(hours=1, minutes=30)),
    ("1h 30m", timedelta(hours=1, minutes=30)),
    (" 250ms ", timedelta(milliseconds=250)),
    ("5m250ms", timedelta(minutes=5, milliseconds=250)),
    ("7us", timedelta(microseconds=7)),
    ("2d", timedelta(days=2)),
    ("1w", timedelta(weeks=1)),
    ("0s", timedelta(0)),
    ("PT10S", timedelta(seconds=10)),
    ("PT0.25S", timedelta(milliseconds=250)),
    ("P1DT2H", timedelta(days=1, hours=2)),
    ("P2W", timedelta(weeks=2)),
    ("PT1H30M", timedelta(hours=1, minutes=30)),
]

CANONICAL = [
    (timedelta(0), "0s"),
    (timedelta(seconds=90), "90s"),
    (timedelta(seconds=120), "2m"),
    (timedelta(minutes=90), "90m"),
    (timedelta(hours=36), "36h"),
    (timedelta(days=14), "14d"),
    (timedelta(milliseconds=1500), "1500ms"),
    (timedelta(microseconds=1), "1us"),
    (timedelta(seconds=-3), "-3s"),
]

FOR_PEOPLE = [
    (timedelta(milliseconds=250.4), "250ms"),
    (timedelta(seconds=3.44), "3.4s"),
    (timedelta(seconds=4), "4s"),
    (timedelta(seconds=15.6), "16s"),
    (timedelta(seconds=85), "1m25s"),
    (timedelta(hours=2), "2h"),
    (timedelta(hours=2, minutes=3, seconds=4), "2h3m"),
    (timedelta(seconds=1594156), "18d10h"),
    (timedelta(seconds=-3), "-3s"),
]

REFUSED = [
    "",
    " ",
    "10",
    "s",
    "10 parsecs",
    "-5s",
    "5s 1h",
    "1m1m",
    "P",
    "PT",
    "PT5",
    "P1M",
    "1e3s",
    "٣s",
    "1.5h",
]


@pytest.mark.parametrize(
    ("text", "meant"), SPELLINGS, ids=[text for text, _ in SPELLINGS]
)
def test_reads_every_spelling(text: str, meant: timedelta) -> None:
    """Short forms and ISO 8601 are read alike."""
    assert parse_duration(text) == meant


@pytest.mark.parametrize(
    ("value", "text"), CANONICAL, ids=[text for _, text in CANONICAL]
)
def test_writes_the_largest_whole_unit(value: timedelta, text: str) -> None:
    """A duration is written as a whole number of the largest unit that fits."""
    assert format_duration(value) == text


@given(st.timedeltas(min_value=timedelta(0), max_value=LONGEST_DURATION))
def test_what_is_written_reads_back(value: timedelta) -> None:
    """Writing and reading gives the same duration, to the microsecond."""
    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize("text", REFUSED, ids=repr)
def test_refuses_what_is_not_a_duration(text: str) -> None:
    """The message shows the value and the accepted forms."""
    with pytest.raises(InvalidSetting, match="PT10S") as refusal:
        parse_duration(text)
    assert repr(text) in str(refusal.value)


@pytest.mark.parametrize("value", [10, 10.0, True, None, b"10s"], ids=repr)
def test_refuses_what_has_no_unit(value: object) -> None:
    """A bare number does not say its unit."""
    with pytest.raises(InvalidSetting, match="has no unit"):
        parse_duration(value)  # type: ignore[arg-type]


TOO_LONG = [
    "9" * 17 + "s",
    "9" * 18 + "d",
    "9" * 10_000 + "s",
    "36501d",
    LONGEST_DURATION + timedelta(microseconds=1),
]


@pytest.mark.parametrize("value", TOO_LONG, ids=lambda value: str(len(str(value))))
def test_refuses_what_is_too_long(value: str | timedelta) -> None:
    """So long before or after the present there is no date to reckon with: a message of one line,
    not an overflow.
    """
    with pytest.raises(InvalidSetting) as refusal:
        parse_duration(value)
    assert len(str(refusal.value)) < 200


def test_refuses_a_negative_timedelta() -> None:
    """No setting is a negative time."""
    with pytest.raises(
        InvalidSetting, match="-3s is negative; write a duration of zero or more"
    ):
        parse_duration(timedelta(seconds=-3))


@pytest.mark.parametrize("text", ["-3s", " -1h30m", "-PT5S"])
def test_refuses_a_negative_text(text: str) -> None:
    """It says what is wrong with it, which is not the form."""
    with pytest.raises(InvalidSetting, match="a duration is never negative"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("span", "text"), FOR_PEOPLE, ids=[text for _, text in FOR_PEOPLE]
)
def test_for_people_two_units_are_enough(span: timedelta, text: str) -> None:
    """Nobody counts a million seconds."""
    assert short_duration(span) == text
