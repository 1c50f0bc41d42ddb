"""The base for databases with one writer at a time, and SQLite.

Each transaction takes the write lock when it begins, so that reading a row locks it. These bodies
read rows before they write them: with several writers they would lose races in silence. They go
row by row, keep the laws and owe no speed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.decide.claim import Start, is_weighed
from slotwise.model.clock import host_now
from slotwise.model.records import (
    Claim,
    Fence,
    Key,
    LedgerEntry,
    LedgerKey,
    Row,
    Transition,
    to_micros,
)
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.by_key import enters_at_once, least
from slotwise.store.dialects.conditions import of_key
from slotwise.store.dialects.port import ClaimRequest
from slotwise.store.dialects.task_statements import OneWriterTasks, TaskStatements
from slotwise.store.dialects.upserts import Upsert, Upserting
from slotwise.store.schema.rows import (
    CLAIMED_DATA,
    FLAW,
    LAST_ATTEMPT,
    LAST_VERSION,
    Held,
    decided,
    expect,
    row_of,
)
from slotwise.store.schema.tables import IS_TASK, is_plan


class OneWriter(Upserting):
    """A base of dialects: right only where each transaction excludes all other writers.

    A connection for one statement must begin a transaction, too.
    """

    is_one_statement = True

    def task_statements(self, wake: timedelta | None) -> TaskStatements:
        return OneWriterTasks(self)

    def transaction_id(self, connection: sa.Connection) -> str | None:
        """Return the argument of ``committed``; None if a commit is never in doubt."""
        return None

    def committed(self, connection: sa.Connection, transaction_id: str) -> bool | None:
        """Return whether that transaction committed; None while it is undecided."""
        raise AssertionError("a commit is never in doubt")

    def delete_receipts(self, connection: sa.Connection) -> int:
        return 0

    def guard(self, connection: Joinable, claim: Claim) -> bool:
        """A write that finds nothing keeps other writers out as well as a lock does."""
        meta = self.tables.meta
        connection.execute(meta.update().where(sa.false()).values(value=meta.c.value))
        return self._shares(connection, claim)

    def hurry(self, connection: sa.Connection, wait: timedelta) -> None:
        """Let the rest of this transaction wait for each lock for so long at most."""
        return

    def alone(self, connection: sa.Connection, name: str) -> bool:
        """Return whether no other open transaction got True for this task; the answer holds until
        this one ends.
        """
        return True

    def latch(self, connection: sa.Connection, name: str, *, shared: bool) -> None:
        """Take the task's latch until this transaction ends; wait while another transaction
        excludes it.

        A transaction that creates an instance shares it. An operation on all rows of a job takes
        it exclusively, so it misses no row that is being created.
        """
        return

    def claim(
        self, connection: sa.Connection, order: ClaimRequest
    ) -> list[tuple[Row, datetime, bool]]:
        """Claim due slots; return each with the time and whether its ledger row was written.

        Recurring slots that are on time, and detached ones, are entered into the ledger at once
        and may start. A plan row with missed slots, or whose slot the ledger already has, is
        returned with False; ``decide`` handles it.
        """
        now = self.now(connection)
        taken = [
            self._take(connection, key, order, now)
            for key in self.due_keys(connection, order)
        ]
        return [(row, now, self._enter(connection, row, order, now)) for row in taken]

    def claim_tasks(
        self, connection: sa.Connection, order: ClaimRequest
    ) -> tuple[list[Row], bool]:
        """Claim due one-time tasks, by priority, then by name as given, then by age; return
        whether slots may be due.

        Rows whose holder has died before are left to ``claim``.
        """
        now = self.now(connection)
        return [
            self._take(connection, key, order, now)
            for key in self.due_keys(connection, order, IS_TASK)
        ], True

    def _take(
        self, connection: sa.Connection, key: Key, order: ClaimRequest, now: datetime
    ) -> Row:
        tasks = self.tables.tasks
        version = to_micros(now)
        is_newer = is_plan(tasks) & (
            tasks.c.watermark.is_(None) | (tasks.c.watermark < tasks.c.slot)
        )
        taken = tasks.update().where(*of_key(tasks, key), *self.conditions.waiting(now))
        taken = taken.values(
            picked=True,
            picked_by=order.holder,
            last_heartbeat=now,
            lease=order.lease,
            attempt=least(tasks.c.attempt, LAST_ATTEMPT) + 1,
            version=sa.case(
                (tasks.c.version < version, version),
                else_=least(tasks.c.version, LAST_VERSION) + 1,
            ),
            watermark=sa.case((is_newer, tasks.c.slot), else_=tasks.c.watermark),
        )
        data = sa.literal_column(CLAIMED_DATA, tasks.c.task_data.type)
        columns = [
            data if column.name == "task_data" else column for column in self.row_columns
        ]
        *values, flaw = connection.execute(
            taken.returning(*columns, sa.literal_column(FLAW, sa.Text))
        ).one()
        return row_of(values, flaw)

    def _enter(
        self, connection: sa.Connection, row: Row, order: ClaimRequest, now: datetime
    ) -> bool:
        if row.ledger_key is None:
            return not is_weighed(row, now, order.weighed, order.late)
        return enters_at_once(row, order, now) and self.enter(
            connection, row, now, order.strict
        )

    def begin(
        self,
        connection: sa.Connection,
        started: Sequence[Row],
        now: datetime,
        strict: Collection[str],
    ) -> set[Key]:
        """Write the decided slots on plan rows that this transaction has claimed, and enter them
        into the ledger.

        Return the keys of those that may run.
        """
        for row in started:
            begun = (
                self.tables.tasks.update()
                .where(*self.conditions.under(row, row.picked_by))
                .values(decided(row))
            )
            expect(connection.execute(begun).rowcount, 1, row)
        return {row.key for row in started if self.enter(connection, row, now, strict)}

    def start_alike(
        self,
        connection: sa.Connection,
        rows: Sequence[Row],
        start: Start,
        now: datetime,
        strict: Collection[str],
    ) -> set[Key] | None:
        """As ``gaps`` and ``begin``, for plan rows whose schedule, slot and decision are the same:
        that of the first.

        Return the keys of those that may run; None: all. The others are then decided one by one.
        """
        return set()

    def beat(
        self, connection: sa.Connection, holder: str, claims: Sequence[Claim]
    ) -> set[Fence]:
        """Renew these claims without waiting; return those renewed. The others must be read
        again.
        """
        beat = self.tables.tasks.update().values(last_heartbeat=self.now(connection))
        held = {
            claim.fence: self.conditions.under(claim.row, claim.holder) for claim in claims
        }
        return {
            fence
            for fence, mine in held.items()
            if connection.execute(beat.where(*mine)).rowcount
        }

    def finish(
        self, connection: sa.Connection, claims: Sequence[Claim]
    ) -> tuple[str | None, int]:
        """Delete the rows of one-time tasks that succeeded, unless an operation has changed them
        meanwhile.

        Return the transaction's id and the number of rows. Wait for locks.
        """
        tasks = self.tables.tasks
        unasked = (
            tasks.c.state.is_(None),
            tasks.c.wanted_due.is_(None),
            tasks.c.cancel_requested.is_(None),
        )
        gone = [
            tasks.delete().where(*self.conditions.held(claim), *unasked) for claim in claims
        ]
        return None, sum(connection.execute(one).rowcount for one in gone)

    def advance(
        self, connection: sa.Connection, endings: Sequence[tuple[Claim, Transition]]
    ) -> tuple[str | None, set[Fence]]:
        """Release plan rows whose slots were on time and succeeded, unless an operation has
        changed them meanwhile.

        Return the transaction's id and the released rows; the others are unchanged. Skip locked
        rows, but wait for ledger rows. Raise Parted if a row was advanced and its ledger row was
        not.
        """
        return None, set()

    def hold(
        self, connection: sa.Connection, claims: Sequence[Claim], *, wait: bool
    ) -> list[Held]:
        """Lock the rows that are still held under these claims; those absent are lost, or
        locked.
        """
        now = self.now(connection)
        look = sa.select(*self.row_columns)
        found = [
            connection.execute(look.where(*self.conditions.held(claim))).first()
            for claim in claims
        ]
        return [Held(row=row_of(values), now=now) for values in found if values is not None]

    def lock(
        self, connection: sa.Connection, keys: Iterable[Key], *, wait: bool
    ) -> set[Key]:
        """Lock these rows in the order of their keys; return those that stay locked by others,
        none if it waits.
        """
        return set()

    def entries(
        self, connection: sa.Connection, keys: Sequence[LedgerKey], *, wait: bool
    ) -> dict[LedgerKey, tuple[LedgerEntry | None, str | None]]:
        """Lock these ledger rows; return each key's entry and place, or (None, None); locked ones
        are absent.
        """
        slots = self.tables.slots
        final = slots.c.finished.is_not(None).label("final")
        look = sa.select(
            slots.c.outcome, slots.c.token, final, slots.c.aborted, slots.c.started
        )
        found = {
            key: connection.execute(look.where(*self.conditions.at(key))).mappings().first()
            for key in keys
        }
        return {
            key: (None if values is None else LedgerEntry(**values), None)
            for key, values in found.items()
        }


class SQLite(OneWriter):
    """The portable form, with the host's clock. Each transaction takes the write lock when it
    begins.
    """

    name = "sqlite"

    @staticmethod
    def insert(table: sa.Table, /) -> Upsert:
        from sqlalchemy.dialects.sqlite import (
            insert,
        )  # late, as its driver: a worker on PostgreSQL does not need it

        return insert(table)

    def now(self, connection: Joinable) -> datetime:
        return self.clock.override() or host_now()

    def merged(
        self, document: sa.ColumnElement[object], changes: Mapping[str, object]
    ) -> sa.ColumnElement[object]:
        return sa.func.json_patch(
            document, sa.literal(changes, document.type), type_=document.type
        )

    def among(
        self, column: sa.ColumnElement[str], names: Collection[str]
    ) -> sa.ColumnElement[bool]:
        each = sa.func.json_each(json.dumps(list(names))).table_valued("value")
        return column.in_(sa.select(each.c.value))
