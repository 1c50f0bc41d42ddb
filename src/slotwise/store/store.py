"""The engine's door to the database: claim, mark, settle, beat, look, take over.

Every transaction is a ``with`` block in here, holds no user code, and ends before anything else begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeAlias

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from slotwise import decide
from slotwise.clock import Clock, DatabaseClock
from slotwise.definition import Definition
from slotwise.errors import InvalidSchedule
from slotwise.execution import (
    Aborted,
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
    Snoozed,
    Transition,
)
from slotwise.pauses import parked
from slotwise.schedules import Schedule, parse_schedule
from slotwise.store.abreast import tell_plan_rows
from slotwise.store.budget import Budget
from slotwise.store.commit import commit_surely
from slotwise.store.database import Database
from slotwise.store.dialect import Dialect
from slotwise.store.failures import describe, is_about_a_row, is_locked
from slotwise.store.latecomers import Latecomers, expect, settle_stranger
from slotwise.store.postgresql import PostgreSQL
from slotwise.store.recorders import Recorders
from slotwise.store.release import release_next
from slotwise.store.rows import Change, Held, row_of
from slotwise.store.sequels import End, Sequels
from slotwise.store.sqlite import SQLite
from slotwise.store.tables import HAS_SLOT, IS_TASK, tables

Entries: TypeAlias = Mapping[LedgerKey, tuple[LedgerEntry | None, str | None]]

#: At most so many rows in one statement: above it PostgreSQL's plans are at risk, below it nothing is gained.
BATCH = 500

#: Why a row could not be settled that somebody else keeps locked.
LOCKED = TimeoutError("another transaction keeps its row, or its slot in the ledger, locked; see pg_stat_activity")

#: Told of slots that will not run.
OnSkipped: TypeAlias = Callable[[Row, Gap], None]

Endings: TypeAlias = "Sequence[tuple[Claim, Outcome]]"

logger = logging.getLogger(__name__)

#: From so many names on, a look at what is due comes before the claim.
MANY = 200

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


def _nobody(row: Row, gap: Gap) -> None:
    """Is told."""


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
        #: What else a worker writes with its settlements.
        self.recorders = Recorders()
        self._sequels = Sequels(self.dialect)
        self._budget = Budget(self.dialect, database.settings.recovery_rate)
        self._latecomers = Latecomers(self.dialect, definitions, self._budget)
        self._weighed = frozenset(name for name, found in definitions.items() if found.is_weighed)
        self._limited = {name: found.max_running for name, found in definitions.items() if found.max_running}
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
        self,
        holder: str,
        limit: int,
        *,
        lease: timedelta,
        names: Sequence[str],
        lost: int = 1,
        on_skipped: OnSkipped = _nobody,
    ) -> tuple[int, list[Claim]]:
        """Take up to ``limit`` due rows of these tasks: how many were found, and the claims that may start.

        Slots come before one-time tasks. Rows that turn out to have nothing to run (their slot ran already, their
        text cannot be read) are moved on in the same transaction and are not among the claims. Of rows whose holder
        has died before, at most ``lost`` are taken. ``on_skipped`` is told, once it is committed, which slots will not
        run.
        """
        found, claims = self.claim_slots(holder, limit, lease=lease, names=names, lost=lost, on_skipped=on_skipped)
        queued = self.claim_tasks(holder, limit - found, lease=lease, names=self._tasks_of(names))
        return found + len(queued), claims + queued

    def _tasks_of(self, names: Sequence[str]) -> list[str]:
        """Those that are no jobs, whatever else we know of them."""
        return [name for name in names if (known := self.definitions.get(name)) is None or not known.is_job]

    def claim_tasks(self, holder: str, limit: int, *, lease: timedelta, names: Sequence[str]) -> list[Claim]:
        """As ``claim``, and one-time tasks alone, without those whose holder has died before."""
        limit = min(limit, BATCH)
        if limit <= 0 or not names:
            return []
        try:
            with self.transaction() as connection:
                limit = self._within(connection, names, limit)
                rows = self.dialect.claim_tasks(connection, holder=holder, names=names, limit=limit, lease=lease)
        except Exception as error:
            if not is_about_a_row(error):
                raise
            return self._claim_apart(holder, names, limit, lease, _nobody, lost=0, kind=IS_TASK)[1]
        return [
            Claim(row=row, holder=holder, lease=lease, claimed_at=row.last_heartbeat or row.execution_time)
            for row in rows
        ]

    def claim_slots(
        self,
        holder: str,
        limit: int,
        *,
        lease: timedelta,
        names: Sequence[str],
        lost: int = 1,
        on_skipped: OnSkipped = _nobody,
    ) -> tuple[int, list[Claim]]:
        """As ``claim``, and slots alone: those of jobs, and of tasks that recur; and whatever was lost before."""
        limit = min(limit, BATCH)
        if len(names) > MANY and not (names := self._due_names(names, limit)):
            return 0, []
        try:
            return self._claim(holder, names, limit, lease, on_skipped, lost=lost)
        except Exception as error:
            if not is_about_a_row(error):
                raise
        return self._claim_apart(holder, names, limit, lease, on_skipped, lost=lost)

    def _due_names(self, names: Sequence[str], limit: int) -> Sequence[str]:
        """Those of many names that have the next due rows: to send, and to compare with, ten thousand takes its time.

        All of them, where rows of others are so many that they would hide ours.
        """
        with self.transaction() as connection:
            due = self.dialect.due_names(connection, 2 * limit)
        found = set(due)
        own = found.intersection(names)
        return sorted(own) if len(own) == len(found) or len(due) < 2 * limit else names

    def _claim(
        self,
        holder: str,
        names: Sequence[str],
        limit: int,
        lease: timedelta,
        on_skipped: OnSkipped,
        *,
        lost: int,
        instance: str | None = None,
    ) -> tuple[int, list[Claim]]:
        skipped: list[tuple[Row, Gap]] = []
        with self.transaction() as connection:
            limit = self._within(connection, names, limit)
            found = self.dialect.claim(
                connection, holder=holder, names=names, strict=self._strict, limit=limit,
                lease=lease, lost=lost, instance=instance,
            )  # fmt: skip
            started = [
                row
                if entered and self._may_start(row, now)
                else self._late(connection, row, now, skipped, entered=entered)
                for row, now, entered in found
            ]
        for row, gap in skipped:
            on_skipped(row, gap)
        claimed_at = found[0][1] if found else None
        claims = [
            Claim(row=row, holder=holder, lease=lease, claimed_at=claimed_at) for row in started if row and claimed_at
        ]
        return len(found), claims

    def _within(self, connection: sa.Connection, names: Sequence[str], limit: int) -> int:
        """No more of a task than may run at a time; such a task is claimed by itself."""
        most = self._limited.get(names[0]) if self._limited and len(names) == 1 else None
        return limit if most is None else min(limit, self.dialect.room(connection, names[0], most))

    def _claim_apart(
        self,
        holder: str,
        names: Sequence[str],
        limit: int,
        lease: timedelta,
        on_skipped: OnSkipped,
        *,
        lost: int,
        kind: str = HAS_SLOT,
    ) -> tuple[int, list[Claim]]:
        """One by one: a row that would keep all the others from being claimed is set aside."""
        with self.transaction() as connection:
            keys = self.dialect.due(connection, names, limit, lost=lost, kind=kind)
        claims: list[Claim] = []
        for key in keys:
            try:
                claims += self._claim_one(holder, key, lease, on_skipped)
            except SQLAlchemyError:
                if not claims:
                    raise
                break  # what is claimed must be told
        return len(keys), claims

    def _claim_one(self, holder: str, key: Key, lease: timedelta, on_skipped: OnSkipped) -> list[Claim]:
        try:
            return self._claim(holder, [key.task_name], 1, lease, on_skipped, lost=1, instance=key.task_instance)[1]
        except Exception as error:
            if not is_about_a_row(error):
                raise
            logger.exception("%s/%s cannot be claimed and is set aside: %s", *key, describe(error))
            with self.transaction() as connection:
                self.dialect.set_aside(connection, key, describe(error))
            return []

    def _late(
        self, connection: sa.Connection, row: Row, now: datetime, skipped: list[tuple[Row, Gap]], *, entered: bool
    ) -> Row | None:
        strict, withdraw = row.task_name in self._strict, entered and self._is_weighed(row, now) and self._can_read(row)
        return self._latecomers.start(connection, row, now, skipped, strict=strict, entered=withdraw)

    def _may_start(self, row: Row, now: datetime) -> bool:
        return not self._is_weighed(row, now) and self._can_read(row)

    def _is_weighed(self, row: Row, now: datetime) -> bool:
        """Whether it has yet to be asked if this slot may start; a retry may."""
        if row.attempt != 1:
            return False
        ordered = row.origin == "trigger" and row.control is not None  # it may have to mind others
        return ordered or (row.is_plan and row.task_name in self._weighed) or self._budget.is_late(row, now)

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

    def next_due(self, names: Sequence[str], tasks: Sequence[str] | None = None, *, lost: int = 1) -> timedelta | None:
        """How long until the next waiting row of these tasks is due; zero or less: now; None: nothing waits.

        ``tasks``: one-time tasks of these alone count, beside the slots of ``names``. ``lost`` = 0: of the rows that
        a claim would then take.
        """
        tasks = self._tasks_of(names) if tasks is None else tasks
        with self.transaction() as connection:
            return self.dialect.next_due(connection, names, tasks, lost=lost)

    # -- settle -----------------------------------------------------------------------------------------------

    def finish(self, claims: Sequence[Claim]) -> bool:
        """Let go of one-time tasks that succeeded: all of them, in one statement, or none.

        False: some are lost, locked, or something was asked of them; ``settle`` says what becomes of each.
        """

        def work(connection: sa.Connection) -> tuple[str | None, bool]:
            transaction_id, count = self.dialect.finish(connection, claims)
            if count != len(claims):
                raise _NotAll
            return transaction_id, True

        try:
            return commit_surely(self.database, self.dialect, work)
        except _NotAll:
            return False
        except DBAPIError as error:
            if not is_about_a_row(error) and not is_locked(error):
                raise
            return False

    def settle(self, endings: Endings, *, wait: bool = True) -> list[Settlement]:
        """Write these outcomes, each under its claim's fence; a bad one is found by halving its batch.

        Waits for locked rows once, up to the lock timeout, if at all (``wait``); then settles the others, and
        gives those back with an error.
        """
        unique = list({claim.fence: (claim, outcome) for claim, outcome in endings}.values())
        settled = self._apart(unique, lambda some: self._settle(some, wait=wait))
        done = {settlement.claim.fence: settlement for settlement in settled}
        return [done[claim.fence] for claim, _ in endings]

    def _apart(self, endings: Endings, end: Callable[[Endings], list[Settlement]]) -> list[Settlement]:
        """``end`` them; where a row spoils the batch, each half of it, until that row stands alone and is set aside."""
        try:
            return end(endings)
        except Exception as error:
            if not is_about_a_row(error):
                raise
            if len(endings) == 1:
                return [self._set_aside(*endings[0], error)]
        middle = len(endings) // 2
        settled = self._apart(endings[:middle], end)
        try:
            return settled + self._apart(endings[middle:], end)
        except SQLAlchemyError as error:
            # What is settled must be told; to settle it again would look like a loss.
            return settled + [Settlement(claim=claim, error=error) for claim, _ in endings[middle:]]

    def _set_aside(self, claim: Claim, outcome: Outcome, error: Exception) -> Settlement:
        """First without what the handler said, which may be all that is wrong; else the row is let go as it stands."""
        why = f"{outcome.name}, which cannot be written: {describe(error)}"
        for plainer in _plainer(outcome, why):
            try:
                return self._settle([(claim, plainer)], wait=False)[0]
            except Exception as second:
                if not is_about_a_row(second):
                    return Settlement(claim=claim, error=error)
        logger.error("%s/%s is set aside: %s", *claim.key, why, exc_info=error)
        try:
            with self.transaction() as connection:
                label = self.dialect.let_go_aside(connection, claim, outcome, describe(error))
        except SQLAlchemyError:
            return Settlement(claim=claim, error=error)
        row = {"last_error": why}
        return Settlement(claim=claim, transition=Transition(label=label, row=row) if label else None)

    def _settle(self, endings: Endings, *, wait: bool) -> list[Settlement]:
        try:
            done = {change.held.row.fence: change.transition for change in self._end(endings, wait=wait)}
        except DBAPIError as error:
            if not wait or not is_locked(error):
                raise
            return self._settle(endings, wait=False)
        left = [] if wait else [claim for claim, _ in endings if claim.fence not in done]
        locked = self._still_held(left)
        return [
            Settlement(claim=claim, transition=done.get(claim.fence), error=LOCKED if claim.fence in locked else None)
            for claim, _ in endings
        ]

    def _still_held(self, claims: Sequence[Claim]) -> set[Fence]:
        """Whose rows, though nobody could have them, are as they were: skipped is not lost."""
        if not claims:
            return set()
        with self.transaction() as connection:
            return self.dialect.still_held(connection, claims)

    def _end(self, endings: Endings, *, wait: bool, dead: bool = False) -> list[Change]:
        """Let go of the rows that are still held under these claims; ``dead``: unless their holder has stirred."""
        claims = {claim.fence: claim for claim, _ in endings}
        outcomes = {claim.fence: outcome for claim, outcome in endings}

        def work(connection: sa.Connection) -> tuple[str | None, list[Change]]:
            held = self.dialect.hold(connection, list(claims.values()), wait=wait)
            ended = [
                (one, outcomes[one.row.fence])
                for one in held
                if not dead or one.row.last_heartbeat == claims[one.row.fence].row.last_heartbeat
            ]
            entries = self.dialect.entries(connection, _ledger_keys(ended), wait=wait)
            free = [(one, outcome) for one, outcome in ended if _ledger_key(one, outcome) in {None, *entries}]
            changes = [self._decide(one, outcome, entries) for one, outcome in free]
            self._write(connection, changes)
            self._sequels.write(connection, self._ends(changes, claims, outcomes))
            self.recorders.write(connection, changes)
            return (free[0][0].transaction_id if free else None), changes

        changes = commit_surely(self.database, self.dialect, work)
        tell_plan_rows(self.database, self.dialect, changes, wait=wait)
        return changes

    def _ends(
        self, changes: Sequence[Change], claims: Mapping[Fence, Claim], outcomes: Mapping[Fence, Outcome]
    ) -> list[End]:
        """Those that may leave something behind."""
        ends = [
            End(
                claims[fence := change.held.row.fence],
                change,
                self.definitions[fence.key.task_name],
                getattr(outcomes[fence], "sequel", None),
            )
            for change in changes
        ]
        return [end for end in ends if end.sequel is not None or end.definition.history != "none"]

    def _decide(self, held: Held, outcome: Outcome, entries: Entries) -> Change:
        row = held.row
        key = _ledger_key(held, outcome)
        entry, place = entries.get(key, (None, None)) if key else (None, None)
        definition = self.definitions[row.task_name]
        try:
            schedule = self.schedule_of(row) if row.is_plan else None
        except InvalidSchedule as error:
            schedule, reason = None, f"{decide.UNREADABLE}schedule {row.schedule!r:.200}: {error}"
            transition = decide.at_finish_unread(row, definition, outcome, held.now, entry, reason)
        else:
            transition = decide.at_finish(row, definition, schedule, outcome, held.now, entry)
        transition = decide.removed(row, schedule, parked(row, transition), held.now)
        stranger = row.ledger_key is not None and (entry is None or (not entry.final and entry.token != row.version))
        return Change(held=held, transition=transition, ledger_place=place, stranger=stranger)

    def _write(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        if not changes:
            return
        expect(self.dialect.let_go(connection, changes), len(changes), changes[0].held.row)
        self.dialect.record(connection, changes)
        gaps = [(change.held.row, gap) for change in changes for gap in change.transition.gaps]
        self.dialect.gaps(connection, gaps, changes[0].held.now)
        for change in changes:
            if change.stranger:
                settle_stranger(connection, self.dialect, change)
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

        def end(endings: Endings) -> list[Settlement]:
            changes = {change.held.row.fence: change for change in self._end(endings, wait=False, dead=True)}
            return [
                Settlement(claim=claim, transition=changes[claim.fence].transition)
                for claim, _ in endings
                if claim.fence in changes
            ]

        return self._apart([(_claim_of(one.row), Died(one.lease_end)) for one in silences], end)

    def find_claim(self, name: str, instance: str, token: int, holder: str) -> Claim | None:
        """The claim of this fence, read again with its payload; None: it stands no more."""
        tasks = self.tables.tasks
        mine = [tasks.c.task_name == name, tasks.c.task_instance == instance, tasks.c.picked]
        statement = sa.select(*self.dialect.row_columns).where(
            *mine, tasks.c.version == token, tasks.c.picked_by == holder
        )
        with self.transaction() as connection:
            values = connection.execute(statement).first()
        return None if values is None else _claim_of(row_of(values))

    def held_by(self, holder: str) -> list[Claim]:
        """Rows that the database says this worker holds, for finding claims that it does not know of."""
        with self.database.heart.begin() as connection:
            return [_claim_of(row) for row in self.dialect.rows_of(connection, holder)]


class _NotAll(Exception):
    """Rolls back what was done for the others."""


def _claim_of(row: Row) -> Claim:
    """The claim under which ``row`` is held, whoever holds it."""
    return Claim(
        row=row,
        holder=row.picked_by or "",
        lease=row.lease or timedelta(0),
        claimed_at=row.last_heartbeat or row.execution_time,
    )


def _plainer(outcome: Outcome, why: str) -> Iterator[Outcome]:
    """The outcome in letters that every encoding of a database has; then only that it could not be written."""
    if isinstance(outcome, Failed) and not outcome.error.isascii():
        yield replace(outcome, error=outcome.error.encode("ascii", "backslashreplace").decode())
    if isinstance(outcome, Failed | Snoozed | Cancelled):
        yield Failed(why, final=True)


def _ledger_key(held: Held, outcome: Outcome) -> LedgerKey | None:
    """Which ledger row to look at: a slot's own; a one-time task's only where complete_in may have written it."""
    doubtful = isinstance(outcome, Died | Aborted | Cancelled | Snoozed) or getattr(outcome, "promised", False)
    return held.row.history_key if doubtful else held.row.ledger_key


def _ledger_keys(ended: Sequence[tuple[Held, Outcome]]) -> list[LedgerKey]:
    keys = [_ledger_key(held, outcome) for held, outcome in ended]
    return [key for key in keys if key is not None]
