"""Do what the claim planner plans: claim due rows, slots and one-time tasks, and hand them to the runner."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from datetime import timedelta
from typing import TypeVar, Unpack

from slotwise.engine.loops.claim_planner import (
    Begin,
    ClaimPlanner,
    ClaimSlots,
    ClaimTasks,
    Facts,
    FindDue,
    GiveWay,
    Look,
    PassOn,
    Peers,
    Step,
)
from slotwise.engine.loops.service import Service, ServiceOptions
from slotwise.engine.run.active_claims import ActiveClaims, Holding
from slotwise.engine.run.runner import Runner
from slotwise.model.events import Claimed, PollBegan, about, skipped
from slotwise.model.records import Claim, Gap, Row
from slotwise.store.slots.store import Store

T = TypeVar("T")


class Poller(Service):
    """Claim due rows and sleep, as ``ClaimPlanner`` plans."""

    name = "poller"

    def __init__(
        self,
        store: Store,
        active_claims: ActiveClaims,
        *,
        names: Sequence[str],
        lease: timedelta,
        poll_interval: timedelta,
        runner: Runner,
        peers: Peers,
        pass_on: Callable[[], None],
        **service: Unpack[ServiceOptions],
    ) -> None:
        super().__init__(**service)
        self._store = store
        self._active_claims = active_claims
        self._lease = lease
        self._runner = runner
        self._pass_on = pass_on
        self._planner = ClaimPlanner(
            names, store.definitions, active_claims, capacity=runner.capacity, runs_ahead=runner.runs_ahead,
            margin=runner.margin, poll_interval=poll_interval, peers=peers, now=self.elapsed(),
        )  # fmt: skip

    def run_once(self) -> timedelta:
        return self._follow(self._planner.round(self._facts()))

    def claim(self, limit: int) -> int:
        """Claim up to ``limit`` due rows, slots first, hand them to the runner, and return how many were found."""
        return self._follow(self._planner.claim(limit, self.elapsed()))

    def wake_for(self, names: Collection[str]) -> None:
        """Wake the poller: rows of these tasks are due, or soon will be."""
        self._planner.woken_for(names)
        self.wake()

    def look(self) -> None:
        """Wake the poller after the end of an attempt; a worker that drains wakes the others instead."""
        if self._runner.is_draining:
            self._pass_on()
        else:
            self._planner.woken_by_an_end()
            self.wake()

    def adopt(self, claim: Claim, before: float) -> Holding:
        """Run a claim that was made elsewhere; ``before``: elapsed seconds when its statement was sent."""
        held = self._active_claims.add([claim], before)
        self._start(held)
        return held[0]

    def _facts(self) -> Facts:
        runner, active_claims = self._runner, self._active_claims
        return Facts(
            self.elapsed(), runner.free(), len(active_claims), active_claims.removed,
            self._store.claims.slots_may_be_due, runner.is_draining,
        )  # fmt: skip

    def _follow(self, steps: Generator[Step, float, T]) -> T:
        """Do the steps of a plan one by one, and return its result."""
        try:
            step = next(steps)
            while True:
                self._do(step)
                step = steps.send(self.elapsed())
        except StopIteration as end:
            result: T = end.value
            return result

    def _do(self, step: Step) -> None:
        match step:
            case Look():
                step.due = self._store.due.next_due(step.names, step.tasks, lost=self._lost())
            case FindDue():
                step.due = self._store.due.due_tasks(step.names)
            case ClaimSlots():
                step.found = self._claim_slots(step)
            case ClaimTasks():
                step.claims = self._claim_tasks(step)
            case Begin():
                if self.listeners.hear(PollBegan):
                    self.listeners.publish(PollBegan(worker=self.worker, capacity=step.capacity))
            case PassOn():
                self._pass_on()
            case GiveWay():
                self._give_way()

    def _claim_slots(self, step: ClaimSlots) -> int:
        before = self.elapsed()  # the lease counts from before the statement was sent
        with self._active_claims.claiming():
            found, claims = self._store.claims.claim_slots(
                self.worker, step.limit, lease=self._lease, names=step.names, lost=self._lost(),
                on_skipped=self._tell_skipped,
            )  # fmt: skip
            held = self._active_claims.add(claims, before)
        self._start(held)
        return found

    def _claim_tasks(self, step: ClaimTasks) -> list[Claim]:
        before = self.elapsed()
        with self._active_claims.claiming():
            claims = self._store.claims.claim_tasks(
                self.worker, step.limit, lease=self._lease, names=step.names, ranges=step.ranges
            )
            held = self._active_claims.add(claims, before)
        self._start(held)
        return claims

    def _lost(self) -> int:
        """Return how many rows of dead holders may be claimed: one, and none beside another fresh one.

        One of these rows may have killed its holder; claimed together, it would take its neighbours down again.
        """
        return int(not any(holding.waited() < self._lease for holding in self._active_claims.lost_before()))

    def _tell_skipped(self, row: Row, gap: Gap) -> None:
        self.listeners.publish(skipped(self.worker, row.key, gap))

    def _start(self, held: Sequence[Holding]) -> None:
        if self.listeners.hear(Claimed):
            for holding in held:
                self.listeners.publish(Claimed(**about(holding.claim)))
        self._runner.start(held, first=bool(held) and held[0].is_slot)
