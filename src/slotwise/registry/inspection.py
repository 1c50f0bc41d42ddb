"""``registry.inspect``: reads jobs, slots, tasks, workers and the audit for people and dashboards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

from slotwise.client.client import Client
from slotwise.client.operations import instant_of, name_of
from slotwise.explain.explanation import Explanation, explain
from slotwise.explain.facts import facts
from slotwise.model.durations import parse_duration
from slotwise.model.records import RECURRING
from slotwise.store.operations.job_operations import Paused
from slotwise.store.queue.task_views import TaskInfo, TaskResult
from slotwise.store.reading.audit import audit_entries
from slotwise.store.reading.reader import Reader
from slotwise.store.reading.task_counts import TaskCount, TaskCounts
from slotwise.store.reading.views import Health, JobInfo, SlotInfo
from slotwise.store.schema.audit_rows import AuditEntry
from slotwise.store.schema.worker_rows import WorkerInfo

if TYPE_CHECKING:
    from slotwise.store.slots.store import Store

#: Entries of a listing that does not say how many.
PAGE = 100


class Inspection:
    """Reads what the tables say, for people and dashboards: takes no locks and needs no worker in this process.

    A job is its name, or as registered. ``id`` is that of a recurring instance. All calls wait for the database;
    ``aio`` has the same to be awaited. Raises a DatabaseProblem where the database cannot be used.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._make_store = store
        self._client = Client(store)

    @property
    def aio(self) -> AsyncInspection:
        """The same calls for asyncio applications."""
        return AsyncInspection(self)

    def now(self) -> datetime:
        """Return the database's time."""
        with self._reading() as reader:
            return reader.now()

    # -- jobs and their slots -----------------------------------------------------------------------------------

    def jobs(self) -> list[JobInfo]:
        """Return all jobs that a worker has planned, by name."""
        with self._reading() as reader:
            return reader.jobs()

    def job(self, job: Any, *, id: str | None = None) -> JobInfo | None:
        """Return a job, or one of its recurring instances; None if there is none."""
        with self._reading() as reader:
            return reader.job(name_of(job), id or RECURRING)

    def instances(self, job: Any, *, after: str = "", limit: int = PAGE) -> list[JobInfo]:
        """Return a page of a task's recurring instances, by id, from the one after ``after``."""
        with self._reading() as reader:
            return reader.instances(name_of(job), limit=limit, after=after)

    def slots(
        self,
        job: Any,
        *,
        id: str | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        limit: int | None = PAGE,
    ) -> list[SlotInfo]:
        """Return what the ledger has of a job: slots that started, and gaps, the newest first.

        A gap is one entry with ``last`` and ``count``. Without ``id`` the slots of all instances are among them.
        ``since`` is the earliest instant, ``before`` the slot where the page before has ended.
        """
        with self._reading() as reader:
            return list(reader.slots(name_of(job), id, limit=limit, since=_instant(since), before=_instant(before)))

    def gaps(
        self, job: Any, *, id: str | None = None, since: datetime | None = None, limit: int | None = PAGE
    ) -> list[SlotInfo]:
        """Return the ranges of two and more slots of a job that did not run, the newest first."""
        with self._reading() as reader:
            found = reader.slots(name_of(job), id, since=_instant(since))
            return list(islice((one for one in found if one.last is not None), limit))

    def pending(
        self, job: Any, *, id: str | None = None, since: datetime | None = None, limit: int | None = PAGE
    ) -> list[SlotInfo]:
        """Return the slots of a job that have not ended: those that wait, then those that run."""
        with self._reading() as reader:
            return reader.standing(name_of(job), id, limit=limit, since=_instant(since))

    def slot(self, job: Any, slot: datetime, *, id: str | None = None) -> SlotInfo | None:
        """Return one slot as the ledger has it; None for one that has not started, or is part of a gap."""
        with self._reading() as reader:
            return reader.slot(name_of(job), instant_of(slot), id or RECURRING)

    def explain(self, job: Any, slot: datetime, *, id: str | None = None) -> Explanation:
        """Return why a slot ran, or did not, in sentences."""
        store, name = self._make_store(), name_of(job)
        with store.database.in_words():
            return explain(facts(store, name, instant_of(slot), id or RECURRING), store.definitions.get(name))

    # -- one-time tasks -----------------------------------------------------------------------------------------

    def tasks(
        self,
        task: Any = None,
        *,
        state: str | None = None,
        after: TaskInfo | str | None = None,
        limit: int = PAGE,
    ) -> list[TaskInfo]:
        """Return a page of one-time tasks, as ``client.list``."""
        return self._client.list(task, state=state, after=after, limit=limit)

    def task(self, task: Any, id: str) -> TaskInfo | None:
        """Return one task with its data, as ``client.get``."""
        return self._client.get(task, id)

    def task_results(self, task: Any, id: str) -> list[TaskResult]:
        """Return how tasks under this id have ended, as ``client.history``."""
        return self._client.history(task, id)

    def task_counts(self) -> list[TaskCount]:
        """Return how many tasks of each name wait, run, are paused, blocked or dead."""
        store = self._make_store()
        with store.database.in_words():
            return TaskCounts(store).all()

    # -- the cluster --------------------------------------------------------------------------------------------

    def workers(self) -> list[WorkerInfo]:
        """Return all workers that have signed in and not out, the newest first; ``live`` says which are alive."""
        with self._reading() as reader:
            return reader.workers()

    def health(self, overdue_after: timedelta | str = timedelta(minutes=1)) -> Health:
        """Return the cluster's health; rows count as overdue that are due for longer than ``overdue_after``."""
        with self._reading() as reader:
            return reader.health(parse_duration(overdue_after))

    def all_paused(self) -> Paused | None:
        """Return the author, time and note of a pause of all jobs and tasks; None if there is no such pause."""
        with self._reading() as reader:
            return reader.all_paused()

    def audit(self, job: Any = None, *, limit: int | None = PAGE) -> list[AuditEntry]:
        """Return the operations ordered so far, the newest first; with ``job``, those on it and those on all jobs."""
        store = self._make_store()
        with store.database.in_words():
            return list(audit_entries(store, job=None if job is None else name_of(job), limit=limit))

    @contextmanager
    def _reading(self) -> Iterator[Reader]:
        store = self._make_store()
        with store.database.in_words():
            yield Reader(store)


