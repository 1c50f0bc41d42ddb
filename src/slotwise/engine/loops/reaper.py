"""Takes over claims whose holder is dead. Death is observed here, not computed from anybody's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from slotwise.engine.loops.service import Service
from slotwise.engine.loops.settler import settlement_events
from slotwise.model.events import HandedBackEvent, Reaped, Settled, SettledDead, about
from slotwise.model.records import Key, Row
from slotwise.store.slots.claims import BATCH
from slotwise.store.slots.store import Store


@dataclass(slots=True)
class _Watched:
    mark: tuple[int, datetime | None]
    silent: timedelta


class Watch:
    """Adds up, on a clock that never steps, how long each claim has shown no sign of life.

    The time between two successful looks counts as at most one heartbeat interval: a database that was away,
    or a reaper that slept, kills nobody. Dead is who was silent for two intervals and has expired by the
    database's time, or who was silent for the whole lease that the claim itself stores.
    """

    def __init__(self, interval: timedelta) -> None:
        self._interval = interval
        self._watched: dict[Key, _Watched] = {}
        self._looked: float | None = None

    def look(self, rows: Iterable[Row], now: datetime, at: float) -> list[Row]:
        """Take in one look at all held rows (``now``: the database's time, ``at``: own seconds); who is dead."""
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
        """It could not be taken over: its silence begins anew."""
        if (known := self._watched.get(row.key)) is not None:
            known.silent = timedelta(0)


class Reaper(Service):
    """Every worker runs one; SKIP LOCKED and the fence make sure that one of them acts on a row."""

    name = "reaper"

    def __init__(
        self,
        store: Store,
        *,
        names: Sequence[str],
        interval: timedelta,
        heartbeat_interval: timedelta,
        on_reaped: Callable[[], None] = lambda: None,
        **service: Any,
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
        """Take in one look at all held rows; who is dead."""
        now, rows = self._store.look(self._names)
        return self._watch.look(rows, now, self.elapsed())

    def take_over(self, dead: Sequence[Row]) -> None:
        """Races: since the look, a holder may have stirred, or another reaper been here. Those rows are left. Somebody
        may have them locked, an order to thousands of them for instance, so that no heartbeat got through, either: the
        holder has the time to send one after that.
        """
        for start in range(0, len(dead), BATCH):
            self._take_over(dead[start : start + BATCH])
        if dead:
            self._on_reaped()  # what was taken over is due now, and this worker is awake

    def _take_over(self, dead: Sequence[Row]) -> None:
        settlements = self._store.take_over(dead)
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
