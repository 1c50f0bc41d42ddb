"""An error in one line, whatever its text is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest
from tests.kit.loops import error_text
from tests.kit.records import LIMIT

from slotwise.spi import error_summary


def _of_a_driver() -> NoReturn:
    raise ValueError(
        'relation "nope" does not exist\nLINE 1: insert into nope\n[SQL: '
        "insert]\n(Background on: https://x)"
    )


def _chained() -> NoReturn:
    try:
        raise KeyError("first")
    except KeyError as error:
        raise ValueError("second\n  and more") from error


def _group() -> NoReturn:
    raise ExceptionGroup("some failed", [ValueError("one"), ValueError("two")])


def _noted() -> NoReturn:
    error = ValueError("boom")
    error.add_note("a note")
    raise error


def _long() -> NoReturn:
    raise ValueError("x" * 100_000)


@pytest.mark.parametrize(
    ("fail", "said"),
    [
        (_of_a_driver, 'ValueError: relation "nope" does not exist'),
        (_chained, "ValueError: second"),
        (_group, "ExceptionGroup: some failed (2 sub-exceptions)"),
        (_noted, "ValueError: boom"),
        (_long, f"ValueError: {'x' * (LIMIT - 13)}…"),
    ],
    ids=lambda one: one.__name__.strip("_") if callable(one) else "",
)
def test_of_a_traceback_the_line_that_names_the_exception(
    fail: Callable[[], NoReturn], said: str
) -> None:
    """Not what a driver or a note adds below it."""
    with pytest.raises(Exception) as raised:  # noqa: PT011
        fail()
    assert error_summary(error_text(raised.value)) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("timed out after 5s", "timed out after 5s"),
        ("\nsorry\nmore", "sorry"),
        ("  indented\n", "indented"),
        ("", ""),
        (None, ""),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
    ],
)
def test_of_any_other_text_the_first_line(text: str | None, said: str) -> None:
    """A reason that somebody gave, or nothing."""
    assert error_summary(text) == said
