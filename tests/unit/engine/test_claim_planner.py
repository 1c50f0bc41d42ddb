"""What ``ClaimPlanner`` plans: tables of a situation and its plan, and of a report and the sleep
that follows.

``test_poller_rounds.py`` shows that the poller does it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from tests.kit.loops import (
    AT_ONCE,
    DUE_NOW,
    ClaimPlanner,
    Look,
    Memory,
    Plan,
    Rate,
    Report,
    Rest,
    Situation,
    SlotClaim,
    Starts,
    TaskClaim,
    TasksFound,
    Terms,
    Turns,
)

from slotwise.engine.loops.tuning import (
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

POLL, MARGIN = timedelta(seconds=10), timedelta(seconds=10)
NOW = 100.0
#: A job and a task, and room for ten of each.
TERMS = Terms(["tick", "mail"], ("mail",), 10, True, MARGIN, POLL)
PLANNER = ClaimPlanner(TERMS)
MEMORY = PLANNER.first_memory(NOW)
#: Handlers end as fast as ever counts.
FAST = Rate(NOW, windows=(1e6, 1e6))

SLOTS = SlotClaim(10, (TERMS.names,))
TASKS = TaskClaim(10, ("mail",))
LOOK = Look(TERMS.names, ("mail",))
#: With fast handlers.
MANY = TASKS._replace(limit=10 + MOST_AHEAD)
CLAIMS = {"slots": SLOTS, "tasks": TASKS, "look": LOOK}
#: Small room for slots: less than half of the capacity, or of a batch.
FEW = 2


@pytest.mark.parametrize(
    ("situation", "memory", "plan"),
    [
        pytest.param(
            {}, {}, {"pause": POLL, **CLAIMS}, id="at first, claim everything"
        ),
        pytest.param(
            {"free": 4},
            {},
            {"pause": POLL, **CLAIMS, "slots": SLOTS._replace(limit=4)},
            id="no more slots than can start: others can start the rest",
        ),
        pytest.param(
            {"held": 7, "ended_slots": 1},
            {},
            {"pause": POLL, **CLAIMS, "tasks": TASKS._replace(limit=4)},
            id="a slot that waits for its settlement leaves its thread to a task",
        ),
        # While no row is known to be due, one look costs less than two claims.
        pytest.param(
            {},
            {"known_due": math.inf},
            {"pause": POLL, **CLAIMS, "looks_first": True},
            id="nothing is known to be due: look first",
        ),
        # Race: what was known to come is there, and a look before the claim would delay it.
        pytest.param(
            {},
            {"known_due": NOW},
            {"pause": POLL, **CLAIMS},
            id="a known row is due: claim",
        ),
        pytest.param(
            {"woken_for_tasks": True},
            {"known_due": math.inf},
            {"pause": POLL, **CLAIMS, "tasks_first": True},
            id="woken for a task: claim tasks, without a look",
        ),
        pytest.param(
            {"slots_may_be_due": False},
            {},
            {"pause": POLL, **CLAIMS, "tasks_first": True},
            id="the last claim of tasks saw no slot: tasks first",
        ),
        # A refused row stays due, and would be at the front of each claim.
        pytest.param(
            {},
            {"refused": ["tick"]},
            {"pause": POLL, **CLAIMS, "slots": SlotClaim(10, (["mail"], TERMS.names))},
            id="jobs with refused rows come after all others",
        ),
        pytest.param(
            {},
            {"refused": ["tick", "mail"]},
            {"pause": POLL, **CLAIMS},
            id="all jobs have refused rows: claim all",
        ),
        # Race: only the worker that settled a slot knows the next one, and may be full when that
        # is due; so a full worker looks after a while, and wakes others.
        pytest.param(
            {"free": 0, "held": 10},
            {},
            {"pause": CROWDED, "memory.crowded_until": NOW + CROWDED.total_seconds()},
            id="no room: wait for a settlement",
        ),
        pytest.param(
            {"free": 0, "held": 10},
            {"crowded_until": NOW + 3},
            {"pause": timedelta(seconds=3)},
            id="no room, and it is known until when: sleep so long",
        ),
        pytest.param(
            {"free": 0, "held": 10},
            {"crowded_until": NOW},
            {"pause": POLL, "for_others": LOOK},
            id="no room for long: look for others",
        ),
        pytest.param(
            {"free": 0},
            {"crowded_until": NOW},
            {
                "pause": POLL,
                "for_others": Look(TERMS.names, ()),
                "tasks": TASKS,
                "look": Look((), ("mail",)),
            },
            id="no room for slots for long: look for others, and claim tasks",
        ),
        pytest.param(
            {},
            {"crowded_until": NOW},
            {"pause": POLL, **CLAIMS, "memory.crowded_until": None},
            id="room again: the wait for room is over",
        ),
        # A claim costs almost the same for one row as for a batch.
        pytest.param(
            {"held": MOST_AHEAD - 100, "slots_may_be_due": False},
            {"rate": FAST},
            {"pause": FILLING},
            id="fast handlers make room for a batch of tasks soon",
        ),
        pytest.param(
            {"held": MOST_AHEAD - 100},
            {"rate": FAST, "known_due": math.inf},
            {
                "pause": CROWDED,
                "slots": SLOTS,
                "look": Look(TERMS.names, ()),
                "looks_first": True,
            },
            id="slots that may be due do not wait for a batch of tasks",
        ),
        pytest.param(
            {"free": FEW},
            {"rate": FAST},
            {"pause": SHORTLY, "memory.filling": (NOW + FILLING.total_seconds(), FEW)},
            id="fast handlers make room for more slots: wait",
        ),
        pytest.param(
            {"free": FEW + 1},
            {"rate": FAST, "filling": (NOW + 1, FEW)},
            {"pause": SHORTLY, "memory.filling": (NOW + 1, FEW + 1)},
            id="room has grown: wait for more",
        ),
        pytest.param(
            {"free": FEW},
            {"rate": FAST, "filling": (NOW + 1, FEW)},
            {
                "slots": SLOTS._replace(limit=FEW),
                "tasks": MANY,
                "memory.filling": None,
            },
            id="room has not grown: claim",
        ),
        pytest.param(
            {"free": FEW + 1},
            {"rate": FAST, "filling": (NOW, FEW)},
            {
                "slots": SLOTS._replace(limit=FEW + 1),
                "tasks": MANY,
                "memory.filling": None,
            },
            id="slots have waited long enough: claim",
        ),
        pytest.param(
            {"free": FEW, "woken_for_tasks": True},
            {"rate": FAST},
            {"slots": SLOTS._replace(limit=FEW), "tasks": MANY, "tasks_first": True},
            id="a task that woke the poller waits for no slots",
        ),
        # Otherwise this worker would claim, and hand back, what another could start.
        pytest.param(
            {"queued_at": NOW, "waiting": 0},
            {},
            {
                "pause": POLL,
                **CLAIMS,
                "slots": SLOTS._replace(limit=1),
                "tasks": TASKS._replace(limit=1),
            },
            id="a claim got no thread in time: claim one of each",
        ),
        pytest.param(
            {"queued_at": NOW, "waiting": 1},
            {},
            {"pause": CROWDED},
            id="a claim got no thread in time, and one waits: claim nothing",
        ),
    ],
)
def test_a_plan(
    situation: dict[str, Any], memory: dict[str, Any], plan: dict[str, Any]
) -> None:
    """What the table leaves out of a plan is None or False; of a pause or memory, anything."""
    found = PLANNER.plan(
        MEMORY._replace(**memory), Situation(**{"now": NOW, "free": 10, **situation})
    )
    expected = {name.removeprefix("memory."): plan[name] for name in plan}
    remembered = {name for name in plan if name.startswith("memory.")}
    for name in ("for_others", "slots", "tasks", "tasks_first", "looks_first"):
        assert getattr(found, name) == plan.get(name, Plan._field_defaults.get(name))
    for name, value in expected.items():
        part = found.memory if f"memory.{name}" in remembered else found
        assert getattr(part, name) == value, name


@pytest.mark.parametrize(
    ("terms", "plan"),
    [
        pytest.param(
            {"tasks": (), "names": ["tick"]},
            {
                "slots": SlotClaim(10, (["tick"],)),
                "tasks": None,
                "look": Look(["tick"], ()),
            },
            id="only jobs",
        ),
        pytest.param(
            {"names": ["mail"]},
            {"slots": SlotClaim(10, (["mail"],)), "tasks": TASKS},
            id="tasks may have slots, too",
        ),
        pytest.param(
            {"runs_ahead": False},
            {"shares_room": True},
            id="tasks that wait for no thread",
        ),
    ],
)
def test_terms(terms: dict[str, Any], plan: dict[str, Any]) -> None:
    """What a worker knows decides what it claims."""
    planner = ClaimPlanner(TERMS._replace(**terms))
    memory = planner.first_memory(NOW)._replace(known_due=math.inf)
    found = planner.plan(memory, Situation(NOW, free=10))
    assert {name: getattr(found, name) for name in plan} == plan


FULL = Plan(MEMORY, POLL, look=LOOK, slots=SLOTS, tasks=TASKS)
FIRST, LONGEST = LOCKED_PAUSES
SOON = NOW + 3


@pytest.mark.parametrize(
    ("plan", "report", "pause", "memory"),
    [
        pytest.param(
            {},
            {"found": 5},
            AT_ONCE,
            {"known_due": 0.0},
            id="half of the room: claim again",
        ),
        # Rows may have been locked, so a partial batch does not mean that the queue is empty.
        pytest.param(
            {},
            {"found": 4},
            AT_ONCE,
            {"known_due": math.inf},
            id="a partial batch: look next",
        ),
        pytest.param(
            {},
            {"due": math.inf},
            POLL,
            {"known_due": math.inf, "locked": 0},
            id="nothing waits: the poll interval",
        ),
        pytest.param(
            {},
            {"due": NOW + 60},
            POLL,
            {"known_due": math.inf},
            id="never longer than that",
        ),
        pytest.param(
            {},
            {"due": SOON},
            timedelta(seconds=3),
            {"known_due": SOON, "locked": 0},
            id="until the next row",
        ),
        pytest.param(
            {},
            {"due": NOW - 1},
            IN_A_MOMENT,
            {},
            id="it came due while the look was under way",
        ),
        # A peer is claiming the row, a transaction holds it, or this worker was a moment early.
        pytest.param(
            {},
            {"due": DUE_NOW},
            FIRST,
            {"locked": 1},
            id="due and not found: it is locked",
        ),
        pytest.param(
            {"memory": MEMORY._replace(locked=1)},
            {"due": DUE_NOW, "chance": 0.5},
            2.5 * FIRST,
            {"locked": 2},
            id="still locked: twice as long, and jittered",
        ),
        pytest.param(
            {"memory": MEMORY._replace(locked=99)},
            {"due": DUE_NOW},
            LONGEST,
            {"locked": 100},
            id="locked for long",
        ),
        pytest.param(
            {"memory": MEMORY._replace(locked=9)},
            {"found": 1},
            AT_ONCE,
            {"locked": 0},
            id="no longer locked",
        ),
        pytest.param(
            {"for_others": LOOK, "slots": None, "tasks": None},
            {"others_due": SOON},
            timedelta(seconds=3),
            {"crowded_until": SOON},
            id="full: look again when the next row is due",
        ),
        # Others were woken; a second wake-up for the same row would be in vain.
        pytest.param(
            {"for_others": LOOK, "slots": None, "tasks": None},
            {"others_due": DUE_NOW},
            POLL,
            {"crowded_until": NOW + POLL.total_seconds()},
            id="full, and others were woken",
        ),
        pytest.param(
            {}, {"refused": ["tick"]}, POLL, {"refused": ["tick"]}, id="refused rows"
        ),
        pytest.param(
            {"memory": MEMORY._replace(refused=["tick"])},
            {"refused": []},
            POLL,
            {"refused": []},
            id="refused rows count once",
        ),
    ],
)
def test_a_rest(
    plan: dict[str, Any],
    report: dict[str, Any],
    pause: timedelta,
    memory: dict[str, Any],
) -> None:
    rest: Rest = PLANNER.rest(FULL._replace(**plan), Report(NOW, **report))
    assert rest.pause == pause
    assert {name: getattr(rest.memory, name) for name in memory} == memory
    assert rest.gives_way == (0 < report.get("found", 0) < 5)


@pytest.mark.parametrize(
    ("ends", "ahead"),
    [
        pytest.param([0, 0], 0, id="nothing ends"),
        pytest.param([100, 100], 100, id="as many as end within the time"),
        pytest.param(
            [1000, 10],
            10,
            id="the slower of two windows counts: they have become slow",
        ),
        pytest.param(
            [10, 1000],
            10,
            id="the slower of two windows counts: they came in one lump",
        ),
        pytest.param([100_000, 100_000], MOST_AHEAD, id="never more than that"),
    ],
)
def test_as_many_as_will_have_ended(ends: list[int], ahead: int) -> None:
    """What is claimed ahead is what ended within a tenth of a second, in the last two windows."""
    now, ended = 0.0, 0
    rate = Rate(now)
    for count in ends:
        now += RATE_WINDOW
        ended += count
        rate = rate.after(ended, now)
    assert rate.ahead(MARGIN) == ahead
    assert rate.after(ended + 10**6, now) == rate  # until the next window


@pytest.mark.parametrize(
    ("ahead", "worth"),
    [
        (0, 0),
        (BATCH - 1, 0),
        (BATCH, BATCH // 2),
        (2 * BATCH, BATCH),
        (MOST_AHEAD, BATCH),
    ],
)
def test_a_claim_is_worth_its_trip(ahead: int, worth: int) -> None:
    """For half of what may wait, at most a batch; where less than a batch may wait, for any."""
    held = Situation(NOW, free=0, held=TERMS.capacity + ahead - worth)
    assert PLANNER.room_for_tasks(ahead, held) == (worth, False)
    more = held._replace(held=held.held + 1)
    assert PLANNER.room_for_tasks(ahead, more) == (0, bool(worth))


INTERVAL = MARGIN.total_seconds()


@pytest.mark.parametrize(
    ("intervals", "most", "waiting", "room"),
    [
        pytest.param(MINDED + 1, 1, 9, sys.maxsize, id="long ago: no limit"),
        pytest.param(0, 5, 0, 5, id="just now: as many as started lately"),
        pytest.param(0, 5, 5, 0, id="so many wait"),
        pytest.param(0, 5, 9, 0, id="more than that wait"),
        pytest.param(1, 1, 0, 2, id="twice as many after an interval"),
        pytest.param(2, 1, 1, 3, id="and twice as many again"),
        # Race: the hand-back came after the situation was read.
        pytest.param(-1, 1, 0, 1, id="a moment later"),
    ],
)
def test_after_a_claim_that_waited_in_vain_few_wait(
    intervals: float, most: int, waiting: int, room: int
) -> None:
    """``intervals``: heartbeat intervals since a claim was handed back because it got no thread."""
    queued_at = NOW - intervals * INTERVAL
    situation = Situation(NOW, free=10, queued_at=queued_at, waiting=waiting)
    starts = Starts(NOW, most=most)
    assert starts.room(situation, MARGIN) == room
    assert starts.needs_counts(NOW, queued_at, MARGIN) == (room != sys.maxsize)


@pytest.mark.parametrize(
    ("passed", "started", "after"),
    [
        pytest.param(INTERVAL / 2, 9, Starts(0.0, 2, 7), id="within an interval"),
        pytest.param(
            INTERVAL, 9, Starts(INTERVAL, 9, 7), id="as many as have started in it"
        ),
        pytest.param(2 * INTERVAL, 10, Starts(2 * INTERVAL, 10, 4), id="on average"),
        pytest.param(INTERVAL, 2, Starts(INTERVAL, 2, 1), id="at least one"),
    ],
)
def test_starts_of_the_last_interval(
    passed: float, started: int, after: Starts
) -> None:
    found = Starts(0.0, 2, 7).after(Situation(passed, free=1, started=started), MARGIN)
    assert found == after


NAMES = ("a", "b", "c")


def found(names: Sequence[str], limit: int = 2, **facts: Any) -> TasksFound:
    return TasksFound(names, limit=limit, **facts)


@pytest.mark.parametrize(
    ("before", "claims", "after"),
    [
        pytest.param({}, [], {}, id="no claim"),
        pytest.param(
            {},
            [found(["a"])],
            {"tasks": ("b", "c", "a")},
            id="served: to the end of the order",
        ),
        pytest.param({}, [found([])], {}, id="nothing was due: the turn stays"),
        pytest.param(
            {},
            [found(["a", "a"])],
            {"tasks": ("b", "c", "a"), "filled": {"a": 2}},
            id="a full claim counts for the task that filled it",
        ),
        pytest.param(
            {"filled": {"a": 9}},
            [found([], is_whole=True)],
            {"filled": {}},
            id="the queue is empty: no task floods it",
        ),
        # With a cursor, and after a claim of the others, rows may be left at the front.
        pytest.param(
            {"filled": {"a": 9}},
            [found([])],
            {"filled": {"a": 9}},
            id="only a part of it",
        ),
        pytest.param(
            {},
            [found(["b"], refused={"b"})],
            {"tasks": ("a", "c", "b"), "filled": {"b": FLOOD}},
            id="a task with refused rows floods at once",
        ),
        pytest.param(
            {"filled": {"a": FLOOD, "b": 1}},
            [found([])],
            {"filled": {"b": 1}},
            id="the others of a flood had their turn",
        ),
    ],
)
def test_turns_after_claims(
    before: dict[str, Any], claims: list[TasksFound], after: dict[str, Any]
) -> None:
    turns = Turns(NAMES)._replace(**before)
    assert turns.after(claims) == turns._replace(**after)


@pytest.mark.parametrize(
    ("filled", "claim"),
    [
        pytest.param({}, TaskClaim(7, NAMES), id="in their order"),
        pytest.param(
            {"a": 2 * FLOOD, "b": FLOOD - 1},
            TaskClaim(7, NAMES, ("b", "c"), 2 * FLOOD // OTHERS),
            id="a task floods: the others first, with a part of the room",
        ),
    ],
)
def test_turns(filled: dict[str, int], claim: TaskClaim) -> None:
    assert Turns(NAMES, filled).claim(7) == claim


def test_a_plan_changes_nothing_that_is_remembered() -> None:
    """The same question has the same answer: a round that fails leaves no trace."""
    memory, situation = (
        MEMORY._replace(rate=FAST),
        Situation(NOW + 1, free=10, removed=9),
    )
    before = repr(memory)
    assert PLANNER.plan(memory, situation) == PLANNER.plan(memory, situation)
    assert isinstance(memory, Memory)
    assert repr(memory) == before
