"""One transaction of a settlement: which claims still hold their rows, and what is written of each
row, its slot, its attempt and what follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import sqlalchemy as sa

from slotwise.decide import ending as decide
from slotwise.decide.deletion import removed
from slotwise.decide.going_back import NEWER, UNREADABLE
from slotwise.decide.pause import parked
from slotwise.errors import InvalidSchedule
from slotwise.jobs.definition import Definition
from slotwise.model import records
from slotwise.model.records import (
    AttemptOutcome,
    Claim,
    FollowUps,
    Key,
    LedgerEntry,
    LedgerKey,
    Row,
)
from slotwise.model.vocabulary import PLANNED, Outcome
from slotwise.schedules import Disabled, Schedule, parse_schedule
from slotwise.store.dialects.port import Transaction
from slotwise.store.queue.queue import queue_of, write_follow_ups
from slotwise.store.schema.rows import Change, Held
from slotwise.store.slots import checkpoints, ledger
from slotwise.store.slots.detached import planned_now, release_queued
from slotwise.store.slots.settlement_hooks import SettlementHooks
from slotwise.store.slots.tuning import DRIFT, FIRST_WAIT, LATER_WAIT

if TYPE_CHECKING:
    from slotwise.store.slots.store import Store

Endings: TypeAlias = "Sequence[tuple[Claim, AttemptOutcome]]"


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


def just_now(claim: Claim) -> EndOfRun:
    return EndOfRun()


class Written(NamedTuple):
    """What a settlement has written, and the tasks whose workers are to be notified."""

    transaction_id: str | None = None
    changes: Sequence[Change] = ()
    words: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Ended:
    """A row that is held under its claim, how its attempt has ended and how long ago, and its
    ledger row.
    """

    held: Held
    claim: Claim
    outcome: AttemptOutcome
    entry: LedgerEntry | None
    ago: timedelta

    @property
    def is_doubtful(self) -> bool:
        """Whether the row may know less than ledger and gaps, for it was restored alone."""
        row = self.held.row
        is_first = row.attempt <= 1 and not isinstance(self.outcome, records.Died)
        return row.is_plan and not (is_first and self.is_entered and not self.is_final)

    @property
    def is_entered(self) -> bool:
        """Whether the ledger knows this claim of its slot, or that the slot has ended."""
        entry = self.entry
        return entry is not None and (
            entry.final or entry.token == self.held.row.version
        )

    @property
    def is_completed_task(self) -> bool:
        """Whether the ledger has the success of a one-time task, by complete_in."""
        row = self.held.row
        entry = self.entry
        return not row.has_slot and entry is not None and entry.token == row.version

    @property
    def is_final(self) -> bool:
        return self.entry is not None and self.entry.final

    @property
    def follow_ups(self) -> FollowUps | None:
        return follow_ups_of(self.outcome)


class SettlementWriter:
    """Writes settlements, each in the transaction of its caller."""

    def __init__(self, store: Store) -> None:
        self._dialect = store.dialect
        self._definitions = store.definitions
        self._warnings = store.warnings
        self._poll = store.poll
        self._queue = queue_of(self._dialect, at_insert=store.at_insert)

    def write(
        self,
        connection: sa.Connection,
        endings: Endings,
        ended_ago: EndedAgo,
        hooks: SettlementHooks,
        *,
        wait: bool,
    ) -> Written:
        """Release the rows that are still held under these claims; of dead holders not those that
        were renewed. Without ``wait``, locked rows are left alone.
        """
        if any(has_follow_ups(outcome) for _, outcome in endings):
            # Race: a row that another transaction has inserted and not committed cannot be
            # skipped.
            self._dialect.hurry(connection, FIRST_WAIT if wait else LATER_WAIT)
        ends = {claim.fence: ended_ago(claim) for claim, _ in endings}
        claims = self._unblocked(connection, endings, wait=wait)
        held = self._dialect.hold(connection, claims, wait=wait)
        if not held:
            return Written()
        at = Transaction(connection, self._dialect, held[0].now)
        known = {claim.fence: (claim, outcome) for claim, outcome in endings}
        ended = [
            Ended(one, claim, outcome, None, ends[claim.fence].ago_at(one.now, claim))
            for one in held
            for claim, outcome in [known[one.row.fence]]
            if not _has_stirred(one, claim, outcome)
        ]
        ended = self._with_entries(at, ended, wait=wait)
        changes = self._decide_all(at, ended)
        self._write(at, changes)
        settled = list(zip(ended, changes, strict=True))
        words = self._write_follow_ups(at, settled)
        self._remember(at, settled)
        hooks.write(connection, changes)
        return Written(held[0].transaction_id, changes, frozenset(words))

    def _unblocked(
        self, connection: sa.Connection, endings: Endings, *, wait: bool
    ) -> list[Claim]:
        """Lock rows that follow-ups may change together with the held ones, in one order; return
        the claims locked.
        """
        changed = [(claim, _changed_by(outcome)) for claim, outcome in endings]
        if not (others := set[Key]().union(*(keys for _, keys in changed))):
            return [claim for claim, _ in changed]
        own = {claim.key for claim, _ in changed}
        locked = self._dialect.lock(connection, others | own, wait=wait)
        return [claim for claim, keys in changed if not locked & {claim.key, *keys}]

    def _with_entries(
        self, at: Transaction, ended: Sequence[Ended], *, wait: bool
    ) -> list[Ended]:
        """Return them with their ledger rows, without those whose ledger row stays locked."""
        keys = [ledger_key(one.held.row, one.outcome) for one in ended]
        entries = self._dialect.entries(
            at.connection, [key for key in keys if key is not None], wait=wait
        )
        found = []
        for one, key in zip(ended, keys, strict=True):
            if key is None:
                found.append(one)
            elif key in entries:
                found.append(replace(one, entry=entries[key]))
        return found

    # -- decisions --------------------------------------------------------------------------------

    def _decide_all(self, at: Transaction, ended: Sequence[Ended]) -> list[Change]:
        """Decide about each, from the newest slot that its row, ledger and gaps have decided.

        Race: the queue alone is restored while a slot runs. The claim of a first attempt has
        looked; its settlement looks again if it skips slots, for no gap covers a slot that has a
        ledger row.
        """
        newest = self._newest(at, [one.held.row for one in ended if one.is_doubtful])
        changes = [
            self._decide(at, one, newest.get(one.held.row.key)) for one in ended
        ]
        decided = zip(ended, changes, strict=True)
        unasked = [(one, done) for one, done in decided if not one.is_doubtful]
        skipping = [one.held.row for one, done in unasked if done.transition.gaps]
        newest = self._newest(at, skipping)
        for place, one in enumerate(ended):
            if (slot := newest.get(one.held.row.key)) is not None:
                changes[place] = self._decide(at, one, slot)
        return changes

    def _newest(self, at: Transaction, rows: Sequence[Row]) -> dict[Key, datetime]:
        """Return the newest slot that ledger or gaps have decided, of the rows that do not know
        it.
        """
        if not rows:
            return {}
        strict = [
            row.task_name for row in rows if self._definitions[row.task_name].gives_up
        ]
        keys = [row.key for row in rows]
        newest = self._dialect.newest_decided(at.connection, keys, strict)
        return {
            row.key: slot
            for row, slot in zip(rows, newest, strict=True)
            if slot is not None and (row.watermark is None or slot > row.watermark)
        }

    def _decide(self, at: Transaction, one: Ended, newest: datetime | None) -> Change:
        """Decide what becomes of a row, of which ledger or gaps have decided slots up to
        ``newest``.
        """
        row, text = self._as_known(at, one, newest)
        now = one.held.now
        schedule, error = _read_schedule(row, text)
        if (
            isinstance(one.outcome, records.HandedBack)
            and one.outcome.error is not None
        ):
            self._warnings.newer(row, now, one.outcome.error)
        done = decide.at_finish(
            row,
            self._definitions[row.task_name],
            schedule,
            one.outcome,
            now,
            one.entry,
            poll=self._poll,
            ended_ago=one.ago,
            is_decided=self._has_ended(at, row, one.entry),
            counts_anew=self._counts_anew(at, one),
        )
        if error is not None:
            done = decide.unread(row, done, now, error)
        return Change(
            held=replace(one.held, row=row),
            transition=removed(row, schedule, parked(row, done), now),
            stranger=row.ledger_key is not None and not one.is_entered,
        )

    def _as_known(
        self, at: Transaction, one: Ended, newest: datetime | None
    ) -> tuple[Row, str | None]:
        """Return the row with what ledger, claim and plan row know more of it, and its schedule."""
        row = one.held.row
        text = row.schedule
        if newest is not None:
            row = replace(row, watermark=newest)
        if isinstance(one.outcome, records.Failed):
            row = replace(row, trying_since=row.trying_since or one.claim.claimed_at)
            retries = self._definitions[row.task_name].retry is not None
            if retries and row.is_detached and row.origin in PLANNED:
                text, watermark = planned_now(at, row)
                row = replace(row, watermark=watermark)
        return row, text

    def _has_ended(self, at: Transaction, row: Row, entry: LedgerEntry | None) -> bool:
        """Whether the slot of a plan row has ended, or lies in a gap: then the row was restored
        alone.
        """
        if not row.is_plan or row.slot is None:
            return False
        return entry.final if entry is not None else ledger.is_in_a_gap(at, row)

    def _counts_anew(self, at: Transaction, one: Ended) -> bool:
        """Whether this attempt has failed or was lost after a checkpoint of its own, and
        ``retry`` counts anew then.
        """
        retry = self._definitions[one.held.row.task_name].retry
        if retry is None or not retry.resets_on_progress:
            return False
        has_failed = isinstance(one.outcome, records.Failed | records.Died)
        return has_failed and checkpoints.is_of(at, one.held.row)

    # -- what is written --------------------------------------------------------------------------

    def _write(self, at: Transaction, changes: Sequence[Change]) -> None:
        if not changes:
            return
        self._dialect.release(at.connection, changes)
        gaps = [
            (change.held.row, gap)
            for change in changes
            for gap in change.transition.gaps
        ]
        self._dialect.gaps(at.connection, gaps, at.now)
        for change in changes:
            if change.stranger:
                ledger.end_stranger(at, change)
        release_queued(at, changes)

    def _write_follow_ups(
        self, at: Transaction, settled: Sequence[tuple[Ended, Change]]
    ) -> set[str]:
        """Return the tasks whose workers are to be notified."""
        succeeded = [
            (change.held.row, one.follow_ups)
            for one, change in settled
            if one.follow_ups is not None
            and change.transition.label == Outcome.SUCCEEDED
        ]
        if not succeeded:
            return set()
        checkpoints.forget(at, [row for row, left in succeeded if left.checkpointed])
        follow_ups = [left for _, left in succeeded]
        return write_follow_ups(at.connection, self._queue, follow_ups)

    def _remember(
        self, at: Transaction, settled: Sequence[tuple[Ended, Change]]
    ) -> None:
        """Write the history of tasks, and attempts that count."""
        history = []
        attempts = []
        for one, change in settled:
            task = self._definitions[one.claim.row.task_name]
            if (row := _history(one, change, task)) is not None:
                history.append(row)
            elif one.is_completed_task:
                ledger.forget_task(at, one.held.row)
            keeps = change.held.row.has_slot or task.record != "none"
            if keeps and (row := _attempt(one, change)) is not None:
                attempts.append(row)
        ledger.remember_tasks(at, history)
        ledger.remember_attempts(at, attempts)


# -- what an outcome asks of rows and ledger ------------------------------------------------------


def follow_ups_of(outcome: AttemptOutcome) -> FollowUps | None:
    return outcome.follow_ups if isinstance(outcome, records.Succeeded) else None


def has_follow_ups(outcome: AttemptOutcome) -> bool:
    found = follow_ups_of(outcome)
    return found is not None and bool(found.follows or found.arrivals)


def _changed_by(outcome: AttemptOutcome) -> set[Key]:
    """Return the rows that follow-ups may change; "keep" changes none."""
    found = follow_ups_of(outcome)
    if found is None:
        return set()
    follows = (
        Key(name, wanted.instance)
        for name, wanted, if_exists in found.follows
        if if_exists != "keep"
    )
    return {*follows, *found.arrivals}


def _has_stirred(held: Held, claim: Claim, outcome: AttemptOutcome) -> bool:
    """Return whether a holder that was taken for dead has renewed the row since it was found
    silent.
    """
    return (
        isinstance(outcome, records.Died)
        and held.row.last_heartbeat != claim.row.last_heartbeat
    )


def ledger_key(row: Row, outcome: AttemptOutcome) -> LedgerKey | None:
    """Return the ledger row to look at: a slot's; a one-time task's only if complete_in may have
    written it.
    """
    doubtful = isinstance(
        outcome, records.Died | records.Aborted | records.Cancelled | records.Snoozed
    ) or getattr(outcome, "promised", False)
    return row.history_key if doubtful else row.ledger_key


def _read_schedule(row: Row, text: str | None) -> tuple[Schedule | None, str | None]:
    """Return the schedule of a row that has one, or why it cannot be read."""
    if not row.is_plan and row.origin not in PLANNED:
        return None, None
    try:
        return parse_schedule(text or "-"), None
    except InvalidSchedule as problem:
        kind = NEWER if problem.may_be_newer else UNREADABLE
        return Disabled(), f"{kind}schedule {text!r:.200}: {problem}"


def _retention(
    ended: records.Record, task: Definition, one: Ended
) -> timedelta | None:
    """How long the result of a task is kept; None: there is none to keep."""
    is_success = ended.outcome == Outcome.SUCCEEDED
    if not is_success or (one.follow_ups is None and task.record == "none"):
        return None
    return task.result_retention


def _history(one: Ended, change: Change, task: Definition) -> dict[str, object] | None:
    """Return the ledger row of a one-time task that has ended; None if none is kept."""
    row = change.held.row
    now = change.held.now
    ended = change.transition.ended
    if ended is None:
        return None
    retention = _retention(ended, task, one)
    unrecorded = (
        ("none", "failures") if ended.outcome == Outcome.SUCCEEDED else ("none",)
    )
    if retention is None and task.record in unrecorded:
        return None
    kept = one.follow_ups if retention is not None else None
    return ledger.task_entry(one.claim) | {
        "slot": row.slot or row.execution_time,
        "outcome": ended.outcome,
        "reason": ended.reason,
        "attempts": ended.attempts,
        "lost": row.lost_count + ended.lost,
        "finished": now,
        "error": kept.problem if kept else ended.error,
        "result": kept.result if kept else None,
        "expires": now + retention if retention else None,
    }


def _span_of(one: Ended) -> tuple[datetime, datetime]:
    """Return when the attempt was claimed and when it ended.

    A claim of a dead holder was read from its row: when it was made is the row's version.
    """
    now = one.held.now
    if not isinstance(one.outcome, records.Died):
        return one.claim.claimed_at, now - one.ago
    row = one.held.row
    return min(records.from_micros(row.version), now), min(
        row.last_heartbeat or now, now
    )


def _attempt(one: Ended, change: Change) -> dict[str, object] | None:
    """Return the row of an attempt that counts; None if it succeeded, which the ledger tells."""
    row = change.held.row
    done = change.transition
    record = done.record or done.ended
    if record is None or record.attempts < row.attempt:
        return None
    if record.outcome == Outcome.SUCCEEDED:
        return None
    claimed, ended = _span_of(one)
    key = row.history_key or LedgerKey(*row.key, row.execution_time)
    how = done.label if done.label != Outcome.DEAD else record.outcome
    return {
        **key._asdict(),
        "token": row.version,
        "number": row.attempt,
        "worker": one.claim.holder,
        "claimed": claimed,
        "started": one.entry.started if one.entry else row.marked or claimed,
        "ended": ended,
        "outcome": how if how != Outcome.DEAD else Outcome.LOST,
        "reason": getattr(one.outcome, "reason", None) or record.reason,
        "error": record.error,
    }
