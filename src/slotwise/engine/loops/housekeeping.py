"""The loops beside the claims: takeover of dead workers' rows, pruning of history, and
wake-ups.
"""

from __future__ import annotations

import logging
import selectors
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice

from slotwise.engine.loops.held_claims import Tally
from slotwise.engine.loops.service import AT_ONCE, Common, Service, WorkerCommon
from slotwise.engine.loops.tuning import (
    BLINK,
    ECHO,
    LISTEN_AGAIN,
    PRUNE_BREATH,
    PRUNE_DELAY,
    PRUNE_INTERVAL,
    PRUNE_REST,
    PRUNE_ROUND,
    UNHEARD,
)
from slotwise.errors import DatabaseProblem
from slotwise.jobs.policies import growing_pauses
from slotwise.model.events import (
    Pruned,
    Reaped,
    ReapedLost,
    SettledDead,
    about,
    settlement_event,
)
from slotwise.model.records import Key, Row
from slotwise.model.vocabulary import Outcome, Reason
from slotwise.store.connect.database import Database
from slotwise.store.connect.database_errors import describe_error, is_transient
from slotwise.store.connect.notifications import LOOK, OPERATIONS, Hearing
from slotwise.store.slots.retention import Page, Pruner
from slotwise.store.slots.settlements import Settlement
from slotwise.store.slots.tuning import BATCH

logger = logging.getLogger(__name__)


class Watch:
    """Measure, on a monotonic clock, how long each claim has been silent (law 5).

    The time between two successful queries counts as at most one heartbeat interval, so an outage
    of the database or a reaper that slept kills no claim.
    """

    def __init__(self, interval: timedelta) -> None:
        self._interval = interval
        #: Version and last heartbeat of each claim, and how long they have not changed.
        self._watched: dict[Key, tuple[tuple[int, datetime | None], timedelta]] = {}
        self._queried: float | None = None

    def dead(self, rows: Iterable[Row], now: datetime, at: float) -> list[Row]:
        """Record one query of all held rows and return the dead ones; ``now``: database time,
        ``at``: own seconds.
        """
        passed = (
            timedelta(0)
            if self._queried is None
            else min(timedelta(seconds=at - self._queried), self._interval)
        )
        self._queried = at
        watched = self._watched
        self._watched = {}
        dead = []
        for row in rows:
            mark = row.version, row.last_heartbeat
            known, silent = watched.get(row.key, (None, timedelta(0)))
            silent = silent + passed if known == mark else timedelta(0)
            self._watched[row.key] = mark, silent
            lease = row.lease or self._interval * 6
            expired = (row.last_heartbeat or now) <= now - lease
            if (silent >= 2 * self._interval and expired) or silent >= lease:
                dead.append(row)
        return dead

    def leave(self, row: Row) -> None:
        """Restart the silence of a row that could not be taken over."""
        if row.key in self._watched:
            self._watched[row.key] = self._watched[row.key][0], timedelta(0)


