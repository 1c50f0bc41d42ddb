"""The port to a database: the statements that differ from database to database, as verbs.

All verbs run in the caller's transaction. ``Dialect`` has no bodies. A dialect takes them from one
of two bases: ``OneWriter``, where one transaction writes at a time, and ``Locking``, where many do.
PostgreSQL has its own, as text. The conformance suite, ``slotwise.testing.dialects``, holds every
dialect to the same answers.

A place is where a database keeps a row (PostgreSQL's ctid); it is opaque, and None where rows are
written by key.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import sqlalchemy as sa

from slotwise.model.clock import Clock
from slotwise.model.records import (
    Claim,
    Fence,
    Gap,
    Key,
    LedgerEntry,
    LedgerKey,
    Row,
    Transition,
)
from slotwise.store.connect.caller_transaction import Joinable
from slotwise.store.dialects.conditions import Conditions
from slotwise.store.schema.rows import Change, Held
from slotwise.store.schema.tables import HAS_SLOT, Expression, Tables

if TYPE_CHECKING:
    from slotwise.store.dialects.task_statements import TaskStatements

#: Ranks are priorities, negated.
FIRST = -(2**31)
LAST = 2**31 - 1


class Parted(Exception):
    """A row was advanced without its ledger row: the transaction must be rolled back."""


class Range(NamedTuple):
    """Ranks of a task that a claim searches; a single rank from those due at ``since`` on."""

    task_name: str
    first: int = FIRST
    last: int = LAST
    since: datetime | None = None


class ClaimRequest(NamedTuple):
    """What a claim takes: up to ``limit`` due rows of the tasks ``names``, for ``holder``.

    ``lost``: at most so many rows, also of one-time tasks, whose holder has died before; they go
    first.
    """

    holder: str
    names: Sequence[str]
    limit: int
    lease: timedelta
    lost: int = 1
    #: This row of a task alone, whatever it is.
    instance: str | None = None
    #: What is due was seen to be of one priority, so the oldest go first.
    is_level: bool = False
    #: The jobs with ``give_up``, whose slots are entered as claimed; and those whose new slots are
    #: not entered, as they are to be decided on.
    strict: Collection[str] = ()
    weighed: Collection[str] = ()
    #: Slots later than that are not entered either, nor are catch-ups.
    late: timedelta | None = None
    #: Of one-time tasks: rows before these cursors are left to a claim without.
    ranges: Sequence[Range] | None = None
    #: Slots that are due before this may be left out: see ``Due``.
    since: datetime | None = None
    #: Of one-time tasks: of these names at most so many rows; of each priority at least so many
    #: that are due, up to ``limit``.
    most: Mapping[str, int] = MappingProxyType({})


class NewRow(Protocol):
    """The values of a row that is being inserted, as parts of a statement."""

    def __getitem__(self, name: str, /) -> Expression:
        """Return the value of this column."""


class Reading(Protocol):
    """A statement that writes rows and returns columns of them."""

    def __call__(
        self, connection: Joinable, parameters: Mapping[str, object] | None = None, /
    ) -> Sequence[Sequence[Any]]:
        """Execute it in this transaction."""


class Dialect(Protocol):
    """The verbs of claims, held rows and the ledger. Each runs in the caller's transaction."""

    tables: Tables
    clock: Clock
    conditions: Conditions
    #: What is read of a row, and of a held one of which only the claim matters.
    row_columns: Sequence[Expression]
    hold_columns: Sequence[Expression]
    #: The key in the order in which rows are locked, which is the order in which Python sorts.
    key_order: tuple[Expression, Expression]

    #: The kind of database, as SQLAlchemy calls it.
    name: str

    #: Whether ``advance`` is worth a call.
    has_fast_finish: bool

    #: Whether ``claim_tasks``, ``mark_tasks`` and each command on a one-time task are one
    #: statement. Else each is given a transaction.
    is_one_statement: bool

    @abstractmethod
    def __hash__(self) -> int:
        """A dialect is kept as long as its statements."""

    @abstractmethod
    def task_statements(self, wake: timedelta | None) -> TaskStatements:
        """Return the commands on one-time tasks; with ``wake`` they notify workers of rows due
        within that time.
        """

    # -- time and transactions ------------------------------------------------------------------

    @abstractmethod
    def now(self, connection: Joinable) -> datetime:
        """Return the database's time, or the test's."""

    @abstractmethod
    def ago(
        self, connection: Joinable, span: timedelta = timedelta(0)
    ) -> sa.ColumnElement[datetime]:
        """Return the time ``span`` ago as a part of a statement."""

    @abstractmethod
    def hour(self, instant: sa.ColumnElement[datetime]) -> sa.ColumnElement[datetime]:
        """Return the beginning of an instant's hour, in UTC, as a part of a statement."""

    @abstractmethod
    def transaction_id(self, connection: sa.Connection) -> str | None:
        """Return the argument of ``committed``, after the last write of a transaction; None if its
        commit is never in doubt.
        """

    @abstractmethod
    def committed(self, connection: sa.Connection, transaction_id: str) -> bool | None:
        """Return whether that transaction committed; None while it is undecided."""

    @abstractmethod
    def delete_receipts(self, connection: sa.Connection) -> int:
        """Delete what ``committed`` does not need any more; return how many rows."""

    @abstractmethod
    def hurry(self, connection: sa.Connection, wait: timedelta) -> None:
        """Let the rest of this transaction wait for each lock for so long at most."""

    # -- parts of statements --------------------------------------------------------------------

    @abstractmethod
    def merged(
        self, document: sa.ColumnElement[object], changes: Mapping[str, object]
    ) -> sa.ColumnElement[object]:
        """Return a JSON column with these keys set, none of which is null, as a part of a
        statement.
        """

    @abstractmethod
    def among(
        self, column: sa.ColumnElement[str], names: Collection[str]
    ) -> sa.ColumnElement[bool]:
        """Return the condition that a column has one of any number of names."""

    @abstractmethod
    def locked(
        self, connection: Joinable, found: sa.Select[Any]
    ) -> sa.ColumnElement[bool]:
        """Return the condition that a row is among those that ``found``, a SELECT of keys with a
        LIMIT, locks in this transaction.

        Rows that another transaction has locked are skipped.
        """

    @abstractmethod
    def reading(
        self, statement: sa.Update | sa.Delete, *columns: Expression
    ) -> Reading:
        """Return a function that executes the statement in a transaction, with parameters, and
        returns these columns of the rows that it writes.

        The statement changes none of these columns.
        """

    # -- rows of any table ----------------------------------------------------------------------

    @abstractmethod
    def insert_new(
        self, connection: Joinable, table: sa.Table, values: Mapping[str, object]
    ) -> bool:
        """Insert a row unless its key is taken; return whether it was inserted."""

    @abstractmethod
    def insert_missing(
        self,
        connection: sa.Connection,
        table: sa.Table,
        rows: Sequence[Mapping[str, object]],
    ) -> Sequence[Any]:
        """As ``insert_new``, many rows of the same columns; return the first column of the key of
        those inserted.
        """

    @abstractmethod
    def upsert(
        self,
        connection: Joinable,
        table: sa.Table,
        values: Mapping[str, object],
        again: Callable[[NewRow], Mapping[str, object]],
        where: Callable[[NewRow], sa.ColumnElement[bool]] | None = None,
    ) -> bool:
        """Insert a row, or change the one that has its key; return whether a row was written.

        Both functions get the columns of the new row.
        """

    @abstractmethod
    def replace_all(
        self,
        connection: sa.Connection,
        table: sa.Table,
        rows: Sequence[Mapping[str, object]],
    ) -> None:
        """Insert these rows, all of the same columns; each replaces the row that has its key."""

    # -- locks ----------------------------------------------------------------------------------

    @abstractmethod
    def alone(self, connection: sa.Connection, name: str) -> bool:
        """Return whether no other open transaction got True for this task; the answer holds until
        this one ends.
        """

    @abstractmethod
    def latch(self, connection: sa.Connection, name: str, *, shared: bool) -> None:
        """Take the task's latch until this transaction ends; wait while another transaction
        excludes it.

        A transaction that creates an instance shares it. An operation on all rows of a job takes
        it exclusively, so it misses no row that is being created.
        """

    @abstractmethod
    def guard(
        self,
        connection: Joinable,
        claim: Claim,
        saved: dict[str, object] | None = None,
    ) -> bool:
        """Lock the slot of a claim against a take-over, in a user's transaction; return whether
        the claim still holds it. Then write its checkpoint, if there is one: ``saved`` has all
        columns but ``updated``.

        A one-time task has no slot: its row is locked. A transaction that a frozen holder leaves
        open ends after the claim's lease, where the database can do that.
        """

    @abstractmethod
    def end_guard(self, connection: Joinable) -> None:
        """After the success was written: let an idle transaction last as before the guard."""

    # -- claims ---------------------------------------------------------------------------------

    @abstractmethod
    def claim(
        self, connection: sa.Connection, request: ClaimRequest
    ) -> list[tuple[Row, datetime, bool]]:
        """Claim due slots; return each with the time and whether its ledger row was written.

        Recurring slots that are on time, and detached ones, are entered into the ledger at once
        and may start. A plan row with missed slots, or whose slot the ledger already has, is
        returned with False; ``decide`` handles it.
        """

    @abstractmethod
    def claim_tasks(
        self, connection: sa.Connection, request: ClaimRequest
    ) -> tuple[list[Row], bool]:
        """Claim due one-time tasks, by priority, then by name as given, then by age; return
        whether slots may be due.

        Rows whose holder has died before are left to ``claim``.
        """

    @abstractmethod
    def due_keys(
        self, connection: sa.Connection, request: ClaimRequest, kind: str = HAS_SLOT
    ) -> list[Key]:
        """Return the rows that a claim would take, without a lock."""

    @abstractmethod
    def due_names(
        self, connection: sa.Connection, limit: int, since: datetime | None
    ) -> Sequence[Sequence[Any]]:
        """Return name, priority and due time of up to ``limit`` due slots, oldest first, and of
        rows of dead holders.

        Slots that are due before ``since`` may be left out.
        """

    @abstractmethod
    def first_slots(
        self,
        connection: sa.Connection,
        limit: int,
        *,
        lost: int,
        since: datetime | None,
    ) -> list[tuple[str, timedelta]]:
        """Return name and time until due of the first ``limit`` waiting slots, and of as many rows
        of dead holders.

        None of the latter if ``lost`` is 0. Slots that are due before ``since`` are left out.
        Return none at all where a look with many names is no dearer than one without.
        """

    @abstractmethod
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
        """Return the time until the next waiting slot of ``names`` or task of ``tasks`` is due;
        None: nothing waits.

        ``lost`` = 0: without the rows whose holder has died before; ``no_slots``: without other
        slots. Without ``since``, return also a value for it, if many due slots of other names lie
        before those of ``names``: the due time of the first, or now.
        """

    @abstractmethod
    def newest_decided(
        self, connection: sa.Connection, plans: Sequence[Key], strict: Collection[str]
    ) -> list[datetime | None]:
        """Return for each plan row the newest slot that is decided according to the ledger or a
        gap.
        """

    @abstractmethod
    def enter(
        self,
        connection: sa.Connection,
        rows: Sequence[Row],
        now: datetime,
        strict: Collection[str],
    ) -> set[Key]:
        """Write the decided slots of rows that this transaction has claimed, and enter them into
        the ledger; return the keys of those that may run.

        Race: another transaction may enter the same slot, as one with a row that was restored. The
        ledger's key lets one of them run. A slot that the ledger has already is entered again only
        if it may start.
        """

    # -- held rows ------------------------------------------------------------------------------

    @abstractmethod
    def beat(
        self, connection: sa.Connection, holder: str, claims: Sequence[Claim]
    ) -> set[Fence]:
        """Renew these claims without waiting; return those renewed. The others must be read
        again.
        """

    @abstractmethod
    def still_held(
        self, connection: sa.Connection, claims: Sequence[Claim]
    ) -> set[Fence]:
        """Read, without a lock, which of these claims of one holder still hold their rows."""

    @abstractmethod
    def silent_rows(
        self, connection: sa.Connection, names: Sequence[str]
    ) -> tuple[datetime, list[Row]]:
        """Return the time, and held rows of these tasks, of any holder: ``MOST_HELD`` with the
        oldest heartbeats.
        """

    @abstractmethod
    def finish(
        self, connection: sa.Connection, claims: Sequence[Claim]
    ) -> tuple[str | None, int]:
        """Delete the rows of one-time tasks that succeeded, unless an operation has changed them
        meanwhile.

        Return the transaction's id and the number of rows. Wait for locks.
        """

    @abstractmethod
    def advance(
        self, connection: sa.Connection, endings: Sequence[tuple[Claim, Transition]]
    ) -> tuple[str | None, set[Fence]]:
        """Release plan rows whose slots were on time and succeeded, unless an operation has
        changed them meanwhile.

        Return the transaction's id and the released rows; the others are unchanged. Skip locked
        rows, but wait for ledger rows. Raise Parted if a row was advanced and its ledger row was
        not.
        """

    @abstractmethod
    def hold(
        self, connection: sa.Connection, claims: Sequence[Claim], *, wait: bool
    ) -> list[Held]:
        """Lock the rows that are still held under these claims; those absent are lost, or
        locked.
        """

    @abstractmethod
    def lock(
        self, connection: sa.Connection, keys: Iterable[Key], *, wait: bool
    ) -> set[Key]:
        """Lock these rows in the order of their keys; return those that stay locked by others,
        none if it waits.
        """

    @abstractmethod
    def release(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        """Write what happens to rows that this transaction holds or has claimed, and what the
        ledger has of them, under the token.

        A ledger row that is final already is unchanged. Raise if a row was not written.
        """

    # -- the ledger -----------------------------------------------------------------------------

    @abstractmethod
    def mark_running(self, connection: sa.Connection, claim: Claim) -> bool:
        """Mark a claimed slot as running in the ledger; return whether it was there and not marked
        yet.

        The commit of this transaction must be durable: after a crash of the server the slot must
        not start again.
        """

    @abstractmethod
    def mark_tasks(
        self, connection: sa.Connection, claims: Sequence[Claim]
    ) -> set[Fence]:
        """As ``mark_running``, for claimed one-time tasks of one holder, in their rows; return
        those marked.
        """

    @abstractmethod
    def entries(
        self, connection: sa.Connection, keys: Sequence[LedgerKey], *, wait: bool
    ) -> dict[LedgerKey, LedgerEntry | None]:
        """Lock these ledger rows; return each key's entry, or None if there is none; locked ones
        are absent.
        """

    @abstractmethod
    def gaps(
        self, connection: sa.Connection, gaps: Sequence[tuple[Row, Gap]], now: datetime
    ) -> None:
        """Enter slots that will not run: a ledger row for one, a gap row for several.

        The job's last gap is extended if it ends with ``gap.after`` and has the same reason.
        """


class Transaction(NamedTuple):
    """A transaction that writes: its connection, the dialect of its statements, and the time at
    which it decides.
    """

    connection: sa.Connection
    dialect: Dialect
    now: datetime
