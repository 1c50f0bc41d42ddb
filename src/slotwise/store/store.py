"""The engine's door to the database: claim, mark, settle, beat, look, take over.

Every transaction is a ``with`` block in here, holds no user code, and ends before anything else begins.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from slotwise import decide
from slotwise.clock import Clock, DatabaseClock
from slotwise.definition import Definition
from slotwise.errors import InvalidSchedule
from slotwise.execution import Claim, Died, Fence, LedgerEntry, LedgerKey, Outcome, Row, Transition
from slotwise.policies import growing_pauses
from slotwise.schedules import Schedule, parse_schedule
from slotwise.store.database import Database, is_transient
from slotwise.store.dialect import Dialect
from slotwise.store.postgresql import PostgreSQL
from slotwise.store.rows import Change, Held, ledger_instance
from slotwise.store.sqlite import SQLite
from slotwise.store.tables import tables

logger = logging.getLogger(__name__)

Entries: TypeAlias = Mapping[LedgerKey, tuple[LedgerEntry | None, str | None]]

#: At most so many rows in one statement: above it PostgreSQL's plans are at risk, below it nothing is gained.
BATCH = 500

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
            started = [row if entered else self._start_late(connection, row, now) for row, now, entered in found]
        claimed_at = found[0][1] if found else None
        claims = [
            Claim(row=row, holder=holder, lease=lease, claimed_at=claimed_at) for row in started if row and claimed_at
        ]
        return len(found), claims

    def _start_late(self, connection: sa.Connection, row: Row, now: datetime) -> Row | None:
        """A plan row with missed slots, or a slot that the ledger has already: which slot starts, if any?"""
        held = Held(row=row, now=now, place=None)
        if row.is_detached:
            # Its only slot has run, or is held by another claim: nothing is left to do here.
            self._move_on(connection, held, None)
            return None
        try:
            schedule = self.schedule_of(row)
        except InvalidSchedule as error:
            self._move_on(connection, held, decide.postponed(row, now, f"schedule {row.schedule!r}: {error}"))
            return None
        strict = row.task_name in self._strict
        decision = decide.at_claim(
            row,
            schedule,
            now,
            self.newest_decided(connection, row.task_name, row.task_instance, strict=strict),
        )
        if isinstance(decision, decide.Advance):
            self._move_on(connection, held, decision.row)
            return None
        if decision.gap is not None:
            self.dialect.gaps(connection, [(row, decision.gap)], now)
        started = decide.started(row, decision)
        self._retarget(connection, row, started)
        if self._enter(connection, started, now, strict=strict):
            return started
        self._move_on(connection, Held(row=started, now=now), decide.past(started, schedule))
        return None

    def _enter(self, connection: sa.Connection, row: Row, now: datetime, *, strict: bool) -> bool:
        if self.dialect.enter(connection, row, now, strict=strict):
            return True
        return not strict and self._disown(connection, row) and self.dialect.enter(connection, row, now, strict=strict)

    def _disown(self, connection: sa.Connection, row: Row) -> bool:
        """End a ledger row that says "running" though no queue row holds its token: the queue was restored alone."""
        slots, holders = self.tables.slots, self.tables.tasks.alias("holders")
        held = sa.exists().where(
            holders.c.task_name == slots.c.task_name, holders.c.version == slots.c.token, holders.c.picked
        )
        statement = (
            slots.update()
            .where(slots.c.task_name == row.task_name, slots.c.task_instance == ledger_instance(row))
            .where(slots.c.slot == row.slot, slots.c.outcome == "running", slots.c.finished.is_(None), ~held)
            .values(outcome="lost", reason="rerun", lost=slots.c.lost + 1)
        )
        return connection.execute(statement).rowcount == 1

    def _retarget(self, connection: sa.Connection, row: Row, started: Row) -> None:
        tasks = self.tables.tasks
        statement = (
            tasks.update()
            .where(tasks.c.task_name == row.task_name, tasks.c.task_instance == row.task_instance)
            .where(tasks.c.version == row.version, tasks.c.picked_by == row.picked_by)
            .values(
                slot=started.slot, next_slot=started.next_slot, watermark=started.watermark,
                origin=started.origin, collapsed=started.collapsed,
            )
        )  # fmt: skip
        _expect(connection.execute(statement).rowcount, 1, row)

    def _move_on(self, connection: sa.Connection, held: Held, columns: dict[str, object] | None) -> None:
        change = Change(held=held, transition=Transition(label="moved-on", row=columns))
        # The portable form: these rows were taken by this very transaction, their place has changed since.
        _expect(Dialect.let_go(self.dialect, connection, [change]), 1, held.row)

    def newest_decided(self, connection: sa.Connection, name: str, instance: str, *, strict: bool) -> datetime | None:
        """The newest slot that the ledger or a gap knows as started or decided; detached runs do not count."""
        slots, gaps = self.tables.slots, self.tables.gaps
        decided: sa.ColumnElement[bool] = slots.c.finished.is_not(None)
        if strict:
            decided = decided | (slots.c.outcome != "claimed")
        in_ledger = connection.scalar(
            sa.select(slots.c.slot)
            .where(slots.c.task_name == name, slots.c.task_instance == instance)
            .where(slots.c.origin.in_(("schedule", "catch_up")), decided)
            .order_by(slots.c.slot.desc())
            .limit(1)
        )
        in_gaps = connection.scalar(
            sa.select(gaps.c.last_slot)
            .where(gaps.c.task_name == name, gaps.c.task_instance == instance)
            .order_by(gaps.c.first_slot.desc())
            .limit(1)
        )
        return max((found for found in (in_ledger, in_gaps) if found), default=None)

    def schedule_of(self, row: Row) -> Schedule:
        """The schedule that decides: the row's text, never the code's."""
        return parse_schedule(row.schedule or "-")

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
                .where(slots.c.slot == key.slot, slots.c.token == claim.token, slots.c.outcome == "claimed")
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
        return self.settle(endings[:middle]) + self.settle(endings[middle:])

    def _settle(self, endings: Sequence[tuple[Claim, Outcome]]) -> list[Settlement]:
        outcomes = {claim.fence: outcome for claim, outcome in endings}

        def work(connection: sa.Connection) -> tuple[str | None, list[Change]]:
            held = self.dialect.hold(connection, [claim for claim, _ in endings], wait=True)
            ended = [(one, outcomes[one.row.fence]) for one in held]
            entries = self.dialect.entries(connection, _ledger_keys(ended), wait=True)
            changes = [self._decide(one, outcome, entries) for one, outcome in ended]
            self._write(connection, changes)
            return (held[0].transaction_id if held else None), changes

        changes = self._surely(work)
        done = {change.held.row.fence: change.transition for change in changes}
        return [Settlement(claim=claim, transition=done.get(claim.fence)) for claim, _ in endings]

    def _decide(self, held: Held, outcome: Outcome, entries: Entries) -> Change:
        row = held.row
        key = _ledger_key(held, outcome)
        entry, place = entries.get(key, (None, None)) if key else (None, None)
        schedule = self.schedule_of(row) if row.is_plan else None
        transition = decide.at_finish(row, self.definitions[row.task_name], schedule, outcome, held.now, entry)
        return Change(held=held, transition=transition, ledger_place=place)

    def _write(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        if not changes:
            return
        _expect(self.dialect.let_go(connection, changes), len(changes), changes[0].held.row)
        self.dialect.record(connection, changes)
        gaps = [(change.held.row, change.transition.gap) for change in changes if change.transition.gap]
        self.dialect.gaps(connection, gaps, changes[0].held.now)

    def _surely(self, work: Callable[[sa.Connection], tuple[str | None, list[Change]]]) -> list[Change]:
        """Do this work exactly once, also when the reply to its COMMIT is lost.

        Race: the connection breaks between COMMIT and its answer. Doing it again under the fence would find
        nothing and call a settled claim lost; so a new connection asks what became of the transaction.
        """
        connection = self.database.main.connect()
        try:
            transaction = connection.begin()
            transaction_id, result = work(connection)
            try:
                transaction.commit()
            except DBAPIError:
                connection.invalidate()
                if transaction_id is None or not self._was_committed(transaction_id):
                    raise
        finally:
            connection.close()
        return result

    def _was_committed(self, transaction_id: str) -> bool:
        """Ask until the database answers: to settle again blindly could call a settled claim lost."""
        for pause in growing_pauses(timedelta(milliseconds=50), timedelta(seconds=2)):
            try:
                with self.database.main.connect() as connection:
                    verdict = self.dialect.committed(connection, transaction_id)
            except DBAPIError as error:
                if not is_transient(error):
                    return False  # a failover forgot the transaction: the fence decides, and the ledger tells
                verdict = None
            if verdict is not None:
                told = "committed" if verdict else "rolled back"
                logger.warning("the reply to a commit was lost; the database says: %s", told)
                return verdict
            time.sleep(pause.total_seconds())
        raise AssertionError("growing_pauses never ends")

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
            Settlement(claim=claims[change.held.row.key], transition=change.transition) for change in self._surely(work)
        ]

    def held_by(self, holder: str) -> list[Claim]:
        """Rows that the database says this worker holds, for finding claims that it does not know of."""
        with self.database.heart.begin() as connection:
            return [_claim_of(row) for row in self.dialect.rows_of(connection, holder)]


def _is_about_a_row(error: DBAPIError) -> bool:
    """A lock timeout or a data error concerns some row of the batch; everything else, the connection."""
    state = getattr(error.orig, "sqlstate", None) or ""
    return state == "55P03" or state.startswith(("22", "23"))


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
    doubtful = isinstance(outcome, Died) or getattr(outcome, "promised", False)
    return held.row.history_key if doubtful else held.row.ledger_key


def _ledger_keys(ended: Sequence[tuple[Held, Outcome]]) -> list[LedgerKey]:
    keys = [_ledger_key(held, outcome) for held, outcome in ended]
    return [key for key in keys if key is not None]


def _expect(written: int, expected: int, row: Row) -> None:
    """Rows that this transaction has locked cannot slip away; if one does, nothing of it may be committed."""
    if written != expected:
        raise RuntimeError(f"wrote {written} of {expected} locked rows around {row.key}; nothing is committed")
