"""Tests of rules that neither scripts nor simulated worlds reach are trusted after they have
failed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.kit.breaks import Mutant, always, given
from tests.kit.decisions import deletion
from tests.kit.store import ledger, plan_rows, settlement_writer
from tests.store.bench import Bench
from tests.store.conformance import test_instances, test_planner, test_take_over

#: By the rule that is not there then, and the test that finds it out.
BROKEN: dict[str, tuple[Mutant, Callable[[Bench], object]]] = {
    "a deploy comes after all that was decided": (
        given(plan_rows.replanned, row=lambda a: replace(a.row, watermark=None)),
        test_planner.test_a_slot_that_was_handed_back_belongs_to_the_old_text,
    ),
    "a restored queue finds what had begun": (
        always(ledger.disown, False),
        test_planner.test_a_slot_that_ran_during_the_restore_is_taken_up,
    ),
    "slots of a deleted job that still runs are accounted for": (
        given(deletion.removed, schedule=lambda a: None),
        lambda bench: (
            test_instances.test_slots_between_a_handlers_end_and_its_settlement_are_accounted_for(
                Bench(bench.database, test_instances.DEFINITIONS, bench.clock)
            )
        ),
    ),
    "a reaper looks again before it takes over": (
        always(settlement_writer._has_stirred, False),
        lambda bench: test_take_over.test_a_row_that_stirred_is_left(bench, "beat"),
    ),
}


@pytest.mark.parametrize(("mutant", "test"), BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_found_out(
    sqlite_bench: Bench, mutant: Mutant, test: Callable[[Bench], object]
) -> None:
    """By its own test: a result differs, or nothing is there to be claimed."""
    with mutant.at_large(), pytest.raises((AssertionError, ValueError)):
        test(sqlite_bench)
