"""Brings each job's row in line with the code at a worker's start. The row's text decides; code only proposes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from slotwise.decide.claim import ahead, due_at, slot_after
from slotwise.decide.ending import moved
from slotwise.decide.pause import asleep, owed_by
from slotwise.errors import InvalidSchedule, PlanMissing
from slotwise.jobs.definition import Definition
from slotwise.model.records import RECURRING, TICK, Key, Row
from slotwise.model.vocabulary import Kind, State
from slotwise.schedules import Schedule, succeed
from slotwise.schedules.combinators import owing
from slotwise.schedules.text import readable, stored_text
from slotwise.store.connect.database_errors import in_its_letters, is_about_a_row
from slotwise.store.planning.revision import Declared, Revision
from slotwise.store.planning.stored_calendars import calendars_of
from slotwise.store.schema.column_types import to_micros
from slotwise.store.schema.rows import row_of, utc
from slotwise.store.slots.ledger import end_orphans, has_orphans
from slotwise.store.slots.store import Store

#: So many rows are looked at in one transaction.
BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What planning did to one job: added, changed, kept, outdated (a newer revision has planned it) or refused.

    ``outdated`` and ``refused``: the row keeps ``schedule``, which ``planned_by`` has written; ``refused`` was not
    taken over. ``cure``: what helps, where the row would have become one that nobody can read.
    """

    job: str
    change: str
    schedule: str
    next_slot: datetime | None
    refused: str | None = None
    planned_by: Revision | None = None
    cure: str | None = None


def replanned(row: Row, after: Schedule, now: datetime) -> dict[str, Any]:
    """How a row follows a change of its schedule's text, activated ``now``; a paused one sleeps on. Pure."""
    if row.state != State.PAUSED:
        return _replanned(row, after, now)
    columns = _replanned(replace(row, execution_time=row.parked_due or row.execution_time), after, now)
    return columns | asleep(columns["execution_time"]) if "execution_time" in columns else columns


def _replanned(row: Row, after: Schedule, now: datetime) -> dict[str, Any]:
    """How a waiting row follows.

    Slots up to the activation belong to the old text, later ones to the new. A row that is held, or whose slot was
    begun or is due, gets the text only; its next slot comes at settlement.
    """
    activation = activation_of(row, now)
    before, name = readable(row.schedule), "/".join(row.key)
    schedule = after if row.schedule is None else succeed(owed_by(row), activation, after)
    if row.slot is not None:
        schedule = owing(schedule, row.slot)
    if row.picked:
        return {"schedule": stored_text(schedule, name)}
    if row.slot is not None and (row.attempt > 0 or row.slot <= activation):
        columns: dict[str, Any] = {"schedule": stored_text(schedule, name), "next_slot": slot_after(schedule, row.slot)}
        if row.attempt == 0 and not schedule.runs(row.slot):
            columns |= moved(row, due_at(schedule, row.slot))
        return columns
    columns = ahead(after, first_slot(row, after, now))
    if before is not None and row.slot is not None and row.execution_time > due_at(before, row.slot):
        # min_interval has moved it: a change of the schedule brings no two starts nearer to each other
        columns["execution_time"] = max(columns["execution_time"], row.execution_time)
    return {"schedule": stored_text(after, name), **columns}


def activation_of(row: Row, now: datetime) -> datetime:
    """Up to when slots belong to the old text. A clock stepped back puts slots that were begun ahead of now."""
    return max(now, row.watermark or now)


def first_slot(row: Row, after: Schedule, now: datetime) -> datetime | None:
    """The new text's first slot after the activation, and after every slot that was ever started."""
    if after.from_end and row.slot is not None:
        soon = after.next_after(now)
        return row.slot if soon is None else min(row.slot, soon)
    first = after.first_after(now)
    if first is not None and row.watermark is not None and first <= row.watermark:
        first = row.watermark + TICK if after.from_end else after.next_after(row.watermark)
    return first


