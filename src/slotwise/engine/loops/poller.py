"""Claim due rows, slots and one-time tasks, as far as there is room: the poller, its turns and its peers."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Unpack

from slotwise.engine.loops.service import AT_ONCE, Service, ServiceOptions
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

#: Approximate duration of one claim, and the distance between the polls of two peers.
OFFSET_STEP = timedelta(milliseconds=1)
#: The longest such wait, however many peers there are.
LONGEST_OFFSET = timedelta(milliseconds=25)
#: A poll comes early by up to this fraction of the interval.
POLL_JITTER = 0.1


class Peers:
    """The number of workers that run the same tasks, this one included, as of the last heartbeat.

    Each worker draws a random place for each poll: with fixed places the first one would get all the work. A worker
    that is alone never waits.
    """

    def __init__(self) -> None:
        self.count = 1

    def offset(self) -> timedelta:
        """Return how long to let other workers go first."""
        return min(OFFSET_STEP * (random.random() * (self.count - 1)), LONGEST_OFFSET)

    def spread(self, interval: timedelta) -> timedelta:
        """Return the interval, or a little less, so that polls of peers do not stay in step."""
        return interval * (1 - POLL_JITTER * random.random()) if self.count > 1 else interval


#: Bounds of the pause until the next query for a free place of a limited task.
FULL_PAUSE = timedelta(milliseconds=250)
LEAST_PAUSE = timedelta(milliseconds=100)


@dataclass(slots=True)
class _Limited:
    """A task with a limit. Where no place was free, it rests for ``pause`` seconds."""

    pause: float
    rests_until: float = 0.0
    held: Sequence[Claim] = ()


class Fairness:
    """A round robin of tasks: a row waits for at most one claim of each task that floods the queue.

    All tasks without a limit share one place in the line and have an order of their own: one statement claims them.
    Each task with a limit has its own place and its own claim.
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
        """Return the limited tasks by name, and None for all others, the one that has waited longest first."""
        return tuple(self._line)

    def awake(self) -> list[str]:
        """Return the limited tasks that do not rest. A claim of ours that ends frees a place and wakes its task."""
        now, held = self._elapsed(), self._active_claims
        return [
            name
            for name, one in self.limited.items()
            if now >= one.rests_until or any(claim not in held for claim in one.held)
        ]

    def rest(self, name: str) -> None:
        """Let a task rest whose due rows found no free place."""
        one = self.limited[name]
        one.held = [holding.claim for holding in self._active_claims if holding.claim.row.task_name == name]
        one.rests_until = self._elapsed() + one.pause

    def served(self, turn: str | None, names: Collection[str] = ()) -> None:
        """Move the turn, and the tasks of which it claimed rows, to the end of the line."""
        if len(self._line) > 1:
            self._line.remove(turn)
            self._line.append(turn)
        if len(self.tasks) > 1:
            self.tasks.sort(key=names.__contains__)  # the sort is stable


def _pause(task: Definition) -> timedelta:
    rate = task.rate_limit
    return FULL_PAUSE if rate is None else max(min(FULL_PAUSE, rate.window / rate.count), LEAST_PAUSE)


#: First and longest pause before the next attempt to claim a due row that was locked.
LOCKED_PAUSES = timedelta(milliseconds=2), timedelta(milliseconds=100)
#: When full for this long, check what is due and wake other workers.
CROWDED = timedelta(milliseconds=100)
#: Fast tasks make room for a whole batch within this time.
FILLING = timedelta(milliseconds=50)
#: The shortest pause that is not ``AT_ONCE``.
IN_A_MOMENT = timedelta(microseconds=1)


