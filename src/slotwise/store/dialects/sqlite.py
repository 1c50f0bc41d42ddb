"""SQLite (3.35 or newer): one host, one writer at a time, the host's clock is the database's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from slotwise.decide.claim import is_weighed
from slotwise.model.clock import Clock, host_now
from slotwise.model.records import Claim, Fence, Gap, Key, LedgerEntry, LedgerKey, Row, Transition, When
from slotwise.model.vocabulary import Outcome
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.queue_cursors import Range
from slotwise.store.dialects.row_statements import RowStatements, of_key
from slotwise.store.dialects.task_statements import (
    Chunks,
    ChunksByRow,
    Expression,
    Parameters,
    Status,
    TaskStatements,
    plain,
)
from slotwise.store.schema.column_types import Instant, to_micros
from slotwise.store.schema.rows import (
    DECIDED_COLUMNS,
    HOLD_COLUMNS,
    ROW_COLUMNS,
    Change,
    Held,
    expect,
    hold_of,
    ledger_instance,
    pending_of,
    row_of,
)
from slotwise.store.schema.tables import HAS_SLOT, IS_TASK, Tables, is_plan


class SQLite:
    """The portable form under BEGIN IMMEDIATE, which the Database sees to: reading is locking.

    One row at a time: it keeps the laws and owes no speed.
    """

    name: ClassVar[str] = "sqlite"
    has_fast_finish: ClassVar[bool] = False
    insert = staticmethod(insert)

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self.tables = tables
        self.clock = clock
        self.row_columns = [tables.tasks.c[name] for name in ROW_COLUMNS]
        self.hold_columns = [tables.tasks.c[name] for name in HOLD_COLUMNS]
        self.key_order: tuple[Any, Any] = (tables.tasks.c.task_name, tables.tasks.c.task_instance)
        self.by_row = RowStatements(self)

    def now(self, connection: Joinable) -> datetime:
        return self.clock.override() or host_now()

    def ago(self, connection: Joinable, span: timedelta = timedelta(0)) -> sa.ColumnElement[datetime]:
        return sa.literal(self.now(connection) - span, Instant)

    def transaction_id(self, connection: sa.Connection) -> str | None:
        del connection
        return None

    def committed(self, connection: sa.Connection, transaction_id: str) -> bool | None:
        raise NotImplementedError

    def locked(self, found: sa.Select[Any]) -> sa.ColumnElement[bool]:
        return sa.tuple_(*found.selected_columns).in_(found)

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
        weighed: Sequence[str] = (),
        late: timedelta | None = None,
    ) -> list[tuple[Row, datetime, bool]]:
        now = self.now(connection)
        keys = self.by_row.due(connection, names, limit, lost=lost, instance=instance)
        taken = [self._take(connection, key, holder, lease, now) for key in keys]
        return [
            (row, now, not is_weighed(row, now, weighed, late) and self._enter(connection, row, now, strict))
            for row in taken
        ]

    def due_names(self, connection: sa.Connection, limit: int) -> list[tuple[str, int]]:
        tasks = self.tables.tasks
        due = (
            sa.select(tasks.c.task_name, sa.func.coalesce(tasks.c.priority, 50))
            .where(~tasks.c.picked, tasks.c.state.is_(None), tasks.c.execution_time <= self.now(connection))
            .order_by(tasks.c.execution_time)
            .limit(limit)
        )
        kinds = (sa.text(HAS_SLOT), tasks.c.lost_count > 0)
        return [(name, priority) for kind in kinds for name, priority in connection.execute(due.where(kind))]

    def due_tasks(self, connection: sa.Connection, names: Sequence[str]) -> set[str]:
        tasks = self.tables.tasks
        waiting = [~tasks.c.picked, tasks.c.state.is_(None), tasks.c.execution_time <= self.now(connection)]
        found = sa.select(tasks.c.task_name).where(*waiting, tasks.c.task_name.in_(list(names)))
        return set(connection.scalars(found.where(self.by_row.not_all_paused()).distinct()))

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
        now = self.now(connection)
        keys = self.by_row.due(connection, names, limit, lost=0, kind=IS_TASK, ranges=ranges or ())
        return [self._take(connection, key, holder, lease, now) for key in keys], True

    def next_due(
        self, connection: sa.Connection, names: Sequence[str], tasks: Sequence[str], *, lost: int = 1
    ) -> timedelta | None:
        rows, now = self.tables.tasks, self.now(connection)
        fresh = rows.c.lost_count == 0
        kinds = [(names, sa.text(HAS_SLOT) & fresh), (tasks, sa.text(IS_TASK) & fresh)]
        if lost:
            kinds.append((names, rows.c.lost_count > 0))
        found = [
            connection.scalar(
                sa.select(rows.c.execution_time)
                .where(~rows.c.picked, rows.c.state.is_(None), rows.c.task_name.in_(list(some)), kind)
                .where(self.by_row.not_all_paused())
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
            (is_plan(tasks) & (tasks.c.watermark.is_(None) | (tasks.c.watermark < tasks.c.slot)), tasks.c.slot),
            else_=tasks.c.watermark,
        )
        taken = (
            tasks.update()
            .where(*of_key(tasks, key), ~tasks.c.picked, tasks.c.state.is_(None), tasks.c.execution_time <= now)
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
        return on_time and self.by_row.enter(connection, row, now, strict=row.task_name in strict)

    def newest_decided(
        self, connection: sa.Connection, plans: Sequence[Row], *, strict: Collection[str]
    ) -> list[datetime | None]:
        return [
            self.by_row.newest_decided(connection, row.task_name, row.task_instance, strict=row.task_name in strict)
            for row in plans
        ]

    def begin(
        self, connection: sa.Connection, started: Sequence[Row], now: datetime, *, strict: Collection[str]
    ) -> set[Key]:
        tasks = self.tables.tasks
        for row in started:
            columns = {name: getattr(row, name) for name in DECIDED_COLUMNS if name != "pending"}
            columns["pending"] = pending_of(row.trying_since, row.catch_up_until)
            decided = tasks.update().where(*self.by_row.under(row, row.picked_by)).values(columns)
            expect(connection.execute(decided).rowcount, 1, row)
        return {row.key for row in started if self.by_row.enter(connection, row, now, strict=row.task_name in strict)}

    def alone(self, connection: sa.Connection, name: str) -> bool:
        del connection, name
        return True

    def latch(self, connection: sa.Connection, name: str, *, shared: bool) -> None:
        del connection, name, shared

    def finish(self, connection: sa.Connection, claims: Sequence[Claim]) -> tuple[str | None, int]:
        tasks, count = self.tables.tasks, 0
        for claim in claims:
            unasked = (tasks.c.state.is_(None), tasks.c.wanted_due.is_(None), tasks.c.cancel_requested.is_(None))
            gone = tasks.delete().where(*self.by_row.held(claim), *unasked)
            count += connection.execute(gone).rowcount
        return None, count

    def advance(
        self, connection: sa.Connection, endings: Sequence[tuple[Claim, Transition]]
    ) -> tuple[str | None, set[Fence]]:
        del connection, endings
        return None, set()

    def hold(self, connection: sa.Connection, claims: Sequence[Claim], *, wait: bool) -> list[Held]:
        now, found = self.now(connection), []
        for claim in claims:
            values = connection.execute(sa.select(*self.row_columns).where(*self.by_row.held(claim))).first()
            if values is not None:
                found.append(Held(row=row_of(values), now=now))
        return found

    def lock(self, connection: sa.Connection, keys: Iterable[Key], *, wait: bool) -> set[Key]:
        return set()  # BEGIN IMMEDIATE locked them all

    def entries(
        self,
        connection: sa.Connection,
        keys: Sequence[LedgerKey],
        *,
        wait: bool,
    ) -> dict[LedgerKey, tuple[LedgerEntry | None, str | None]]:
        slots = self.tables.slots
        found: dict[LedgerKey, tuple[LedgerEntry | None, str | None]] = {}
        for key in keys:
            values = connection.execute(
                sa.select(slots.c.outcome, slots.c.token, slots.c.finished, slots.c.aborted, slots.c.started).where(
                    *self.by_row.at(key)
                )
            ).first()
            entry = values and LedgerEntry(
                outcome=values[0], token=values[1], final=values[2] is not None, aborted=values[3], started=values[4]
            )
            found[key] = (entry, None)
        return found

    def release(self, connection: sa.Connection, changes: Sequence[Change]) -> int:
        return sum(self.by_row.release(connection, change) for change in changes)

    def record(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        for change in changes:
            self.by_row.record(connection, change)

    def gaps(self, connection: sa.Connection, gaps: Iterable[tuple[Row, Gap]], now: datetime) -> None:
        for row, gap in gaps:
            self.by_row.close_open_slots(connection, row, gap, now)
            place = {"task_name": row.task_name, "task_instance": ledger_instance(row)}
            if gap.count == 1:
                skipped = {"slot": gap.first, "outcome": Outcome.SKIPPED, "reason": gap.reason, "finished": now}
                self.by_row.insert_new(connection, self.tables.slots, place | skipped)
                continue
            last: Parameters = {"last_slot": gap.last, "count": gap.count, "reason": gap.reason, "created": now}
            self.by_row.upsert(  # what was decided once is never undone
                connection, self.tables.gaps, {**place, "first_slot": gap.first, **last},
                again=lambda new: {name: new[name] for name in ("last_slot", "count", "reason", "created")},
                where=lambda new: new.last_slot > self.tables.gaps.c.last_slot,
            )  # fmt: skip

    def mark_running(self, connection: sa.Connection, claim: Claim) -> bool:
        slots, key = self.tables.slots, claim.row.ledger_key
        assert key is not None
        mine = [*self.by_row.at(key), slots.c.token == claim.token, slots.c.worker == claim.holder]
        marked = slots.update().where(*mine, slots.c.outcome == Outcome.CLAIMED)
        marked = marked.values(outcome=Outcome.RUNNING, started=self.now(connection))
        return connection.execute(marked).rowcount == 1

    def beat(self, connection: sa.Connection, holder: str, claims: Sequence[Claim]) -> set[Fence]:
        tasks, now = self.tables.tasks, self.now(connection)
        renewed = set()
        for claim in claims:
            statement = tasks.update().where(*self.by_row.under(claim.row, claim.holder)).values(last_heartbeat=now)
            if connection.execute(statement).rowcount:
                renewed.add(claim.fence)
        return renewed

    def still_held(self, connection: sa.Connection, claims: Sequence[Claim]) -> set[Fence]:
        tasks = self.tables.tasks
        return {
            claim.fence
            for claim in claims
            if connection.execute(sa.select(tasks.c.version).where(*self.by_row.under(claim.row, claim.holder))).first()
            is not None
        }

    def silent_rows(self, connection: sa.Connection, names: Sequence[str]) -> tuple[datetime, list[Row]]:
        tasks = self.tables.tasks
        statement = sa.select(*self.hold_columns).where(tasks.c.picked, tasks.c.task_name.in_(list(names)))
        return self.now(connection), [hold_of(values) for values in connection.execute(statement)]

    def task_statements(self, wake: timedelta | None) -> tuple[TaskStatements, Chunks]:
        del wake
        rows = TaskStatements(self, _Fragments(self))
        return rows, ChunksByRow(rows, self.tables.tasks)


class _Fragments:
    """By the host's clock; workers of other processes receive no notification."""

    def __init__(self, dialect: SQLite) -> None:
        self._now, self._tasks = dialect.now, dialect.tables.tasks

    def due(self, is_at: bool) -> Expression:
        return sa.bindparam("due", type_=Instant)

    def due_parameters(self, connection: Joinable, when: When) -> Parameters:
        now = self._now(connection)
        return {"due": when.at or now + when.delay, "created": to_micros(now)}

    def created(self) -> Expression:
        return sa.bindparam("created", type_=sa.BigInteger)

    def notification(self) -> list[Expression]:
        return []

    def say(self, connection: Joinable, word: str) -> None:
        """No-op."""

    def may_delete(self) -> sa.ColumnElement[bool]:
        return sa.true()

    def cancel(self, connection: Joinable, key: Key) -> Status:
        tasks = self._tasks
        mine = [*of_key(tasks, key), *plain(tasks)]
        told = tasks.update().where(*mine, tasks.c.picked).values(cancel_requested=self._now(connection))
        if connection.execute(told).rowcount:
            return "running"
        return "cancelled" if connection.execute(tasks.delete().where(*mine, ~tasks.c.picked)).rowcount else "gone"
