"""How many slots a claim takes, as a table."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.kit.store import BatchSize

from slotwise.store.slots.tuning import FIRST

MOST = 500
MINUTE = timedelta(minutes=1)
#: As short as leases are: three heartbeat intervals of a second.
SHORT = timedelta(seconds=3)


@pytest.mark.parametrize(
    ("taken", "late", "took", "lease", "expected"),
    [
        pytest.param(100, 100, 0.1, MINUTE, MOST, id="cheap: as many as there may be"),
        pytest.param(100, 100, 0.5, MINUTE, 200, id="a second of them"),
        pytest.param(100, 50, 0.5, MINUTE, 100, id="only the late ones cost"),
        pytest.param(100, 100, 12.5, MINUTE, 8, id="too many: fewer"),
        pytest.param(100, 100, 1.0, SHORT, 37, id="a part of a short lease"),
        pytest.param(1, 1, 5.0, SHORT, 1, id="never none"),
        pytest.param(
            FIRST, FIRST, 0.04, MINUTE, 2 * FIRST, id="at once, and full: more"
        ),
        pytest.param(
            FIRST,
            1,
            0.04,
            MINUTE,
            2 * FIRST,
            id="one late row does not make claims small",
        ),
        pytest.param(
            FIRST - 1,
            1,
            0.04,
            MINUTE,
            FIRST,
            id="not full: as before, also with a late row",
        ),
        pytest.param(FIRST, 1, 0.06, MINUTE, 16, id="a dear late row does"),
        pytest.param(
            FIRST, 0, 0.0, MINUTE, 2 * FIRST, id="full, and all on time: more"
        ),
        pytest.param(FIRST - 1, 0, 0.0, MINUTE, FIRST, id="not full: as before"),
    ],
)
def test_what_the_next_claim_may_take(
    taken: int, late: int, took: float, lease: timedelta, expected: int
) -> None:
    """As many late ones as can be decided within a second, or an eighth of the lease; of those on
    time ever more.
    """
    portion = BatchSize(MOST)
    assert portion.size == FIRST
    portion.learn(taken, late, took, lease)
    assert portion.size == expected


def test_it_grows_to_a_batch() -> None:
    """From one as from any other."""
    portion = BatchSize(MOST)
    portion.learn(1, 1, 60.0, MINUTE)
    sizes = []
    for _ in range(11):
        sizes.append(portion.size)
        portion.learn(portion.size, 0, 0.0, MINUTE)
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 128, 256, MOST, MOST]
