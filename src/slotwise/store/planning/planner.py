"""Brings each job's row in line with the code at a worker's start. The row's text decides; code
only proposes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from slotwise.decide.claim import Advance
from slotwise.errors import ConfigurationError, InvalidSchedule, PlanMissing, located
from slotwise.jobs.definition import Definition
from slotwise.model.records import RECURRING, Gap, Key
from slotwise.model.vocabulary import RowState
from slotwise.schedules.text import readable
from slotwise.store.connect.database_errors import in_its_letters, is_about_a_row
from slotwise.store.dialects.port import Transaction
from slotwise.store.operations.transaction import Author, Operation
from slotwise.store.planning.calendars import calendars_of
from slotwise.store.planning.plan_rows import LATE, born, lock, replanned, write
from slotwise.store.planning.revision import Declared, Revision
from slotwise.store.schema.rows import utc
from slotwise.store.schema.tables import is_plan
from slotwise.store.slots.gates import last_start
from slotwise.store.slots.ledger import end_orphans, has_orphans
from slotwise.store.slots.store import Store

#: So many rows are looked at in one transaction.
BATCH = 500

#: A deploy that changed a job's schedule, in the audit.
DEPLOY = "deploy"
WORKER = Author("a worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The result of planning one job: added, changed, kept, deleted, or outdated (planned by a
    newer revision).

    An outdated row keeps ``schedule`` of ``planned_by``. ``superseded``: skipped slots that an
    earlier schedule owed.
    """

    job: str
    change: str
    schedule: str
    next_slot: datetime | None
    refused: str | None = None
    planned_by: Revision | None = None
    superseded: Sequence[Gap] = ()


