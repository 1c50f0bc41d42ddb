"""Numbers in sentences."""

from __future__ import annotations

import pytest

from slotwise.contrib.wording import counted


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        pytest.param(0, "0 rows are", id="none"),
        pytest.param(1, "1 row is", id="one"),
        pytest.param(2_000, "2,000 rows are", id="many"),
    ],
)
def test_a_noun_and_its_verb_follow_the_number(count: int, expected: str) -> None:
    assert counted(count, "row", "is", "are") == expected
    assert counted(count, "row") == expected.rsplit(" ", 1)[0]
