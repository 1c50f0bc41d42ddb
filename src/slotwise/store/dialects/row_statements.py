"""Statements that find or write one row: all that SQLite sends, and on PostgreSQL what is rare or has no batch.

Each is right in any database that has RETURNING and ON CONFLICT, as long as reading there is locking, or the caller
holds the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import sqlalchemy as sa

from slotwise.decide.ending import UNREADABLE, UNREADABLE_PAUSE
from slotwise.model.records import (
    EARLIEST,
    FOREVER,
    RECURRING,
    AttemptOutcome,
    Cancelled,
    Claim,
    Died,
    Failed,
    Gap,
    Key,
    LedgerKey,
    Row,
    Succeeded,
)
from slotwise.model.vocabulary import PLANNED, Kind, Origin, Outcome, Reason, Release, State
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.queue_cursors import Range
from slotwise.store.schema.rows import (
    CHANGED_COLUMNS,
    Change,
    hold_of,
    ledger_instance,
    stored,
    utc,
)
from slotwise.store.schema.tables import HAS_SLOT, IS_TASK, PAUSED_KEY, RANK, Tables

if TYPE_CHECKING:
    from sqlalchemy.sql.base import ReadOnlyColumnCollection
    from sqlalchemy.sql.elements import KeyedColumnElement

    from slotwise.store.dialects.port import Dialect, Upsert

    New: TypeAlias = ReadOnlyColumnCollection[str, KeyedColumnElement[Any]]

Values: TypeAlias = dict[str, object]
Expression: TypeAlias = sa.ColumnElement[Any]

#: Of so many slots one may have been started again after newer ones.
_NEWEST = 100

#: What a row is without its holder.
_RELEASED: Values = dict.fromkeys(("picked_by", "last_heartbeat", "lease", "cancel_requested", "wanted_due"))
_RELEASED["picked"] = False

#: Whether a slot that the ledger has already, in a row ``s``, may start: in each of PostgreSQL's statements that enter
#: one. It has not ended, does not run, and was never started if its job starts each slot once (``strict``).
MAY_START = """\
s.finished IS NULL AND s.outcome <> 'running'
      AND (s.attempts = 0 OR NOT excluded.task_name = ANY (%(strict)s::text[]))"""


def may_start(slots: sa.Table, *, strict: bool) -> sa.ColumnElement[bool]:
    """As MAY_START, for a single slot."""
    was_never_started = sa.literal(not strict) | (slots.c.attempts == 0)
    return slots.c.finished.is_(None) & (slots.c.outcome != Outcome.RUNNING) & was_never_started


def of_key(table: sa.FromClause, row: Key | LedgerKey | Row) -> list[sa.ColumnElement[bool]]:
    """Whether a row of this table has this name and instance."""
    return [table.c.task_name == row.task_name, table.c.task_instance == row.task_instance]


class RowStatements:
    """The statements of a dialect that find or write one row at a time."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._tables = dialect.tables

    def under(self, row: Row, holder: str | None) -> list[sa.ColumnElement[bool]]:
        """Whether a row is held under this token by this holder, or was until just now."""
        tasks = self._tables.tasks
        return [*of_key(tasks, row), tasks.c.version == row.version, tasks.c.picked_by == holder]

    def held(self, claim: Claim) -> list[sa.ColumnElement[bool]]:
        """Whether a row is still held under this claim."""
        return [*self.under(claim.row, claim.holder), self._tables.tasks.c.picked]

    def at(self, key: LedgerKey) -> list[sa.ColumnElement[bool]]:
        """Whether a ledger row is that of this slot."""
        return [*of_key(self._tables.slots, key), self._tables.slots.c.slot == key.slot]

    def _open_entry(self, row: Row) -> list[sa.ColumnElement[bool]]:
        """The ledger row of this claim, as long as its slot has not ended."""
        slots, key = self._tables.slots, row.ledger_key
        assert key is not None
        return [*self.at(key), slots.c.token == row.version, slots.c.finished.is_(None)]

    def not_all_paused(self) -> sa.ColumnElement[bool]:
        """Whether claims are not paused altogether; evaluated once per statement, not per row."""
        return ~sa.exists().where(self._tables.meta.c.key == PAUSED_KEY)

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
        """Return the rows that a claim would take."""
        tasks = self._tables.tasks
        due = (
            sa.select(tasks.c.task_name, tasks.c.task_instance)
            .where(~tasks.c.picked, tasks.c.state.is_(None), tasks.c.execution_time <= self._dialect.now(connection))
            .where(tasks.c.task_name.in_(list(names)))
        )
        due = due.where(self.not_all_paused() if instance is None else tasks.c.task_instance == instance)
        oldest = (tasks.c.execution_time, tasks.c.task_name, tasks.c.task_instance)
        first = connection.execute(due.where(tasks.c.lost_count > 0).order_by(*oldest).limit(lost)).all()
        fresh = due.where(tasks.c.lost_count == 0, sa.text(kind) if instance is None else sa.true())
        for one in ranges:
            if one.since is not None:
                behind = (tasks.c.task_name == one.task_name) & (tasks.c.execution_time < one.since)
                fresh = fresh.where(~(behind & sa.text(f"{RANK} BETWEEN {one.first} AND {one.last}")))
        others = connection.execute(fresh.order_by(*self._rank(names, kind), *oldest).limit(limit)).all()
        return [Key(*key) for key in (*first, *others)][:limit]

    def _rank(self, names: Sequence[str], kind: str) -> list[Expression]:
        """The order of claims: the highest priority first; one-time tasks then name by name, as given."""
        order: list[Expression] = [sa.literal_column(RANK)]
        if kind == IS_TASK:
            places = {name: place for place, name in enumerate(names)}
            order.append(sa.case(places, value=self._tables.tasks.c.task_name))
        return order

    def newest_decided(self, connection: sa.Connection, name: str, instance: str, *, strict: bool) -> datetime | None:
        """Return the newest slot that started or was decided, by ledger and gaps; detached runs do not count."""
        plan = {"name": name, "instance": instance}
        found = connection.execute(_newest(self._tables, strict=strict), plan).one()
        return _newest_of(found[0], found[1])

    def last_start(self, connection: sa.Connection, name: str) -> datetime | None:
        """Return the latest start among the newest slots of a job's schedule, by the ledger."""
        slots = self._tables.slots
        newest = (
            sa.select(slots.c.started)
            .where(slots.c.task_name == name, slots.c.task_instance == RECURRING)
            .where(slots.c.origin.in_(PLANNED), slots.c.started.is_not(None))
            .order_by(slots.c.slot.desc())
            .limit(_NEWEST)
            .subquery()
        )
        found = connection.scalar(sa.select(sa.func.max(newest.c.started, type_=newest.c.started.type)))
        return None if found is None else utc(found)

    def enter(self, connection: sa.Connection, row: Row, now: datetime, *, strict: bool) -> bool:
        """Write the ledger row of the claim's slot; return False if it may not run (again)."""
        values = {
            "task_name": row.task_name, "task_instance": ledger_instance(row), "slot": row.slot,
            "outcome": Outcome.CLAIMED if strict else Outcome.RUNNING, "reason": None,
            "origin": row.origin or Origin.SCHEDULE, "attempts": row.attempt, "collapsed": row.collapsed,
            "token": row.version, "worker": row.picked_by, "started": None if strict else now,
        }  # fmt: skip
        entry = _entry(self._dialect.insert, self._tables.slots, strict=strict)
        return connection.execute(entry, values).first() is not None

    def undo_entry(self, connection: sa.Connection, row: Row, *, keep: bool = False) -> None:
        """Restore the ledger to its state before this claim entered the row's slot, which never began.

        An entry of this claim alone is deleted, unless it is to be kept as ``claimed``. An entry that stays gets the
        token of the waiting row. Race: a mark of this claim that arrives late then finds nothing.
        """
        slots = self._tables.slots
        mine = self._open_entry(row)
        alone = [slots.c.attempts <= 1, slots.c.lost == 0, slots.c.aborted == 0]
        if not keep and connection.execute(slots.delete().where(*mine, *alone)).rowcount:
            return
        before: Values = {"attempts": slots.c.attempts - 1, "started": slots.c.started_before}
        if not keep:  # else this very transaction records the rest
            before["token"] = slots.c.token + 1
        connection.execute(slots.update().where(*mine).values(outcome=Outcome.CLAIMED, **before))

    def release(self, connection: sa.Connection, change: Change) -> int:
        """Write the new state of a held row; return how many rows were written."""
        tasks, row = self._tables.tasks, change.held.row
        mine = self.under(row, row.picked_by)
        if change.transition.row is None:
            return connection.execute(tasks.delete().where(*mine)).rowcount
        columns = stored(row, change.transition.row)
        values = {name: columns[name] for name in CHANGED_COLUMNS if name in columns}
        released = tasks.update().where(*mine).values(**values, **_RELEASED, version=tasks.c.version + 1)
        return connection.execute(released).rowcount

    def record(self, connection: sa.Connection, change: Change) -> None:
        """Write a change into the ledger, under the token; a row that is final already stays as it is."""
        slots, row, record = self._tables.slots, change.held.row, change.transition.record
        if row.ledger_key is None or record is None:
            return
        if record.forget:
            self.undo_entry(connection, row)
            return
        begun: Values = {"started": slots.c.started_before} if change.never_began else {}
        if change.never_began and not record.final:
            begun["token"] = slots.c.token + 1  # see undo_entry
        connection.execute(
            slots.update()
            .where(*self._open_entry(row))
            .values(
                outcome=record.outcome, reason=record.reason, error=record.error, attempts=record.attempts,
                lost=slots.c.lost + record.lost, aborted=slots.c.aborted + record.aborted,
                finished=change.finished, **begun,
            )
        )  # fmt: skip

    def close_open_slots(self, connection: sa.Connection, row: Row, gap: Gap, now: datetime) -> None:
        """End open slots of the gap that another claim left behind, because the queue was restored alone.

        A slot that never began is skipped, not lost.
        """
        slots = self._tables.slots
        outcome = sa.case((slots.c.started.is_(None), Outcome.SKIPPED.value), else_=Outcome.LOST.value)
        connection.execute(
            slots.update()
            .where(slots.c.task_name == row.task_name, slots.c.task_instance == ledger_instance(row))
            .where(slots.c.slot >= gap.first, slots.c.slot <= gap.last, slots.c.finished.is_(None))
            .where((slots.c.token != row.version) | (slots.c.worker != row.picked_by))
            .where(slots.c.origin.in_(PLANNED))
            .values(outcome=outcome, reason=gap.reason, finished=now)
        )

    def insert_new(
        self, connection: sa.Connection, table: sa.Table, values: Mapping[str, object], told: Expression | None = None
    ) -> bool:
        """Insert a row unless its key is taken; return whether it was. ``told``: the column to return."""
        return _has_written(connection, self._dialect.insert(table).values(**values).on_conflict_do_nothing(), told)

    def upsert(
        self,
        connection: Joinable,
        table: sa.Table,
        values: Mapping[str, object],
        again: Callable[[New], Mapping[str, object]],
        where: Callable[[New], sa.ColumnElement[bool]] | None = None,
        told: Expression | None = None,
    ) -> bool:
        """Insert a row, or change the one that has its key; return whether a row was written.

        Both functions get the columns of the new row. ``told``: the column to return.
        """
        insert = self._dialect.insert(table).values(**values)
        statement = insert.on_conflict_do_update(
            index_elements=list(table.primary_key.columns), set_=again(insert.excluded),
            where=where and where(insert.excluded),
        )  # fmt: skip
        return _has_written(connection, statement, told)

    def replace_all(self, connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, object]]) -> None:
        """Insert these rows, all of the same columns; each replaces the row that has its key."""
        insert, key = self._dialect.insert(table), list(table.primary_key.columns)
        again = {name: insert.excluded[name] for name in rows[0] if table.c[name] not in set(key)}
        connection.execute(insert.on_conflict_do_update(index_elements=key, set_=again), list(rows))

    def update_and_read(
        self, connection: sa.Connection, statement: sa.Update, *columns: Expression
    ) -> Sequence[Any] | None:
        """Update one row and return these columns of it; None if there is no such row."""
        return connection.execute(statement.returning(*columns)).first()

    def rows_of(self, connection: sa.Connection, holder: str) -> list[Row]:
        """Return the rows that this holder holds."""
        tasks = self._tables.tasks
        statement = sa.select(*self._dialect.hold_columns).where(tasks.c.picked, tasks.c.picked_by == holder)
        return [hold_of(values) for values in connection.execute(statement)]

    def quarantine(self, connection: sa.Connection, key: Key, error: str) -> None:
        """Postpone a waiting row that no claim can take, or end it; its ``last_error`` says why."""
        tasks = self._tables.tasks
        connection.execute(
            tasks.update()
            .where(*of_key(tasks, key), ~tasks.c.picked, tasks.c.state.is_(None))
            .values(**self._quarantined(connection, error))
        )

    def _quarantined(self, connection: sa.Connection, error: str) -> Values:
        """A job's row is due again in a minute: an error never ends a job. A task's row is dead, and stays."""
        tasks = self._tables.tasks
        goes_on = tasks.c.kind != Kind.TASK
        is_finite = tasks.c.execution_time.between(EARLIEST, FOREVER)  # it may not be in a table of db-scheduler's
        again = sa.literal(self._dialect.now(connection) + UNREADABLE_PAUSE, tasks.c.execution_time.type)
        return {
            "state": sa.case((goes_on, tasks.c.state), else_=State.DEAD.value),
            "parked_due": sa.case((goes_on | ~is_finite, sa.null()), else_=tasks.c.execution_time),
            "execution_time": sa.case((goes_on, again), else_=sa.literal(FOREVER, tasks.c.execution_time.type)),
            "last_error": f"{UNREADABLE}{error}".replace("\0", "\\0"),
        }

    def quarantine_held(
        self, connection: sa.Connection, claim: Claim, outcome: AttemptOutcome, error: str
    ) -> str | None:
        """As ``quarantine``, for a held row, under its claim's fence; return its state, None if the claim was lost.

        The ledger gets the handler's outcome. Without one, the next claim finds an orphan there.
        """
        tasks, slots, row = self._tables.tasks, self._tables.slots, claim.row
        mine = self.held(claim)
        if isinstance(outcome, Died):
            mine.append(tasks.c.last_heartbeat.is_not_distinct_from(row.last_heartbeat))
        quarantined = self._quarantined(connection, error) | _RELEASED
        statement = tasks.update().where(*mine).values(**quarantined, version=row.version + 1)
        found = connection.execute(statement.returning(tasks.c.state)).first()
        is_final = isinstance(outcome, Succeeded | Failed | Cancelled) and not getattr(outcome, "promised", False)
        if found is not None and row.ledger_key is not None and is_final:
            connection.execute(
                slots.update()
                .where(*self._open_entry(row))
                .values(outcome=outcome.name, reason=Reason.UNREADABLE, finished=self._dialect.now(connection))
            )
        return None if found is None else found.state or Release.POSTPONED


