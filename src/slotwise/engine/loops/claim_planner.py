"""Decide what a poller claims and looks for, and how long it sleeps.

Nothing here queries a database, reads a clock or draws a random number. ``ClaimPlanner.plan``
maps a situation, and what earlier rounds have left, to a plan. ``Poller`` executes the plan and
reports. ``ClaimPlanner.rest`` maps the report to a sleep, and to what the next round has to know.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import NamedTuple

from slotwise.engine.loops.service import AT_ONCE
from slotwise.engine.loops.tuning import (
    AHEAD,
    CROWDED,
    FILLING,
    FLOOD,
    IN_A_MOMENT,
    LOCKED_PAUSES,
    MINDED,
    MOST_AHEAD,
    OTHERS,
    RATE_WINDOW,
    SHORTLY,
)
from slotwise.store.slots.tuning import BATCH

#: What a look reports if a row is due already.
DUE_NOW = -math.inf


class Terms(NamedTuple):
    """What stays the same during the life of a worker."""

    #: Claim slots of these. Looks and claims are cached by this object.
    names: Sequence[str]
    #: The one-time tasks among them.
    tasks: tuple[str, ...]
    capacity: int
    #: Whether one-time tasks may wait for a thread.
    runs_ahead: bool
    #: A claim that could not start for this long is handed back.
    margin: timedelta
    poll_interval: timedelta


class Situation(NamedTuple):
    """What a poller sees when a round begins; times are in elapsed seconds."""

    now: float
    #: How many more slots can start now.
    free: int
    #: How many claims are held; how many slots of these wait for their settlement.
    held: int = 0
    ended_slots: int = 0
    #: How many claims have been released so far.
    removed: int = 0
    #: When a claim was last handed back because it got no thread in time.
    queued_at: float = -math.inf
    #: How many attempts have started so far, and how many claims wait for a thread: read only if
    #: ``Starts.needs_counts``.
    started: int = 0
    waiting: int = 0
    #: Whether rows of one-time tasks have woken the poller.
    woken_for_tasks: bool = False
    #: Whether the last claim of tasks has seen due slots.
    slots_may_be_due: bool = True


class Look(NamedTuple):
    """Find when the next slot of ``names``, or row of ``tasks``, is due."""

    names: Sequence[str]
    tasks: Sequence[str]


class SlotClaim(NamedTuple):
    """Claim up to ``limit`` slots of the first of these lists of names that brings any."""

    limit: int
    choices: tuple[Sequence[str], ...]


class TaskClaim(NamedTuple):
    """Claim up to ``limit`` one-time tasks; of these ``others`` go first, with up to ``share``
    rows.
    """

    limit: int
    names: tuple[str, ...]
    others: tuple[str, ...] = ()
    share: int = 0


class TasksFound(NamedTuple):
    """What one claim of one-time tasks has found."""

    #: The task of each row that was claimed or refused, and those of which a row was refused.
    names: Sequence[str]
    refused: Collection[str] = ()
    limit: int = 0
    #: Whether the claim began at the front of the queue.
    is_whole: bool = False


class Rate(NamedTuple):
    """How fast attempts end: the numbers in a second of the last two windows.

    The lower one counts: ten slow handlers that end together do not mean that ten more will.
    """

    at: float
    ended: int = 0
    windows: tuple[float, float] = 0.0, 0.0

    def after(self, ended: int, now: float) -> Rate:
        """``ended``: how many attempts have ended so far."""
        passed = now - self.at
        if passed < RATE_WINDOW:
            return self
        return Rate(now, ended, (self.windows[1], (ended - self.ended) / passed))

    def ahead(self, margin: timedelta) -> int:
        """Return how many claims may wait for a thread."""
        ahead = min(AHEAD, margin.total_seconds() / 4)
        return min(int(min(self.windows) * ahead), MOST_AHEAD)


class Starts(NamedTuple):
    """Limits how many claims wait for a thread, after one was handed back because it got none in
    time.

    At most as many wait as started in the last heartbeat interval, and at least one; twice as many
    after each interval without such a hand-back. Otherwise slots that another worker could start
    would be claimed here and handed back again and again.
    """

    at: float
    started: int = 0
    most: int = 1

    def needs_counts(self, now: float, queued_at: float, margin: timedelta) -> bool:
        """Return whether the situation must say how many have started and how many wait."""
        interval = margin.total_seconds()
        return now - self.at >= interval or now - queued_at <= MINDED * interval

    def after(self, situation: Situation, margin: timedelta) -> Starts:
        interval = margin.total_seconds()
        passed = situation.now - self.at
        if passed < interval:
            return self
        lately = int((situation.started - self.started) * interval / passed)
        return Starts(situation.now, situation.started, max(lately, 1))

    def room(self, situation: Situation, margin: timedelta) -> int:
        """Return how many more claims may wait for a thread now."""
        without = (situation.now - situation.queued_at) / margin.total_seconds()
        if without > MINDED:
            return sys.maxsize
        # race: a hand-back may be newer than the situation
        return max((self.most << max(int(without), 0)) - situation.waiting, 0)


class Turns(NamedTuple):
    """A round robin of tasks: a row waits for at most one claim of each task that floods the
    queue.
    """

    #: Those served last are at the end.
    tasks: tuple[str, ...]
    #: How many rows of a task have filled claims since the others had their turn.
    filled: Mapping[str, int] = MappingProxyType({})

    def claim(self, limit: int) -> TaskClaim:
        floods = {name: rows for name, rows in self.filled.items() if rows >= FLOOD}
        if not floods:
            return TaskClaim(limit, self.tasks)
        others = tuple(name for name in self.tasks if name not in floods)
        return TaskClaim(limit, self.tasks, others, max(floods.values()) // OTHERS)

    def after(self, claims: Sequence[TasksFound]) -> Turns:
        if not claims:
            return self
        # The others of floods had their turn.
        filled = {name: rows for name, rows in self.filled.items() if rows < FLOOD}
        turns = self._replace(filled=filled)
        for found in claims:
            turns = turns._replace(filled=turns._filled_by(found))
            if found.names:
                served = set(found.names)
                tasks = sorted(
                    turns.tasks, key=served.__contains__
                )  # the sort is stable
                turns = turns._replace(tasks=tuple(tasks))
        return turns

    def _filled_by(self, found: TasksFound) -> Mapping[str, int]:
        filled = Counter(self.filled)
        if len(found.names) >= found.limit and len(self.tasks) > 1:
            filled += Counter(dict(Counter(found.names).most_common(1)))
        elif found.is_whole:  # the queue is empty: no task floods it
            filled.clear()
        return filled + Counter(dict.fromkeys(found.refused, FLOOD))


class Memory(NamedTuple):
    """What earlier rounds have left; times are in elapsed seconds."""

    rate: Rate
    starts: Starts
    turns: Turns
    #: The jobs of which the last claim has refused rows; the next one leaves them out.
    refused: Sequence[str] = ()
    #: When the next known row is due: infinity if none is known.
    known_due: float = 0.0
    #: How many rounds in a row have found a due row locked.
    locked: int = 0
    #: When to check what is due although there is no room, and wake other workers.
    crowded_until: float | None = None
    #: Until when rounds wait for more room for slots, and the room at the last one; None if that
    #: did not wait.
    filling: tuple[float, int] | None = None


class Plan(NamedTuple):
    """What to do in a round, in this order; then sleep for ``pause``, if nothing is due before."""

    memory: Memory
    pause: timedelta
    #: Look for rows that this worker has no room for, and wake the others if one is due.
    for_others: Look | None = None
    #: Look after claims that brought nothing, or before them, and claim only if a row is due.
    look: Look | None = None
    looks_first: bool = False
    slots: SlotClaim | None = None
    tasks: TaskClaim | None = None
    #: Claim slots only if no task is found.
    tasks_first: bool = False
    #: Tasks get only the room that slots have left.
    shares_room: bool = False

    @property
    def room(self) -> int:
        """The most rows of one kind that are claimed; 0: none are."""
        return max(claim.limit if claim else 0 for claim in (self.slots, self.tasks))


class Report(NamedTuple):
    """What a plan has led to; looks report when the next row is due, in elapsed seconds."""

    now: float
    others_due: float | None = None
    #: None if nothing was looked for; DUE_NOW; or infinity: nothing waits.
    due: float | None = None
    #: How many rows were found, also those that have turned out to have nothing to run.
    found: int = 0
    #: The jobs of which a claim of all slots has refused rows; None if none was made.
    refused: Sequence[str] | None = None
    tasks: Sequence[TasksFound] = ()
    #: A random number of at least 0 and below 1.
    chance: float = 0.0


class Rest(NamedTuple):
    """How long to sleep, whether handlers start first, and what the next round has to know."""

    pause: timedelta
    memory: Memory
    gives_way: bool = False


class ClaimPlanner:
    """Plan the rounds of a poller: claim what is due, then sleep until the next row, at most for
    the poll interval.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._has_tasks = bool(terms.tasks)

    def first_memory(self, now: float) -> Memory:
        """Return what the first round has to know."""
        return Memory(Rate(now), Starts(now), Turns(self.terms.tasks))

    # -- before a round ---------------------------------------------------------------------------

    def plan(self, memory: Memory, situation: Situation) -> Plan:
        margin = self.terms.margin
        rate = memory.rate.after(situation.removed, situation.now)
        starts = memory.starts.after(situation, margin)
        memory = memory._replace(rate=rate, starts=starts)
        bound = starts.room(situation, margin)
        ahead = rate.ahead(margin)
        slots = min(situation.free, bound) if self.terms.names else 0
        room, waits = self.room_for_tasks(ahead, situation)
        tasks = min(room, bound)
        if waits and not situation.slots_may_be_due:
            return Plan(
                memory, FILLING
            )  # usually a settlement wakes the poller before
        filling = self._filling(memory, situation, slots, ahead)
        if filling != memory.filling:
            memory = memory._replace(filling=filling)
        if filling and not situation.woken_for_tasks:
            return Plan(memory, SHORTLY)
        crowded = self._wait_for_room(memory, situation.now, slots, tasks)
        if slots <= 0 and tasks <= 0:
            return crowded
        return self._claims(crowded, situation, slots, tasks)

    def room_for_tasks(self, ahead: int, situation: Situation) -> tuple[int, bool]:
        """Return how many one-time tasks to claim, and whether a claim should wait, because there
        is room for a batch worth a claim soon.

        ``ahead``: how many claims may wait for a thread.
        """
        if not self._has_tasks:
            return 0, False
        ahead = ahead if self.terms.runs_ahead else 0
        held = situation.held - situation.ended_slots
        room = max(self.terms.capacity + ahead - held, 0)
        waits = ahead >= BATCH and room < min(ahead // 2, BATCH)
        return 0 if waits else room, waits

    def _filling(
        self, memory: Memory, situation: Situation, slots: int, ahead: int
    ) -> tuple[float, int] | None:
        """Return until when a claim waits, as short handlers make room for more slots while they
        end.

        Small claims cost almost as much as large ones. After a full claim more is due than there
        is room for.
        """
        is_short = ahead >= self.terms.capacity
        is_small = (
            bool(self.terms.names) and slots < min(self.terms.capacity, BATCH) // 2
        )
        if not (is_small and is_short and memory.known_due == 0.0):
            return None
        if memory.filling is None:
            return situation.now + FILLING.total_seconds(), slots
        until, room = memory.filling
        is_growing = slots <= 0 or slots > room
        return (until, slots) if is_growing and situation.now < until else None

    def _wait_for_room(
        self, memory: Memory, now: float, slots: int, tasks: int
    ) -> Plan:
        """Plan to wait for a settlement, which frees room; once that takes long, to wake others.

        Race: only the worker that settled a slot knows the next one, and may be full when that is
        due.
        """
        poll = self.terms.poll_interval
        no_slots = bool(self.terms.names) and slots <= 0
        no_tasks = self._has_tasks and tasks <= 0
        if not no_slots and not no_tasks:
            return Plan(memory._replace(crowded_until=None), poll)
        until = memory.crowded_until
        if until is None:
            until = now + min(CROWDED, poll).total_seconds()
        elif now >= until:
            names = self.terms.names if no_slots else ()
            unclaimed = memory.turns.tasks if no_tasks else ()
            return Plan(memory, poll, for_others=Look(names, unclaimed))
        return Plan(
            memory._replace(crowded_until=until), timedelta(seconds=until - now)
        )

    def _claims(
        self, plan: Plan, situation: Situation, slots: int, tasks: int
    ) -> Plan:
        """Add claims to the plan: slots before tasks, unless a task woke the poller, or the last
        claim of tasks saw no slot due.
        """
        memory = plan.memory
        # While no known row is due, one look will do, where a claim takes two statements.
        is_quiet = situation.now < memory.known_due and not situation.woken_for_tasks
        return plan._replace(
            look=Look(
                self.terms.names if slots > 0 else (),
                memory.turns.tasks if tasks > 0 else (),
            ),
            looks_first=is_quiet,
            slots=self._slot_claim(memory, slots),
            tasks=memory.turns.claim(tasks) if tasks > 0 else None,
            tasks_first=situation.woken_for_tasks or not situation.slots_may_be_due,
            shares_room=not self.terms.runs_ahead,
        )

    def _slot_claim(self, memory: Memory, limit: int) -> SlotClaim | None:
        if limit <= 0 or not self.terms.names:
            return None
        names = self.terms.names
        if not memory.refused:
            return SlotClaim(limit, (names,))
        # Refused rows stay at the front, and would fill each claim.
        others = [name for name in names if name not in memory.refused]
        return SlotClaim(limit, (others, names) if others else (names,))

    def only_claims(self, memory: Memory, situation: Situation, limit: int) -> Plan:
        """Plan to claim up to ``limit`` due rows, slots first."""
        plan = self._claims(Plan(memory, AT_ONCE), situation, limit, limit)
        return plan._replace(tasks_first=False, shares_room=True)

    # -- after a round ----------------------------------------------------------------------------

    def learned(self, plan: Plan, report: Report) -> Memory:
        """Return what claims have found, apart from when the next row is due."""
        refused = plan.memory.refused if report.refused is None else report.refused
        turns = plan.memory.turns.after(report.tasks)
        return plan.memory._replace(refused=refused, turns=turns)

    def rest(self, plan: Plan, report: Report) -> Rest:
        memory = self.learned(plan, report)
        poll = self.terms.poll_interval
        pause = plan.pause
        if report.others_due is not None:
            # Others were woken for what is due, and claim it: this worker looks again later.
            pause = (
                poll
                if report.others_due == DUE_NOW
                else self._until(report.others_due, report)
            )
            memory = memory._replace(crowded_until=report.now + pause.total_seconds())
        if plan.room == 0:
            return Rest(pause, memory)
        if report.found:
            # After a partial batch little is left, so its handlers start first. But rows may have
            # been locked.
            is_partial = 2 * report.found < min(plan.room, BATCH)
            known_due = math.inf if is_partial else 0.0
            memory = memory._replace(locked=0, known_due=known_due)
            return Rest(AT_ONCE, memory, gives_way=is_partial)
        if report.due == DUE_NOW:
            # A peer is claiming the row, another transaction holds it for longer, or this worker
            # was a moment early.
            pause = min(pause, _locked_pause(memory.locked, report.chance))
            memory = memory._replace(locked=memory.locked + 1)
        else:
            pause = min(pause, self._until(report.due, report))
            memory = memory._replace(locked=0)
        known_due = math.inf if pause >= poll else report.now + pause.total_seconds()
        return Rest(pause, memory._replace(known_due=known_due))

    def _until(self, due: float | None, report: Report) -> timedelta:
        poll = self.terms.poll_interval
        if due is None or due - report.now >= poll.total_seconds():
            return poll
        return max(timedelta(seconds=due - report.now), IN_A_MOMENT)


def _locked_pause(tries: int, chance: float) -> timedelta:
    """Return how long a locked row is left alone: longer each time, and jittered."""
    first, longest = LOCKED_PAUSES
    doublings: int = 2 ** min(tries, 32)
    return min(first * doublings, longest) + first * chance
