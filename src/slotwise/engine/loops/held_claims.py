"""Renew the claims that this worker holds, detect lost ones, and write how attempts ended."""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TypeAlias

from slotwise.engine.loops.service import AT_ONCE, Service, WorkerCommon
from slotwise.engine.loops.stack_answers import StackAnswers
from slotwise.engine.loops.tuning import HANGS_AFTER, LONGEST_STUCK_PAUSE, STUCK_PAUSE
from slotwise.engine.run.active_claims import Holding
from slotwise.model import events
from slotwise.model.events import about
from slotwise.model.records import (
    EARLIEST,
    SUCCEEDED,
    AttemptOutcome,
    Claim,
    Died,
    Failed,
    Gap,
    HandedBack,
    Key,
    Row,
)
from slotwise.model.vocabulary import Outcome, Reason
from slotwise.store.connect.database_errors import describe_error
from slotwise.store.slots.settlements import Settlement
from slotwise.store.slots.tuning import BATCH, MINUTE

logger = logging.getLogger(__name__)

#: Looked up once, as it is asked for each execution.
_SUCCEEDED = Outcome.SUCCEEDED.value


#: Name, slot (None of a task), outcome and reason.
End: TypeAlias = tuple[str, datetime | None, str, str | None]


class Tally:
    """Counts how attempts have ended, until the counter takes it. The settler adds, and the reaper;
    another thread takes.
    """

    def __init__(self) -> None:
        self._ends = Counter[End]()
        self._lock = threading.Lock()
        #: The last claim of a batch, by the database's clock.
        self._at = EARLIEST

    def add(
        self,
        usual: Sequence[Holding],
        others: Sequence[tuple[Holding, str, str | None]],
    ) -> None:
        with self._lock:
            self._ends.update(
                (row.task_name, row.slot if one.is_slot else None, _SUCCEEDED, None)
                for one in usual
                for row in [one.claim.row]
            )
            for one, outcome, reason in others:
                row = one.claim.row
                slot = row.slot if one.is_slot else None
                self._ends[row.task_name, slot, outcome, reason] += 1
            for one in usual[-1:] or [found for found, _, _ in others[-1:]]:
                self._at = one.claim.claimed_at

    def add_dead(self, row: Row, outcome: str, reason: str | None) -> None:
        """Add a slot whose worker has died. Tasks are left out: they end at no known time."""
        if row.has_slot:
            with self._lock:
                self._ends[row.task_name, row.slot, outcome, reason] += 1

    def take(self) -> tuple[Mapping[End, int], datetime]:
        """Return what was added since the last call, and about when."""
        with self._lock:
            taken = self._ends
            self._ends = Counter()
            return taken, self._at


