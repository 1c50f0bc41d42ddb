"""How long a process rests between its ticks, and what ends a rest: pure."""

from __future__ import annotations

from datetime import timedelta

import pytest

from slotwise.contrib.tick.resting import concerns, pause_after
from slotwise.contrib.tick.tick import TickResult, TickState


def s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("state", "rest", "pause"),
    [
        (TickState.IDLE, None, 3600),
        (TickState.IDLE, 60, 58),
        (TickState.IDLE, 2, 0),
        (TickState.IDLE, -1, 0),
        (TickState.IDLE, 9000, 3600),
        (TickState.MORE, None, 0),
        (TickState.STOPPED, None, 3600),
    ],
)
def test_the_pause_after_a_tick(
    state: TickState, rest: float | None, pause: float
) -> None:
    """Until a little before the next known instant, an hour at most; more that is due waits for
    nothing.
    """
    found = TickResult(state=state, ran={}, rest=None if rest is None else s(rest))
    assert pause_after(found, every=s(3600), early=s(2)) == s(pause)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], False),
        (["mail"], True),
        (["other"], False),
        (["other", "mail"], True),
        (["*"], True),
        ([""], True),
        (["vm:1:abc"], False),
    ],
)
def test_which_notifications_end_a_rest(words: list[str], found: bool) -> None:
    """Those about its tasks, and those for all workers; the echo of a worker's own is neither."""
    assert concerns(words, {"mail", "*", ""}) is found
