"""What people ask the tables: jobs, the ledger with its gaps, workers, overdue rows. Only
reads.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from itertools import islice
from typing import TypeAlias, TypeVar
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from slotwise.decide.ending import NEWER, UNREADABLE
from slotwise.errors import UnknownTask
from slotwise.model.records import RECURRING, Key
from slotwise.model.vocabulary import Kind, Origin, State
from slotwise.schedules.description import UTC, zone_of
from slotwise.store.operations.job_operations import Paused, all_paused
from slotwise.store.operations.transaction import AuditEntry, audit_entry
from slotwise.store.reading.task_counts import MOST_NAMES, names_in
from slotwise.store.reading.views import (
    UNDER_A_JOB,
    AttemptInfo,
    Health,
    JobInfo,
    SlotInfo,
    Unreadable,
    attempts_of,
    gap_info,
    job_info,
    last_loss,
    obstacle,
    paused_by,
    slot_info,
    waiting_info,
)
from slotwise.store.reading.worker_registry import WorkerInfo, tags_of, worker_infos
from slotwise.store.schema.rows import Unread, rows_apart, utc
from slotwise.store.schema.tables import (
    HAS_SLOT,
    MOST_HELD,
    OF_INSTANCES,
    is_detached,
    is_plan,
    is_task,
    of_plan,
    runs_on,
)
from slotwise.store.slots.store import Store

#: How long a job must have skipped slots at each start to be behind; how many due rows are
#: searched for such jobs, and how many of those jobs are returned.
A_MINUTE = timedelta(minutes=1)
_OLDEST = 1_000
_BEHIND = 20
#: Rows of one page of the ledger.
PAGE = 500

Line = TypeVar("Line")
#: A query for rows of a table.
Statement: TypeAlias = "sa.Select[tuple[object, ...]]"
#: The place of a line in a listing: by instant, a slot before a gap that ends with it, then by
#: instance.
_Place: TypeAlias = tuple[datetime, int, str]


class Reader:
    """Listings for people; needs no definitions and takes no locks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tasks = store.tables.tasks
        self._slots = store.tables.slots
        self._gaps = store.tables.gaps
        self._workers = store.tables.workers
        self._loss = last_loss(store.tables)

    def now(self) -> datetime:
        """Return the database's time."""
        return self._store.now()

    def zones(self, keys: Collection[tuple[str, str]]) -> dict[tuple[str, str], ZoneInfo]:
        """Return the zone of each of these jobs and instances that has a plan row: of its
        schedule, else UTC.
        """
        names, instances = (sorted({key[part] for key in keys}) for part in (0, 1))
        columns = (
            self._tasks.c.task_name,
            self._tasks.c.task_instance,
            self._tasks.c.schedule,
        )
        wanted = (
            self._plans()
            .with_only_columns(*columns)
            .where(columns[0].in_(names), columns[1].in_(instances))
        )
        rows = self._rows(wanted) if keys else ()
        return {
            (row["task_name"], row["task_instance"]): zone_of(row["schedule"])
            for row in rows
        }

    def common_zone(self) -> ZoneInfo:
        """Return the zone for times that belong to no job: the one zone besides UTC of the jobs
        due next, or UTC.

        The index of due slots finds them among millions of one-time tasks.
        """
        tasks = self._tasks
        waits = sa.select(tasks.c.schedule).where(
            ~tasks.c.picked, tasks.c.state.is_(None), sa.text(HAS_SLOT)
        )
        next_due = waits.order_by(tasks.c.execution_time).limit(PAGE)
        zones = {zone_of(row["schedule"]) for row in self._rows(next_due)} - {UTC}
        return zones.pop() if len(zones) == 1 else UTC

    def zone(self, name: str, instance: str = RECURRING) -> ZoneInfo:
        """Return the zone of a job, or of its instance; UTC without a plan row."""
        return self.zones([(name, instance)]).get((name, instance), UTC)

    def all_paused(self) -> Paused | None:
        """Return the pause of all; None if there is none."""
        with self._store.transaction() as connection:
            return all_paused(connection, self._store.tables)

    def jobs(self, *, after: str = "", limit: int | None = None) -> list[JobInfo]:
        """Return jobs that have a plan row, by name, from the one after ``after``; without
        ``limit``, all.
        """
        name = self._tasks.c.task_name
        wanted = self._plans().where(self._tasks.c.task_instance == RECURRING, name > after)
        return self._jobs(wanted.order_by(name).limit(limit))

    def job(self, name: str, instance: str = RECURRING) -> JobInfo | None:
        """Return a job, or one of its instances; None if it has no plan row."""
        found = self._jobs(
            self._plans().where(
                self._tasks.c.task_name == name, self._tasks.c.task_instance == instance
            )
        )
        return found[0] if found else None

    def _jobs(self, statement: Statement) -> list[JobInfo]:
        workers = self.workers()
        now = self.now()
        tasks = self._tasks
        orders = self._store.tables.controls
        key = (tasks.c.task_name, tasks.c.task_instance)
        is_pause = orders.c.command == "pause"
        wanted = statement.add_columns(orders.c.at, orders.c.author, orders.c.note)
        wanted = wanted.join_from(
            tasks, orders, (orders.c.id == tasks.c.control) & is_pause, isouter=True
        )
        with self._store.transaction() as connection:
            found = list(
                rows_apart(
                    connection, wanted, *key, read=lambda row: job_info(row, workers, now)
                )
            )
        return [
            JobInfo(job=one.key[0], id=one.key[1], state=State.UNREADABLE, reason=one.error)
            if isinstance(one, Unread)
            else one
            for one in found
        ]

    def instances(self, name: str, *, limit: int, after: str = "") -> list[JobInfo]:
        """Return recurring instances of a task, by id, from the one after ``after``."""
        id = self._tasks.c.task_instance
        wanted = self._plans().where(
            self._tasks.c.task_name == name, id != RECURRING, id > after
        )
        return self._jobs(wanted.order_by(id).limit(limit))

    def instance_counts(self, after: str = "", last: str | None = None) -> dict[str, int]:
        """Return the number of recurring instances of each task after ``after`` that has any, up
        to ``last``.
        """
        name = self._tasks.c.task_name
        bounds = [name > after, *([] if last is None else [name <= last])]
        return self._counts(name, self._tasks.c.task_instance != RECURRING, *bounds)

    def schedules(self) -> dict[str, int]:
        """Return each schedule in force, as text, with the number of its jobs and instances."""
        return self._counts(self._tasks.c.schedule)

    def _counts(
        self, column: sa.Column[str], *conditions: sa.ColumnElement[bool]
    ) -> dict[str, int]:
        counted = (
            self._plans()
            .with_only_columns(column, sa.func.count().label("count"))
            .where(*conditions)
        )
        return {
            row[column.name]: row["count"] for row in self._rows(counted.group_by(column))
        }

    def _plans(self) -> Statement:
        return sa.select(self._tasks).where(is_plan(self._tasks))

    def known(self, name: str, *, kind: str = "job") -> None:
        """Raise UnknownTask unless a row, the ledger or a gap has this name; ``kind`` is what the
        message calls it.
        """
        if self._is_known(name):
            return
        wanted = sa.select(self._tasks.c.task_name).distinct().limit(50)
        wanted = wanted.where(is_task(self._tasks)) if kind == "task" else wanted
        found = {row["task_name"] for row in self._rows(wanted)}
        names = sorted(found | self._without_rows() if kind == "task" else found)
        none = (
            "none is scheduled" if kind == "task" else "no worker has planned any job yet"
        )
        known = f"known are {', '.join(names)}" if names else none
        near = get_close_matches(name, names, n=1)
        cure = f"did you mean {near[0]!r}?" if near else known
        raise UnknownTask(f"no {kind} {name!r} in this database; {cure}")

    def _without_rows(self) -> set[str]:
        """Return names of tasks that live workers register, or that the ledger has."""
        with self._store.transaction() as connection:
            ended = set(islice(names_in(connection, self._slots.c.task_name), 50))
        found = ended.union(*(worker.tasks for worker in self.workers() if worker.live))
        return found - self.jobs_among(found)

    def known_instance(self, name: str, instance: str) -> None:
        """Raise UnknownTask unless a row, the ledger or a gap has this name and this instance."""
        self.known(name)
        if instance != RECURRING and not self._is_known(name, instance):
            raise UnknownTask(
                f"job {name!r} has no recurring instance {instance!r}; see: "
                f"slotwise jobs instances {name}"
            )

    def _is_known(self, name: str, instance: str | None = None) -> bool:
        """Whether a row, the ledger or a gap has it; of a name alone, also an operation, or a
        worker registers it.
        """
        tables = (self._tasks, self._slots, self._gaps)
        found = [
            _of(table, name, instance).with_only_columns(table.c.task_name)
            for table in tables
        ]
        controls = self._store.tables.controls
        found += (
            [sa.select(controls.c.task_name).where(controls.c.task_name == name)]
            if instance is None
            else []
        )
        is_listed = any(self._rows(one.limit(1)) for one in found)
        return is_listed or (
            instance is None
            and any(one.live and name in one.tasks for one in self.workers())
        )

    def workers(self) -> list[WorkerInfo]:
        """Return all workers that have signed in and not out, the newest first."""
        tasks = self._tasks
        workers = self._workers
        held = (
            sa.select(sa.func.count())
            .where(tasks.c.picked, tasks.c.picked_by == workers.c.worker)
            .scalar_subquery()
            .label("running")
        )
        with self._store.transaction() as connection:
            now = self._store.dialect.now(connection)
            return worker_infos(
                connection,
                sa.select(workers, held).order_by(workers.c.started.desc()),
                workers,
                now,
            )

    def stranded(self, names: Collection[str]) -> dict[str, str]:
        """Return those of these one-time tasks that no live worker takes, each with the reason."""
        workers = self.workers()
        jobs = self.jobs_among(names)
        found = {
            name: UNDER_A_JOB if name in jobs else obstacle(name, (), workers)
            for name in names
        }
        return {name: why for name, why in found.items() if why is not None}

    def jobs_among(self, names: Collection[str]) -> set[str]:
        """Return those of these names that have a plan row."""
        tasks = self._tasks
        mine = [
            tasks.c.task_instance == RECURRING,
            is_plan(tasks),
            self._store.dialect.among(tasks.c.task_name, names),
        ]
        return (
            {
                row["task_name"]
                for row in self._rows(sa.select(tasks.c.task_name).where(*mine))
            }
            if names
            else set()
        )

    def _unreadable(self, connection: sa.Connection) -> list[Unreadable]:
        """Count rows that cannot be read. Such a row keeps the slot, or the due time, that it
        had before.
        """
        tasks = self._tasks
        since = sa.func.min(
            sa.func.coalesce(tasks.c.parked_due, tasks.c.slot, tasks.c.execution_time)
        )
        dead = sa.func.coalesce(tasks.c.state, "") == State.DEAD
        newer = tasks.c.last_error.startswith(NEWER)
        error = sa.func.max(sa.func.substr(tasks.c.last_error, 1, 1000))
        found = connection.execute(
            sa.select(tasks.c.task_name, dead, newer, sa.func.count(), since, error)
            .where(~tasks.c.picked, newer | tasks.c.last_error.startswith(UNREADABLE))
            .group_by(tasks.c.task_name, dead, newer)
            .order_by(tasks.c.task_name, dead, newer)
            .limit(MOST_NAMES)
        )
        return [
            Unreadable(
                task=name,
                rows=rows,
                since=utc(first),
                error=error.removeprefix(UNREADABLE).removeprefix(NEWER),
                dead=is_dead,
                newer=bool(is_newer),
            )
            for name, is_dead, is_newer, rows, first, error in found
        ]

    def _behind(self, connection: sa.Connection, now: datetime) -> list[str]:
        """Return the jobs, of those that wait the longest, that have skipped slots at each start
        of the last minute.

        Their row is due for longer than the time from slot to slot. An outage has an end: then
        they start on time.
        """
        tasks = self._tasks
        slots = self._slots
        due = sa.select(tasks.c.task_name, tasks.c.task_instance, tasks.c.next_slot)
        due = due.where(
            ~tasks.c.picked,
            tasks.c.state.is_(None),
            sa.text(HAS_SLOT),
            tasks.c.execution_time <= now,
        )
        oldest = due.order_by(tasks.c.execution_time).limit(_OLDEST).subquery("oldest")

        def has_started(
            origin: Origin, after: datetime, before: datetime
        ) -> sa.ColumnElement[bool]:
            mine = (
                slots.c.task_name == oldest.c.task_name,
                slots.c.task_instance == oldest.c.task_instance,
            )
            within = slots.c.slot > after, slots.c.slot <= before, slots.c.origin == origin
            return sa.exists().where(*mine, *within, slots.c.started.is_not(None))

        since = now - A_MINUTE
        caught_up = (
            has_started(Origin.CATCH_UP, since, now),
            has_started(Origin.CATCH_UP, since - A_MINUTE, since),
        )
        late = (
            oldest.c.next_slot <= now,
            *caught_up,
            ~has_started(Origin.SCHEDULE, since, now),
        )
        return sorted(
            set(
                connection.scalars(
                    sa.select(oldest.c.task_name).where(*late).limit(_BEHIND)
                )
            )
        )

    def health(self, overdue_after: timedelta) -> Health:
        """Count rows that are overdue, past their lease, dead or unreadable; orphans apart, if any
        worker is alive.
        """
        tasks = self._tasks
        workers = self.workers()
        live = [worker for worker in workers if worker.live]
        known = {name for worker in live for name in worker.tasks}
        with self._store.transaction() as connection:
            now = self._store.dialect.now(connection)
            paused = all_paused(connection, self._store.tables)
            due = sa.and_(
                ~tasks.c.picked,
                tasks.c.state.is_(None),
                tasks.c.execution_time < now - overdue_after,
            )
            due = due if paused is None else sa.false()
            task = tasks.c.task_name
            oldest = sa.func.min(tasks.c.execution_time)
            late = sa.select(
                task, tasks.c.kind, runs_on(tasks), sa.func.count(), oldest
            ).where(due)
            late = late.group_by(sa.text("1, 2, 3")).order_by(task)
            # Others may have written rows of any number of names: those of live workers are read,
            # and some others.
            chosen = (
                late.where(self._store.dialect.among(task, known))
                if live
                else late.limit(MOST_NAMES)
            )
            waiting = connection.execute(chosen).all()
            total, oldest_due = connection.execute(
                sa.select(sa.func.count(), oldest).where(due)
            ).one()
            some = sa.select(task, sa.func.count()).where(due).group_by(task).order_by(task)
            found = (
                connection.execute(some.limit(len(known) + MOST_NAMES)).all()
                if live
                else ()
            )
            silent, undecoded = self._silent(connection, now)
            unreadable = self._unreadable(connection) + undecoded
            behind = [] if paused is not None else self._behind(connection, now)
            dead = (
                connection.scalar(
                    sa.select(sa.func.count()).where(tasks.c.state == State.DEAD)
                )
                or 0
            )
            calendars = self._store.tables.calendars.c
            named = connection.execute(
                sa.select(calendars.name, calendars.days).order_by(calendars.name)
            )
            listed = {row.name: row.days for row in named}
        if live:
            oldest_due = min((first for *_, first in waiting), default=None)
        overdue = sum(count for *_, count, _ in waiting) if live else total
        strangers = [(name, count) for name, count in found if name not in known]
        orphans = sum(count for _, count in strangers)
        if len(found) == len(known) + MOST_NAMES:
            orphans = max(total - overdue, orphans)
        lost = [name for name in silent if live and name not in known]
        passed_over = {name for worker in live for name in worker.passed_over}
        asking: dict[str, Sequence[str]] = {
            name: () for name, *_ in waiting if name in passed_over
        }
        asking |= {name: tags_of(tags) for name, _, tags, *_ in waiting if tags is not None}
        obstacles = {
            name: obstacle(name, tags, live) for name, tags in asking.items() if live
        }
        alone = {name for name, kind, *_ in waiting if kind == Kind.TASK}
        obstacles |= dict.fromkeys(self.jobs_among(alone), UNDER_A_JOB)
        return Health(
            now=utc(now),
            live_workers=len(live),
            gone_workers=sorted(
                one.worker
                for one in workers
                if not one.live and one.state != State.UNREADABLE
            ),
            overdue=overdue,
            oldest_due=utc(oldest_due),
            silent=len(silent) - len(lost),
            dead=dead,
            behind=behind,
            unreadable_workers=sorted(
                worker.worker for worker in workers if worker.state == State.UNREADABLE
            ),
            orphans=orphans + len(lost),
            orphan_tasks=sorted({*lost, *(name for name, _ in strangers)})[:MOST_NAMES],
            refused=sorted({name for worker in live for name in worker.refused}),
            unroutable={name: why for name, why in sorted(obstacles.items()) if why},
            unreadable=[one for one in unreadable if one.task in known or not live],
            paused=None if paused is None else paused_by(paused, self.common_zone()),
            ended_calendars=_ended(listed, utc(now) + timedelta(days=30)),
        )

    def _silent(
        self, connection: sa.Connection, now: datetime
    ) -> tuple[list[str], list[Unreadable]]:
        """Return the task of each row that is held past its lease, and the held rows that cannot
        be decoded.
        """
        tasks = self._tasks
        key = (tasks.c.task_name, tasks.c.task_instance)
        held = sa.select(*key, tasks.c.last_heartbeat, tasks.c.lease).where(tasks.c.picked)
        silent = list[str]()
        unreadable = list[Unreadable]()
        first = held.order_by(tasks.c.last_heartbeat).limit(MOST_HELD)
        for row in rows_apart(connection, first, *key, read=lambda row: row):
            if isinstance(row, Unread):
                unreadable.append(
                    Unreadable(
                        task=row.key[0], rows=1, since=None, error=row.error, dead=False
                    )
                )
            elif row["last_heartbeat"] is not None and row["lease"] is not None:
                silent += [row["task_name"]] * (row["last_heartbeat"] < now - row["lease"])
        return silent, unreadable

    def audit(
        self, job: str | None = None, limit: int | None = None
    ) -> Iterator[AuditEntry]:
        """Return the recorded operations, the newest first; with ``job``, those on it and those on
        all jobs.
        """
        table = self._store.tables.controls
        about = (
            []
            if job is None
            else [(table.c.task_name == job) | table.c.task_name.is_(None)]
        )

        def page(size: int, last: AuditEntry | None) -> list[AuditEntry]:
            older = [] if last is None else [table.c.id < last.number]
            statement = (
                sa.select(table)
                .where(*about, *older)
                .order_by(table.c.id.desc())
                .limit(size)
            )
            return [audit_entry(row) for row in self._rows(statement)]

        return _paged(limit, page)

    def standing(
        self,
        name: str,
        instance: str | None = None,
        *,
        limit: int | None = None,
        since: datetime | None = None,
    ) -> list[SlotInfo]:
        """Return slots that have not ended: those that wait (next slot, triggers, retries), then
        those that run.

        Each the latest first. A slot that waits for a retry is one line, with what the ledger says
        of the last attempt. Of more than ``limit``: the schedule's next, what runs, and what comes
        next; of paused ones, the first by instance; queued slots are last. ``since`` is the
        earliest instant.
        """
        with self._store.transaction() as connection:
            found = connection.execute(
                self._standing(name, instance, limit, since)
            ).mappings()
            each = {row["task_instance"]: row for row in found}.values()
            chosen = sorted(each, key=lambda row: _turn(row, instance or RECURRING))[:limit]
            rows = sorted(chosen, key=lambda row: (utc(row["slot"]), row["task_instance"]))
            keys = [
                (row["plan_instance"] or row["task_instance"], utc(row["slot"]))
                for row in rows
            ]
            begun = self._begun(connection, name, keys)
        waiting = []
        running = []
        for row, key in zip(reversed(rows), reversed(keys), strict=True):
            line = begun.get(key)
            if not row["picked"]:
                waiting.append(waiting_info(row, line))
            elif line is not None:
                running.append(slot_info(line))
        return waiting + running

    def _standing(
        self, name: str, instance: str | None, limit: int | None, since: datetime | None
    ) -> sa.CompoundSelect[tuple[object, ...]]:
        """Select slots that wait, run or are parked, each by an index: of 100,000 instances few
        are read.
        """
        tasks = self._tasks
        shown = [column for column in tasks.c if column.name not in ("task_data", "lease")]
        of_jobs = sa.select(*shown).where(
            tasks.c.task_name == name, tasks.c.slot.is_not(None), sa.text(HAS_SLOT)
        )
        if instance is not None:
            of_jobs = of_jobs.where(of_plan(tasks, instance))
        if since is not None:
            of_jobs = of_jobs.where(tasks.c.slot >= since)
        waiting = of_jobs.where(~tasks.c.picked, tasks.c.state.is_(None)).order_by(
            tasks.c.execution_time
        )
        running = of_jobs.where(tasks.c.picked).order_by(tasks.c.slot)
        parked = [
            of_jobs.where(~tasks.c.picked, tasks.c.state == state)
            for state in (State.PAUSED, State.QUEUED)
        ]
        own = of_jobs.where(tasks.c.task_instance == (instance or RECURRING))
        parts = [
            own,
            waiting,
            running,
            *(one.order_by(tasks.c.task_instance) for one in parked),
        ]
        return sa.union_all(*(sa.select(part.limit(limit).subquery()) for part in parts))

    def _begun(
        self, connection: sa.Connection, name: str, keys: Sequence[tuple[str, datetime]]
    ) -> dict[tuple[str, datetime], sa.RowMapping]:
        key = sa.tuple_(self._slots.c.task_instance, self._slots.c.slot)
        found = {}
        for start in range(0, len(keys), PAGE):
            these = keys[start : start + PAGE]
            wanted = sa.select(self._slots, *self._loss).where(
                self._slots.c.task_name == name, key.in_(these)
            )
            for line in connection.execute(wanted).mappings():
                found[line["task_instance"], utc(line["slot"])] = line
        return found

    def _stand(self) -> list[sa.ColumnElement[bool]]:
        """Conditions for a slot of the ledger that has a plan row or a detached row; an index
        finds either.
        """
        tasks = self._tasks
        slots = self._slots
        rows = sa.select(sa.literal(1)).where(
            tasks.c.task_name == slots.c.task_name,
            tasks.c.slot == slots.c.slot,
            tasks.c.state.is_distinct_from(State.DEAD),
        )
        own = rows.where(
            tasks.c.task_instance == slots.c.task_instance, ~is_detached(tasks)
        )
        return [
            sa.exists(own),
            sa.exists(rows.where(tasks.c.plan_instance == slots.c.task_instance)),
        ]

    def slots(
        self,
        name: str,
        instance: str | None = None,
        *,
        limit: int | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        ended: bool = False,
    ) -> Iterator[SlotInfo]:
        """Return ledger and gaps of a job, merged, the newest first; pages are read as needed.

        A gap is placed by its last slot. ``before`` continues a listing; ``ended`` leaves out what
        ``standing`` lists.
        """
        slots = self._slots
        gaps = self._gaps
        # An index orders a job's own slots, another those of its instances, and none both.
        every = [
            _of(slots, name, RECURRING),
            _of(slots, name, None).where(sa.text(OF_INSTANCES)),
        ]
        ledgers = every if instance is None else [_of(slots, name, instance)]
        if ended:
            ledgers = [
                ledger.where(*(~stands for stands in self._stand())) for ledger in ledgers
            ]
        sources = [
            (ledger.add_columns(*self._loss), slots.c.slot, 1, slot_info)
            for ledger in ledgers
        ]
        sources.append(
            (
                _of(gaps, name, instance).add_columns(self._run_since()),
                gaps.c.last_slot,
                0,
                gap_info,
            )
        )

        def lines(
            statement: Statement,
            column: sa.Column[datetime],
            kind: int,
            line: Callable[[sa.RowMapping], SlotInfo],
        ) -> Iterator[tuple[_Place, SlotInfo]]:
            statement = statement if since is None else statement.where(column >= since)
            statement = statement if before is None else statement.where(column < before)
            statement = statement.order_by(
                column.desc(), column.table.c.task_instance.desc()
            )

            def page(
                size: int, last: tuple[_Place, SlotInfo] | None
            ) -> list[tuple[_Place, SlotInfo]]:
                # Race: what is written between two pages is newer than the first one's end; it is
                # later, not missed.
                rows = self._rows(
                    (
                        statement if last is None else _after(statement, column, last[0])
                    ).limit(size)
                )
                return [
                    ((utc(row[column.name]), kind, row["task_instance"]), line(row))
                    for row in rows
                ]

            return _paged(limit, page)

        merged = heapq.merge(
            *(lines(*source) for source in sources), key=lambda line: line[0], reverse=True
        )
        return (line for _, line in islice(merged, limit))

    def slots_within(
        self, name: str, instance: str, start: datetime, end: datetime
    ) -> list[datetime]:
        """Return the slots of an instance from ``start`` to before ``end`` that are in the ledger
        or in a row.
        """
        found = set()
        slots = self._slots
        tasks = self._tasks
        for table, family in (
            (slots, slots.c.task_instance == instance),
            (tasks, of_plan(tasks, instance)),
        ):
            within = [
                table.c.task_name == name,
                family,
                table.c.slot >= start,
                table.c.slot < end,
            ]
            found |= {
                utc(row["slot"])
                for row in self._rows(sa.select(table.c.slot).where(*within))
            }
        return sorted(found)

    def slot(self, name: str, slot: datetime, instance: str = RECURRING) -> SlotInfo | None:
        """Return one slot of a job, or of an instance, from the ledger."""
        wanted = _of(self._slots, name, instance).add_columns(*self._loss)
        found = self._rows(wanted.where(self._slots.c.slot == slot))
        return slot_info(found[0]) if found else None

    def attempts(
        self, name: str, instance: str = RECURRING, slot: datetime | None = None
    ) -> list[AttemptInfo]:
        """Return the attempts of a slot, the oldest first; without one, those of the one-time
        tasks with this id.
        """
        ended = (
            _of(self._slots, name, instance).order_by(self._slots.c.slot.desc()).limit(1)
        )
        last = self._rows(
            ended if slot is None else ended.where(self._slots.c.slot == slot)
        )
        with self._store.transaction() as connection:
            entry = slot_info(last[0]) if last else None
            return attempts_of(
                connection, self._store.tables, Key(name, instance), slot, entry
            )

    def _run_since(self) -> sa.ColumnElement[int]:
        """The number of slots of a gap that a backfill has run since; triggers are not among
        them.
        """
        slots = self._slots
        gaps = self._gaps
        of_gap = (slots.c.task_name == gaps.c.task_name) & (
            slots.c.task_instance == gaps.c.task_instance
        )
        within = slots.c.slot.between(gaps.c.first_slot, gaps.c.last_slot) & (
            slots.c.origin == Origin.BACKFILL
        )
        return (
            sa.select(sa.func.count())
            .where(of_gap, within)
            .scalar_subquery()
            .label("run_since")
        )

    def _rows(self, statement: sa.Executable) -> Sequence[sa.RowMapping]:
        with self._store.transaction() as connection:
            return connection.execute(statement).mappings().all()


