"""The portable form of the port: each verb by key and version, one row at a time, in plain SQLAlchemy.

It is all of SQLite, and on PostgreSQL what is rare or has no batch. It needs RETURNING and ON CONFLICT. Its second half
reads rows before it writes them: there, reading must be locking, as under SQLite's BEGIN IMMEDIATE. It keeps the laws
and owes no speed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import sqlalchemy as sa

from slotwise.decide.claim import is_weighed, of_gap, without
from slotwise.decide.ending import UNREADABLE, UNREADABLE_PAUSE
from slotwise.model import records
from slotwise.model.clock import Clock
from slotwise.model.records import EARLIEST, FOREVER, Claim, Fence, Gap, Key, LedgerEntry, LedgerKey, Row, to_micros
from slotwise.model.vocabulary import PLANNED, Kind, Origin, Outcome, Reason, Release, State
from slotwise.schedules.text import readable
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.port import Dialect, Order, Upsert
from slotwise.store.dialects.task_statements import PortableTasks, TaskStatements
from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.rows import (
    ADDED_COLUMNS,
    CLAIMED_DATA,
    FLAW,
    HOLD_COLUMNS,
    LAST_ATTEMPT,
    LAST_VERSION,
    LONGEST_LEASE,
    ROW_COLUMNS,
    Change,
    Held,
    decided,
    expect,
    row_of,
    stored,
    utc,
)
from slotwise.store.schema.tables import HAS_SLOT, IS_TASK, MOST_HELD, PAUSED_KEY, RANK, Tables, is_plan

if TYPE_CHECKING:
    from sqlalchemy.sql.base import ReadOnlyColumnCollection
    from sqlalchemy.sql.elements import KeyedColumnElement

    New: TypeAlias = ReadOnlyColumnCollection[str, KeyedColumnElement[Any]]

Values: TypeAlias = dict[str, object]
Expression: TypeAlias = sa.ColumnElement[Any]
Conditions: TypeAlias = list[sa.ColumnElement[bool]]

#: What a row is without its holder.
_RELEASED: Values = dict.fromkeys(("picked_by", "last_heartbeat", "lease", "cancel_requested", "wanted_due", "marked"))
_RELEASED["picked"] = False


def of_key(table: sa.FromClause, row: Key | LedgerKey | Row) -> Conditions:
    return [table.c.task_name == row.task_name, table.c.task_instance == row.task_instance]


class Portable(Dialect):
    """The statements of a database by its insert, which knows ON CONFLICT, and its clock."""

    name = "sqlite"
    has_fast_finish = False

    def __init__(
        self, tables: Tables, clock: Clock, insert: Callable[[sa.Table], Upsert], now: Callable[[Joinable], datetime]
    ) -> None:
        self.tables, self.clock, self._insert, self._now = tables, clock, insert, now
        self._tasks, self._slots = tables.tasks, tables.slots
        self.row_columns = [self._tasks.c[name] for name in ROW_COLUMNS]
        lease = self._tasks.c.lease  # one that no driver can decode must not stop heartbeats
        is_lease = lease.between(sa.literal(timedelta(0), lease.type), sa.literal(LONGEST_LEASE, lease.type))
        held = {"lease": sa.case((is_lease, lease)).label("lease")}
        self.hold_columns: list[Expression] = [held.get(name, self._tasks.c[name]) for name in HOLD_COLUMNS]
        self.key_order: tuple[Any, Any] = (self._tasks.c.task_name, self._tasks.c.task_instance)

    @property
    def by_row(self) -> Portable:
        return self

    def insert(self, table: sa.Table, /) -> Upsert:
        return self._insert(table)

    def now(self, connection: Joinable) -> datetime:
        return self._now(connection)

    # -- conditions -------------------------------------------------------------------------------------------

    def under(self, row: Row, holder: str | None) -> Conditions:
        """Whether a row is held under this token by this holder, or was until just now."""
        return [*of_key(self._tasks, row), self._tasks.c.version == row.version, self._tasks.c.picked_by == holder]

    def held(self, claim: Claim) -> Conditions:
        return [*self.under(claim.row, claim.holder), self._tasks.c.picked]

    def at(self, key: LedgerKey | None) -> Conditions:
        assert key is not None  # one-time tasks have no row there
        return [*of_key(self._slots, key), self._slots.c.slot == key.slot]

    def entry_of(self, claim: Claim) -> Conditions:
        mine = self.at(claim.row.ledger_key)
        return [*mine, self._slots.c.token == claim.token, self._slots.c.worker == claim.holder]

    def _open_entry(self, row: Row) -> Conditions:
        """The ledger row of this claim, as long as its slot has not ended."""
        return [*self.at(row.ledger_key), self._slots.c.token == row.version, self._slots.c.finished.is_(None)]

    def _waiting(self, by: datetime | None = None) -> Conditions:
        """Whether a row waits, and is due by then."""
        tasks = self._tasks
        due = () if by is None else (tasks.c.execution_time <= by,)
        return [~tasks.c.picked, tasks.c.state.is_(None), *due]

    def _not_all_paused(self) -> sa.ColumnElement[bool]:
        """Whether claims are not paused altogether; evaluated once per statement, not per row."""
        return ~sa.exists().where(self.tables.meta.c.key == PAUSED_KEY)

    # -- rows by key ------------------------------------------------------------------------------------------

    def due(self, connection: sa.Connection, order: Order, kind: str = HAS_SLOT) -> list[Key]:
        """Return the rows that a claim would take."""
        tasks, instance = self._tasks, order.instance
        due = sa.select(tasks.c.task_name, tasks.c.task_instance)
        due = due.where(*self._waiting(self.now(connection)), tasks.c.task_name.in_(order.names))
        due = due.where(self._not_all_paused() if instance is None else tasks.c.task_instance == instance)
        oldest = (tasks.c.execution_time, tasks.c.task_name, tasks.c.task_instance)
        first = connection.execute(due.where(tasks.c.lost_count > 0).order_by(*oldest).limit(order.lost)).all()
        fresh = due.where(tasks.c.lost_count == 0, sa.text(kind) if instance is None else sa.true())
        for one in order.ranges or ():
            if one.since is not None:
                behind = (tasks.c.task_name == one.task_name) & (tasks.c.execution_time < one.since)
                fresh = fresh.where(~(behind & sa.text(f"{RANK} BETWEEN {one.first} AND {one.last}")))
        others = connection.execute(fresh.order_by(*self._rank(order.names, kind), *oldest).limit(order.limit)).all()
        return [Key(*key) for key in (*first, *others)][: order.limit]

    def _rank(self, names: Sequence[str], kind: str) -> list[Expression]:
        """The order of claims: the highest priority first; one-time tasks then name by name, as given."""
        rank: list[Expression] = [sa.literal_column(RANK)]
        places = {name: place for place, name in enumerate(names)}
        return [*rank, sa.case(places, value=self._tasks.c.task_name)] if kind == IS_TASK else rank

    def enter(self, connection: sa.Connection, row: Row, now: datetime, strict: Collection[str]) -> bool:
        """Write the ledger row of the claim's slot; return False if it may not run (again)."""
        gives_up = row.task_name in strict
        values = {
            **row.plan_key._asdict(), "slot": row.slot,
            "outcome": Outcome.CLAIMED if gives_up else Outcome.RUNNING, "reason": None,
            "origin": row.origin or Origin.SCHEDULE, "attempts": row.attempt, "collapsed": row.collapsed,
            "token": row.version, "worker": row.picked_by, "started": None if gives_up else now,
        }  # fmt: skip
        return connection.execute(_entry(self._insert, self._slots, strict=gives_up), values).first() is not None

    def undo_entries(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        """Restore the ledger to its state before these claims entered their rows' slots, which never began.

        An entry of such a claim alone is deleted. An entry that stays gets the token of the waiting row. Race: a mark
        of this claim that arrives late then finds nothing.
        """
        entered = [{"name": key[0], "instance": key[1], "at": key[2], "its": row.version}
                   for row in rows if (key := row.ledger_key)]  # fmt: skip
        if not entered:
            return
        slots = self._slots
        places = {"task_name": "name", "task_instance": "instance", "slot": "at", "token": "its"}
        mine = [slots.c[column] == sa.bindparam(name) for column, name in places.items()] + [slots.c.finished.is_(None)]
        alone = sa.and_(slots.c.attempts <= 1, slots.c.lost == 0, slots.c.aborted == 0)
        before = {"attempts": slots.c.attempts - 1, "started": slots.c.started_before, "token": slots.c.token + 1}
        connection.execute(slots.update().where(*mine, ~alone).values(outcome=Outcome.CLAIMED, **before), entered)
        connection.execute(slots.delete().where(*mine, alone), entered)

    def still_held(self, connection: sa.Connection, claims: Sequence[Claim]) -> set[Fence]:
        """Read, without a lock, which of these claims of one holder still hold their rows."""
        fence = (self._tasks.c.task_name, self._tasks.c.task_instance, self._tasks.c.version)
        asked = [(*claim.key, claim.token) for claim in claims]
        mine = [self._tasks.c.picked_by == claims[0].holder, self._tasks.c.picked, sa.tuple_(*fence).in_(asked)]
        found = connection.execute(sa.select(*fence).where(*mine))
        return {Fence(Key(name, instance), version) for name, instance, version in found}

    def release(self, connection: sa.Connection, changes: Sequence[Change]) -> int:
        tasks, count, version = self._tasks, 0, _least(self._tasks.c.version, LAST_VERSION + 1) + 1
        for change in changes:
            row, columns = change.held.row, change.transition.row
            write: sa.Delete | sa.Update = tasks.delete()
            if columns is not None:
                write = tasks.update().values(**stored(row, columns), **_RELEASED, version=version)
            count += connection.execute(write.where(*self.under(row, row.picked_by))).rowcount
        return count

    def record(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        slots, recorded = self._slots, [(change, one) for change in changes if (one := change.transition.record)]
        self.undo_entries(connection, [change.held.row for change, record in recorded if record.forget])
        for change, record in recorded:
            row, values = change.held.row, change.recorded
            if row.ledger_key is None or record.forget:
                continue
            values |= {name: slots.c[name] + values[name] for name in ADDED_COLUMNS}
            if change.never_began:
                values["started"] = slots.c.started_before
            if change.never_began and not record.final:
                values["token"] = slots.c.token + 1  # see undo_entries
            connection.execute(slots.update().where(*self._open_entry(row)).values(values))

    def close_open_slots(self, connection: sa.Connection, row: Row, gap: Gap, now: datetime) -> list[Gap]:
        """End open slots of the gap that another claim left behind, because the queue was restored alone.

        A slot that never began is skipped, not lost. Return the gap without them, in parts: they have their own rows.
        """
        slots = self._slots
        outcome = sa.case((slots.c.started.is_(None), Outcome.SKIPPED.value), else_=Outcome.LOST.value)
        closed = connection.scalars(
            slots.update()
            .where(*of_key(slots, row.plan_key))
            .where(slots.c.slot >= gap.first, slots.c.slot <= gap.last, slots.c.finished.is_(None))
            .where((slots.c.token != row.version) | (slots.c.worker != row.picked_by))
            .where(slots.c.origin.in_(PLANNED))
            .values(outcome=outcome, reason=gap.reason, finished=now)
            .returning(slots.c.slot)
        ).all()
        schedule = readable(row.schedule) if closed else None
        holes = [(slot, slot) for slot in sorted(map(utc, closed))]
        return [gap] if schedule is None else list(without(of_gap(schedule, gap), gap, holes))

    def insert_new(self, connection: sa.Connection, table: sa.Table, values: Mapping[str, object]) -> bool:
        """Insert a row unless its key is taken; return whether it was inserted."""
        return _has_written(connection, table, self.insert(table).values(**values).on_conflict_do_nothing())

    def insert_missing(
        self, connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, object]]
    ) -> Sequence[Any]:  # fmt: skip
        """As ``insert_new``, many rows of the same columns; return the first column of the key of those inserted."""
        insert = self.insert(table).on_conflict_do_nothing().returning(table.primary_key.columns[0])
        return connection.scalars(insert, list(rows)).all()

    def upsert(
        self, connection: Joinable, table: sa.Table, values: Mapping[str, object],
        again: Callable[[New], Mapping[str, object]], where: Callable[[New], sa.ColumnElement[bool]] | None = None,
    ) -> bool:  # fmt: skip
        """Insert a row, or change the one that has its key; return whether a row was written.

        Both functions get the columns of the new row.
        """
        insert = self.insert(table).values(**values)
        statement = insert.on_conflict_do_update(
            index_elements=list(table.primary_key.columns), set_=again(insert.excluded),
            where=where and where(insert.excluded),
        )  # fmt: skip
        return _has_written(connection, table, statement)

    def replace_all(self, connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, object]]) -> None:
        """Insert these rows, all of the same columns; each replaces the row that has its key."""
        insert, key = self.insert(table), list(table.primary_key.columns)
        again = {name: insert.excluded[name] for name in rows[0] if table.c[name] not in set(key)}
        connection.execute(insert.on_conflict_do_update(index_elements=key, set_=again), list(rows))

    def reading(self, statement: sa.Update | sa.Delete, *columns: Expression) -> sa.Executable:
        """Let a statement return these columns of the rows that it writes."""
        return statement.returning(*columns)

    def quarantine(self, connection: sa.Connection, key: Key, error: str) -> None:
        """Postpone a waiting row that no claim can take, or end it; its ``last_error`` says why."""
        mine = [*of_key(self._tasks, key), *self._waiting()]
        connection.execute(self._tasks.update().where(*mine).values(**self._quarantined(connection, error)))

    def _quarantined(self, connection: sa.Connection, error: str) -> Values:
        """A job's row is due again in a minute: an error never ends a job. A task's row is dead, and stays."""
        tasks = self._tasks
        goes_on = tasks.c.kind != Kind.TASK
        is_finite = tasks.c.execution_time.between(EARLIEST, FOREVER)  # it may not be in a table of db-scheduler's
        again = sa.literal(self.now(connection) + UNREADABLE_PAUSE, tasks.c.execution_time.type)
        return {
            "state": sa.case((goes_on, tasks.c.state), else_=State.DEAD.value),
            "parked_due": sa.case((goes_on | ~is_finite, sa.null()), else_=tasks.c.execution_time),
            "execution_time": sa.case((goes_on, again), else_=sa.literal(FOREVER, tasks.c.execution_time.type)),
            "last_error": f"{UNREADABLE}{error}".replace("\0", "\\0"),
        }

    def quarantine_held(
        self, connection: sa.Connection, claim: Claim, outcome: records.AttemptOutcome, error: str
    ) -> str | None:
        """As ``quarantine``, for a held row, under its claim's fence; return its state, None if the claim was lost.

        The ledger gets the handler's outcome. Without one, the next claim finds an orphan there.
        """
        tasks, row, mine = self._tasks, claim.row, self.held(claim)
        if isinstance(outcome, records.Died):
            mine.append(tasks.c.last_heartbeat.is_not_distinct_from(row.last_heartbeat))
        quarantined = self._quarantined(connection, error) | _RELEASED
        statement = tasks.update().where(*mine).values(**quarantined, version=min(row.version, LAST_VERSION + 1) + 1)
        found = connection.execute(statement.returning(tasks.c.state)).first()
        is_final = isinstance(outcome, records.Succeeded | records.Failed | records.Cancelled) and not getattr(
            outcome, "promised", False
        )
        if found is not None and row.ledger_key is not None and is_final:
            ended = self._slots.update().where(*self._open_entry(row))
            ended = ended.values(outcome=outcome.name, reason=Reason.UNREADABLE, finished=self.now(connection))
            connection.execute(ended)
        return None if found is None else found.state or Release.POSTPONED

    # -- the rest of the port, where there is one writer at a time: reading is locking ------------------------

    def ago(self, connection: Joinable, span: timedelta = timedelta(0)) -> sa.ColumnElement[datetime]:
        return sa.literal(self.now(connection) - span, Instant)

    def locked(self, found: sa.Select[Any]) -> sa.ColumnElement[bool]:
        return sa.tuple_(*found.selected_columns).in_(found)

    def merged(self, document: sa.ColumnElement[Any], changes: Mapping[str, object]) -> sa.ColumnElement[Any]:
        return sa.func.json_patch(document, sa.literal(changes, document.type), type_=document.type)

    def among(self, column: sa.ColumnElement[str], names: Collection[str]) -> sa.ColumnElement[bool]:
        each = sa.func.json_each(json.dumps(list(names))).table_valued("value")
        return column.in_(sa.select(each.c.value))

    def claim(self, connection: sa.Connection, order: Order) -> list[tuple[Row, datetime, bool]]:
        now = self.now(connection)
        taken = [self._take(connection, key, order, now) for key in self.due(connection, order)]
        return [(row, now, self._enter(connection, row, order, now)) for row in taken]

    def claim_tasks(self, connection: sa.Connection, order: Order) -> tuple[list[Row], bool]:
        now = self.now(connection)
        return [self._take(connection, key, order, now) for key in self.due(connection, order, IS_TASK)], True

    def _take(self, connection: sa.Connection, key: Key, order: Order, now: datetime) -> Row:
        tasks, version = self._tasks, to_micros(now)
        is_newer = is_plan(tasks) & (tasks.c.watermark.is_(None) | (tasks.c.watermark < tasks.c.slot))
        taken = tasks.update().where(*of_key(tasks, key), *self._waiting(now))
        taken = taken.values(
            picked=True, picked_by=order.holder, last_heartbeat=now, lease=order.lease,
            attempt=_least(tasks.c.attempt, LAST_ATTEMPT) + 1,
            version=sa.case((tasks.c.version < version, version), else_=_least(tasks.c.version, LAST_VERSION) + 1),
            watermark=sa.case((is_newer, tasks.c.slot), else_=tasks.c.watermark),
        )  # fmt: skip
        data = sa.literal_column(CLAIMED_DATA, tasks.c.task_data.type)
        columns = [data if column.name == "task_data" else column for column in self.row_columns]
        *values, flaw = connection.execute(taken.returning(*columns, sa.literal_column(FLAW, sa.Text))).one()
        return row_of(values, flaw)

    def _enter(self, connection: sa.Connection, row: Row, order: Order, now: datetime) -> bool:
        if is_weighed(row, now, order.weighed, order.late):
            return False
        on_time = row.is_detached or row.attempt > 1 or row.next_slot is None or row.next_slot > now
        return row.ledger_key is None or (on_time and self.enter(connection, row, now, order.strict))

    def due_names(self, connection: sa.Connection, limit: int, since: datetime | None) -> Sequence[Sequence[Any]]:
        tasks = self._tasks
        due = sa.select(tasks.c.task_name, sa.func.coalesce(tasks.c.priority, 50), tasks.c.execution_time)
        due = due.where(*self._waiting(self.now(connection))).order_by(tasks.c.execution_time).limit(limit)
        kinds = (sa.text(HAS_SLOT), tasks.c.lost_count > 0)
        return [row for kind in kinds for row in connection.execute(due.where(kind))]

    def due_tasks(self, connection: sa.Connection, names: Sequence[str]) -> set[str]:
        name, due = self._tasks.c.task_name, self._waiting(self.now(connection))
        found = sa.select(name).where(*due, name.in_(list(names)), self._not_all_paused())
        return set(connection.scalars(found.distinct()))

    def next_due(
        self, connection: sa.Connection, names: Sequence[str], tasks: Sequence[str], *, lost: int = 1,
        since: datetime | None = None, no_slots: bool = False,
    ) -> tuple[timedelta | None, datetime | None]:  # fmt: skip
        rows, now = self._tasks, self.now(connection)
        fresh = rows.c.lost_count == 0
        kinds = [(names, sa.text(HAS_SLOT) & fresh), (tasks, sa.text(IS_TASK) & fresh)]
        if lost:
            kinds.append((names, rows.c.lost_count > 0))
        waiting = sa.select(sa.func.min(rows.c.execution_time, type_=rows.c.execution_time.type))
        waiting = waiting.where(*self._waiting(), self._not_all_paused())
        found = [connection.scalar(waiting.where(rows.c.task_name.in_(list(some)), kind)) for some, kind in kinds]
        due = min((one for one in found if one is not None), default=None)
        return None if due is None else due - now, None

    def newest_decided(
        self, connection: sa.Connection, plans: Sequence[Key], strict: Collection[str]
    ) -> list[datetime | None]:
        return [
            _newest_of(*connection.execute(_newest(self.tables, strict=plan.task_name in strict), plan._asdict()).one())
            for plan in plans
        ]

    def begin(
        self, connection: sa.Connection, started: Sequence[Row], now: datetime, strict: Collection[str]
    ) -> set[Key]:
        for row in started:
            begun = self._tasks.update().where(*self.under(row, row.picked_by)).values(decided(row))
            expect(connection.execute(begun).rowcount, 1, row)
        return {row.key for row in started if self.enter(connection, row, now, strict)}

    def beat(self, connection: sa.Connection, holder: str, claims: Sequence[Claim]) -> set[Fence]:
        beat = self._tasks.update().values(last_heartbeat=self.now(connection))
        held = {claim.fence: self.under(claim.row, claim.holder) for claim in claims}
        return {fence for fence, mine in held.items() if connection.execute(beat.where(*mine)).rowcount}

    def silent_rows(self, connection: sa.Connection, names: Sequence[str]) -> tuple[datetime, list[Row]]:
        held = sa.select(*self.hold_columns).where(self._tasks.c.picked, self._tasks.c.task_name.in_(list(names)))
        held = held.order_by(self._tasks.c.last_heartbeat).limit(MOST_HELD)
        return self.now(connection), [row_of(values, names=HOLD_COLUMNS) for values in connection.execute(held)]

    def finish(self, connection: sa.Connection, claims: Sequence[Claim]) -> tuple[str | None, int]:
        tasks = self._tasks
        unasked = (tasks.c.state.is_(None), tasks.c.wanted_due.is_(None), tasks.c.cancel_requested.is_(None))
        gone = [tasks.delete().where(*self.held(claim), *unasked) for claim in claims]
        return None, sum(connection.execute(one).rowcount for one in gone)

    def hold(self, connection: sa.Connection, claims: Sequence[Claim], *, wait: bool) -> list[Held]:
        now, look = self.now(connection), sa.select(*self.row_columns)
        found = [connection.execute(look.where(*self.held(claim))).first() for claim in claims]
        return [Held(row=row_of(values), now=now) for values in found if values is not None]

    def entries(
        self, connection: sa.Connection, keys: Sequence[LedgerKey], *, wait: bool
    ) -> dict[LedgerKey, tuple[LedgerEntry | None, str | None]]:
        slots = self._slots
        final = slots.c.finished.is_not(None).label("final")
        look = sa.select(slots.c.outcome, slots.c.token, final, slots.c.aborted, slots.c.started)
        found = {key: connection.execute(look.where(*self.at(key))).mappings().first() for key in keys}
        return {key: (None if values is None else LedgerEntry(**values), None) for key, values in found.items()}

    def mark_running(self, connection: sa.Connection, claim: Claim) -> bool:
        slots = self._slots
        marked = slots.update().where(*self.entry_of(claim), slots.c.outcome == Outcome.CLAIMED)
        marked = marked.values(outcome=Outcome.RUNNING, started=self.now(connection))
        return connection.execute(marked).rowcount == 1

    def mark_tasks(self, connection: sa.Connection, claims: Sequence[Claim]) -> set[Fence]:
        mark = self._tasks.update().values(marked=self.now(connection)).where(self._tasks.c.marked.is_(None))
        return {one.fence for one in claims if connection.execute(mark.where(*self.held(one))).rowcount}

    def gaps(self, connection: sa.Connection, gaps: Sequence[tuple[Row, Gap]], now: datetime) -> None:
        whole = [(row, part) for row, gap in gaps for part in self.close_open_slots(connection, row, gap, now)]
        for row, gap in whole:
            place = {**row.plan_key._asdict(), "reason": gap.reason}
            if gap.count == 1:
                skipped = {"slot": gap.first, "outcome": Outcome.SKIPPED, "finished": now}
                self.insert_new(connection, self._slots, place | skipped)
            elif not self._extend_gap(connection, row, gap, now):
                several = {"first_slot": gap.first, "last_slot": gap.last, "count": gap.count, "created": now}
                self.upsert(  # what was decided once is never undone
                    connection, self.tables.gaps, place | several,
                    again=lambda new: {name: new[name] for name in ("last_slot", "count", "reason", "created")},
                    where=lambda new: new.last_slot > self.tables.gaps.c.last_slot,
                )  # fmt: skip

    def _extend_gap(self, connection: sa.Connection, row: Row, gap: Gap, now: datetime) -> bool:
        """Extend the job's last gap by one that follows it, for the same reason; return whether it does.

        A slot of an earlier schedule may lie between.
        """
        if gap.after is None:
            return False
        gaps, slots = self.tables.gaps, self._slots
        between = sa.select(slots.c.slot).where(*of_key(slots, row.plan_key))
        between = between.where(slots.c.slot > gap.after, slots.c.slot < gap.first)
        follows = [gaps.c.last_slot == gap.after, gaps.c.reason == gap.reason, gaps.c.first_slot < gap.first]
        extended = gaps.update().where(*of_key(gaps, row.plan_key), *follows, ~between.exists())
        extended = extended.values(last_slot=gap.last, count=gaps.c.count + gap.count, created=now)
        return connection.execute(extended).rowcount == 1

    # -- one-time tasks ---------------------------------------------------------------------------------------

    def task_statements(self, wake: timedelta | None) -> TaskStatements:
        return PortableTasks(self)


