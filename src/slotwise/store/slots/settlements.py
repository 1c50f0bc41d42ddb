"""Settlements: what becomes of held rows, written under the fence by their holder, or by a reaper.

**The usual end.** Slots that were on time and succeeded go on in one statement for a batch,
without a look before. What follows was decided from the claim (``onward``), and the statement
takes only rows that are still as that decision saw them: under this claim's key, version and
holder; for this slot and text; with nothing requested meanwhile; open in the ledger under this
token; and with the next slot still to come. It writes row and ledger together, or neither.

Races. A row that is locked, or has changed since the statement began, or whose ledger row a user's
guard has changed, is left: the long way looks at it under its lock. A ledger row that changes
after its row was found takes all back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from slotwise.decide import ending as decide
from slotwise.decide.pause import parked
from slotwise.errors import InvalidSchedule
from slotwise.jobs.definition import Definition
from slotwise.model import records
from slotwise.model.records import (
    Claim,
    Fence,
    FollowUps,
    Key,
    LedgerEntry,
    LedgerKey,
    Record,
    Row,
    Transition,
)
from slotwise.model.vocabulary import PLANNED, Origin, Outcome
from slotwise.schedules import Disabled, parse_schedule
from slotwise.schedules.base import due_at, slot_after
from slotwise.store.connect.database import commit_surely
from slotwise.store.connect.database_errors import (
    describe_error,
    is_about_a_row,
    is_locked,
)
from slotwise.store.dialects.port import Parted, Transaction
from slotwise.store.dialects.quarantine import quarantine_held
from slotwise.store.queue.queue import queue_of, write_follow_ups
from slotwise.store.schema.rows import Change, Held, claim_of
from slotwise.store.slots import ledger
from slotwise.store.slots.detached import freed, planned_now, release_queued, tell_plan_rows
from slotwise.store.slots.settlement_hooks import SettlementHooks

if TYPE_CHECKING:
    from slotwise.store.slots.store import Store

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Looked up once: Python 3.11 takes long to find a member, and this is asked for each execution.
_SUCCEEDED = Outcome.SUCCEEDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The result for one claim: its transition, or an error; neither if the claim was lost."""

    claim: Claim
    transition: Transition | None = None
    error: Exception | None = None

    @property
    def reason(self) -> str | None:
        """The reason in the ledger: ``retry`` or ``rerun`` if another attempt follows."""
        done = self.transition
        record = (done.record or done.ended) if done is not None else None
        return record.reason if record is not None else None

    @property
    def is_usual(self) -> bool:
        """Whether the slot or the task succeeded, and no slot was skipped."""
        done = self.transition
        return done is not None and done.label == _SUCCEEDED and not done.gaps


@dataclass(frozen=True, slots=True)
class _Ended:
    """A row that is held under its claim, how its attempt has ended and how long ago, and its
    ledger row.
    """

    held: Held
    claim: Claim
    outcome: records.AttemptOutcome
    entry: LedgerEntry | None
    place: str | None
    ago: timedelta

    @property
    def is_completed_task(self) -> bool:
        """Whether the ledger has the success of a one-time task, by complete_in."""
        row = self.held.row
        entry = self.entry
        return not row.has_slot and entry is not None and entry.token == row.version

    @property
    def is_doubtful(self) -> bool:
        """Whether the row may know less than ledger and gaps, for it was restored alone."""
        row = self.held.row
        entry = self.entry
        is_known = entry is not None and not entry.final and entry.token == row.version
        return row.is_plan and (
            isinstance(self.outcome, records.Died) or not is_known or row.attempt > 1
        )


#: How long follow-ups wait for a lock, when they are written first and again: other outcomes wait
#: behind them.
FIRST_WAIT = timedelta(milliseconds=250)
LATER_WAIT = timedelta(milliseconds=5)
LOCKED = TimeoutError(
    "another transaction keeps its row, or its slot in the ledger, locked; see pg_stat_activity"
)

Endings: TypeAlias = "Sequence[tuple[Claim, records.AttemptOutcome]]"
#: How far the clocks of database and worker may drift apart during a run. Judged.
DRIFT = timedelta(seconds=1)