class Settler(Service):
    """The only writer of outcomes in a process; an idle worker settles at once, a busy one all
    that have gathered.
    """

    name = "settler"

    def __init__(self, common: WorkerCommon, *, on_free: Callable[[], None]) -> None:
        super().__init__(common)
        self.tally = Tally()
        self._store = common.store
        self._active_claims = common.active_claims
        self._on_free = on_free
        #: Attempts that have ended. All threads append, the settling thread pops; a deque needs no
        #: lock for that.
        self._ended: deque[Holding] = deque()
        #: Attempts whose outcome could not be written, when it is tried again, in elapsed seconds,
        #: and the next pause.
        self._stuck: dict[Holding, tuple[float, timedelta]] = {}

    def put(
        self, holding: Holding, outcome: AttemptOutcome, *, unstarted: bool = False
    ) -> bool:
        """Queue the outcome of an attempt, from any thread; return whether it counts.

        ``unstarted``: it counts only if the handler has not started, which then never will. Race:
        a handler may end while a shutdown gives it up. The first outcome counts and the second is
        dropped: of two outcomes of one claim in one batch, the later one would win.
        """
        is_first = holding.end(unstarted=unstarted)
        if is_first:
            holding.outcome = outcome
            self._ended.append(holding)
            if not self._wake.is_set():  # cleared before a round looks for work
                self.wake()
        return is_first

    def flush(self) -> None:
        """Settle all queued outcomes in the caller's thread; raise what the database raises."""
        while self.run_once() == AT_ONCE:
            continue

    def run_once(self) -> timedelta | None:
        batch: list[Holding] = []
        with suppress(IndexError):
            while len(batch) < BATCH:
                batch.append(self._ended.popleft())
        try:
            self._settle(self._finish(batch), wait=True)
        except BaseException:
            # Those that are finished are not held any more.
            self._ended.extendleft(
                reversed(
                    [
                        holding
                        for holding in batch
                        if holding.claim in self._active_claims
                    ]
                )
            )
            raise
        stuck = [
            holding
            for holding, (due, _) in self._stuck.items()
            if due <= self.elapsed()
        ][:BATCH]
        self._settle(stuck, wait=False)
        if batch or stuck:
            self._on_free()
        if batch:
            return AT_ONCE
        return (
            timedelta(seconds=min(self._stuck.values())[0] - self.elapsed())
            if self._stuck
            else None
        )

    def _finish(self, batch: list[Holding]) -> list[Holding]:
        """Settle one-time tasks that succeeded, most of a busy queue, in one statement; return the
        others.
        """
        begun = self.elapsed()
        hooked = self._store.settlements.hooks.names
        done = [
            holding
            for holding in batch
            if holding.outcome is SUCCEEDED
            and not holding.is_slot
            and holding.claim.row.task_name not in hooked
        ]
        plain = [holding.claim for holding in done]
        if not plain or not self._store.settlements.finish(plain):
            return batch
        self._active_claims.remove(plain)
        self._tell_sent(len(plain))
        self._tell_settled(begun, done)
        if self.listeners.hear(events.Settled):
            for claim in plain:
                self.listeners.publish(
                    events.Settled(**about(claim), outcome=SUCCEEDED.name)
                )
        if len(done) == len(batch):
            return []
        settled = set(done)
        return [holding for holding in batch if holding not in settled]

    def _settle(self, batch: Sequence[Holding], *, wait: bool) -> None:
        """Write these outcomes and publish their events. ``wait``: for locks.

        An outcome is kept, even beyond its lease, until it is written or refused; the others do
        not wait for it.
        """
        if not batch:
            return
        self._tell_sent(len(batch))
        begun = self.elapsed()
        endings = [(holding.claim, holding.outcome) for holding in batch]
        written = self._store.settlements.settle(
            endings, wait=wait, ended_ago=self._active_claims.ended_ago
        )
        self._active_claims.remove(
            settlement.claim for settlement in written if settlement.error is None
        )
        is_heard = self.listeners.hear(events.Settled)
        ranges = list[tuple[Key, Gap]]()
        usual = list[Holding]()
        others = list[tuple[Holding, str, str | None]]()
        for holding, settlement in zip(batch, written, strict=True):
            if settlement.error is not None:
                self._keep(holding, settlement.error)
                continue
            self._stuck.pop(holding, None)
            done = settlement.transition
            if settlement.is_usual:
                usual.append(holding)
            else:
                label = done.label if done else Outcome.LOST
                others.append((holding, label, settlement.reason))
            if is_heard or not settlement.is_usual:
                ranges += self._tell(holding, settlement)
        if ranges:
            self.listeners.skipped(self.worker, ranges)
        self._tell_settled(begun, usual, others)

    def _keep(self, holding: Holding, error: Exception) -> None:
        """Keep an outcome that cannot be written yet."""
        if holding not in self._stuck:
            key = holding.claim.key
            logger.warning(
                "cannot write the outcome of %s/%s yet, retrying: %s",
                *key,
                describe_error(error),
            )
        _, pause = self._stuck.get(holding, (0.0, STUCK_PAUSE))
        due = self.elapsed() + pause.total_seconds()
        self._stuck[holding] = due, min(2 * pause, LONGEST_STUCK_PAUSE)

    def _tell(self, holding: Holding, settlement: Settlement) -> list[tuple[Key, Gap]]:
        """Publish an outcome, or that the claim was lost; return the slots that do not run."""
        if settlement.transition is None:
            lose(self, holding, "its outcome was refused: another worker has the row")
            return []
        outcome = holding.outcome
        unfit = None
        if isinstance(outcome, Failed) and outcome.reason == Reason.UNREADABLE:
            name = holding.claim.row.task_name
            unfit = self._store.warnings.count(name, "data", again=MINUTE)
        return tell_settled(
            self, settlement, getattr(outcome, "exception", None), unfit
        )

    def _tell_settled(
        self,
        begun: float,
        usual: Sequence[Holding],
        others: Sequence[tuple[Holding, str, str | None]] = (),
    ) -> None:
        self.tally.add(usual, others)
        if self.listeners.hear(events.BatchSettled):
            count = len(usual) + len(others)
            took = timedelta(seconds=self.elapsed() - begun)
            self.listeners.publish(
                events.BatchSettled(
                    worker=self.worker,
                    count=count,
                    took=took,
                    succeeded=usual,
                    others=others,
                )
            )

    def _tell_sent(self, count: int) -> None:
        if self.listeners.hear(events.SettleSent):
            self.listeners.publish(events.SettleSent(worker=self.worker, count=count))


