"""Statements that find or write one row: all that SQLite sends, and on PostgreSQL what is rare or has no batch.

Each is right in any database that has RETURNING and ON CONFLICT, as long as reading there is locking, or the caller
holds the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from slotwise.decide import UNREADABLE, UNREADABLE_PAUSE
from slotwise.model.records import (
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
from slotwise.store.dialects.queue_cursors import Range
from slotwise.store.schema.rows import CHANGED_COLUMNS, LAST_TOKEN, NO_TOKEN, Change, hold_of, ledger_instance, utc
from slotwise.store.schema.tables import HAS_SLOT, IS_TASK, PAUSED_KEY, RANK, Tables

if TYPE_CHECKING:
    from slotwise.store.dialects.port import Dialect

#: Of so many slots one may have been started again after newer ones.
_NEWEST = 100

#: Whether a slot that the ledger has already, in a row ``s``, may start: in each of PostgreSQL's statements that enter
#: one. It has not ended, does not run, and was never started if its job starts each slot once (``strict``).
MAY_START = """\
s.finished IS NULL AND s.outcome <> 'running'
      AND (s.attempts = 0 OR NOT excluded.task_name = ANY (%(strict)s::text[]))"""


def may_start(slots: sa.Table, *, strict: bool) -> sa.ColumnElement[bool]:
    """As MAY_START, for a slot that is entered by itself."""
    was_never_started = sa.literal(not strict) | (slots.c.attempts == 0)
    return slots.c.finished.is_(None) & (slots.c.outcome != Outcome.RUNNING) & was_never_started


class RowStatements:
    """The statements of a dialect that find or write one row at a time."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._tables = dialect.tables

    def under(self, claim: Claim) -> list[sa.ColumnElement[bool]]:
        """Whether a row is held under this claim."""
        tasks = self._tables.tasks
        return [
            tasks.c.task_name == claim.row.task_name,
            tasks.c.task_instance == claim.row.task_instance,
            tasks.c.version == claim.row.version,
            tasks.c.picked_by == claim.holder,
        ]

    def held(self, claim: Claim) -> list[sa.ColumnElement[bool]]:
        """Whether a row is still held under this claim."""
        return [*self.under(claim), self._tables.tasks.c.picked]

    def at(self, key: LedgerKey) -> list[sa.ColumnElement[bool]]:
        """Whether a ledger row is that of this slot."""
        slots = self._tables.slots
        return [
            slots.c.task_name == key.task_name,
            slots.c.task_instance == key.task_instance,
            slots.c.slot == key.slot,
        ]

    def not_all_paused(self) -> sa.ColumnElement[bool]:
        """Whether an operator lets anything be claimed at all; asked once per statement, not per row."""
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
        """What a claim would take, without taking it."""
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

    def _rank(self, names: Sequence[str], kind: str) -> list[Any]:
        """What goes before what: the highest priority; of one-time tasks then name by name, as given."""
        order: list[Any] = [sa.text(RANK)]
        if kind == IS_TASK:
            places = {name: place for place, name in enumerate(names)}
            order.append(sa.case(places, value=self._tables.tasks.c.task_name))
        return order

    def newest_decided(self, connection: sa.Connection, name: str, instance: str, *, strict: bool) -> datetime | None:
        """The newest slot that the ledger or a gap knows as started or decided; detached runs do not count."""
        plan = {"name": name, "instance": instance}
        found: Any = connection.execute(_newest(self._tables, strict=strict), plan).one()
        return _newest_of(found[0], found[1])

    def last_start(self, connection: sa.Connection, name: str) -> datetime | None:
        """When one of the newest slots of a job's schedule was last started, as far as the ledger knows."""
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
        """Write the ledger row of the claim's slot; False if the ledger says that it may not run (again)."""
        values = {
            "task_name": row.task_name, "task_instance": ledger_instance(row), "slot": row.slot,
            "outcome": Outcome.CLAIMED if strict else Outcome.RUNNING, "reason": None,
            "origin": row.origin or Origin.SCHEDULE, "attempts": row.attempt, "collapsed": row.collapsed,
            "token": row.version, "worker": row.picked_by, "started": None if strict else now,
        }  # fmt: skip
        return (
            connection.execute(_entry(self._dialect.insert, self._tables.slots, strict=strict), values).first()
            is not None
        )

    def undo_entry(self, connection: sa.Connection, row: Row, *, keep: bool = False) -> None:
        """The ledger as it stood before this claim entered the row's slot, which never began.

        An entry that tells of nothing but this claim goes, unless it is to be kept as ``claimed``. One that stays has
        the token of the row that waits: a mark of this claim that comes late (it was held up on its way) finds nothing.
        """
        slots = self._tables.slots
        mine = [
            slots.c.task_name == row.task_name, slots.c.task_instance == ledger_instance(row),
            slots.c.slot == row.slot, slots.c.token == row.version, slots.c.finished.is_(None),
        ]  # fmt: skip
        alone = [slots.c.attempts <= 1, slots.c.lost == 0, slots.c.aborted == 0]
        if not keep and connection.execute(slots.delete().where(*mine, *alone)).rowcount:
            return
        before: dict[str, Any] = {"attempts": slots.c.attempts - 1, "started": slots.c.started_before}
        if not keep:  # else this very transaction records the rest
            before["token"] = slots.c.token + 1
        connection.execute(slots.update().where(*mine).values(outcome=Outcome.CLAIMED, **before))

    def release(self, connection: sa.Connection, change: Change) -> int:
        """Write what becomes of a held row; return how many rows were written."""
        tasks, mine = self._tables.tasks, self._as_held(change.held.row)
        if change.transition.row is None:
            return connection.execute(tasks.delete().where(*mine)).rowcount
        values = {name: change.transition.row[name] for name in CHANGED_COLUMNS if name in change.transition.row}
        released = {
            "picked": False, "picked_by": None, "last_heartbeat": None, "lease": None, "cancel_requested": None,
            "wanted_due": None,
            "version": tasks.c.version + 1,
        }  # fmt: skip
        return connection.execute(tasks.update().where(*mine).values(**values, **released)).rowcount

    def _as_held(self, row: Row) -> list[sa.ColumnElement[bool]]:
        """The row is what it was when this transaction locked it."""
        tasks = self._tables.tasks
        return [
            tasks.c.task_name == row.task_name,
            tasks.c.task_instance == row.task_instance,
            tasks.c.version == row.version,
            tasks.c.picked_by == row.picked_by,
        ]

    def record(self, connection: sa.Connection, change: Change) -> None:
        """Write the ledger's side of a change, under the token; a row that is final already stays as it is."""
        slots, key, record = self._tables.slots, change.ledger_key, change.transition.record
        if key is None or record is None:
            return
        mine = self._open_entry(key, change.held.row.version)
        if record.forget:
            self.undo_entry(connection, change.held.row)
            return
        begun: dict[str, Any] = {"started": slots.c.started_before} if change.never_began else {}
        if change.never_began and not record.final:
            begun["token"] = slots.c.token + 1  # see undo_entry
        connection.execute(
            slots.update()
            .where(*mine)
            .values(
                outcome=record.outcome, reason=record.reason, error=record.error, attempts=record.attempts,
                lost=slots.c.lost + record.lost, aborted=slots.c.aborted + record.aborted,
                finished=change.finished, **begun,
            )
        )  # fmt: skip

    def _open_entry(self, key: LedgerKey, token: int) -> list[sa.ColumnElement[bool]]:
        """The ledger row of this claim, as long as its slot has not ended."""
        slots = self._tables.slots
        return [*self.at(key), slots.c.token == token, slots.c.finished.is_(None)]

    def close_open_slots(self, connection: sa.Connection, row: Row, gap: Gap, now: datetime) -> None:
        """A slot of the gap that somebody had long ago and nobody ended (the queue was restored alone) ends here.

        What never began is not lost.
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
        self, connection: sa.Connection, table: sa.Table, values: Mapping[str, Any], told: sa.Column[Any] | None = None
    ) -> bool:
        """Insert a row unless its key is taken; return whether it was inserted. ``told``: a column that comes back."""
        return _has_written(connection, self._dialect.insert(table).values(**values).on_conflict_do_nothing(), told)

    def upsert(
        self,
        connection: sa.Connection,
        table: sa.Table,
        values: Mapping[str, Any],
        again: Callable[[Any], Mapping[str, Any]],
        where: Callable[[Any], sa.ColumnElement[bool]] | None = None,
        told: sa.Column[Any] | None = None,
    ) -> bool:
        """Insert a row, or change the one that has its key; return whether a row was written.

        Both functions are given the columns of the new row. ``told``: a column that comes back.
        """
        insert = self._dialect.insert(table).values(**values)
        statement = insert.on_conflict_do_update(
            index_elements=list(table.primary_key.columns), set_=again(insert.excluded),
            where=where and where(insert.excluded),
        )  # fmt: skip
        return _has_written(connection, statement, told)

    def update_and_read(
        self, connection: sa.Connection, statement: sa.Update, *columns: sa.ColumnElement[Any]
    ) -> Sequence[Any] | None:
        """Update one row and return these columns of it; None: there was none."""
        return connection.execute(statement.returning(*columns)).first()

    def rows_of(self, connection: sa.Connection, holder: str) -> list[Row]:
        """The holds that the database has under this holder."""
        tasks = self._tables.tasks
        statement = sa.select(*self._dialect.hold_columns).where(tasks.c.picked, tasks.c.picked_by == holder)
        return [hold_of(values) for values in connection.execute(statement)]

    def quarantine(self, connection: sa.Connection, key: Key, error: str) -> None:
        """Put off a waiting row, unread, that no claim can take; it says why."""
        tasks = self._tables.tasks
        connection.execute(
            tasks.update()
            .where(tasks.c.task_name == key.task_name, tasks.c.task_instance == key.task_instance)
            .where(~tasks.c.picked, tasks.c.state.is_(None))
            .values(**self._aside(connection, error))
        )

    def _aside(self, connection: sa.Connection, error: str) -> dict[str, Any]:
        """A job's row comes up again in a minute: a job never ends by a mistake. A task's is dead, and stays."""
        tasks = self._tables.tasks
        goes_on = tasks.c.kind != Kind.TASK
        again = sa.literal(self._dialect.now(connection) + UNREADABLE_PAUSE, tasks.c.execution_time.type)
        has_token = tasks.c.version < LAST_TOKEN  # else a database says of it only what it says of any number
        return {
            "state": sa.case((goes_on, tasks.c.state), else_=State.DEAD.value),
            "parked_due": sa.case((goes_on, sa.null()), else_=tasks.c.execution_time),
            "execution_time": sa.case((goes_on, again), else_=sa.literal(FOREVER, tasks.c.execution_time.type)),
            "last_error": sa.case(
                (has_token, f"{UNREADABLE}{error}".replace("\0", "\\0")), else_=UNREADABLE + NO_TOKEN
            ),
        }

    def let_go_aside(self, connection: sa.Connection, claim: Claim, outcome: AttemptOutcome, error: str) -> str | None:
        """As ``quarantine``, for a held row, under its claim's fence; what it is then, None if the claim was lost.

        What the handler came to is told to the ledger. If it came to nothing, the next claim finds an orphan there.
        """
        tasks, slots, row = self._tables.tasks, self._tables.slots, claim.row
        mine = self.held(claim)
        if isinstance(outcome, Died):
            mine.append(tasks.c.last_heartbeat.is_not_distinct_from(row.last_heartbeat))
        released = {
            "picked": False, "picked_by": None, "last_heartbeat": None, "lease": None, "cancel_requested": None,
            "wanted_due": None, "version": min(row.version + 1, LAST_TOKEN),
        }  # fmt: skip
        statement = tasks.update().where(*mine).values(**self._aside(connection, error), **released)
        found = connection.execute(statement.returning(tasks.c.state)).first()
        is_final = isinstance(outcome, Succeeded | Failed | Cancelled) and not getattr(outcome, "promised", False)
        if found is not None and row.ledger_key is not None and is_final:
            connection.execute(
                slots.update()
                .where(*self.at(row.ledger_key), slots.c.token == row.version, slots.c.finished.is_(None))
                .values(outcome=outcome.name, reason=Reason.UNREADABLE, finished=self._dialect.now(connection))
            )
        return None if found is None else found.state or Release.POSTPONED


def _has_written(connection: sa.Connection, insert: Any, told: sa.Column[Any] | None) -> bool:
    if told is None:
        return connection.execute(insert.execution_options(preserve_rowcount=True)).rowcount == 1
    return connection.execute(insert.returning(told)).first() is not None


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


def _newest_of(in_ledger: datetime | None, in_gaps: datetime | None) -> datetime | None:
    return max((found for found in (in_ledger, in_gaps) if found), default=None)


@lru_cache(maxsize=16)
def _newest(tables: Tables, *, strict: bool) -> sa.Select[tuple[datetime | None, datetime | None]]:
    """Made once: each late slot asks."""
    slots, gaps, name, instance = (
        tables.slots,
        tables.gaps,
        sa.bindparam("name", type_=sa.Text),
        sa.bindparam("instance", type_=sa.Text),
    )
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
