"""Claim due rows, slots and one-time tasks, hand them to the runner, and sleep until the next one
is due.

``ClaimPlanner`` decides sizes, order, when to look and how long to sleep. It knows no database:
the ``Poller`` runs the queries.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta

from slotwise.engine.loops.service import AT_ONCE, BLINK, Service, WorkerCommon
from slotwise.engine.run.active_claims import ActiveClaims, Holding
from slotwise.engine.run.runner import Runner
from slotwise.jobs.definition import Definition
from slotwise.jobs.policies import growing_pauses
from slotwise.model.events import BatchClaimed, Claimed, PollBegan, about
from slotwise.model.records import Claim
from slotwise.store.dialects.port import Range
from slotwise.store.queue.queue_cursors import QueueCursors
from slotwise.store.slots.claims import BATCH, Taken

#: Approximate duration of one claim, and the distance between the polls of two peers.
OFFSET_STEP = timedelta(milliseconds=1)
#: The longest such wait, however many peers there are.
LONGEST_OFFSET = timedelta(milliseconds=25)
#: A poll comes early by up to this fraction of the interval.
POLL_JITTER = 0.1
#: Tasks claimed ahead should start within this time, in seconds, and never exceed the number that
#: follows.
AHEAD = 0.1
MOST_AHEAD = 3 * BATCH
#: Seconds, at least, over which ends are counted: several settlements must fit.
RATE_WINDOW = 0.1
#: A task floods when so many of its rows have filled claims. The next claim first takes one part
#: in OTHERS of that number from all other tasks, whatever the priorities.
FLOOD = 100
OTHERS = 8
#: The pause until the next query for a free place of a limited task.
FULL_PAUSE = timedelta(milliseconds=250)
#: First and longest pause before the next attempt to claim a due row that was locked.
LOCKED_PAUSES = timedelta(milliseconds=2), timedelta(milliseconds=100)
#: When full for this long, check what is due and wake other workers.
CROWDED = timedelta(milliseconds=100)
#: How long a claim waits while fast handlers make room for a whole batch, and how often it looks
#: at slots meanwhile.
FILLING = timedelta(milliseconds=50)
SHORTLY = timedelta(milliseconds=1)
#: After a claim that got no thread in time, claims are limited, for this many heartbeat intervals.
MINDED = 10
#: How much later a worker comes to due rows that has met rows of a newer release: newer workers
#: take these first.
COURTESY = timedelta(milliseconds=100)
#: The shortest pause that is not ``AT_ONCE``.
IN_A_MOMENT = timedelta(microseconds=1)


class Peers:
    """The number of workers that run the same tasks, this one included, as of the last heartbeat.

    Workers that sleep until the same row would claim it at once, so each draws a random place for
    each poll.
    """

    def __init__(self) -> None:
        self.count = 1

    def offset(self) -> timedelta:
        """Return how long to let other workers go first."""
        return min(OFFSET_STEP * (random.random() * (self.count - 1)), LONGEST_OFFSET)

    def spread(self, interval: timedelta) -> timedelta:
        """Return the interval, or a little less, so that polls of peers do not stay in step."""
        return (
            interval * (1 - POLL_JITTER * random.random()) if self.count > 1 else interval
        )


class Prefetch:
    """Derive from how fast attempts end how many more will start within ``AHEAD``.

    The lower rate of the last two windows counts: ten slow handlers that end together do not mean
    that ten more will.
    """

    def __init__(self, margin: timedelta, now: float) -> None:
        """``margin``: a claim that could not start for this long is handed back."""
        self._ahead = min(AHEAD, margin.total_seconds() / 4)
        self._at = now
        self._ended = 0
        self._rates = (0.0, 0.0)

    def ahead(self, ended: int, now: float) -> int:
        """Return how many claims may wait for a thread; ``ended``: number of attempts that have
        ended so far.
        """
        if (passed := now - self._at) >= RATE_WINDOW:
            self._rates = (self._rates[1], (ended - self._ended) / passed)
            self._at = now
            self._ended = ended
        return min(int(min(self._rates) * self._ahead), MOST_AHEAD)


class Starts:
    """Limits how many claims wait for a thread, after one was handed back because it got none in
    time.

    At most as many wait as started in the last heartbeat interval, and at least one; twice as many
    after each interval without such a hand-back. Otherwise slots that another worker could start
    would be claimed here and handed back again and again.
    """

    def __init__(self, active_claims: ActiveClaims, interval: timedelta) -> None:
        self._active_claims = active_claims
        self._interval = interval.total_seconds()
        self._at = active_claims.elapsed()
        self._started = 0
        self._most = 1

    def room(self, now: float) -> int:
        """Return how many more claims may wait for a thread now."""
        if (passed := now - self._at) >= self._interval:
            started, _ = self._active_claims.starts()
            self._most = max(int((started - self._started) * self._interval / passed), 1)
            self._at = now
            self._started = started
        without = (now - self._active_claims.queued_at) / self._interval
        if without > MINDED:
            return sys.maxsize
        return max(
            (self._most << max(int(without), 0)) - self._active_claims.starts()[1], 0
        )


class Fairness:
    """A round robin of tasks: a row waits for at most one claim of each task that floods the
    queue.

    All tasks without a limit share one place in the line, because one statement claims them, and
    have an order there.
    """

    def __init__(self, tasks: Collection[Definition], active_claims: ActiveClaims) -> None:
        self.tasks = [found.name for found in tasks if not found.is_limited]
        self.limited = [found.name for found in tasks if found.is_limited]
        #: The limited tasks by name, and None for all others, the one that has waited longest
        #: first.
        self.line: list[str | None] = [None, *self.limited]
        self._active_claims = active_claims
        #: How many rows of a task have filled claims since the others had their turn.
        self._filled = Counter[str]()
        #: Where no place was free: until when the task rests, and its claims in this process.
        self._resting: dict[str, tuple[float, list[Claim]]] = {}

    def awake(self, now: float) -> list[str]:
        """Return the limited tasks that do not rest. A claim of ours that ends frees a place and
        wakes its task.
        """
        return [name for name in self.limited if not self._rests(name, now)]

    def _rests(self, name: str, now: float) -> bool:
        until, held = self._resting.get(name, (0.0, []))
        return now < until and all(claim in self._active_claims for claim in held)

    def rest(self, name: str, now: float) -> None:
        """Let a task rest whose due rows found no free place."""
        held = [
            holding.claim
            for holding in self._active_claims
            if holding.claim.row.task_name == name
        ]
        self._resting[name] = now + FULL_PAUSE.total_seconds(), held

    def others(self) -> tuple[list[str], int]:
        """If tasks flood, return those that may wait behind them, and how many of their rows go
        first now.
        """
        floods = {name: rows for name, rows in self._filled.items() if rows >= FLOOD}
        for name in floods:
            del self._filled[name]
        return [name for name in self.tasks if floods and name not in floods], max(
            floods.values(), default=0
        ) // OTHERS

    def found(
        self, names: Sequence[str], limit: int, refused: Collection[str], *, is_whole: bool
    ) -> None:
        """Count the rows of a claim that is full; one of all tasks that is not full ends all
        floods.

        A task of which rows were ``refused`` floods at once.
        """
        if len(names) >= limit and len(self.tasks) > 1:
            self._filled += Counter(dict(Counter(names).most_common(1)))
        elif is_whole:
            self._filled.clear()
        self._filled += Counter(dict.fromkeys(refused, FLOOD))

    def served(self, turn: str | None, names: Collection[str] = ()) -> None:
        """Move the turn, and the tasks of which it claimed rows, to the end of the line."""
        if len(self.line) > 1:
            self.line.remove(turn)
            self.line.append(turn)
        if len(self.tasks) > 1:
            self.tasks.sort(key=names.__contains__)  # the sort is stable


class ClaimPlanner:
    """Plan the rounds of a poller: claim what is due, then sleep until the next row, at most for
    the poll interval.
    """

    def __init__(
        self,
        poller: Poller,
        names: Sequence[str],
        definitions: Mapping[str, Definition],
        active_claims: ActiveClaims,
        runner: Runner,
        *,
        poll_interval: timedelta,
        peers: Peers,
    ) -> None:
        self._poller = poller
        self._active_claims = active_claims
        self._elapsed = active_claims.elapsed
        one_time = [definitions[name] for name in names if not definitions[name].is_job]
        self._one_time = frozenset(found.name for found in one_time)
        self._fairness = Fairness(one_time, active_claims)
        #: All tasks without a limit, those of jobs included.
        self._names = [name for name in names if name not in self._fairness.limited]
        self._capacity = runner.capacity
        self._runs_ahead = runner.runs_ahead
        self._prefetch = Prefetch(runner.margin, self._elapsed())
        self._starts = Starts(active_claims, runner.margin)
        self._poll_interval = poll_interval
        self._peers = peers
        self._queue_cursors = QueueCursors()
        #: The jobs of which the last claim has refused rows; the next one leaves them out.
        self._refused: list[str] = []
        #: When the next known row is due, in elapsed seconds: infinity if none is known.
        self._known_due = 0.0
        #: Pauses before the next attempt to claim locked rows.
        self._locked: Iterator[timedelta] | None = None
        #: When to check what is due although there is no room, and wake other workers, which may
        #: not know of it.
        self._crowded_until: float | None = None
        self._woken_for_tasks = False
        #: Until when rounds wait for more room for slots, and the room at the last one; None if
        #: that did not wait.
        self._filling: tuple[float, int] | None = None

    def woken_for(self, names: Collection[str]) -> None:
        """Record, from any thread, that rows of these tasks are due, or soon will be."""
        self._woken_for_tasks = self._woken_for_tasks or not self._one_time.isdisjoint(
            names
        )

    def round(self, free: int, *, slots_may_be_due: bool) -> timedelta:
        """Do one round, with room for ``free`` slots, and return how long to sleep after it."""
        now = self._elapsed()
        bound = self._starts.room(now)
        slots = min(free, bound) if self._names else 0
        tasks, fills_up = self.room_for_tasks(now)
        tasks = min(tasks, bound)
        if fills_up and not slots_may_be_due:
            return FILLING  # usually a settlement wakes the poller before
        no_slots = bool(self._names) and slots <= 0
        no_tasks = bool(self._one_time) and tasks <= 0
        if self._fills_up(slots, now) and not self._woken_for_tasks:
            return SHORTLY
        crowded = self._wait_for_room(now, no_slots=no_slots, no_tasks=no_tasks)
        if slots <= 0 and tasks <= 0:
            return crowded
        names = self._names if slots > 0 else []
        queued = self._fairness.tasks if tasks > 0 else []
        # While no known row is due, one look for the next due time will do, where a claim takes
        # two statements.
        limited = self._fairness.limited
        only_looks = now < self._known_due and not self._woken_for_tasks and not limited
        if only_looks and (pause := self._look(names, queued)):
            return self._sleep(min(pause, crowded))
        self._poller.begin(max(slots, tasks))
        if found := self._claim_due(slots, tasks, slots_may_be_due):
            # After a partial batch little is left, so its handlers start first. But rows may have
            # been locked.
            is_partial = 2 * found < min(max(slots, tasks), BATCH)
            self._locked = None
            self._known_due = math.inf if is_partial else 0.0
            if is_partial:
                self._poller.give_way()
            return AT_ONCE
        if pause := self._look(names, queued):
            self._locked = None
        else:
            # A peer is claiming the row, another transaction holds it for longer, or this worker
            # was a moment early.
            self._locked = self._locked or growing_pauses(*LOCKED_PAUSES)
            pause = next(self._locked)
        pauses = [pause, crowded]
        if limited and tasks > 0:
            # A task at its limit waits for an end, perhaps on another worker.
            pauses.append(self._look(limited, limited) or FULL_PAUSE)
        return self._sleep(min(pauses))

    def _fills_up(self, slots: int, now: float) -> bool:
        """Return whether a claim should wait, as short handlers make room for more slots while
        they end.

        Small claims cost almost as much as large ones. After a full claim more is due than there
        is room for.
        """
        is_short = self._prefetch.ahead(self._active_claims.removed, now) >= self._capacity
        is_small = bool(self._names) and slots < min(self._capacity, BATCH) // 2
        if not (is_small and is_short and self._known_due == 0.0):
            self._filling = None
            return False
        until, room = self._filling or (now + FILLING.total_seconds(), 0)
        is_growing = self._filling is None or slots <= 0 or slots > room
        self._filling = (until, slots) if is_growing and now < until else None
        return self._filling is not None

    def claim(self, limit: int) -> int:
        """Claim up to ``limit`` due rows, slots first; return how many were found."""
        slots = self._claim_slots(limit)
        return slots + self._claim_in_turn(limit - slots)

    def room_for_tasks(self, now: float) -> tuple[int, bool]:
        """Return how many one-time tasks to claim, and whether a claim should wait for room for a
        whole batch.
        """
        if not self._one_time:
            return 0, False
        ahead = (
            self._prefetch.ahead(self._active_claims.removed, now)
            if self._runs_ahead
            else 0
        )
        room = max(
            self._capacity
            + ahead
            - len(self._active_claims)
            + self._active_claims.ended_slots(),
            0,
        )
        fills_up = ahead >= BATCH and room < min(
            ahead // 2, BATCH
        )  # there is room for a batch worth a claim soon
        return 0 if fills_up else room, fills_up

    def _wait_for_room(self, now: float, *, no_slots: bool, no_tasks: bool) -> timedelta:
        """Return how long to wait for a settlement, which frees room; once it is due, wake others
        for what waits.
        """
        if not no_slots and not no_tasks:
            self._crowded_until = None
            return self._poll_interval
        if self._crowded_until is None:
            self._crowded_until = now + min(CROWDED, self._poll_interval).total_seconds()
        elif now >= self._crowded_until:
            pause = self._look(
                self._names if no_slots else [], self._fairness.tasks if no_tasks else []
            )
            if pause == AT_ONCE:
                self._poller.pass_on()
                pause = self._poll_interval
            now = self._elapsed()
            self._crowded_until = now + min(pause, self._poll_interval).total_seconds()
        return timedelta(seconds=self._crowded_until - now)

    # -- looks and sleeps -------------------------------------------------------------------------

    def _look(self, names: Sequence[str], tasks: Sequence[str]) -> timedelta:
        """Return the time until the next due row, less the duration of the query."""
        asked = self._elapsed()
        due = self._poller.next_due(names, tasks) if names or tasks else None
        if due is None:
            return self._poll_interval
        if due <= timedelta(0):
            return AT_ONCE
        return max(
            due + self._peers.offset() - timedelta(seconds=self._elapsed() - asked),
            IN_A_MOMENT,
        )

    def _sleep(self, pause: timedelta) -> timedelta:
        if pause >= self._poll_interval:
            self._known_due = math.inf
            return self._peers.spread(self._poll_interval)
        self._known_due = self._elapsed() + pause.total_seconds()
        return pause

    # -- claims -----------------------------------------------------------------------------------

    def _claim_due(self, slots: int, tasks: int, slots_may_be_due: bool) -> int:
        """Claim slots before tasks, unless a task woke the poller, or the last claim of tasks saw
        no slot due.
        """
        tasks_first = self._woken_for_tasks or not slots_may_be_due
        self._woken_for_tasks = False
        if tasks_first:
            return self._claim_in_turn(tasks) or self._claim_slots(slots)
        found = self._claim_slots(slots)
        # Tasks that may not wait for a thread get what the slots have left free.
        return found + self._claim_in_turn(tasks if self._runs_ahead else tasks - found)

    def _claim_slots(self, limit: int) -> int:
        if limit <= 0 or not self._names:
            return 0
        refused = self._refused
        self._refused = []
        others = [name for name in self._names if name not in refused] if refused else []
        found = self._poller.claim_slots(limit, others) if others else 0
        if not found:
            found = self._poller.claim_slots(limit, self._names)
            self._refused = self._poller.refused()
        return found

    def _claim_in_turn(self, limit: int) -> int:
        """Claim tasks in turn: all without a limit at once, and each limited task that is due."""
        if limit <= 0:
            return 0
        awake = self._fairness.awake(self._elapsed())
        found = 0
        due = self._poller.due_tasks(awake) if awake else ()
        for turn in tuple(self._fairness.line):
            if found >= limit:
                break
            if turn is None:
                found += self._claim_unlimited(min(limit - found, BATCH))
            elif turn in due:
                found += self._claim_limited(limit - found, turn)
        return found

    def _claim_unlimited(self, limit: int) -> int:
        """Claim from the queue cursors on while batches are full; otherwise, and once a second,
        from the beginning.

        After a flood of a task its others go first, with a part of the room.
        """
        names = tuple(self._fairness.tasks)
        cursors = self._queue_cursors
        found = 0
        if not names:
            return 0
        others, share = self._fairness.others()
        if others:
            found = self._claim_tasks(min(share, limit), others)[1]
        if found < limit and cursors.are_good(self._elapsed()):
            claims, some = self._claim_tasks(
                limit - found, names, cursors.ranges(names, full=False)
            )
            cursors.found(claims, limit - found)
            found += some
        if 2 * found < limit:
            limit = limit - found
            began = self._elapsed()
            claims, some = self._claim_tasks(limit, names, cursors.ranges(names, full=True))
            cursors.looked(names, claims, limit, began, self._elapsed())
            found += some
        return found

    def _claim_tasks(
        self, limit: int, names: Sequence[str], ranges: Sequence[Range] | None = None
    ) -> tuple[list[Claim], int]:
        """Return the claims, and how many rows were found, also those that were refused."""
        claims = self._poller.claim_tasks(limit, names, ranges)
        refused = self._poller.refused()
        found = [claim.row.task_name for claim in claims] + refused
        self._fairness.found(found, limit, set(refused), is_whole=ranges is not None)
        if found:
            self._fairness.served(None, set(found))
        return claims, len(found)

    def _claim_limited(self, limit: int, name: str) -> int:
        found = self._poller.claim_slots(limit, [name])
        if found < limit:
            found += len(self._poller.claim_tasks(limit - found, [name])) + len(
                self._poller.refused()
            )
        if found:
            self._fairness.served(name)
        else:
            self._fairness.rest(name, self._elapsed())
        return found


class Poller(Service):
    """Claim due rows and sleep, as ``ClaimPlanner`` plans."""

    name = "poller"

    def __init__(
        self,
        common: WorkerCommon,
        *,
        names: Sequence[str],
        runner: Runner,
        peers: Peers,
        pass_on: Callable[[], None],
    ) -> None:
        """``pass_on`` wakes other workers: rows are due, and this one has no room for them."""
        super().__init__(common)
        self._store = common.store
        self._active_claims = common.active_claims
        self._lease = common.lease
        self._runner = runner
        self.pass_on = pass_on
        known = common.store.definitions
        held = common.active_claims
        poll = common.store.poll
        self.planner = ClaimPlanner(
            self, names, known, held, runner, poll_interval=poll, peers=peers
        )

    def run_once(self) -> timedelta | None:
        if self._runner.is_draining:
            return None
        return self.planner.round(
            self._runner.free(), slots_may_be_due=self._store.claims.slots_may_be_due
        )

    def wake_for(self, names: Collection[str]) -> None:
        """Wake the poller: rows of these tasks are due, or soon will be."""
        self.planner.woken_for(names)
        self.wake()

    def poll_now(self) -> None:
        """Poll now instead of after the sleep; a worker that drains wakes the others instead."""
        if self._runner.is_draining:
            self.pass_on()
        else:
            self.wake()

    def hold(self, claim: Callable[[], Taken]) -> tuple[Taken, list[Holding]]:
        """Claim by this call, and start what it claimed; return also what is held.

        Race: a heartbeat hands back rows of ours that are not among the active claims, unless a
        claim is under way.
        """
        before = self.elapsed()  # the lease counts from before the statement was sent
        with self._active_claims.claiming():
            taken = claim()
            if taken.skipped:
                self.listeners.skipped(
                    self.worker, [(row.key, gap) for row, gap in taken.skipped]
                )
            if self.listeners.hear(BatchClaimed):
                took = timedelta(seconds=self.elapsed() - before)
                self.listeners.publish(
                    BatchClaimed(worker=self.worker, count=taken.found, took=took)
                )
            held = self._active_claims.add(taken.claims, before)
            if self.listeners.hear(Claimed):
                for holding in held:
                    self.listeners.publish(Claimed(**about(holding.claim)))
            self._runner.start(held, first=bool(held) and held[0].is_slot)
        return taken, held

    # -- what the planner may do ------------------------------------------------------------------

    def begin(self, capacity: int) -> None:
        """Report that claims follow."""
        if self.listeners.hear(PollBegan):
            self.listeners.publish(PollBegan(worker=self.worker, capacity=capacity))

    def give_way(self) -> None:
        """Let handlers start before the next query."""
        self._stopping.wait(BLINK)

    def next_due(self, names: Sequence[str], tasks: Sequence[str]) -> timedelta | None:
        """Return when the next row of these names, or one-time task of these, is due; None if
        nothing waits.

        Race: this worker hands a row of a newer release back, and claims it again before a newer
        worker does. So it comes a little later to what is not due yet.
        """
        due = self._store.due.next_due(names, tasks, lost=self._lost())
        return (
            due + COURTESY
            if due and due > timedelta(0) and self._store.warnings.has_met_newer
            else due
        )

    def due_tasks(self, names: Sequence[str]) -> Collection[str]:
        """Return which of these limited tasks have due rows."""
        return self._store.due.due_tasks(names)

    def claim_slots(self, limit: int, names: Sequence[str]) -> int:
        """Claim and start slots; return how many were found, also those that turned out to have
        nothing to run.
        """
        claim = self._store.claims.claim_slots
        lost = self._lost()
        return self.hold(
            lambda: claim(self.worker, limit, lease=self._lease, names=names, lost=lost)
        )[0].found

    def claim_tasks(
        self, limit: int, names: Sequence[str], ranges: Sequence[Range] | None = None
    ) -> list[Claim]:

        def claim() -> Taken:
            claims = self._store.claims.claim_tasks(
                self.worker, limit, lease=self._lease, names=names, ranges=ranges
            )
            return Taken(len(claims), claims, [])

        return self.hold(claim)[0].claims

    def refused(self) -> list[str]:
        """Return the tasks of the rows that the last claim has refused, one for each row."""
        return self._store.claims.refused

    def _lost(self) -> int:
        """Return how many rows of dead holders may be claimed: one, and none beside another fresh
        one.

        One of these rows may have killed its holder; claimed together, it would take its
        neighbours down again.
        """
        held = [
            holding
            for holding in self._active_claims.slots()
            if holding.claim.row.lost_count
        ]
        return int(
            not any(holding.waited() < self._lease.total_seconds() for holding in held)
        )