class Planner:
    """Plans jobs in short transactions, so that many workers may start at once: unchanged and new
    ones in batches.
    """

    def __init__(self, store: Store, author: Author = WORKER) -> None:
        """``author``: who signs a changed schedule in the audit."""
        self._store = store
        self._tasks = store.tables.tasks
        self._author = author

    def check(self, jobs: Iterable[Definition]) -> None:
        """Raise InvalidSchedule or ConfigurationError if one of these jobs cannot be planned.

        A deploy is one decision: no row changes before all jobs have passed.
        """
        named = {job.name: job for job in jobs}
        with self._store.transaction() as connection:
            for name, job in named.items():
                if job.schedule is not None and job.schedule.calendars:
                    with located(f"job {name}", InvalidSchedule):
                        known = calendars_of(connection, self._store.tables, job.schedule)
                        job.schedule.bind(name, known)
        for name, job in named.items():
            if job.schedule is not None and not job.schedule.calendars:
                with located(f"job {name}", InvalidSchedule):
                    job.schedule.bind(name, {})
        self._refuse_tasks(named)

    def _refuse_tasks(self, names: Collection[str]) -> None:
        """Raise ConfigurationError for a job whose row would have the key of a task's."""
        tasks = self._tasks
        theirs = sa.select(tasks.c.task_name).where(
            self._store.dialect.among(tasks.c.task_name, names),
            tasks.c.task_instance == RECURRING,
            ~is_plan(tasks),
        )
        try:
            with self._store.transaction() as connection:
                found = connection.scalars(theirs).first()
        except DBAPIError as error:
            if not is_about_a_row(error):
                raise
            return  # one by one it is told whose
        if found is not None:
            raise _is_a_tasks(found)

    def plan(
        self,
        jobs: Iterable[Definition],
        revision: Revision | None = None,
        *,
        from_due: timedelta | None = None,
        tell: Callable[[Plan], None] = lambda plan: None,
    ) -> list[Plan]:
        """Insert, re-plan or leave each job's row. ``revision`` orders deploys; by default it
        starts now. Raise what ``check`` raises, before any row is written.

        ``tell`` is called with each result as soon as it is committed.

        ``from_due``: a new row's first slot is the last one that came, unless the next one comes
        within this time.
        """
        ours = revision or Revision(started=self._store.now())
        ordered = sorted(jobs, key=lambda job: job.name)
        self.check(ordered)
        done: dict[str, Plan] = {}
        for first in range(0, len(ordered), BATCH):
            for plan in self._together(ordered[first : first + BATCH], ours, from_due):
                done[plan.job] = plan
                tell(plan)
        for job in ordered:
            if job.name not in done:
                done[job.name] = self._plan(job, ours, from_due=from_due)
                tell(done[job.name])
        return [done[job.name] for job in ordered]

    def verify(self, jobs: Sequence[Definition]) -> None:
        """Raise PlanMissing, naming them, if a job has no row: it would never run, and nobody
        would know.
        """
        if missing := self.missing(jobs):
            names = ", ".join(job.name for job in missing)
            raise PlanMissing(
                f"no row in {self._tasks.name} for: {names}; something deletes rows of that table"
            )

    def missing(self, jobs: Sequence[Definition]) -> list[Definition]:
        """Return the jobs without a row."""
        named = self._store.dialect.among(
            self._tasks.c.task_name, [job.name for job in jobs]
        )
        own_rows = sa.select(self._tasks.c.task_name).where(
            self._tasks.c.task_instance == RECURRING, named
        )
        with self._store.transaction() as connection:
            found = set(connection.scalars(own_rows))
        return [job for job in jobs if job.name not in found]

    def _together(
        self, jobs: Sequence[Definition], ours: Revision, from_due: timedelta | None
    ) -> list[Plan]:
        """Plan in one transaction those of some jobs whose rows are as the code wants them, at
        most starts all, and those without a row and a history. Of kept rows only the deploy is
        noted.
        """
        known = {job.name: job for job in jobs}
        try:
            with self._store.transaction() as connection:
                found = (
                    connection.execute(_rows_to_plan(self._store, list(known)))
                    .mappings()
                    .all()
                )
                rows = [
                    row for row in found if _is_kept(known[row["task_name"]], row, ours)
                ]
                noted = [
                    row["task_name"]
                    for row in rows
                    if ours.replaces(Declared.readable(row["plan"]).by)
                ]
                # the rest of the document is as the code declares it, or the row would not be kept
                if noted:
                    tasks = self._tasks
                    deploy = Declared(revision=ours.text, deployed=ours.started).document()
                    mine = tasks.c.task_name.in_(noted), tasks.c.task_instance == RECURRING
                    plan = self._store.dialect.merged(tasks.c.plan, deploy)
                    connection.execute(tasks.update().where(*mine).values(plan=plan))
                there = {row["task_name"] for row in found}
                added = self._add(
                    connection,
                    [job for job in jobs if job.name not in there],
                    ours,
                    from_due,
                )
        except DBAPIError as error:
            if not is_about_a_row(error):
                raise
            return []  # one by one it is told whose
        kept = [
            Plan(
                job=row["task_name"],
                change="kept",
                schedule=row["schedule"],
                next_slot=utc(row["slot"]),
            )
            for row in rows
        ]
        return kept + added

    def _add(
        self,
        connection: sa.Connection,
        jobs: Sequence[Definition],
        ours: Revision,
        from_due: timedelta | None,
    ) -> list[Plan]:
        """Insert the rows of new jobs. A job with a history, calendars, a min_interval or data is
        left out.

        Race: another transaction inserts a row first. That one is left out, too.
        """
        jobs = [
            job
            for job in jobs
            if job.schedule
            and not job.schedule.calendars
            and job.min_interval is None
            and _data_of(job) is None
        ]
        if not jobs:
            return []
        keys = [Key(job.name, RECURRING) for job in jobs]
        newest = self._store.dialect.newest_decided(
            connection, keys, strict=[job.name for job in jobs]
        )
        now = self._store.dialect.now(connection)
        rows = {}
        for job, key, decided in zip(jobs, keys, newest, strict=True):
            if decided is None and job.schedule is not None:
                with suppress(InvalidSchedule):  # one by one it is told whose
                    schedule = job.schedule.bind(job.name, {})
                    new = born(
                        key,
                        schedule,
                        None,
                        now,
                        from_due=from_due,
                        latest=job.start_within or LATE,
                    )
                    rows[job.name] = new | {
                        "priority": job.priority,
                        "plan": _document_of(job, ours),
                    }
        if not rows:
            return []
        added = self._store.dialect.insert_missing(
            connection, self._tasks, list(rows.values())
        )
        for row in connection.execute(_rows_to_plan(self._store, added)).mappings():
            if row["orphaned"]:
                end_orphans(
                    Transaction(connection, self._store.dialect, now),
                    Key(row["task_name"], RECURRING),
                )
        return [
            Plan(
                job=name,
                change="added",
                schedule=rows[name]["schedule"],
                next_slot=rows[name]["slot"],
            )
            for name in added
        ]

    def _plan(
        self, job: Definition, revision: Revision, *, from_due: timedelta | None
    ) -> Plan:
        with in_its_letters(f"job {job.name!r}"), self._store.transaction() as connection:
            assert job.schedule is not None
            with located(f"job {job.name}", InvalidSchedule):
                calendars = calendars_of(connection, self._store.tables, job.schedule)
                schedule = job.schedule.bind(job.name, calendars)
            key = Key(job.name, RECURRING)
            row, plan = lock(connection, self._store, key)
            # Race: only under the row's lock is no slot claimed that is younger than the
            # activation.
            now = self._store.dialect.now(connection)
            end_orphans(Transaction(connection, self._store.dialect, now), key)
            if row is None:
                strict = {job.name} if job.gives_up else ()
                (newest,) = self._store.dialect.newest_decided(
                    connection, [key], strict=strict
                )
                new = born(
                    key,
                    schedule,
                    newest,
                    now,
                    from_due=from_due,
                    latest=job.start_within or LATE,
                )
                self._keep_distance(connection, job, new, now)
                new |= {
                    "priority": job.priority,
                    "plan": _document_of(job, revision),
                    "task_data": _data_of(job),
                }
                if self._store.dialect.insert_new(connection, self._tasks, new):
                    return Plan(
                        job=job.name,
                        change="added",
                        schedule=new["schedule"],
                        next_slot=new["slot"],
                    )
                row, plan = lock(connection, self._store, key)  # somebody else was first
                now = self._store.dialect.now(connection)
            if (
                row is None
            ):  # something deletes rows of that table: ``verify`` names the job
                return Plan(
                    job=job.name,
                    change="deleted",
                    schedule=str(job.schedule),
                    next_slot=None,
                )
            if not row.is_plan:
                raise _is_a_tasks(job.name)
            kept = Plan(
                job=job.name,
                change="kept",
                schedule=row.schedule or "-",
                next_slot=row.slot,
            )
            planned = readable(row.schedule)
            theirs = Declared.readable(plan).by
            same = planned is not None and planned.last == schedule
            if revision.is_older(theirs):
                outdated = replace(
                    kept, change="outdated", refused=str(schedule), planned_by=theirs
                )
                return kept if same else outdated
            changes = Advance(row={}) if same else replanned(row, schedule, now)
            self._keep_distance(connection, job, changes.row, now)
            told: dict[str, object] = {
                "priority": job.priority,
                "plan": _document_of(job, revision, theirs),
            }
            if row.task_data != _data_of(job):
                told["task_data"] = _data_of(job)
            write(
                connection, self._store, row, replace(changes, row=told | changes.row), now
            )
            if same:
                return kept
            text, slot = (
                changes.row.get(name, getattr(row, name)) for name in ("schedule", "slot")
            )
            operation = Operation(
                connection=connection, store=self._store, now=now, author=self._author
            )
            operation.sign(
                DEPLOY,
                job=job.name,
                before=None if planned is None else str(planned.last),
                after=str(schedule),
                revision=revision.text,
            )
            return replace(
                kept,
                change="changed",
                schedule=text,
                next_slot=slot,
                superseded=changes.gaps,
            )

    def _keep_distance(
        self,
        connection: sa.Connection,
        job: Definition,
        columns: dict[str, Any],
        now: datetime,
    ) -> None:
        """No plan of a job brings two starts nearer to each other than its min_interval."""
        where = (
            "parked_due" if columns.get("state") == RowState.PAUSED else "execution_time"
        )
        if job.min_interval is None or where not in columns:
            return
        last = connection.scalar(
            sa.select(last_start(self._store.tables, job.name, RECURRING, now))
        )
        if last is not None:
            columns[where] = max(columns[where], utc(last) + job.min_interval)


