"""What code proposes for a job's row, and whether the row says so already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from slotwise.errors import InvalidSchedule
from slotwise.jobs.definition import Definition
from slotwise.model.records import RECURRING
from slotwise.schedules.text import readable
from slotwise.store.planning.revision import Revision
from slotwise.store.schema.rows import Declared
from slotwise.store.slots.ledger import has_orphans
from slotwise.store.slots.store import Store


def rows_of(store: Store, names: Sequence[str]) -> sa.Select[Any]:
    """The rows of these jobs as ``is_kept`` reads them, locked in the order of their keys, as settlements do."""
    tasks = store.tables.tasks
    wanted = ("task_name", "schedule", "slot", "priority", "plan")
    return (
        sa.select(*(tasks.c[name] for name in wanted), has_orphans(store.tables).label("orphaned"))
        .where(tasks.c.task_name.in_(names), tasks.c.task_instance == RECURRING)
        .order_by(*store.dialect.key_order)
        .with_for_update(of=tasks)
    )


def is_kept(job: Definition, row: sa.RowMapping, ours: Revision) -> bool:
    """Whether planning would leave a row as it stands. Of one that goes by calendars, only planning knows."""
    if job.schedule is None or job.schedule.calendars or row["orphaned"]:
        return False
    planned = readable(row["schedule"])
    try:
        if planned is None or str(planned.last) != str(job.schedule.bind(job.name, {})):
            return False
    except InvalidSchedule:
        return False
    found = Declared.load(row["plan"])
    declared = (job.priority, job.fingerprint, tuple(sorted(job.runs_on)))
    return ours.is_older(revision_of(row["plan"])) or (row["priority"], found.fingerprint, found.runs_on) == declared


def revision_of(plan: Mapping[str, Any] | None) -> Revision:
    """The deploy that has planned a row."""
    found = Declared.load(plan)
    return Revision(text=found.revision, started=found.deployed)


def plan_of(job: Definition, revision: Revision, before: Revision | None = None) -> dict[str, Any]:
    """The document ``plan`` of a row: what its code declares and which deploy has planned it, without what is empty.

    A deploy with an id started when its first worker did: one that is restarted later must not look newer than
    the next deploy, whose workers start meanwhile.
    """
    again = before is not None and before.text is not None and before.text == revision.text
    started = before.started if before and again else revision.started
    return Declared(
        fingerprint=job.fingerprint, runs_on=tuple(sorted(job.runs_on)), revision=revision.text, deployed=started
    ).document()