def _turn(row: sa.RowMapping, own: str) -> tuple[bool, bool, bool, datetime, str]:
    """The sort key of slots that have not ended; ``own`` is the instance of the requested plan."""
    is_own = row["task_instance"] == own
    is_queued = row["state"] == State.QUEUED
    return not is_own, not row["picked"], is_queued, utc(row["slot"]), row["task_instance"]


def _ended(listed: Mapping[str, str], by: datetime) -> dict[str, int]:
    """Return the last year of each calendar that lists no days of this instant's year:
    ``2026:0101,0106 2027:0101``.
    """
    years = {
        name: days.split()[-1].partition(":")[0] for name, days in listed.items() if days
    }
    return {
        name: int(year)
        for name, year in years.items()
        if year.isdecimal() and int(year) < by.year
    }


def _paged(
    limit: int | None, page: Callable[[int, Line | None], list[Line]]
) -> Iterator[Line]:
    """Yield up to ``limit`` lines; ``page`` returns the next ones, after the last line of the page
    before.
    """
    last: Line | None = None
    while limit is None or limit > 0:
        size = PAGE if limit is None else min(limit, PAGE)
        found = page(size, last)
        yield from found
        if len(found) < size:
            return
        last = found[-1]
        limit = None if limit is None else limit - len(found)


def _of(table: sa.Table, name: str, instance: str | None) -> Statement:
    """Select from ledger or gaps what concerns a task, or one instance of it."""
    found = sa.select(table).where(table.c.task_name == name)
    return found if instance is None else found.where(table.c.task_instance == instance)


def _after(statement: Statement, column: sa.Column[datetime], place: _Place) -> Statement:
    """Select what comes after a place in a listing, the newest first."""
    instant, _, instance = place
    same = (column == instant) & (column.table.c.task_instance < instance)
    # The first condition is implied by the second. An index starts at it, so a deep page reads no
    # earlier rows.
    return statement.where(column <= instant, (column < instant) | same)
