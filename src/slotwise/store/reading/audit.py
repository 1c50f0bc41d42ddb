"""The recorded operations."""

from __future__ import annotations

from collections.abc import Iterator

from slotwise.store.operations.transaction import AuditEntry, audit_entry
from slotwise.store.reading.queries import paged, read
from slotwise.store.slots.store import Store

_NEWEST = "SELECT * FROM {controls} WHERE {where} ORDER BY id DESC LIMIT :size"


def audit(
    store: Store, job: str | None = None, limit: int | None = None
) -> Iterator[AuditEntry]:
    """Yield the recorded operations, the newest first; with ``job``, those on it and those on all
    jobs.
    """
    where = "1 = 1" if job is None else "(task_name = :job OR task_name IS NULL)"

    def page(size: int, last: AuditEntry | None) -> list[AuditEntry]:
        older = where if last is None else f"{where} AND id < :number"
        given = {"job": job, "number": last and last.number, "size": size}
        return [audit_entry(row) for row in read(store, _NEWEST, given, where=older)]

    return paged(limit, page)
