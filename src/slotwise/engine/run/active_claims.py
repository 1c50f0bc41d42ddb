"""The claims that this process holds, and how far each is still valid."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

from slotwise.jobs.context import Signal
from slotwise.model.clock import Stopwatch, elapsed
from slotwise.model.records import (
    SUCCEEDED,
    AttemptOutcome,
    Claim,
    Fence,
    FollowUps,
    HandedBack,
)
from slotwise.model.vocabulary import Reason
from slotwise.store.slots.settlement_writer import EndOfRun

_QUEUED = HandedBack(Reason.QUEUED)


class Holding:
    """One held claim: renewed by heartbeats, suspect when they fail, lost when refused or when the
    lease ran out.
    """

    __slots__ = (
        "_elapsed",
        "_lease",
        "_lock",
        "_lost",
        "_signal",
        "checkpointed",
        "claim",
        "deadline",
        "ended",
        "ended_at",
        "follow_ups",
        "held",
        "is_slot",
        "outcome",
        "process",
        "promised",
        "ran",
        "renewed",
        "runs_in",
        "since",
        "started",
        "suspected",
        "unawaited",
        "warning",
    )

    def __init__(
        self, claim: Claim, renewed: float, elapsed: Stopwatch = elapsed
    ) -> None:
        self.claim = claim
        self.is_slot = claim.row.has_slot
        self._signal: Signal | None = None
        #: The handler has started.
        self.started = False
        #: The outcome is known and on its way to the database; since when, of a slot, in elapsed
        #: seconds.
        self.ended = False
        self.ended_at: float | None = None
        self.outcome: AttemptOutcome = SUCCEEDED
        #: The handler has called complete_in; only the ledger knows whether that was committed.
        self.promised = False
        #: The method that was called with an async connection and not awaited yet.
        self.unawaited: str | None = None
        #: The follow-ups of the handler, written if it succeeds.
        self.follow_ups: FollowUps | None = None
        #: The handler has used its checkpoint.
        self.checkpointed = False
        #: What start hooks hold for this attempt; None before they are called.
        self.held: ExitStack | None = None
        self.suspected = False
        #: When the last successful heartbeat was sent, and when the handler times out, in elapsed
        #: seconds.
        self.renewed = renewed
        self.deadline: float | None = None
        #: When the handler is reported, in elapsed seconds, and after which time.
        self.warning: tuple[float, timedelta] | None = None
        #: The thread or the task of the handler, or its process, once it has begun.
        self.runs_in: int | asyncio.Task[AttemptOutcome] | None = None
        self.process: int | None = None
        self._lost = False
        self._lock = threading.Lock()
        self._elapsed = elapsed
        self._lease = claim.lease.total_seconds()
        #: When the claim arrived; and, if that is counted, when its handler began and ended. In
        #: elapsed seconds.
        self.since = elapsed()
        self.ran: tuple[float, float] | None = None

    @property
    def signal(self) -> Signal:
        """The stop signal of the handler; created on first use, as most claims never need it."""
        with self._lock:
            if self._signal is None:
                self._signal = Signal()
            return self._signal

    @property
    def stop_reason(self) -> str | None:
        """Why the handler was asked to stop, or None."""
        return None if self._signal is None else self._signal.reason

    @property
    def is_plain(self) -> bool:
        """Whether the handler has neither been asked to stop, nor left anything for the
        settlement.
        """
        signal = self._signal
        follow_ups = self.follow_ups
        return (
            (signal is None or signal.reason is None)
            and follow_ups is None
            and not (self.promised or self.unawaited or self.checkpointed)
        )

    def begin(self) -> bool:
        """Mark the handler as started; return False if the attempt has ended before."""
        with self._lock:
            self.started = not self.ended
            return self.started

    def end(self, *, unstarted: bool = False) -> bool:
        """Mark the attempt as ended; False if it had ended before, or if it has started and must
        be ``unstarted``.
        """
        with self._lock:
            if self.ended or (unstarted and self.started):
                return False
            self.ended, self.ended_at = True, self._elapsed() if self.is_slot else None
            return True

    def renew(self, sent: float) -> None:
        """Record the success of a heartbeat that was sent at ``sent``."""
        self.renewed = max(self.renewed, sent)
        self.suspected = False

    def waited(self) -> float:
        """Seconds since the claim arrived, without the time that the claim itself took."""
        return self._elapsed() - self.since

    def left(self) -> float:
        """Seconds of the lease that are left; the claim is lost at zero."""
        return (
            -math.inf if self._lost else self._lease - (self._elapsed() - self.renewed)
        )

    def lease_left(self) -> timedelta:
        return self.claim.lease - timedelta(seconds=self._elapsed() - self.renewed)

    def doubt(self, margin: float) -> str | None:
        """Return why this claim must not start any more: less than ``margin`` seconds are left, or
        it waited longer.
        """
        now = self._elapsed()
        if self._lost or self._lease - (now - self.renewed) < margin:
            return Reason.SUSPECT
        return Reason.QUEUED if now - self.since > margin else None

    @property
    def lost(self) -> bool:
        return self.left() <= 0

    def lose(self) -> None:
        """Treat the claim as taken by another worker, and ask the handler to stop."""
        self._lost = True
        self.signal.set(Reason.LOST)


class ActiveClaims:
    """All held claims by key and token, and whether a claim statement is under way."""

    def __init__(self, elapsed: Stopwatch = elapsed) -> None:
        self.elapsed = elapsed
        self._lock = threading.Lock()
        self._held: dict[Fence, Holding] = {}
        self._slots: dict[Fence, Holding] = {}
        self._claiming = 0
        self._generation = 0
        self._changed = threading.Condition(self._lock)
        #: When a claim statement last failed, in elapsed seconds. It may be committed
        #: nevertheless, even later.
        self.failed_at = -math.inf
        #: How many claims have been released so far, and of them, how many had started.
        self.removed = self._begun = 0
        #: When a claim was last handed back because it got no thread in time, in elapsed seconds.
        self.queued_at = -math.inf
        #: Claims whose handlers did not stop when they were asked to.
        self.hung: set[Holding] = set()
        #: Claims whose handlers have run for longer than their ``warn_after``.
        self.slow: set[Holding] = set()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Holding]:
        with self._lock:
            return iter(list(self._held.values()))

    def slots(self) -> list[Holding]:
        """Return the claims of jobs, and of a task whose row was taken over from a dead holder."""
        with self._lock:
            return list(self._slots.values())

    def hanging(self) -> list[Holding]:
        """Return the claims whose handlers were asked to stop, and still run long after that."""
        return [holding for holding in tuple(self.hung) if not holding.ended]

    def is_slow(self) -> bool:
        """Whether a handler that was reported as slow still runs."""
        return any(not holding.ended for holding in tuple(self.slow))

    def ended_slots(self) -> int:
        """Count the slots that have ended and wait for their settlement."""
        return sum(holding.ended for holding in self.slots())

    def __contains__(self, claim: Claim) -> bool:
        return claim.fence in self._held

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """Surround a claim statement: until it ends, rows may be ours that are not in here yet."""
        with self._lock:
            self._claiming += 1
            self._generation += 1
        try:
            yield
        except BaseException:
            self.failed_at = self.elapsed()
            raise
        finally:
            with self._lock:
                self._claiming -= 1

    def quiet(self) -> int | None:
        """Return the generation of claims, or None while a claim is under way."""
        with self._lock:
            return None if self._claiming else self._generation

    def add(self, claims: Iterable[Claim], renewed: float) -> list[Holding]:
        """Hold these claims; ``renewed``: the moment before the claim statement was sent."""
        added = [Holding(claim, renewed, self.elapsed) for claim in claims]
        with self._lock:
            for holding in added:
                self._held[holding.claim.fence] = holding
                if holding.is_slot or holding.claim.row.lost_count:
                    self._slots[holding.claim.fence] = holding
        return added

    def remove(self, claims: Iterable[Claim]) -> None:
        """Release these claims; one that is not held counts, too."""
        with self._lock:
            for claim in claims:
                if (holding := self._held.pop(claim.fence, None)) is not None:
                    self._begun += holding.started
                    if not holding.started and holding.outcome == _QUEUED:
                        self.queued_at = self.elapsed()
                self._slots.pop(claim.fence, None)
                self.removed += 1
            self._changed.notify_all()

    def starts(self) -> tuple[int, int]:
        """Return how many attempts have started so far, and how many claims wait for their
        start.
        """
        with self._lock:
            started = sum(holding.started for holding in self._held.values())
            return self._begun + started, len(self._held) - started

    def get(self, claim: Claim) -> Holding | None:
        return self._held.get(claim.fence)

    def has_ended(self, fence: Fence) -> bool:
        """Whether the attempt under this claim has ended here, and waits for its settlement."""
        holding = self._held.get(fence)
        return holding is not None and holding.ended

    def ended_ago(self, claim: Claim) -> EndOfRun:
        """Return when the attempt of a held slot has ended."""
        holding = self._held.get(claim.fence)
        if holding is None or holding.ended_at is None:
            return EndOfRun()
        ago = self.elapsed() - holding.ended_at
        after = holding.ended_at - holding.since
        return EndOfRun(timedelta(seconds=ago), timedelta(seconds=after))

    def wait_empty(self, seconds: float | None) -> bool:
        """Wait until no claim is held; return False if the time ran out first."""
        with self._lock:
            return self._changed.wait_for(lambda: not self._held, seconds)
