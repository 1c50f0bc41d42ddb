"""The recorded operations."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from slotwise.store.operations.transaction import AuditEntry, audit_entry
from slotwise.store.reading.paging import paged, rows
from slotwise.store.slots.store import Store


def audit(
    store: Store, job: str | None = None, limit: int | None = None
) -> Iterator[AuditEntry]:
    """Yield the recorded operations, the newest first; with ``job``, those on it and those on all
    jobs.
    """
    table = store.tables.controls
    wanted = sa.select(table).order_by(table.c.id.desc())
    if job is not None:
        wanted = wanted.where((table.c.task_name == job) | table.c.task_name.is_(None))

    def page(size: int, last: AuditEntry | None) -> list[AuditEntry]:
        older = wanted if last is None else wanted.where(table.c.id < last.number)
        return [audit_entry(row) for row in rows(store, older.limit(size))]

    return paged(limit, page)
