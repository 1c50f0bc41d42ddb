"""Claim due rows, slots and one-time tasks, as far as there is room: the poller, its turns and its peers."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from slotwise.engine.loops.service import AT_ONCE, Service
from slotwise.engine.run.active_claims import ActiveClaims, Holding
from slotwise.engine.run.runner import Runner
from slotwise.jobs.definition import Definition
from slotwise.jobs.policies import growing_pauses
from slotwise.model.clock import Stopwatch
from slotwise.model.events import Claimed, PollBegan, about, skipped
from slotwise.model.records import Claim, Gap, Row
from slotwise.store.dialects.queue_cursors import QueueCursors, Range
from slotwise.store.slots.claims import BATCH
from slotwise.store.slots.store import Store

#: What one claim takes, about; so far apart are the looks of two peers.
OFFSET_STEP = timedelta(milliseconds=1)
#: However many there are, nobody waits for longer.
LONGEST_OFFSET = timedelta(milliseconds=25)
#: A poll comes up to this part of the interval too early.
POLL_JITTER = 0.1


class Peers:
    """How many there are, as the last heartbeat has found it; this worker is one of them.

    Each draws its place in the row anew every time: a fixed one would give all that there is to the first of them.
    Alone, a worker waits for nobody.
    """

    def __init__(self) -> None:
        self.count = 1

    def offset(self) -> timedelta:
        """How long to let others go first."""
        return min(OFFSET_STEP * (random.random() * (self.count - 1)), LONGEST_OFFSET)

    def spread(self, interval: timedelta) -> timedelta:
        """The interval, or a little less: polls of peers do not stay in step."""
        return interval * (1 - POLL_JITTER * random.random()) if self.count > 1 else interval


#: How soon to ask again for a place that somebody else may have left, or that comes back with time.
FULL_PAUSE = timedelta(milliseconds=250)
LEAST_PAUSE = timedelta(milliseconds=100)


@dataclass(slots=True)
class _Limited:
    """A task of which only so many may run, or start. Where there was no place, it rests for so many seconds."""

    pause: float
    rests_until: float = 0.0
    held: Sequence[Claim] = ()


class Fairness:
    """Whoever was served goes to the end of the line: a row waits for one claim of each task that floods, at most.

    The tasks without a limit are one in that line, with an order of their own: one statement claims them.
    Each with a limit is claimed by itself.
    """

    def __init__(self, tasks: Iterable[Definition], active_claims: ActiveClaims, elapsed: Stopwatch) -> None:
        limited = [found for found in tasks if found.is_limited]
        self.tasks = [found.name for found in tasks if not found.is_limited]
        self.limited = {found.name: _Limited(_pause(found).total_seconds()) for found in limited}
        self._line: list[str | None] = [None, *self.limited]
        self._active_claims = active_claims
        self._elapsed = elapsed

    @property
    def shortest_pause(self) -> timedelta:
        return timedelta(seconds=min(one.pause for one in self.limited.values()))

    def line(self) -> Sequence[str | None]:
        """Tasks with a limit by name, all others together as None; first whoever has waited for the longest time."""
        return tuple(self._line)

    def awake(self) -> list[str]:
        """The tasks with a limit that do not rest. An end of a claim of our own wakes its task: it leaves a place."""
        now, held = self._elapsed(), self._active_claims
        return [
            name
            for name, one in self.limited.items()
            if now >= one.rests_until or any(claim not in held for claim in one.held)
        ]

    def rest(self, name: str) -> None:
        """Rows of it are due, and there was no place for them."""
        one = self.limited[name]
        one.held = [holding.claim for holding in self._active_claims if holding.claim.row.task_name == name]
        one.rests_until = self._elapsed() + one.pause

    def served(self, turn: str | None, names: Collection[str] = ()) -> None:
        """Rows were claimed in this turn, of these tasks."""
        if len(self._line) > 1:
            self._line.remove(turn)
            self._line.append(turn)
        if len(self.tasks) > 1:
            self.tasks.sort(key=names.__contains__)  # it keeps the order of those that are alike


def _pause(task: Definition) -> timedelta:
    rate = task.max_starts
    return FULL_PAUSE if rate is None else max(min(FULL_PAUSE, rate.window / rate.count), LEAST_PAUSE)


#: How soon to look again for a row that is due and could not be had, at first and in the end.
LOCKED_PAUSES = timedelta(milliseconds=2), timedelta(milliseconds=100)
#: Who has no room for so long looks for what comes due, to tell others.
CROWDED = timedelta(milliseconds=100)
#: Room for a batch of tasks, where they end fast, is there within this time.
FILLING = timedelta(milliseconds=50)
#: Not at once: there is nothing to do before.
IN_A_MOMENT = timedelta(microseconds=1)


class Poller(Service):
    """Sleeps until the earliest due row, never longer than the poll interval; a full batch polls again at once.

    Races: of a slot or a retry that it has settled, and that is due soon, other workers may know nothing until they
    poll. Where it has no room at that time, it passes the wake-up on (``pass_on``). All who sleep until the same row
    would go for it at once: each of several peers comes a little later than the other.
    """

    name = "poller"

    def __init__(
        self,
        store: Store,
        active_claims: ActiveClaims,
        *,
        names: Sequence[str],
        lease: timedelta,
        poll_interval: timedelta,
        runner: Runner,
        peers: Peers,
        pass_on: Callable[[], None],
        **service: Any,
    ) -> None:
        super().__init__(**service)
        self._store = store
        self._active_claims = active_claims
        known = [store.definitions[name] for name in names]
        one_time = [found for found in known if not found.is_job]
        self._one_time = frozenset(found.name for found in one_time)
        self._fairness = Fairness(one_time, active_claims, self.elapsed)
        #: All but those with a limit, which are claimed each by itself.
        self._names = [name for name in names if name not in self._fairness.limited]
        self._lease = lease
        self._poll_interval = poll_interval
        self._runner = runner
        self._peers = peers
        self._pass_on = pass_on
        self._queue_cursors = QueueCursors()
        #: Until then nothing was known to become due.
        self._quiet_until: float | None = None
        #: Until then it sleeps, unless it is woken; None: it has just claimed something.
        self._asleep_until: float | None = None
        self._woken_by_an_end = False
        #: How soon to look for rows that are due and were locked.
        self._locked: Iterator[timedelta] | None = None
        self._woken_for_tasks = False
        #: Until then it waits for room for a whole batch.
        self._filled_by: float | None = None
        #: When it looks what becomes due though it has no room.
        self._crowded_until: float | None = None

    def run_once(self) -> timedelta | None:
        slots, tasks = self._runner.free(), self._runner.free_for_tasks()
        if filling := self._while_it_fills():
            return filling
        crowded = self._wait_for_room(slots, tasks)
        if slots <= 0 and tasks <= 0:
            return crowded
        names, queued = self._names if slots > 0 else [], self._fairness.tasks if tasks > 0 else []
        if self._will_only_look() and (pause := self._pause(names, queued)):
            return self._sleep(min(pause, crowded))
        if self.listeners.hear(PollBegan):
            self.listeners.publish(PollBegan(worker=self.worker, capacity=max(slots, tasks)))
        if found := self._claim_due(slots, tasks):
            self._claimed(found, max(slots, tasks))
            return AT_ONCE  # a short batch is not an empty one: rows may have been locked for a moment
        if pause := self._pause(names, queued):
            self._locked = None
        pauses = [pause or self._until_unlocked(), crowded]
        if (limited := list(self._fairness.limited)) and tasks > 0:
            # One of a task that runs as often as it may waits for an end, which may come elsewhere.
            pauses.append(self._pause(limited, limited) or self._fairness.shortest_pause)
        return self._sleep(min(pauses))

    def _claimed(self, found: int, room: int) -> None:
        """After a short batch there is hardly more: its handlers may start before one look at what is left."""
        self._locked = self._asleep_until = None
        is_short = 2 * found < min(room, BATCH)
        self._quiet_until = self.elapsed() if is_short else None
        if is_short:
            self._give_way()

    def _while_it_fills(self) -> timedelta | None:
        """How long to wait for room for a batch: a settlement comes before, and wakes it. If none comes, handlers that
        were quick have become slow; then slots that came due since are looked for.
        """
        if not self._runner.fills_up or self._store.slots_may_be_due:
            self._filled_by = None
            return None
        if self._filled_by is None:
            self._filled_by = self.elapsed() + FILLING.total_seconds()
        return timedelta(seconds=max(self._filled_by - self.elapsed(), 0)) or None

    def _claim_due(self, slots: int, tasks: int) -> int:
        """Slots go first; but whoever was woken for a task starts that, and comes back for slots at once. While tasks
        come, their claim says whether slots are due, too.
        """
        for_tasks, self._woken_for_tasks = self._woken_for_tasks, False
        knows_of_none = not self._store.slots_may_be_due
        if (for_tasks or knows_of_none) and (found := self._claim_in_turn(tasks)):
            return found
        found = self._claim_slots(slots, self._names)
        if for_tasks or knows_of_none:
            return found
        if found and self._runner.claims_for_free_threads:
            tasks = self._runner.free_for_tasks()  # those that the slots have left
        return found + self._claim_in_turn(tasks)

    def wake_for(self, names: Collection[str]) -> None:
        """Rows of these tasks are due, or soon will be."""
        self._woken_for_tasks = self._woken_for_tasks or not self._one_time.isdisjoint(names)
        self.wake()

    def _until_unlocked(self) -> timedelta:
        """A due row that cannot be had is locked: by a peer that claims it just now, or by somebody for longer. Or this
        worker was a moment too early. So it looks again very soon, and then ever later.
        """
        if self._locked is None:
            self._locked = growing_pauses(*LOCKED_PAUSES)
        return next(self._locked)

    def look(self) -> None:
        """An attempt has ended in this process; what follows it may be due, and what had waited for room is."""
        self._woken_by_an_end = True
        self.wake()

    def _will_only_look(self) -> bool:
        """Nothing was due to come, and nobody has woken it, or an end has: one look will do, where a claim is two
        statements. Race: what was known to come is due by now; that is claimed at once.
        """
        was_end, self._woken_by_an_end = self._woken_by_an_end, False
        if self._woken_for_tasks or self._fairness.limited:
            return False
        if was_end and self._asleep_until is not None and self.elapsed() < self._asleep_until:
            return True
        return self._quiet_until is not None and self.elapsed() >= self._quiet_until

    def _sleep(self, pause: timedelta) -> timedelta:
        is_quiet = pause >= self._poll_interval
        pause = self._peers.spread(self._poll_interval) if is_quiet else pause
        self._asleep_until = self.elapsed() + pause.total_seconds()
        self._quiet_until = self._asleep_until if is_quiet else None
        return pause

    def _pause(self, names: Sequence[str], tasks: Sequence[str]) -> timedelta:
        """How long there is nothing to do, counted from before it asked: what the answer took is over."""
        asked = self.elapsed()
        due = self._store.next_due(names, tasks, lost=self._lost())
        if due is None:
            return self._poll_interval
        if due <= timedelta(0):
            return AT_ONCE
        return max(due + self._peers.offset() - timedelta(seconds=self.elapsed() - asked), IN_A_MOMENT)

    def _wait_for_room(self, slots: int, tasks: int) -> timedelta:
        """How long to wait, where there is no room: a settlement frees some, and wakes it. Of what comes due before,
        others are told, once. Most of the time there is room again within a moment, and nobody looks.
        """
        if slots > 0 and tasks > 0:
            self._crowded_until = None
            return self._poll_interval
        now = self.elapsed()
        if self._crowded_until is None:
            self._crowded_until = now + min(CROWDED, self._poll_interval).total_seconds()
        elif now >= self._crowded_until:
            pause = self._pause(self._names if slots <= 0 else [], self._fairness.tasks if tasks <= 0 else [])
            if pause == AT_ONCE:
                self._pass_on()
                pause = self._poll_interval
            self._crowded_until = now + min(pause, self._poll_interval).total_seconds()
        return timedelta(seconds=self._crowded_until - now)

    def _lost(self) -> int:
        """How many rows may be taken whose holder has died before: one, and none beside another that is fresh.

        Whatever killed that holder may be among them: together again, it would take its neighbours along again.
        """
        return int(not any(holding.waited() < self._lease for holding in self._active_claims.lost_before()))

    def claim(self, limit: int) -> int:
        """Claim up to ``limit`` due rows, slots first; they are handed to the runner. How many it found."""
        found = self._claim_slots(limit, self._names)
        return found + self._claim_in_turn(limit - found)

    def _claim_in_turn(self, limit: int) -> int:
        """One statement for all tasks without a limit; one look at those that have one, and a claim for each that is
        due and may have a place.
        """
        if limit <= 0:
            return 0
        awake, found = self._fairness.awake(), 0
        due = self._store.due_tasks(awake) if awake else ()
        for turn in self._fairness.line():
            if turn is None:
                found += self._claim_unlimited(limit - found)
            elif turn in due:
                found += self._claim_limited(limit - found, turn)
        return found

    def _claim_unlimited(self, limit: int) -> int:
        if limit <= 0:
            return 0  # those with a limit, whose turn was before, have taken all the room
        claims = self._look(min(limit, BATCH), tuple(self._fairness.tasks))
        if claims:
            self._fairness.served(None, {claim.row.task_name for claim in claims})
        return len(claims)

    def _look(self, limit: int, names: Sequence[str]) -> list[Claim]:
        """From the marks on, while batches come back full; else, and once a second, from the beginning."""
        claims, began = list[Claim](), self.elapsed()
        if self._queue_cursors.are_good(began):
            claims = self._claim_tasks(limit, names, self._queue_cursors.ranges(names, full=False))
            self._queue_cursors.found(claims, limit)
            if len(claims) * 2 >= limit:
                return claims
            limit, began = limit - len(claims), self.elapsed()
        others = self._claim_tasks(limit, names, self._queue_cursors.ranges(names, full=True))
        self._queue_cursors.looked(names, others, limit, began, self.elapsed())
        return claims + others

    def _claim_limited(self, limit: int, name: str) -> int:
        if limit <= 0:
            return 0
        slots = self._claim_slots(limit, [name])
        found = slots + len(self._claim_tasks(limit - slots, [name]))
        if found:
            self._fairness.served(name)
        else:
            self._fairness.rest(name)
        return found

    def _claim_slots(self, limit: int, names: Sequence[str]) -> int:
        if limit <= 0:
            return 0
        before = self.elapsed()  # the lease is believed in from before the statement was sent
        with self._active_claims.claiming():
            found, claims = self._store.claim_slots(
                self.worker,
                limit,
                lease=self._lease,
                names=names,
                lost=self._lost(),
                on_skipped=self._tell_skipped,
            )
            held = self._active_claims.add(claims, before)
        self._start(held)
        return found

    def _claim_tasks(self, limit: int, names: Sequence[str], ranges: Sequence[Range] | None = None) -> list[Claim]:
        if limit <= 0 or not names:
            return []
        before = self.elapsed()
        with self._active_claims.claiming():
            claims = self._store.claim_tasks(self.worker, limit, lease=self._lease, names=names, ranges=ranges)
            held = self._active_claims.add(claims, before)
        self._start(held)
        return claims

    def _tell_skipped(self, row: Row, gap: Gap) -> None:
        self.listeners.publish(skipped(self.worker, row, gap))

    def adopt(self, claim: Claim, before: float) -> Holding:
        """Run a claim that was made elsewhere; ``before``: elapsed seconds when its statement was sent."""
        held = self._active_claims.add([claim], before)
        self._start(held)
        return held[0]

    def _start(self, held: Sequence[Holding]) -> None:
        if self.listeners.hear(Claimed):
            for holding in held:
                self.listeners.publish(Claimed(**about(holding.claim)))
        self._runner.start(held, first=bool(held) and held[0].is_slot)
