"""What is the same in every statement that goes row by row: the tables, the time, and how a row is found."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar

import sqlalchemy as sa

from slotwise.model.clock import Clock, host_now
from slotwise.model.records import Claim, LedgerKey, Row
from slotwise.model.vocabulary import Outcome
from slotwise.store.schema.column_types import Instant
from slotwise.store.schema.rows import HOLD_COLUMNS, ROW_COLUMNS, ledger_instance
from slotwise.store.schema.tables import PAUSED_KEY, Tables


class RowByRow:
    """The tables of a database. ``insert`` is SQLAlchemy's insert that knows ON CONFLICT."""

    name: ClassVar[str] = "portable"
    insert: ClassVar[Any]

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self.tables = tables
        self.clock = clock
        self.row_columns = [tables.tasks.c[name] for name in ROW_COLUMNS]
        #: The key, as rows are locked by it: in the order in which Python sorts, which settlements lock by.
        self.key_order: tuple[Any, Any] = (tables.tasks.c.task_name, tables.tasks.c.task_instance)
        self.hold_columns = [tables.tasks.c[name] for name in HOLD_COLUMNS]

    def now(self, connection: sa.Connection) -> datetime:
        """The database's time, or the test's."""
        return self.clock.override() or host_now()

    def ago(self, connection: sa.Connection, span: timedelta = timedelta(0)) -> sa.ColumnElement[datetime]:
        """The time, so long ago, as a part of a statement."""
        return sa.literal(self.now(connection) - span, Instant)

    def transaction_id(self, connection: sa.Connection) -> str | None:
        """What to ask ``committed`` about; None where a commit is never in doubt."""
        del connection
        return None

    def committed(self, connection: sa.Connection, transaction_id: str) -> bool | None:
        """Whether that transaction committed; None while it is undecided. Only where commits can be in doubt."""
        raise NotImplementedError

    def not_all_paused(self) -> sa.ColumnElement[bool]:
        """Whether an operator lets anything be claimed at all; asked once per statement, not per row."""
        return ~sa.exists().where(self.tables.meta.c.key == PAUSED_KEY)

    def locked(self, found: sa.Select[Any]) -> sa.ColumnElement[bool]:
        """Whether a row is among those that ``found``, a SELECT of keys with a LIMIT, finds there and locks.

        Rows that somebody else has locked are passed over.
        """
        return sa.tuple_(*found.selected_columns).in_(found)

    def _under(self, claim: Claim) -> list[sa.ColumnElement[bool]]:
        tasks = self.tables.tasks
        return [
            tasks.c.task_name == claim.row.task_name,
            tasks.c.task_instance == claim.row.task_instance,
            tasks.c.version == claim.row.version,
            tasks.c.picked_by == claim.holder,
        ]

    def _at(self, key: LedgerKey) -> list[sa.ColumnElement[bool]]:
        slots = self.tables.slots
        return [
            slots.c.task_name == key.task_name,
            slots.c.task_instance == key.task_instance,
            slots.c.slot == key.slot,
        ]

    def undo_entry(self, connection: sa.Connection, row: Row, *, keep: bool = False) -> None:
        """The ledger as it stood before this claim entered the row's slot, which never began.

        An entry that tells of nothing but this claim goes, unless it is to be kept as ``claimed``. One that stays has
        the token of the row that waits: a mark of this claim that comes late (it was held up on its way) finds nothing.
        """
        slots = self.tables.slots
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