class EndOfRun(NamedTuple):
    """How long ago a handler has ended, and how long after the arrival of its claim, if that is
    known: both by the worker's clock.
    """

    ago: timedelta = timedelta(0)
    after: timedelta | None = None

    def ago_at(self, now: datetime, claim: Claim) -> timedelta:
        """Return how long ago the handler has ended, by the database's clock. If that was set
        forward meanwhile, the step held nothing.
        """
        if self.after is None:
            return self.ago
        return max(self.ago, now - (claim.claimed_at + self.after + DRIFT))


EndedAgo: TypeAlias = Callable[[Claim], EndOfRun]


def _just_now(claim: Claim) -> EndOfRun:
    return EndOfRun()


class Settlements:
    """Releases held rows, and writes how their slots and tasks have ended."""

    def __init__(self, store: Store) -> None:
        self.database = store.database
        self.dialect = store.dialect
        self.definitions = store.definitions
        self.transaction = store.transaction
        self._warnings = store.warnings
        self._poll = store.poll
        self._full = store.gates.full
        self.hooks = SettlementHooks()
        self._queue = queue_of(self.dialect, at_insert=store.at_insert)
        names = (name for name, found in store.definitions.items() if is_usual(found))
        self._usual = frozenset(names if self.dialect.has_fast_finish else ())

    def finish(self, claims: Sequence[Claim]) -> bool:
        """Delete one-time tasks that succeeded: all of them, in one statement, or none (False).

        Then some are lost, locked or asked to stop: ``settle`` decides about each. Tasks with a
        hook are for ``settle`` alone.
        """

        def work(connection: sa.Connection) -> tuple[str | None, bool]:
            transaction_id, count = self.dialect.finish(connection, claims)
            if count != len(claims):
                raise Parted
            return transaction_id, True

        try:
            is_done = self._at_once(work) or False
        except DBAPIError as error:
            if not is_locked(error):
                raise
            return False
        self._full.ended(claims)
        return is_done

    def _at_once(self, work: Callable[[sa.Connection], tuple[str | None, T]]) -> T | None:
        """Do this work; None, with nothing written, if it fails because of a row."""
        try:
            return commit_surely(self.database, self.dialect.committed, work)
        except Parted:
            return None
        except DBAPIError as error:
            if not is_about_a_row(error):
                raise
            return None

    def settle(
        self, endings: Endings, *, wait: bool = True, ended_ago: EndedAgo = _just_now
    ) -> list[Settlement]:
        """Write these outcomes, each under its claim's fence; find a bad one by halving its batch.

        ``ended_ago`` is called right before they are sent. With ``wait`` this waits for locked
        rows once, up to the lock timeout. Rows that stay locked are returned with an error.
        """
        unique = {claim.fence: (claim, outcome) for claim, outcome in endings}
        done: dict[Fence, Settlement] = {}
        if wait:
            try:
                done = self._advance(list(unique.values()))
            except DBAPIError as error:
                if not is_locked(error):
                    raise
                wait = False  # it has waited
        rest = [ending for fence, ending in unique.items() if fence not in done]
        # Those with follow-ups come last: another transaction may hold an id that they write.
        for follows in (False, True):
            if part := [ending for ending in rest if _has_follow_ups(ending[1]) is follows]:
                settled = self._by_halves(
                    part,
                    partial(self._settle, ended_ago=ended_ago, wait=wait),
                    is_first=not done,
                )
                done.update((settlement.claim.fence, settlement) for settlement in settled)
        self._full.ended(claim for claim, _ in endings)
        return [done[claim.fence] for claim, _ in endings]

    def _advance(self, endings: Endings) -> dict[Fence, Settlement]:
        """Settle those that end as most do, in one statement."""
        found = [
            (claim, following)
            for claim, outcome in endings
            if claim.row.task_name in self._usual
            and claim.row.task_name not in self.hooks.names
            and (following := usual(claim, outcome)) is not None
        ]
        gone = (
            self._at_once(lambda connection: self.dialect.advance(connection, found))
            if found
            else None
        ) or ()
        return {
            one.fence: Settlement(claim=one, transition=done)
            for one, done in found
            if one.fence in gone
        }

    def _by_halves(
        self,
        endings: Endings,
        end: Callable[[Endings], list[Settlement]],
        *,
        is_first: bool = True,
    ) -> list[Settlement]:
        """Call ``end`` with them; if a row makes that fail, with each half, until that row is
        alone.

        Raise only if nothing is settled yet (``is_first``): what is settled must be returned.
        """
        try:
            return end(endings)
        except Exception as error:
            held_up = is_locked(error) and _has_follow_ups(endings[0][1])
            if not is_about_a_row(error) and not held_up:
                if is_first:
                    raise
                return [Settlement(claim=claim, error=error) for claim, _ in endings]
            if len(endings) == 1:
                claim, outcome = endings[0]
                return [
                    Settlement(claim=claim, error=LOCKED)
                    if held_up
                    else self._settle_alone(claim, outcome, error)
                ]
        middle = len(endings) // 2
        settled = self._by_halves(endings[:middle], end, is_first=is_first)
        return settled + self._by_halves(endings[middle:], end, is_first=False)

    def _settle_alone(
        self, claim: Claim, outcome: records.AttemptOutcome, error: Exception
    ) -> Settlement:
        """Settle one bad outcome in plainer forms; quarantine its row if none can be written."""
        why = f"{outcome.name}, which cannot be written: {describe_error(error)}"
        for plain in plainer(outcome, why):
            try:
                return self._settle([(claim, plain)], _just_now, wait=False)[0]
            except Exception as second:
                if not is_about_a_row(second):
                    return Settlement(claim=claim, error=error)
        if rows := self._warnings.count(claim.row.task_name, why):
            logger.error(
                "%s: rows that are quarantined: %d; the last is %r: %s",
                claim.key[0],
                rows,
                claim.key[1],
                why,
            )
        try:
            with self.transaction() as connection:
                at = Transaction(connection, self.dialect, self.dialect.now(connection))
                label = quarantine_held(at, claim, outcome, describe_error(error))
                if label is not None and claim.row.has_slot:
                    freed(at, claim.row, removed=False)
        except SQLAlchemyError:
            return Settlement(claim=claim, error=error)
        row = {"last_error": why}
        return Settlement(
            claim=claim, transition=Transition(label=label, row=row) if label else None
        )

    def _settle(
        self, endings: Endings, ended_ago: EndedAgo, *, wait: bool
    ) -> list[Settlement]:
        try:
            done = {
                change.held.row.fence: change.transition
                for change in self._end(endings, ended_ago, wait=wait)
            }
        except DBAPIError as error:
            if not wait or not is_locked(error):
                raise
            return self._settle(endings, ended_ago, wait=False)
        claims = [claim for claim, _ in endings]
        missing = [claim for claim in claims if claim.fence not in done and not wait]
        left: dict[Fence, Exception] = {}
        try:
            if missing:  # skipped is not lost
                with self.transaction() as connection:
                    left = dict.fromkeys(
                        self.dialect.still_held(connection, missing), LOCKED
                    )
        except (
            SQLAlchemyError
        ) as error:  # the others are settled already, and nothing is raised
            left = {claim.fence: error for claim in missing}
        return [
            Settlement(claim=one, transition=done.get(one.fence), error=left.get(one.fence))
            for one in claims
        ]

    def take_over(self, silent: Sequence[Row]) -> list[Settlement]:
        """Release rows whose holder is dead. Skip locked rows, and those that were renewed
        meanwhile.
        """

        def end(endings: Endings) -> list[Settlement]:
            claims = {claim.fence: claim for claim, _ in endings}
            changes = self._end(endings, wait=False)
            return [
                Settlement(claim=claims[one.held.row.fence], transition=one.transition)
                for one in changes
            ]

        taken = self._by_halves([(claim_of(row), records.Died()) for row in silent], end)
        self._full.ended(settlement.claim for settlement in taken)
        return taken

    def _end(
        self, endings: Endings, ended_ago: EndedAgo = _just_now, *, wait: bool
    ) -> list[Change]:
        """Release the rows that are still held under these claims; of dead holders not those that
        were renewed.
        """
        known = {claim.fence: (claim, outcome) for claim, outcome in endings}
        words: set[str] = set()

        def work(connection: sa.Connection) -> tuple[str | None, list[Change]]:
            if any(_has_follow_ups(outcome) for _, outcome in endings):
                # Race: a row that another transaction has inserted and not committed cannot be
                # skipped.
                self.dialect.hurry(connection, FIRST_WAIT if wait else LATER_WAIT)
            ends = {fence: ended_ago(claim) for fence, (claim, _) in known.items()}
            held = self.dialect.hold(
                connection, self._unblocked(connection, endings, wait=wait), wait=wait
            )
            if not held:
                return None, []
            at = Transaction(connection, self.dialect, held[0].now)
            ended = [(one, *known[one.row.fence]) for one in held]
            ended = [one for one in ended if not _has_stirred(*one)]
            keys = {
                one.row.fence: ledger_key(one.row, outcome) for one, _, outcome in ended
            }
            entries = self.dialect.entries(
                connection, [key for key in keys.values() if key is not None], wait=wait
            )
            found = [
                _Ended(
                    one,
                    claim,
                    outcome,
                    *(entries[key] if key else (None, None)),
                    ago=ends[claim.fence].ago_at(one.now, claim),
                )
                for one, claim, outcome in ended
                if (key := keys[claim.fence]) is None or key in entries  # else it is locked
            ]
            changes = self._decide_all(at, found)
            settled = list(zip(found, changes, strict=True))
            self._write(at, changes)
            words.update(self._write_follow_ups(at, settled))
            kept = (pair for pair in settled if self._keeps_attempts(pair[0].held.row))
            attempts = [row for one, change in kept for row in _attempt(one, change)]
            ledger.remember_attempts(at, attempts)
            self.hooks.write(connection, changes)
            return held[0].transaction_id, changes

        changes = commit_surely(self.database, self.dialect.committed, work)
        self.database.wake_ups.tell(*words)
        tell_plan_rows(self.database, self.dialect, changes, wait=wait)
        return changes

    def _unblocked(
        self, connection: sa.Connection, endings: Endings, *, wait: bool
    ) -> list[Claim]:
        """Lock rows that follow-ups may change together with the held ones, in one order; return
        the claims locked.
        """
        changed = [(claim, _changed_by(outcome)) for claim, outcome in endings]
        if not (others := set[Key]().union(*(keys for _, keys in changed))):
            return [claim for claim, _ in changed]
        locked = self.dialect.lock(
            connection, others | {claim.key for claim, _ in changed}, wait=wait
        )
        return [claim for claim, keys in changed if not locked & {claim.key, *keys}]

    def _keeps_attempts(self, row: Row) -> bool:
        return row.has_slot or self.definitions[row.task_name].record != "none"

    def _decide_all(self, at: Transaction, found: Sequence[_Ended]) -> list[Change]:
        """Decide about each, from the newest slot that its row, ledger and gaps have decided.

        Race: the queue alone is restored while a slot runs. The claim of a first attempt has
        looked; its settlement looks again if it skips slots, for no gap covers a slot that has a
        ledger row.
        """
        newest = self._newest(at, [one.held.row for one in found if one.is_doubtful])
        changes = [self._decide(at, one, newest.get(one.held.row.key)) for one in found]
        unseen = [
            change.held.row
            for one, change in zip(found, changes, strict=True)
            if change.transition.gaps and not one.is_doubtful
        ]
        if not (newest := self._newest(at, unseen)):
            return changes
        return [
            change
            if (slot := newest.get(one.held.row.key)) is None
            else self._decide(at, one, slot)
            for one, change in zip(found, changes, strict=True)
        ]

    def _newest(self, at: Transaction, rows: Sequence[Row]) -> dict[Key, datetime]:
        """Return the newest slot that ledger or gaps have decided, of the rows that do not know
        it.
        """
        if not rows:
            return {}
        strict = [row.task_name for row in rows if self.definitions[row.task_name].gives_up]
        newest = self.dialect.newest_decided(
            at.connection, [row.key for row in rows], strict
        )
        found = [
            (row, slot) for row, slot in zip(rows, newest, strict=True) if slot is not None
        ]
        return {
            row.key: slot
            for row, slot in found
            if row.watermark is None or slot > row.watermark
        }

    def _decide(self, at: Transaction, one: _Ended, newest: datetime | None) -> Change:
        """Decide what becomes of a row, of which ledger or gaps have decided slots up to
        ``newest``.
        """
        held = one.held
        outcome = one.outcome
        entry = one.entry
        row = held.row
        error = None
        text = held.row.schedule
        if newest is not None:
            row = replace(row, watermark=newest)
        if isinstance(outcome, records.Failed):
            row = replace(row, trying_since=row.trying_since or one.claim.claimed_at)
            if (
                row.is_detached
                and row.origin in PLANNED
                and self.definitions[row.task_name].retry is not None
            ):
                text, watermark = planned_now(at, row)
                row = replace(row, watermark=watermark)
        held = replace(held, row=row)
        try:
            schedule = (
                parse_schedule(text or "-")
                if row.is_plan or row.origin in PLANNED
                else None
            )
        except InvalidSchedule as problem:
            kind = decide.NEWER if problem.may_be_newer else decide.UNREADABLE
            schedule = Disabled()
            error = f"{kind}schedule {text!r:.200}: {problem}"
        if isinstance(outcome, records.HandedBack) and outcome.error is not None:
            self._warnings.newer(row, held.now, outcome.error)
        done = decide.at_finish(
            row,
            self.definitions[row.task_name],
            schedule,
            outcome,
            held.now,
            entry,
            poll=self._poll,
            ended_ago=one.ago,
            is_decided=self._has_ended(at, row, entry),
        )
        if error is not None:
            done = decide.unread(row, done, held.now, error)
        done = decide.removed(row, schedule, parked(row, done), held.now)
        stranger = row.ledger_key is not None and (
            entry is None or (not entry.final and entry.token != row.version)
        )
        return Change(held=held, transition=done, ledger_place=one.place, stranger=stranger)

    def _has_ended(self, at: Transaction, row: Row, entry: LedgerEntry | None) -> bool:
        """Whether the slot of a plan row has ended, or lies in a gap: then the row was restored
        alone.
        """
        if not row.is_plan or row.slot is None:
            return False
        return entry.final if entry is not None else ledger.is_in_a_gap(at, row)

    def _write(self, at: Transaction, changes: Sequence[Change]) -> None:
        if not changes:
            return
        self.dialect.release(at.connection, changes)
        gaps = [
            (change.held.row, gap) for change in changes for gap in change.transition.gaps
        ]
        self.dialect.gaps(at.connection, gaps, at.now)
        for change in changes:
            if change.stranger:
                ledger.end_stranger(at, change)
        release_queued(at, changes)

    def _write_follow_ups(
        self, at: Transaction, settled: Sequence[tuple[_Ended, Change]]
    ) -> set[str]:
        """Write follow-ups and the history of tasks; return the tasks whose workers are to be
        notified.
        """
        follow_ups = list[FollowUps]()
        history = list[dict[str, object]]()
        for one, change in settled:
            wanted = (
                one.outcome.follow_ups
                if isinstance(one.outcome, records.Succeeded)
                else None
            )
            if wanted is not None and change.transition.label == Outcome.SUCCEEDED:
                follow_ups.append(wanted)
            task = self.definitions[one.claim.row.task_name]
            row = _history(one.claim, change, task, wanted)
            if row is not None:
                history.append(row)
            elif one.is_completed_task:
                ledger.forget_task(at, one.held.row)
        words = (
            write_follow_ups(at.connection, self._queue, follow_ups)
            if follow_ups
            else set()
        )
        ledger.remember_tasks(at, history)
        return words


