"""What hypothesis may declare: schedules and policies, except what is refused when a registry is
built.
"""

from __future__ import annotations

from datetime import timedelta

from hypothesis import strategies as st
from tests.model.policies import Terms
from tests.model.timeline import Times, after_the_end, either, every, never


def _seconds(*choices: int) -> st.SearchStrategy[timedelta]:
    return st.sampled_from([timedelta(seconds=seconds) for seconds in choices])


def _rarely(some: st.SearchStrategy[timedelta]) -> st.SearchStrategy[timedelta | None]:
    """One in four; ``none() | none()`` would be one strategy, and no more likely than the
    other.
    """
    return st.integers(0, 3).flatmap(lambda one: some if one == 3 else st.none())


#: Of each kind one.
TIMES = [
    every(60),
    every(20),
    every(37),
    every(300),
    every(60, 30),
    either(every(60), every(45, 10)),
    after_the_end(30),
    never(),
]


def is_refused(terms: Terms, times: Times) -> bool:
    """Whether policies and schedule contradict each other.

    | refused | because |
    |---|---|
    | ``min_interval`` with ``allow`` or ``cancel_previous`` | it keeps slots from running side by side |
    | ``retry`` with ``give_up`` | a slot starts at most once |
    | ``allow`` or ``cancel_previous`` with a fixed delay | nothing overlaps |
    | ``all`` with a fixed delay | there is one slot at a time |
    | ``all`` with a ``pace`` or a ``min_interval`` of the shortest interval or more | it would never catch up |
    """
    if terms.detaches and terms.min_interval is not None:
        return True
    if terms.gives_up and terms.attempts > 1:
        return True
    if times.delay is not None:
        return terms.detaches or terms.catches_all
    shortest = times.shortest_interval()
    apart = [span for span in (terms.pace, terms.min_interval) if span is not None]
    return (
        terms.catches_all
        and shortest is not None
        and any(span >= shortest for span in apart)
    )


def schedules() -> st.SearchStrategy[Times]:
    return st.sampled_from(TIMES)


@st.composite
def terms(draw: st.DrawFn) -> Terms:
    gives_up = draw(st.integers(0, 3)) == 0
    catching = draw(
        st.sampled_from(["latest", "latest", "none", "first", "all", "all"])
    )
    overlap = draw(
        st.sampled_from(
            ["skip", "skip", "queue", "queue_all", "allow", "cancel_previous"]
        )
    )
    detaches = overlap in ("allow", "cancel_previous")
    return Terms(
        catching=catching,
        grace=draw(_seconds(10, 60, 150)),
        max=draw(st.sampled_from([None, 1, 3])),
        window=draw(_rarely(_seconds(60, 200))),
        pace=draw(st.none() | _seconds(5, 15)),
        start_within=draw(_rarely(_seconds(10, 100))),
        overlap=overlap,
        most=draw(st.integers(1, 3)) if overlap in ("queue", "allow") else 1,
        gives_up=gives_up,
        max_lost=draw(st.sampled_from([1, 2, 2, 3])),
        attempts=1 if gives_up else draw(st.integers(1, 3)),
        retry_pause=draw(_seconds(4, 50)),
        past=draw(st.booleans()),
        min_interval=None if detaches else draw(_rarely(_seconds(30, 100))),
        spread=draw(_rarely(_seconds(20, 200))),
    )
