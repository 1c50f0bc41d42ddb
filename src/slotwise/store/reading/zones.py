"""The time zones in which people read the slots of jobs."""

from __future__ import annotations

from collections.abc import Collection
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from slotwise.schedules.description import zone_of
from slotwise.store.schema.tables import is_plan
from slotwise.store.slots.store import Store


def job_zones(store: Store, keys: Collection[tuple[str, str]]) -> dict[tuple[str, str], ZoneInfo]:
    """Return the zone of each of these jobs and instances that has a plan row: of its schedule, else UTC."""
    if not keys:
        return {}
    tasks = store.tables.tasks
    names, instances = (sorted({key[part] for key in keys}) for part in (0, 1))
    wanted = sa.select(tasks.c.task_name, tasks.c.task_instance, tasks.c.schedule).where(
        is_plan(tasks), tasks.c.task_name.in_(names), tasks.c.task_instance.in_(instances)
    )
    with store.transaction() as connection:
        return {(name, instance): zone_of(text) for name, instance, text in connection.execute(wanted)}