def _changed_by(outcome: records.AttemptOutcome) -> set[Key]:
    """Return the rows that follow-ups may change; "keep" changes none."""
    follow_ups: FollowUps | None = getattr(outcome, "follow_ups", None)
    if follow_ups is None:
        return set()
    follows = (
        Key(name, wanted.instance)
        for name, wanted, if_exists in follow_ups.follows
        if if_exists != "keep"
    )
    return {*follows, *follow_ups.arrivals}


def _has_follow_ups(outcome: records.AttemptOutcome) -> bool:
    follow_ups: FollowUps | None = getattr(outcome, "follow_ups", None)
    return follow_ups is not None and bool(follow_ups.follows or follow_ups.arrivals)


def _has_stirred(held: Held, claim: Claim, outcome: records.AttemptOutcome) -> bool:
    """Return whether a holder that was taken for dead has renewed the row since it was found
    silent.
    """
    return (
        isinstance(outcome, records.Died)
        and held.row.last_heartbeat != claim.row.last_heartbeat
    )


# -- the usual end --------------------------------------------------------------------------------


def usual(claim: Claim, outcome: records.AttemptOutcome) -> Transition | None:
    """What follows if nothing is out of the ordinary; None: that is for the settlement to say."""
    row = claim.row
    if not row.is_plan or row.slot is None or row.slot != row.watermark or row.attempt != 1:
        return None
    if row.catch_up_until is not None or row.unheld_since is not None:
        return None  # it catches up slot by slot, or was queued: what follows is looked at
    if outcome is records.SUCCEEDED or outcome == records.SUCCEEDED:
        with suppress(
            Exception
        ):  # whatever it is, the settlement meets it again, and tells
            return onward(row.schedule or "-", row.slot)
    return None


