"""``registry.inspect``: reads jobs, slots, tasks, workers and the audit for people and
dashboards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Literal, Self, TypeVar
from zoneinfo import ZoneInfo

from slotwise.client.arguments import AnyTask, Task
from slotwise.client.client import Awaited, Client, awaited
from slotwise.client.operations import instant_of, name_of
from slotwise.explain.explanation import (
    Explanation,
    JobExplanation,
    TaskExplanation,
    explain,
    explain_now,
    explain_task,
)
from slotwise.model.durations import parse_duration
from slotwise.model.records import RECURRING
from slotwise.store.operations.job_operations import Paused
from slotwise.store.operations.transaction import AuditEntry
from slotwise.store.queue.queue import TaskInfo, TaskResult
from slotwise.store.reading import task_counts
from slotwise.store.reading.facts import facts, task_facts
from slotwise.store.reading.reader import Reader
from slotwise.store.reading.task_counts import Backlog, TaskCount
from slotwise.store.reading.views import AttemptInfo, Health, JobInfo, SlotInfo
from slotwise.store.reading.worker_registry import WorkerInfo

if TYPE_CHECKING:
    from slotwise.client.opening import Application
    from slotwise.settings.settings import Settings
    from slotwise.store.slots.store import Store

Result = TypeVar("Result")

#: Entries of a listing that does not say how many.
PAGE = 100


class Inspection:
    """Reads what the tables say, for people and dashboards: takes no locks and needs no worker in
    this process.

    A job is its name, or as registered. ``id`` is that of a recurring instance. All calls wait for
    the database; ``aio`` has the same to be awaited. Raises a DatabaseProblem where the database
    cannot be used.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._make_store = store
        self._client = Client(store)

    @classmethod
    @contextmanager
    def open(
        cls,
        where: Settings | str | None = None,
        *,
        application: Application | None = None,
    ) -> Iterator[Self]:
        """Open the tables without a registry, and close the connections at the end.

        ``where``: settings, or the address of the database; by default those of the
        ``application`` (a JobRegistry), else of environment and settings file. With an
        ``application``, explanations tell what its jobs and tasks declare. Raises
        DatabaseUnreachable or another DatabaseProblem, SchemaMissing, SchemaMismatch.
        """
        from slotwise.client.opening import open_store  # late: it brings alembic

        with open_store(where, application) as store:
            yield cls(lambda: store)

    @property
    def aio(self) -> AsyncInspection:
        """The same calls for asyncio applications."""
        return AsyncInspection(self)

    def now(self) -> datetime:
        """Return the database's time."""
        return self._read(Reader.now)

    # -- names and time zones ---------------------------------------------------------------------

    def check_name(
        self, job: AnyTask, *, id: str | None = None, kind: Literal["job", "task"] = "job"
    ) -> None:
        """Raise UnknownTask, with a near name, unless rows, ledger or a live worker have this job.

        With ``id``, also unless it has this recurring instance. ``kind`` is what the message calls
        it.
        """
        name = name_of(job)

        def check(reader: Reader) -> None:
            reader.known(name, kind=kind)
            if id is not None:
                reader.known_instance(name, id)

        self._read(check)

    def jobs_among(self, names: Collection[str]) -> set[str]:
        """Return those of these names that are jobs which workers have planned."""
        return self._read(lambda reader: reader.jobs_among(names))

    def zone(self, job: AnyTask, *, id: str | None = None) -> ZoneInfo:
        """Return the time zone of a job's schedule, or of its instance; UTC if it has none."""
        return self._read(lambda reader: reader.zone(name_of(job), id or RECURRING))

    def zones(self, keys: Collection[tuple[str, str]]) -> dict[tuple[str, str], ZoneInfo]:
        """Return the time zones of these jobs and ids; those without a row are left out."""
        return self._read(lambda reader: reader.zones(keys))

    def common_zone(self) -> ZoneInfo:
        """Return the one zone besides UTC of the jobs that are due next, or UTC."""
        return self._read(Reader.common_zone)

    # -- jobs and their slots ---------------------------------------------------------------------

    def jobs(self, *, after: str = "", limit: int | None = None) -> list[JobInfo]:
        """Return the jobs that workers have planned, by name, from the one after ``after``;
        without ``limit``, all.
        """
        return self._read(lambda reader: reader.jobs(after=after, limit=limit))

    def job(self, job: AnyTask, *, id: str | None = None) -> JobInfo | None:
        """Return a job, or one of its recurring instances; None if there is none."""
        return self._read(lambda reader: reader.job(name_of(job), id or RECURRING))

    def instances(
        self, job: AnyTask, *, after: str = "", limit: int = PAGE
    ) -> list[JobInfo]:
        """Return a page of a task's recurring instances, by id, from the one after ``after``."""
        return self._read(
            lambda reader: reader.instances(name_of(job), limit=limit, after=after)
        )

    def instance_counts(
        self, *, after: str = "", until: str | None = None
    ) -> dict[str, int]:
        """Return the number of recurring instances of each task that has any.

        ``after`` and ``until`` bound the names.
        """
        return self._read(lambda reader: reader.instance_counts(after, until))

    def schedules(self) -> dict[str, int]:
        """Return each schedule in force, as text, with the number of its jobs and instances."""
        return self._read(Reader.schedules)

    def slots(
        self,
        job: AnyTask,
        *,
        id: str | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        limit: int | None = PAGE,
    ) -> list[SlotInfo]:
        """Return what the ledger has of a job: slots that started, and gaps, the newest first.

        A gap is one entry with ``last`` and ``count``. Without ``id`` the slots of all instances
        are among them. ``since`` is the earliest instant, ``before`` the slot with which the
        previous page ended.
        """
        return self._read(
            lambda reader: list(
                reader.slots(
                    name_of(job),
                    id,
                    limit=limit,
                    since=_instant(since),
                    before=_instant(before),
                )
            )
        )

    def gaps(
        self,
        job: AnyTask,
        *,
        id: str | None = None,
        since: datetime | None = None,
        limit: int | None = PAGE,
    ) -> list[SlotInfo]:
        """Return the ranges of two and more slots of a job that did not run, the newest first."""

        def read(reader: Reader) -> list[SlotInfo]:
            found = reader.slots(name_of(job), id, since=_instant(since))
            return list(islice((one for one in found if one.last is not None), limit))

        return self._read(read)

    def pending(
        self,
        job: AnyTask,
        *,
        id: str | None = None,
        since: datetime | None = None,
        limit: int | None = PAGE,
    ) -> list[SlotInfo]:
        """Return the slots of a job that have not ended: those that wait, then those that run."""
        return self._read(
            lambda reader: reader.standing(
                name_of(job), id, limit=limit, since=_instant(since)
            )
        )

    def slot(
        self, job: AnyTask, slot: datetime, *, id: str | None = None
    ) -> SlotInfo | None:
        """Return one slot as the ledger has it; None for one that has not started, or is part
        of a gap.
        """
        return self._read(
            lambda reader: reader.slot(name_of(job), instant_of(slot), id or RECURRING)
        )

    def slots_within(
        self, job: AnyTask, start: datetime, end: datetime, *, id: str | None = None
    ) -> list[datetime]:
        """Return the slots from ``start`` to before ``end`` that the ledger or a row has."""
        return self._read(
            lambda reader: reader.slots_within(
                name_of(job), id or RECURRING, instant_of(start), instant_of(end)
            )
        )

    def attempts(
        self, job: AnyTask, slot: datetime | None = None, *, id: str | None = None
    ) -> list[AttemptInfo]:
        """Return the attempts of a slot, the oldest first: those that did not succeed, and the
        ledger's own, the last.

        Without ``slot``, those of the one-time tasks with this ``id``, if the task keeps a record.
        """
        wanted = None if slot is None else instant_of(slot)
        return self._read(
            lambda reader: reader.attempts(name_of(job), id or RECURRING, wanted)
        )

    def explain(
        self, job: AnyTask, slot: datetime, *, id: str | None = None
    ) -> Explanation:
        """Return why a slot ran, or did not, in sentences."""
        name = name_of(job)
        wanted = instant_of(slot)
        return self._ask(
            lambda store: explain(
                facts(store, name, wanted, id or RECURRING), store.definitions.get(name)
            )
        )

    def explain_job(self, job: AnyTask, *, id: str | None = None) -> JobExplanation | None:
        """Return why a job does not run now, and when it will; None if there is no such job."""
        name = name_of(job)
        return self._ask(
            lambda store: explain_now(
                store, name, id or RECURRING, store.definitions.get(name)
            )
        )

    # -- one-time tasks ---------------------------------------------------------------------------

    def explain_task(self, task: Task, id: str) -> TaskExplanation:
        """Return why a one-time task waits, runs or has ended, in sentences, with the limits that
        hold it back.
        """
        name = name_of(task)
        return self._ask(
            lambda store: explain_task(
                task_facts(store, name, id), store.definitions.get(name)
            )
        )

    def tasks(
        self,
        task: Task | None = None,
        *,
        state: str | None = None,
        after: TaskInfo | str | None = None,
        limit: int = PAGE,
    ) -> list[TaskInfo]:
        """Return a page of one-time tasks, as ``client.list``."""
        return self._client.list(task, state=state, after=after, limit=limit)

    def task(self, task: Task, id: str) -> TaskInfo | None:
        """Return one task with its data, as ``client.get``."""
        return self._client.get(task, id)

    def task_results(self, task: Task, id: str) -> list[TaskResult]:
        """Return how tasks under this id have ended, as ``client.history``."""
        return self._client.history(task, id)

    def task_counts(self) -> list[TaskCount]:
        """Return how many tasks of each name wait, run, are paused, blocked or dead."""
        return self._ask(task_counts.task_counts)

    def backlog(self) -> list[Backlog]:
        """Return how much is due of each job and task and not claimed, and for how long: for
        monitoring.
        """
        return self._ask(task_counts.backlog)

    def stranded(self, names: Collection[str]) -> dict[str, str]:
        """Return those of these one-time tasks that no live worker takes, with the reason."""
        return self._read(lambda reader: reader.stranded(names))

    def since_success(self, jobs: Collection[str]) -> dict[str, timedelta]:
        """Return the time since each of these jobs has last succeeded, or else since it was
        planned first.
        """
        return self._ask(lambda store: task_counts.since_success(store, jobs))

    # -- the cluster ------------------------------------------------------------------------------

    def workers(self) -> list[WorkerInfo]:
        """Return all workers that have signed in and not out, the newest first; ``live`` says
        which are alive.
        """
        return self._read(Reader.workers)

    def health(self, overdue_after: timedelta | str = timedelta(minutes=1)) -> Health:
        """Return the cluster's health; rows count as overdue that are due for longer than
        ``overdue_after``.
        """
        return self._read(lambda reader: reader.health(parse_duration(overdue_after)))

    def all_paused(self) -> Paused | None:
        """Return the author, time and note of a pause of all jobs and tasks; None if there is no
        such pause.
        """
        return self._read(Reader.all_paused)

    def audit(
        self, job: AnyTask | None = None, *, limit: int | None = PAGE
    ) -> list[AuditEntry]:
        """Return the recorded operations, the newest first; with ``job``, those on it and those on
        all jobs.
        """
        return self._read(
            lambda reader: list(reader.audit(None if job is None else name_of(job), limit))
        )

    def _read(self, work: Callable[[Reader], Result]) -> Result:
        return self._ask(lambda store: work(Reader(store)))

    def _ask(self, work: Callable[[Store], Result]) -> Result:
        store = self._make_store()
        with store.database.in_words():
            return work(store)


