"""One database with its dialect and the tasks that this process knows, and what a worker does with
its claims.

Each transaction is a ``with`` block in this room and runs no user code. ``guard`` and
``complete_in`` alone work inside a user's transaction. They lock the ledger, never the queue:
heartbeats go on while that transaction is open.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.errors import ClaimLost, ConfigurationError
from slotwise.jobs.definition import Definition
from slotwise.model.clock import Clock, DatabaseClock, Stopwatch
from slotwise.model.records import Claim, Fence, Key, Row
from slotwise.model.vocabulary import Outcome
from slotwise.payload.checkpoints import decode_checkpoint
from slotwise.store.connect.caller_transaction import (
    Joinable,
    is_in_transaction,
    is_without_transaction,
    within,
)
from slotwise.store.connect.database import Database, sure_transaction
from slotwise.store.connect.database_errors import (
    in_callers_transaction,
    lacks_tables,
    sqlstate,
)
from slotwise.store.connect.installation import Installation
from slotwise.store.dialects.conditions import of_key
from slotwise.store.dialects.port import Dialect, Transaction
from slotwise.store.dialects.registered import dialect_of
from slotwise.store.queue.queue import AtInsert
from slotwise.store.schema.rows import HOLD_COLUMNS, claim_of, row_of
from slotwise.store.schema.tables import tables
from slotwise.store.slots import checkpoints, ledger
from slotwise.store.slots.claims import Claims
from slotwise.store.slots.due import Due
from slotwise.store.slots.gates import Gates
from slotwise.store.slots.history import History
from slotwise.store.slots.settlements import Settlements
from slotwise.store.slots.tuning import BATCH, HOUR, MANY_BAD, MINUTE, NEWER_PATIENCE


class Store:
    """Its parts: ``due``, ``claims``, ``held`` rows and ``settlements``. Without ``keep`` it rolls
    back all it does.
    """

    def __init__(
        self,
        database: Database,
        definitions: Mapping[str, Definition],
        *,
        clock: Clock | None = None,
        poll: timedelta | None = None,
        keep: bool = True,
        at_insert: tuple[AtInsert, ...] = (),
    ) -> None:
        self.database = database
        self.definitions = definitions
        #: The longest time between two polls of this process.
        self.poll = database.settings.poll_interval if poll is None else poll
        kind = database.dialect_name
        settings = database.settings
        self.tables = tables(settings.table_prefix, settings.schema, kind)
        self.dialect: Dialect = dialect_of(kind)(self.tables, clock or DatabaseClock())
        self.warnings = RowWarnings(self.dialect.clock.elapsed)
        self.history = History(self)
        self.installation = Installation(database, self.tables.meta)
        #: A transaction on the ordinary pool.
        self.transaction = database.transaction if keep else self.rehearsed
        #: Hooks in each transaction that inserts one-time tasks.
        self.at_insert = at_insert
        self.gates = Gates(self.dialect, definitions, settings)
        self.due = Due(self)
        self.claims = Claims(self)
        self.held = HeldRows(self)
        self.settlements = Settlements(self)

    def names_of(self, name: str) -> tuple[str, ...]:
        """Return the name of a job or task, and the former ones that its declaration here
        lists.
        """
        known = self.definitions.get(name)
        return (name, *known.aliases) if known else (name,)

    @contextmanager
    def rehearsed(self) -> Iterator[sa.Connection]:
        with (
            self.database.main.connect() as connection,
            connection.begin() as transaction,
        ):
            yield connection
            transaction.rollback()

    def surely(self) -> AbstractContextManager[sa.Connection]:
        """A transaction of a caller, with a sure answer whether it was committed."""
        return sure_transaction(
            self.database, self.dialect.committed, self.dialect.transaction_id
        )

    def at(self, connection: sa.Connection) -> Transaction:
        """Return a transaction on this connection, that decides by the database's time now."""
        return Transaction(connection, self.dialect, self.dialect.now(connection))

    @contextmanager
    def transact(self) -> Iterator[Transaction]:
        """As ``transaction``, with the database's time."""
        with self.transaction() as connection:
            yield self.at(connection)

    def now(self) -> datetime:
        """Return the database's time."""
        with self.database.autocommit() as connection:
            return self.dialect.now(connection)


logger = logging.getLogger(__name__)


