"""Settlements: what becomes of held rows, written under the fence by whoever holds them, or has found them lost.

**The usual end.** Slots that were on time and succeeded go on in one statement for a batch. Nothing is read first. What
follows was decided from the claim (``onward``), and the statement takes only rows that are still as that decision saw
them: under this claim's key, version and holder; for this very slot and text; asked nothing meanwhile (no pause,
deletion, cancellation, wish, slot left out); open in the ledger under this token; and with the next slot still to come.
Of those it writes row and ledger together, or neither.

Races. A row that somebody has locked, or has changed since the statement began (a heartbeat, an order, a deploy, a
reaper), is left, and so is one whose ledger row a user's guard has changed: the long way looks at each of those under
its lock, and says what becomes of it. A ledger row that changes after its row was found makes all of it be taken back:
the two never part.

Follow-ups are written in the order of keys: two settlements that meet in several rows cannot deadlock there.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from slotwise import decide
from slotwise.decide.fast_finish import FastFinish, is_usual, onward
from slotwise.decide.pause import parked
from slotwise.errors import ConfigurationError, InvalidSchedule
from slotwise.jobs.definition import Definition
from slotwise.model.error_text import error_summary
from slotwise.model.events import Settled, about
from slotwise.model.records import (
    SUCCEEDED,
    Aborted,
    AttemptOutcome,
    Cancelled,
    Claim,
    Died,
    Failed,
    Fence,
    Follow,
    FollowUps,
    IfExists,
    Key,
    LedgerEntry,
    LedgerKey,
    Record,
    Row,
    Snoozed,
    Transition,
    Wanted,
)
from slotwise.model.vocabulary import PLANNED, Origin, Outcome, Release
from slotwise.store.connect.database import Database, commit_surely
from slotwise.store.connect.database_errors import describe, is_about_a_row, is_locked, is_transient
from slotwise.store.dialects.port import Dialect, Parted
from slotwise.store.queue.queue import AtInsert, queue_of
from slotwise.store.schema.rows import Change, Held, expect
from slotwise.store.slots import ledger
from slotwise.store.slots.detached import tell_plan_rows
from slotwise.store.slots.queued_slots import freed, release_queued

if TYPE_CHECKING:
    from slotwise.store.slots.store import Store

logger = logging.getLogger(__name__)

#: Looked up once: Python 3.11 takes long to find a member, and this is asked for each execution.
_SUCCEEDED = Outcome.SUCCEEDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What settling one claim did: a transition, or None because the claim was lost, or the error that stood alone."""

    claim: Claim
    transition: Transition | None = None
    error: Exception | None = None

    @property
    def reason(self) -> str | None:
        """As the ledger has it: ``retry`` or ``rerun`` where another attempt follows."""
        done = self.transition
        record = (done.record or done.ended) if done is not None else None
        return record.reason if record is not None else None

    @property
    def is_usual(self) -> bool:
        """The slot, or the task, succeeded, and no slot was passed over."""
        done = self.transition
        return done is not None and done.label == _SUCCEEDED and not done.gaps


def claim_of(row: Row) -> Claim:
    """The claim under which ``row`` is held, whoever holds it."""
    return Claim(
        row=row,
        holder=row.picked_by or "",
        lease=row.lease or timedelta(0),
        claimed_at=row.last_heartbeat or row.execution_time,
    )


Entries: TypeAlias = Mapping[LedgerKey, tuple[LedgerEntry | None, str | None]]

#: Why a row could not be settled that somebody else keeps locked.
LOCKED = TimeoutError("another transaction keeps its row, or its slot in the ledger, locked; see pg_stat_activity")

Endings: TypeAlias = "Sequence[tuple[Claim, AttemptOutcome]]"
#: How long ago the handler of a claim has ended.
EndedAgo: TypeAlias = Callable[[Claim], timedelta]


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
        self._sequels = FollowUpWriter(self.dialect, store.at_insert)
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
                label = self.dialect.by_row.quarantine_held(connection, claim, outcome, describe(error))
                if label is not None and claim.row.has_slot:
                    freed(connection, self.dialect, claim.row, self.dialect.now(connection), removed=False)
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
            free_claims = self._unblocked(connection, claims, outcomes, wait=wait)
            held = self.dialect.hold(connection, free_claims, wait=wait)
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

    def _unblocked(
        self,
        connection: sa.Connection,
        claims: Mapping[Fence, Claim],
        outcomes: Mapping[Fence, AttemptOutcome],
        *,
        wait: bool,
    ) -> list[Claim]:
        """Lock the rows that follow-ups may change together with the held ones, in one order; return whose are free.

        Race: two settlements whose follow-ups replace each other's rows would wait for each other.
        """
        changed = {fence: _changed_by(outcomes[fence]) for fence in claims}
        if not (others := set().union(*changed.values())):
            return list(claims.values())
        locked = self.dialect.lock(connection, others | {fence.key for fence in claims}, wait=wait)
        return [claim for fence, claim in claims.items() if not locked & {fence.key, *changed[fence]}]

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
                ledger.end_stranger(connection, self.dialect, change)
        release_queued(connection, self.dialect, changes)

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