class Planner:
    """Plans jobs one by one, each in its own short transaction, so that any number of workers may start at once.

    Most rows need nothing: those are looked at by the hundred before.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tasks = store.tables.tasks

    def plan(self, jobs: Iterable[Definition], revision: Revision | None = None) -> list[Plan]:
        """Insert, re-plan or leave each job's row. ``revision`` orders deploys; None: one that starts just now."""
        ours = revision or Revision(started=self._store.now())
        ordered = sorted(jobs, key=lambda job: job.name)
        batches = (ordered[first : first + BATCH] for first in range(0, len(ordered), BATCH))
        kept = {plan.job: plan for batch in batches for plan in self._kept(batch, ours)}
        return [kept.get(job.name) or self._plan(job, ours) for job in ordered]

    def verify(self, jobs: Sequence[Definition]) -> None:
        """Raise PlanMissing, naming them, if a job has no row: it would never run, and nobody would know."""
        names = [job.name for job in jobs]
        with self._store.transaction() as connection:
            statement = sa.select(self._tasks.c.task_name).where(
                self._tasks.c.task_name.in_(names), self._tasks.c.task_instance == RECURRING
            )
            found = set(connection.scalars(statement))
        missing = [name for name in names if name not in found]
        if missing:
            raise PlanMissing(
                f"no row in {self._tasks.name} for: {', '.join(missing)}; something deletes rows of that table"
            )

    def _kept(self, jobs: Sequence[Definition], ours: Revision) -> list[Plan]:
        """Of some jobs, those whose rows are as the code wants them: at most starts, all. Only the deploy is noted."""
        known = {job.name: job for job in jobs}
        try:
            with self._store.transaction() as connection:
                found = connection.execute(_rows_to_plan(self._store, list(known))).mappings()
                rows = [row for row in found if _is_kept(known[row["task_name"]], row, ours)]
                noted = [known[row["task_name"]] for row in rows if ours.replaces(_revision_of(row["plan"]))]
                if noted:
                    mine = self._tasks.c.task_name == sa.bindparam("job"), self._tasks.c.task_instance == RECURRING
                    plans = [{"job": job.name, "plan": _document_of(job, ours)} for job in noted]
                    connection.execute(self._tasks.update().where(*mine).values(plan=sa.bindparam("plan")), plans)
        except DBAPIError as error:
            if not is_about_a_row(error):
                raise
            return []  # one by one it is told whose
        return [
            Plan(job=row["task_name"], change="kept", schedule=row["schedule"], next_slot=utc(row["slot"]))
            for row in rows
        ]

    def _plan(self, job: Definition, revision: Revision) -> Plan:
        with in_its_letters(f"job {job.name!r}"), self._store.transaction() as connection:
            job, schedule = self._bound(connection, job)
            row, theirs = self._read(connection, job.name)
            # Race: only under the row's lock is no slot claimed that is younger than the activation.
            now = self._store.dialect.now(connection)
            end_orphans(connection, self._store.dialect, job.name, RECURRING, now)
            if row is None:
                if self._insert(connection, job, schedule, now, revision):
                    row, _ = self._read(connection, job.name)
                    return _plan_of(job, row, "added")
                row, theirs = self._read(connection, job.name)  # somebody else was first
                now = self._store.dialect.now(connection)
            if row is None:
                return Plan(job=job.name, change="deleted", schedule=str(schedule), next_slot=None)
            return self._replan(connection, job, row, theirs, now, revision)

    def _bound(self, connection: sa.Connection, job: Definition) -> tuple[Definition, Schedule]:
        """The job with its schedule bound: to its name, and to the calendars as they are now."""
        assert job.schedule is not None
        try:
            found = calendars_of(connection, self._store.tables, job.schedule)
            schedule = job.schedule.bind(job.name, found)
        except InvalidSchedule as error:
            raise InvalidSchedule(f"job {job.name}: {error}") from None
        return replace(job, schedule=schedule), schedule

    def _replan(
        self,
        connection: sa.Connection,
        job: Definition,
        row: Row,
        theirs: Revision,
        now: datetime,
        revision: Revision,
    ) -> Plan:
        planned = readable(row.schedule)
        same = planned is not None and str(planned.last) == str(job.schedule)
        if revision.is_older(theirs):
            if same:
                return _plan_of(job, row, "kept")
            return replace(_plan_of(job, row, "outdated"), refused=str(job.schedule), planned_by=theirs)
        try:
            changes = {} if same or job.schedule is None else replanned(row, job.schedule, now)
        except InvalidSchedule as error:  # only this job's: its row stays as it is, and all others are planned
            plan = _plan_of(job, row, "refused")
            return replace(plan, refused=str(job.schedule), planned_by=theirs, cure=str(error))
        self._keep_distance(connection, job, changes)
        connection.execute(
            self._tasks.update()
            .where(self._tasks.c.task_name == job.name, self._tasks.c.task_instance == RECURRING)
            .values(priority=job.priority, plan=_document_of(job, revision, theirs), **changes)
        )
        if not changes:
            return _plan_of(job, row, "kept")
        return _plan_of(job, self._read(connection, job.name)[0], "changed")

    def _read(self, connection: sa.Connection, name: str) -> tuple[Row | None, Revision]:
        statement = (
            sa.select(self._tasks.c.plan, *self._store.dialect.row_columns)
            .where(self._tasks.c.task_name == name, self._tasks.c.task_instance == RECURRING)
            .with_for_update()
        )
        found = connection.execute(statement).first()
        if found is None:
            return None, Revision()
        return row_of(found[1:]), _revision_of(found[0])

    def _keep_distance(self, connection: sa.Connection, job: Definition, columns: dict[str, Any]) -> None:
        """No plan of a job brings two starts nearer to each other than its min_interval."""
        where = "parked_due" if columns.get("state") == State.PAUSED else "execution_time"
        if job.min_interval is None or where not in columns:
            return
        last = self._store.dialect.by_row.last_start(connection, job.name)
        if last is not None:
            columns[where] = max(columns[where], last + job.min_interval)

    def _insert(
        self, connection: sa.Connection, job: Definition, schedule: Schedule, now: datetime, revision: Revision
    ) -> bool:
        strict = {job.name} if job.gives_up else ()
        (newest,) = self._store.dialect.newest_decided(connection, [Key(job.name, RECURRING)], strict=strict)
        blank = Row(task_name=job.name, task_instance=RECURRING, execution_time=now, version=0, watermark=newest)
        columns = ahead(schedule, first_slot(blank, schedule, now))
        self._keep_distance(connection, job, columns)
        values = dict(
            task_name=job.name, task_instance=RECURRING, kind=Kind.PLAN, picked=False, version=to_micros(now),
            created_version=to_micros(now), **columns, watermark=newest,
            schedule=stored_text(schedule, job.name), priority=job.priority, plan=_document_of(job, revision),
        )  # fmt: skip
        return self._store.dialect.by_row.insert_new(connection, self._tasks, values, self._tasks.c.version)


