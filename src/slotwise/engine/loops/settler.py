"""Write how attempts ended: all outcomes that have gathered go in one transaction, then the next batch follows.

There is no timer: an idle worker settles at once, a busy one batches by itself.
"""

from __future__ import annotations

import logging
import shlex
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta

from slotwise.engine.loops.service import AT_ONCE, Common, Service
from slotwise.engine.run.active_claims import ActiveClaims, Holding
from slotwise.errors import SlotwiseError
from slotwise.jobs.policies import growing_pauses
from slotwise.model.error_text import error_summary
from slotwise.model.events import (
    ClaimLostEvent,
    HandedBackEvent,
    Settled,
    SettledDead,
    SettleSent,
    SlotsSkipped,
    about,
    skipped,
)
from slotwise.model.records import RECURRING, SUCCEEDED, AttemptOutcome, Claim
from slotwise.model.vocabulary import Outcome, Release
from slotwise.store.connect.database_errors import describe
from slotwise.store.slots.claims import BATCH
from slotwise.store.slots.settlements import Settlement
from slotwise.store.slots.store import Store

logger = logging.getLogger(__name__)

#: First and longest pause of an outcome that could not be written though others could, e.g. on a locked row.
STUCK_PAUSES = timedelta(milliseconds=100), timedelta(seconds=5)


class Settler(Service):
    """The only writer of outcomes in a process; frees capacity when the write is confirmed."""

    name = "settler"

    def __init__(
        self,
        common: Common,
        store: Store,
        active_claims: ActiveClaims,
        *,
        on_free: Callable[[], None],
    ) -> None:
        super().__init__(common)
        self._store = store
        self._active_claims = active_claims
        self._on_free = on_free
        #: Attempts that have ended. All threads append, the settling thread pops; a deque needs no lock for that.
        self._ended: deque[Holding] = deque()
        #: Attempts whose outcome could not be written: when it is tried again, in elapsed seconds, and later pauses.
        self._stuck: dict[Holding, tuple[float, Iterator[timedelta]]] = {}

    def put(self, holding: Holding, outcome: AttemptOutcome, *, unstarted: bool = False) -> bool:
        """Queue the outcome of an attempt, from any thread; return whether it counts.

        ``unstarted``: it counts only if the handler has not started, which then never will.
        Race: a handler may end while a shutdown gives it up. The first outcome counts and the second is dropped: of
        two outcomes of one claim in one batch, the later one would win.
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
        batch = self._take()
        try:
            failed = self._settle(self._finish(batch), wait=True)
        except BaseException:
            # Those that are finished are not held any more.
            self._ended.extendleft(reversed([holding for holding in batch if holding.claim in self._active_claims]))
            raise
        for holding, error in failed.items():
            logger.warning("cannot write the outcome of %s/%s yet, retrying: %s", *holding.claim.key, error)
            self._put_aside(holding, growing_pauses(*STUCK_PAUSES))
        stuck = [holding for holding, (due, _) in self._stuck.items() if due <= self.elapsed()][:BATCH]
        if stuck:
            self._retry(stuck)
        if batch or stuck:
            self._on_free()
        if batch:
            return AT_ONCE
        return min((timedelta(seconds=due - self.elapsed()) for due, _ in self._stuck.values()), default=None)

    def _take(self) -> list[Holding]:
        batch: list[Holding] = []
        with suppress(IndexError):
            while len(batch) < BATCH:
                batch.append(self._ended.popleft())
        return batch

    def _finish(self, batch: list[Holding]) -> list[Holding]:
        """Settle one-time tasks that succeeded, most of a busy queue, in one statement; return the others."""
        plain = [holding.claim for holding in batch if holding.outcome is SUCCEEDED and not holding.is_slot]
        if not plain or not self._store.settlements.finish(plain):
            return batch
        self._active_claims.remove(plain)
        self._tell_of(len(plain))
        if self.listeners.hear(Settled):
            for claim in plain:
                self.listeners.publish(Settled(**about(claim), outcome=SUCCEEDED.name))
        return [holding for holding in batch if holding.outcome is not SUCCEEDED or holding.is_slot]

    def _retry(self, stuck: Sequence[Holding]) -> None:
        """Retry without waiting for locks. An outcome is kept, even beyond its lease, until written or refused."""
        failed = self._settle(stuck, wait=False)
        for holding in stuck:
            _, pauses = self._stuck.pop(holding)
            if holding in failed:
                self._put_aside(holding, pauses)

    def _put_aside(self, holding: Holding, pauses: Iterator[timedelta]) -> None:
        self._stuck[holding] = self.elapsed() + next(pauses).total_seconds(), pauses

    def _settle(self, batch: Sequence[Holding], *, wait: bool) -> dict[Holding, str]:
        """Write these outcomes and publish their events; return those that cannot be written yet, with the error.

        The others do not wait for them. An event without a listener is not created.
        """
        failed: dict[Holding, str] = {}
        if not batch:
            return failed
        self._tell_of(len(batch))
        endings = [(holding.claim, holding.outcome) for holding in batch]
        written = self._store.settlements.settle(endings, wait=wait, ended_ago=self._active_claims.ended_ago)
        self._active_claims.remove(settlement.claim for settlement in written if settlement.error is None)
        is_heard = self.listeners.hear(Settled)
        for holding, settlement in zip(batch, written, strict=True):
            if settlement.error is not None:
                failed[holding] = describe(settlement.error)
            elif is_heard or not settlement.is_usual:
                self._tell(holding, settlement)
        return failed

    def _tell_of(self, count: int) -> None:
        if self.listeners.hear(SettleSent):
            self.listeners.publish(SettleSent(worker=self.worker, count=count))

    def _tell(self, holding: Holding, settlement: Settlement) -> None:
        if settlement.transition is None:
            holding.lose()
            reason = "its outcome was refused: another worker has the row"
            self.listeners.publish(ClaimLostEvent(**about(settlement.claim), reason=reason))
            return
        for event in settlement_events(settlement):
            self.listeners.publish(event)


def settlement_events(settlement: Settlement) -> list[Settled | HandedBackEvent | SlotsSkipped]:
    """Return the events of a settlement."""
    claim, transition = settlement.claim, settlement.transition
    if transition is None:
        return []
    record = transition.record or transition.ended
    reason = settlement.reason
    if transition.label == Release.HANDED_BACK:
        return [HandedBackEvent(**about(claim), reason=reason or "handed back")]
    error = (record.error if record else None) or (transition.row or {}).get("last_error")
    told = error_summary(error) if error else None
    settled = Settled(**about(claim), outcome=transition.label, reason=reason, error=told)
    if transition.label == Outcome.DEAD:
        settled = SettledDead(**about(claim), outcome=Outcome.DEAD, reason=reason, error=told, cure=_cure(claim))
    return [settled, *(skipped(claim.holder, claim.row.key, gap) for gap in transition.gaps)]


def _cure(claim: Claim) -> str:
    """Return the command that retries a dead task or a job's dead slot, or shows an instance's dead slot."""
    row, instance = claim.row, claim.row.plan_instance or claim.row.task_instance
    program = SlotwiseError.program.split()
    if claim.slot is None:
        return shlex.join([*program, "tasks", "retry", row.task_name, instance])
    if instance != RECURRING:
        return shlex.join([*program, "slots", row.task_name, "--id", instance])
    return shlex.join([*program, "retry", row.task_name, claim.slot.isoformat()])
