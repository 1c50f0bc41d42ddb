"""One worker of the simulated cluster: alive, frozen (a zombie to be), or down."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta

from slotwise.spi import Claim, Row
from slotwise.testing import ManualWorker

BEAT = timedelta(seconds=10)


class SimulatedWorker(ManualWorker):
    """A worker whose reaper may be slow, and that may never learn of what it has claimed."""

    #: In what it ends pauses: a commit that gets lost at a poll is that of the claim.
    spared: Callable[[], AbstractContextManager[None]] = staticmethod(nullcontext)

    def _end_pauses(self) -> None:
        with self.spared():
            super()._end_pauses()

    def find_dead(self) -> list[Row]:
        """The first half of ``reap``: who is dead."""
        return self._worker.reaper.find_dead()

    def take_over(self, verdict: list[Row]) -> None:
        """The second half."""
        self._worker.reaper.take_over(verdict)

    def forget(self, claim: Claim) -> None:
        """The reply to the claim was lost on its way."""
        with suppress(ConnectionError), self._worker.active_claims.claiming():
            (holding,) = self._worker.active_claims.remove([claim])
            raise ConnectionError
        assert holding is not None
        self._runner.waiting.remove(holding)


@dataclass(eq=False)
class Agent:
    """What happens to it is the world's decision; what it does then is the engine's."""

    name: str
    worker: SimulatedWorker
    revision: int
    tags: frozenset[str] = frozenset()
    #: Elapsed seconds before which it does nothing; a frozen one keeps all that it believes in.
    sleeps_until: float = 0.0
    is_down: bool = False
    #: It has not noticed yet for how long it did nothing.
    is_frozen: bool = False
    #: Attempts that have begun and not ended.
    running: list[Claim] = field(default_factory=list)
    #: A reaper's verdict that has not been carried out yet.
    verdict: list[Row] = field(default_factory=list)
    beat_at: float = 0.0
    looked_at: float = 0.0
    #: How many of its worker's events have been heard.
    heard: int = 0

    def is_awake(self) -> bool:
        return self.worker.clock.elapsed() >= self.sleeps_until

    def is_due(self, since: float) -> bool:
        """Whether a heartbeat interval has passed since."""
        return self.worker.clock.elapsed() - since >= BEAT.total_seconds()