class AsyncInspection:
    """As Inspection, awaited: each call runs on a thread."""

    def __init__(self, inspection: Inspection) -> None:
        self._inspection = inspection

    async def now(self) -> datetime:
        """As Inspection.now."""
        return await asyncio.to_thread(self._inspection.now)

    async def jobs(self) -> list[JobInfo]:
        """As Inspection.jobs."""
        return await asyncio.to_thread(self._inspection.jobs)

    async def job(self, job: Any, *, id: str | None = None) -> JobInfo | None:
        """As Inspection.job."""
        return await asyncio.to_thread(self._inspection.job, job, id=id)

    async def instances(self, job: Any, *, after: str = "", limit: int = PAGE) -> list[JobInfo]:
        """As Inspection.instances."""
        return await asyncio.to_thread(self._inspection.instances, job, after=after, limit=limit)

    async def slots(
        self,
        job: Any,
        *,
        id: str | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        limit: int | None = PAGE,
    ) -> list[SlotInfo]:
        """As Inspection.slots."""
        return await asyncio.to_thread(self._inspection.slots, job, id=id, since=since, before=before, limit=limit)

    async def gaps(
        self, job: Any, *, id: str | None = None, since: datetime | None = None, limit: int | None = PAGE
    ) -> list[SlotInfo]:
        """As Inspection.gaps."""
        return await asyncio.to_thread(self._inspection.gaps, job, id=id, since=since, limit=limit)

    async def pending(
        self, job: Any, *, id: str | None = None, since: datetime | None = None, limit: int | None = PAGE
    ) -> list[SlotInfo]:
        """As Inspection.pending."""
        return await asyncio.to_thread(self._inspection.pending, job, id=id, since=since, limit=limit)

    async def slot(self, job: Any, slot: datetime, *, id: str | None = None) -> SlotInfo | None:
        """As Inspection.slot."""
        return await asyncio.to_thread(self._inspection.slot, job, slot, id=id)

    async def explain(self, job: Any, slot: datetime, *, id: str | None = None) -> Explanation:
        """As Inspection.explain."""
        return await asyncio.to_thread(self._inspection.explain, job, slot, id=id)

    async def tasks(
        self,
        task: Any = None,
        *,
        state: str | None = None,
        after: TaskInfo | str | None = None,
        limit: int = PAGE,
    ) -> list[TaskInfo]:
        """As Inspection.tasks."""
        return await asyncio.to_thread(self._inspection.tasks, task, state=state, after=after, limit=limit)

    async def task(self, task: Any, id: str) -> TaskInfo | None:
        """As Inspection.task."""
        return await asyncio.to_thread(self._inspection.task, task, id)

    async def task_results(self, task: Any, id: str) -> list[TaskResult]:
        """As Inspection.task_results."""
        return await asyncio.to_thread(self._inspection.task_results, task, id)

    async def task_counts(self) -> list[TaskCount]:
        """As Inspection.task_counts."""
        return await asyncio.to_thread(self._inspection.task_counts)

    async def workers(self) -> list[WorkerInfo]:
        """As Inspection.workers."""
        return await asyncio.to_thread(self._inspection.workers)

    async def health(self, overdue_after: timedelta | str = timedelta(minutes=1)) -> Health:
        """As Inspection.health."""
        return await asyncio.to_thread(self._inspection.health, overdue_after)

    async def all_paused(self) -> Paused | None:
        """As Inspection.all_paused."""
        return await asyncio.to_thread(self._inspection.all_paused)

    async def audit(self, job: Any = None, *, limit: int | None = PAGE) -> list[AuditEntry]:
        """As Inspection.audit."""
        return await asyncio.to_thread(self._inspection.audit, job, limit=limit)


def _instant(given: datetime | None) -> datetime | None:
    return None if given is None else instant_of(given)
