"""Proof of holding, inside a user's own transaction: guard and complete_in.

Both touch the ledger, never the queue: heartbeats must go on while the user's transaction is open.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from slotwise.errors import ClaimLost, ConfigurationError
from slotwise.execution import Claim
from slotwise.store.failures import is_transient
from slotwise.store.store import Store

_SERIALIZATION_FAILURE = "40001"


class LedgerFence:
    """Checks a claim's token in the ledger, under a lock that lasts as long as the caller's transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._installation: str | None = None

    def guard(self, claim: Claim, connection: Any) -> None:
        """Lock the slot's ledger row against a take-over. Raises ClaimLost for a stale claim."""
        own = sqlalchemy_connection(connection)
        self._check_database(own)
        with _stale_snapshot_is_lost(claim):
            self._limit_idleness(own, claim)
            held = self._lock(own, claim)
        _refuse_autocommit(own)
        if not held:
            raise _lost(claim)

    def complete_in(self, claim: Claim, connection: Any) -> None:
        """Guard, and write the success. Raises ClaimLost for a stale claim."""
        self.guard(claim, connection)
        own = sqlalchemy_connection(connection)
        with _stale_snapshot_is_lost(claim):
            if not self._succeed(own, claim):
                raise _lost(claim)

    def _check_database(self, connection: sa.Connection) -> None:
        """Work and settlement can only commit together in the database that holds the tables."""
        meta = self._store.tables.meta
        try:
            theirs = connection.scalar(sa.select(meta.c.value).where(meta.c.key == "installation_id"))
        except DBAPIError as error:
            if is_transient(error):
                raise
            raise ConfigurationError(
                f"this connection does not reach {meta.name}: pass one to the database that holds slotwise's tables"
            ) from error
        if theirs != self._own_installation(theirs):
            raise ConfigurationError(
                "this connection leads to another installation of slotwise; pass one to the worker's own database"
            )

    def _own_installation(self, theirs: str | None) -> str | None:
        if self._installation is None:
            # In memory there is but the one connection, which the caller has.
            self._installation = theirs if self._store.database.in_memory else self._read_installation()
        return self._installation

    def _read_installation(self) -> str | None:
        """Without a transaction of ours: on SQLite those are all writers', and would wait for the caller's."""
        meta, engine = self._store.tables.meta, self._store.database.main
        statement = sa.select(meta.c.value).where(meta.c.key == "installation_id")
        connection = engine.raw_connection()
        try:
            cursor = connection.cursor()
            cursor.execute(str(statement.compile(engine, compile_kwargs={"literal_binds": True})))
            found = cursor.fetchone()
        finally:
            connection.close()
        return found[0] if found else None

    def _limit_idleness(self, connection: sa.Connection, claim: Claim) -> None:
        """A frozen holder's open transaction ends with its lease, so that its lock ends too."""
        if connection.dialect.name == "postgresql":
            limit = f"{max(int(claim.lease.total_seconds() * 1000), 1)}ms"
            connection.execute(sa.select(sa.func.set_config("idle_in_transaction_session_timeout", limit, True)))

    def _lock(self, connection: sa.Connection, claim: Claim) -> bool:
        if claim.row.ledger_key is None:
            return self._lock_task(connection, claim)
        slots = self._store.tables.slots
        mine = [*self._slot_of(claim), slots.c.outcome == "running"]
        self._take_turn(connection)
        statement = sa.select(slots.c.token).where(*mine).with_for_update(read=True)
        return connection.execute(statement).first() is not None

    def _take_turn(self, connection: sa.Connection) -> None:
        """SQLite has one writer at a time and knows no FOR SHARE: a write that finds nothing keeps others out, too."""
        if connection.dialect.name == "sqlite":
            meta = self._store.tables.meta
            connection.execute(meta.update().where(sa.false()).values(value=meta.c.value))

    def _lock_task(self, connection: sa.Connection, claim: Claim) -> bool:
        """A one-time task has no ledger row: its key is locked, which no heartbeat needs."""
        tasks = self._store.tables.tasks
        mine = [
            tasks.c.task_name == claim.row.task_name,
            tasks.c.task_instance == claim.row.task_instance,
            tasks.c.version == claim.token,
            tasks.c.picked_by == claim.holder,
        ]
        self._take_turn(connection)
        statement = sa.select(tasks.c.version).where(*mine).with_for_update(read=True, key_share=True)
        return connection.execute(statement).first() is not None

    def _succeed(self, connection: sa.Connection, claim: Claim) -> bool:
        slots, now = self._store.tables.slots, self._store.dialect.now(connection)
        if claim.row.ledger_key is not None:
            statement = (
                slots.update()
                .where(*self._slot_of(claim), slots.c.outcome == "running")
                .values(outcome="succeeded", finished=now)
            )
            return connection.execute(statement).rowcount == 1
        values = {
            "task_name": claim.row.task_name, "task_instance": claim.row.task_instance,
            "slot": claim.row.slot, "outcome": "succeeded", "origin": "task", "attempts": claim.row.attempt,
            "token": claim.token, "worker": claim.holder, "started": claim.claimed_at, "finished": now,
        }  # fmt: skip
        insert = self._store.dialect.insert(slots).values(**values)
        keys = [slots.c.task_name, slots.c.task_instance, slots.c.slot]
        again = {name: insert.excluded[name] for name in ("outcome", "attempts", "token", "worker", "finished")}
        written = insert.on_conflict_do_update(index_elements=keys, set_=again).returning(slots.c.token)
        return connection.execute(written).first() is not None

    def _slot_of(self, claim: Claim) -> list[sa.ColumnElement[bool]]:
        slots, key = self._store.tables.slots, claim.row.ledger_key
        assert key is not None
        return [
            slots.c.task_name == key.task_name,
            slots.c.task_instance == key.task_instance,
            slots.c.slot == key.slot,
            slots.c.token == claim.token,
            slots.c.worker == claim.holder,
        ]