class Poller(Service):
    """Claim due rows; sleep until the next one, at most for the poll interval. After a full batch, poll at once.

    Races: other workers may not know of a slot or a retry that this worker has settled and that is due soon. If this
    worker has no room at that time, it passes the wake-up on (``pass_on``). All workers that sleep until the same row
    would claim it at once, so peers poll at slightly different times.
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
        **service: Unpack[ServiceOptions],
    ) -> None:
        super().__init__(**service)
        self._store = store
        self._active_claims = active_claims
        known = [store.definitions[name] for name in names]
        one_time = [found for found in known if not found.is_job]
        self._one_time = frozenset(found.name for found in one_time)
        self._fairness = Fairness(one_time, active_claims, self.elapsed)
        #: All tasks without a limit.
        self._names = [name for name in names if name not in self._fairness.limited]
        self._lease = lease
        self._poll_interval = poll_interval
        self._runner = runner
        self._peers = peers
        self._pass_on = pass_on
        self._queue_cursors = QueueCursors()
        #: Until then no row was known to become due.
        self._quiet_until: float | None = None
        #: Until then the poller sleeps, unless woken; None after a claim.
        self._asleep_until: float | None = None
        self._woken_by_an_end = False
        #: Pauses before the next attempt to claim locked rows.
        self._locked: Iterator[timedelta] | None = None
        self._woken_for_tasks = False
        #: Until then the poller waits for room for a whole batch.
        self._filled_by: float | None = None
        #: When to check what is due although there is no room.
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
            return AT_ONCE  # a partial batch does not mean an empty queue: rows may have been locked
        if pause := self._pause(names, queued):
            self._locked = None
        pauses = [pause or self._until_unlocked(), crowded]
        if (limited := list(self._fairness.limited)) and tasks > 0:
            # A task at its limit waits for an end, perhaps on another worker.
            pauses.append(self._pause(limited, limited) or self._fairness.shortest_pause)
        return self._sleep(min(pauses))

    def _claimed(self, found: int, room: int) -> None:
        """After a partial batch little is left, so its handlers start before the next query."""
        self._locked = self._asleep_until = None
        is_short = 2 * found < min(room, BATCH)
        self._quiet_until = self.elapsed() if is_short else None
        if is_short:
            self._give_way()

    def _while_it_fills(self) -> timedelta | None:
        """Return how long to wait for room for a batch.

        Usually a settlement wakes the poller before. If none does, quick handlers have become slow, and the poller
        looks for slots that came due since.
        """
        if not self._runner.fills_up or self._store.claims.slots_may_be_due:
            self._filled_by = None
            return None
        if self._filled_by is None:
            self._filled_by = self.elapsed() + FILLING.total_seconds()
        return timedelta(seconds=max(self._filled_by - self.elapsed(), 0)) or None

    def _claim_due(self, slots: int, tasks: int) -> int:
        """Claim slots before tasks, unless a task woke the poller: then the task goes first and slots follow at once.

        While tasks come in, their claim also reports whether slots are due.
        """
        for_tasks, self._woken_for_tasks = self._woken_for_tasks, False
        knows_of_none = not self._store.claims.slots_may_be_due
        if (for_tasks or knows_of_none) and (found := self._claim_in_turn(tasks)):
            return found
        found = self._claim_slots(slots, self._names)
        if for_tasks or knows_of_none:
            return found
        if found and self._runner.claims_for_free_threads:
            tasks = self._runner.free_for_tasks()  # what the slots have left free
        return found + self._claim_in_turn(tasks)

    def wake_for(self, names: Collection[str]) -> None:
        """Wake the poller: rows of these tasks are due, or soon will be."""
        self._woken_for_tasks = self._woken_for_tasks or not self._one_time.isdisjoint(names)
        self.wake()

    def _until_unlocked(self) -> timedelta:
        """Return the growing pause before the next attempt to claim a due row that is locked.

        A peer may be claiming the row, another transaction may hold it for longer, or this worker was a moment early.
        """
        if self._locked is None:
            self._locked = growing_pauses(*LOCKED_PAUSES)
        return next(self._locked)

    def look(self) -> None:
        """Wake the poller after the end of an attempt: its next slot may be due, and there is room again."""
        self._woken_by_an_end = True
        self.wake()

    def _will_only_look(self) -> bool:
        """Return whether one query for the next due time will do, where a claim takes two statements.

        It does if no row was known to become due, and nothing or only the end of an attempt has woken the poller.
        Race: a row that was known to become due may be due by now; it is claimed at once.
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
        """Return the time until the next due row, less the duration of the query."""
        asked = self.elapsed()
        due = self._store.due.next_due(names, tasks, lost=self._lost())
        if due is None:
            return self._poll_interval
        if due <= timedelta(0):
            return AT_ONCE
        return max(due + self._peers.offset() - timedelta(seconds=self.elapsed() - asked), IN_A_MOMENT)

    def _wait_for_room(self, slots: int, tasks: int) -> timedelta:
        """Return how long to wait when there is no room.

        A settlement frees room and wakes the poller. If none does, the poller checks what is due and wakes other
        workers, once. Usually there is room within a moment, and no query is made.
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
        """Return how many rows of dead holders may be claimed: one, and none beside another fresh one.

        One of these rows may have killed its holder; claimed together, it would take its neighbours down again.
        """
        return int(not any(holding.waited() < self._lease for holding in self._active_claims.lost_before()))

    def claim(self, limit: int) -> int:
        """Claim up to ``limit`` due rows, slots first, hand them to the runner, and return how many were found."""
        found = self._claim_slots(limit, self._names)
        return found + self._claim_in_turn(limit - found)

    def _claim_in_turn(self, limit: int) -> int:
        """Claim tasks in turn: one statement for all without a limit, and one claim per limited task that is due."""
        if limit <= 0:
            return 0
        awake, found = self._fairness.awake(), 0
        due = self._store.due.due_tasks(awake) if awake else ()
        for turn in self._fairness.line():
            if turn is None:
                found += self._claim_unlimited(limit - found)
            elif turn in due:
                found += self._claim_limited(limit - found, turn)
        return found

    def _claim_unlimited(self, limit: int) -> int:
        if limit <= 0:
            return 0  # limited tasks, whose turn came before, have taken all the room
        claims = self._look(min(limit, BATCH), tuple(self._fairness.tasks))
        if claims:
            self._fairness.served(None, {claim.row.task_name for claim in claims})
        return len(claims)

    def _look(self, limit: int, names: Sequence[str]) -> list[Claim]:
        """Claim from the queue cursors on while batches are full; otherwise, and once a second, from the beginning."""
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
        before = self.elapsed()  # the lease counts from before the statement was sent
        with self._active_claims.claiming():
            found, claims = self._store.claims.claim_slots(
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
            claims = self._store.claims.claim_tasks(self.worker, limit, lease=self._lease, names=names, ranges=ranges)
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
