"""Explain why a one-time task waits, runs, or is gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slotwise.errors import pasteable
from slotwise.explain.due_times import until_due
from slotwise.explain.sentences import (
    counted,
    how_ended,
    paused_by,
    running_long,
    signs_of_life,
    told_attempts,
    when,
)
from slotwise.model.error_text import error_summary
from slotwise.model.records import Row, claimed_since
from slotwise.model.values import Value
from slotwise.model.vocabulary import (
    ListedState,
    RowState,
    SlotState,
)
from slotwise.store.reading.facts import TaskFacts
from slotwise.store.reading.slots import AttemptInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExplanation(Value):
    """``state`` as in listings, the recorded outcome of a task that has ended, or unknown;
    ``sentences`` say why. The ``id`` is empty where all tasks of a name are explained.
    """

    task: str
    id: str
    state: str
    sentences: tuple[str, ...]
    attempts: tuple[AttemptInfo, ...] = ()


def explain_task(facts: TaskFacts) -> TaskExplanation:
    """Explain why a one-time task waits, runs, or is gone."""
    row = facts.row
    end = facts.end
    if row is None:
        state = SlotState.UNKNOWN if end is None else end.outcome
        told = [
            "No row has this id, and no end is recorded: it has ended without a "
            "record, was cancelled while it waited, "
            "or was never scheduled."
        ]
        if end is not None and end.finished is not None:
            earlier = told_attempts(
                one for one in facts.attempts if one.token != end.token
            )
            told = [
                how_ended(end.outcome, end.reason, f"at {when(end.finished)}"),
                *earlier,
            ]
    else:
        state = ListedState.RUNNING if row.picked else row.state or SlotState.WAITING
        told = list(_task(facts, row))
    return TaskExplanation(
        task=facts.key.task_name,
        id=facts.key.task_instance,
        state=state,
        sentences=tuple(told),
        attempts=tuple(facts.attempts),
    )


def _task(facts: TaskFacts, row: Row) -> Iterator[str]:
    if row.state == RowState.FOREIGN:
        yield (
            "Another program wrote this row for itself, such as Java's db-scheduler: it runs it, "
            "and slotwise leaves it alone."
        )
    elif row.picked:
        yield (
            f"It is claimed by {row.picked_by}, attempt "
            f"{row.attempt}{signs_of_life(row, facts)}."
        )
        claimed = claimed_since(row.version)
        if claimed is not None:
            yield from running_long(claimed, facts)
    elif row.state == RowState.DEAD:
        again = f"slotwise tasks retry {row.task_name} {row.task_instance}"
        yield pasteable(
            f"It is dead after {counted(row.attempt, 'attempt')}; to try it again: {again}."
        )
    elif row.state == RowState.BLOCKED:
        yield "It waits for other tasks to end."
    elif facts.all_paused or facts.pause or row.state == RowState.PAUSED:
        yield paused_by(facts)
    else:
        yield from until_due(facts, row)
    yield from told_attempts(facts.attempts)
    if facts.error and not row.picked and not facts.attempts:
        yield f"The last error: {error_summary(facts.error)}"
