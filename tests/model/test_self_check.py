"""The model alone, over random histories: no slot is decided twice or forgotten, and every
catch-up comes to an end.

python -m pytest tests/model/test_self_check.py                                   as on each commit
SLOTWISE_MODEL_EXAMPLES=5000 python -m pytest tests/model/test_self_check.py -o
faulthandler_timeout=0   the long form
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.model.canonical_cases import ALL, COLUMNS, Case, Kill, Play, Run, Span
from tests.model.contract import Course
from tests.model.model_side import ModelSide
from tests.model.operations import Operated

USUAL = 40
EXAMPLES = int(os.environ.get("SLOTWISE_MODEL_EXAMPLES", USUAL))
pytestmark = pytest.mark.timeout(280 if EXAMPLES == USUAL else 0)
#: When a history's accidents are over, and how long a calm follows at most.
CALM, LONGEST = 1500.0, 12000.0
#: Seconds between slots; handlers that are faster than that, a little faster, and slower. The calm
#: is long enough for the faster ones to catch up.
INTERVALS = (20, 37, 60)
HANDLERS = (0.4, 5.0, 15.0, 50.0, 90.0)


#: When, and what.
Operating = list[tuple[float, str]]


class Watched(Operated):
    """A model that refuses to decide a slot twice, or to wait for a slot while an older one is
    undecided.
    """

    def _skip(self, slots: list[datetime], reason: str) -> None:
        again = [slot for slot in slots if slot in self.fates]
        assert not again, f"decided twice: {again}"
        super()._skip(slots, reason)

    def _start(self, course: Course, holder: str) -> Course:
        fate = self.fates.get(course.slot)
        assert fate is None or not fate.final, (
            f"started, though it was decided: {course.slot}"
        )
        assert course.due <= self.now, "started before its time"
        return super()._start(course, holder)

    def check(self) -> None:
        """The plan row waits for the oldest undecided slot, or is held, or waits for its next
        attempt.
        """
        if self.plan is None or self.plan.attempt:
            return
        undecided = self._next_slot()
        assert undecided is None or self.plan.slot == undecided, (
            f"waits for {self.plan.slot}, and {undecided} is older"
        )
        is_queued, is_tail = self._is_queued, self.catch_up_until is not None
        assert not (is_queued and is_tail), "queued, and in a tail"
        assert is_queued or self.unheld_since is None, (
            "a row that waits for a new slot is not held"
        )


class WatchedSide(ModelSide):
    """The model is checked at each instant."""

    model: Watched

    def pass_to(self, at: float) -> None:
        self.model.check()
        super().pass_to(at)


class Interrupted(Play):
    """A case, and what operators do meanwhile."""

    def __init__(self, case: Case, side: WatchedSide, operations: Operating) -> None:
        super().__init__(case, side)
        self.model, self.operations = side.model, operations

    def _do_operations(self, at: float) -> None:
        super()._do_operations(at)
        for when, operation in self.operations:
            if (
                when == at
                and operation == "skip"
                and self.model.skippable() is not None
            ):
                self.model.skip_next()
            elif (
                when == at
                and operation == "cancel"
                and self.model.plan is not None
                and self.model.plan.attempt
            ):
                self.model.cancel(self.model.plan.slot)

    def _next(self, at: float) -> float:
        return min(
            [super()._next(at), *(when for when, _ in self.operations if when > at)]
        )


@st.composite
def spans(draw: st.DrawFn, most: int) -> tuple[Span, ...]:
    """Up to so many spans within the time of accidents, on tenths of a second."""
    found = []
    for _ in range(draw(st.integers(0, most))):
        begin = draw(st.integers(10, 13000))
        found.append(
            (begin / 10, (begin + draw(st.sampled_from([13, 200, 700, 2000]))) / 10)
        )
    return tuple(found)


@st.composite
def histories(draw: st.DrawFn, overlaps: tuple[str, ...]) -> Case:
    """A job, and accidents; after these, all workers live, and each attempt succeeds in the same
    time.
    """
    every, handler = draw(st.sampled_from(INTERVALS)), draw(st.sampled_from(HANDLERS))
    gives_up = draw(st.integers(0, 3)) == 3
    runs, taken = {}, [0.4, 5.0, 50.0, 200.0]
    for slot in range(every, int(CALM), every):
        for name in (f"{slot}", f"{slot}#2", f"{slot}#3"):
            if draw(st.integers(0, 9)) == 0:
                ends = draw(st.sampled_from(["succeed", "fail", "snooze"]))
                runs[name] = Run(
                    draw(st.sampled_from(taken)),
                    ends,
                    draw(st.sampled_from([3.0, 50.0, 150.0])),
                )
    paused = float(draw(st.integers(10, 1000)))
    kills = []
    for _ in range(draw(st.integers(0, 3))):
        at = float(draw(st.integers(10, 1300)))
        kills.append(
            Kill(
                at,
                at - draw(st.sampled_from([0, 0.5, 9])),
                at + draw(st.sampled_from([15, 60, 150])),
            )
        )
    return Case(
        title="random",
        expected={},
        until=LONGEST,
        every=every,
        handler=handler,
        runs=runs,
        overlap=draw(st.sampled_from(overlaps)),
        places=draw(st.integers(1, 3)),
        grace=draw(st.sampled_from([10.0, 60.0])),
        max=draw(st.sampled_from([None, None, 1, 3])),
        window=draw(st.sampled_from([None, None, 60.0, 200.0])),
        pace=draw(st.sampled_from([None, None, 5.0, 15.0])),
        start_within=draw(st.sampled_from([None, None, 10.0, 100.0])),
        gives_up=gives_up,
        attempts=1 if gives_up else draw(st.integers(1, 3)),
        retry_pause=draw(st.sampled_from([4.0, 50.0])),
        past_next_slot=draw(st.booleans()),
        unwatched=draw(spans(3)),
        database_away=draw(spans(2)),
        kills=tuple(kills),
        paused=(paused, paused + draw(st.sampled_from([5, 100, 300])))
        if draw(st.integers(0, 3)) == 3
        else None,
        replay=draw(st.booleans()),
        deploy=(float(draw(st.integers(1, 1300))), draw(st.sampled_from(INTERVALS)))
        if draw(st.booleans())
        else None,
    )


def operations() -> st.SearchStrategy[Operating]:
    """Operators skip the next slot, or cancel the one that runs or waits for its retry."""
    when = st.integers(10, 1300).map(float)
    return st.lists(st.tuples(when, st.sampled_from(["skip", "cancel"])), max_size=3)


def played(case: Case, column: str, until: float, orderly: Operating) -> Watched:
    """Play the history up to this time, and return the model."""
    side = WatchedSide(case, column, Watched)
    Interrupted(replace(case, until=until), side, orderly).go()
    side.model.check()
    return side.model


def bounded(examples: int) -> settings:
    """Always the same examples, unless more are asked for than usual."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=EXAMPLES == USUAL,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.extended