def tell_settled(
    loop: Service,
    settlement: Settlement,
    exception: BaseException | None = None,
    unfit: int | None = None,
) -> list[tuple[Key, Gap]]:
    """Publish what became of a claim; return the slots that do not run."""
    done = settlement.transition
    if (
        done is None
        or (event := events.settlement_event(settlement.claim, done, exception, unfit))
        is None
    ):
        return []
    loop.listeners.publish(event)
    return [(settlement.claim.key, gap) for gap in done.gaps]


def lose(loop: Service, holding: Holding, reason: str) -> None:
    """Treat a claim as taken by another worker, and publish that."""
    holding.lose()
    loop.listeners.publish(
        events.ClaimLostEvent(**about(holding.claim), reason=reason)
    )


class Heartbeat(Service):
    """Renew all held claims with one statement, on a connection of its own."""

    name = "heartbeat"

    def __init__(
        self,
        common: WorkerCommon,
        *,
        sign_in: Callable[[], float | None],
        is_listening: Callable[[], bool] = lambda: False,
    ) -> None:
        """``is_listening``: whether notifications arrive, and ``heed`` is called for them."""
        super().__init__(common)
        self._answer = StackAnswers(common)
        self._is_listening = is_listening
        self._is_told = True
        self._store = common.store
        self._active_claims = common.active_claims
        self._interval = common.interval
        self._lease = common.lease.total_seconds()
        self._sign_in = sign_in
        #: Up to which claim statement the rows were compared with the claims.
        self._compared: int | None = 0

    def run_once(self) -> timedelta:
        sent = self.elapsed()
        held = list(self._active_claims)
        lost = self._store.held.beat(self.worker, [holding.claim for holding in held])
        for holding in held:
            if holding.claim.fence not in lost:
                holding.renew(sent)
            # Race: the settler may have released this row a moment ago; then it is settled, not
            # lost. Between the commit and its reply the claim is still among the active claims. So
            # an attempt that has ended is left to the settler, which learns, and reports, whether
            # the claim was good.
            elif (
                not holding.ended
                and not holding.lost
                and holding.claim in self._active_claims
            ):
                lose(self, holding, "the heartbeat was refused")
        is_in_doubt = sent - self._active_claims.failed_at < self._lease
        if held or is_in_doubt or self._active_claims.quiet() != self._compared:
            self._compare()
        skew = self._sign_in()
        if held and (self._is_told or not self._is_listening()):
            self._is_told = False
            self._answer()
        self.listeners.publish(
            events.HeartbeatSent(
                worker=self.worker,
                count=len(held) - len(lost),
                lost=len(lost),
                skew=skew,
            )
        )
        return max(
            self._interval - timedelta(seconds=self.elapsed() - sent), timedelta(0)
        )

    def heed(self) -> None:
        """Beat now: an operator may have written into a held row, or asked where handlers are."""
        self._is_told = True
        if len(self._active_claims):
            self.wake()

    def _compare(self) -> None:
        """Stop handlers whose slots were cancelled, and hand back rows of ours that are not held:
        a reply was lost.

        Race: a claim may be committed and not yet among the active claims. So nothing is handed
        back unless no claim statement was under way before the query, and none has begun since.
        Only the ledger knows whether the handler of a give-up job has started, so it decides, as
        at a loss.
        """
        generation = self._active_claims.quiet()
        definitions = self._store.definitions
        endings = list[tuple[Claim, AttemptOutcome]]()
        for claim in self._store.held.held_by(self.worker):
            holding = self._active_claims.get(claim)
            if holding is not None:
                self._call_off(holding, claim)
                continue
            known = definitions.get(claim.row.task_name)
            if known is not None:
                back = Died() if known.gives_up else HandedBack(Reason.UNKNOWN)
                endings.append((claim, back))
        if generation is None or self._active_claims.quiet() != generation:
            return
        settlements = self._store.settlements
        for settlement in settlements.settle(endings, wait=False) if endings else ():
            self.listeners.skipped(self.worker, tell_settled(self, settlement))
        self._compared = generation

    @staticmethod
    def _call_off(holding: Holding, claim: Claim) -> None:
        """Stop the handler if its slot was cancelled; ``claim`` has the row as it is now."""
        by = claim.row.called_off_by
        if by is not None and not holding.ended:
            holding.signal.set(by)


