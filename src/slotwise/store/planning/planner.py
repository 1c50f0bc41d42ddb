"""Brings each job's row in line with the code at a worker's start. The row's text decides; code
only proposes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from slotwise.decide.claim import Advance
from slotwise.errors import ConfigurationError, InvalidSchedule, PlanMissing, located
from slotwise.jobs.definition import Definition
from slotwise.model.records import RECURRING, Gap, Key, Row
from slotwise.model.vocabulary import RowState
from slotwise.schedules import Schedule
from slotwise.schedules.text import readable
from slotwise.store.connect.database_errors import in_its_letters, is_about_a_row
from slotwise.store.dialects.port import Transaction
from slotwise.store.operations.transaction import Author, Operation
from slotwise.store.planning.calendars import calendars_of
from slotwise.store.planning.plan_rows import LATE, born, lock, replanned, write
from slotwise.store.planning.renames import follow
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


class Deploy(NamedTuple):
    """The deploy that plans. ``from_due``: see ``Planner.plan``."""

    revision: Revision
    from_due: timedelta | None


class Planner:
    """Plans jobs in short transactions, so that many workers may start at once: unchanged and new
    ones in batches.
    """

    def __init__(self, store: Store, author: Author = WORKER) -> None:
        """``author``: who signs a changed schedule in the audit."""
        self._store = store
        self._dialect = store.dialect
        self._tasks = store.tables.tasks
        self._author = author

    def check(self, jobs: Iterable[Definition]) -> None:
        """Raise InvalidSchedule or ConfigurationError if one of these jobs cannot be planned.

        A deploy is one decision: no row changes before all jobs have passed.
        """
        named = {job.name: job for job in jobs}
        tasks = self._tasks.c
        theirs = sa.select(tasks.task_name).where(
            self._dialect.among(tasks.task_name, named),
            tasks.task_instance == RECURRING,
            ~is_plan(tasks),
        )
        try:
            with self._store.transaction() as connection:
                for job in named.values():
                    self._bound(connection, job)
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
        deploy = Deploy(revision or Revision(started=self._store.now()), from_due)
        ordered = sorted(jobs, key=lambda job: job.name)
        self.check(ordered)
        done: dict[str, Plan] = {}
        for plan in self._plan_each(ordered, deploy):
            done[plan.job] = plan
            tell(plan)
        return [done[job.name] for job in ordered]

    def _plan_each(self, jobs: Sequence[Definition], deploy: Deploy) -> Iterator[Plan]:
        """Plan jobs in batches, and those that are left one by one."""
        left = {job.name: job for job in jobs}
        for first in range(0, len(jobs), BATCH):
            for plan in self._plan_alike(jobs[first : first + BATCH], deploy):
                del left[plan.job]
                yield plan
        for job in left.values():
            yield self._plan_one(job, deploy)

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
        names = [name for job in jobs for name in (job.name, *job.aliases)]
        named = self._dialect.among(self._tasks.c.task_name, names)
        own_rows = sa.select(self._tasks.c.task_name).where(
            self._tasks.c.task_instance == RECURRING, named
        )
        with self._store.transaction() as connection:
            found = set(connection.scalars(own_rows))
        return [job for job in jobs if found.isdisjoint((job.name, *job.aliases))]

    def _bound(self, connection: sa.Connection, job: Definition) -> Schedule:
        """Return the job's schedule with its calendars, which stay locked."""
        assert job.schedule is not None
        with located(f"job {job.name}", InvalidSchedule):
            known = calendars_of(connection, self._store.tables, job.schedule)
            return job.schedule.bind(job.name, known)

    # -- many rows in one transaction -------------------------------------------------------------

    def _plan_alike(self, jobs: Sequence[Definition], deploy: Deploy) -> list[Plan]:
        """Plan in one transaction those of some jobs whose rows are as the code wants them, at
        most starts all, and those without a row and a history. Of kept rows only the deploy is
        noted.
        """
        known = {job.name: job for job in jobs}
        try:
            with self._store.transaction() as connection:
                rows = _rows_to_plan(self._store, list(known))
                found = {
                    row["task_name"]: row
                    for row in connection.execute(rows).mappings()
                }
                ours = deploy.revision
                kept = [
                    row
                    for name, row in found.items()
                    if _is_kept(known[name], row, ours)
                ]
                self._note_deploy(connection, kept, ours)
                new = [job for job in jobs if job.name not in found]
                added = self._add(connection, new, deploy)
        except DBAPIError as error:
            if not is_about_a_row(error):
                raise
            return []  # one by one it is told whose
        plans = [
            _kept(row["task_name"], row["schedule"], utc(row["slot"])) for row in kept
        ]
        return plans + added

    def _note_deploy(
        self, connection: sa.Connection, kept: Sequence[sa.RowMapping], ours: Revision
    ) -> None:
        """Write the deploy into rows of an earlier one. The rest of their documents is as the code
        declares it, or the rows would not be kept.
        """
        tasks = self._tasks
        noted = [
            row["task_name"]
            for row in kept
            if ours.replaces(Declared.readable(row["plan"]).by)
        ]
        if noted:
            document = Declared(revision=ours.text, deployed=ours.started).document()
            mine = tasks.c.task_name.in_(noted), tasks.c.task_instance == RECURRING
            plan = self._dialect.merged(tasks.c.plan, document)
            connection.execute(tasks.update().where(*mine).values(plan=plan))

    def _add(
        self, connection: sa.Connection, jobs: Sequence[Definition], deploy: Deploy
    ) -> list[Plan]:
        """Insert the rows of new jobs. A job with a history, calendars, a min_interval or data is
        left out.

        Race: another transaction inserts a row first. That one is left out, too.
        """
        simple = self._without_history(connection, filter(_is_simple, jobs))
        if not simple:
            return []
        at = self._store.at(connection)
        rows = {
            job.name: _new_row(job, self._bound(connection, job), None, at.now, deploy)
            for job in simple
        }
        new = list(rows.values())
        added = self._dialect.insert_missing(connection, self._tasks, new)
        self._note(
            at,
            {name: (None, rows[name]["schedule"]) for name in added},
            deploy.revision,
        )
        for row in connection.execute(_rows_to_plan(self._store, added)).mappings():
            if row["orphaned"]:
                end_orphans(at, Key(row["task_name"], RECURRING))
        return [_added(rows[name]) for name in added]

    def _without_history(
        self, connection: sa.Connection, jobs: Iterable[Definition]
    ) -> list[Definition]:
        """Return the jobs of which neither ledger nor gaps have decided a slot."""
        named = {Key(job.name, RECURRING): job for job in jobs}
        if not named:
            return []
        strict = [job.name for job in named.values()]
        newest = self._dialect.newest_decided(connection, list(named), strict)
        found = zip(named.values(), newest, strict=True)
        return [job for job, decided in found if decided is None]

    # -- one row ----------------------------------------------------------------------------------

    def _plan_one(self, job: Definition, deploy: Deploy) -> Plan:
        with (
            in_its_letters(f"job {job.name!r}"),
            self._store.transaction() as connection,
        ):
            schedule = self._bound(connection, job)
            key = Key(job.name, RECURRING)
            if not self._follows(connection, job):
                return _kept(job.name, str(job.schedule), None)
            row, plan = lock(connection, self._store, key)
            # Race: only under the row's lock is no slot claimed that is younger than the
            # activation.
            at = self._store.at(connection)
            end_orphans(at, key)
            if row is None:
                new = self._insert(at, job, schedule, deploy)
                if new is not None:
                    return new
                row, plan = lock(
                    connection, self._store, key
                )  # somebody else was first
                at = self._store.at(connection)
            if row is None:
                # Something deletes rows of that table: ``verify`` names the job.
                return replace(
                    _kept(job.name, str(job.schedule), None), change="deleted"
                )
            return self._change(at, job, row, plan, schedule, deploy.revision)

    def _follows(self, connection: sa.Connection, job: Definition) -> bool:
        """Let the row of a renamed job follow; return whether it has, or there is none."""
        if not job.aliases:
            return True
        operation = Operation.within(connection, self._store, self._author)
        key = Key(job.name, RECURRING)
        return follow(operation, key, job.aliases) == key

    def _insert(
        self, at: Transaction, job: Definition, schedule: Schedule, deploy: Deploy
    ) -> Plan | None:
        """Insert the row; return None if another transaction was first."""
        strict = {job.name} if job.gives_up else ()
        key = Key(job.name, RECURRING)
        (newest,) = self._dialect.newest_decided(at.connection, [key], strict=strict)
        new = _new_row(job, schedule, newest, at.now, deploy)
        self._keep_distance(at, job, new)
        new["task_data"] = _data_of(job)
        if not self._dialect.insert_new(at.connection, self._tasks, new):
            return None
        self._note(at, {job.name: (None, new["schedule"])}, deploy.revision)
        return _added(new)

    def _note(
        self,
        at: Transaction,
        schedules: Mapping[str, tuple[str | None, str]],
        ours: Revision,
    ) -> None:
        """Write into the history of deploys how schedules have changed, by job: from and to."""
        changes = {Key(name, RECURRING): one for name, one in schedules.items()}
        self._store.history.deployed(at, changes, self._author.name, ours.text)

    def _change(
        self,
        at: Transaction,
        job: Definition,
        row: Row,
        plan: Mapping[str, object] | None,
        schedule: Schedule,
        ours: Revision,
    ) -> Plan:
        """Change a locked row as the code wants it, unless a newer deploy has planned it."""
        if not row.is_plan:
            raise _is_a_tasks(job.name)
        kept = _kept(job.name, row.schedule or "-", row.slot)
        planned = readable(row.schedule)
        before = None if planned is None else planned.last
        theirs = Declared.readable(plan).by
        if ours.is_older(theirs):
            outdated = replace(
                kept, change="outdated", refused=str(schedule), planned_by=theirs
            )
            return kept if before == schedule else outdated
        told = {"priority": job.priority, "plan": _document_of(job, ours, theirs)}
        if row.task_data != _data_of(job):
            told["task_data"] = _data_of(job)
        if before == schedule:
            write(at, row, Advance(row=told))
            return kept
        changes = replanned(row, schedule, at.now)
        self._keep_distance(at, job, changes.row)
        changes = replace(changes, row=told | changes.row)
        write(at, row, changes)
        told_before = row.schedule if before is None else str(before)
        operation = Operation(
            connection=at.connection,
            store=self._store,
            now=at.now,
            author=self._author,
        )
        operation.sign(
            DEPLOY,
            job=job.name,
            before=told_before,
            after=str(schedule),
            revision=ours.text,
        )
        self._note(at, {job.name: (told_before, str(schedule))}, ours)
        return replace(
            kept,
            change="changed",
            schedule=changes.row["schedule"],
            next_slot=changes.row.get("slot", row.slot),
            superseded=changes.gaps,
        )

    def _keep_distance(
        self, at: Transaction, job: Definition, columns: dict[str, Any]
    ) -> None:
        """No plan of a job brings two starts nearer to each other than its min_interval."""
        is_paused = columns.get("state") == RowState.PAUSED
        where = "parked_due" if is_paused else "execution_time"
        if job.min_interval is None or where not in columns:
            return
        latest = last_start(self._store.tables, job.name, RECURRING, at.now)
        last = at.connection.scalar(sa.select(latest))
        if last is not None:
            columns[where] = max(columns[where], utc(last) + job.min_interval)


