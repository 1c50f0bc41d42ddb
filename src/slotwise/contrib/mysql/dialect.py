"""The statements of MariaDB and MySQL, by the base ``Locking``.

A claim looks for due rows without a lock, by an index of stored columns that are null where a row
is not wanted. Then it locks them by their primary key and checks them again, so that no secondary
index is locked.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from slotwise.contrib.mysql.due_keys import Column, DueKeys, Expression, Found
from slotwise.contrib.mysql.galera import change_keys, node_of
from slotwise.contrib.mysql.given_rows import ByKeyJoin, ByKeyUpdate, given_rows
from slotwise.contrib.mysql.writer_nodes import WriterNodes
from slotwise.spi import (
    Claim,
    ClaimRequest,
    Clock,
    Joinable,
    Key,
    Kind,
    Locking,
    Tables,
    is_locked,
)

#: What is compared with ``kind`` of a claim.
IS_TASK = f"kind = '{Kind.TASK}'"
HAS_SLOT = f"kind <> '{Kind.TASK}'"
_NOW = sa.text("SELECT UTC_TIMESTAMP(6)")
_DUPLICATE_KEY = 1062
_DEADLOCK = 1213
_RECEIPT_KEPT = timedelta(days=1)
#: The answer in a receipt that a transaction can never write any more.
_ROLLED_BACK = "rolled back"
#: A transaction that hurries has noted its session's lock timeout under this name.
_HURRIES = "slotwise_hurries"


class MySQL(Locking):
    """MariaDB 10.6 and newer, and MySQL 8.4: one form of each statement for both."""

    name = "mysql"

    def __init__(self, tables: Tables, clock: Clock) -> None:
        super().__init__(tables, clock)
        self._keys = DueKeys(self)
        self._nodes = WriterNodes(self)

    def is_taken(self, error: Exception) -> bool:
        return error_number(error) == _DUPLICATE_KEY

    # -- time and transactions ------------------------------------------------------------------

    def now(self, connection: Joinable) -> datetime:
        if (override := self.clock.override()) is not None:
            return override
        found = connection.execute(_NOW).fetchone()
        assert found is not None
        now: datetime = found[0].replace(tzinfo=UTC)
        return now

    def hour(self, instant: sa.ColumnElement[datetime]) -> sa.ColumnElement[datetime]:
        begun = sa.func.date_format(instant, "%Y-%m-%d %H:00:00")
        return sa.cast(begun, instant.type)

    def hurry(self, connection: sa.Connection, wait: timedelta) -> None:
        """In whole seconds, and for the session: its own limit is set back as the transaction
        ends.
        """
        limit = max(1, math.ceil(wait.total_seconds()))
        if not connection.info.get(_HURRIES):
            connection.exec_driver_sql(
                "SET @slotwise_wait = @@innodb_lock_wait_timeout"
            )
            connection.info[_HURRIES] = True
            for event in ("commit", "rollback"):
                if not sa.event.contains(connection, event, _hurry_no_more):
                    sa.event.listen(connection, event, _hurry_no_more)
        connection.exec_driver_sql(f"SET innodb_lock_wait_timeout = {limit}")

    def durably(self, connection: sa.Connection) -> None:
        """No session can choose."""

    def committed(self, connection: sa.Connection, transaction_id: str) -> bool | None:
        """Race: on a cluster the transaction may still run on another node, whose locks are
        unknown here. A receipt is written and committed in its place: one of both is refused.
        """
        if node_of(connection) is None:
            return super().committed(connection, transaction_id)
        try:
            return self._answer(connection, transaction_id)
        except DBAPIError as error:
            if is_locked(error) or error_number(error) in (_DUPLICATE_KEY, _DEADLOCK):
                return None
            raise
        finally:
            connection.rollback()

    def _answer(self, connection: sa.Connection, receipt: str) -> bool:
        receipts = self.tables.receipts
        known = sa.select(receipts.c.answer).where(receipts.c.receipt == receipt)
        found = connection.execute(known).fetchone()
        if found is not None:
            has_committed: bool = found[0] != _ROLLED_BACK
            return has_committed
        new = self._new_receipt(connection, receipt, _RECEIPT_KEPT)
        connection.execute(new.values(answer=_ROLLED_BACK))
        connection.commit()
        return False

    # -- locks: on a cluster each is also a change of its row ----------------------------------

    def alone(self, connection: sa.Connection, name: str) -> bool:
        is_alone = super().alone(connection, name)
        if is_alone:
            change_keys(connection, self.tables, name, "turn")
        return is_alone

    def latch(self, connection: sa.Connection, name: str, *, shared: bool) -> None:
        """On a cluster nothing can be shared: of two changes one is refused."""
        is_shared = shared and node_of(connection) is None
        super().latch(connection, name, shared=is_shared)
        change_keys(connection, self.tables, name, "latch")

    def begin_guard(self, connection: Joinable, lease: timedelta) -> None:
        """The bound follows the lock: see ``guard``."""

    def guard(
        self,
        connection: Joinable,
        claim: Claim,
        saved: dict[str, object] | None = None,
    ) -> bool:
        """From the reply to the last statement, drivers learn that a transaction is open; a reply
        with rows does not tell.

        Race: on a cluster another node may take the claim over. Both write the heartbeat.
        """
        if node_of(connection) is not None and not self._beat_in(connection, claim):
            return False
        held = super().guard(connection, claim, saved)
        self.bound_idle(connection, claim.lease)
        return held

    def _beat_in(self, connection: Joinable, claim: Claim) -> bool:
        """Write a heartbeat in a caller's transaction; return whether the claim has its row."""
        beat = self.tables.tasks.update().where(*self.conditions.held(claim))
        beat = beat.values(last_heartbeat=self.ago(connection))
        return connection.execute(beat).rowcount == 1

    def bound_idle(self, connection: Joinable, lease: timedelta) -> None:
        """End the transaction if it is idle for so long. ``wait_timeout`` ends an idle session on
        MySQL, which has no other limit for it.
        """
        limit = max(1, math.ceil(lease.total_seconds()))
        name = _idle_limit(connection)
        connection.execute(
            sa.text(f"SET @slotwise_idle = coalesce(@slotwise_idle, @@SESSION.{name})")
        )
        connection.execute(sa.text(f"SET SESSION {name} = {limit}"))

    def end_guard(self, connection: Joinable) -> None:
        """The bound is one of the session: it is set back to what the caller had."""
        name = _idle_limit(connection)
        before = f"CAST(coalesce(@slotwise_idle, @@SESSION.{name}) AS UNSIGNED)"
        connection.execute(
            sa.text(f"SET SESSION {name} = {before}, @slotwise_idle = NULL")
        )

    # -- parts of statements --------------------------------------------------------------------

    def merged(
        self, document: sa.ColumnElement[object], changes: Mapping[str, object]
    ) -> sa.ColumnElement[object]:
        given = sa.literal(json.dumps(changes), sa.Text)
        return sa.func.json_merge_patch(document, given, type_=document.type)

    def among(
        self, column: sa.ColumnElement[str], names: Collection[str]
    ) -> sa.ColumnElement[bool]:
        return column.in_(list(names))

    def values_of(
        self,
        rows: Sequence[Mapping[str, object]],
        types: Mapping[str, sa.types.TypeEngine[object]],
    ) -> sa.FromClause:
        return given_rows(rows, types)

    def held(self) -> sa.ColumnElement[bool]:
        return sa.and_(super().held(), sa.literal_column("held").is_not(None))

    # -- batches ----------------------------------------------------------------------------------

    def update_of(self, table: sa.Table) -> sa.Update:
        return ByKeyUpdate(table)

    def select_these(
        self,
        rows: Sequence[dict[str, object]],
        key: Sequence[Column],
        *columns: Expression,
    ) -> Found:
        """Race: rows are locked as they are found, and two that wait for rows of each other cannot
        deadlock if both find them in the order of keys.
        """
        names = [column.name for column in key]
        ordered = sorted(rows, key=lambda row: [str(row[name]) for name in names])
        return these_in_order(ordered, key, *columns)

    # -- claims -----------------------------------------------------------------------------------

    def lock_due(
        self,
        connection: sa.Connection,
        request: ClaimRequest,
        now: datetime,
        kind: str,
    ) -> list[Sequence[Any]]:
        """Race: a row that another claim has taken since the look is skipped."""
        if not self._nodes.may_write(connection, request.holder, request.lease):
            return []
        tasks = self.tables.tasks.c
        key = [tasks.task_name, tasks.task_instance]
        waiting = self.conditions.waiting(now)
        found: list[Sequence[Any]] = []
        taken = Counter[str]()
        for look in self._keys.asked(connection, request, now, kind == IS_TASK):
            size_left = min(look.most - taken[look.group], request.limit - len(found))
            if not look.keys or size_left <= 0:
                continue
            asked = [one._asdict() for one in look.keys]
            query = these_in_order(asked, key, *self.claimed_columns())
            query = query.where(*waiting).limit(size_left)
            locked = connection.execute(query.with_for_update(skip_locked=True)).all()
            taken[look.group] += len(locked)
            found += locked
            if len(found) == request.limit:
                break
        return found

    def due_keys(
        self, connection: sa.Connection, request: ClaimRequest, kind: str = HAS_SLOT
    ) -> list[Key]:
        now = self.now(connection)
        looks = self._keys.asked(connection, request, now, kind == IS_TASK)
        found = [key for look in looks for key in look.keys[: look.most]]
        return found[: request.limit]

    def due_names(
        self, connection: sa.Connection, limit: int, since: datetime | None
    ) -> Sequence[Sequence[Any]]:
        return self._keys.names(connection, self.now(connection), limit)

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
        now = self.now(connection)
        slots = () if no_slots else names
        found = self._keys.first(connection, slots, tasks, now)
        if lost > 0:
            found += self._keys.first_lost(connection, names, now)
        return min(found, default=now) - now if found else None, None


def these_in_order(
    rows: Sequence[dict[str, object]], key: Sequence[Column], *columns: Expression
) -> Found:
    """Return a SELECT of the rows that have one of these keys, in their order."""
    values = given_rows(rows, {column.name: column.type for column in key})
    mine = [column == values.c[column.name] for column in key]
    both = ByKeyJoin(values, key[0].table, sa.and_(*mine))
    return sa.select(*columns).select_from(both)


def _idle_limit(connection: Joinable) -> str:
    """Return the variable that ends an idle transaction; on MySQL, any idle session."""
    is_mariadb = getattr(connection.dialect, "is_mariadb", True)
    return "idle_transaction_timeout" if is_mariadb else "wait_timeout"


def error_number(error: BaseException) -> int | None:
    """Return the server's number of an error, also of one that SQLAlchemy has wrapped."""
    inner = getattr(error, "orig", None) or error
    number = next(iter(inner.args), None)
    return number if isinstance(number, int) else None


def _hurry_no_more(connection: sa.Connection) -> None:
    # Of a connection that broke, the session is gone.
    if not connection.invalidated and connection.info.pop(_HURRIES, None):
        connection.exec_driver_sql("SET innodb_lock_wait_timeout = @slotwise_wait")