def _is_a_tasks(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"job {name!r}: the row with its name and the id {RECURRING!r} is a task's; rename the "
        f"job, or if nothing needs that row any more: slotwise tasks cancel {name} {RECURRING}"
    )


def _rows_to_plan(store: Store, names: Sequence[str]) -> sa.Select[Any]:
    """The rows of these jobs as ``_is_kept`` reads them, locked in the order of their keys, as
    settlements do.
    """
    tasks = store.tables.tasks
    wanted = ("task_name", "schedule", "slot", "priority", "plan")
    return (
        sa.select(
            *(tasks.c[name] for name in wanted), has_orphans(store.tables).label("orphaned")
        )
        .where(tasks.c.task_name.in_(names), tasks.c.task_instance == RECURRING)
        .order_by(*store.dialect.key_order)
        .with_for_update(of=tasks)
    )


def _is_kept(job: Definition, row: sa.RowMapping, ours: Revision) -> bool:
    """Whether planning would leave a row as it stands. Of one that goes by calendars, only
    planning knows.
    """
    if job.schedule is None or job.schedule.calendars or row["orphaned"]:
        return False
    planned = readable(row["schedule"])
    try:
        if planned is None or str(planned.last) != str(job.schedule.bind(job.name, {})):
            return False
    except InvalidSchedule:
        return False
    found = Declared.readable(row["plan"])
    declared = (job.priority, job.fingerprint, tuple(sorted(job.runs_on)))
    return (
        ours.is_older(found.by)
        or (row["priority"], found.fingerprint, found.runs_on) == declared
    )


def _data_of(job: Definition) -> bytes | None:
    """Return the data of a job's row: nothing but its version, which older releases read before
    they run a slot.
    """
    return job.payload.encode(None, job.name)


def _document_of(
    job: Definition, revision: Revision, before: Revision | None = None
) -> dict[str, object]:
    """Return the document ``plan`` of a row: what the code declares, and its deploy.

    A deploy with an id keeps its first start: a worker restarted later must not look newer than
    the next deploy.
    """
    again = before is not None and before.text is not None and before.text == revision.text
    started = before.started if before and again else revision.started
    return Declared(
        fingerprint=job.fingerprint,
        runs_on=tuple(sorted(job.runs_on)),
        revision=revision.text,
        deployed=started,
    ).document()
