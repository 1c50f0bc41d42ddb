"""Renew claims, detect lost ones, and find rows that this worker holds without knowing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import timedelta

from slotwise.engine.loops.service import Common, Service
from slotwise.engine.loops.settler import Settler, settlement_events
from slotwise.engine.run.active_claims import ActiveClaims, Holding
from slotwise.model.events import ClaimLostEvent, ClaimSuspect, HeartbeatSent, about
from slotwise.model.records import AttemptOutcome, Claim, Died, HandedBack
from slotwise.model.vocabulary import Reason
from slotwise.store.slots.store import Store


class Heartbeat(Service):
    """Renew all held claims with one statement, on a connection of its own."""

    name = "heartbeat"

    def __init__(
        self,
        common: Common,
        store: Store,
        active_claims: ActiveClaims,
        *,
        interval: timedelta,
        sign_in: Callable[[], float | None] = lambda: None,
    ) -> None:
        super().__init__(common)
        self._store = store
        self._active_claims = active_claims
        self._interval = interval
        self._sign_in = sign_in

    def run_once(self) -> timedelta:
        sent = self.elapsed()
        held = list(self._active_claims)
        lost = self._store.held.beat(self.worker, [holding.claim for holding in held])
        for holding in held:
            if holding.claim.fence in lost:
                self._lose(holding)
            else:
                holding.renew(sent)
        generation = self._active_claims.quiet()
        standing = self._store.held.held_by(self.worker)
        self._obey(standing)
        self._hand_back_unknown(generation, standing)
        skew = self._sign_in()
        self.listeners.publish(
            HeartbeatSent(worker=self.worker, count=len(held) - len(lost), lost=len(lost), skew=skew)
        )
        return max(self._interval - timedelta(seconds=self.elapsed() - sent), timedelta(0))

    def _lose(self, holding: Holding) -> None:
        """Mark a claim as lost.

        Race: the settler may have released this row a moment ago; then it is settled, not lost. Between the commit
        and its reply the claim is still among the active claims. So an attempt that has ended is left to the settler,
        which learns, and reports, whether the claim was good.
        """
        if holding.ended or holding.lost or holding.claim not in self._active_claims:
            return
        holding.lose()
        self.listeners.publish(ClaimLostEvent(**about(holding.claim), reason="the heartbeat was refused"))

    def _obey(self, standing: Sequence[Claim]) -> None:
        """Signal handlers whose slots an operator, or a newer slot, has cancelled since the claim."""
        for claim in standing:
            holding, by = self._active_claims.get(claim), claim.row.called_off_by
            if by is not None and holding is not None and not holding.ended:
                holding.signal.set(by)

    def _hand_back_unknown(self, generation: int | None, standing: Sequence[Claim]) -> None:
        """Hand back rows under our boot id that we neither hold nor are claiming: a claim's reply was lost.

        Race: a claim may be committed and not yet among the active claims. So nothing is handed back unless no claim
        statement was under way before the query (``generation``), and none has begun since. Only the ledger knows
        whether the handler of a give-up job has started, so it decides, as at a loss.
        """
        unknown = [claim for claim in standing if claim not in self._active_claims]
        if not unknown or generation is None or self._active_claims.quiet() != generation:
            return
        definitions = self._store.definitions
        endings: list[tuple[Claim, AttemptOutcome]] = [
            (claim, Died() if definitions[claim.row.task_name].gives_up else HandedBack(Reason.UNKNOWN))
            for claim in unknown
            if claim.row.task_name in definitions
        ]
        for settlement in self._store.settlements.settle(endings, wait=False):
            for event in settlement_events(settlement):
                self.listeners.publish(event)


class LeaseWatch(Service):
    """Give up claims whose lease runs out while heartbeats fail, and stop handlers at their timeout; no database.

    It also hands back claims that could not start within a heartbeat interval: a handler that blocks the event loop
    keeps them from starting. All by the worker's own clock.
    """

    name = "lease-watch"

    def __init__(self, common: Common, active_claims: ActiveClaims, settler: Settler, *, interval: timedelta) -> None:
        super().__init__(common)
        self._active_claims = active_claims
        self._settler = settler
        self._interval = interval.total_seconds()
        self._next = math.inf

    def limit(self, holding: Holding, timeout: timedelta) -> None:
        """Stop this attempt ``timeout`` from now.

        Race: a round may have passed this attempt already. Until it ends, each new deadline causes another round.
        """
        holding.deadline = self.elapsed() + timeout.total_seconds()
        if holding.deadline < self._next:
            self.wake()

    def run_once(self) -> timedelta:
        """Return the time until the next deadline or end of a lease: a reaper that takes over waits for the same."""
        self._next = math.inf
        rest = self._interval / 4
        for holding in self._active_claims:
            if not holding.ended:
                rest = min(rest, self._watch(holding))
        self._next = self.elapsed() + rest
        return timedelta(seconds=rest)

    def _watch(self, holding: Holding) -> float:
        """Return the seconds until this claim needs a look."""
        rest = left = holding.left()
        if left <= 0:
            rest = math.inf
            if not holding.signal.is_set:
                holding.lose()
                reason = "the lease ran out without a heartbeat"
                self.listeners.publish(ClaimLostEvent(**about(holding.claim), reason=reason))
        elif left < self._interval and not holding.suspected:
            holding.suspected = True
            self.listeners.publish(ClaimSuspect(**about(holding.claim)))
        if not holding.started and holding.waited() > self._interval:
            self._settler.put(holding, HandedBack(Reason.QUEUED), unstarted=True)
        if holding.deadline is not None and (until := holding.deadline - self.elapsed()) > 0:
            rest = min(rest, until)
        elif holding.deadline is not None:
            holding.deadline = None
            holding.signal.set(Reason.TIMEOUT)
        return rest