class Reaper(Service):
    """Take over rows of dead workers. Every worker runs a reaper; SKIP LOCKED and the fence let
    one act on a row.
    """

    name = "reaper"

    def __init__(
        self,
        common: WorkerCommon,
        *,
        names: Sequence[str],
        interval: timedelta,
        on_reaped: Callable[[], None],
        tally: Tally,
    ) -> None:
        super().__init__(common)
        self._tally = tally
        self._store = common.store
        self._names = names
        self.interval = interval
        self._watch = Watch(common.interval)
        self._on_reaped = on_reaped
        self._active_claims = common.active_claims

    def run_once(self) -> timedelta:
        self.take_over(self.find_dead())
        return self.interval

    def find_dead(self) -> list[Row]:
        """Query all held rows and return the dead ones. An attempt that has ended in this process
        is none: its settler keeps the outcome until the database takes it. Rows of another
        program have their own heartbeats.
        """
        now, rows = self._store.held.silent_rows(self._names)
        others = [
            row
            for row in rows
            if not row.is_foreign and not self._active_claims.has_ended(row.fence)
        ]
        return self._watch.dead(others, now, self.elapsed())

    def take_over(self, dead: Sequence[Row]) -> None:
        """Take over the rows of dead holders.

        Races: since the query, a holder may have sent a heartbeat, or another reaper may have
        acted. These rows are left alone. So are locked rows: the lock kept heartbeats out as well,
        and the holder may send one afterwards.
        """
        for start in range(0, len(dead), BATCH):
            batch = dead[start : start + BATCH]
            settlements = self._store.settlements.take_over(batch)
            taken = {settlement.claim.fence for settlement in settlements}
            for row in batch:
                if row.fence not in taken:
                    self._watch.leave(row)
            for settlement in settlements:
                self._tell(settlement)
        if dead:
            self._on_reaped()  # what was taken over is due now, and this worker is awake

    def _tell(self, settlement: Settlement) -> None:
        claim = settlement.claim
        reason = settlement.reason
        transition = settlement.transition
        outcome = transition.label if transition else "left"
        self._tally.add_dead(claim.row, outcome, reason)
        kind = (
            ReapedLost
            if outcome == Outcome.LOST and reason != Reason.RERUN
            else Reaped
        )
        self.listeners.publish(
            kind(
                **about(claim, self.worker),
                outcome=outcome,
                reason=reason,
                holder=claim.holder,
            )
        )
        if isinstance(event := settlement_event(claim, transition), SettledDead):
            self.listeners.publish(event)
        self.listeners.skipped(
            self.worker,
            [(claim.key, gap) for gap in transition.gaps] if transition else [],
        )


class Pruning(Service):
    """Prune the ledger when it is this worker's turn."""

    name = "pruner"
    delay = PRUNE_DELAY

    def __init__(self, common: WorkerCommon) -> None:
        super().__init__(common)
        settings = common.settings
        self._pruner = Pruner(
            common.store,
            keep=settings.retention,
            failure_retention=settings.failure_retention,
        )
        self._walk: Iterator[Page] | None = None
        self._slots = self._gaps = 0

    def run_once(self) -> timedelta:
        walk = self._walk or self._next_walk()
        if walk is None:
            return min(PRUNE_INTERVAL / 4, self._pruner.rest)
        self._walk = None  # after an error it begins where it stopped
        began = self.elapsed()
        count = 0
        for page in islice(walk, PRUNE_ROUND):
            count = count + 1
            self._slots = self._slots + page.slots
            self._gaps = self._gaps + page.gaps
        if count == PRUNE_ROUND:
            self._walk = walk
            return max(
                PRUNE_BREATH, PRUNE_REST * timedelta(seconds=self.elapsed() - began)
            )
        if self._slots or self._gaps:
            self.listeners.publish(
                Pruned(worker=self.worker, slots=self._slots, gaps=self._gaps)
            )
        self._slots = self._gaps = 0
        return min(PRUNE_INTERVAL, self._pruner.rest)

    def _next_walk(self) -> Iterator[Page] | None:
        """Return a walk through the whole ledger, or through jobs that keep little of it; None if
        others have the turns.
        """
        if self._pruner.take_turn(PRUNE_INTERVAL):
            return self._pruner.pages()
        if self._pruner.take_short_turn():
            return self._pruner.short_pages()
        return None

    @property
    def is_walking(self) -> bool:
        """Whether a walk is not through."""
        return self._walk is not None


