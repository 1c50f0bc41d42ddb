"""Ask the workers that run something where it is, and wait for their answers."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TypeAlias

from slotwise.model.clock import elapsed
from slotwise.store.connect.notifications import OPERATIONS
from slotwise.store.operations.stacks import HandlerStack, Questions, held_by
from slotwise.store.slots.store import Store

#: Seconds between two looks for answers. Judged.
LOOK = 0.05
#: Stacks by name, id and token of what runs, by worker.
Answers: TypeAlias = Mapping[str, Mapping[tuple[object, ...], str]]


def stacks_of(
    store: Store, name: str, id: str | None, within: timedelta
) -> list[HandlerStack]:
    """Return what runs of a name, or on a worker, with the stacks that its workers have answered
    in this time.
    """
    running = held_by(store, name, id)
    workers = {one.worker for one in running}
    if not workers:
        return []
    questions = Questions(store)
    for worker in sorted(workers):
        questions.ask(worker)
    store.database.wake_ups.tell(OPERATIONS)
    try:
        answers = _wait(questions, workers, elapsed() + within.total_seconds())
    finally:
        questions.forget(workers)
    found = [_answered(one, answers) for one in running]
    return [one for one in found if one is not None]


def _wait(questions: Questions, workers: Collection[str], until: float) -> Answers:
    answers = dict[str, Mapping[tuple[object, ...], str]]()
    while True:
        rows = questions.answers(workers)
        for worker in sorted(set(workers) - answers.keys()):
            if worker not in rows:  # another one who asked has deleted it
                questions.ask(worker)
            elif (stacks := rows[worker]) is not None:
                answers[worker] = _by_row(stacks)
        if len(answers) == len(workers) or elapsed() >= until:
            return answers
        time.sleep(LOOK)


def _by_row(
    stacks: Sequence[Mapping[str, object]],
) -> Mapping[tuple[object, ...], str]:
    """Return the stacks of an answer by task, id and token."""
    found = dict[tuple[object, ...], str]()
    for one in stacks:
        found[one.get("task"), one.get("id"), one.get("version")] = str(
            one.get("stack")
        )
    return found


def _answered(one: HandlerStack, answers: Answers) -> HandlerStack | None:
    """Return it with its stack; None if it has ended before its worker answered."""
    stacks = answers.get(one.worker)
    if stacks is None:
        return one
    stack = stacks.get((one.name, one.id, one.token))
    return None if stack is None else replace(one, stack=stack)
