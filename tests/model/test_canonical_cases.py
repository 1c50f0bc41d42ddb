"""The model agrees with the canonical cases of "Where policies meet"."""

from __future__ import annotations

import pytest
from tests.model.canonical_cases import CASES, COLUMNS, Play, parse
from tests.model.model_side import ModelSide


@pytest.mark.parametrize(
    ("name", "column"),
    [(name, column) for name, case in CASES.items() for column in case.expected],
)
def test_the_model_agrees_with_the_case(name: str, column: str) -> None:
    """Every slot that has a fate at the end is in the table, and the other way round."""
    case = CASES[name]
    side = ModelSide(case, column)
    Play(case, side).go()
    assert side.fates() == parse(case.expected[column], case.every)


def test_each_numbered_case_has_each_policy() -> None:
    """The twenty cases with which the rules were chosen are all there, for each policy of
    catch-up.
    """
    numbered = {
        name: tuple(case.expected) for name, case in CASES.items() if name.isdigit()
    }
    assert numbered == {str(number): COLUMNS for number in range(1, 21)}
