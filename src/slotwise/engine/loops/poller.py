"""Claim due rows, slots and one-time tasks, hand them to the runner, and sleep until the next one
is due.

The ``Poller`` executes what ``ClaimPlanner`` plans, and reports what came of it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta

from slotwise.engine.loops.claim_planner import (
    DUE_NOW,
    ClaimPlanner,
    Look,
    Plan,
    Report,
    Situation,
    SlotClaim,
    TaskClaim,
    TasksFound,
    Terms,
)
from slotwise.engine.loops.service import Service, WorkerCommon
from slotwise.engine.loops.tuning import (
    BLINK,
    COURTESY,
    LONGEST_OFFSET,
    OFFSET_STEP,
    POLL_JITTER,
)
from slotwise.engine.run.active_claims import Holding
from slotwise.engine.run.runner import Runner
from slotwise.model.events import BatchClaimed, Claimed, PollBegan, about
from slotwise.model.records import Claim
from slotwise.store.dialects.port import Range
from slotwise.store.queue.queue_cursors import QueueCursors
from slotwise.store.slots.claims import Taken
from slotwise.store.slots.tuning import BATCH


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
            interval * (1 - POLL_JITTER * random.random())
            if self.count > 1
            else interval
        )


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
        self._peers = peers
        self.pass_on = pass_on
        known = [common.store.definitions[name] for name in names]
        one_time = [found for found in known if not found.is_job]
        self._one_time = frozenset(found.name for found in one_time)
        self.planner = ClaimPlanner(
            Terms(
                names=list(names),
                tasks=tuple(found.name for found in one_time),
                capacity=runner.capacity,
                runs_ahead=runner.runs_ahead,
                margin=runner.margin,
                poll_interval=common.store.poll,
            )
        )
        self._memory = self.planner.first_memory(self.elapsed())
        self._queue_cursors = QueueCursors()
        self._woken_for_tasks = False

    def run_once(self) -> timedelta | None:
        if self._runner.is_draining:
            return None
        plan = self.planner.plan(self._memory, self.situation())
        rest = self.planner.rest(plan, self._execute(plan))
        self._memory = rest.memory
        if rest.gives_way:
            self._stopping.wait(BLINK)  # handlers start before the next query
        poll = self._store.poll
        return self._peers.spread(poll) if rest.pause == poll else rest.pause

    def claim(self, limit: int) -> int:
        """Claim up to ``limit`` due rows, slots first; return how many were found."""
        plan = self.planner.only_claims(self._memory, self.situation(), limit)
        report = self._claim(plan)
        self._memory = self.planner.learned(plan, report)
        return report.found

    def situation(self) -> Situation:
        """Return what the planner has to know about this worker now."""
        now = self.elapsed()
        held = self._active_claims
        started = waiting = 0
        if self._memory.starts.needs_counts(now, held.queued_at, self._runner.margin):
            started, waiting = held.starts()
        return Situation(
            now,
            free=self._runner.free(),
            held=len(held),
            ended_slots=held.ended_slots() if self._one_time else 0,
            removed=held.removed,
            queued_at=held.queued_at,
            started=started,
            waiting=waiting,
            woken_for_tasks=self._woken_for_tasks,
            slots_may_be_due=self._store.claims.slots_may_be_due,
        )

    def wake_for(self, names: Collection[str]) -> None:
        """Wake the poller, from any thread: rows of these tasks are due, or soon will be."""
        if not self._one_time.isdisjoint(names):
            self._woken_for_tasks = True
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

    # -- what a plan consists of ------------------------------------------------------------------

    def _execute(self, plan: Plan) -> Report:
        others_due = self._look(plan.for_others)
        if others_due == DUE_NOW:
            self.pass_on()
        if plan.room == 0:
            return Report(self.elapsed(), others_due)
        if plan.looks_first and (due := self._look(plan.look)) != DUE_NOW:
            return Report(self.elapsed(), others_due, due)
        if self.listeners.hear(PollBegan):
            self.listeners.publish(PollBegan(worker=self.worker, capacity=plan.room))
        report = self._claim(plan)._replace(others_due=others_due)
        if not report.found:
            due = self._look(plan.look)
            report = report._replace(due=due, chance=random.random())
        return report._replace(now=self.elapsed())

    def _look(self, look: Look | None) -> float | None:
        """Return when a row is due, in elapsed seconds; DUE_NOW, or infinity if nothing waits.

        Race: this worker hands a row of a newer release back, and claims it again before a newer
        worker does. So it comes a little later to what is not due yet.
        """
        if look is None:
            return None
        if not look.names and not look.tasks:
            return math.inf
        asked = self.elapsed()
        due = self._store.due.next_due(look.names, look.tasks, lost=self._lost())
        if due is None:
            return math.inf
        if due <= timedelta(0):
            return DUE_NOW
        if self._store.warnings.has_met_newer:
            due += COURTESY
        return asked + (due + self._peers.offset()).total_seconds()

    # -- claims -----------------------------------------------------------------------------------

    def _claim(self, plan: Plan) -> Report:
        self._woken_for_tasks = False
        found = 0
        refused: Sequence[str] | None = None
        tasks: list[TasksFound] = []
        if plan.slots and not plan.tasks_first:
            found, refused = self._claim_slots(plan.slots)
        if plan.tasks:
            taken = found if plan.shares_room and not plan.tasks_first else 0
            tasks = list(
                self._claim_tasks(plan.tasks, min(plan.tasks.limit - taken, BATCH))
            )
            found += sum(len(one.names) for one in tasks)
        if plan.slots and plan.tasks_first and not found:
            found, refused = self._claim_slots(plan.slots)
        return Report(self.elapsed(), found=found, refused=refused, tasks=tasks)

    def _claim_slots(self, claim: SlotClaim) -> tuple[int, list[str]]:
        """Return how many rows were found, and the jobs of refused ones if all names were
        claimed.
        """
        for names in claim.choices[:-1]:
            if found := self._hold_slots(claim.limit, names):
                return found, []
        found = self._hold_slots(claim.limit, claim.choices[-1])
        return found, self._store.claims.refused

    def _claim_tasks(self, claim: TaskClaim, limit: int) -> Iterator[TasksFound]:
        """Claim from the queue cursors on while batches are full; otherwise, and once a second,
        from the beginning.
        """
        names = claim.names
        cursors = self._queue_cursors
        left = limit
        if left > 0 and claim.others:
            _, found = self._hold_tasks(min(claim.share, left), claim.others)
            left -= len(found.names)
            yield found
        if left > 0 and cursors.are_good(self.elapsed()):
            ranges = cursors.ranges(names, full=False)
            claims, found = self._hold_tasks(left, names, ranges)
            cursors.found(claims, left)
            left -= len(found.names)
            yield found
        if left > 0 and 2 * left > limit:
            began = self.elapsed()
            ranges = cursors.ranges(names, full=True)
            claims, found = self._hold_tasks(left, names, ranges)
            left_out = self._store.claims.left_out()
            cursors.looked(names, claims, left, began, self.elapsed(), left_out)
            yield found

    def _hold_slots(self, limit: int, names: Sequence[str]) -> int:
        """Claim and start slots; return how many were found, also those that turned out to have
        nothing to run.
        """
        claim = self._store.claims.claim_slots
        lost = self._lost()
        return self.hold(
            lambda: claim(
                self.worker, limit, lease=self._lease, names=names, lost=lost
            )
        )[0].found

    def _hold_tasks(
        self, limit: int, names: Sequence[str], ranges: Sequence[Range] | None = None
    ) -> tuple[list[Claim], TasksFound]:
        """Claim and start one-time tasks."""

        def claim() -> Taken:
            claims = self._store.claims.claim_tasks(
                self.worker, limit, lease=self._lease, names=names, ranges=ranges
            )
            return Taken(len(claims), claims, [])

        claims = self.hold(claim)[0].claims
        refused = self._store.claims.refused
        rows = [claim.row.task_name for claim in claims] + refused
        return claims, TasksFound(rows, set(refused), limit, ranges is not None)

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
