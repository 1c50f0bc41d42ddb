"""Delete a job's rows; its history stays, for it is what keeps its slots from ever starting again.

Race: a worker that still knows the job plans it again when it starts. So a job that a live worker knows is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import sqlalchemy as sa

from slotwise.decide.pause import owed_by, slept
from slotwise.errors import ConfigurationError
from slotwise.model.records import Row
from slotwise.model.vocabulary import Reason, State
from slotwise.store.operations.slot_operations import cancel_waiting
from slotwise.store.operations.transaction import Operation
from slotwise.store.slots import ledger


def delete(operation: Operation, job: str, *, known: bool = False) -> int:
    """Delete the job's rows; how many. ``known``: also if a live worker knows the job."""
    rows = operation.rows_of(job, for_good=True)
    if held := [row for row in rows if row.picked]:
        raise ConfigurationError(
            f"job {job!r} runs on {held[0].picked_by}; cancel it (slotwise cancel {job}), or wait for its end"
        )
    if not known and (worker := _who_knows(operation, job)):
        raise ConfigurationError(f"worker {worker} knows job {job!r}; stop it, or deploy it without the job")
    operation.sign("delete", job=job, rows=len(rows))
    end(operation, rows)
    return len(rows)


def end(operation: Operation, rows: Sequence[Row]) -> None:
    """Delete rows that are locked; what they waited for ends. One that runs goes when its run has ended."""
    for row in rows:
        if row.picked:
            # Race: only a mark goes onto a held row. Without the row, its holder would take the run for lost.
            operation.change(row, state=State.DELETED)
        elif row.is_plan:
            _end_plan(operation, row)
        else:
            cancel_waiting(operation, row, Reason.DELETED)


def _end_plan(operation: Operation, row: Row) -> None:
    """What has come and not begun, and what waits for its retry, ends here; of an unreadable text, its slot."""
    passed = slept(row, owed_by(row), operation.now)
    if passed is not None:
        operation.skip(row, *(replace(gap, reason=Reason.DELETED) for gap in passed.gaps))
    if row.attempt:
        ledger.cancel_retry(operation.connection, operation.store.dialect, row, Reason.DELETED, operation.now)
    operation.delete(row)


def _who_knows(operation: Operation, job: str) -> str | None:
    workers = operation.store.tables.workers
    for name, tasks, seen, lease in operation.connection.execute(
        sa.select(workers.c.worker, workers.c.tasks, workers.c.last_seen, workers.c.lease)
    ):
        if job in json.loads(tasks or "[]") and seen + lease >= operation.now:
            return str(name)
    return None