def _lost(claim: Claim) -> ClaimLost:
    row = claim.row
    where = f"{row.task_name}/{row.task_instance} slot {claim.slot}"
    return ClaimLost(f"{where}: token {claim.token} is stale; another worker may run this slot, so roll back")


@contextmanager
def _stale_snapshot_is_lost(claim: Claim) -> Iterator[None]:
    """Under REPEATABLE READ a ledger row that changed since the snapshot is an error of the database: a take-over."""
    try:
        yield
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) == _SERIALIZATION_FAILURE:
            raise _lost(claim) from error
        raise


def _refuse_autocommit(connection: sa.Connection) -> None:
    """Asked of the driver, after a write: SQLAlchemy does not tell what an engine or a driver was told before."""
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.name == "sqlite":
        commits_by_itself = not driver.in_transaction
    else:
        commits_by_itself = getattr(driver, "autocommit", False) is True
    if commits_by_itself:
        raise ConfigurationError(
            "this connection commits every statement by itself (AUTOCOMMIT); pass one with a transaction"
        )


def sqlalchemy_connection(connection: Any) -> sa.Connection:
    """The Connection that was passed, or that of a Session. Raises ConfigurationError with the cure."""
    if isinstance(connection, sa.Connection):
        return connection
    from sqlalchemy.orm import Session, scoped_session  # late: it takes its time, and most never need it

    if isinstance(connection, Session | scoped_session):
        return connection.connection()
    kind = type(connection).__name__
    if kind in ("AsyncConnection", "AsyncSession", "async_scoped_session"):
        raise ConfigurationError(
            f"{kind} cannot be used from here; await client.aio.…(…, connection=…), or within it: await "
            "connection.run_sync(lambda inner: ….(inner))"
        )
    raise ConfigurationError(f"{kind} is not a SQLAlchemy Connection or Session")
