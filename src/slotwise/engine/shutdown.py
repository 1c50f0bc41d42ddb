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
from slotwise.model.clock import elapsed
from slotwise.model.records import Aborted
from slotwise.model.vocabulary import Reason
from slotwise.store.connect.database import Database

logger = logging.getLogger(__name__)

#: How often, in seconds, a wait checks whether a further request has come.
STEP = 0.05

#: How long the loops may take to end, the last outcomes to be written, and the worker to sign out.
LOOP_PATIENCE = timedelta(seconds=5)
WRITE_PATIENCE = timedelta(seconds=5)
#: How long a worker that ends waits for a reply of the database: longer than for a lock, at most.
REPLY_PATIENCE = timedelta(seconds=6)
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
        database: Database,
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
        self._database = database
        self._aside = min(max(longest_grace, SHORTEST_ASIDE), LONGEST_ASIDE)
        #: How long the exit or the cancellation of a lifespan may take in a process that ends.
        self._lifespan_patience = max(longest_grace, LONGEST_ASIDE)
        #: Number of handlers, outcomes and lifespans left behind; None while unknown.
        self.unfinished: int | None = None

    def run(self, grace: timedelta, *, ending: bool) -> None:
        """Drain, cancel after ``grace``, and close. ``ending``: the caller ends the process right after this.

        Raise what the lifespan raises on exit, after everything else is done.
        """
        until = elapsed() + grace.total_seconds()
        self._membership.is_draining = True
        self._runner.drain()
        self._hand_back_unstarted()
        self._end([self._poller])
        self._hand_back_unstarted()  # claims of its last round
        self._wait_for_handlers(until)
        self._ask_to_stop()
        self._database.limit_replies(REPLY_PATIENCE)
        self._end(self._others)
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
            if not ending:
                self._database.limit_replies(None)

    def close(self, *, bounded: bool = False) -> None:
        """End everything now, for a worker that holds nothing.

        After a cancellation, a handler that still runs may block the exit of the lifespan. Then, or if ``bounded``, the
        exit has the same time limit as at the end of a process.
        """
        self._end([*self._keepers, *self._others, self._poller])
        try:
            self._leave(self._lifespan_patience if bounded or self._cancelling.is_set() else None)
        finally:
            self._sign_out()
            self._database.limit_replies(None)

    def _hand_back_unstarted(self) -> None:
        """Hand back claims that have not started; the threads and the loop may be blocked."""
        for holding in self._active_claims:
            self._settler.hand_back(holding, Reason.SHUTDOWN)

    def _wait_for_handlers(self, until: float) -> None:
        """Wait until then, in elapsed seconds, or until a further stop request cancels the wait."""
        while (left := until - elapsed()) > 0 and not self._cancelling.is_set():
            if self._active_claims.wait_empty(min(STEP, left)):
                return

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
        self._sign_out()
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
        self._database.close()

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
        self._end(self._keepers)
        self._sign_out()

    def _sign_out(self) -> None:
        """Sign out, on a thread: the database may answer nothing, to this or to a heartbeat before it."""
        leaving = threading.Thread(target=self._membership.leave, name="slotwise-leave", daemon=True)
        leaving.start()
        leaving.join(LOOP_PATIENCE.total_seconds())

    def _end(self, services: Sequence[Service]) -> None:
        """Stop these loops and wait for them, together no longer than the patience, or until what runs is cancelled.

        Race: a poller that is left behind may still claim; the runner hands such claims back.
        """
        for service in reversed(services):
            service.stop()
        until = elapsed() + LOOP_PATIENCE.total_seconds()
        for service in reversed(services):
            while not service.join(timedelta(seconds=min(STEP, until - elapsed()))) and elapsed() < until:
                if self._cancelling.is_set() and service is self._poller:
                    break