def is_usual(definition: Definition) -> bool:
    """Whether nothing that the job declares has a say in how a slot ends that was on time and
    succeeded.
    """
    return (
        definition.min_interval is None
        and definition.record == "none"
        and definition.result_retention is None
    )


@lru_cache(maxsize=4096)
def onward(text: str, slot: datetime) -> Transition | None:
    """Return what ``at_finish`` decides for a slot that was on time and succeeded before the next
    one came.

    None where more counts: the end of the run, a text that becomes a simpler one, or no next slot.
    Raise InvalidSchedule.
    """
    schedule = parse_schedule(text)
    following = schedule.next_after(slot)
    if following is None or schedule.from_end or str(schedule.settled(slot)) != text:
        return None
    due = due_at(schedule, following)
    next_slot = slot_after(schedule, following)
    columns = {"execution_time": due, "slot": following, "next_slot": next_slot}
    return Transition(
        label=_SUCCEEDED, row=columns, record=Record(outcome=_SUCCEEDED, attempts=1)
    )


# -- what an outcome asks of its row and of the ledger --------------------------------------------


def plainer(outcome: records.AttemptOutcome, why: str) -> Iterator[records.AttemptOutcome]:
    """Yield the outcome in ASCII, and then one that only says that the outcome could not be
    written.
    """
    if isinstance(outcome, records.Failed) and not outcome.error.isascii():
        yield replace(
            outcome, error=outcome.error.encode("ascii", "backslashreplace").decode()
        )
    if isinstance(outcome, records.Failed | records.Snoozed | records.Cancelled):
        yield records.Failed(why, final=True)


