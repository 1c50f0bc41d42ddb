"""The ear of a worker: what it says when it hears nothing, and how it lets the others go first."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.kit.events import Listeners
from tests.kit.loops import Common, WakeUp

from slotwise import InvalidSetting, Settings
from slotwise.spi import Database

NOBODY = "postgresql://127.0.0.1:1/shop"


class Ear:
    """A wake-up whose database cannot be reached, and a clock that the test moves."""

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        self.wake_up = WakeUp(
            Common(Listeners(), "host:1:a", elapsed=lambda: self.now),
            Database(Settings(database_url=NOBODY, wake_up_url=NOBODY)),
            names=["mine"],
            **({"wake": lambda words: None} | options),
        )

    def fails_at(self, *instants: float) -> None:
        for self.now in instants:
            assert self.wake_up.run_once() > timedelta(0)


def test_an_address_that_never_worked_is_told_soon_and_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may be wrong, and nothing else would say so; the setting is named."""
    ear = Ear()
    ear.fails_at(0, 9)
    assert caplog.messages == []
    ear.fails_at(11, 13, 100)
    (told,) = caplog.messages
    assert told.startswith("wake-ups are off, due rows are found by polls: ")
    assert "correct wake_up_url" in told


def test_nothing_is_taken_back_that_was_not_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A short break of a connection that worked is nobody's news, neither its beginning nor its
    end.
    """
    caplog.set_level("INFO", "slotwise")
    ear = Ear()
    ear.wake_up._recovered()
    ear.fails_at(1, 3, 10)
    ear.wake_up._recovered()
    assert caplog.messages == []
    ear.fails_at(100, 111)
    ear.wake_up._recovered()
    assert [told.partition(",")[0] for told in caplog.messages] == [
        "wake-ups are off",
        "wake-ups arrive again",
    ]


def test_a_wrong_address_is_told_by_the_name_of_its_setting() -> None:
    """There is another one that it might be."""
    with pytest.raises(
        InvalidSetting, match=r"^wake_up_url: the database address is not understood"
    ):
        Database(Settings(database_url=NOBODY, wake_up_url="garbage"))


class _Clock(threading.Event):
    """Whoever waits for it has waited."""

    def __init__(self, log: list[Any]) -> None:
        super().__init__()
        self._log = log

    def wait(self, timeout: float | None = None) -> bool:
        self._log.append(timeout)
        return False


@pytest.mark.parametrize(
    ("offset", "words", "expected"),
    [(3, ["mine"], [0.003, ["mine"]]), (0, ["mine"], [["mine"]]), (3, ["yours"], [])],
    ids=["others-first", "its-turn", "not-its-business"],
)
def test_others_go_first(offset: int, words: list[str], expected: list[Any]) -> None:
    """Of several workers that hear the same word, each looks a moment after the other."""
    log: list[Any] = []
    ear = Ear(wake=log.append, offset=lambda: timedelta(milliseconds=offset)).wake_up
    ear._stopping = _Clock(log)
    ear._heed(words)
    assert log == expected
