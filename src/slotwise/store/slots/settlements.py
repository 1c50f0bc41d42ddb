"""Settlements: what becomes of held rows, written under the fence by whoever holds them, or has found them lost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from slotwise import decide
from slotwise.decide.fast_finish import is_usual
from slotwise.decide.pause import parked
from slotwise.errors import InvalidSchedule
from slotwise.model.records import AttemptOutcome, Claim, Died, Fence, LedgerEntry, LedgerKey, Row, Transition
from slotwise.model.vocabulary import PLANNED, Origin
from slotwise.store.connect.database import commit_surely
from slotwise.store.connect.database_errors import describe, is_about_a_row, is_locked
from slotwise.store.schema.rows import Change, Held, expect
from slotwise.store.slots.backfill_release import release_next
from slotwise.store.slots.concurrent_slots import tell_plan_rows
from slotwise.store.slots.fast_finish import advance, usual
from slotwise.store.slots.follow_ups import End, FollowUpWriter
from slotwise.store.slots.ledger import end_stranger
from slotwise.store.slots.outcome_columns import ledger_key, ledger_keys, plainer, tried
from slotwise.store.slots.recorders import SettlementHooks
from slotwise.store.slots.settlement_values import Settlement, claim_of

if TYPE_CHECKING:
    from slotwise.store.slots.store import Store

Entries: TypeAlias = Mapping[LedgerKey, tuple[LedgerEntry | None, str | None]]

#: Why a row could not be settled that somebody else keeps locked.
LOCKED = TimeoutError("another transaction keeps its row, or its slot in the ledger, locked; see pg_stat_activity")

Endings: TypeAlias = "Sequence[tuple[Claim, AttemptOutcome]]"
#: How long ago the handler of a claim has ended.
EndedAgo: TypeAlias = Callable[[Claim], timedelta]

logger = logging.getLogger(__name__)


def _just_now(claim: Claim) -> timedelta:
    del claim
    return timedelta(0)


class Settlements:
    """Lets go of held rows, and writes how their slots and tasks have ended."""

    def __init__(self, store: Store) -> None:
        self.database, self.dialect, self.definitions = store.database, store.dialect, store.definitions
        self.transaction, self.schedule_of, self._warnings = store.transaction, store.schedule_of, store.warnings
        self._poll = store.poll
        #: What else a worker writes with its settlements.
        self.hooks = SettlementHooks()
        self._sequels = FollowUpWriter(self.dialect)
        names = (name for name, found in store.definitions.items() if is_usual(found))
        self._usual = frozenset(names if self.dialect.has_fast_finish else ())

    def finish(self, claims: Sequence[Claim]) -> bool:
        """Let go of one-time tasks that succeeded: all of them, in one statement, or none.

        False: some are lost, locked, something was asked of them, or hooks want to write with them; ``settle`` says
        what becomes of each.
        """
        if self.hooks:
            return False

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

    def settle(self, endings: Endings, *, wait: bool = True, ended_ago: EndedAgo = _just_now) -> list[Settlement]:
        """Write these outcomes, each under its claim's fence; a bad one is found by halving its batch. ``ended_ago`` is
        asked right before they are sent: what came due since a handler's end was not overlapped by it.

        Waits for locked rows once, up to the lock timeout, if at all (``wait``); then settles the others, and
        gives those back with an error.
        """
        unique = {claim.fence: (claim, outcome) for claim, outcome in endings}
        done: dict[Fence, Settlement] = {}
        if wait and not self.hooks:
            try:
                done = self._advance(unique.values())
            except DBAPIError as error:
                if not is_locked(error):
                    raise
                wait = False  # it has waited
        if rest := [ending for fence, ending in unique.items() if fence not in done]:
            settled = self._apart(rest, lambda some: self._settle(some, ended_ago, wait=wait), is_first=not done)
            done.update((settlement.claim.fence, settlement) for settlement in settled)
        return [done[claim.fence] for claim, _ in endings]

    def _advance(self, endings: Iterable[tuple[Claim, AttemptOutcome]]) -> dict[Fence, Settlement]:
        """Those that end as most do, in one statement."""
        found = {
            claim.fence: (claim, following)
            for claim, outcome in endings
            if claim.row.task_name in self._usual and (following := usual(claim, outcome)) is not None
        }
        gone = advance(self.database, self.dialect, list(found.values())) if found else set()
        return {
            fence: Settlement(claim=claim, transition=following.transition)
            for fence, (claim, following) in found.items()
            if fence in gone
        }

    def _apart(
        self, endings: Endings, end: Callable[[Endings], list[Settlement]], *, is_first: bool = True
    ) -> list[Settlement]:
        """``end`` them; where a row spoils the batch, each half of it, until that row stands alone and is set aside.

        Unless they are the first, nothing is raised: what is settled must be told, for to settle it again would look
        like a loss.
        """
        try:
            return end(endings)
        except Exception as error:
            if not is_about_a_row(error):
                if is_first:
                    raise
                return [Settlement(claim=claim, error=error) for claim, _ in endings]
            if len(endings) == 1:
                return [self._set_aside(*endings[0], error)]
        middle = len(endings) // 2
        settled = self._apart(endings[:middle], end, is_first=is_first)
        return settled + self._apart(endings[middle:], end, is_first=False)

    def _set_aside(self, claim: Claim, outcome: AttemptOutcome, error: Exception) -> Settlement:
        """First without what the handler said, which may be all that is wrong; else the row is let go as it stands."""
        why = f"{outcome.name}, which cannot be written: {describe(error)}"
        for plain in plainer(outcome, why):
            try:
                return self._settle([(claim, plain)], _just_now, wait=False)[0]
            except Exception as second:
                if not is_about_a_row(second):
                    return Settlement(claim=claim, error=error)
        if self._warnings.are_new(claim.key, why):
            logger.error("%s/%s is set aside: %s", *claim.key, why, exc_info=error)
        try:
            with self.transaction() as connection:
                label = self.dialect.by_row.let_go_aside(connection, claim, outcome, describe(error))
        except SQLAlchemyError:
            return Settlement(claim=claim, error=error)
        row = {"last_error": why}
        return Settlement(claim=claim, transition=Transition(label=label, row=row) if label else None)

    def _settle(self, endings: Endings, ended_ago: EndedAgo, *, wait: bool) -> list[Settlement]:
        try:
            done = {change.held.row.fence: change.transition for change in self._end(endings, ended_ago, wait=wait)}
        except DBAPIError as error:
            if not wait or not is_locked(error):
                raise
            return self._settle(endings, ended_ago, wait=False)
        left = self._left([] if wait else [claim for claim, _ in endings if claim.fence not in done])
        return [
            Settlement(claim=claim, transition=done.get(claim.fence), error=left.get(claim.fence))
            for claim, _ in endings
        ]

    def _left(self, claims: Sequence[Claim]) -> dict[Fence, Exception]:
        """Whose rows, though nobody could have them, are as they were: skipped is not lost. Nor are those that nobody
        can look at now; the others are settled already, and nothing is raised.
        """
        if not claims:
            return {}
        try:
            with self.transaction() as connection:
                return dict.fromkeys(self.dialect.still_held(connection, claims), LOCKED)
        except SQLAlchemyError as error:
            return {claim.fence: error for claim in claims}

    def _end(
        self, endings: Endings, ended_ago: EndedAgo = _just_now, *, wait: bool, dead: bool = False
    ) -> list[Change]:
        """Let go of the rows that are still held under these claims; ``dead``: unless their holder has stirred."""
        words: set[str] = set()
        claims = {claim.fence: claim for claim, _ in endings}
        outcomes = {claim.fence: outcome for claim, outcome in endings}

        def work(connection: sa.Connection) -> tuple[str | None, list[Change]]:
            ago = {fence: ended_ago(claim) for fence, claim in claims.items()}
            held = self.dialect.hold(connection, list(claims.values()), wait=wait)
            ended = [
                (one, outcomes[one.row.fence])
                for one in held
                if not dead or not _has_stirred(one.row, claims[one.row.fence])
            ]
            entries = self.dialect.entries(connection, ledger_keys(ended), wait=wait)
            free = [(one, outcome) for one, outcome in ended if ledger_key(one, outcome) in {None, *entries}]
            changes = [
                self._decide(tried(one, outcome, claims), outcome, entries, ago[one.row.fence]) for one, outcome in free
            ]
            self._write(connection, changes)
            words.update(self._sequels.write(connection, self._ends(changes, claims, outcomes)))
            self.hooks.write(connection, changes)
            return (free[0][0].transaction_id if free else None), changes

        changes = commit_surely(self.database, self.dialect, work)
        self.database.wake_ups.tell(*words)
        tell_plan_rows(self.database, self.dialect, changes, wait=wait)
        return changes

    def _ends(
        self, changes: Sequence[Change], claims: Mapping[Fence, Claim], outcomes: Mapping[Fence, AttemptOutcome]
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
        return [end for end in ends if end.sequel is not None or end.definition.record != "none"]

    def _decide(self, held: Held, outcome: AttemptOutcome, entries: Entries, ended_ago: timedelta) -> Change:
        row, poll = held.row, self._poll
        key = ledger_key(held, outcome)
        entry, place = entries.get(key, (None, None)) if key else (None, None)
        definition = self.definitions[row.task_name]
        try:
            schedule = self.schedule_of(row) if row.is_plan or row.origin in PLANNED else None
        except InvalidSchedule as error:
            schedule, reason = None, f"{decide.UNREADABLE}schedule {row.schedule!r:.200}: {error}"
            transition = decide.at_finish_unread(row, definition, outcome, held.now, entry, reason, poll=poll)
        else:
            transition = decide.at_finish(
                row, definition, schedule, outcome, held.now, entry, poll=poll, ended_ago=ended_ago
            )
        transition = decide.removed(row, schedule, parked(row, transition), held.now)
        stranger = row.ledger_key is not None and (entry is None or (not entry.final and entry.token != row.version))
        return Change(held=held, transition=transition, ledger_place=place, stranger=stranger)

    def _write(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        if not changes:
            return
        expect(self.dialect.release(connection, changes), len(changes), changes[0].held.row)
        self.dialect.record(connection, changes)
        gaps = [(change.held.row, gap) for change in changes for gap in change.transition.gaps]
        self.dialect.gaps(connection, gaps, changes[0].held.now)
        for change in changes:
            if change.stranger:
                end_stranger(connection, self.dialect, change)
            if change.held.row.origin == Origin.BACKFILL and change.transition.remove:
                release_next(connection, self.dialect, change.held.row, change.held.now, never_began=change.never_began)

    def take_over(self, silent: Sequence[Row]) -> list[Settlement]:
        """Let go of rows whose holder is dead, waiting for no lock. Rows that stirred, or are locked, are left."""

        def end(endings: Endings) -> list[Settlement]:
            changes = {change.held.row.fence: change for change in self._end(endings, wait=False, dead=True)}
            return [
                Settlement(claim=claim, transition=changes[claim.fence].transition)
                for claim, _ in endings
                if claim.fence in changes
            ]

        return self._apart([(claim_of(row), Died()) for row in silent], end)


def _has_stirred(row: Row, claim: Claim) -> bool:
    """Whether the holder has renewed the row since it was found silent."""
    return row.last_heartbeat != claim.row.last_heartbeat


class _NotAll(Exception):
    """Rolls back what was done for the others."""