def _is_simple(job: Definition) -> bool:
    """Whether the row of a new job depends on nothing but the code."""
    return (
        job.schedule is not None
        and not job.aliases
        and not job.schedule.calendars
        and job.min_interval is None
        and _data_of(job) is None
    )


def _new_row(
    job: Definition,
    schedule: Schedule,
    newest: datetime | None,
    now: datetime,
    deploy: Deploy,
) -> dict[str, Any]:
    row = born(
        Key(job.name, RECURRING),
        schedule,
        newest,
        now,
        from_due=deploy.from_due,
        latest=job.start_within or LATE,
    )
    return row | {"priority": job.priority, "plan": _document_of(job, deploy.revision)}


def _kept(job: str, schedule: str, slot: datetime | None) -> Plan:
    return Plan(job=job, change="kept", schedule=schedule, next_slot=slot)


def _added(columns: Mapping[str, Any]) -> Plan:
    return Plan(
        job=columns["task_name"],
        change="added",
        schedule=columns["schedule"],
        next_slot=columns["slot"],
    )


def _is_a_tasks(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"job {name!r}: the row with its name and the id {RECURRING!r} is a task's; rename the "
        f"job, or if nothing needs that row any more: slotwise tasks cancel {name} {RECURRING}; "
        "db-scheduler's own row is removed by db-scheduler"
    )