def _changed_by(outcome: AttemptOutcome) -> set[Key]:
    """The rows of others that follow-ups may change; "keep" changes none."""
    sequel: FollowUps | None = getattr(outcome, "sequel", None)
    if sequel is None:
        return set()
    follows = (Key(name, wanted.instance) for name, wanted, if_exists in sequel.follows if if_exists != "keep")
    return {*follows, *sequel.arrivals}


def _has_stirred(row: Row, claim: Claim) -> bool:
    """Whether the holder has renewed the row since it was found silent."""
    return row.last_heartbeat != claim.row.last_heartbeat


class _NotAll(Exception):
    """Rolls back what was done for the others."""


# -- the usual end ----------------------------------------------------------------------------------------------

Usual: TypeAlias = "tuple[Claim, FastFinish]"


def usual(claim: Claim, outcome: AttemptOutcome) -> FastFinish | None:
    """What follows if nothing is out of the ordinary; None: that is for the settlement to say."""
    row = claim.row
    if not row.is_plan or row.slot is None or row.attempt != 1:
        return None
    if row.origin is not None or row.catch_up_until is not None or row.unheld_since is not None:
        return None  # it catches up, or was queued: what follows is looked at
    if outcome is SUCCEEDED or outcome == SUCCEEDED:
        with suppress(Exception):  # whatever it is, the settlement meets it again, and tells
            return onward(row.schedule or "-", row.slot)
    return None


def advance(database: Database, dialect: Dialect, endings: Sequence[Usual]) -> set[Fence]:
    """Let these plan rows go on to their next slots; those that did. The others are as they were.

    Raises the driver's error where a ledger row stays locked beyond the lock timeout; nothing is written then.
    """

    def work(connection: sa.Connection) -> tuple[str | None, set[Fence]]:
        return dialect.advance(connection, endings)

    try:
        return commit_surely(database, dialect, work)
    except Parted:
        return set()
    except DBAPIError as error:
        if not is_about_a_row(error):
            raise
        return set()


# -- what an outcome asks of its row and of the ledger ----------------------------------------------------------


def tried(held: Held, outcome: AttemptOutcome, claims: Mapping[Fence, Claim]) -> Held:
    """Whoever fails has tried since this claim, if not before."""
    row = held.row
    if not isinstance(outcome, Failed) or row.trying_since is not None:
        return held
    return replace(held, row=replace(row, trying_since=claims[row.fence].claimed_at))


def plainer(outcome: AttemptOutcome, why: str) -> Iterator[AttemptOutcome]:
    """The outcome in letters that every encoding of a database has; then only that it could not be written."""
    if isinstance(outcome, Failed) and not outcome.error.isascii():
        yield replace(outcome, error=outcome.error.encode("ascii", "backslashreplace").decode())
    if isinstance(outcome, Failed | Snoozed | Cancelled):
        yield Failed(why, final=True)


def ledger_key(held: Held, outcome: AttemptOutcome) -> LedgerKey | None:
    """Which ledger row to look at: a slot's own; a one-time task's only where complete_in may have written it."""
    doubtful = isinstance(outcome, Died | Aborted | Cancelled | Snoozed) or getattr(outcome, "promised", False)
    return held.row.history_key if doubtful else held.row.ledger_key


def ledger_keys(ended: Sequence[tuple[Held, AttemptOutcome]]) -> list[LedgerKey]:
    """Those of rows that have one."""
    keys = [ledger_key(held, outcome) for held, outcome in ended]
    return [key for key in keys if key is not None]


# -- what handlers leave behind, and the history of one-time tasks ----------------------------------------------


class End(NamedTuple):
    """A settled claim with what it leaves behind."""

    claim: Claim
    change: Change
    definition: Definition
    sequel: FollowUps | None


