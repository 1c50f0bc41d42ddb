"""Rounds of a poller that executes its plans: the steps, their results and the sleep that
follows.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.kit.events import Listeners, PollBegan
from tests.kit.loops import (
    AT_ONCE,
    ActiveClaims,
    Peers,
    Poller,
    Runner,
    TasksFound,
    WorkerCommon,
)
from tests.kit.ports import Range
from tests.unit.engine.parts import a_claim

from slotwise import Every, job, task
from slotwise.engine.loops.tuning import (
    CROWDED,
    FILLING,
    LOCKED_PAUSES,
    MOST_AHEAD,
    RATE_WINDOW,
    SHORTLY,
)
from slotwise.spi import Claim, Event, define
from slotwise.store.slots.tuning import BATCH

POLL = timedelta(seconds=10)
SOON = timedelta(seconds=3)
#: How long each step of a round takes here.
STEP = timedelta(milliseconds=1)

JOB = define(job(name="tick", schedule=Every("1m"))(lambda ctx: None))
MAIL = define(task(name="mail")(lambda ctx: None))
LIMITED = define(task(name="limited", concurrency=1)(lambda ctx: None))

BOTH = ["tick", "mail"]


Step = tuple[Any, ...]


def a_begin(capacity: int) -> Step:
    return "begin", capacity


def a_look(names: list[str], tasks: list[str]) -> Step:
    return "look", names, tasks


def a_find(names: list[str]) -> Step:
    return "find due", names


def slots_claim(limit: int, names: list[str]) -> Step:
    return "claim slots", limit, names


def tasks_claim(limit: int, names: Sequence[str]) -> Step:
    return "claim tasks", limit, [*names]


GIVE_WAY, PASS_ON = ("give way",), ("pass on",)


class Counted(ActiveClaims):
    """As many claims are held as a test says."""

    count = 0

    def __len__(self) -> int:
        return self.count


class Rounds(Poller):
    """A poller whose queries are answered from a list. Time passes only with its steps and
    ``pass_time``.
    """

    def __init__(
        self, *definitions: Any, capacity: int = 10, runs_ahead: bool = True
    ) -> None:
        found = {one.name: one for one in definitions or (JOB, MAIL)}
        self.now = 100.0
        self.steps: list[Step] = []
        self.answers: list[Any] = []
        self.free = 10
        self.held = Counted(lambda: self.now)
        self.claims = SimpleNamespace(
            slots_may_be_due=True, refused=[], left_out=frozenset
        )
        margin = timedelta(seconds=10)
        common = SimpleNamespace(
            listeners=Listeners((self._hear,)),
            elapsed=lambda: self.now,
            worker="w",
            active_claims=self.held,
            lease=6 * margin,
            store=SimpleNamespace(
                definitions=found,
                poll=POLL,
                due=self,
                claims=self.claims,
                warnings=SimpleNamespace(has_met_newer=False),
            ),
        )
        runner = SimpleNamespace(
            capacity=capacity,
            runs_ahead=runs_ahead,
            margin=margin,
            is_draining=False,
            free=lambda: self.free,
        )
        super().__init__(
            cast("WorkerCommon", common),
            names=[*found],
            runner=cast("Runner", runner),
            peers=Peers(),
            pass_on=lambda: self._do(PASS_ON),
        )
        self._stopping = cast(
            "threading.Event", SimpleNamespace(wait=lambda _: self._do(GIVE_WAY))
        )

    def pass_time(self, by: timedelta) -> None:
        self.now += by.total_seconds()

    def round(
        self,
        *answers: Any,
        free: int = 10,
        held: int = 0,
        ended: int = 0,
        slots_may_be_due: bool = True,
    ) -> tuple[list[Step], timedelta]:
        """The steps of a round, and the sleep after it. Each answer is the result of the next step
        that has one.
        """
        self.steps, self.answers = [], [*answers]
        self.held.count, self.held.removed = held, ended
        self.free, self.claims.slots_may_be_due = free, slots_may_be_due
        pause = self.run_once()
        assert pause is not None
        assert self.answers == [], f"not asked for: {self.answers} after {self.steps}"
        return self.steps, pause

    def sleep(self, *answers: Any) -> timedelta:
        """The sleep after a round; it is over then."""
        _, pause = self.round(*answers)
        self.pass_time(pause)
        return pause

    # -- the store --------------------------------------------------------------------------------

    def _hear(self, event: Event) -> None:
        assert isinstance(event, PollBegan)
        self._do(a_begin(event.capacity))

    def next_due(
        self, names: Sequence[str], tasks: Sequence[str], *, lost: int
    ) -> timedelta | None:
        due: timedelta | None = self._ask(a_look([*names], [*tasks]))
        return due

    def _hold_slots(self, limit: int, names: Sequence[str]) -> int:
        found: int = self._ask(slots_claim(limit, [*names]))
        return found

    def _hold_tasks(
        self, limit: int, names: Sequence[str], ranges: Sequence[Range] | None = None
    ) -> tuple[list[Claim], TasksFound]:
        count: int = self._ask(tasks_claim(limit, names))
        claims = [
            a_claim(names[0], schedule=None, instance=str(number))
            for number in range(count)
        ]
        return claims, TasksFound([names[0]] * count, (), limit, ranges is not None)

    def _ask(self, step: Step) -> Any:
        assert self.answers, f"{step} has no answer"
        self._do(step)
        return self.answers.pop(0)

    def _do(self, step: Step) -> None:
        self.steps.append(step)
        self.pass_time(STEP)


SLOTS = slots_claim(10, BOTH)
TASKS = tasks_claim(10, ("mail",))
LOOK = a_look(BOTH, ["mail"])
#: The usual round, and one that found little.
ALL, NOW = [a_begin(10), SLOTS, TASKS, LOOK], timedelta(0)


@pytest.mark.parametrize(
    ("facts", "answers", "steps", "pause"),
    [
        pytest.param(
            {}, [0, 0, None], ALL, POLL, id="nothing waits: the poll interval"
        ),
        pytest.param(
            {},
            [0, 0, SOON],
            ALL,
            SOON - STEP,
            id="until the next row is due, less the query",
        ),
        pytest.param(
            {}, [0, 0, 2 * POLL], ALL, POLL, id="never longer than the poll interval"
        ),
        pytest.param(
            {},
            [1, 0],
            [a_begin(10), SLOTS, TASKS, GIVE_WAY],
            AT_ONCE,
            id="a short batch: handlers first",
        ),
        pytest.param(
            {},
            [3, 2],
            [a_begin(10), SLOTS, TASKS],
            AT_ONCE,
            id="half of the room: at once",
        ),
        pytest.param(
            {"slots_may_be_due": False},
            [3],
            [a_begin(10), TASKS, GIVE_WAY],
            AT_ONCE,
            id="no slot is due: tasks first",
        ),
        pytest.param(
            {"slots_may_be_due": False},
            [0, 5],
            [a_begin(10), TASKS, SLOTS],
            AT_ONCE,
            id="no task is due: slots follow",
        ),
        pytest.param(
            {"free": 4},
            [0, 0, None],
            [a_begin(10), slots_claim(4, BOTH), TASKS, LOOK],
            POLL,
            id="sizes",
        ),
        pytest.param(
            {"held": 10},
            [0, None],
            [a_begin(10), SLOTS, a_look(BOTH, [])],
            CROWDED,
            id="no room for tasks",
        ),
        pytest.param(
            {"free": 0},
            [0, None],
            [a_begin(10), TASKS, a_look([], ["mail"])],
            CROWDED,
            id="no place for slots",
        ),
        pytest.param({"free": 0, "held": 10}, [], [], CROWDED, id="no room at all"),
    ],
)
def test_the_first_round(
    facts: dict[str, Any], answers: list[Any], steps: list[Step], pause: timedelta
) -> None:
    """A worker with one job and one task, and room for ten."""
    assert Rounds().round(*answers, **facts) == (steps, pause)


@pytest.mark.parametrize(
    ("definitions", "steps"),
    [
        pytest.param(
            [JOB],
            [a_begin(10), slots_claim(10, ["tick"]), a_look(["tick"], [])],
            id="only jobs",
        ),
        pytest.param(
            [MAIL],
            [
                a_begin(10),
                slots_claim(10, ["mail"]),
                TASKS,
                a_look(["mail"], ["mail"]),
            ],
            id="only tasks",
        ),
    ],
)
def test_kinds_that_are_not_known_are_not_claimed(
    definitions: list[Any], steps: list[Step]
) -> None:
    """A worker without one-time tasks has no room for them, and does not wait for it. Tasks may
    have slots, too.
    """
    answers = [
        None if step[0] == "look" else 0 for step in steps if step[0] != "begin"
    ]
    assert Rounds(*definitions).round(*answers) == (steps, POLL)


def quiet() -> Rounds:
    """After a round in which nothing was known to become due, at the end of its sleep."""
    rounds = Rounds()
    rounds.round(0, 0, None)
    rounds.pass_time(POLL)
    return rounds


def test_after_a_quiet_sleep_it_only_looks() -> None:
    """One query instead of two claims, until it finds something due."""
    rounds = quiet()
    assert rounds.round(None) == ([LOOK], POLL)
    rounds.pass_time(POLL)
    assert rounds.round(NOW, 1, 0) == (
        [LOOK, a_begin(10), SLOTS, TASKS, GIVE_WAY],
        AT_ONCE,
    )
    assert rounds.round(None) == ([LOOK], POLL)  # also after a short batch


def test_after_a_large_batch_it_claims() -> None:
    """There is probably more."""
    rounds = quiet()
    rounds.round(NOW, 5, 4)
    assert rounds.round(0, 0, None)[0] == ALL


def test_a_row_that_was_known_to_become_due_is_claimed() -> None:
    """Race: a look before the claim would only delay it. An end before that time needs a look."""
    rounds = Rounds()
    rounds.round(0, 0, SOON)
    assert rounds.round(SOON)[0] == [LOOK]
    rounds.pass_time(SOON)
    assert rounds.round(0, 0, None)[0] == ALL


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        pytest.param(
            "mail",
            [a_begin(10), TASKS, SLOTS, LOOK],
            id="a task goes first, without a look",
        ),
        pytest.param("tick", [LOOK], id="a job: what is due is found by the look"),
    ],
)
def test_a_notification(name: str, steps: list[Step]) -> None:
    """It counts once."""
    rounds = quiet()
    rounds.wake_for([name])
    answers = [None if step == LOOK else 0 for step in steps if step[0] != "begin"]
    assert rounds.round(*answers)[0] == steps
    rounds.pass_time(POLL)
    assert rounds.round(None)[0] == [LOOK]


def test_a_locked_row_is_tried_less_and_less_often() -> None:
    """It is due and was not found. The pauses are jittered, and begin anew after a look that finds
    nothing due.
    """
    rounds, (first, longest) = Rounds(), LOCKED_PAUSES
    for _ in range(3):
        pauses = [rounds.sleep(0, 0, NOW) for _ in range(12)]
        assert first <= pauses[0] < 4 * first
        assert longest / 2 <= max(pauses) <= 2 * longest
        rounds.sleep(0, 0, SOON)


def test_a_full_worker_wakes_others_once() -> None:
    """Race: only the worker that settled a slot knows the next one, and it is full when that is
    due.
    """
    full = {"free": 0, "held": 10}
    rounds = Rounds()
    assert rounds.round(**full) == ([], CROWDED)
    rounds.pass_time(CROWDED)
    assert rounds.round(SOON, **full) == ([LOOK], SOON - STEP)
    rounds.pass_time(SOON)
    assert rounds.round(NOW, **full) == ([LOOK, PASS_ON], POLL)
    assert rounds.round(**full)[0] == []
    assert rounds.round(0, 0, None)[0] == ALL
    assert rounds.round(**full) == ([], CROWDED)  # full again: the wait begins anew


def fast(
    rounds: Rounds, *answers: Any, held: int, **facts: Any
) -> tuple[list[Step], timedelta]:
    """A round after a notification of a task, in which a million attempts end in each second."""
    rounds.wake_for(["mail"])
    return rounds.round(
        *answers, held=held, ended=round(rounds.now * 1_000_000), **facts
    )


@pytest.fixture
def rounds() -> Rounds:
    """After two windows in which attempts have ended as fast as ever counts."""
    rounds = Rounds()
    for _ in range(2):
        rounds.pass_time(timedelta(seconds=2 * RATE_WINDOW))
        fast(rounds, 0, 0, None, held=0)
    return rounds


def test_it_waits_for_room_for_a_batch(rounds: Rounds) -> None:
    """Slots that may be due do not wait. Nor do tasks once no more attempts end: quick handlers
    have become slow.
    """
    held, ended = MOST_AHEAD - 100, rounds.held.removed
    assert fast(rounds, slots_may_be_due=False, held=held) == ([], FILLING)
    assert fast(rounds, 0, None, held=held)[0] == [
        a_begin(10),
        SLOTS,
        a_look(BOTH, []),
    ]
    assert fast(rounds, slots_may_be_due=False, held=held) == ([], FILLING)
    rounds.pass_time(timedelta(seconds=RATE_WINDOW))
    rounds.wake_for(["mail"])
    assert rounds.round(0, 0, None, slots_may_be_due=False, held=5, ended=ended)[0][
        :2
    ] == [
        a_begin(10),
        tasks_claim(5, ["mail"]),
    ]


def test_slots_wait_while_short_handlers_make_room() -> None:
    """Small claims cost as much as large ones. Nothing waits for handlers that go on, and nothing
    for long.
    """
    rounds, half = Rounds(JOB), 5

    def ends(*answers: Any, free: int) -> tuple[list[Step], timedelta]:
        return rounds.round(*answers, free=free, ended=round(rounds.now * 1_000))

    for _ in range(3):
        rounds.pass_time(timedelta(seconds=2 * RATE_WINDOW))
        ends(10, free=10)
    for room in (0, 0, 1, 3):
        assert ends(free=room) == ([], SHORTLY)
    assert ends(half, free=half)[0] == [a_begin(half), slots_claim(half, ["tick"])]
    assert ends(free=2) == ([], SHORTLY)
    assert ends(2, free=2)[0] == [
        a_begin(2),
        slots_claim(2, ["tick"]),
    ]  # no handler has ended meanwhile
    assert ends(free=2) == ([], SHORTLY)
    rounds.pass_time(FILLING)
    assert ends(3, free=3)[0] == [a_begin(3), slots_claim(3, ["tick"])]
    for answers, steps in (
        ([], []),
        ([1], [a_begin(1), slots_claim(1, ["tick"])]),
    ):  # then handlers are long
        rounds.pass_time(timedelta(seconds=2 * RATE_WINDOW))
        assert rounds.round(*answers, free=1, ended=rounds.held.removed)[0] == steps


def test_a_batch_is_never_larger_than_a_statement_may_be(rounds: Rounds) -> None:
    """After a large batch, claims begin at the queue's cursors; a full look follows what does not
    fill half a batch.
    """
    full = tasks_claim(BATCH, ("mail",))
    assert fast(rounds, BATCH, held=0)[0][1:] == [full]
    assert fast(rounds, 10, 0, held=0)[0][1:3] == [
        full,
        tasks_claim(BATCH - 10, ("mail",)),
    ]


@pytest.mark.parametrize(("runs_ahead", "tasks"), [(True, 3), (False, 1)])
def test_slots_take_the_threads_of_tasks_that_may_not_wait(
    runs_ahead: bool, tasks: int
) -> None:
    """One round claims both kinds."""
    rounds = Rounds(capacity=3, runs_ahead=runs_ahead)
    assert rounds.round(2, 1, free=3)[0][:3] == [
        a_begin(3),
        slots_claim(3, BOTH),
        tasks_claim(tasks, ("mail",)),
    ]


def test_a_task_that_was_served_goes_to_the_end() -> None:
    """Of all tasks, with a limit or without."""
    rounds = Rounds(MAIL, LIMITED, capacity=1)
    assert rounds.round(0, 1, free=1)[0][-1] == tasks_claim(1, ("mail", "limited"))
    assert rounds.round(0, 1, free=1)[0][-1] == tasks_claim(1, ("limited", "mail"))


def test_a_limit_of_claims_is_kept() -> None:
    """``claim`` takes slots first, then tasks, together no more than the limit."""
    rounds = Rounds()
    rounds.answers = [1, 0]
    assert rounds.claim(3) == 1
    assert rounds.steps == [slots_claim(3, BOTH), tasks_claim(2, ["mail"])]


def test_a_round_claims_no_more_than_may_wait() -> None:
    """Slots and tasks alike."""
    rounds = Rounds()
    rounds.held.queued_at = rounds.now
    steps, _ = rounds.round(0, 0, None, free=10)
    assert {
        step[1] for step in steps if step[0] in ("begin", "claim slots", "claim tasks")
    } == {1}
