"""What code proposes for a job's row, and whether the row says so already."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from slotwise.errors import InvalidSchedule
from slotwise.jobs.definition import Definition
from slotwise.model.records import RECURRING
from slotwise.schedules.text import readable
from slotwise.store.planning.revision import Revision
from slotwise.store.schema.rows import utc
from slotwise.store.slots.ledger import has_orphans
from slotwise.store.slots.store import Store


def rows_of(store: Store, names: Sequence[str]) -> sa.Select[Any]:
    """The rows of these jobs as ``is_kept`` reads them, locked in the order of their keys, as settlements do."""
    tasks = store.tables.tasks
    wanted = ("task_name", "schedule", "slot", "fingerprint", "priority", "runs_on", "revision", "deployed")
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
    return ours.is_older(revision_of(row)) or all(row[name] == value for name, value in proposed(job).items())


def revision_of(row: sa.RowMapping) -> Revision:
    return Revision(text=row["revision"], started=utc(row["deployed"]))


def deploy_of(revision: Revision, before: Revision | None = None) -> dict[str, Any]:
    """The columns of a row that this deploy has planned.

    A deploy with an id started when its first worker did: one that is restarted later must not look newer than
    the next deploy, whose workers start meanwhile.
    """
    again = before is not None and before.text is not None and before.text == revision.text
    return {"revision": revision.text, "deployed": before.started if before and again else revision.started}


def proposed(job: Definition) -> dict[str, Any]:
    """What else of a definition stands in its row, for whoever has no code to look at."""
    return {
        "fingerprint": job.fingerprint,
        "priority": job.priority,
        "runs_on": tags_text(job),
    }


def tags_text(job: Definition) -> str | None:
    """The tags that a worker must carry, as they stand in a row."""
    return json.dumps(sorted(job.runs_on)) if job.runs_on else None
