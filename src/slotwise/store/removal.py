"""Delete a job's rows; its history stays, for it is what keeps its slots from ever starting again.

Race: a worker that still knows the job plans it again when it starts. So a job that a live worker knows is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import sqlalchemy as sa

from slotwise.errors import ConfigurationError
from slotwise.execution import Row
from slotwise.pauses import slept
from slotwise.store.bureau import Desk
from slotwise.store.planner import owed_by
from slotwise.store.slot_orders import call_off
from slotwise.vocabulary import Outcome, Reason, State


def delete(desk: Desk, job: str, *, known: bool = False) -> int:
    """Delete the job's rows; how many. ``known``: also if a live worker knows the job."""
    rows = desk.rows_of(job, for_good=True)
    if held := [row for row in rows if row.picked]:
        raise ConfigurationError(
            f"job {job!r} runs on {held[0].picked_by}; cancel it (slotwise cancel {job}), or wait for its end"
        )
    if not known and (worker := _who_knows(desk, job)):
        raise ConfigurationError(f"worker {worker} knows job {job!r}; stop it, or deploy it without the job")
    desk.sign("delete", job=job, rows=len(rows))
    end(desk, rows)
    return len(rows)


def end(desk: Desk, rows: Sequence[Row]) -> None:
    """Delete rows that are locked; what they waited for ends. One that runs goes when its run has ended."""
    for row in rows:
        if row.picked:
            # Race: only a mark goes onto a held row. Without the row, its holder would take the run for lost.
            desk.change(row, state=State.DELETED)
        elif row.is_plan:
            _end_plan(desk, row)
        else:
            call_off(desk, row, Reason.DELETED)


def _end_plan(desk: Desk, row: Row) -> None:
    """What has come and not begun, and what waits for its retry, ends here; of an unreadable text, its slot."""
    passed = slept(row, owed_by(row), desk.now)
    if passed is not None:
        desk.skip(row, *(replace(gap, reason=Reason.DELETED) for gap in passed.gaps))
    if row.attempt:
        slots = desk.store.tables.slots
        desk.connection.execute(
            slots.update()
            .where(slots.c.task_name == row.task_name, slots.c.task_instance == row.task_instance)
            .where(slots.c.slot == row.slot, slots.c.finished.is_(None))
            .values(outcome=Outcome.CANCELLED, reason=Reason.DELETED, finished=desk.now)
        )
    desk.delete(row)


def _who_knows(desk: Desk, job: str) -> str | None:
    workers = desk.store.tables.workers
    for name, tasks, seen, lease in desk.connection.execute(
        sa.select(workers.c.worker, workers.c.tasks, workers.c.last_seen, workers.c.lease)
    ):
        if job in json.loads(tasks or "[]") and seen + lease >= desk.now:
            return str(name)
    return None