def _plan_of(job: Definition, row: Row | None, change: str) -> Plan:
    text = row.schedule if row else None
    return Plan(job=job.name, change=change, schedule=text or str(job.schedule), next_slot=row.slot if row else None)


def _rows_to_plan(store: Store, names: Sequence[str]) -> sa.Select[Any]:
    """The rows of these jobs as ``_is_kept`` reads them, locked in the order of their keys, as settlements do."""
    tasks = store.tables.tasks
    wanted = ("task_name", "schedule", "slot", "priority", "plan")
    return (
        sa.select(*(tasks.c[name] for name in wanted), has_orphans(store.tables).label("orphaned"))
        .where(tasks.c.task_name.in_(names), tasks.c.task_instance == RECURRING)
        .order_by(*store.dialect.key_order)
        .with_for_update(of=tasks)
    )


def _is_kept(job: Definition, row: sa.RowMapping, ours: Revision) -> bool:
    """Whether planning would leave a row as it stands. Of one that goes by calendars, only planning knows."""
    if job.schedule is None or job.schedule.calendars or row["orphaned"]:
        return False
    planned = readable(row["schedule"])
    try:
        if planned is None or str(planned.last) != str(job.schedule.bind(job.name, {})):
            return False
    except InvalidSchedule:
        return False
    found = Declared.load(row["plan"])
    declared = (job.priority, job.fingerprint, tuple(sorted(job.runs_on)))
    return ours.is_older(_revision_of(row["plan"])) or (row["priority"], found.fingerprint, found.runs_on) == declared


def _revision_of(plan: Mapping[str, Any] | None) -> Revision:
    """The deploy that has planned a row."""
    found = Declared.load(plan)
    return Revision(text=found.revision, started=found.deployed)


def _document_of(job: Definition, revision: Revision, before: Revision | None = None) -> dict[str, Any]:
    """The document ``plan`` of a row: what its code declares and which deploy has planned it, without what is empty.

    A deploy with an id started when its first worker did: one that is restarted later must not look newer than
    the next deploy, whose workers start meanwhile.
    """
    again = before is not None and before.text is not None and before.text == revision.text
    started = before.started if before and again else revision.started
    return Declared(
        fingerprint=job.fingerprint, runs_on=tuple(sorted(job.runs_on)), revision=revision.text, deployed=started
    ).document()