class WakeUp(Service):
    """Listen on a connection of its own, and reconnect whenever it is lost.

    Races: notifications that were sent while it did not listen are made up for by a poll as soon
    as it listens. A transaction pooler accepts LISTEN and delivers nothing, or to another client:
    so a notification of our own, sent through the ordinary pool, must arrive first. ``stop`` may
    come at any time: the bell, once rung, keeps ringing.
    """

    name = "wake_up"

    def __init__(
        self,
        common: Common,
        database: Database,
        *,
        names: Collection[str],
        wake: Callable[[Collection[str]], None],
        offset: Callable[[], timedelta] = lambda: AT_ONCE,
    ) -> None:
        """``names``: the tasks that run here. ``wake`` gets the notifications. ``offset``: see
        ``Peers``.
        """
        super().__init__(common)
        self._database = database
        self._names = frozenset(names)
        self._call = wake
        self._offset = offset
        self._hearing: Hearing | None = None
        self._failures: Iterator[timedelta] | None = None
        self._failing_since = 0.0
        self._told = False
        self._bell: tuple[socket.socket, socket.socket] | None = None

    @property
    def is_listening(self) -> bool:
        return self._hearing is not None

    def start(self) -> None:
        """Start the loop, unless the database has no notifications."""
        if self._database.hears and self._bell is None:
            self._bell = socket.socketpair()
            super().start()

    def stop(self) -> None:
        super().stop()
        if self._bell is not None:
            with suppress(OSError):  # closed already
                self._bell[1].send(b"!")

    def _drive(self) -> None:
        super()._drive()
        self._deafen()
        for end in self._bell or ():
            end.close()

    def run_once(self) -> timedelta:
        """Listen until a notification arrives or the service is stopped."""
        try:
            if self._hearing is None:
                self._hearing = self._listen()
                self._recovered()
            self.busy_since = None  # a wait for notifications is no work
            self._heed(self._wait(self._hearing, None))
            self._stopping.wait(BLINK)
        except Exception as error:
            return self._failed(error)
        return AT_ONCE

    def _listen(self) -> Hearing:
        """Connect and listen. Raise DatabaseProblem if a pooler drops notifications, or the
        address leads elsewhere.
        """
        hearing = self._database.listen()
        try:
            self._database.notify([self.worker])
            end = self.elapsed() + ECHO.total_seconds()
            while self.worker not in self._wait(hearing, max(end - self.elapsed(), 0)):
                if self._stopping.is_set():
                    break
                if self.elapsed() >= end:
                    raise DatabaseProblem(
                        "a notification sent through the pool does not arrive"
                    )
        except BaseException:
            hearing.close()
            raise
        return hearing

    def _wait(self, hearing: Hearing, seconds: float | None) -> list[str]:
        with selectors.DefaultSelector() as selector:
            selector.register(hearing, selectors.EVENT_READ)
            if self._bell is not None:
                selector.register(self._bell[0], selectors.EVENT_READ)
            ready = {key.fileobj for key, _ in selector.select(seconds)}
        return hearing.words() if hearing in ready else []

    def _heed(self, words: list[str]) -> None:
        if any(word in self._names or word in (LOOK, OPERATIONS) for word in words):
            if offset := self._offset().total_seconds():
                self._stopping.wait(offset)
            self._call(words)

    def _recovered(self) -> None:
        if self._told:
            logger.info("wake-ups arrive again")
        self._failures = None
        self._told = False
        self._call(())

    def _failed(self, error: Exception) -> timedelta:
        """Return the pause before the next connection; log once. Other loops report an outage of
        the database.
        """
        self._deafen()
        now = self.elapsed()
        if self._failures is None:
            self._failures = growing_pauses(*self.common.pauses)
            self._failing_since = now
        pause = next(self._failures) if is_transient(error) else LISTEN_AGAIN
        is_over = (
            pause == LISTEN_AGAIN
            or now - self._failing_since > UNHEARD.total_seconds()
        )
        if is_over and not self._told and not self.common.is_away:
            self._told = True
            cure = "set" if self._database.settings.wake_up_url is None else "correct"
            logger.warning(
                "wake-ups are off, due rows are found by polls: %s; %s "
                "wake_up_url to an address that leads to this "
                "database past any pooler, or set wake_up = off",
                describe_error(error),
                cure,
            )
        return pause

    def _deafen(self) -> None:
        hearing = self._hearing
        self._hearing = None
        if hearing is not None:
            hearing.close()
