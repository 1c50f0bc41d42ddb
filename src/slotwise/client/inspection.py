"""``registry.inspect``: reads jobs, slots, tasks, workers and the audit for people and
dashboards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Literal, ParamSpec, Self, TypeVar

from slotwise.client.arguments import (
    AnyTask,
    Task,
    instant_of,
    name_of,
    optional_instant,
)
from slotwise.client.calls import Awaited
from slotwise.client.client import Client
from slotwise.client.cluster_reads import ClusterReads
from slotwise.client.name_reads import PAGE, read
from slotwise.explain.backlog_explanation import explain_backlog
from slotwise.explain.job_explanation import JobExplanation, explain_now
from slotwise.explain.slot_explanation import Explanation, explain
from slotwise.explain.task_explanation import TaskExplanation, explain_task
from slotwise.model.records import RECURRING
from slotwise.store.operations.instance_operations import InstanceFilter
from slotwise.store.planning.renames import row_name
from slotwise.store.queue.queue import TaskInfo, TaskResult
from slotwise.store.queue.task_filter import TaskFilter
from slotwise.store.queue.traces import trace_of
from slotwise.store.reading import (
    failures,
    histories,
    jobs,
    monitoring,
    rates,
    slots,
    task_counts,
    windows,
)
from slotwise.store.reading import schedule_spans as spans
from slotwise.store.reading.facts import facts, task_facts
from slotwise.store.reading.failures import Failure
from slotwise.store.reading.finish import FinishForecast, finish_forecasts
from slotwise.store.reading.histories import DeployInfo
from slotwise.store.reading.jobs import JobInfo
from slotwise.store.reading.monitoring import Backlog, SinceSuccess, Trouble
from slotwise.store.reading.rates import JobRates
from slotwise.store.reading.schedule_spans import ScheduleSpan
from slotwise.store.reading.slots import AttemptInfo, SlotInfo
from slotwise.store.reading.task_counts import TaskCount
from slotwise.store.reading.windows import (
    OutcomeCount,
    OutcomePart,
    OutcomeTotal,
    SlotWindow,
)

if TYPE_CHECKING:
    from slotwise.client.opening import Application
    from slotwise.settings.settings import Settings

Given = ParamSpec("Given")
Result = TypeVar("Result")


class Reads(ClusterReads):
    """The reads of Inspection and AsyncInspection."""

    # -- jobs and their slots ---------------------------------------------------------------------

    @read
    def jobs(self, *, after: str = "", limit: int | None = None) -> list[JobInfo]:
        """Return the jobs that workers have planned, by name, from the one after ``after``;
        without ``limit``, all.
        """
        return jobs.jobs(self._store, after=after, limit=limit)

    @read
    def job(self, job: AnyTask, *, id: str | None = None) -> JobInfo | None:
        """Return a job, or one of its recurring instances; None if there is none."""
        name = row_name(self._store, name_of(job))
        return jobs.job(self._store, name, id or RECURRING)

    @read
    def instances(
        self,
        job: AnyTask,
        *,
        after: str = "",
        limit: int = PAGE,
        where: InstanceFilter | None = None,
        failing: bool = False,
        stale: timedelta | None = None,
    ) -> list[JobInfo]:
        """Return a page of a task's recurring instances, by id, from the one after ``after``.

        ``where``: those of a scope, with a tag, or whose ids begin so. ``failing``: those whose
        last run failed. ``stale``: those that are older than this, and have had no success for so
        long.
        """
        return jobs.instances(
            self._store,
            name_of(job),
            limit=limit,
            after=after,
            where=where,
            failing=failing,
            stale=stale,
        )

    @read
    def instance_counts(
        self, *, after: str = "", until: str | None = None
    ) -> dict[str, int]:
        """Return the number of recurring instances of each task that has any.

        ``after`` and ``until`` bound the names.
        """
        return jobs.instance_counts(self._store, after=after, until=until)

    @read
    def schedules(self) -> dict[str, int]:
        """Return each schedule in force, as text, with the number of its jobs and instances."""
        return jobs.schedules(self._store)

    @read
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
        begin = optional_instant(since)
        end = optional_instant(before)
        found = [
            one
            for name in self._names(job)
            for one in slots.slots(
                self._store, name, id, limit=limit, since=begin, before=end
            )
        ]
        return sorted(found, key=lambda one: one.place, reverse=True)[:limit]

    @read
    def pending(
        self,
        job: AnyTask,
        *,
        id: str | None = None,
        since: datetime | None = None,
        limit: int | None = PAGE,
    ) -> list[SlotInfo]:
        """Return the slots of a job that have not ended: those that wait, then those that run."""
        return slots.unended(
            self._store, name_of(job), id, limit=limit, since=optional_instant(since)
        )

    @read
    def slot(
        self, job: AnyTask, slot: datetime, *, id: str | None = None
    ) -> SlotInfo | None:
        """Return one slot as the ledger has it; None for one that has not started, or is part
        of a gap.
        """
        wanted = instant_of(slot)
        found = (
            slots.slot(self._store, name, wanted, id or RECURRING)
            for name in self._names(job)
        )
        return next((one for one in found if one is not None), None)

    @read
    def slots_within(
        self, job: AnyTask, start: datetime, end: datetime, *, id: str | None = None
    ) -> list[datetime]:
        """Return the slots from ``start`` to before ``end`` that the ledger or a row has."""
        return slots.slots_within(
            self._store,
            name_of(job),
            id or RECURRING,
            instant_of(start),
            instant_of(end),
        )

    @read
    def attempts(
        self, job: AnyTask, slot: datetime | None = None, *, id: str | None = None
    ) -> list[AttemptInfo]:
        """Return the attempts of a slot, the oldest first: those that did not succeed, and the
        ledger's own, the last.

        Without ``slot``, those of the one-time tasks with this ``id``, if the task keeps a record.
        """
        return [
            attempt
            for name in reversed(self._names(job))
            for attempt in slots.attempts(
                self._store, name, id or RECURRING, optional_instant(slot)
            )
        ]

    @read
    def trace(self, task: AnyTask, id: str) -> dict[str, str] | None:
        """Return the trace headers that a hook has stored with a task; None without any."""
        with self._store.database.autocommit() as connection:
            return trace_of(connection, self._store.tables, name_of(task), id)

    @read
    def explain(
        self, job: AnyTask, slot: datetime, *, id: str | None = None
    ) -> Explanation:
        """Return why a slot ran, or did not, in sentences."""
        name, *former = self._names(job)
        wanted = instant_of(slot)
        for one in former:  # the slots from before the job was renamed
            if slots.slot(self._store, one, wanted, id or RECURRING) is not None:
                name = one
        return explain(facts(self._store, name, wanted, id or RECURRING))

    @read
    def explain_job(
        self, job: AnyTask, *, id: str | None = None
    ) -> JobExplanation | None:
        """Return why a job does not run now, and when it will; None if there is no such job."""
        name = row_name(self._store, name_of(job))
        return explain_now(self._store, name, id or RECURRING)

    @read
    def failures(
        self,
        since: datetime,
        *,
        name: str | None = None,
        limit: int = PAGE,
        attempts: bool = False,
    ) -> list[Failure]:
        """Return what failed or was lost since an instant, the newest first, of one job or task or
        of all.

        Slots that are more than a week older than ``since`` are not searched. ``attempts``: each
        attempt, also of slots that succeeded later; one-time tasks are among them if they keep a
        record.
        """
        begin = instant_of(since)
        read = failures.failed_attempts if attempts else failures.failures
        return read(self._store, begin, name=name, limit=limit)

    @read
    def windows(
        self,
        start: datetime,
        end: datetime,
        *,
        after: tuple[str, str] = ("", ""),
        limit: int | None = None,
    ) -> list[SlotWindow]:
        """Return expected and actual slots from ``start`` to before ``end``, of all jobs and
        instances, by name and id.

        ``after`` is name and id of the last window of the page before. At most 1,000 expected
        slots of each, and 20,000 actual ones in all, are read; see ``complete``.
        """
        begin = instant_of(start)
        until = instant_of(end)
        return windows.windows(self._store, begin, until, after=after, limit=limit)

    @read
    def outcome_counts(
        self,
        start: datetime,
        end: datetime,
        *,
        job: AnyTask | None = None,
        kind: Literal["slot", "task", "recent"] = "slot",
    ) -> list[OutcomeCount]:
        """Return how many slots had which outcome and reason, for each job and hour from ``start``
        to before ``end``.

        Slots that were skipped or pruned are among them. Workers add what they have settled once a
        minute. With the kind "task", one-time tasks are counted, and each failed attempt of them,
        in the hour of its start; with "recent", those of the last hour, by the instants at which
        workers have counted them.
        """
        begin = instant_of(start)
        until = instant_of(end)
        names = (None,) if job is None else self._names(job)
        return [
            count
            for name in names
            for count in windows.outcome_counts(
                self._store, begin, until, job=name, kind=kind
            )
        ]

    @read
    def outcome_parts(
        self, jobs: Collection[str], start: datetime, end: datetime, parts: int
    ) -> list[OutcomePart]:
        """Return the counts of ``outcome_counts`` of these jobs, added up for each of so many equal
        parts of a window.
        """
        begin, until = instant_of(start), instant_of(end)
        return windows.outcome_parts(self._store, sorted(jobs), begin, until, parts)

    @read
    def outcome_totals(self, start: datetime, end: datetime) -> list[OutcomeTotal]:
        """Return how many slots of all jobs had which outcome and reason, from the hour of
        ``start`` to before ``end``, the most frequent first; from the counts of ``outcome_counts``.
        """
        return windows.outcome_totals(self._store, instant_of(start), instant_of(end))

    @read
    def rates(self, job: AnyTask) -> JobRates:
        """Return how often a job, with its instances, ran and failed in the last day and week, how
        long it took and how late it was.

        The counts are those of ``outcome_counts``, from the beginning of an hour; durations and
        lateness are those of the newest 500 slots that the ledger has.
        """
        return rates.rates(self._store, name_of(job))

    @read
    def rates_of(self, jobs: Collection[str]) -> dict[str, JobRates]:
        """Return the same of many jobs, by name: durations and lateness from the newest 50 slots
        of each.
        """
        return rates.rates_of(self._store, jobs)

    @read
    def deploys(
        self,
        start: datetime,
        end: datetime,
        *,
        job: AnyTask | None = None,
        id: str | None = None,
        limit: int | None = PAGE,
    ) -> list[DeployInfo]:
        """Return the schedules that deploys have added or changed from ``start`` to before
        ``end``, the newest first; also those of recurring instances that were changed.
        """
        begin = instant_of(start)
        until = instant_of(end)
        name = None if job is None else name_of(job)
        return histories.deploys(
            self._store, begin, until, job=name, id=id, limit=limit
        )

    @read
    def finish_forecasts(self) -> list[FinishForecast]:
        """Return, of the due slots of jobs with ``finish_by``, whether they will end in time; those
        with too few earlier runs are left out.
        """
        return finish_forecasts(self._store)

    @read
    def schedule_spans(
        self, start: datetime, end: datetime, *, job: AnyTask | None = None
    ) -> list[ScheduleSpan]:
        """Return which schedules jobs and instances had from ``start`` to before ``end``, by name,
        id and time; those of deleted jobs are among them.
        """
        name = None if job is None else name_of(job)
        begin = instant_of(start)
        return spans.schedule_spans(self._store, begin, instant_of(end), job=name)

    # -- one-time tasks ---------------------------------------------------------------------------

    @read
    def explain_task(self, task: Task, id: str) -> TaskExplanation:
        """Return why a one-time task waits, runs or has ended, in sentences, with the limits that
        hold it back.
        """
        name = name_of(task)
        return explain_task(task_facts(self._store, name, id))

    @read
    def explain_backlog(self, task: AnyTask) -> TaskExplanation:
        """Return how many one-time tasks of a name are due and since when, which limit holds them
        back, and in which time they will have ended; its ``id`` is empty.
        """
        return explain_backlog(self._store, name_of(task))

    @read
    def tasks(
        self,
        task: Task | None = None,
        *,
        state: str | None = None,
        where: TaskFilter | None = None,
        after: TaskInfo | str | None = None,
        limit: int = PAGE,
    ) -> list[TaskInfo]:
        """Return a page of one-time tasks, as ``client.list``, also with why none is taken."""
        found = Client(self._make_store).list(
            task, state=state, where=where, after=after, limit=limit
        )
        return task_counts.with_reasons(self._store, found)

    @read
    def task(self, task: Task, id: str) -> TaskInfo | None:
        """Return one task with its data, as ``client.get``, also with why it is not taken."""
        found = Client(self._make_store).get(task, id)
        if found is None:
            return None
        return task_counts.with_reasons(self._store, [found])[0]

    @read
    def task_results(self, task: Task, id: str) -> list[TaskResult]:
        """Return how tasks under this id have ended, as ``client.history``."""
        return Client(self._make_store).history(task, id)

    @read
    def task_counts(self) -> list[TaskCount]:
        """Return how many tasks of each name wait, run, are paused, blocked or dead.

        At most 1,000 names are counted, and 10,000 waiting tasks of each.
        """
        return task_counts.counts_with_reasons(
            self._store, task_counts.task_counts(self._store)
        )

    @read
    def backlog(self) -> list[Backlog]:
        """Return how much is due of each job and task and not claimed, and for how long: for
        monitoring.
        """
        return monitoring.backlog(self._store)

    @read
    def since_success(
        self, names: Collection[str] | None = None
    ) -> dict[str, SinceSuccess]:
        """Return the time since these jobs, or all, have succeeded, and how long their next
        success is overdue: of all instances, the one that waits the longest.

        Jobs whose schedule is disabled or has ended are left out.
        """
        return monitoring.since_success(self._store, names)

    @read
    def troubles(self) -> list[Trouble]:
        """Return the names with dead, failing or paused rows, at most 1,000 of each."""
        return monitoring.troubles(self._store)


class Inspection(Reads):
    """Reads what the tables say, for people and dashboards: takes no locks and needs no worker in
    this process.

    A job is its name, or as registered. ``id`` is that of a recurring instance. All calls wait for
    the database; ``aio`` has the same to be awaited. Raises a DatabaseProblem where the database
    cannot be used.
    """

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

    def iter_slots(
        self,
        job: AnyTask,
        *,
        id: str | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        limit: int | None = None,
        ended: bool = False,
    ) -> Iterator[SlotInfo]:
        """Yield what ``slots`` returns, without a limit; pages are read as they are consumed.

        ``ended`` leaves out what ``pending`` lists.
        """
        with self._store.database.in_words():
            yield from slots.slots(
                self._store,
                name_of(job),
                id,
                limit=limit,
                since=optional_instant(since),
                before=optional_instant(before),
                ended=ended,
            )


class AsyncInspection(Awaited[Inspection], Reads):
    """As Inspection, awaited: each call runs on a thread."""

    async def iter_slots(
        self,
        job: AnyTask,
        *,
        id: str | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        limit: int | None = None,
        ended: bool = False,
    ) -> AsyncIterator[SlotInfo]:
        """As ``Inspection.iter_slots``; each page is read on a thread."""
        found = self._inner.iter_slots(
            job, id=id, since=since, before=before, limit=limit, ended=ended
        )
        while page := await asyncio.to_thread(lambda: list(islice(found, PAGE))):
            for line in page:
                yield line
