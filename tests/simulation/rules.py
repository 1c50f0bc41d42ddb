"""Functions of the engine with one rule taken out, each with a world that is quick to find it."""

from __future__ import annotations

from tests.model.mutants import MUTANTS, Mutant

from slotwise.jobs.definition import Definition
from slotwise.store.dialects.claims_by_row import ClaimsByRow
from slotwise.store.slots.limits import Limits

#: By the rule that is not there then; and the number of the world.
RULES: dict[str, tuple[Mutant, int]] = {
    "the highest priority goes first": (
        Mutant(ClaimsByRow.due, "order: list[Any] = [sa.text(RANK)]", "order: list[Any] = []"), 0,
    ),
    "tags decide who may run it": (Mutant(Definition.may_run_on, "self.runs_on <= tags", "True"), 0),
    "so many start within a time": (Mutant(Limits.room, "task.max_starts is not None and limit > 0", "False"), 0),
    "so many run at a time": (Mutant(Limits.room, "task.max_running is not None", "False"), 1),
    "a slot with a row of its own is not forgotten": (MUTANTS["a slot with a row of its own is not forgotten"], 4),
}  # fmt: skip
