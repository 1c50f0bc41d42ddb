"""How many slots a claim takes, as a table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from slotwise.model.clock import ManualClock
from slotwise.store.slots.batch_size import FIRST, QUIET, BatchSize

MOST = 500
MINUTE = timedelta(minutes=1)
#: As short as leases are: three heartbeat intervals of a second.
SHORT = timedelta(seconds=3)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("taken", "late", "took", "lease", "expected"),
    [
        pytest.param(100, 100, 0.1, MINUTE, MOST, id="cheap: as many as there may be"),
        pytest.param(100, 100, 0.5, MINUTE, 200, id="a second of them"),
        pytest.param(100, 50, 0.5, MINUTE, 100, id="only the late ones cost"),
        pytest.param(100, 100, 12.5, MINUTE, 8, id="too many: fewer"),
        pytest.param(100, 100, 1.0, SHORT, 37, id="a part of a short lease"),
        pytest.param(1, 1, 5.0, SHORT, 1, id="never none"),
        pytest.param(100, 100, 0.0, MINUTE, MOST, id="no time at all"),
        pytest.param(FIRST, 0, 0.0, MINUTE, 2 * FIRST, id="full, and all on time: more"),
        pytest.param(FIRST - 1, 0, 0.0, MINUTE, FIRST, id="not full: as before"),
    ],
)
def test_what_the_next_claim_may_take(
    clock: ManualClock, taken: int, late: int, took: float, lease: timedelta, expected: int
) -> None:
    """As many late ones as can be decided within a second, or an eighth of the lease; of those on time ever more."""
    portion = BatchSize(MOST, clock.elapsed)
    assert portion.size() == FIRST
    portion.learn(taken, late, took, lease)
    assert portion.size() == expected


def test_it_grows_to_a_batch(clock: ManualClock) -> None:
    """From one as from any other."""
    portion = BatchSize(MOST, clock.elapsed)
    portion.learn(1, 1, 60.0, MINUTE)
    sizes = []
    for _ in range(11):
        sizes.append(portion.size())
        portion.learn(portion.size(), 0, 0.0, MINUTE)
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 128, 256, MOST, MOST]


@pytest.mark.parametrize(("took", "after"), [(0.0, FIRST), (12.5, 8)], ids=["large", "small"])
def test_after_an_outage_it_is_careful_again(clock: ManualClock, took: float, after: int) -> None:
    """What comes due while nobody claims is late; what late slots cost is not forgotten."""
    portion = BatchSize(MOST, clock.elapsed)
    portion.learn(FIRST, FIRST, took, MINUTE)
    clock.tick(QUIET)
    before = portion.size()
    clock.tick(timedelta(seconds=1))
    assert (before, portion.size()) == (8 if took else MOST, after)
