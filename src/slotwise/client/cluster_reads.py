"""The reads of the cluster: workers, health, pauses and the audit."""

from __future__ import annotations

from datetime import datetime, timedelta

from slotwise.client.arguments import AnyTask, instant_of, name_of
from slotwise.client.name_reads import PAGE, NameReads, read
from slotwise.model.durations import parse_duration
from slotwise.store.operations.job_operations import Paused, all_paused
from slotwise.store.operations.pauses import Pause, pauses_in
from slotwise.store.operations.transaction import AuditEntry
from slotwise.store.reading import audit, database, health, histories
from slotwise.store.reading.database import DatabaseInfo
from slotwise.store.reading.health import Health
from slotwise.store.reading.histories import WorkerLife
from slotwise.store.reading.workers import WorkerInfo, all_workers


class ClusterReads(NameReads):
    """The reads of the cluster."""

    @read
    def workers(self) -> list[WorkerInfo]:
        """Return all workers that have signed in and not out, the newest first; ``live`` says
        which are alive.
        """
        return all_workers(self._store)

    @read
    def worker_lives(
        self, start: datetime, end: datetime, *, limit: int | None = PAGE
    ) -> list[WorkerLife]:
        """Return the workers that were alive between two instants, with how and why they have
        ended; the newest first.
        """
        begin = instant_of(start)
        until = instant_of(end)
        return histories.worker_lives(self._store, begin, until, limit=limit)

    @read
    def health(self, overdue_after: timedelta | str = timedelta(minutes=1)) -> Health:
        """Return the cluster's health; rows count as overdue that are due for longer than
        ``overdue_after``.
        """
        limit = parse_duration(overdue_after)
        return health.health(self._store, limit)

    @read
    def database(self) -> DatabaseInfo:
        """Return what PostgreSQL says of sizes, dead rows, old snapshots and connections."""
        return database.database(self._store)

    @read
    def all_paused(self) -> Paused | None:
        """Return the author, time and note of a pause of everything; None without one."""
        with self._store.transaction() as connection:
            return all_paused(connection, self._store.tables)

    @read
    def pauses(self) -> list[Pause]:
        """Return the pauses of jobs, instances and names of one-time tasks, and that of all if it
        ends by itself.
        """
        with self._store.transaction() as connection:
            return pauses_in(connection, self._store.tables)

    @read
    def audit(
        self, job: AnyTask | None = None, *, limit: int | None = PAGE
    ) -> list[AuditEntry]:
        """Return the recorded operations, the newest first; with ``job``, those on it and those on
        all jobs.
        """
        name = None if job is None else name_of(job)
        return list(audit.audit(self._store, name, limit))