class LeaseWatch(Service):
    """Lose claims whose lease runs out, hand back those that could not start within a heartbeat
    interval, stop handlers at their timeout, and report those that do not stop: by the worker's own
    clock, without the database.
    """

    name = "lease_watch"

    def __init__(self, common: WorkerCommon, settler: Settler) -> None:
        super().__init__(common)
        self._active_claims = common.active_claims
        self._settler = settler
        self._interval = common.interval.total_seconds()
        self._next = math.inf
        #: When handlers that still run were seen to be asked to stop, in elapsed seconds: in this
        #: round, and up to the last one.
        self._asked: dict[Holding, float] = {}
        self._asked_before = self._asked

    def limit(
        self,
        holding: Holding,
        timeout: timedelta | None,
        warn_after: timedelta | None = None,
    ) -> None:
        """Stop this attempt ``timeout`` from now, and report it after ``warn_after``.

        Race: a round may have passed this attempt already. Until it ends, each new deadline causes
        another round.
        """
        now = self.elapsed()
        first = math.inf
        if timeout is not None:
            first = holding.deadline = now + timeout.total_seconds()
        if warn_after is not None:
            warn_at = now + warn_after.total_seconds()
            holding.warning = warn_at, warn_after
            first = min(first, warn_at)
        if first < self._next:
            self.wake()

    def run_once(self) -> timedelta:
        """Return the time until the next deadline or end of a lease: a reaper that takes over
        waits for the same.
        """
        self._next = math.inf
        self._asked_before, self._asked = self._asked, {}
        rest = self._interval / 4
        for holding in self._active_claims:
            if not holding.ended:
                rest = min(rest, self._watch(holding))
        self._active_claims.hung &= self._asked.keys()
        slow = self._active_claims.slow
        slow -= {holding for holding in slow if holding.ended}
        self._next = self.elapsed() + rest
        return timedelta(seconds=rest)

    def _watch(self, holding: Holding) -> float:
        """Return the seconds until this claim needs a look."""
        rest = min(self._watch_lease(holding), self._watch_time(holding))
        # A start hook has a thread: handed back, the slot would come again, and wait in another
        # one.
        if (
            not holding.started
            and holding.held is None
            and holding.waited() > self._interval
        ):
            self._settler.put(holding, HandedBack(Reason.QUEUED), unstarted=True)
        if holding.deadline is not None:
            until = holding.deadline - self.elapsed()
            if until > 0:
                return min(rest, until)
            holding.deadline = None
            holding.signal.set(Reason.TIMEOUT)
        return min(rest, self._watch_stop(holding))

    def _watch_time(self, holding: Holding) -> float:
        """Report a handler that runs for long, once; return the seconds until that is due."""
        if holding.warning is None:
            return math.inf
        warn_at, warn_after = holding.warning
        until = warn_at - self.elapsed()
        if until > 0:
            return until
        holding.warning = None
        self._active_claims.slow.add(holding)
        self.listeners.publish(
            events.HandlerSlow(**about(holding.claim), warn_after=warn_after)
        )
        return math.inf

    def _watch_lease(self, holding: Holding) -> float:
        left = holding.left()
        if left <= 0:
            if not holding.signal.is_set:
                lose(self, holding, "the lease ran out without a heartbeat")
            return math.inf
        if left < self._interval and not holding.suspected:
            holding.suspected = True
            self.listeners.publish(events.ClaimSuspect(**about(holding.claim)))
        return left

    def _watch_stop(self, holding: Holding) -> float:
        """Report a handler that does not stop, once; return the seconds until that is due."""
        reason = holding.stop_reason
        if reason is None or not holding.started:
            return math.inf
        now = self.elapsed()
        self._asked[holding] = self._asked_before.get(holding, now)
        asked = now - self._asked[holding]
        if asked < HANGS_AFTER:
            return HANGS_AFTER - asked
        if holding in self._active_claims.hung:
            return math.inf
        self._active_claims.hung.add(holding)
        self.listeners.publish(
            events.HandlerHangs(
                **about(holding.claim), reason=reason, asked=timedelta(seconds=asked)
            )
        )
        return math.inf
