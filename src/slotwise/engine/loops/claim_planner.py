"""What to claim next: sizes, order, when to look and how long to sleep. Pure: no database, and instants are passed in.

``ClaimPlanner.round`` yields steps. The poller does each, writes its result into the step, and sends the time in
elapsed seconds. The round returns how long to sleep.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple, TypeAlias

from slotwise.engine.loops.service import AT_ONCE
from slotwise.engine.run.active_claims import ActiveClaims
from slotwise.jobs.definition import Definition
from slotwise.jobs.policies import growing_pauses
from slotwise.model.records import Claim
from slotwise.store.dialects.queue_cursors import QueueCursors, Range
from slotwise.store.slots.claims import BATCH

#: Approximate duration of one claim, and the distance between the polls of two peers.
OFFSET_STEP = timedelta(milliseconds=1)
#: The longest such wait, however many peers there are.
LONGEST_OFFSET = timedelta(milliseconds=25)
#: A poll comes early by up to this fraction of the interval.
POLL_JITTER = 0.1
#: Tasks claimed ahead should start within this time, in seconds: enough for the next claim to return.
AHEAD = 0.1
#: At most this many are claimed ahead: a batch being claimed, one that runs, and one being settled.
MOST_AHEAD = 3 * BATCH
#: Seconds, at least, over which ends are counted. They come in lumps, one per settlement; several must fit.
RATE_WINDOW = 0.1
#: Bounds of the pause until the next query for a free place of a limited task.
FULL_PAUSE = timedelta(milliseconds=250)
LEAST_PAUSE = timedelta(milliseconds=100)
#: First and longest pause before the next attempt to claim a due row that was locked.
LOCKED_PAUSES = timedelta(milliseconds=2), timedelta(milliseconds=100)
#: When full for this long, check what is due and wake other workers.
CROWDED = timedelta(milliseconds=100)
#: Fast tasks make room for a whole batch within this time.
FILLING = timedelta(milliseconds=50)
#: The shortest pause that is not ``AT_ONCE``.
IN_A_MOMENT = timedelta(microseconds=1)


class Peers:
    """The number of workers that run the same tasks, this one included, as of the last heartbeat.

    All workers that sleep until the same row would claim it at once, so each draws a random place for each poll: with
    fixed places the first one would get all the work. A worker that is alone never waits.
    """

    def __init__(self) -> None:
        self.count = 1

    def offset(self) -> timedelta:
        """Return how long to let other workers go first."""
        return min(OFFSET_STEP * (random.random() * (self.count - 1)), LONGEST_OFFSET)

    def spread(self, interval: timedelta) -> timedelta:
        """Return the interval, or a little less, so that polls of peers do not stay in step."""
        return interval * (1 - POLL_JITTER * random.random()) if self.count > 1 else interval


class Prefetch:
    """Measure how fast attempts end, and derive how many more will start within ``AHEAD``.

    The lower rate of the last two windows counts: ten handlers of one second each that end in the same millisecond do
    not mean that ten more will end in the next.
    """

    def __init__(self, margin: timedelta, now: float) -> None:
        """``margin``: a claim that could not start for this long is handed back."""
        self._ahead = min(AHEAD, margin.total_seconds() / 4)
        self._at = now
        self._ended = 0
        self._rates = (0.0, 0.0)

    def ahead(self, ended: int, now: float) -> int:
        """Return how many claims may wait for a thread; ``ended``: number of attempts that have ended so far."""
        if (passed := now - self._at) >= RATE_WINDOW:
            self._rates = (self._rates[1], (ended - self._ended) / passed)
            self._at, self._ended = now, ended
        return min(int(min(self._rates) * self._ahead), MOST_AHEAD)

    @staticmethod
    def worth_claiming(ahead: int) -> int:
        """Return the smallest batch worth a claim; there is room for it soon."""
        return min(ahead // 2, BATCH) if ahead >= BATCH else 0


@dataclass(slots=True)
class _Limited:
    """A task with a limit. Where no place was free, it rests for ``pause``."""

    pause: timedelta
    rests_until: float = 0.0
    held: Sequence[Claim] = ()


class Fairness:
    """A round robin of tasks: a row waits for at most one claim of each task that floods the queue.

    All tasks without a limit share one place in the line and have an order of their own: one statement claims them.
    Each task with a limit has its own place and its own claim.
    """

    def __init__(self, tasks: Collection[Definition], active_claims: ActiveClaims) -> None:
        self.tasks = [found.name for found in tasks if not found.is_limited]
        self.limited = {found.name: _Limited(_pause(found)) for found in tasks if found.is_limited}
        #: The limited tasks by name, and None for all others, the one that has waited longest first.
        self.line: list[str | None] = [None, *self.limited]
        self._active_claims = active_claims

    def awake(self, now: float) -> list[str]:
        """Return the limited tasks that do not rest. A claim of ours that ends frees a place and wakes its task."""
        return [
            name
            for name, one in self.limited.items()
            if now >= one.rests_until or any(claim not in self._active_claims for claim in one.held)
        ]

    def rest(self, name: str, now: float) -> None:
        """Let a task rest whose due rows found no free place."""
        one = self.limited[name]
        one.held = [holding.claim for holding in self._active_claims if holding.claim.row.task_name == name]
        one.rests_until = now + one.pause.total_seconds()

    def served(self, turn: str | None, names: Collection[str] = ()) -> None:
        """Move the turn, and the tasks of which it claimed rows, to the end of the line."""
        if len(self.line) > 1:
            self.line.remove(turn)
            self.line.append(turn)
        if len(self.tasks) > 1:
            self.tasks.sort(key=names.__contains__)  # the sort is stable


def _pause(task: Definition) -> timedelta:
    rate = task.rate_limit
    return FULL_PAUSE if rate is None else max(min(FULL_PAUSE, rate.window / rate.count), LEAST_PAUSE)


class Facts(NamedTuple):
    """The state of the worker when a round begins; ``now`` in elapsed seconds."""

    now: float
    #: How many slots can start now.
    free: int
    #: How many claims are held, and how many have been released so far.
    held: int = 0
    ended: int = 0
    #: As the last claim of one-time tasks has seen it.
    slots_may_be_due: bool = True
    is_draining: bool = False


@dataclass(slots=True)
class Look:
    """Query when the next row of these names, or one-time task of these, is due; ``due`` is None if nothing waits."""

    names: Sequence[str]
    tasks: Sequence[str]
    due: timedelta | None = field(default=None, compare=False)


@dataclass(slots=True)
class FindDue:
    """Query which of these limited tasks have due rows."""

    names: Sequence[str]
    due: Collection[str] = field(default=(), compare=False)


@dataclass(slots=True)
class ClaimSlots:
    """Claim and start slots; ``found`` counts also those that turned out to have nothing to run."""

    limit: int
    names: Sequence[str]
    found: int = field(default=0, compare=False)


@dataclass(slots=True)
class ClaimTasks:
    """Claim and start one-time tasks."""

    limit: int
    names: Sequence[str]
    ranges: Sequence[Range] | None = field(default=None, compare=False)
    claims: Sequence[Claim] = field(default=(), compare=False)


class Begin(NamedTuple):
    """Report that claims follow, with room for ``capacity``."""

    capacity: int


class PassOn(NamedTuple):
    """Wake other workers: rows are due, and this one has no room for them."""


class GiveWay(NamedTuple):
    """Let handlers start before the next query."""


Step: TypeAlias = Look | FindDue | ClaimSlots | ClaimTasks | Begin | PassOn | GiveWay
#: Steps, and what they come to; the time is sent after each.
Steps: TypeAlias = Generator[Step, float, timedelta]
Claiming: TypeAlias = Generator[Step, float, int]
Claims: TypeAlias = Generator[Step, float, Sequence[Claim]]


class ClaimPlanner:
    """Plan the rounds of a poller: claim what is due, then sleep until the next row, at most for the poll interval.

    Race: other workers may not know of a slot or a retry that this worker has settled and that is due soon. If this
    worker has no room at that time, it wakes them (``PassOn``).
    """

    def __init__(
        self,
        names: Sequence[str],
        definitions: Mapping[str, Definition],
        active_claims: ActiveClaims,
        *,
        capacity: int,
        runs_ahead: bool,
        margin: timedelta,
        poll_interval: timedelta,
        peers: Peers,
        now: float,
    ) -> None:
        """``runs_ahead``: whether one-time tasks may be claimed before a thread is free for them."""
        one_time = [definitions[name] for name in names if not definitions[name].is_job]
        self._one_time = frozenset(found.name for found in one_time)
        self._fairness = Fairness(one_time, active_claims)
        #: All tasks without a limit, those of jobs included.
        self._names = [name for name in names if name not in self._fairness.limited]
        self._capacity = capacity
        self._runs_ahead = runs_ahead
        self._now = now
        self._prefetch = Prefetch(margin, now)
        self._poll_interval = poll_interval
        self._peers = peers
        self._queue_cursors = QueueCursors()
        #: Until then no row was known to become due.
        self._quiet_until: float | None = None
        #: Until then the poller sleeps, unless woken; None after a claim.
        self._asleep_until: float | None = None
        #: Pauses before the next attempt to claim locked rows.
        self._locked: Iterator[timedelta] | None = None
        #: Until then the poller waits for room for a whole batch.
        self._filled_by: float | None = None
        #: When to check what is due although there is no room.
        self._crowded_until: float | None = None
        self._woken_for_tasks = False
        self._woken_by_an_end = False

    def woken_for(self, names: Collection[str]) -> None:
        """Record, from any thread, that rows of these tasks are due, or soon will be."""
        self._woken_for_tasks = self._woken_for_tasks or not self._one_time.isdisjoint(names)

    def woken_by_an_end(self) -> None:
        """Record, from any thread, that attempts have ended: their next slots may be due, and there is room again."""
        self._woken_by_an_end = True

    def round(self, facts: Facts) -> Steps:
        """Plan one round and return how long to sleep after it."""
        self._now, slots = facts.now, facts.free if self._names else 0
        tasks, fills_up = self._room_for_tasks(facts)
        if filling := self._while_it_fills(fills_up and not facts.slots_may_be_due):
            return filling
        no_slots, no_tasks = bool(self._names) and slots <= 0, bool(self._one_time) and tasks <= 0
        crowded = yield from self._wait_for_room(no_slots=no_slots, no_tasks=no_tasks)
        if slots <= 0 and tasks <= 0:
            return crowded
        names, queued = self._names if slots > 0 else [], self._fairness.tasks if tasks > 0 else []
        if self._will_only_look() and (pause := (yield from self._look(names, queued))):
            return self._sleep(min(pause, crowded))
        self._now = yield Begin(max(slots, tasks))
        if found := (yield from self._claim_due(slots, tasks, facts.slots_may_be_due)):
            return (yield from self._claimed(found, max(slots, tasks)))
        if pause := (yield from self._look(names, queued)):
            self._locked = None
        pauses = [pause or self._until_unlocked(), crowded]
        if (limited := list(self._fairness.limited)) and tasks > 0:
            # A task at its limit waits for an end, perhaps on another worker.
            shortest = min(one.pause for one in self._fairness.limited.values())
            pauses.append((yield from self._look(limited, limited)) or shortest)
        return self._sleep(min(pauses))

    def claim(self, limit: int, now: float) -> Claiming:
        """Plan to claim up to ``limit`` due rows, slots first; return how many were found."""
        self._now = now
        slots = yield from self._claim_slots(limit, self._names)
        return slots + (yield from self._claim_in_turn(limit - slots))

    # -- room -------------------------------------------------------------------------------------------------

    def _room_for_tasks(self, facts: Facts) -> tuple[int, bool]:
        """Return how many one-time tasks to claim, and whether a claim should wait for room for a whole batch."""
        if facts.is_draining or not self._one_time:
            return 0, False
        ahead = self._prefetch.ahead(facts.ended, facts.now) if self._runs_ahead else 0
        room = max(self._capacity + ahead - facts.held, 0)
        fills_up = room < self._prefetch.worth_claiming(ahead)
        return 0 if fills_up else room, fills_up

    def _while_it_fills(self, fills_up: bool) -> timedelta | None:
        """Return how long to wait for room for a batch.

        Usually a settlement wakes the poller before. If none does, quick handlers have become slow, and the poller
        looks for slots that came due since.
        """
        if not fills_up:
            self._filled_by = None
            return None
        if self._filled_by is None:
            self._filled_by = self._now + FILLING.total_seconds()
        return timedelta(seconds=max(self._filled_by - self._now, 0)) or None

    def _wait_for_room(self, *, no_slots: bool, no_tasks: bool) -> Steps:
        """Return how long to wait when there is no room.

        A settlement frees room and wakes the poller. If none does, the poller checks what is due and wakes other
        workers, once. Usually there is room within a moment, and no query is made.
        """
        if not no_slots and not no_tasks:
            self._crowded_until = None
            return self._poll_interval
        if self._crowded_until is None:
            self._crowded_until = self._now + min(CROWDED, self._poll_interval).total_seconds()
        elif self._now >= self._crowded_until:
            tasks = self._fairness.tasks if no_tasks else []
            pause = yield from self._look(self._names if no_slots else [], tasks)
            if pause == AT_ONCE:
                self._now = yield PassOn()
                pause = self._poll_interval
            self._crowded_until = self._now + min(pause, self._poll_interval).total_seconds()
        return timedelta(seconds=self._crowded_until - self._now)

    # -- looks and sleeps -------------------------------------------------------------------------------------

    def _will_only_look(self) -> bool:
        """Return whether one query for the next due time will do, where a claim takes two statements.

        It does if no row was known to become due, and nothing or only the end of an attempt has woken the poller.
        Race: a row that was known to become due may be due by now; it is claimed at once.
        """
        was_end, self._woken_by_an_end = self._woken_by_an_end, False
        if self._woken_for_tasks or self._fairness.limited:
            return False
        if was_end and self._asleep_until is not None and self._now < self._asleep_until:
            return True
        return self._quiet_until is not None and self._now >= self._quiet_until

    def _look(self, names: Sequence[str], tasks: Sequence[str]) -> Steps:
        """Return the time until the next due row, less the duration of the query."""
        if not names and not tasks:
            return self._poll_interval
        look, asked = Look(names, tasks), self._now
        self._now = yield look
        if look.due is None:
            return self._poll_interval
        if look.due <= timedelta(0):
            return AT_ONCE
        return max(look.due + self._peers.offset() - timedelta(seconds=self._now - asked), IN_A_MOMENT)

    def _sleep(self, pause: timedelta) -> timedelta:
        is_quiet = pause >= self._poll_interval
        pause = self._peers.spread(self._poll_interval) if is_quiet else pause
        self._asleep_until = self._now + pause.total_seconds()
        self._quiet_until = self._asleep_until if is_quiet else None
        return pause

    def _until_unlocked(self) -> timedelta:
        """Return the growing pause before the next attempt to claim a due row that is locked.

        A peer may be claiming the row, another transaction may hold it for longer, or this worker was a moment early.
        """
        if self._locked is None:
            self._locked = growing_pauses(*LOCKED_PAUSES)
        return next(self._locked)

    # -- claims -----------------------------------------------------------------------------------------------

    def _claimed(self, found: int, room: int) -> Steps:
        """After a claim poll at once. After a partial batch little is left, so its handlers start first.

        A partial batch does not mean an empty queue: rows may have been locked.
        """
        self._locked = self._asleep_until = self._quiet_until = None
        if 2 * found < min(room, BATCH):
            self._quiet_until = self._now
            self._now = yield GiveWay()
        return AT_ONCE

    def _claim_due(self, slots: int, tasks: int, slots_may_be_due: bool) -> Claiming:
        """Claim slots before tasks, unless a task woke the poller: then the task goes first and slots follow at once.

        While tasks come in, their claim also reports whether slots are due.
        """
        tasks_first, self._woken_for_tasks = self._woken_for_tasks or not slots_may_be_due, False
        if tasks_first and (found := (yield from self._claim_in_turn(tasks))):
            return found
        found = yield from self._claim_slots(slots, self._names)
        if tasks_first:
            return found
        if not self._runs_ahead:
            tasks -= found  # what the slots have left free
        return found + (yield from self._claim_in_turn(tasks))

    def _claim_slots(self, limit: int, names: Sequence[str]) -> Claiming:
        claim = ClaimSlots(limit, names)
        if limit > 0 and names:
            self._now = yield claim
        return claim.found

    def _claim_tasks(self, limit: int, names: Sequence[str], ranges: Sequence[Range] | None = None) -> Claims:
        claim = ClaimTasks(limit, names, ranges)
        if limit > 0:
            self._now = yield claim
        return claim.claims

    def _claim_in_turn(self, limit: int) -> Claiming:
        """Claim tasks in turn: one statement for all without a limit, and one claim per limited task that is due."""
        if limit <= 0:
            return 0
        due, found = FindDue(self._fairness.awake(self._now)), 0
        if due.names:
            self._now = yield due
        for turn in tuple(self._fairness.line):
            if found >= limit:
                break
            if turn is None:
                found += yield from self._claim_unlimited(min(limit - found, BATCH))
            elif turn in due.due:
                found += yield from self._claim_limited(limit - found, turn)
        return found

    def _claim_unlimited(self, limit: int) -> Claiming:
        """Claim from the queue cursors on while batches are full; otherwise, and once a second, from the beginning."""
        names, cursors, claims = tuple(self._fairness.tasks), self._queue_cursors, list[Claim]()
        if not names:
            return 0
        if cursors.are_good(self._now):
            claims += yield from self._claim_tasks(limit, names, cursors.ranges(names, full=False))
            cursors.found(claims, limit)
        if 2 * len(claims) < limit:
            limit, began = limit - len(claims), self._now
            others = yield from self._claim_tasks(limit, names, cursors.ranges(names, full=True))
            cursors.looked(names, others, limit, began, self._now)
            claims += others
        if claims:
            self._fairness.served(None, {claim.row.task_name for claim in claims})
        return len(claims)

    def _claim_limited(self, limit: int, name: str) -> Claiming:
        slots = yield from self._claim_slots(limit, [name])
        found = slots + len((yield from self._claim_tasks(limit - slots, [name])))
        if found:
            self._fairness.served(name)
        else:
            self._fairness.rest(name, self._now)
        return found
