"""Writes how attempts ended: whatever has gathered goes in one transaction, again as soon as the last one is back.

No timer: an idle worker settles at once, a busy one batches by itself.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from slotwise.engine.holdings import Holding, Holdings
from slotwise.engine.service import AT_ONCE, Service
from slotwise.events import ClaimLostEvent, HandedBackEvent, Settled, SettleSent, SlotsSkipped, about
from slotwise.execution import Fence, HandedBack, Outcome
from slotwise.store.failures import describe
from slotwise.store.store import BATCH, Settlement, Store

logger = logging.getLogger(__name__)

#: How long an outcome rests that could not be written though the others could: its row is locked, for instance.
STUCK_PAUSE = timedelta(seconds=1)


class Settler(Service):
    """The only writer of outcomes in a process; frees capacity when the write is known."""

    name = "settler"

    def __init__(self, store: Store, holdings: Holdings, *, on_free: Callable[[], None], **service: Any) -> None:
        super().__init__(**service)
        self._store = store
        self._holdings = holdings
        self._on_free = on_free
        self._lock = threading.Lock()
        self._endings: deque[tuple[Holding, Outcome]] = deque()
        self._stuck: set[Fence] = set()

    def put(self, holding: Holding, outcome: Outcome) -> None:
        """Take the end of an attempt; from any thread.

        Race: a handler may come to its end while a shutdown gives it up. The first word stands, the second is
        dropped: two outcomes of one claim in one batch would let the later one win.
        """
        if holding.end():
            self._add(holding, outcome)

    def hand_back(self, holding: Holding, reason: str) -> bool:
        """Give a claim back whose handler has not been entered, and never will be; False if it is too late."""
        withdrawn = holding.withdraw()
        if withdrawn:
            self._add(holding, HandedBack(reason))
        return withdrawn

    def _add(self, holding: Holding, outcome: Outcome) -> None:
        with self._lock:
            self._endings.append((holding, outcome))
        self.wake()

    def run_once(self) -> timedelta | None:
        batch = self._take()
        if not batch:
            return None
        self.listeners.publish(SettleSent(worker=self.worker, count=len(batch)))
        try:
            settlements = self._store.settle([(holding.claim, outcome) for holding, outcome in batch])
        except BaseException:
            self._put_back(batch)
            raise
        stuck = self._conclude(batch, settlements)
        self._on_free()
        return STUCK_PAUSE if stuck else AT_ONCE

    def flush(self) -> None:
        """Settle all that has gathered, in the caller's thread; raises what the database raises."""
        while self._endings:
            if self.run_once() != AT_ONCE:
                return

    def _take(self) -> list[tuple[Holding, Outcome]]:
        with self._lock:
            return [self._endings.popleft() for _ in range(min(len(self._endings), BATCH))]

    def _put_back(self, batch: Sequence[tuple[Holding, Outcome]]) -> None:
        with self._lock:
            self._endings.extendleft(reversed(batch))

    def _conclude(self, batch: Sequence[tuple[Holding, Outcome]], settlements: Sequence[Settlement]) -> bool:
        """Tell what became of each; True if some could not be written and wait for another try."""
        stuck = []
        for (holding, outcome), settlement in zip(batch, settlements, strict=True):
            if settlement.error is not None and not holding.lost:
                self._tell_stuck(settlement)
                stuck.append((holding, outcome))
                continue
            self._stuck.discard(settlement.claim.fence)
            self._holdings.remove(settlement.claim)
            self._tell(holding, settlement)
        if stuck:
            self._put_back(stuck)
        return bool(stuck)

    def _tell_stuck(self, settlement: Settlement) -> None:
        """Once for each: it is tried again every second."""
        fence = settlement.claim.fence
        if settlement.error is not None and fence not in self._stuck:
            self._stuck.add(fence)
            logger.warning(
                "the outcome of %s/%s cannot be written yet, it is tried again: %s",
                *fence.key,
                describe(settlement.error),
            )

    def _tell(self, holding: Holding, settlement: Settlement) -> None:
        if settlement.transition is None:
            holding.lose()
            reason = "its outcome was refused: another worker has the row"
            self.listeners.publish(ClaimLostEvent(**about(settlement.claim), reason=reason))
            return
        for event in settlement_events(settlement):
            self.listeners.publish(event)


def settlement_events(settlement: Settlement) -> list[Settled | HandedBackEvent | SlotsSkipped]:
    """What a settlement is told as."""
    claim, transition = settlement.claim, settlement.transition
    if transition is None:
        return []
    record = transition.record
    reason = record.reason if record else None
    if transition.label == "handed-back":
        return [HandedBackEvent(**about(claim), reason=reason or "handed back")]
    error = (record.error if record else None) or (transition.row or {}).get("last_error")
    events: list[Settled | HandedBackEvent | SlotsSkipped] = [
        Settled(
            **about(claim),
            outcome=transition.label,
            reason=reason,
            error=error.splitlines()[-1] if error else None,
        )
    ]
    events += [
        SlotsSkipped(
            worker=claim.holder, job=claim.row.task_name, first=gap.first, last=gap.last, count=gap.count,
            reason=gap.reason,
        )
        for gap in transition.gaps
    ]  # fmt: skip
    return events
