"""What people ask the tables: jobs, the ledger with its gaps, workers, overdue rows. Only reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from slotwise.decide import UNREADABLE
from slotwise.errors import UnknownTask
from slotwise.model.records import RECURRING
from slotwise.model.vocabulary import State
from slotwise.store.operations.pauses import Paused, all_paused, is_all_paused
from slotwise.store.reading.ledger_reader import LedgerReader
from slotwise.store.reading.views import Health, JobInfo, Unreadable, job_info, obstacle, paused_by
from slotwise.store.schema.column_types import Beyond
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import is_plan, is_task
from slotwise.store.schema.worker_rows import WorkerInfo, worker_info

#: Why nobody claims a one-time row, where its name is a job's.
UNDER_A_JOB = "it is a one-time row under the name of a job, which only its schedule runs; see: slotwise tasks cancel"


class Reader(LedgerReader):
    """Listings for people; needs no definitions and takes no locks."""

    def now(self) -> datetime:
        """The database's time."""
        return self._store.now()

    def all_paused(self) -> Paused | None:
        """Who paused all, when and why; None if there is no such pause."""
        return is_all_paused(self._store)

    # -- jobs -------------------------------------------------------------------------------------------------

    def jobs(self) -> list[JobInfo]:
        """All jobs that have a row of their own, by name."""
        return self._jobs(
            self._plans().where(self._tasks.c.task_instance == RECURRING).order_by(self._tasks.c.task_name)
        )

    def job(self, name: str, instance: str = RECURRING) -> JobInfo | None:
        """A job's own row, or that of an instance."""
        found = self._jobs(
            self._plans().where(self._tasks.c.task_name == name, self._tasks.c.task_instance == instance)
        )
        return found[0] if found else None

    def _jobs(self, statement: sa.Select[Any]) -> list[JobInfo]:
        workers, now = self.workers(), self.now()
        rows = self._rows(statement)
        pauses = self._pauses(
            [row["control"] for row in rows if row["state"] == State.PAUSED and row["control"] is not None]
        )
        lines = [(job_info(row, workers, now), pauses.get(row["control"])) for row in rows]
        return [line if pause is None else replace(line, reason=pause) for line, pause in lines]

    def _pauses(self, orders: Sequence[int]) -> dict[int, str]:
        """Who gave these orders, when and why."""
        controls = self._store.tables.controls
        rows = self._rows(sa.select(controls).where(controls.c.id.in_(orders))) if orders else []
        return {row["id"]: paused_by(row["author"], utc(row["at"]), row["note"]) for row in rows}

    def instances(self, name: str, *, limit: int, after: str = "") -> list[JobInfo]:
        """Recurring instances of a task, by id, from the one after ``after``."""
        id = self._tasks.c.task_instance
        wanted = self._plans().where(self._tasks.c.task_name == name, id != RECURRING, id > after)
        return self._jobs(wanted.order_by(id).limit(limit))

    def instance_counts(self) -> dict[str, int]:
        """How many recurring instances each task has that has any."""
        tasks = self._tasks
        wanted = self._plans().where(tasks.c.task_instance != RECURRING)
        counted = wanted.with_only_columns(tasks.c.task_name, sa.func.count().label("count"))
        return {row["task_name"]: row["count"] for row in self._rows(counted.group_by(tasks.c.task_name))}

    def schedules(self) -> dict[str, int]:
        """The text of each schedule in force, and how many jobs and instances go by it."""
        tasks = self._tasks
        counted = self._plans().with_only_columns(tasks.c.schedule, sa.func.count().label("count"))
        return {row["schedule"]: row["count"] for row in self._rows(counted.group_by(tasks.c.schedule))}

    def _plans(self) -> sa.Select[Any]:
        return sa.select(self._tasks).where(is_plan(self._tasks))

    # -- slots ------------------------------------------------------------------------------------------------

    def known(self, name: str) -> None:
        """Raise UnknownTask unless a row, the ledger or a gap has ever heard of this name."""
        columns = (self._tasks.c.task_name, self._slots.c.task_name, self._gaps.c.task_name)
        if any(self._rows(sa.select(column).where(column == name).limit(1)) for column in columns):
            return
        names = sorted(row["task_name"] for row in self._rows(sa.select(self._tasks.c.task_name).distinct().limit(50)))
        known = f"known are {', '.join(names)}" if names else "no worker has planned any job yet"
        raise UnknownTask(f"no job {name!r} in this database; {known}")

    def known_instance(self, name: str, instance: str) -> None:
        """Raise UnknownTask unless a row, the ledger or a gap has ever heard of this instance; or of the name."""
        self.known(name)
        for table in (self._tasks, self._slots, self._gaps):
            mine = sa.select(table.c.task_name).where(table.c.task_name == name, table.c.task_instance == instance)
            if instance == RECURRING or self._rows(mine.limit(1)):
                return
        raise UnknownTask(f"job {name!r} has no recurring instance {instance!r}; see: slotwise jobs instances {name}")

    # -- workers and health -----------------------------------------------------------------------------------

    def workers(self) -> list[WorkerInfo]:
        """All workers that have signed in and not out, the newest first."""
        tasks, workers = self._tasks, self._workers
        held = (
            sa.select(sa.func.count())
            .where(tasks.c.picked, tasks.c.picked_by == workers.c.worker)
            .scalar_subquery()
            .label("running")
        )
        with self._store.transaction() as connection:
            now = self._store.dialect.now(connection)
            rows = connection.execute(sa.select(workers, held).order_by(workers.c.started.desc())).mappings().all()
        return [worker_info(row, now) for row in rows]

    def stranded(self, names: Collection[str]) -> dict[str, str]:
        """Those of these one-time tasks that no live worker takes, and why."""
        workers, jobs = self.workers(), self._jobs_among(names)
        found = {name: UNDER_A_JOB if name in jobs else obstacle(name, None, workers) for name in names}
        return {name: why for name, why in found.items() if why is not None}

    def _jobs_among(self, names: Collection[str]) -> set[str]:
        """Those of these names that are jobs': they have a row of their own."""
        tasks = self._tasks
        mine = [tasks.c.task_instance == RECURRING, is_plan(tasks), tasks.c.task_name.in_(names)]
        return {row["task_name"] for row in self._rows(sa.select(tasks.c.task_name).where(*mine))} if names else set()

    def _unreadable(self, connection: sa.Connection) -> list[Unreadable]:
        """Since when: such a row keeps the slot, or the due time, that it had when somebody could still read it."""
        tasks = self._tasks
        since = sa.func.min(sa.func.coalesce(tasks.c.parked_due, tasks.c.slot, tasks.c.execution_time))
        dead = sa.func.coalesce(tasks.c.state, "") == State.DEAD
        found = connection.execute(
            sa.select(tasks.c.task_name, dead, sa.func.count(), since, sa.func.max(tasks.c.last_error))
            .where(~tasks.c.picked, tasks.c.last_error.startswith(UNREADABLE))
            .group_by(tasks.c.task_name, dead)
            .order_by(tasks.c.task_name, dead)
        )
        return [
            Unreadable(
                task=name, rows=rows, since=None if isinstance(first, Beyond) else utc(first),
                error=error.removeprefix(UNREADABLE), dead=is_dead,
            )
            for name, is_dead, rows, first, error in found
        ]  # fmt: skip

    def health(self, overdue_after: timedelta) -> Health:
        """Counts rows that are due for longer than ``overdue_after`` and still wait, and holders that fell silent.

        Those that no live worker runs are counted apart, as orphans; without any live worker nothing is an orphan.
        """
        tasks = self._tasks
        with self._store.transaction() as connection:
            now = self._store.dialect.now(connection)
            due = sa.and_(~tasks.c.picked, tasks.c.state.is_(None), tasks.c.execution_time < now - overdue_after)
            waiting = connection.execute(
                sa.select(tasks.c.task_name, sa.func.count(), sa.func.min(tasks.c.execution_time))
                .where(due)
                .group_by(tasks.c.task_name)
            ).all()
            alone = connection.scalars(sa.select(tasks.c.task_name).where(due, is_task(tasks)).distinct()).all()
            choosy = connection.execute(
                sa.select(tasks.c.task_name, tasks.c.runs_on).where(due, tasks.c.runs_on.is_not(None)).distinct()
            ).all()
            held = connection.execute(
                sa.select(tasks.c.task_name, tasks.c.last_heartbeat, tasks.c.lease).where(tasks.c.picked)
            ).all()
            paused = all_paused(connection, self._store.tables)
            waiting, choosy, alone = ([], [], []) if paused is not None else (waiting, choosy, alone)
            unreadable = self._unreadable(connection)
            dead = connection.scalar(sa.select(sa.func.count()).where(tasks.c.state == State.DEAD)) or 0
        live = [worker for worker in self.workers() if worker.live]
        known = {name for worker in live for name in worker.tasks} if live else {name for name, *_ in [*waiting, *held]}
        silent = [name for name, beat, lease in held if beat is not None and lease is not None and beat < now - lease]
        orphans = [(name, count) for name, count, _ in waiting if name not in known]
        orphans += [(name, 1) for name in silent if name not in known]
        passed_over = {name for worker in live for name in worker.passed_over}
        asking = {name: None for name, *_ in waiting if name in passed_over} | {
            found.task_name: found.runs_on for found in choosy
        }
        obstacles = {name: obstacle(name, runs_on, live) for name, runs_on in asking.items() if name in known and live}
        obstacles |= dict.fromkeys(self._jobs_among(alone), UNDER_A_JOB)
        return Health(
            now=utc(now),
            live_workers=len(live),
            overdue=sum(count for name, count, _ in waiting if name in known),
            oldest_due=utc(min((oldest for name, _, oldest in waiting if name in known), default=None)),
            silent=sum(name in known for name in silent),
            dead=dead,
            orphans=sum(count for _, count in orphans),
            orphan_tasks=sorted({name for name, _ in orphans}),
            refused=sorted({name for worker in live for name in worker.refused}),
            unroutable={name: why for name, why in sorted(obstacles.items()) if why},
            unreadable=[one for one in unreadable if one.task in known or not live],
            paused=None if paused is None else paused_by(paused.author, paused.since, paused.note),
        )