class FollowUpWriter:
    """Everything in the order of keys: two settlements that meet in several rows cannot deadlock there."""

    def __init__(self, dialect: Dialect, at_insert: tuple[AtInsert, ...] = ()) -> None:
        self._dialect = dialect
        self._queue = queue_of(dialect, at_insert=at_insert)

    def write(self, connection: sa.Connection, ends: Sequence[End]) -> set[str]:
        """What succeeded brings its sequel; every end of a task, its history, if the task keeps one.

        The tasks that may be due by it.
        """
        succeeded = [end.sequel for end in ends if end.sequel and end.change.transition.label == Outcome.SUCCEEDED]
        self._follow(connection, [follow for sequel in succeeded for follow in sequel.follows])
        for key, arrived in groupby(sorted(key for sequel in succeeded for key in set(sequel.arrivals))):
            if not self._queue.tasks.arrive(connection, key, len(list(arrived))):
                logger.warning(
                    "ctx.count_down: no task %r with the id %r is blocked; this arrival counts for nothing", *key
                )
        rows = [row for end in ends if (row := _history(end)) is not None]
        if rows:
            ledger.remember(connection, self._dialect, rows)
        follows = {follow.task for sequel in succeeded for follow in sequel.follows}
        return follows | {key.task_name for sequel in succeeded for key in sequel.arrivals}

    def _follow(self, connection: sa.Connection, follows: Sequence[Follow]) -> None:
        """Several of one id in the order in which they were asked for: the second one finds the first."""
        turns: Counter[Key] = Counter()
        groups: dict[tuple[int, str, IfExists, bool], list[Wanted]] = {}
        for name, wanted, if_exists in follows:
            turns[key := Key(name, wanted.instance)] += 1
            groups.setdefault((turns[key], name, if_exists, wanted.waits_for > 0), []).append(wanted)
        for (_, name, if_exists, blocked), some in sorted(groups.items()):
            if not blocked:
                self._queue.put_many(connection, name, some, if_exists)
                continue
            for wanted in sorted(some):
                self._queue.put(connection, name, wanted, if_exists)


def _history(end: End) -> dict[str, object] | None:
    """The ledger row of a one-time task that has come to its end; None where none is kept."""
    row, now, definition = end.change.held.row, end.change.held.now, end.definition
    ended: Record | None = end.change.transition.ended
    if ended is None:
        return None
    is_success = ended.outcome == Outcome.SUCCEEDED
    kept = is_success and definition.result_retention is not None
    if not kept and (definition.record == "none" or (definition.record == "failures" and is_success)):
        return None
    sequel = end.sequel if kept else None
    return {
        "task_name": row.task_name, "task_instance": row.task_instance, "slot": row.slot or row.execution_time,
        "outcome": ended.outcome, "reason": ended.reason, "origin": Origin.TASK, "attempts": ended.attempts,
        "lost": row.lost_count + ended.lost, "token": row.version, "worker": end.claim.holder,
        "started": end.claim.claimed_at, "finished": now, "error": sequel.problem if sequel else ended.error,
        "result": sequel.result if sequel else None,
        "expires": now + definition.result_retention if kept and definition.result_retention else None,
    }  # fmt: skip


# -- hooks ------------------------------------------------------------------------------------------------------

#: ``after_settle(rows, tx)`` receives what is being settled, a batch at a time, and the settlement's connection. It
#: writes with that connection, and quickly: rows are locked meanwhile. It neither commits nor rolls back.
AfterSettle: TypeAlias = Callable[[Sequence[Settled], sa.Connection], None]


class SettlementHooks:
    """Calls all of them, each within a savepoint: one that fails is logged and leaves nothing, and slots settle."""

    def __init__(self, hooks: Sequence[AfterSettle] = ()) -> None:
        self._hooks = tuple(hooks)

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def write(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        """What these changes settle; what was handed back is settled by nobody."""
        if not self._hooks:
            return
        settled = [_settled(change) for change in changes if change.transition.label != Release.HANDED_BACK]
        for hook in self._hooks if settled else ():
            try:
                with connection.begin_nested(), _kept_open(connection):
                    hook(settled, connection)
            except Exception as error:
                if is_transient(error):
                    raise  # the whole settlement is tried again
                logger.exception("an after_settle hook failed; what it wrote is rolled back, and the slots are settled")


@contextmanager
def _kept_open(connection: sa.Connection) -> Iterator[None]:
    """Without its transaction the settlement would fail as a whole, and again, for ever."""
    ends = ("commit", "rollback", "close", "invalidate")
    for name in ends:
        setattr(connection, name, partial(_refuse, name))
    try:
        yield
    finally:
        for name in ends:
            delattr(connection, name)  # the class's own is seen again


def _refuse(name: str, *_: object, **__: object) -> None:
    raise ConfigurationError(
        f"an after_settle hook has called connection.{name}(); the transaction is the settlement's, and ends with it: "
        "leave that call out, or write with a connection of your own"
    )


def _settled(change: Change) -> Settled:
    row, record = change.held.row, change.transition.record or change.transition.ended
    now = change.held.now
    claim = Claim(row=row, holder=row.picked_by or "", lease=row.lease or now - now, claimed_at=now)
    error = (record.error if record else None) or (change.transition.row or {}).get("last_error")
    return Settled(
        **about(claim), outcome=change.transition.label, reason=record.reason if record else None,
        error=error_summary(error) if error else None,
    )  # fmt: skip
