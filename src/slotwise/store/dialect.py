"""What a database must be able to do for the engine, said so that any SQL database understands it.

One row at a time, inside the caller's transaction: right everywhere, fast nowhere. A dialect that can do better
overrides; the conformance suite holds all of them to the same answers. Floors for this portable form: the
database allows one writer at a time (SQLite under BEGIN IMMEDIATE), so that reading is locking.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

import sqlalchemy as sa

from slotwise.clock import Clock, host_now
from slotwise.decide import UNREADABLE, UNREADABLE_PAUSE
from slotwise.execution import (
    FOREVER,
    Cancelled,
    Claim,
    Died,
    Failed,
    Fence,
    Gap,
    Key,
    LedgerEntry,
    LedgerKey,
    Outcome,
    Row,
    Succeeded,
)
from slotwise.pauses import PAUSED
from slotwise.store.rows import (
    CHANGED_COLUMNS,
    HOLD_COLUMNS,
    ROW_COLUMNS,
    Change,
    Held,
    hold_of,
    ledger_instance,
    row_of,
)
from slotwise.store.tables import HAS_SLOT, IS_TASK, RANK, Tables
from slotwise.store.types import to_micros


class Dialect:
    """Row by row, portable. ``insert`` is SQLAlchemy's insert that knows ON CONFLICT."""

    name: ClassVar[str] = "portable"
    insert: ClassVar[Any]

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self.tables = tables
        self.clock = clock
        self.row_columns = [tables.tasks.c[name] for name in ROW_COLUMNS]
        self.hold_columns = [tables.tasks.c[name] for name in HOLD_COLUMNS]

    # -- time -------------------------------------------------------------------------------------------------

    def now(self, connection: sa.Connection) -> datetime:
        """The database's time, or the test's."""
        return self.clock.override() or host_now()

    def committed(self, connection: sa.Connection, transaction_id: str) -> bool | None:
        """Whether that transaction committed; None while it is undecided. Only where commits can be in doubt."""
        raise NotImplementedError

    # -- claim ------------------------------------------------------------------------------------------------

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
    ) -> list[tuple[Row, datetime, bool]]:
        """Take due slots of these tasks; with each, the time and whether its ledger row was written (it may start).

        Recurring slots that are on time, and detached ones, are entered into the ledger at once; a plan row
        with missed slots, or whose slot the ledger already has, comes back with False and is for ``decide``.
        ``lost``: at most so many rows, also of one-time tasks, whose holder has died before; they go first.
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
    ) -> list[Key]:
        """What a claim would take, without taking it."""
        tasks = self.tables.tasks
        due = (
            sa.select(tasks.c.task_name, tasks.c.task_instance)
            .where(~tasks.c.picked, tasks.c.state.is_(None), tasks.c.execution_time <= self.now(connection))
            .where(tasks.c.task_name.in_(list(names)))
            .order_by(tasks.c.execution_time, tasks.c.task_name, tasks.c.task_instance)
        )
        due = due.where(self.not_all_paused() if instance is None else tasks.c.task_instance == instance)
        first = connection.execute(due.where(tasks.c.lost_count > 0).limit(lost)).all()
        fresh = due.where(tasks.c.lost_count == 0, sa.text(f"({kind})") if instance is None else sa.true())
        if kind == IS_TASK:
            turn = sa.case({name: place for place, name in enumerate(names)}, value=tasks.c.task_name)
            fresh = fresh.order_by(None).order_by(
                sa.text(RANK), turn, tasks.c.execution_time, tasks.c.task_name, tasks.c.task_instance
            )
        others = connection.execute(fresh.limit(limit)).all()
        return [Key(*key) for key in (*first, *others)][:limit]

    def due_names(self, connection: sa.Connection, limit: int) -> list[str]:
        """The names of up to ``limit`` due slots, the oldest first, and of rows whose holder has died before."""
        tasks = self.tables.tasks
        due = (
            sa.select(tasks.c.task_name)
            .where(~tasks.c.picked, tasks.c.state.is_(None), tasks.c.execution_time <= self.now(connection))
            .order_by(tasks.c.execution_time)
            .limit(limit)
        )
        kinds = (sa.text(f"({HAS_SLOT})"), tasks.c.lost_count > 0)
        return [name for kind in kinds for name in connection.scalars(due.where(kind))]

    def claim_tasks(
        self, connection: sa.Connection, *, holder: str, names: Sequence[str], limit: int, lease: timedelta
    ) -> list[Row]:
        """Take due one-time tasks, the highest priority first; then name by name as given, of each the oldest first.

        Those whose holder has died before are left to ``claim``.
        """
        now = self.now(connection)
        keys = self.due(connection, names, limit, lost=0, kind=IS_TASK)
        return [self._take(connection, key, holder, lease, now) for key in keys]

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

    def finish(self, connection: sa.Connection, claims: Sequence[Claim]) -> tuple[str | None, int]:
        """Delete the rows of one-time tasks that succeeded, where nothing else was asked of them meanwhile.

        The transaction's id, and how many rows there were. Waits for locks.
        """
        tasks, count = self.tables.tasks, 0
        for claim in claims:
            unasked = (tasks.c.state.is_(None), tasks.c.wanted_due.is_(None), tasks.c.cancel_requested.is_(None))
            gone = tasks.delete().where(*self._under(claim), tasks.c.picked, *unasked)
            count += connection.execute(gone).rowcount
        return None, count

    def not_all_paused(self) -> sa.ColumnElement[bool]:
        """Whether an operator lets anything be claimed at all; asked once per statement, not per row."""
        return ~sa.exists().where(self.tables.meta.c.key == PAUSED)

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
        slots = self.tables.slots
        values = {
            "task_name": row.task_name, "task_instance": ledger_instance(row), "slot": row.slot,
            "outcome": "claimed" if strict else "running", "reason": None, "origin": row.origin or "schedule",
            "attempts": row.attempt, "collapsed": row.collapsed, "token": row.version,
            "worker": row.picked_by, "started": None if strict else now,
        }  # fmt: skip
        statement = self.insert(slots).values(**values)
        again = {
            name: statement.excluded[name] for name in ("outcome", "reason", "collapsed", "token", "worker", "started")
        }
        statement = statement.on_conflict_do_update(
            index_elements=[slots.c.task_name, slots.c.task_instance, slots.c.slot],
            set_={**again, "attempts": slots.c.attempts + 1},
            where=slots.c.finished.is_(None)
            & (slots.c.outcome != "running")
            & (sa.literal(not strict) | (slots.c.attempts == 0)),
        ).returning(slots.c.token)
        return connection.execute(statement).first() is not None

    def set_aside(self, connection: sa.Connection, key: Key, error: str) -> None:
        """Put off a waiting row, unread, that no claim can take; it says why."""
        tasks = self.tables.tasks
        connection.execute(
            tasks.update()
            .where(tasks.c.task_name == key.task_name, tasks.c.task_instance == key.task_instance)
            .where(~tasks.c.picked, tasks.c.state.is_(None))
            .values(**self._aside(connection, error))
        )

    def _aside(self, connection: sa.Connection, error: str) -> dict[str, Any]:
        """A plan row comes up again in a minute: a job never ends by a mistake. Any other is dead, and stays."""
        tasks = self.tables.tasks
        is_plan = tasks.c.schedule.is_not(None)
        again = sa.literal(self.now(connection) + UNREADABLE_PAUSE, tasks.c.execution_time.type)
        return {
            "state": sa.case((is_plan, tasks.c.state), else_="dead"),
            "parked_due": sa.case((is_plan, sa.null()), else_=tasks.c.execution_time),
            "execution_time": sa.case((is_plan, again), else_=sa.literal(FOREVER, tasks.c.execution_time.type)),
            "last_error": f"{UNREADABLE}{error}".replace("\0", "\\0"),
        }

    def let_go_aside(self, connection: sa.Connection, claim: Claim, outcome: Outcome, error: str) -> str | None:
        """As ``set_aside``, for a held row, under its claim's fence; what it is then, None if the claim was lost.

        What the handler came to is told to the ledger. If it came to nothing, the next claim finds an orphan there.
        """
        tasks, slots, row = self.tables.tasks, self.tables.slots, claim.row
        mine = [*self._under(claim), tasks.c.picked]
        if isinstance(outcome, Died):
            mine.append(tasks.c.last_heartbeat.is_not_distinct_from(row.last_heartbeat))
        released = {
            "picked": False, "picked_by": None, "last_heartbeat": None, "lease": None, "cancel_requested": None,
            "version": row.version + 1,
        }  # fmt: skip
        statement = tasks.update().where(*mine).values(**self._aside(connection, error), **released)
        found = connection.execute(statement.returning(tasks.c.state)).first()
        is_final = isinstance(outcome, Succeeded | Failed | Cancelled) and not getattr(outcome, "promised", False)
        if found is not None and row.ledger_key is not None and is_final:
            connection.execute(
                slots.update()
                .where(*self._at(row.ledger_key), slots.c.token == row.version, slots.c.finished.is_(None))
                .values(outcome=outcome.name, reason="unreadable", finished=self.now(connection))
            )
        return None if found is None else found.state or "postponed"

    def room(self, connection: sa.Connection, name: str, most: int) -> int:
        """How many more rows of this task may be held in the cluster, until this transaction ends; zero: ask later.

        Counted from the live claims, so it cannot drift. Nobody else counts meanwhile: here there is one writer.
        """
        tasks = self.tables.tasks
        held = sa.select(sa.func.count()).where(tasks.c.picked, tasks.c.task_name == name)
        return max(most - int(connection.scalar(held) or 0), 0)

    # -- hold: lock rows that somebody claims to hold --------------------------------------------------------

    def hold(self, connection: sa.Connection, claims: Sequence[Claim], *, wait: bool) -> list[Held]:
        """Lock the rows that are still held under these claims; whoever is missing has lost, or is locked."""
        tasks, now = self.tables.tasks, self.now(connection)
        found = []
        for claim in claims:
            values = connection.execute(sa.select(*self.row_columns).where(*self._under(claim), tasks.c.picked)).first()
            if values is not None:
                found.append(Held(row=row_of(values), now=now))
        return found

    def _under(self, claim: Claim) -> list[sa.ColumnElement[bool]]:
        tasks = self.tables.tasks
        return [
            tasks.c.task_name == claim.row.task_name,
            tasks.c.task_instance == claim.row.task_instance,
            tasks.c.version == claim.row.version,
            tasks.c.picked_by == claim.holder,
        ]

    def entries(
        self,
        connection: sa.Connection,
        keys: Sequence[LedgerKey],
        *,
        wait: bool,
    ) -> dict[LedgerKey, tuple[LedgerEntry | None, str | None]]:
        """Lock these ledger rows: each key's entry and place; (None, None): no such row; absent: locked by others."""
        slots = self.tables.slots
        found: dict[LedgerKey, tuple[LedgerEntry | None, str | None]] = {}
        for key in keys:
            values = connection.execute(
                sa.select(slots.c.outcome, slots.c.token, slots.c.finished, slots.c.aborted, slots.c.started).where(
                    *self._at(key)
                )
            ).first()
            entry = values and LedgerEntry(
                outcome=values[0], token=values[1], final=values[2] is not None, aborted=values[3], started=values[4]
            )
            found[key] = (entry, None)
        return found

    def _at(self, key: LedgerKey) -> list[sa.ColumnElement[bool]]:
        slots = self.tables.slots
        return [
            slots.c.task_name == key.task_name,
            slots.c.task_instance == key.task_instance,
            slots.c.slot == key.slot,
        ]

    # -- let go -----------------------------------------------------------------------------------------------

    def let_go(self, connection: sa.Connection, changes: Sequence[Change]) -> int:
        """Write what becomes of rows locked by ``hold``; how many rows were written."""
        return sum(self._let_go(connection, change) for change in changes)

    def _let_go(self, connection: sa.Connection, change: Change) -> int:
        tasks, row = self.tables.tasks, change.held.row
        mine = [
            tasks.c.task_name == row.task_name,
            tasks.c.task_instance == row.task_instance,
            tasks.c.version == row.version,
            tasks.c.picked_by == row.picked_by,
        ]
        if change.transition.row is None:
            return connection.execute(tasks.delete().where(*mine)).rowcount
        values = {name: change.transition.row[name] for name in CHANGED_COLUMNS if name in change.transition.row}
        released = {
            "picked": False, "picked_by": None, "last_heartbeat": None, "lease": None, "cancel_requested": None,
            "wanted_due": None,
            "version": tasks.c.version + 1,
        }  # fmt: skip
        return connection.execute(tasks.update().where(*mine).values(**values, **released)).rowcount

    def record(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        """Write the ledger's side of these changes, under the token; a row that is final already stays as it is."""
        for change in changes:
            self._record(connection, change)

    def _record(self, connection: sa.Connection, change: Change) -> None:
        slots, key, record = self.tables.slots, change.ledger_key, change.transition.record
        if key is None or record is None:
            return
        mine = [*self._at(key), slots.c.token == change.held.row.version, slots.c.finished.is_(None)]
        if record.forget:
            connection.execute(slots.delete().where(*mine))
            return
        connection.execute(
            slots.update()
            .where(*mine)
            .values(
                outcome=record.outcome, reason=record.reason, error=record.error, attempts=record.attempts,
                lost=slots.c.lost + record.lost, aborted=slots.c.aborted + record.aborted,
                finished=change.held.now if record.final else None,
            )
        )  # fmt: skip

    def gaps(self, connection: sa.Connection, gaps: Iterable[tuple[Row, Gap]], now: datetime) -> None:
        """Enter slots that will not run: a ledger row for one, a gap row for several."""
        for row, gap in gaps:
            self._close_open_slots(connection, row, gap, now)
            if gap.count == 1:
                self._skip(connection, row, gap, now)
            else:
                self._gap(connection, row, gap, now)

    def _close_open_slots(self, connection: sa.Connection, row: Row, gap: Gap, now: datetime) -> None:
        """A slot of the gap that somebody began long ago and nobody ended (the queue was restored alone) ends here."""
        slots = self.tables.slots
        connection.execute(
            slots.update()
            .where(slots.c.task_name == row.task_name, slots.c.task_instance == ledger_instance(row))
            .where(slots.c.slot >= gap.first, slots.c.slot <= gap.last, slots.c.finished.is_(None))
            .where((slots.c.token != row.version) | (slots.c.worker != row.picked_by))
            .where(slots.c.origin.in_(("schedule", "catch_up")))
            .values(outcome="lost", reason=gap.reason, finished=now)
        )

    def _skip(self, connection: sa.Connection, row: Row, gap: Gap, now: datetime) -> None:
        statement = self.insert(self.tables.slots).values(
            task_name=row.task_name, task_instance=ledger_instance(row), slot=gap.first,
            outcome="skipped", reason=gap.reason, finished=now,
        )  # fmt: skip
        connection.execute(statement.on_conflict_do_nothing())

    def _gap(self, connection: sa.Connection, row: Row, gap: Gap, now: datetime) -> None:
        table = self.tables.gaps
        statement = self.insert(table).values(
            task_name=row.task_name, task_instance=ledger_instance(row), first_slot=gap.first, last_slot=gap.last,
            count=gap.count, reason=gap.reason, created=now,
        )  # fmt: skip
        again = {name: statement.excluded[name] for name in ("last_slot", "count", "reason", "created")}
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=[table.c.task_name, table.c.task_instance, table.c.first_slot],
                set_=again,
                where=statement.excluded.last_slot > table.c.last_slot,  # what was decided once is never undone
            )
        )

    # -- heartbeat and reaper ---------------------------------------------------------------------------------

    def beat(self, connection: sa.Connection, holder: str, claims: Sequence[Claim]) -> set[Fence]:
        """Renew these claims, never waiting; which were renewed. Whoever is missing must be read again."""
        tasks, now = self.tables.tasks, self.now(connection)
        renewed = set()
        for claim in claims:
            statement = tasks.update().where(*self._under(claim)).values(last_heartbeat=now)
            if connection.execute(statement).rowcount:
                renewed.add(claim.fence)
        return renewed

    def still_held(self, connection: sa.Connection, claims: Sequence[Claim]) -> set[Fence]:
        """Read, without a lock, which of these claims still stand."""
        tasks = self.tables.tasks
        return {
            claim.fence
            for claim in claims
            if connection.execute(sa.select(tasks.c.version).where(*self._under(claim))).first() is not None
        }

    def silent_rows(self, connection: sa.Connection, names: Sequence[str]) -> tuple[datetime, list[Row]]:
        """The holds on all held rows of these tasks, whoever holds them, and the time."""
        tasks = self.tables.tasks
        statement = sa.select(*self.hold_columns).where(tasks.c.picked, tasks.c.task_name.in_(list(names)))
        return self.now(connection), [hold_of(values) for values in connection.execute(statement)]

    def rows_of(self, connection: sa.Connection, holder: str) -> list[Row]:
        """The holds that the database has under this holder."""
        tasks = self.tables.tasks
        statement = sa.select(*self.hold_columns).where(tasks.c.picked, tasks.c.picked_by == holder)
        return [hold_of(values) for values in connection.execute(statement)]
