"""Write how attempts ended: all outcomes that have gathered go in one transaction, then the next batch follows.

There is no timer: an idle worker settles at once, a busy one batches by itself.
"""

from __future__ import annotations

import logging
import shlex
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias, Unpack

from slotwise.engine.loops.service import AT_ONCE, Service, ServiceOptions
from slotwise.engine.run.active_claims import ActiveClaims, Holding
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
from slotwise.model.records import RECURRING, SUCCEEDED, AttemptOutcome, Claim, HandedBack
from slotwise.model.vocabulary import Outcome, Release
from slotwise.store.connect.database_errors import describe
from slotwise.store.slots.claims import BATCH
from slotwise.store.slots.settlements import Settlement
from slotwise.store.slots.store import Store

logger = logging.getLogger(__name__)

#: First and longest pause of an outcome that could not be written though others could, e.g. on a locked row.
STUCK_PAUSES = timedelta(milliseconds=100), timedelta(seconds=5)

Ending: TypeAlias = tuple[Holding, AttemptOutcome]


@dataclass(slots=True, eq=False)
class _Aside:
    """An outcome that waits for its next attempt to be written, at ``due`` elapsed seconds."""

    ending: Ending
    pauses: Iterator[timedelta]
    due: float = 0.0


class Settler(Service):
    """The only writer of outcomes in a process; frees capacity when the write is confirmed."""

    name = "settler"

    def __init__(
        self,
        store: Store,
        active_claims: ActiveClaims,
        *,
        on_free: Callable[[], None],
        **service: Unpack[ServiceOptions],
    ) -> None:
        super().__init__(**service)
        self._store = store
        self._active_claims = active_claims
        self._on_free = on_free
        #: Any thread appends, the settling thread pops; a deque needs no lock for that.
        self._endings: deque[Ending] = deque()
        self._aside: list[_Aside] = []

    def put(self, holding: Holding, outcome: AttemptOutcome) -> None:
        """Queue the outcome of an attempt, from any thread.

        Race: a handler may end while a shutdown gives it up. The first outcome counts and the second is dropped: of
        two outcomes of one claim in one batch, the later one would win.
        """
        if holding.end():
            self._add(holding, outcome)

    def hand_back(self, holding: Holding, reason: str) -> bool:
        """Hand back a claim whose handler has not started, and never will; return False if it is too late."""
        withdrawn = holding.withdraw()
        if withdrawn:
            self._add(holding, HandedBack(reason))
        return withdrawn

    def _add(self, holding: Holding, outcome: AttemptOutcome) -> None:
        self._endings.append((holding, outcome))
        self.wake()

    def run_once(self) -> timedelta | None:
        batch = self._take()
        if rest := self._finish(batch):
            self._settle(rest)
        if aside := self._take_aside():
            self._retry(aside)
        if batch or aside:
            self._on_free()
        if batch:
            return AT_ONCE
        return min((timedelta(seconds=one.due - self.elapsed()) for one in self._aside), default=None)

    def _finish(self, batch: list[Ending]) -> list[Ending]:
        """Settle one-time tasks that succeeded, most of a busy queue, in one statement; return the other outcomes."""
        plain = [holding.claim for holding, outcome in batch if outcome is SUCCEEDED and not holding.is_slot]
        if not plain:
            return batch
        try:
            if not self._store.settlements.finish(plain):
                return batch
        except BaseException:
            self._put_back(batch)
            raise
        self._active_claims.remove_all(plain)
        self._tell_of(len(plain))
        if self.listeners.hear(Settled):
            for claim in plain:
                self.listeners.publish(Settled(**about(claim), outcome=SUCCEEDED.name))
        return [(holding, outcome) for holding, outcome in batch if outcome is not SUCCEEDED or holding.is_slot]

    def _tell_of(self, count: int) -> None:
        if self.listeners.hear(SettleSent):
            self.listeners.publish(SettleSent(worker=self.worker, count=count))

    def _put_back(self, batch: Sequence[Ending]) -> None:
        self._endings.extendleft(reversed(batch))

    def flush(self) -> None:
        """Settle all queued outcomes in the caller's thread; raise what the database raises."""
        while self.run_once() == AT_ONCE:
            continue

    def _take(self) -> list[Ending]:
        batch: list[Ending] = []
        with suppress(IndexError):
            while len(batch) < BATCH:
                batch.append(self._endings.popleft())
        return batch

    def _take_aside(self) -> list[_Aside]:
        now = self.elapsed()
        due = [one for one in self._aside if one.due <= now][:BATCH]
        self._aside = [one for one in self._aside if one not in due]
        return due

    def _settle(self, batch: Sequence[Ending]) -> None:
        """Write a batch, and set aside outcomes that cannot be written so that the others do not wait for them."""
        try:
            settlements = self._written(batch, wait=True)
        except BaseException:
            self._put_back(batch)
            raise
        self._conclude(batch, settlements)
        for ending, settlement in zip(batch, settlements, strict=True):
            if settlement.error is None:
                continue
            logger.warning(
                "the outcome of %s/%s cannot be written yet, it is tried again: %s",
                *settlement.claim.key, describe(settlement.error),
            )  # fmt: skip
            self._put_aside(_Aside(ending, growing_pauses(*STUCK_PAUSES)))

    def _retry(self, aside: Sequence[_Aside]) -> None:
        """Retry without waiting for locks. An outcome is kept, even beyond its lease, until written or refused."""
        try:
            settlements = self._written([one.ending for one in aside], wait=False)
        except BaseException:
            self._aside += aside
            raise
        self._conclude([one.ending for one in aside], settlements)
        for one, settlement in zip(aside, settlements, strict=True):
            if settlement.error is not None:
                self._put_aside(one)

    def _put_aside(self, one: _Aside) -> None:
        one.due = self.elapsed() + next(one.pauses).total_seconds()
        self._aside.append(one)

    def _written(self, batch: Sequence[Ending], *, wait: bool) -> list[Settlement]:
        self._tell_of(len(batch))
        endings = [(holding.claim, outcome) for holding, outcome in batch]
        return self._store.settlements.settle(endings, wait=wait, ended_ago=self._active_claims.ended_ago)

    def _conclude(self, endings: Sequence[Ending], settlements: Sequence[Settlement]) -> None:
        """Release written claims and publish events. An event without a listener is not created."""
        self._active_claims.remove_all(settlement.claim for settlement in settlements if settlement.error is None)
        is_heard = self.listeners.hear(Settled)
        for (holding, _), settlement in zip(endings, settlements, strict=True):
            if settlement.error is None and (is_heard or not settlement.is_usual):
                self._tell(holding, settlement)

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
    facts: dict[str, Any] = {**about(claim), "outcome": transition.label, "reason": reason}
    facts["error"] = error_summary(error) if error else None
    settled = SettledDead(**facts, cure=_cure(claim)) if transition.label == Outcome.DEAD else Settled(**facts)
    return [settled, *(skipped(claim.holder, claim.row, gap) for gap in transition.gaps)]


def _cure(claim: Claim) -> str:
    """Return the command that retries a dead task or a job's dead slot, or shows an instance's dead slot."""
    row, instance = claim.row, claim.row.plan_instance or claim.row.task_instance
    if claim.slot is None:
        return shlex.join(["slotwise", "tasks", "retry", row.task_name, instance])
    if instance != RECURRING:
        return shlex.join(["slotwise", "slots", row.task_name, "--id", instance])
    return shlex.join(["slotwise", "retry", row.task_name, claim.slot.isoformat()])
