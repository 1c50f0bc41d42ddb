"""Statements by key and version that are right in every database, with any number of writers.

They write rows that their transaction has locked or claimed, and check the count of rows; or they
read without a lock. A dialect inherits them from its base, and may replace each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

import sqlalchemy as sa

from slotwise.decide.claim import is_weighed, of_gap, without
from slotwise.decide.ending import UNREADABLE, UNREADABLE_PAUSE
from slotwise.model import records
from slotwise.model.clock import Clock
from slotwise.model.records import EARLIEST, FOREVER, Claim, Fence, Gap, Key, Row
from slotwise.model.vocabulary import (
    PLANNED,
    Kind,
    Origin,
    Outcome,
    Reason,
    Release,
    RowState,
)
from slotwise.schedules.text import readable
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.conditions import Conditions, of_key
from slotwise.store.dialects.port import ClaimRequest, NewRow, Reading
from slotwise.store.dialects.task_statements import TaskStatements
from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.rows import (
    ADDED_COLUMNS,
    HOLD_COLUMNS,
    LAST_VERSION,
    LONGEST_LEASE,
    ROW_COLUMNS,
    Change,
    expect,
    row_of,
    stored,
    utc,
)
from slotwise.store.schema.tables import HAS_SLOT, IS_TASK, MOST_HELD, RANK, Tables

Values: TypeAlias = dict[str, object]
Expression: TypeAlias = sa.ColumnElement[Any]

#: What a row is without its holder.
RELEASED: Values = dict.fromkeys(
    ("picked_by", "last_heartbeat", "lease", "cancel_requested", "wanted_due", "marked")
)
RELEASED["picked"] = False


class ByKey(ABC):
    """What all bases of a dialect share."""

    name: ClassVar[str]
    has_fast_finish: ClassVar[bool] = False
    is_one_statement: ClassVar[bool] = False

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self.tables = tables
        self.clock = clock
        self.conditions = Conditions(tables)
        tasks = tables.tasks
        self.row_columns = [tasks.c[name] for name in ROW_COLUMNS]
        lease = tasks.c.lease  # one that no driver can decode must not stop heartbeats
        is_lease = lease.between(
            sa.literal(timedelta(0), lease.type), sa.literal(LONGEST_LEASE, lease.type)
        )
        held = {"lease": sa.case((is_lease, lease)).label("lease")}
        self.hold_columns = [held.get(name, tasks.c[name]) for name in HOLD_COLUMNS]
        #: The key in the order in which rows are locked, which is the order in which Python sorts.
        self.key_order: tuple[Any, Any] = (tasks.c.task_name, tasks.c.task_instance)

    @abstractmethod
    def task_statements(self, wake: timedelta | None) -> TaskStatements:
        """As `Dialect.task_statements`."""

    @abstractmethod
    def now(self, connection: Joinable) -> datetime:
        """As `Dialect.now`."""

    @abstractmethod
    def reading(self, statement: sa.Update | sa.Delete, *columns: Expression) -> Reading:
        """As `Dialect.reading`."""

    @abstractmethod
    def locked(self, connection: Joinable, found: sa.Select[Any]) -> sa.ColumnElement[bool]:
        """As `Dialect.locked`."""

    @abstractmethod
    def insert_new(
        self, connection: sa.Connection, table: sa.Table, values: Mapping[str, object]
    ) -> bool:
        """As `Dialect.insert_new`."""

    @abstractmethod
    def upsert(
        self,
        connection: Joinable,
        table: sa.Table,
        values: Mapping[str, object],
        again: Callable[[NewRow], Mapping[str, object]],
        where: Callable[[NewRow], sa.ColumnElement[bool]] | None = None,
    ) -> bool:
        """As `Dialect.upsert`."""

    def ago(
        self, connection: Joinable, span: timedelta = timedelta(0)
    ) -> sa.ColumnElement[datetime]:
        return sa.literal(self.now(connection) - span, Instant)

    def _shares(
        self, connection: Joinable, claim: Claim, *, key_only: bool = False
    ) -> bool:
        """Read the slot of a claim, or a task's row, under a shared lock; return whether it is
        held.

        ``key_only``: of a task's row only the key is locked, where the database can do that.
        """
        tasks = self.tables.tasks
        slots = self.tables.slots
        if claim.row.ledger_key is None:
            mine = self.conditions.under(claim.row, claim.holder)
            held = sa.select(tasks.c.version).where(*mine)
            held = held.with_for_update(read=True, key_share=key_only)
        else:
            mine = [*self.conditions.entry_of(claim), slots.c.outcome == Outcome.RUNNING]
            held = sa.select(slots.c.token).where(*mine).with_for_update(read=True)
        return connection.execute(held).fetchone() is not None

    def due_keys(
        self, connection: sa.Connection, order: ClaimRequest, kind: str = HAS_SLOT
    ) -> list[Key]:
        """Return the rows that a claim would take."""
        key = (self.tables.tasks.c.task_name, self.tables.tasks.c.task_instance)
        lost, fresh = self._due(order, self.now(connection), kind)
        found = [
            *connection.execute(lost.with_only_columns(*key)),
            *connection.execute(fresh.with_only_columns(*key)),
        ]
        return [Key(*one) for one in found][: order.limit]

    def _due(
        self, order: ClaimRequest, now: datetime, kind: str
    ) -> tuple[sa.Select[Any], sa.Select[Any]]:
        """Return the statements that find what a claim takes: rows of dead holders, and others."""
        tasks = self.tables.tasks
        is_one = order.instance is not None
        due = sa.select(*self.row_columns)
        due = due.where(*self.conditions.waiting(now), tasks.c.task_name.in_(order.names))
        if is_one:
            due = due.where(tasks.c.task_instance == order.instance)
        else:
            due = due.where(self.conditions.not_all_paused())
        oldest = (tasks.c.execution_time, tasks.c.task_name, tasks.c.task_instance)
        lost = due.where(tasks.c.lost_count > 0).order_by(*oldest).limit(order.lost)
        fresh = due.where(tasks.c.lost_count == 0, sa.true() if is_one else sa.text(kind))
        for one in order.ranges or ():
            if one.since is not None:
                behind = (tasks.c.task_name == one.task_name) & (
                    tasks.c.execution_time < one.since
                )
                ranks = sa.text(f"{RANK} BETWEEN {one.first} AND {one.last}")
                fresh = fresh.where(~(behind & ranks))
        if order.most:
            fresh = fresh.where(self._within_most(order.most, now))
        ranked = fresh.order_by(*self._rank(order.names, kind), *oldest)
        return lost, ranked.limit(order.limit)

    def _within_most(self, most: Mapping[str, int], now: datetime) -> Expression:
        """Whether a row is among the first so many due rows of its task, or its task may have
        any.
        """
        tasks = self.tables.tasks
        place = sa.func.row_number().over(
            partition_by=tasks.c.task_name,
            order_by=[sa.literal_column(RANK), tasks.c.execution_time],
        )
        due = sa.select(tasks.c.task_name, tasks.c.task_instance, place.label("place"))
        due = due.where(*self.conditions.waiting(now), tasks.c.task_name.in_(most))
        due = due.where(sa.text(IS_TASK), tasks.c.lost_count == 0)
        found = due.subquery("found")
        first = sa.select(found.c.task_name, found.c.task_instance).where(
            found.c.place <= sa.case(dict(most), value=found.c.task_name)
        )
        key = sa.tuple_(tasks.c.task_name, tasks.c.task_instance)
        return tasks.c.task_name.not_in(most) | key.in_(first)

    def _rank(self, names: Sequence[str], kind: str) -> list[Expression]:
        """The order of claims: the highest priority first; one-time tasks then name by name, as
        given.
        """
        rank: list[Expression] = [sa.literal_column(RANK)]
        places = {name: place for place, name in enumerate(names)}
        return (
            [*rank, sa.case(places, value=self.tables.tasks.c.task_name)]
            if kind == IS_TASK
            else rank
        )

    def undo_entries(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        """Restore the ledger to its state before these claims entered their rows' slots, which
        never began.

        An entry of such a claim alone is deleted. An entry that stays gets the token of the
        waiting row. Race: a mark of this claim that arrives late then finds nothing.
        """
        entered = [
            {"name": key[0], "instance": key[1], "at": key[2], "its": row.version}
            for row in rows
            if (key := row.ledger_key)
        ]
        if not entered:
            return
        slots = self.tables.slots
        places = {
            "task_name": "name",
            "task_instance": "instance",
            "slot": "at",
            "token": "its",
        }
        mine = [
            slots.c[column] == sa.bindparam(name) for column, name in places.items()
        ] + [slots.c.finished.is_(None)]
        alone = sa.and_(slots.c.attempts <= 1, slots.c.lost == 0, slots.c.aborted == 0)
        before = {
            "attempts": slots.c.attempts - 1,
            "started": slots.c.started_before,
            "token": slots.c.token + 1,
        }
        connection.execute(
            slots.update().where(*mine, ~alone).values(outcome=Outcome.CLAIMED, **before),
            entered,
        )
        connection.execute(slots.delete().where(*mine, alone), entered)

    def still_held(self, connection: sa.Connection, claims: Sequence[Claim]) -> set[Fence]:
        """Read, without a lock, which of these claims of one holder still hold their rows."""
        fence = (
            self.tables.tasks.c.task_name,
            self.tables.tasks.c.task_instance,
            self.tables.tasks.c.version,
        )
        asked = [(*claim.key, claim.token) for claim in claims]
        mine = [
            self.tables.tasks.c.picked_by == claims[0].holder,
            self.tables.tasks.c.picked,
            sa.tuple_(*fence).in_(asked),
        ]
        found = connection.execute(sa.select(*fence).where(*mine))
        return {Fence(Key(name, instance), version) for name, instance, version in found}

    def release(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        """As ``Dialect.release``, also for rows that this transaction has claimed."""
        tasks = self.tables.tasks
        count = 0
        version = least(self.tables.tasks.c.version, LAST_VERSION + 1) + 1
        for change in changes:
            row = change.held.row
            columns = change.transition.row
            write: sa.Delete | sa.Update = tasks.delete()
            if columns is not None:
                write = tasks.update().values(
                    **stored(row, columns), **RELEASED, version=version
                )
            count += connection.execute(
                write.where(*self.conditions.under(row, row.picked_by))
            ).rowcount
        expect(count, len(changes), changes[0].held.row)
        self.record(connection, changes)

    def record(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        slots = self.tables.slots
        recorded = [
            (change, one) for change in changes if (one := change.transition.record)
        ]
        self.undo_entries(
            connection, [change.held.row for change, record in recorded if record.forget]
        )
        for change, record in recorded:
            row = change.held.row
            values = change.recorded
            if row.ledger_key is None or record.forget:
                continue
            values |= {name: slots.c[name] + values[name] for name in ADDED_COLUMNS}
            if change.never_began:
                values["started"] = slots.c.started_before
            if change.never_began and not record.final:
                values["token"] = slots.c.token + 1  # see undo_entries
            connection.execute(
                slots.update().where(*self.conditions.open_entry(row)).values(values)
            )

    def close_open_slots(
        self, connection: sa.Connection, row: Row, gap: Gap, now: datetime
    ) -> list[Gap]:
        """End open slots of the gap that another claim left behind, because the queue was restored
        alone.

        A slot that never began is skipped, not lost. Return the gap without them, in parts: they
        have their own rows.
        """
        slots = self.tables.slots
        outcome = sa.case(
            (slots.c.started.is_(None), Outcome.SKIPPED.value), else_=Outcome.LOST.value
        )
        ended = (
            slots.update()
            .where(*of_key(slots, row.plan_key))
            .where(
                slots.c.slot >= gap.first,
                slots.c.slot <= gap.last,
                slots.c.finished.is_(None),
            )
            .where((slots.c.token != row.version) | (slots.c.worker != row.picked_by))
            .where(slots.c.origin.in_(PLANNED))
            .values(outcome=outcome, reason=gap.reason, finished=now)
        )
        closed = [slot for (slot,) in self.reading(ended, slots.c.slot)(connection)]
        schedule = readable(row.schedule) if closed else None
        holes = [(slot, slot) for slot in sorted(map(utc, closed))]
        return (
            [gap] if schedule is None else list(without(of_gap(schedule, gap), gap, holes))
        )

    def quarantine(self, connection: sa.Connection, key: Key, error: str) -> None:
        """Postpone a waiting row that no claim can take, or end it; its ``last_error`` says
        why.
        """
        mine = [*of_key(self.tables.tasks, key), *self.conditions.waiting()]
        connection.execute(
            self.tables.tasks.update()
            .where(*mine)
            .values(**self._quarantined(connection, error))
        )

    def _quarantined(self, connection: sa.Connection, error: str) -> Values:
        """A job's row is due again in a minute: an error never ends a job. A task's row is dead,
        and stays.
        """
        tasks = self.tables.tasks
        goes_on = tasks.c.kind != Kind.TASK
        is_finite = tasks.c.execution_time.between(
            EARLIEST, FOREVER
        )  # it may not be in a table of db-scheduler's
        again = sa.literal(
            self.now(connection) + UNREADABLE_PAUSE, tasks.c.execution_time.type
        )
        return {
            "state": sa.case((goes_on, tasks.c.state), else_=RowState.DEAD.value),
            "parked_due": sa.case(
                (goes_on | ~is_finite, sa.null()), else_=tasks.c.execution_time
            ),
            "execution_time": sa.case(
                (goes_on, again), else_=sa.literal(FOREVER, tasks.c.execution_time.type)
            ),
            "last_error": f"{UNREADABLE}{error}".replace("\0", "\\0"),
        }

    def quarantine_held(
        self,
        connection: sa.Connection,
        claim: Claim,
        outcome: records.AttemptOutcome,
        error: str,
    ) -> str | None:
        """As ``quarantine``, for a held row, under its claim's fence; return its state, None if
        the claim was lost.

        The ledger gets the handler's outcome. Without one, the next claim finds an orphan there.
        """
        tasks = self.tables.tasks
        row = claim.row
        mine = self.conditions.held(claim)
        if isinstance(outcome, records.Died):
            mine.append(tasks.c.last_heartbeat.is_not_distinct_from(row.last_heartbeat))
        quarantined = self._quarantined(connection, error) | RELEASED
        statement = (
            tasks.update()
            .where(*mine)
            .values(**quarantined, version=min(row.version, LAST_VERSION + 1) + 1)
        )
        found = next(iter(self.reading(statement, tasks.c.state)(connection)), None)
        is_final = isinstance(
            outcome, records.Succeeded | records.Failed | records.Cancelled
        ) and not getattr(outcome, "promised", False)
        if found is not None and row.ledger_key is not None and is_final:
            ended = self.tables.slots.update().where(*self.conditions.open_entry(row))
            ended = ended.values(
                outcome=outcome.name,
                reason=Reason.UNREADABLE,
                finished=self.now(connection),
            )
            connection.execute(ended)
        return None if found is None else found[0] or Release.POSTPONED

    def due_names(
        self, connection: sa.Connection, limit: int, since: datetime | None
    ) -> Sequence[Sequence[Any]]:
        """Return name, priority and due time of up to ``limit`` due slots, oldest first, and of
        rows of dead holders.

        Slots that are due before ``since`` may be left out.
        """
        tasks = self.tables.tasks
        due = sa.select(
            tasks.c.task_name,
            sa.func.coalesce(tasks.c.priority, 50),
            tasks.c.execution_time,
        )
        due = (
            due.where(*self.conditions.waiting(self.now(connection)))
            .order_by(tasks.c.execution_time)
            .limit(limit)
        )
        kinds = (sa.text(HAS_SLOT), tasks.c.lost_count > 0)
        return [row for kind in kinds for row in connection.execute(due.where(kind))]

    def first_slots(
        self, connection: sa.Connection, limit: int, *, lost: int, since: datetime | None
    ) -> list[tuple[str, timedelta]]:
        """Return name and time until due of the first ``limit`` waiting slots, and of as many rows
        of dead holders.

        None of the latter if ``lost`` is 0. Slots that are due before ``since`` are left out.
        Return none at all where a look with many names is no dearer than one without.
        """
        return []

    def next_due(
        self,
        connection: sa.Connection,
        names: Sequence[str],
        tasks: Sequence[str],
        *,
        lost: int = 1,
        since: datetime | None = None,
        no_slots: bool = False,
    ) -> tuple[timedelta | None, datetime | None]:
        """Return the time until the next waiting slot of ``names`` or task of ``tasks`` is due;
        None: nothing waits.

        ``lost`` = 0: without the rows whose holder has died before; ``no_slots``: without other
        slots. Without ``since``, return also a value for it, if many due slots of other names lie
        before those of ``names``: the due time of the first, or now.
        """
        rows = self.tables.tasks
        now = self.now(connection)
        fresh = rows.c.lost_count == 0
        kinds = [(names, sa.text(HAS_SLOT) & fresh), (tasks, sa.text(IS_TASK) & fresh)]
        if lost:
            kinds.append((names, rows.c.lost_count > 0))
        waiting = sa.select(
            sa.func.min(rows.c.execution_time, type_=rows.c.execution_time.type)
        )
        waiting = waiting.where(
            *self.conditions.waiting(), self.conditions.not_all_paused()
        )
        found = [
            connection.scalar(waiting.where(rows.c.task_name.in_(list(some)), kind))
            for some, kind in kinds
        ]
        due = min((one for one in found if one is not None), default=None)
        return None if due is None else due - now, None

    def newest_decided(
        self, connection: sa.Connection, plans: Sequence[Key], strict: Collection[str]
    ) -> list[datetime | None]:
        """Return for each plan row the newest slot that is decided according to the ledger or a
        gap.
        """
        return [
            _newest_of(
                *connection.execute(
                    _newest(self.tables, strict=plan.task_name in strict), plan._asdict()
                ).one()
            )
            for plan in plans
        ]

    def silent_rows(
        self, connection: sa.Connection, names: Sequence[str]
    ) -> tuple[datetime, list[Row]]:
        """Return the time, and held rows of these tasks, of any holder: ``MOST_HELD`` with the
        oldest heartbeats.
        """
        held = sa.select(*self.hold_columns).where(
            self.tables.tasks.c.picked, self.tables.tasks.c.task_name.in_(list(names))
        )
        held = held.order_by(self.tables.tasks.c.last_heartbeat).limit(MOST_HELD)
        return self.now(connection), [
            row_of(values, names=HOLD_COLUMNS) for values in connection.execute(held)
        ]

    def mark_running(self, connection: sa.Connection, claim: Claim) -> bool:
        """Mark a claimed slot as running in the ledger; return whether it was there and not marked
        yet.

        The commit of this transaction must be durable: after a crash of the server the slot must
        not start again.
        """
        slots = self.tables.slots
        marked = slots.update().where(
            *self.conditions.entry_of(claim), slots.c.outcome == Outcome.CLAIMED
        )
        marked = marked.values(outcome=Outcome.RUNNING, started=self.now(connection))
        return connection.execute(marked).rowcount == 1

    def mark_tasks(self, connection: sa.Connection, claims: Sequence[Claim]) -> set[Fence]:
        """As ``mark_running``, for claimed one-time tasks of one holder, in their rows; return
        those marked.
        """
        mark = (
            self.tables.tasks.update()
            .values(marked=self.now(connection))
            .where(self.tables.tasks.c.marked.is_(None))
        )
        return {
            one.fence
            for one in claims
            if connection.execute(mark.where(*self.conditions.held(one))).rowcount
        }

    def gaps(
        self, connection: sa.Connection, gaps: Sequence[tuple[Row, Gap]], now: datetime
    ) -> None:
        """Enter slots that will not run: a ledger row for one, a gap row for several.

        The job's last gap is extended if it ends with ``gap.after`` and has the same reason.
        """
        whole = [
            (row, part)
            for row, gap in gaps
            for part in self.close_open_slots(connection, row, gap, now)
        ]
        for row, gap in whole:
            place = {**row.plan_key._asdict(), "reason": gap.reason}
            if gap.count == 1:
                skipped = {"slot": gap.first, "outcome": Outcome.SKIPPED, "finished": now}
                self.insert_new(connection, self.tables.slots, place | skipped)
            elif not self._extend_gap(connection, row, gap, now):
                several = {
                    "first_slot": gap.first,
                    "last_slot": gap.last,
                    "count": gap.count,
                    "created": now,
                }
                self.upsert(  # what was decided once is never undone
                    connection,
                    self.tables.gaps,
                    place | several,
                    again=lambda new: {
                        name: new[name]
                        for name in ("last_slot", "count", "reason", "created")
                    },
                    where=lambda new: new["last_slot"] > self.tables.gaps.c.last_slot,
                )

    def _extend_gap(
        self, connection: sa.Connection, row: Row, gap: Gap, now: datetime
    ) -> bool:
        """Extend the job's last gap by one that follows it, for the same reason; return whether it
        does.

        A slot of an earlier schedule may lie between.
        """
        if gap.after is None:
            return False
        gaps = self.tables.gaps
        slots = self.tables.slots
        between = sa.select(slots.c.slot).where(*of_key(slots, row.plan_key))
        between = between.where(slots.c.slot > gap.after, slots.c.slot < gap.first)
        follows = [
            gaps.c.last_slot == gap.after,
            gaps.c.reason == gap.reason,
            gaps.c.first_slot < gap.first,
        ]
        extended = gaps.update().where(
            *of_key(gaps, row.plan_key), *follows, ~between.exists()
        )
        extended = extended.values(
            last_slot=gap.last, count=gaps.c.count + gap.count, created=now
        )
        return connection.execute(extended).rowcount == 1


def enters_at_once(row: Row, order: ClaimRequest, now: datetime) -> bool:
    """Whether a claim enters this row's slot into the ledger; else ``decide`` handles it."""
    if is_weighed(row, now, order.weighed, order.late) or row.ledger_key is None:
        return False
    is_on_time = row.next_slot is None or row.next_slot > now
    return row.is_detached or row.attempt > 1 or is_on_time