@bounded(EXAMPLES)
@given(
    st.sampled_from(COLUMNS),
    histories(("skip", "queue", "queue_all", "allow", "cancel_previous")),
    operations(),
)
def test_no_slot_is_decided_twice_or_forgotten(
    column: str, case: Case, orderly: Operating
) -> None:
    """Every slot that has come has a fate, has started, or waits behind the slot of the plan
    row.
    """
    model = played(case, column, CALM + 200, orderly)
    assert model.plan is not None
    waiting = set(model.come(model.now)) | {course.slot for course in model.courses}
    forgotten = [
        slot
        for slot in model.timeline.slots(model.now)
        if slot not in model.fates and slot not in waiting
    ]
    assert not forgotten


@pytest.mark.extended
@bounded(EXAMPLES)
@given(histories(("skip", "queue", "queue_all")), operations())
def test_every_catch_up_by_all_comes_to_an_end(case: Case, orderly: Operating) -> None:
    """Also of a job that is slower than its schedule: some time after the accidents, slots are
    overlap's again.
    """
    until = CALM
    while until <= LONGEST:
        model = played(case, ALL, until, orderly)
        if model.catch_up_until is None and (
            case.overlap != "skip" or _is_up_to_date(model, case)
        ):
            return
        until += 1500
    raise AssertionError(f"still catching up, at {model.now}: {model.catch_up_until}")


def _is_up_to_date(model: Watched, case: Case) -> bool:
    """Whether the slots that have come and are undecided came due during the present run, or are
    just looked at.
    """
    every = max(case.every, case.deploy[1] if case.deploy else 0)
    longest = timedelta(seconds=case.handler + every + 2 * case.poll)
    return all(model.now - slot <= longest for slot in model.come(model.now))


def test_a_slow_job_with_a_window_leaves_its_catch_up() -> None:
    """No slot of a tail may start after a run that is longer than the window: what came due
    meanwhile is overlap's.
    """
    case = Case(
        title="slow",
        expected={},
        until=LONGEST,
        handler=250,
        window=200,
        unwatched=((61, 800),),
        every=60,
    )
    model = played(case, ALL, 3000, [])
    assert model.catch_up_until is None
    newest = [slot for slot, fate in model.fates.items() if fate.reason == "overlap"]
    assert model.now - max(newest) < timedelta(seconds=400)
