"""Recurring instances of a task, each with a schedule and data of its own: made, changed and
deleted at run time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from slotwise.decide.claim import Advance
from slotwise.decide.pause import asleep
from slotwise.errors import InstanceExists
from slotwise.model.records import RECURRING, Gap, Key, Row, to_micros
from slotwise.model.vocabulary import PauseScope, RowState
from slotwise.schedules import Disabled, Schedule, spread_out
from slotwise.schedules.text import readable
from slotwise.store.dialects.conditions import of_key
from slotwise.store.dialects.port import Transaction
from slotwise.store.operations import job_operations
from slotwise.store.operations.transaction import Author, Operation, is_plan_of
from slotwise.store.planning.calendars import Known, calendars_of
from slotwise.store.planning.plan_rows import born, lock, replanned, write
from slotwise.store.planning.renames import follow
from slotwise.store.slots.ledger import end_orphans
from slotwise.store.slots.store import Store

logger = logging.getLogger(__name__)

SUPERSEDED = (
    "task %s, id %s: %d slots from %s to %s are skipped (superseded): their schedule was changed "
    "twice before they could run"
)
#: Applications sign no operation: they make and delete as many instances as they like.
NOBODY = Author("the application")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """What one instance shall be."""

    task: str
    id: str
    schedule: Schedule
    data: bytes | None
    priority: int
    #: What filters of operations compare; only instances of a scope have tags.
    tags: Sequence[str] = ()

    @property
    def key(self) -> Key:
        return Key(self.task, self.id)


class Instances:
    """Writes plan rows of instances in the caller's transaction.

    Race: a concurrent pause, resume or deletion of the job would not see a new row. So each method
    first shares the job's latch, for which such an operation waits.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tasks = store.tables.tasks
        self._alike: dict[str, _Newborn] = {}

    def put(self, connection: sa.Connection, wanted: Instance) -> datetime | None:
        """Create or change the instance; return its next slot. Raise InvalidSchedule for a missing
        calendar.

        An ``H`` is derived from task and id. A changed schedule applies as after a deploy. If the
        old one cannot be read, the new one starts from now, or from the newest decided slot if
        that is later.
        """
        wanted = self._followed(connection, wanted)
        self._store.dialect.latch(connection, wanted.task, shared=True)
        schedule = self.bound(connection, wanted, {})
        row, _ = lock(connection, self._store, wanted.key)
        # Race: only under the row's lock is no slot claimed that is younger than the activation.
        at = self._store.at(connection)
        if row is not None:
            return self.change(at, row, wanted, schedule)
        slot, is_added = self._insert(at, wanted, schedule)
        # Race: another transaction was first.
        return slot if is_added else self.put(connection, wanted)

    def _followed(self, connection: sa.Connection, wanted: Instance) -> Instance:
        """Return the instance under the name that its row has, if the task was renamed."""
        aliases = self._store.definitions[wanted.task].aliases
        if not aliases:
            return wanted
        operation = Operation.within(connection, self._store, NOBODY)
        return replace(wanted, task=follow(operation, wanted.key, aliases).task_name)

    def bound(
        self,
        connection: sa.Connection,
        wanted: Instance,
        known: Known,
        *,
        lock: bool = True,
    ) -> Schedule:
        """Return the schedule with its calendars, spread out as the task declares it. ``known``
        keeps the calendars that this transaction has read.
        """
        names = frozenset(wanted.schedule.calendars)
        if names not in known:
            known[names] = calendars_of(
                connection, self._store.tables, wanted.schedule, lock=lock
            )
        name = f"{wanted.task}/{wanted.id}"
        schedule = wanted.schedule.bind(name, known[names])
        spread = self._store.definitions[wanted.task].spread
        if spread is None or schedule.from_end or isinstance(schedule, Disabled):
            return schedule
        return spread_out(schedule, name, spread)

    def remove(self, connection: sa.Connection, task: str, id: str) -> bool:
        """Delete the instance; False if there is none. Waiting slots end; running ones finish; the
        history stays.
        """
        name, *former = self._store.names_of(task)
        # Race: rows of former names first, as where they follow.
        found = [self._remove(connection, one, id) for one in (*former, name)]
        return any(found)

    def _remove(self, connection: sa.Connection, task: str, id: str) -> bool:
        self._store.dialect.latch(connection, task, shared=True)
        operation = Operation.within(connection, self._store, NOBODY)
        rows = operation.family(task, id)
        if not any(is_plan_of(row, id) for row in rows):
            return False
        job_operations.end(operation, rows)
        return True

    def change(
        self, at: Transaction, row: Row, wanted: Instance, schedule: Schedule
    ) -> datetime | None:
        """Change a locked row; return its next slot."""
        if not row.is_plan:
            raise InstanceExists(
                f"task {wanted.task!r} has a one-time instance with id "
                f"{wanted.id!r}; choose another id, or cancel that"
            )
        same = has_schedule(row.schedule, schedule)
        changes = Advance(row={}) if same else replanned(row, schedule, at.now)
        columns = changes.row | self._changed(at, row, wanted)
        if columns:
            write(at, row, replace(changes, row=columns))
        if not same:
            self._remember(at, row, schedule)
        _warn_of_superseded(wanted, changes.gaps)
        found: datetime | None = columns.get("slot", row.slot)
        return found

    def _changed(
        self, at: Transaction, row: Row, wanted: Instance
    ) -> dict[str, object]:
        """Return the columns beside the schedule that change."""
        told = {"task_data": wanted.data, "priority": wanted.priority}
        columns: dict[str, object] = {
            name: value for name, value in told.items() if getattr(row, name) != value
        }
        if row.state == RowState.DELETED:
            is_paused = self._known(at, wanted)[1].is_paused
            columns["state"] = RowState.PAUSED if is_paused else None
        return columns

    def _remember(self, at: Transaction, row: Row, schedule: Schedule) -> None:
        """Write a changed schedule into the history of deploys."""
        schedules = {row.key: (row.schedule, str(schedule))}
        self._store.history.deployed(at, schedules, NOBODY.name)

    def _insert(
        self, at: Transaction, wanted: Instance, schedule: Schedule
    ) -> tuple[datetime | None, bool]:
        has_history, job = self._known(at, wanted)
        newest = self._newest(at, wanted) if has_history else None
        columns = born(wanted.key, schedule, newest, at.now)
        columns |= {"task_data": wanted.data, "priority": wanted.priority}
        columns |= self._of_job(wanted.task, columns, job)
        is_added = at.dialect.insert_new(at.connection, self._tasks, columns)
        return columns["slot"], is_added

    def insert_all(
        self, at: Transaction, wanted: Sequence[Instance], known: Known
    ) -> Sequence[Instance]:
        """Insert the instances of a task that have neither a row nor a history; return those that
        are left to ``put``.

        Race: another transaction inserts some of them first. Then all are left.
        """
        if not wanted:
            return []
        task = wanted[0].task
        keys = [one.key for one in wanted]
        newest = at.dialect.newest_decided(at.connection, keys, strict={task})
        decided = dict(zip(keys, newest, strict=True))
        new = [one for one in wanted if decided[one.key] is None]
        if new:
            rows = self._new_rows(at, new, known)
            added = at.dialect.insert_missing(at.connection, self._tasks, rows)
            if len(added) < len(rows):
                return wanted
        return [one for one in wanted if decided[one.key] is not None]

    def _new_rows(
        self, at: Transaction, wanted: Sequence[Instance], known: Known
    ) -> Sequence[Mapping[str, object]]:
        """Return the rows of instances without a history."""
        _, job = self._known(at, wanted[0])
        rows = []
        for one in wanted:
            schedule = self.bound(at.connection, one, known)
            columns = self._first_times(at, one, schedule)
            own = {"task_data": one.data, "priority": one.priority}
            of_job = self._of_job(one.task, columns, job)
            rows.append(columns | one.key._asdict() | own | of_job)
        return rows

    def _first_times(
        self, at: Transaction, wanted: Instance, schedule: Schedule
    ) -> dict[str, object]:
        """Return the columns of a new row; the times of a schedule are computed once, until its
        first slot has come.
        """
        text = str(schedule)
        known = self._alike.get(text)
        if known is None or not known.is_right(at.now):
            columns = born(wanted.key, schedule, None, at.now)
            known = _Newborn(at.now, columns, bool(schedule.calendars))
            self._alike[text] = known
        begun = to_micros(at.now)
        return dict(known.columns) | {"version": begun, "created_version": begun}

    def _of_job(
        self, task: str, columns: Mapping[str, object], job: _JobRow
    ) -> dict[str, object]:
        """Return what a new row has from its job: it sleeps with it, and runs where it runs."""
        changes = dict[str, object]()
        if job.is_paused:
            due = columns["execution_time"]
            assert isinstance(due, datetime)
            changes = asleep(due) | {"control": job.control}
        if tags := self._store.definitions[task].runs_on:
            changes["plan"] = {"runs_on": sorted(tags)}
        return changes

    def _newest(self, at: Transaction, wanted: Instance) -> datetime | None:
        """Return the newest slot that is known, once what stands in no row has ended."""
        end_orphans(at, wanted.key)
        strict = {wanted.task} if self._store.definitions[wanted.task].gives_up else ()
        (newest,) = at.dialect.newest_decided(
            at.connection, [wanted.key], strict=strict
        )
        return newest

    def _known(self, at: Transaction, wanted: Instance) -> tuple[bool, _JobRow]:
        """Return whether the id has a history, and how its job's own row is: most have none and
        are not paused.
        """
        tables = self._store.tables
        own = self._tasks.alias("own").c
        of_job = of_key(own, Key(wanted.task, RECURRING))
        history = [
            sa.exists().where(*of_key(rows, wanted.key))
            for rows in (tables.slots.c, tables.gaps.c)
        ]
        state, control = (
            sa.select(column).where(*of_job).scalar_subquery()
            for column in (own.state, own.control)
        )
        # A task with instances has no row of its own.
        pauses = tables.pauses.c
        by_name_alone = pauses.scope.in_((PauseScope.JOB, PauseScope.TASKS))
        named = pauses.task_name == wanted.task, by_name_alone
        by_name = sa.exists().where(*named)
        known = sa.select(sa.or_(*history), state, control, by_name)
        found = at.connection.execute(known).one()
        is_paused = found[1] == RowState.PAUSED or bool(found[3])
        return bool(found[0]), _JobRow(is_paused, found[2])


class _Newborn(NamedTuple):
    """The columns of a row that was new at an instant, for all with the same schedule."""

    at: datetime
    columns: Mapping[str, object]
    has_calendars: bool

    def is_right(self, now: datetime) -> bool:
        """Whether a row has the same columns that is new now: a calendar may be another in the
        next transaction.
        """
        slot = self.columns["slot"]
        is_to_come = isinstance(slot, datetime) and self.at <= now < slot
        return now == self.at or (is_to_come and not self.has_calendars)


class _JobRow(NamedTuple):
    """Whether a job's own row is paused, and by which operation."""

    is_paused: bool
    control: int | None


def _warn_of_superseded(wanted: Instance, gaps: Sequence[Gap]) -> None:
    for gap in gaps:
        logger.warning(
            SUPERSEDED, wanted.task, wanted.id, gap.count, gap.first, gap.last
        )


def has_schedule(text: str | None, schedule: Schedule) -> bool:
    """Whether this is the last schedule in the text of a row."""
    wanted = str(schedule)
    if text == wanted:
        return True
    planned = readable(text)
    return planned is not None and str(planned.last) == wanted
