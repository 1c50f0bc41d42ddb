"""Keeps claims alive, learns which are lost, and finds rows that this worker holds without knowing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from slotwise.engine.loops.service import Service
from slotwise.engine.loops.settler import settlement_events
from slotwise.engine.run.active_claims import ActiveClaims, Holding
from slotwise.model.events import ClaimLostEvent, ClaimSuspect, HeartbeatSent, about
from slotwise.model.records import AttemptOutcome, Claim, Died, HandedBack
from slotwise.model.vocabulary import Reason
from slotwise.store.slots.store import Store


class Heartbeat(Service):
    """One statement for all held claims, on a connection that nothing else can take."""

    name = "heartbeat"

    def __init__(
        self,
        store: Store,
        active_claims: ActiveClaims,
        *,
        interval: timedelta,
        sign_in: Callable[[], float | None] = lambda: None,
        **service: Any,
    ) -> None:
        super().__init__(**service)
        self._store = store
        self._active_claims = active_claims
        self._interval = interval
        self._sign_in = sign_in

    def run_once(self) -> timedelta:
        sent = self.elapsed()
        held = list(self._active_claims)
        lost = self._store.beat(self.worker, [holding.claim for holding in held])
        for holding in held:
            if holding.claim.fence in lost:
                self._lose(holding)
            else:
                holding.renew(sent)
        if held or self._active_claims.in_doubt:
            self._look_at_rows()
        skew = self._sign_in()
        self.listeners.publish(
            HeartbeatSent(worker=self.worker, count=len(held) - len(lost), lost=len(lost), skew=skew)
        )
        return max(self._interval - timedelta(seconds=self.elapsed() - sent), timedelta(0))

    def _look_at_rows(self) -> None:
        """What orders stand in those that are held, and which are held that nobody here knows of."""
        generation = self._active_claims.quiet()
        standing = self._store.held_by(self.worker)
        self._obey(standing)
        if generation is not None:
            self._hand_back_unknown(generation, standing)
            self._active_claims.trust(generation)

    def _lose(self, holding: Holding) -> None:
        """Race: the settler may have let this row go a moment ago; then it is settled, not lost.

        Between its commit and its reply the claim is still in the holdings. So an attempt that has ended is left
        to the settler, which will learn, and tell, whether the claim was good.
        """
        if holding.ended or holding.lost or holding.claim not in self._active_claims:
            return
        holding.lose()
        self.listeners.publish(ClaimLostEvent(**about(holding.claim), reason="the heartbeat was refused"))

    def _obey(self, standing: Sequence[Claim]) -> None:
        """Tell handlers whose slots an operator, or a newer slot, has called off since they were claimed."""
        for claim in standing:
            holding, by = self._active_claims.get(claim), claim.row.called_off_by
            if by is not None and holding is not None and not holding.ended:
                holding.signal.set(by)

    def _hand_back_unknown(self, generation: int, standing: Sequence[Claim]) -> None:
        """Rows under our boot id that we neither hold nor are claiming: a claim's reply was lost. They go back.

        Race: a claim may be committed and not yet in the holdings. So nothing is handed back unless no claim
        statement was under way before the look, and none has begun since.
        """
        unknown = [claim for claim in standing if claim not in self._active_claims]
        if not unknown or self._active_claims.quiet() != generation:
            return
        unknown = [claim for claim in unknown if claim.row.task_name in self._store.definitions]
        endings = [(claim, self._end_of_unknown(claim)) for claim in unknown]
        for settlement in self._store.settle(endings, wait=False):
            for event in settlement_events(settlement):
                self.listeners.publish(event)

    def _end_of_unknown(self, claim: Claim) -> AttemptOutcome:
        """Whether the handler of a job that gives up has started, only the ledger says: it decides, as at a loss."""
        if self._store.definitions[claim.row.task_name].gives_up:
            return Died()
        return HandedBack(Reason.UNKNOWN)


class LeaseWatch(Service):
    """Stops believing in claims whose lease runs out while heartbeats fail; needs no database.

    Gives back, too, what could not start within a heartbeat interval: whoever blocks the event loop keeps it from
    starting, and from looking at its queue.
    """

    name = "lease-watch"

    def __init__(
        self,
        active_claims: ActiveClaims,
        *,
        interval: timedelta,
        hand_back: Callable[[Holding, str], bool],
        **service: Any,
    ) -> None:
        super().__init__(**service)
        self._active_claims = active_claims
        self._interval = interval
        self._hand_back = hand_back

    def run_once(self) -> timedelta:
        """Again when the next lease runs out: whoever takes over waits for the same moment, and not longer."""
        rest = self._interval / 4
        for holding in self._active_claims:
            if not holding.ended:
                self._watch(holding)
                rest = rest if holding.lost else min(rest, holding.lease_left())
        return rest

    def _watch(self, holding: Holding) -> None:
        if holding.lost and not holding.signal.is_set:
            holding.lose()
            reason = "the lease ran out without a heartbeat"
            self.listeners.publish(ClaimLostEvent(**about(holding.claim), reason=reason))
        elif holding.is_suspect(self._interval) and not holding.suspected:
            holding.suspected = True
            self.listeners.publish(ClaimSuspect(**about(holding.claim)))
        if not holding.started and holding.waited() > self._interval:
            self._hand_back(holding, Reason.QUEUED)