class RowWarnings:
    """Counts bad rows by their task, so that a flood of them is one line a minute. Safe from any
    thread.
    """

    def __init__(self, elapsed: Stopwatch) -> None:
        self._elapsed = elapsed
        self._told: dict[str, tuple[float, str, int]] = {}
        #: When this worker last met a row of a newer release, in elapsed seconds.
        self.newer_at = -math.inf

    def newer(self, row: Row, now: datetime, error: str) -> None:
        """Warn about a row that has waited for a newer worker for a minute; at most once per task
        and minute.
        """
        name = row.task_name
        since = row.slot or row.due
        self.newer_at = self._elapsed()
        if now - since >= NEWER_PATIENCE and (rows := self.count(name, "newer")):
            logger.warning(
                "%s: rows (%d) wait for a newer worker, since %s: %s",
                name,
                rows,
                since,
                error,
            )

    @property
    def has_met_newer(self) -> bool:
        """Whether this worker has met a row of a newer release within the last minute."""
        return self._elapsed() - self.newer_at < MINUTE

    def quarantined(
        self, keys: Sequence[Key], problem: str, level: int = logging.WARNING
    ) -> None:
        """Log that these rows of one task are quarantined, if no line was logged a moment ago."""
        name, instance = keys[-1]
        if rows := self.count(name, problem, len(keys)):
            logger.log(
                level,
                "%s: rows that are quarantined: %d; the last is %r: %s",
                name,
                rows,
                instance,
                problem,
            )

    def count(
        self, name: str, problem: str, rows: int = 1, *, again: float = HOUR
    ) -> int:
        """Return how many rows the line to log now is about, with those before; 0: it is too early
        for a line.

        ``again``: how long a few rows with the same problem are not worth another line.
        """
        now = self._elapsed()
        at, said, before = self._told.get(name, (now - HOUR, "", 0))
        rows += before
        is_due = now - at >= (again if said == problem and rows < MANY_BAD else MINUTE)
        self._told[name] = (now, problem, 0) if is_due else (at, said, rows)
        return rows if is_due else 0


class HeldRows:
    """What a worker does with its claims before it settles them, and what a reaper reads."""

    def __init__(self, store: Store) -> None:
        self.database = store.database
        self.dialect = store.dialect
        self.tables = store.tables
        self.transaction = store.transaction
        self._task_marks = TaskMarks(self)

    def single(self) -> AbstractContextManager[sa.Connection]:
        """A connection for one verb that writes."""
        is_one = self.dialect.is_one_statement
        return self.database.autocommit() if is_one else self.database.transaction()

    def mark_running(self, claim: Claim) -> bool:
        """Record, before a handler that gives up starts, that it starts. True only after a durable
        commit.
        """
        if not claim.row.has_slot:
            return self._task_marks.set(claim)
        with self.transaction() as connection:
            return self.dialect.mark_running(
                connection, claim
            )  # and the commit, on the way out, has not raised

    def beat(self, holder: str, claims: Sequence[Claim]) -> set[Fence]:
        """Renew claims on the heartbeats' own connection; return the lost ones."""
        if not claims:
            return set()
        with self.database.heart.begin() as connection:
            renewed = self.dialect.beat(connection, holder, claims)
        missing = [claim for claim in claims if claim.fence not in renewed]
        if not missing:
            return set()
        with self.database.heart.begin() as connection:
            # Race: an operation may have locked the row for a moment, so a skipped claim is not
            # lost.
            kept = self.dialect.still_held(connection, missing)
        return {claim.fence for claim in missing} - kept

    def silent_rows(self, names: Sequence[str]) -> tuple[datetime, list[Row]]:
        """Return the time, and held rows of these tasks, for a reaper."""
        with self.transaction() as connection:
            return self.dialect.silent_rows(connection, names)

    def find_claim(
        self, name: str, instance: str, token: int, holder: str
    ) -> Claim | None:
        """Read the claim of this fence with its payload; None if it is lost."""
        tasks = self.tables.tasks.c
        held = [
            *of_key(tasks, Key(name, instance)),
            tasks.version == token,
            tasks.picked_by == holder,
        ]
        with self.transaction() as connection:
            values = connection.execute(
                sa.select(*self.dialect.row_columns).where(*held, tasks.picked)
            ).first()
        return None if values is None else claim_of(row_of(values))

    def held_by(self, holder: str) -> list[Claim]:
        """Return the claims that this worker holds by the database, to find those that it does not
        know of.
        """
        tasks = self.tables.tasks
        with self.database.heart.begin() as connection:
            mine = sa.select(*self.dialect.hold_columns).where(
                tasks.c.picked, tasks.c.picked_by == holder
            )
            return [
                claim_of(row_of(values, names=HOLD_COLUMNS))
                for values in connection.execute(mine)
            ]


class TaskMarks:
    """The marks of one-time tasks that threads start at the same time, in one statement.

    A thread whose turn comes sends the marks of all that wait, so as many are marked and have not
    started as there are threads about to start them.
    """

    def __init__(self, rows: HeldRows) -> None:
        self._rows = rows
        self._turn = threading.Lock()
        self._waiting: deque[tuple[Claim, Future[bool]]] = deque()

    def set(self, claim: Claim) -> bool:
        """Wait until the mark is committed, and return whether it is set; raise what the
        database raises.
        """
        mine = Future[bool]()
        self._waiting.append((claim, mine))
        with self._turn:
            while not mine.done():
                self._send()
        return mine.result()

    def _send(self) -> None:
        sent = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH))]
        try:
            with self._rows.single() as connection:
                marked = self._rows.dialect.mark_tasks(
                    connection, [claim for claim, _ in sent]
                )
        except BaseException as error:
            for _, future in sent:
                future.set_exception(error)
        else:
            for claim, future in sent:
                future.set_result(claim.fence in marked)


