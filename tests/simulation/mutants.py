"""Engines with one rule broken: the laws must find each of them."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

from tests.kit.breaks import Arguments, Mutant, always, answering, given
from tests.kit.store import Limits
from tests.model.mutants import MUTANTS as OF_THE_MODEL
from tests.simulation import points


def _without_row(a: Arguments) -> Any:
    """Forgets that the ledger has the slot already."""
    slots = a.self.tables.slots
    a.connection.execute(
        slots.delete().where(
            slots.c.task_name == a.row.task_name, slots.c.slot == a.row.slot
        )
    )
    return a.row


def _task_without(limit: str) -> Mutant:
    return given(points.ROOM, self=lambda a: _without(a.self, limit))


def _without(limits: Limits, limit: str) -> Limits:
    found = copy(limits)
    found._definitions = {
        name: replace(task, **{limit: None}) if task.is_limited else task
        for name, task in limits._definitions.items()
    }
    return found


#: By the rule that is not there then.
MUTANTS: dict[str, Mutant] = {
    "a settlement minds the claim's version and holder": OF_THE_MODEL[
        "a settlement minds the claim's version and holder"
    ],
    "what did not run is written down": always(points.GAPS, None),
    "a job that gives up marks its start": always(points.MARK_RUNNING, True),
    "a task that gives up and has no mark is handed back": given(
        points.LOST,
        row=lambda a: a.row if a.row.has_slot else replace(a.row, marked=a.ending.now),
    ),
    "what the dead held is taken over": always(points.TAKE_OVER, []),
    "the highest priority goes first": always(points.RANK, []),
    "tags decide who may run it": always(points.MAY_RUN_ON, True),
    "so many start within a time": _task_without("rate_limit"),
    "so many run at a time": _task_without("concurrency"),
}

#: Those that show where the queue is put back from a backup: only the ledger knows then what has
#: run.
AFTER_RESTORES: dict[str, Mutant] = {
    "the ledger refuses a slot that it has": given(points.ENTER, row=_without_row),
}

#: Those that break the rate of a recovery.
OF_RECOVERY: dict[str, Mutant] = {
    "a start needs a token": always(points.HAS_TOKEN, True),
    "a start takes a token": answering(points.TAKEN, lambda _, a: a.full),
    "a row that comes back is late by its slot": given(
        points.IS_LATE, row=lambda a: replace(a.row, slot=a.row.execution_time)
    ),
}

for found in (MUTANTS, AFTER_RESTORES, OF_RECOVERY):
    found.update(
        {rule: replace(mutant, caches=points.CACHES) for rule, mutant in found.items()}
    )
