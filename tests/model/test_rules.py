"""Each mutant of the model changes a rule that the product still has, in these words."""

from __future__ import annotations

import inspect
import textwrap

import pytest
from tests.model.mutants import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_rule_is_where_its_mutant_looks(mutant: Mutant) -> None:
    """Once; else whoever runs the mutants learns nothing of it."""
    assert textwrap.dedent(inspect.getsource(mutant.function)).count(mutant.rule) == 1
