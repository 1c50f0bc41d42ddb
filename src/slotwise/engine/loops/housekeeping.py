"""The loops that clean up: takeover of dead workers' rows, timeouts of attempts, pruning of history."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Unpack

from slotwise.engine.loops.service import Service, ServiceOptions
from slotwise.engine.loops.settler import settlement_events
from slotwise.engine.run.active_claims import Holding
from slotwise.model.events import HandedBackEvent, Pruned, Reaped, Settled, SettledDead, about
from slotwise.model.records import Key, Row
from slotwise.model.vocabulary import Reason
from slotwise.store.slots.claims import BATCH
from slotwise.store.slots.retention import Page, Pruner
from slotwise.store.slots.store import Store


@dataclass(slots=True)
class _Watched:
    mark: tuple[int, datetime | None]
    silent: timedelta


class Watch:
    """Measure, on a monotonic clock, how long each claim has been silent.

    The time between two successful queries counts as at most one heartbeat interval, so an outage of the database or
    a reaper that slept kills no claim. A claim is dead after two silent intervals if it has also expired by the
    database's time, or after silence for the whole lease that the claim stores.
    """

    def __init__(self, interval: timedelta) -> None:
        self._interval = interval
        self._watched: dict[Key, _Watched] = {}
        self._looked: float | None = None

    def look(self, rows: Iterable[Row], now: datetime, at: float) -> list[Row]:
        """Record one query of all held rows and return the dead ones; ``now``: database time, ``at``: own seconds."""
        passed = timedelta(0)
        if self._looked is not None:
            passed = min(timedelta(seconds=at - self._looked), self._interval)
        self._looked = at
        seen: dict[Key, _Watched] = {}
        dead = []
        for row in rows:
            mark = (row.version, row.last_heartbeat)
            known = self._watched.get(row.key)
            silent = known.silent + passed if known and known.mark == mark else timedelta(0)
            seen[row.key] = _Watched(mark, silent)
            lease = row.lease or self._interval * 6
            last = row.last_heartbeat or now
            expired = last <= now - lease
            if (silent >= 2 * self._interval and expired) or silent >= lease:
                dead.append(row)
        self._watched = seen
        return dead

    def leave(self, row: Row) -> None:
        """Restart the silence of a row that could not be taken over."""
        if (known := self._watched.get(row.key)) is not None:
            known.silent = timedelta(0)


class Reaper(Service):
    """Take over rows of dead workers. Every worker runs a reaper; SKIP LOCKED and the fence let one act on a row."""

    name = "reaper"

    def __init__(
        self,
        store: Store,
        *,
        names: Sequence[str],
        interval: timedelta,
        heartbeat_interval: timedelta,
        on_reaped: Callable[[], None] = lambda: None,
        **service: Unpack[ServiceOptions],
    ) -> None:
        super().__init__(**service)
        self._store = store
        self._names = names
        self._interval = interval
        self._watch = Watch(heartbeat_interval)
        self._on_reaped = on_reaped

    def run_once(self) -> timedelta:
        self.take_over(self.look())
        return self._interval

    def look(self) -> list[Row]:
        """Query all held rows and return the dead ones."""
        now, rows = self._store.held.look(self._names)
        return self._watch.look(rows, now, self.elapsed())

    def take_over(self, dead: Sequence[Row]) -> None:
        """Take over the rows of dead holders.

        Races: since the query, a holder may have sent a heartbeat, or another reaper may have acted. These rows are
        left alone. So are locked rows, for instance during an order to thousands of them: the lock kept heartbeats
        out as well, and the holder gets the time to send one afterwards.
        """
        for start in range(0, len(dead), BATCH):
            self._take_over(dead[start : start + BATCH])
        if dead:
            self._on_reaped()  # what was taken over is due now, and this worker is awake

    def _take_over(self, dead: Sequence[Row]) -> None:
        settlements = self._store.settlements.take_over(dead)
        taken = {settlement.claim.fence for settlement in settlements}
        for row in dead:
            if row.fence not in taken:
                self._watch.leave(row)
        for settlement in settlements:
            outcome = settlement.transition.label if settlement.transition else "left"
            facts = about(settlement.claim, self.worker) | {"outcome": outcome, "reason": settlement.reason}
            self.listeners.publish(Reaped(**facts, holder=settlement.claim.holder))
            for event in settlement_events(settlement):
                if isinstance(event, SettledDead) or not isinstance(event, Settled | HandedBackEvent):
                    self.listeners.publish(event)


#: Number of entries at which ended ones are swept out; later, twice as many as were left.
SWEEP = 1024


class Deadlines(Service):
    """Signal attempts that run for longer than their timeout, by the worker's own clock; needs no database."""

    name = "deadlines"

    def __init__(self, **service: Unpack[ServiceOptions]) -> None:
        super().__init__(**service)
        self._lock = threading.Lock()
        self._number = itertools.count()
        self._heap: list[tuple[float, int, Holding]] = []
        self._sweep_at = SWEEP

    def watch(self, holding: Holding, timeout: timedelta) -> None:
        """Give this attempt ``timeout`` from now on."""
        with self._lock:
            if len(self._heap) >= self._sweep_at:
                self._sweep()
            entry = (self.elapsed() + timeout.total_seconds(), next(self._number), holding)
            heapq.heappush(self._heap, entry)
            is_earliest = self._heap[0] is entry
        if is_earliest:
            self.wake()

    def _sweep(self) -> None:
        """Drop ended attempts: a thousand short tasks per second with a long timeout would pile up."""
        self._heap = [entry for entry in self._heap if not entry[2].ended]
        heapq.heapify(self._heap)
        self._sweep_at = max(2 * len(self._heap), SWEEP)

    def run_once(self) -> timedelta | None:
        while (due := self._pop_due()) is not None:
            if not due.ended:
                due.signal.set(Reason.TIMEOUT)
        with self._lock:
            return timedelta(seconds=self._heap[0][0] - self.elapsed()) if self._heap else None

    def _pop_due(self) -> Holding | None:
        with self._lock:
            while self._heap and (self._heap[0][2].ended or self._heap[0][0] <= self.elapsed()):
                holding = heapq.heappop(self._heap)[2]
                if not holding.ended:
                    return holding
        return None


#: Time between two walks through the ledger, in the whole cluster.
INTERVAL = timedelta(hours=1)
#: Jobs per round, and the pause after a round, which leaves the database to others.
ROUND = 50
BREATH = timedelta(milliseconds=100)


class History(Service):
    """Prune the ledger when it is this worker's turn, with a bounded number of transactions per round."""

    name = "pruner"

    def __init__(self, pruner: Pruner, **service: Unpack[ServiceOptions]) -> None:
        super().__init__(**service)
        self._pruner = pruner
        self._walk: Iterator[Page] | None = None
        self._taken = Page()

    def run_once(self) -> timedelta:
        if self._walk is None:
            if not self._pruner.take_turn(INTERVAL):
                return INTERVAL / 4
            self._walk, self._taken = self._pruner.pages(), Page()
        for _ in range(ROUND):
            page = next(self._walk, None)
            if page is None:
                return self._end()
            self._taken = Page(self._taken.slots + page.slots, self._taken.gaps + page.gaps)
        return BREATH

    def _end(self) -> timedelta:
        self._walk = None
        if self._taken != Page():
            self.listeners.publish(Pruned(worker=self.worker, slots=self._taken.slots, gaps=self._taken.gaps))
        return INTERVAL