def ledger_key(row: Row, outcome: records.AttemptOutcome) -> LedgerKey | None:
    """Return the ledger row to look at: a slot's; a one-time task's only if complete_in may have
    written it.
    """
    doubtful = isinstance(
        outcome, records.Died | records.Aborted | records.Cancelled | records.Snoozed
    ) or getattr(outcome, "promised", False)
    return row.history_key if doubtful else row.ledger_key


def _history(
    claim: Claim, change: Change, task: Definition, follow_ups: FollowUps | None
) -> dict[str, object] | None:
    """Return the ledger row of a one-time task that has ended; None if none is kept."""
    row = change.held.row
    now = change.held.now
    ended = change.transition.ended
    if ended is None or (follow_ups is None and task.record == "none"):
        return None
    is_success = ended.outcome == Outcome.SUCCEEDED
    retention = task.result_retention if is_success else None
    if retention is None and (
        task.record == "none" or (task.record == "failures" and is_success)
    ):
        return None
    kept = follow_ups if retention is not None else None
    return {
        "task_name": row.task_name,
        "task_instance": row.task_instance,
        "slot": row.slot or row.execution_time,
        "outcome": ended.outcome,
        "reason": ended.reason,
        "origin": Origin.TASK,
        "attempts": ended.attempts,
        "lost": row.lost_count + ended.lost,
        "token": row.version,
        "worker": claim.holder,
        "started": claim.claimed_at,
        "finished": now,
        "error": kept.problem if kept else ended.error,
        "result": kept.result if kept else None,
        "expires": now + retention if retention else None,
    }


def _attempt(one: _Ended, change: Change) -> Iterator[dict[str, object]]:
    """The row of an attempt that counts; none if it succeeded, which the ledger tells.

    A claim of a dead holder was read from its row: when it was made is the row's version.
    """
    row = change.held.row
    now = change.held.now
    done = change.transition
    record = done.record or done.ended
    if record is None or record.attempts < row.attempt or record.outcome == _SUCCEEDED:
        return
    claim = one.claim
    outcome = one.outcome
    entry = one.entry
    claimed = claim.claimed_at
    ended = now - one.ago
    if isinstance(outcome, records.Died):
        claimed = min(records.from_micros(row.version), now)
        ended = min(row.last_heartbeat or now, now)
    key = row.history_key or LedgerKey(*row.key, row.execution_time)
    yield {
        **key._asdict(),
        "token": row.version,
        "number": row.attempt,
        "worker": claim.holder,
        "claimed": claimed,
        "started": entry.started if entry else row.marked or claimed,
        "ended": ended,
        "outcome": next(
            one for one in (done.label, record.outcome, Outcome.LOST) if one != Outcome.DEAD
        ),
        "reason": getattr(outcome, "reason", None) or record.reason,
        "error": record.error,
    }
