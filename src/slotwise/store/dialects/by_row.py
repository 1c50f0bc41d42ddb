"""Single rows: conditions, and statements by key and version, right on every database with
RETURNING and ON CONFLICT.

Verbs of the port are made of them where there is one writer at a time; elsewhere what is rare, or
has no batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import sqlalchemy as sa

from slotwise.decide.claim import of_gap, without
from slotwise.decide.ending import UNREADABLE, UNREADABLE_PAUSE
from slotwise.model import records
from slotwise.model.records import EARLIEST, FOREVER, Claim, Fence, Gap, Key, LedgerKey, Row
from slotwise.model.vocabulary import PLANNED, Kind, Origin, Outcome, Reason, Release, State
from slotwise.schedules.text import readable
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.schema.rows import (
    ADDED_COLUMNS,
    LAST_ATTEMPT,
    LAST_VERSION,
    Change,
    expect,
    stored,
    utc,
)
from slotwise.store.schema.tables import HAS_SLOT, IS_TASK, PAUSED_KEY, RANK, Tables

if TYPE_CHECKING:
    from sqlalchemy.sql.base import ReadOnlyColumnCollection
    from sqlalchemy.sql.elements import KeyedColumnElement

    from slotwise.store.dialects.port import Dialect, Order, Upsert

    New: TypeAlias = ReadOnlyColumnCollection[str, KeyedColumnElement[Any]]

Values: TypeAlias = dict[str, object]
Expression: TypeAlias = sa.ColumnElement[Any]
Conditions: TypeAlias = list[sa.ColumnElement[bool]]

#: What a row is without its holder.
_RELEASED: Values = dict.fromkeys(
    ("picked_by", "last_heartbeat", "lease", "cancel_requested", "wanted_due", "marked")
)
_RELEASED["picked"] = False


def of_key(table: sa.FromClause, row: Key | LedgerKey | Row) -> Conditions:
    return [table.c.task_name == row.task_name, table.c.task_instance == row.task_instance]


class ByRow:
    """The statements of one dialect, by its insert and its clock."""

    def __init__(self, dialect: Dialect, tables: Tables) -> None:
        self._dialect = dialect
        self._tables = tables
        self._tasks = tables.tasks
        self._slots = tables.slots

    # -- conditions -------------------------------------------------------------------------------

    def under(self, row: Row, holder: str | None) -> Conditions:
        """Whether a row is held under this token by this holder, or was until just now."""
        return [
            *of_key(self._tasks, row),
            self._tasks.c.version == row.version,
            self._tasks.c.picked_by == holder,
        ]

    def held(self, claim: Claim) -> Conditions:
        return [*self.under(claim.row, claim.holder), self._tasks.c.picked]

    def at(self, key: LedgerKey | None) -> Conditions:
        assert key is not None  # one-time tasks have no row there
        return [*of_key(self._slots, key), self._slots.c.slot == key.slot]

    def entry_of(self, claim: Claim) -> Conditions:
        mine = self.at(claim.row.ledger_key)
        return [
            *mine,
            self._slots.c.token == claim.token,
            self._slots.c.worker == claim.holder,
        ]

    def _open_entry(self, row: Row) -> Conditions:
        """The ledger row of this claim, as long as its slot has not ended."""
        return [
            *self.at(row.ledger_key),
            self._slots.c.token == row.version,
            self._slots.c.finished.is_(None),
        ]

    def waiting(self, by: datetime | None = None) -> Conditions:
        """Whether a row waits, and is due by then."""
        tasks = self._tasks
        due = () if by is None else (tasks.c.execution_time <= by,)
        return [~tasks.c.picked, tasks.c.state.is_(None), *due]

    def not_all_paused(self) -> sa.ColumnElement[bool]:
        """Whether claims are not paused altogether; evaluated once per statement, not per row."""
        return ~sa.exists().where(self._tables.meta.c.key == PAUSED_KEY)

    # -- rows by key ------------------------------------------------------------------------------

    def due(
        self, connection: sa.Connection, order: Order, kind: str = HAS_SLOT
    ) -> list[Key]:
        """Return the rows that a claim would take."""
        tasks = self._tasks
        instance = order.instance
        due = sa.select(tasks.c.task_name, tasks.c.task_instance)
        due = due.where(
            *self.waiting(self._dialect.now(connection)), tasks.c.task_name.in_(order.names)
        )
        due = due.where(
            self.not_all_paused() if instance is None else tasks.c.task_instance == instance
        )
        oldest = (tasks.c.execution_time, tasks.c.task_name, tasks.c.task_instance)
        first = connection.execute(
            due.where(tasks.c.lost_count > 0).order_by(*oldest).limit(order.lost)
        ).all()
        fresh = due.where(
            tasks.c.lost_count == 0, sa.text(kind) if instance is None else sa.true()
        )
        for one in order.ranges or ():
            if one.since is not None:
                behind = (tasks.c.task_name == one.task_name) & (
                    tasks.c.execution_time < one.since
                )
                fresh = fresh.where(
                    ~(behind & sa.text(f"{RANK} BETWEEN {one.first} AND {one.last}"))
                )
        others = connection.execute(
            fresh.order_by(*self._rank(order.names, kind), *oldest).limit(order.limit)
        ).all()
        return [Key(*key) for key in (*first, *others)][: order.limit]

    def _rank(self, names: Sequence[str], kind: str) -> list[Expression]:
        """The order of claims: the highest priority first; one-time tasks then name by name, as
        given.
        """
        rank: list[Expression] = [sa.literal_column(RANK)]
        places = {name: place for place, name in enumerate(names)}
        return (
            [*rank, sa.case(places, value=self._tasks.c.task_name)]
            if kind == IS_TASK
            else rank
        )

    def enter(
        self, connection: sa.Connection, row: Row, now: datetime, strict: Collection[str]
    ) -> bool:
        """Write the ledger row of the claim's slot; return False if it may not run (again)."""
        gives_up = row.task_name in strict
        values = {
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
        return (
            connection.execute(
                _entry(self._dialect.insert, self._slots, strict=gives_up), values
            ).first()
            is not None
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
        slots = self._slots
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
            self._tasks.c.task_name,
            self._tasks.c.task_instance,
            self._tasks.c.version,
        )
        asked = [(*claim.key, claim.token) for claim in claims]
        mine = [
            self._tasks.c.picked_by == claims[0].holder,
            self._tasks.c.picked,
            sa.tuple_(*fence).in_(asked),
        ]
        found = connection.execute(sa.select(*fence).where(*mine))
        return {Fence(Key(name, instance), version) for name, instance, version in found}

    def release(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        """As ``Dialect.release``, also for rows that this transaction has claimed."""
        tasks = self._tasks
        count = 0
        version = least(self._tasks.c.version, LAST_VERSION + 1) + 1
        for change in changes:
            row = change.held.row
            columns = change.transition.row
            write: sa.Delete | sa.Update = tasks.delete()
            if columns is not None:
                write = tasks.update().values(
                    **stored(row, columns), **_RELEASED, version=version
                )
            count += connection.execute(
                write.where(*self.under(row, row.picked_by))
            ).rowcount
        expect(count, len(changes), changes[0].held.row)
        self.record(connection, changes)

    def record(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        slots = self._slots
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
            connection.execute(slots.update().where(*self._open_entry(row)).values(values))

    def close_open_slots(
        self, connection: sa.Connection, row: Row, gap: Gap, now: datetime
    ) -> list[Gap]:
        """End open slots of the gap that another claim left behind, because the queue was restored
        alone.

        A slot that never began is skipped, not lost. Return the gap without them, in parts: they
        have their own rows.
        """
        slots = self._slots
        outcome = sa.case(
            (slots.c.started.is_(None), Outcome.SKIPPED.value), else_=Outcome.LOST.value
        )
        closed = connection.scalars(
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
            .returning(slots.c.slot)
        ).all()
        schedule = readable(row.schedule) if closed else None
        holes = [(slot, slot) for slot in sorted(map(utc, closed))]
        return (
            [gap] if schedule is None else list(without(of_gap(schedule, gap), gap, holes))
        )

    def insert_new(
        self, connection: sa.Connection, table: sa.Table, values: Mapping[str, object]
    ) -> bool:
        """Insert a row unless its key is taken; return whether it was inserted."""
        return _has_written(
            connection,
            table,
            self._dialect.insert(table).values(**values).on_conflict_do_nothing(),
        )

    def insert_missing(
        self,
        connection: sa.Connection,
        table: sa.Table,
        rows: Sequence[Mapping[str, object]],
    ) -> Sequence[Any]:
        """As ``insert_new``, many rows of the same columns; return the first column of the key of
        those inserted.
        """
        insert = (
            self._dialect.insert(table)
            .on_conflict_do_nothing()
            .returning(table.primary_key.columns[0])
        )
        return connection.scalars(insert, list(rows)).all()

    def upsert(
        self,
        connection: Joinable,
        table: sa.Table,
        values: Mapping[str, object],
        again: Callable[[New], Mapping[str, object]],
        where: Callable[[New], sa.ColumnElement[bool]] | None = None,
    ) -> bool:
        """Insert a row, or change the one that has its key; return whether a row was written.

        Both functions get the columns of the new row.
        """
        insert = self._dialect.insert(table).values(**values)
        statement = insert.on_conflict_do_update(
            index_elements=list(table.primary_key.columns),
            set_=again(insert.excluded),
            where=where and where(insert.excluded),
        )
        return _has_written(connection, table, statement)

    def replace_all(
        self,
        connection: sa.Connection,
        table: sa.Table,
        rows: Sequence[Mapping[str, object]],
    ) -> None:
        """Insert these rows, all of the same columns; each replaces the row that has its key."""
        insert = self._dialect.insert(table)
        key = list(table.primary_key.columns)
        again = {
            name: insert.excluded[name] for name in rows[0] if table.c[name] not in set(key)
        }
        connection.execute(
            insert.on_conflict_do_update(index_elements=key, set_=again), list(rows)
        )

    def reading(
        self, statement: sa.Update | sa.Delete, *columns: Expression
    ) -> sa.Executable:
        """Let a statement return these columns of the rows that it writes."""
        return statement.returning(*columns)

    def quarantine(self, connection: sa.Connection, key: Key, error: str) -> None:
        """Postpone a waiting row that no claim can take, or end it; its ``last_error`` says
        why.
        """
        mine = [*of_key(self._tasks, key), *self.waiting()]
        connection.execute(
            self._tasks.update().where(*mine).values(**self._quarantined(connection, error))
        )

    def _quarantined(self, connection: sa.Connection, error: str) -> Values:
        """A job's row is due again in a minute: an error never ends a job. A task's row is dead,
        and stays.
        """
        tasks = self._tasks
        goes_on = tasks.c.kind != Kind.TASK
        is_finite = tasks.c.execution_time.between(
            EARLIEST, FOREVER
        )  # it may not be in a table of db-scheduler's
        again = sa.literal(
            self._dialect.now(connection) + UNREADABLE_PAUSE, tasks.c.execution_time.type
        )
        return {
            "state": sa.case((goes_on, tasks.c.state), else_=State.DEAD.value),
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
        tasks = self._tasks
        row = claim.row
        mine = self.held(claim)
        if isinstance(outcome, records.Died):
            mine.append(tasks.c.last_heartbeat.is_not_distinct_from(row.last_heartbeat))
        quarantined = self._quarantined(connection, error) | _RELEASED
        statement = (
            tasks.update()
            .where(*mine)
            .values(**quarantined, version=min(row.version, LAST_VERSION + 1) + 1)
        )
        found = connection.execute(statement.returning(tasks.c.state)).first()
        is_final = isinstance(
            outcome, records.Succeeded | records.Failed | records.Cancelled
        ) and not getattr(outcome, "promised", False)
        if found is not None and row.ledger_key is not None and is_final:
            ended = self._slots.update().where(*self._open_entry(row))
            ended = ended.values(
                outcome=outcome.name,
                reason=Reason.UNREADABLE,
                finished=self._dialect.now(connection),
            )
            connection.execute(ended)
        return None if found is None else found.state or Release.POSTPONED


def least(column: Expression, most: int) -> Expression:
    return sa.case((column > most, most), else_=column)


def _has_written(connection: Joinable, table: sa.Table, insert: Upsert) -> bool:
    """Not by the count of rows: not every driver of a caller's connection has one."""
    return (
        connection.execute(insert.returning(table.primary_key.columns[0])).fetchone()
        is not None
    )


@lru_cache(maxsize=16)
def _entry(
    insert: Callable[[sa.Table], Upsert], slots: sa.Table, *, strict: bool
) -> sa.Executable:
    """Built once: each late slot needs one, and building it costs more than sending it."""
    statement = insert(slots)
    was_never_started = sa.literal(not strict) | (slots.c.attempts == 0)
    again = {
        name: statement.excluded[name]
        for name in ("outcome", "reason", "collapsed", "token", "worker", "started")
    }
    return statement.on_conflict_do_update(
        index_elements=[slots.c.task_name, slots.c.task_instance, slots.c.slot],
        set_={
            **again,
            "attempts": least(slots.c.attempts, LAST_ATTEMPT) + 1,
            "started_before": slots.c.started,
        },
        where=slots.c.finished.is_(None)
        & (slots.c.outcome != Outcome.RUNNING)
        & was_never_started,
    ).returning(slots.c.token)