class AsyncInspection(Awaited[Inspection]):
    """As Inspection, awaited: each call runs on a thread."""

    now = awaited(Inspection.now)
    check_name = awaited(Inspection.check_name)
    jobs_among = awaited(Inspection.jobs_among)
    zone = awaited(Inspection.zone)
    zones = awaited(Inspection.zones)
    common_zone = awaited(Inspection.common_zone)
    jobs = awaited(Inspection.jobs)
    job = awaited(Inspection.job)
    instances = awaited(Inspection.instances)
    instance_counts = awaited(Inspection.instance_counts)
    schedules = awaited(Inspection.schedules)
    slots = awaited(Inspection.slots)
    gaps = awaited(Inspection.gaps)
    pending = awaited(Inspection.pending)
    slot = awaited(Inspection.slot)
    slots_within = awaited(Inspection.slots_within)
    attempts = awaited(Inspection.attempts)
    explain = awaited(Inspection.explain)
    explain_job = awaited(Inspection.explain_job)
    explain_task = awaited(Inspection.explain_task)
    tasks = awaited(Inspection.tasks)
    task = awaited(Inspection.task)
    task_results = awaited(Inspection.task_results)
    task_counts = awaited(Inspection.task_counts)
    backlog = awaited(Inspection.backlog)
    stranded = awaited(Inspection.stranded)
    since_success = awaited(Inspection.since_success)
    workers = awaited(Inspection.workers)
    health = awaited(Inspection.health)
    all_paused = awaited(Inspection.all_paused)
    audit = awaited(Inspection.audit)


def _instant(given: datetime | None) -> datetime | None:
    return None if given is None else instant_of(given)
