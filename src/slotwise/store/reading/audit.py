"""The audit table, read page by page."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import sqlalchemy as sa

from slotwise.store.schema.audit_rows import AuditEntry, audit_entry
from slotwise.store.slots.store import Store

#: Entries of one page.
PAGE = 500


def audit_entries(
    store: Store, *, job: str | None = None, slot: datetime | None = None, limit: int | None = None
) -> Iterator[AuditEntry]:
    """Yield the entries, the newest first, page by page; with ``job``, those on it and those on all jobs."""
    table = store.tables.controls
    wanted = sa.select(table).order_by(table.c.id.desc())
    if job is not None:
        wanted = wanted.where((table.c.task_name == job) | table.c.task_name.is_(None))
    if slot is not None:
        wanted = wanted.where((table.c.slot == slot) | table.c.slot.is_(None))
    left, before = limit, None
    while left is None or left > 0:
        size = PAGE if left is None else min(left, PAGE)
        page = wanted if before is None else wanted.where(table.c.id < before)
        with store.transaction() as connection:
            found = [audit_entry(row) for row in connection.execute(page.limit(size)).mappings()]
        yield from found
        if len(found) < size:
            return
        before, left = found[-1].number, None if left is None else left - len(found)