def _least(column: Expression, most: int) -> Expression:
    return sa.case((column > most, most), else_=column)


def _has_written(connection: Joinable, table: sa.Table, insert: Upsert) -> bool:
    """Not by the count of rows: not every driver of a caller's connection has one."""
    return connection.execute(insert.returning(table.primary_key.columns[0])).fetchone() is not None


@lru_cache(maxsize=16)
def _entry(insert: Callable[[sa.Table], Upsert], slots: sa.Table, *, strict: bool) -> sa.Executable:
    """Built once: each late slot needs one, and building it costs more than sending it."""
    statement = insert(slots)
    was_never_started = sa.literal(not strict) | (slots.c.attempts == 0)
    again = {
        name: statement.excluded[name] for name in ("outcome", "reason", "collapsed", "token", "worker", "started")
    }
    return statement.on_conflict_do_update(
        index_elements=[slots.c.task_name, slots.c.task_instance, slots.c.slot],
        set_={**again, "attempts": _least(slots.c.attempts, LAST_ATTEMPT) + 1, "started_before": slots.c.started},
        where=slots.c.finished.is_(None) & (slots.c.outcome != Outcome.RUNNING) & was_never_started,
    ).returning(slots.c.token)


def _newest_of(in_ledger: datetime | None, in_gaps: datetime | None) -> datetime | None:
    return max((found for found in (in_ledger, in_gaps) if found), default=None)


@lru_cache(maxsize=16)
def _newest(tables: Tables, *, strict: bool) -> sa.Executable:
    """Built once: each late slot needs one."""
    slots, gaps = tables.slots, tables.gaps
    name, instance = sa.bindparam("task_name", type_=sa.Text), sa.bindparam("task_instance", type_=sa.Text)
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
