"""What ``slotwise worker`` tells Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from slotwise.contrib.processes.foreground import GENERATION, spare_the_collector


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_what_is_there_is_not_looked_through_again() -> None:
    """Modules and registry stay; only what claims make and leave is collected."""
    spare_the_collector()
    assert gc.get_freeze_count() > 1000


@pytest.mark.extended
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(700, GENERATION, id="usual"),
        pytest.param(0, 0, id="off", marks=pytest.mark.extended),
        pytest.param(
            1_000_000, 1_000_000, id="rarer still", marks=pytest.mark.extended
        ),
    ],
)
def test_how_often_it_comes(before: int, after: int) -> None:
    """Not with every hundredth claim; but an application that wants it less often, or never, is
    heard.
    """
    gc.set_threshold(before, 10, 10)
    spare_the_collector()
    assert gc.get_threshold() == (after, 10, 10)