def new_entry(row: Row, now: datetime, *, gives_up: bool) -> Values:
    """Return the ledger row of a claim's slot. A job that gives up is marked as running later."""
    return {
        **row.plan_key._asdict(),
        "slot": row.slot,
        "outcome": Outcome.CLAIMED if gives_up else Outcome.RUNNING,
        "reason": None,
        "origin": row.origin or Origin.SCHEDULE,
        "attempts": row.attempt,
        "collapsed": row.collapsed,
        "token": row.version,
        "worker": row.picked_by,
        "started": None if gives_up else now,
    }


def least(column: Expression, most: int) -> Expression:
    return sa.case((column > most, most), else_=column)


def _newest_of(in_ledger: datetime | None, in_gaps: datetime | None) -> datetime | None:
    return max((found for found in (in_ledger, in_gaps) if found), default=None)


@lru_cache(maxsize=16)
def _newest(tables: Tables, *, strict: bool) -> sa.Executable:
    """Built once: each late slot needs one."""
    slots = tables.slots
    gaps = tables.gaps
    name = sa.bindparam("task_name", type_=sa.Text)
    instance = sa.bindparam("task_instance", type_=sa.Text)
    is_decided: sa.ColumnElement[bool] = slots.c.finished.is_not(None)
    if strict:
        is_decided = is_decided | (slots.c.outcome != Outcome.CLAIMED)
    in_ledger = (
        sa.select(slots.c.slot)
        .where(slots.c.task_name == name, slots.c.task_instance == instance)
        .where(slots.c.origin.in_(PLANNED), is_decided)
        .order_by(slots.c.slot.desc())
        .limit(1)
    )
    in_gaps = (
        sa.select(gaps.c.last_slot)
        .where(gaps.c.task_name == name, gaps.c.task_instance == instance)
        .order_by(gaps.c.first_slot.desc())
        .limit(1)
    )
    return sa.select(in_ledger.scalar_subquery(), in_gaps.scalar_subquery())
