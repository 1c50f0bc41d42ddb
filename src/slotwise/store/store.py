"""The engine's door to the database: claim, mark, settle, beat, look, take over.

Every transaction is a ``with`` block in here, holds no user code, and ends before anything else begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

import sqlalchemy as sa
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from slotwise import decide
from slotwise.clock import Clock, DatabaseClock
from slotwise.definition import Definition
from slotwise.errors import InvalidSchedule
from slotwise.execution import (
    Aborted,
    Cancelled,
    Claim,
    Died,
    Fence,
    LedgerEntry,
    LedgerKey,
    Outcome,
    Row,
    Snoozed,
    Transition,
)
from slotwise.pauses import parked
from slotwise.schedules import Schedule, parse_schedule
from slotwise.store.commit import commit_surely
from slotwise.store.database import Database
from slotwise.store.dialect import Dialect
from slotwise.store.latecomers import Latecomers, expect
from slotwise.store.postgresql import PostgreSQL
from slotwise.store.release import release_next
from slotwise.store.rows import Change, Held
from slotwise.store.sqlite import SQLite
from slotwise.store.tables import tables

Entries: TypeAlias = Mapping[LedgerKey, tuple[LedgerEntry | None, str | None]]

#: At most so many rows in one statement: above it PostgreSQL's plans are at risk, below it nothing is gained.
BATCH = 500

_LOCK_TIMEOUT = "55P03"

_DIALECTS: dict[str, type[Dialect]] = {kind.name: kind for kind in (PostgreSQL, SQLite)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What settling one claim did: a transition, or None because the claim was lost, or the error that stood alone."""

    claim: Claim
    transition: Transition | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A held row as a reaper saw it: still with this heartbeat, it is dead; its lease ran out at ``lease_end``."""

    row: Row
    lease_end: datetime


class Store:
    """One database, one set of tables, the definitions of the tasks that this process knows."""

    def __init__(
        self,
        database: Database,
        definitions: Mapping[str, Definition],
        *,
        clock: Clock | None = None,
    ) -> None:
        self.database = database
        self.definitions = definitions
        self.tables = tables(database.settings.table_prefix, database.settings.schema)
        self.dialect = _DIALECTS[database.dialect_name](self.tables, clock or DatabaseClock())
        self._latecomers = Latecomers(self.dialect, definitions)
        self._timed = frozenset(name for name, found in definitions.items() if found.is_timed)
        self._strict = tuple(sorted(name for name, found in definitions.items() if found.gives_up))

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """A transaction on the ordinary pool."""
        with self.database.main.begin() as connection:
            yield connection

    def now(self) -> datetime:
        """The one clock's time."""
        with self.transaction() as connection:
            return self.dialect.now(connection)

    # -- claim ------------------------------------------------------------------------------------------------

    def claim(
        self, holder: str, limit: int, *, lease: timedelta, names: Sequence[str], instance: str | None = None
    ) -> tuple[int, list[Claim]]:
        """Take up to ``limit`` due rows of these tasks: how many were found, and the claims that may start.

        Rows that turn out to have nothing to run (their slot ran already, their text cannot be read) are moved
        on in the same transaction and are not among the claims.
        """
        with self.transaction() as connection:
            found = self.dialect.claim(
                connection, holder=holder, names=names, strict=self._strict, limit=min(limit, BATCH),
                lease=lease, instance=instance,
            )  # fmt: skip
            started = [
                row if entered and self._may_start(row) else self._late(connection, row, now, entered=entered)
                for row, now, entered in found
            ]
        claimed_at = found[0][1] if found else None
        claims = [
            Claim(row=row, holder=holder, lease=lease, claimed_at=claimed_at) for row in started if row and claimed_at
        ]
        return len(found), claims

    def _late(self, connection: sa.Connection, row: Row, now: datetime, *, entered: bool) -> Row | None:
        withdraw = entered and self._is_timed(row) and self._can_read(row)
        return self._latecomers.start(connection, row, now, strict=row.task_name in self._strict, entered=withdraw)

    def _may_start(self, row: Row) -> bool:
        return not self._is_timed(row) and self._can_read(row)

    def _is_timed(self, row: Row) -> bool:
        """Whether it has yet to be asked if this slot is too late to start; a retry is not."""
        return row.is_plan and row.attempt == 1 and row.task_name in self._timed

    def schedule_of(self, row: Row) -> Schedule:
        """The schedule that decides: the row's text, never the code's. Raises InvalidSchedule."""
        return parse_schedule(row.schedule or "-")

    def _can_read(self, row: Row) -> bool:
        """Race: during a deploy a newer release plans rows with schedules that this one does not know."""
        try:
            return not row.is_plan or self.schedule_of(row) is not None
        except InvalidSchedule:
            return False

    def mark_running(self, claim: Claim) -> bool:
        """Say, before a handler that gives up starts, that it starts. True only after the commit is acknowledged."""
        key = claim.row.ledger_key
        if key is None:
            return True
        slots = self.tables.slots
        with self.transaction() as connection:
            statement = (
                slots.update()
                .where(slots.c.task_name == key.task_name, slots.c.task_instance == key.task_instance)
                .where(slots.c.slot == key.slot, slots.c.token == claim.token, slots.c.worker == claim.holder)
                .where(slots.c.outcome == "claimed")
                .values(outcome="running", started=self.dialect.now(connection))
            )
            marked = connection.execute(statement).rowcount
        return marked == 1  # outside the block: the commit has been acknowledged

    def next_due(self, names: Sequence[str]) -> timedelta | None:
        """How long until the next waiting row of these tasks is due; zero or less: now; None: nothing waits."""
        tasks = self.tables.tasks
        with self.transaction() as connection:
            due = connection.scalar(
                sa.select(tasks.c.execution_time)
                .where(~tasks.c.picked, tasks.c.state.is_(None), tasks.c.task_name.in_(list(names)))
                .where(self.dialect.not_all_paused())
                .order_by(tasks.c.execution_time)
                .limit(1)
            )
            return None if due is None else due - self.dialect.now(connection)

    # -- settle -----------------------------------------------------------------------------------------------

    def settle(self, endings: Sequence[tuple[Claim, Outcome]]) -> list[Settlement]:
        """Write these outcomes, each under its claim's fence. A bad one is found by halving its batch."""
        try:
            return self._settle(endings)
        except DBAPIError as error:
            if not _is_about_a_row(error):
                raise
            if len(endings) == 1:
                return [Settlement(claim=endings[0][0], error=error)]
        middle = len(endings) // 2
        settled = self.settle(endings[:middle])
        try:
            return settled + self.settle(endings[middle:])
        except DBAPIError as error:
            # What is settled must be told; to settle it again would look like a loss.
            return settled + [Settlement(claim=claim, error=error) for claim, _ in endings[middle:]]

    def _settle(self, endings: Sequence[tuple[Claim, Outcome]]) -> list[Settlement]:
        outcomes = {claim.fence: outcome for claim, outcome in endings}
        claims = list({claim.fence: claim for claim, _ in endings}.values())

        def work(connection: sa.Connection) -> tuple[str | None, list[Change]]:
            held = self.dialect.hold(connection, claims, wait=True)
            ended = [(one, outcomes[one.row.fence]) for one in held]
            entries = self.dialect.entries(connection, _ledger_keys(ended), wait=True)
            changes = [self._decide(one, outcome, entries) for one, outcome in ended]
            self._write(connection, changes)
            return (held[0].transaction_id if held else None), changes

        changes = commit_surely(self.database, self.dialect, work)
        done = {change.held.row.fence: change.transition for change in changes}
        return [Settlement(claim=claim, transition=done.get(claim.fence)) for claim, _ in endings]

    def _decide(self, held: Held, outcome: Outcome, entries: Entries) -> Change:
        row = held.row
        key = _ledger_key(held, outcome)
        entry, place = entries.get(key, (None, None)) if key else (None, None)
        definition = self.definitions[row.task_name]
        try:
            schedule = self.schedule_of(row) if row.is_plan else None
        except InvalidSchedule as error:
            schedule, reason = None, f"schedule {row.schedule!r}: {error}"
            transition = decide.at_finish_unread(row, definition, outcome, held.now, entry, reason)
        else:
            transition = decide.at_finish(row, definition, schedule, outcome, held.now, entry)
        transition = decide.removed(row, schedule, parked(row, transition), held.now)
        return Change(held=held, transition=transition, ledger_place=place)

    def _write(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        if not changes:
            return
        expect(self.dialect.let_go(connection, changes), len(changes), changes[0].held.row)
        self.dialect.record(connection, changes)
        gaps = [(change.held.row, gap) for change in changes for gap in change.transition.gaps]
        self.dialect.gaps(connection, gaps, changes[0].held.now)
        for change in changes:
            if change.held.row.origin == "backfill" and change.transition.remove:
                release_next(connection, self.dialect, change.held.row, change.held.now)

    # -- heartbeat and reaper ---------------------------------------------------------------------------------

    def beat(self, holder: str, claims: Sequence[Claim]) -> set[Fence]:
        """Renew claims on the heartbeats' own connection; those that are lost."""
        if not claims:
            return set()
        with self.database.heart.begin() as connection:
            renewed = self.dialect.beat(connection, holder, claims)
        missing = [claim for claim in claims if claim.fence not in renewed]
        if not missing:
            return set()
        with self.database.heart.begin() as connection:
            # Skipped is not lost: an operator's command may have locked the row for a moment.
            kept = self.dialect.still_held(connection, missing)
        return {claim.fence for claim in missing} - kept

    def look(self, names: Sequence[str]) -> tuple[datetime, list[Row]]:
        """All held rows of these tasks, for a reaper; and the time."""
        with self.transaction() as connection:
            return self.dialect.silent_rows(connection, names)

    def take_over(self, silences: Sequence[Silence]) -> list[Settlement]:
        """Let go of rows whose holder is dead, waiting for no lock. Rows that stirred, or are locked, are left."""
        claims = {silence.row.key: _claim_of(silence.row) for silence in silences}
        ends = {silence.row.key: silence for silence in silences}

        def work(connection: sa.Connection) -> tuple[str | None, list[Change]]:
            held = [
                one
                for one in self.dialect.hold(connection, list(claims.values()), wait=False)
                if one.row.last_heartbeat == ends[one.row.key].row.last_heartbeat
            ]
            ended = [(one, Died(ends[one.row.key].lease_end)) for one in held]
            entries = self.dialect.entries(connection, _ledger_keys(ended), wait=False)
            free = [(one, died) for one, died in ended if _ledger_key(one, died) in {None, *entries}]
            changes = [self._decide(one, died, entries) for one, died in free]
            self._write(connection, changes)
            return (free[0][0].transaction_id if free else None), changes

        return [
            Settlement(claim=claims[change.held.row.key], transition=change.transition)
            for change in commit_surely(self.database, self.dialect, work)
        ]

    def held_by(self, holder: str) -> list[Claim]:
        """Rows that the database says this worker holds, for finding claims that it does not know of."""
        with self.database.heart.begin() as connection:
            return [_claim_of(row) for row in self.dialect.rows_of(connection, holder)]


def _is_about_a_row(error: DBAPIError) -> bool:
    """A lock timeout or a data error concerns some row of the batch; everything else, the connection."""
    return isinstance(error, DataError | IntegrityError) or getattr(error.orig, "sqlstate", None) == _LOCK_TIMEOUT


def _claim_of(row: Row) -> Claim:
    """The claim under which ``row`` is held, whoever holds it."""
    return Claim(
        row=row,
        holder=row.picked_by or "",
        lease=row.lease or timedelta(0),
        claimed_at=row.last_heartbeat or row.execution_time,
    )


def _ledger_key(held: Held, outcome: Outcome) -> LedgerKey | None:
    """Which ledger row to look at: a slot's own; a one-time task's only where complete_in may have written it."""
    doubtful = isinstance(outcome, Died | Aborted | Cancelled | Snoozed) or getattr(outcome, "promised", False)
    return held.row.history_key if doubtful else held.row.ledger_key


def _ledger_keys(ended: Sequence[tuple[Held, Outcome]]) -> list[LedgerKey]:
    keys = [_ledger_key(held, outcome) for held, outcome in ended]
    return [key for key in keys if key is not None]
