"""Claims, said so that any SQL database understands them: look for what is due, take it, enter it into the ledger."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from slotwise.model.records import Key, Row
from slotwise.model.vocabulary import Origin, Outcome
from slotwise.store.dialects.decided_slots import may_start, newest_decided
from slotwise.store.dialects.queue_cursors import Range
from slotwise.store.dialects.row_by_row import RowByRow
from slotwise.store.schema.column_types import to_micros
from slotwise.store.schema.rows import DECIDED_COLUMNS, expect, ledger_instance, row_of
from slotwise.store.schema.tables import HAS_SLOT, IS_TASK, RANK


class ClaimsByRow(RowByRow):
    """Takes due rows, each by a statement of its own."""

    def claim(
        self,
        connection: sa.Connection,
        *,
        holder: str,
        names: Sequence[str],
        strict: Sequence[str],
        limit: int,
        lease: timedelta,
        lost: int = 1,
        instance: str | None = None,
        is_level: bool = False,
    ) -> list[tuple[Row, datetime, bool]]:
        """Take due slots of these tasks; with each, the time and whether its ledger row was written (it may start).

        Recurring slots that are on time, and detached ones, are entered into the ledger at once; a plan row
        with missed slots, or whose slot the ledger already has, comes back with False and is for ``decide``.
        ``lost``: at most so many rows, also of one-time tasks, whose holder has died before; they go first.
        ``is_level``: what is due was seen to be of one priority, so the oldest go first.
        """
        now = self.now(connection)
        keys = self.due(connection, names, limit, lost=lost, instance=instance)
        taken = [self._take(connection, key, holder, lease, now) for key in keys]
        return [(row, now, self._enter(connection, row, now, strict)) for row in taken]

    def due(
        self,
        connection: sa.Connection,
        names: Sequence[str],
        limit: int,
        *,
        lost: int,
        instance: str | None = None,
        kind: str = HAS_SLOT,
        ranges: Sequence[Range] = (),
    ) -> list[Key]:
        """What a claim would take, without taking it."""
        tasks = self.tables.tasks
        due = (
            sa.select(tasks.c.task_name, tasks.c.task_instance)
            .where(~tasks.c.picked, tasks.c.state.is_(None), tasks.c.execution_time <= self.now(connection))
            .where(tasks.c.task_name.in_(list(names)))
        )
        due = due.where(self.not_all_paused() if instance is None else tasks.c.task_instance == instance)
        oldest = (tasks.c.execution_time, tasks.c.task_name, tasks.c.task_instance)
        first = connection.execute(due.where(tasks.c.lost_count > 0).order_by(*oldest).limit(lost)).all()
        fresh = due.where(tasks.c.lost_count == 0, sa.text(f"({kind})") if instance is None else sa.true())
        for one in ranges:
            if one.since is not None:
                behind = (tasks.c.task_name == one.task_name) & (tasks.c.execution_time < one.since)
                fresh = fresh.where(~(behind & sa.text(f"{RANK} BETWEEN {one.first} AND {one.last}")))
        others = connection.execute(fresh.order_by(*self._rank(names, kind), *oldest).limit(limit)).all()
        return [Key(*key) for key in (*first, *others)][:limit]

    def _rank(self, names: Sequence[str], kind: str) -> list[Any]:
        """What goes before what: the highest priority; of one-time tasks then name by name, as given."""
        order: list[Any] = [sa.text(RANK)]
        if kind == IS_TASK:
            places = {name: place for place, name in enumerate(names)}
            order.append(sa.case(places, value=self.tables.tasks.c.task_name))
        return order

    def due_names(self, connection: sa.Connection, limit: int) -> list[tuple[str, int]]:
        """Name and priority of up to ``limit`` due slots, the oldest first, and of rows whose holder died before."""
        tasks = self.tables.tasks
        due = (
            sa.select(tasks.c.task_name, sa.func.coalesce(tasks.c.priority, 50))
            .where(~tasks.c.picked, tasks.c.state.is_(None), tasks.c.execution_time <= self.now(connection))
            .order_by(tasks.c.execution_time)
            .limit(limit)
        )
        kinds = (sa.text(f"({HAS_SLOT})"), tasks.c.lost_count > 0)
        return [(name, priority) for kind in kinds for name, priority in connection.execute(due.where(kind))]

    def due_tasks(self, connection: sa.Connection, names: Sequence[str]) -> set[str]:
        """Those of these names that have due rows of any kind."""
        tasks = self.tables.tasks
        waiting = [~tasks.c.picked, tasks.c.state.is_(None), tasks.c.execution_time <= self.now(connection)]
        found = sa.select(tasks.c.task_name).where(*waiting, tasks.c.task_name.in_(list(names)))
        return set(connection.scalars(found.where(self.not_all_paused()).distinct()))

    def claim_tasks(
        self,
        connection: sa.Connection,
        *,
        holder: str,
        names: Sequence[str],
        limit: int,
        lease: timedelta,
        ranges: Sequence[Range] | None = None,
    ) -> tuple[list[Row], bool]:
        """Take due one-time tasks, the highest priority first; then name by name as given, of each the oldest first.
        And whether slots may be due as well.

        Those whose holder has died before are left to ``claim``; with ``ranges``, those behind their marks to a claim
        without.
        """
        now = self.now(connection)
        keys = self.due(connection, names, limit, lost=0, kind=IS_TASK, ranges=ranges or ())
        return [self._take(connection, key, holder, lease, now) for key in keys], True

    def next_due(
        self, connection: sa.Connection, names: Sequence[str], tasks: Sequence[str], *, lost: int = 1
    ) -> timedelta | None:
        """How long until the next waiting slot of ``names`` or task of ``tasks`` is due; None: nothing waits.

        ``lost`` = 0: of the rows that a claim would then take.
        """
        rows, now = self.tables.tasks, self.now(connection)
        fresh = rows.c.lost_count == 0
        kinds = [(names, sa.text(f"({HAS_SLOT})") & fresh), (tasks, sa.text(IS_TASK) & fresh)]
        if lost:
            kinds.append((names, rows.c.lost_count > 0))
        found = [
            connection.scalar(
                sa.select(rows.c.execution_time)
                .where(~rows.c.picked, rows.c.state.is_(None), rows.c.task_name.in_(list(some)), kind)
                .where(self.not_all_paused())
                .order_by(rows.c.execution_time)
                .limit(1)
            )
            for some, kind in kinds
        ]
        due = min((one for one in found if one is not None), default=None)
        return None if due is None else due - now

    def _take(self, connection: sa.Connection, key: Key, holder: str, lease: timedelta, now: datetime) -> Row:
        tasks = self.tables.tasks
        newest = sa.case(
            (tasks.c.schedule.is_(None), tasks.c.watermark),
            (tasks.c.watermark.is_(None) | (tasks.c.watermark < tasks.c.slot), tasks.c.slot),
            else_=tasks.c.watermark,
        )
        taken = (
            tasks.update()
            .where(tasks.c.task_name == key.task_name, tasks.c.task_instance == key.task_instance)
            .where(~tasks.c.picked, tasks.c.state.is_(None), tasks.c.execution_time <= now)
            .values(
                picked=True, picked_by=holder, last_heartbeat=now, lease=lease,
                version=sa.case((tasks.c.version < to_micros(now), to_micros(now)), else_=tasks.c.version + 1),
                attempt=tasks.c.attempt + 1, watermark=newest,
            )
            .returning(*self.row_columns)
        )  # fmt: skip
        return row_of(connection.execute(taken).one())

    def _enter(self, connection: sa.Connection, row: Row, now: datetime, strict: Sequence[str]) -> bool:
        if row.ledger_key is None:
            return True
        on_time = row.is_detached or row.attempt > 1 or row.next_slot is None or row.next_slot > now
        return on_time and self.enter(connection, row, now, strict=row.task_name in strict)

    def enter(self, connection: sa.Connection, row: Row, now: datetime, *, strict: bool) -> bool:
        """Write the ledger row of the claim's slot; False if the ledger says that it may not run (again)."""
        values = {
            "task_name": row.task_name, "task_instance": ledger_instance(row), "slot": row.slot,
            "outcome": Outcome.CLAIMED if strict else Outcome.RUNNING, "reason": None,
            "origin": row.origin or Origin.SCHEDULE, "attempts": row.attempt, "collapsed": row.collapsed,
            "token": row.version, "worker": row.picked_by, "started": None if strict else now,
        }  # fmt: skip
        return connection.execute(_entry(self.insert, self.tables.slots, strict=strict), values).first() is not None

    def newest_decided(
        self, connection: sa.Connection, plans: Sequence[Row], *, strict: Collection[str]
    ) -> list[datetime | None]:
        """For each of these plan rows the newest slot that the ledger or a gap knows as decided; ``strict``: jobs that
        give up, whose slots are decided once they run.
        """
        return [
            newest_decided(connection, self, row.task_name, row.task_instance, strict=row.task_name in strict)
            for row in plans
        ]

    def begin(
        self, connection: sa.Connection, started: Sequence[Row], now: datetime, *, strict: Collection[str]
    ) -> set[Key]:
        """Write on plan rows that this transaction has claimed which slot was decided, and ``enter`` it; the keys of
        those that may run.
        """
        tasks = self.tables.tasks
        for row in started:
            mine = tasks.update().where(tasks.c.task_name == row.task_name, tasks.c.task_instance == row.task_instance)
            mine = mine.where(tasks.c.version == row.version, tasks.c.picked_by == row.picked_by)
            columns = {name: getattr(row, name) for name in DECIDED_COLUMNS}
            expect(connection.execute(mine.values(columns)).rowcount, 1, row)
        return {row.key for row in started if self.enter(connection, row, now, strict=row.task_name in strict)}

    def alone(self, connection: sa.Connection, name: str) -> bool:
        """Whether nobody else asks this for the task until this transaction ends. Here there is one writer."""
        del connection, name
        return True

    def latch(self, connection: sa.Connection, name: str, *, shared: bool) -> None:
        """Until this transaction ends, nobody else holds the task's latch, or only others who share it.

        Whoever makes an instance shares it; an order to all rows of a job has it alone, and so misses none that is
        being made. Here there is one writer.
        """
        del connection, name, shared


@lru_cache(maxsize=16)
def _entry(insert: Any, slots: sa.Table, *, strict: bool) -> Any:
    """Made once: each late slot is entered by a statement of its own, and to make it costs more than to send it."""
    statement = insert(slots)
    again = {
        name: statement.excluded[name] for name in ("outcome", "reason", "collapsed", "token", "worker", "started")
    }
    return statement.on_conflict_do_update(
        index_elements=[slots.c.task_name, slots.c.task_instance, slots.c.slot],
        set_={**again, "attempts": slots.c.attempts + 1, "started_before": slots.c.started},
        where=may_start(slots, strict=strict),
    ).returning(slots.c.token)