class LedgerFence:
    """Checks a claim's token in the ledger, under a lock that lasts as long as the caller's
    transaction.
    """

    def __init__(self, store: Store) -> None:
        self._database = store.database
        self._transaction = store.transaction
        self._dialect = store.dialect
        self._tables = store.tables
        self._installation = store.installation

    def guard(self, claim: Claim, connection: object) -> Awaitable[None] | None:
        """Lock the slot's ledger row against a take-over. Raises ClaimLost for a stale claim."""
        return within(connection, lambda own: self._guard(own, claim))

    def complete_in(self, claim: Claim, connection: object) -> Awaitable[None] | None:
        """Lock it as ``guard`` does, and write the success."""
        return within(connection, lambda own: self._guard(own, claim, completes=True))

    def save(
        self, claim: Claim, value: object, connection: object = None
    ) -> Awaitable[None] | None:
        """Save a checkpoint under the guard; without ``connection``, in a transaction of ours.
        Raises ClaimLost for a stale claim, and InvalidPayload.
        """
        saved = checkpoints.saved(claim, value)
        if connection is not None:
            return within(connection, lambda own: self._guard(own, claim, saved))
        with self._transaction() as own:
            self._prove(own, claim, saved)
        return None

    def saved(self, claim: Claim) -> object:
        """Return the checkpoint that was committed last; None without one."""
        # Not a transaction of ours: on SQLite that is a writer, and would wait for the caller's.
        with self._database.autocommit() as own:
            body = checkpoints.find(own, self._tables, claim.row)
        return None if body is None else decode_checkpoint(body)

    def is_open(self, connection: object) -> bool:
        """Whether a connection that was guarded is in a transaction now."""
        return is_in_transaction(connection)

    def _guard(
        self,
        own: Joinable,
        claim: Claim,
        saved: dict[str, object] | None = None,
        *,
        completes: bool = False,
    ) -> None:
        with in_callers_transaction():
            try:
                self._installation.join(own, "ctx")
                self._prove(own, claim, saved, completes=completes)
            except Exception as error:
                if cure := self._cure(error):
                    raise ConfigurationError(cure) from error
                raise
            if completes:
                self._dialect.end_guard(own)

    def _cure(self, error: Exception) -> str | None:
        if sqlstate(error) == "25P02":
            return (
                "the transaction of this connection was aborted by an error before, and nothing "
                "of it will stay: roll back, and do its work again in another one"
            )
        if lacks_tables(error):
            return (
                f"this connection does not reach {self._tables.meta.name}: pass one to the "
                "database that holds slotwise's tables"
            )
        return None

    def _prove(
        self,
        own: Joinable,
        claim: Claim,
        saved: dict[str, object] | None,
        *,
        completes: bool = False,
    ) -> None:
        try:
            held = self._dialect.guard(own, claim, saved)
            if is_without_transaction(own):  # some drivers know it only after a write
                raise ConfigurationError(
                    "this connection commits every statement by itself "
                    "(AUTOCOMMIT); pass one with a transaction"
                )
            is_done = not held and self._has_succeeded(own, claim)
            if held and (not completes or ledger.complete(own, self._dialect, claim)):
                return
        except Exception as error:
            if sqlstate(error) != "40001":
                raise
            # The ledger row has changed since the snapshot of REPEATABLE READ.
            raise _lost(claim) from error
        if not is_done:
            raise _lost(claim)
        raise ClaimLost(
            f"{claim.row.task_name} slot {claim.slot}: this attempt has succeeded "
            "already, by complete_in or because "
            "its handler has returned; call complete_in once, as the last word of "
            "the one transaction that holds all "
            "work"
        )

    def _has_succeeded(self, own: Joinable, claim: Claim) -> bool:
        if claim.row.ledger_key is None:
            return False
        outcome = self._tables.slots.c.outcome
        mine = [
            *self._dialect.conditions.entry_of(claim),
            outcome == Outcome.SUCCEEDED,
        ]
        return own.execute(sa.select(outcome).where(*mine)).fetchone() is not None


def _lost(claim: Claim) -> ClaimLost:
    row = claim.row
    where = f"{row.task_name}/{row.task_instance} slot {claim.slot}"
    return ClaimLost(
        f"{where}: token {claim.token} is stale; another worker may run this slot, so roll back"
    )
