"""Run one slot of a job in the foreground: claimed before other workers see it, run, settled, reported."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from slotwise.engine.run.active_claims import Holding
from slotwise.engine.worker import Worker
from slotwise.errors import ClaimLost, ConfigurationError, JobCancelled, UnknownTask
from slotwise.jobs.definition import Definition
from slotwise.model.events import AttemptEvent, ClaimLostEvent, Event, HandedBackEvent, Settled
from slotwise.model.records import Aborted, Claim
from slotwise.model.vocabulary import Outcome, Reason, Release
from slotwise.store.operations.slot_operations import claim_trigger
from slotwise.store.reading.reader import Reader

#: How long a handler may take to stop before it is left behind.
PATIENCE = timedelta(seconds=5)


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
    """Run one slot of ``name`` with ``worker``, which must not have been started."""

    def __init__(self, worker: Worker, name: str) -> None:
        self.worker = worker
        self._definition = definition_of(worker, name)
        self._elapsed = worker.clock.elapsed
        self._end: AttemptEvent | None = None
        self._told = threading.Event()
        self._cancelled: float | None = None
        self._holding: Holding | None = None
        worker.listeners.add(self._listen)

    def run(self) -> Ended:
        """Claim, run and settle the slot; return how it ended. A failed handler is a value, not an exception.

        Raise what a worker's start raises, DatabaseUnreachable, JobCancelled if a stop was requested before the claim,
        and ClaimLost if the slot was taken over while it ran.
        """
        worker = self.worker
        worker.entrance.verify()
        with worker.minding():
            if self._cancelled is not None:  # while entering the lifespan
                name = self._definition.name
                raise JobCancelled(f"job {name!r} was asked to stop before it had started: nothing was claimed")
            with worker.active_claims.claiming():  # else a heartbeat would find an unknown row and hand it back
                claim, begun = self._claim()
                self._holding = worker.poller.adopt(claim, begun)
            if self._cancelled is not None:
                self._holding.signal.set(Reason.OPERATOR)  # requested before the claim
            left_behind = self._wait(self._holding)
            self._told.wait(PATIENCE.total_seconds())
        return self._ended(claim, timedelta(seconds=self._elapsed() - begun), left_behind)

    def cancel(self) -> None:
        """Ask the handler to stop; a second call stops waiting for it. From any thread."""
        if self._cancelled is not None:
            self._cancelled = 0.0
            return
        self._cancelled = self._elapsed() + PATIENCE.total_seconds()
        self.worker.cancel()  # cancels a lifespan that is being entered, and bounds its exit
        if self._holding is not None:
            self._holding.signal.set(Reason.OPERATOR)

    def _claim(self) -> tuple[Claim, float]:
        """Return the claim, and when its statement was sent, in elapsed seconds.

        A job without a row is planned first; an existing row stays as it is.
        """
        worker, job = self.worker, self._definition
        for _ in range(2):
            begun = self._elapsed()  # the claim has not waited during planning
            try:
                claim = claim_trigger(
                    worker.store, worker.name, job.name, lease=worker.settings.lease, strict=job.gives_up
                )
            except UnknownTask:
                worker.entrance.plan(only=job.name)
                continue
            if claim is not None:
                return claim, begun
        raise ConfigurationError(f"job {job.name!r} could not be triggered; something deletes rows of its table")

    def _wait(self, holding: Holding) -> bool:
        """Wait until the slot is settled; return True if its handler was left behind."""
        active_claims = self.worker.active_claims
        while not active_claims.wait_empty(0.05):
            if self._cancelled is not None and self._elapsed() >= self._cancelled:
                self.worker.settler.put(holding, Aborted(Reason.OPERATOR))
                return not active_claims.wait_empty(PATIENCE.total_seconds()) or True
        return False

    def _listen(self, event: Event) -> None:
        if isinstance(event, Settled | HandedBackEvent | ClaimLostEvent) and self._end is None:
            holding = self._holding
            if isinstance(event, ClaimLostEvent) and holding is not None and holding.claim in self.worker.active_claims:
                return  # reported early, by a heartbeat; the settlement reports it again
            self._end = event
            self._told.set()

    def _ended(self, claim: Claim, took: timedelta, left_behind: bool) -> Ended:
        end, slot = self._end, claim.slot
        assert slot is not None  # a triggered job has one
        if not isinstance(end, Settled | HandedBackEvent):
            raise ClaimLost(f"job {claim.row.task_name!r}: the claim was lost; another worker may run slot {slot}")
        line = Reader(self.worker.store).slot(claim.row.task_name, slot)
        return Ended(
            job=claim.row.task_name,
            slot=slot,
            attempt=claim.row.attempt,
            token=claim.token,
            outcome=end.outcome if isinstance(end, Settled) else Release.HANDED_BACK,
            reason=end.reason,
            error=line.error if line else None,
            took=took,
            left_behind=left_behind,
        )


def definition_of(worker: Worker, name: str) -> Definition:
    """Return a job of the worker. Raise UnknownTask for no task, and ConfigurationError for a one-time task."""
    definition = worker.definitions.get(name)
    if definition is None:
        raise UnknownTask(_unknown(name, worker.definitions))
    if not definition.is_job:
        raise ConfigurationError(f"{name!r} is a one-time task; schedule it: registry.client.schedule({name!r}, …)")
    return definition


def _unknown(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    cure = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
    return f"no job {name!r} in this registry; {cure}"