def _rows_to_plan(store: Store, names: Sequence[str]) -> sa.Select[Any]:
    """The rows of these jobs as ``_is_kept`` reads them, locked in the order of their keys, as
    settlements do.
    """
    tasks = store.tables.tasks
    wanted = ("task_name", "schedule", "slot", "priority", "plan")
    return (
        sa.select(
            *(tasks.c[name] for name in wanted),
            has_orphans(store.tables).label("orphaned"),
        )
        .where(tasks.c.task_name.in_(names), tasks.c.task_instance == RECURRING)
        .order_by(*store.dialect.key_order)
        .with_for_update(of=tasks)
    )


def _is_kept(job: Definition, row: sa.RowMapping, ours: Revision) -> bool:
    """Whether planning would leave a row as it stands. Of one that goes by calendars, only
    planning knows.
    """
    if job.schedule is None or job.schedule.calendars or job.aliases:
        return False
    if row["orphaned"] or not _is_planned_by(job.schedule, row["schedule"], job.name):
        return False
    found = Declared.readable(row["plan"])
    declared = (job.fingerprint, tuple(sorted(job.runs_on)), job.finish_by)
    if row["priority"] == job.priority and declared == (
        found.fingerprint,
        found.runs_on,
        found.finish_by,
    ):
        return True
    return ours.is_older(found.by)


def _is_planned_by(schedule: Schedule, text: str | None, name: str) -> bool:
    """Whether a row's schedule is this one, which goes by no calendar."""
    planned = readable(text)
    if planned is None:
        return False
    try:
        return str(planned.last) == str(schedule.bind(name, {}))
    except InvalidSchedule:
        return False


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
    again = (
        before is not None and before.text is not None and before.text == revision.text
    )
    started = before.started if before and again else revision.started
    return Declared(
        fingerprint=job.fingerprint,
        runs_on=tuple(sorted(job.runs_on)),
        revision=revision.text,
        deployed=started,
        finish_by=job.finish_by,
    ).document()