def _has_written(connection: Joinable, insert: Upsert, told: Expression | None) -> bool:
    if told is None:
        return connection.execute(insert.execution_options(preserve_rowcount=True)).rowcount == 1
    return connection.execute(insert.returning(told)).fetchone() is not None


@lru_cache(maxsize=16)
def _entry(insert: Callable[[sa.Table], Upsert], slots: sa.Table, *, strict: bool) -> sa.Executable:
    """Built once: each late slot needs one, and building it costs more than sending it."""
    statement = insert(slots)
    again = {
        name: statement.excluded[name] for name in ("outcome", "reason", "collapsed", "token", "worker", "started")
    }
    return statement.on_conflict_do_update(
        index_elements=[slots.c.task_name, slots.c.task_instance, slots.c.slot],
        set_={**again, "attempts": slots.c.attempts + 1, "started_before": slots.c.started},
        where=may_start(slots, strict=strict),
    ).returning(slots.c.token)


def _newest_of(in_ledger: datetime | None, in_gaps: datetime | None) -> datetime | None:
    return max((found for found in (in_ledger, in_gaps) if found), default=None)


@lru_cache(maxsize=16)
def _newest(tables: Tables, *, strict: bool) -> sa.Executable:
    """Built once: each late slot needs one."""
    slots, gaps = tables.slots, tables.gaps
    name, instance = sa.bindparam("name", type_=sa.Text), sa.bindparam("instance", type_=sa.Text)
    decided: sa.ColumnElement[bool] = slots.c.finished.is_not(None)
    if strict:
        decided = decided | (slots.c.outcome != Outcome.CLAIMED)
    in_ledger = (
        sa.select(slots.c.slot)
        .where(slots.c.task_name == name, slots.c.task_instance == instance)
        .where(slots.c.origin.in_(PLANNED), decided)
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
