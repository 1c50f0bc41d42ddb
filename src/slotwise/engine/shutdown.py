"""End a worker: hand back what has not started, let handlers finish, and never let one run twice."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

from slotwise.engine.loops.service import Service
from slotwise.engine.loops.settler import Settler
from slotwise.engine.run.active_claims import ActiveClaims, Holding
from slotwise.engine.run.event_loop import EventLoop
from slotwise.engine.run.runner import Runner
from slotwise.engine.sign_in import Membership
from slotwise.model.records import Aborted
from slotwise.model.vocabulary import Reason

logger = logging.getLogger(__name__)

#: How long the loops may take to end, and the last outcomes to be written.
LOOP_PATIENCE = timedelta(seconds=10)
WRITE_PATIENCE = timedelta(seconds=5)
#: Bounds of the time that handlers get to stop: the grace, but within these bounds.
SHORTEST_ASIDE, LONGEST_ASIDE = timedelta(seconds=1), timedelta(seconds=5)


class Shutdown:
    """End the parts of a worker in order, once.

    Race: a thread cannot be killed. A slot that is handed back while its handler still runs could start on another
    worker at the same time. So a process that ends hands it back as its very last write; any other keeps the claim.
    """

    def __init__(
        self,
        *,
        active_claims: ActiveClaims,
        runner: Runner,
        settler: Settler,
        poller: Service,
        others: Sequence[Service],
        keepers: Sequence[Service],
        membership: Membership,
        loop: EventLoop | None,
        cancelling: threading.Event,
        tell_end: Callable[[int], None],
        close: Callable[[], None],
        longest_grace: timedelta,
    ) -> None:
        """``keepers`` keep claims alive and settle them, to the end; ``others`` do not."""
        self._active_claims = active_claims
        self._runner = runner
        self._settler = settler
        self._poller = poller
        self._others = others
        self._keepers = keepers
        self._membership = membership
        self._loop = loop
        self._cancelling = cancelling
        self._tell_end = tell_end
        self._close = close
        self._aside = min(max(longest_grace, SHORTEST_ASIDE), LONGEST_ASIDE)
        #: How long the exit or the cancellation of a lifespan may take in a process that ends.
        self._lifespan_patience = max(longest_grace, LONGEST_ASIDE)
        #: Number of handlers, outcomes and lifespans left behind; None while unknown.
        self.unfinished: int | None = None

    def run(self, grace: timedelta, *, ending: bool) -> None:
        """Drain, cancel after ``grace``, and close. ``ending``: the caller ends the process right after this.

        Raise what the lifespan raises on exit, after everything else is done.
        """
        self._membership.is_draining = True
        self._runner.drain()
        self._hand_back_unstarted()
        _end([self._poller])
        self._hand_back_unstarted()  # claims of its last round
        self._wait_for_handlers(grace)
        self._ask_to_stop()
        _end(self._others)
        try:
            self._leave(self._lifespan_patience if ending else None)
        finally:
            left = [holding for holding in self._active_claims if not holding.ended]
            self.unfinished = len(left) + self._lifespans_left_behind()
            if left and ending:
                self._hand_back_last(left)
            elif left:
                self._keep_until_returned(len(left))
            else:
                self.unfinished += self._write_outcomes()
                self._finish()
                self._tell_end(self.unfinished)

    def close(self, *, bounded: bool = False) -> None:
        """End everything now, for a worker that holds nothing.

        After a cancellation, a handler that still runs may block the exit of the lifespan. Then, or if ``bounded``, the
        exit has the same time limit as at the end of a process.
        """
        _end([*self._keepers, *self._others, self._poller])
        try:
            self._leave(self._lifespan_patience if bounded or self._cancelling.is_set() else None)
        finally:
            self._membership.leave()

    def _hand_back_unstarted(self) -> None:
        """Hand back claims that have not started; the threads and the loop may be blocked."""
        for holding in self._active_claims:
            self._settler.hand_back(holding, Reason.SHUTDOWN)

    def _wait_for_handlers(self, grace: timedelta) -> None:
        """Wait up to ``grace``, or until a further stop request cancels the wait."""
        left = grace.total_seconds()
        step = 0.05
        while left > 0 and not self._cancelling.is_set():
            if self._active_claims.wait_empty(min(step, left)):
                return
            left -= step

    def _ask_to_stop(self) -> None:
        for holding in self._active_claims:
            holding.signal.set(Reason.SHUTDOWN)
        self._active_claims.wait_empty(self._aside.total_seconds())

    def _leave(self, within: timedelta | None) -> None:
        """Leave the threads, the loop and the lifespan. Heartbeats continue, as the application may take long."""
        self._runner.close()
        if self._loop is not None:
            self._loop.stop(within)

    def _hand_back_last(self, left: Sequence[Holding]) -> None:
        """Hand back the remaining slots as the last write: after its commit, they may start elsewhere."""
        self._membership.leave()
        self._tell_end(self.unfinished or 0)
        for holding in left:
            self._settler.put(holding, Aborted(Reason.SHUTDOWN))
        self._write_outcomes()
        self._settler.stop()
        self._settler.join(SHORTEST_ASIDE)  # it publishes the events of its writes

    def _keep_until_returned(self, count: int) -> None:
        """Keep the claims of handlers that still run while the process continues."""
        logger.warning("%d handlers did not stop; their claims are kept until they return, or this process ends", count)
        threading.Thread(target=self._keep, name="slotwise-vigil", daemon=True).start()
        self._tell_end(self.unfinished or 0)

    def _keep(self) -> None:
        self._active_claims.wait_empty(None)
        self._finish()
        self._close()

    def _write_outcomes(self) -> int:
        """Write the last outcomes and return how many could not be written."""
        if self._active_claims.wait_empty(WRITE_PATIENCE.total_seconds()):
            return 0
        count = len(self._active_claims)
        logger.warning("%d outcomes could not be written; others take over when the leases end", count)
        return count

    def _lifespans_left_behind(self) -> int:
        return int(self._loop is not None and self._loop.left_behind)

    def _finish(self) -> None:
        _end(self._keepers)
        self._membership.leave()


def _end(services: Sequence[Service]) -> None:
    for service in reversed(services):
        service.stop()
    for service in reversed(services):
        service.join(LOOP_PATIENCE)
