"""Run one slot of a job in the foreground, of its own and now: a trigger that is claimed before
other workers see it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from queue import Empty, SimpleQueue

from slotwise.engine.process.tuning import HANDLER_PATIENCE
from slotwise.engine.run.active_claims import Holding
from slotwise.engine.worker import Worker
from slotwise.errors import ClaimLost, ConfigurationError, JobCancelled, UnknownTask
from slotwise.jobs.definition import Definition
from slotwise.model.events import (
    AttemptEvent,
    ClaimLostEvent,
    Event,
    HandedBackEvent,
    Settled,
)
from slotwise.model.records import Aborted, Claim
from slotwise.model.vocabulary import Outcome, Reason
from slotwise.store.operations.slot_operations import claim_trigger
from slotwise.store.reading import slots
from slotwise.store.slots.claims import Taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the slot ended. ``reason`` is ``retry`` if a worker makes another attempt.

    ``left_behind``: the handler did not stop when asked, and still runs in this process.
    """

    job: str
    slot: datetime
    attempt: int
    token: int
    outcome: str
    reason: str | None
    error: str | None
    took: timedelta
    left_behind: bool = False

    @property
    def succeeded(self) -> bool:
        return self.outcome == Outcome.SUCCEEDED


class SingleRun:
    """Run one slot of ``job`` with ``worker``, which must not have been started."""

    def __init__(self, worker: Worker, job: Definition) -> None:
        self.worker = worker
        self._job = job
        self._elapsed = worker.clock.elapsed
        self._ends: SimpleQueue[Settled | HandedBackEvent | ClaimLostEvent] = (
            SimpleQueue()
        )
        self._cancelled: float | None = None
        self._holding: Holding | None = None
        worker.listeners.add(self._listen)

    def run(self) -> Ended:
        """Claim, run and settle the slot; return how it ended. A failed handler is a value, not an
        exception.

        Raise what a worker's start raises, DatabaseUnreachable, JobCancelled if a stop was
        requested before the claim, and ClaimLost if the slot was taken over while it ran.
        """
        worker = self.worker
        worker.sign_in.verify()
        try:
            worker.mind()
            if self._cancelled is not None:  # while entering the lifespan
                name = self._job.name
                raise JobCancelled(
                    f"job {name!r} was asked to stop before it had started: nothing was claimed"
                )
            begun = self._elapsed()
            self._holding = self._claim()
            claim = self._holding.claim
            if self._cancelled is not None:
                self._holding.signal.set(Reason.OPERATOR)  # requested before the claim
            left_behind = self._wait(self._holding)
            end = None
            with suppress(Empty):
                end = self._ends.get(timeout=HANDLER_PATIENCE.total_seconds())
        finally:
            worker.close()
        return self._ended(
            claim, end, timedelta(seconds=self._elapsed() - begun), left_behind
        )

    def cancel(self) -> None:
        """Ask the handler to stop; a second call stops waiting for it. From any thread."""
        if self._cancelled is not None:
            self._cancelled = 0.0
            return
        self._cancelled = self._elapsed() + HANDLER_PATIENCE.total_seconds()
        self.worker.cancel()  # cancels a lifespan that is being entered, and bounds its exit
        if self._holding is not None:
            self._holding.signal.set(Reason.OPERATOR)

    def _claim(self) -> Holding:
        """Claim and start the slot. A job without a row is planned first; an existing row stays
        as it is.
        """
        worker = self.worker
        job = self._job

        def claim() -> Taken:
            found = claim_trigger(
                worker.store,
                worker.name,
                job.name,
                lease=worker.settings.lease,
                strict=job.gives_up,
            )
            return Taken(0, [], []) if found is None else Taken(1, [found], [])

        for _ in range(2):
            try:
                _, held = worker.poller.hold(claim)
            except UnknownTask:
                worker.sign_in.plan(only=job.name)
            else:
                if held:
                    return held[0]
        raise ConfigurationError(
            f"job {job.name!r} could not be triggered; something deletes rows of its table"
        )

    def _wait(self, holding: Holding) -> bool:
        """Wait until the slot is settled; return True if its handler was left behind."""
        active_claims = self.worker.active_claims
        while not active_claims.wait_empty(0.05):
            if self._cancelled is not None and self._elapsed() >= self._cancelled:
                self.worker.settler.put(holding, Aborted(Reason.OPERATOR))
                return (
                    not active_claims.wait_empty(HANDLER_PATIENCE.total_seconds())
                    or True
                )
        return False

    def _listen(self, event: Event) -> None:
        if isinstance(event, Settled | HandedBackEvent | ClaimLostEvent):
            holding = self._holding
            if (
                isinstance(event, ClaimLostEvent)
                and holding is not None
                and holding.claim in self.worker.active_claims
            ):
                return  # reported early, by a heartbeat; the settlement reports it again
            self._ends.put(event)

    def _ended(
        self,
        claim: Claim,
        end: AttemptEvent | None,
        took: timedelta,
        left_behind: bool,
    ) -> Ended:
        slot = claim.slot
        assert slot is not None  # a triggered job has one
        if not isinstance(end, Settled | HandedBackEvent):
            raise ClaimLost(
                f"job {claim.row.task_name!r}: the claim was lost; another worker "
                f"may run slot {slot}"
            )
        line = slots.slot(self.worker.store, claim.row.task_name, slot)
        return Ended(
            job=claim.row.task_name,
            slot=slot,
            attempt=claim.row.attempt,
            token=claim.token,
            outcome=end.outcome,
            reason=end.reason,
            error=line.error if line else None,
            took=took,
            left_behind=left_behind,
        )
