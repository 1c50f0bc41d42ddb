"""What hypothesis may declare: schedules and policies."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from tests.model.policies import Terms
from tests.model.script import Step
from tests.model.timeline import Times, after_the_end, either, every, never


def _seconds(*choices: int) -> st.SearchStrategy[timedelta]:
    return st.sampled_from([timedelta(seconds=seconds) for seconds in choices])


#: Of each kind one.
TIMES = [
    every(60), every(20), every(37), every(300), every(60, 30), either(every(60), every(45, 10)),
    after_the_end(30), never(),
]  # fmt: skip


def schedules() -> st.SearchStrategy[Times]:
    return st.sampled_from(TIMES)


@st.composite
def terms(draw: st.DrawFn) -> Terms:
    gives_up = draw(st.integers(0, 3)) == 0
    catching = draw(st.sampled_from(["latest", "latest", "none", "first", "all", "all"]))
    overlap = draw(st.sampled_from(["skip", "skip", "queue", "queue_all", "allow", "cancel_previous"]))
    detaches = overlap in ("allow", "cancel_previous")
    return Terms(
        catching=catching,
        grace=draw(_seconds(10, 60, 150)),
        max=draw(st.sampled_from([None, 1, 3])),
        window=draw(st.none() | _seconds(60, 200)),
        pace=draw(st.none() | _seconds(5, 15)),
        start_within=draw(st.none() | st.none() | _seconds(10, 100)),
        overlap=overlap,
        most=draw(st.integers(1, 3)) if overlap in ("queue", "allow") else 1,
        gives_up=gives_up,
        max_lost=draw(st.integers(1, 2)),
        attempts=1 if gives_up else draw(st.integers(1, 3)),
        retry_pause=draw(_seconds(4, 50)),
        past=draw(st.booleans()),
        min_interval=None if detaches else draw(st.none() | st.none() | _seconds(30, 100)),
    )


_SPANS = _seconds(1, 7, 20, 40, 60, 90, 150, 400, 1000)
_PICK = st.integers(0, 7)


def _step(name: str, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(name), st.fixed_dictionaries(given))


#: The usual course of things comes up more often.
_USUAL = [
    _step("wait_and_run", pick=_PICK, by=_SPANS), _step("succeed", pick=_PICK), _step("pass_time", by=_SPANS),
    _step("poll", pick=_PICK), _step("begin", pick=_PICK), _step("fail", pick=_PICK, final=st.booleans()),
    _step("crash", pick=_PICK), _step("reap"),
]  # fmt: skip
_OTHERS = [
    _step("end_otherwise", pick=_PICK, kind=st.sampled_from(["snooze", "cancel", "stop"])),
    _step("complete", pick=_PICK, kind=st.sampled_from(["succeed", "fail", "crash"])),
    _step("freeze_or_thaw", pick=_PICK),
    _step("pause_or_resume", replay=st.booleans()),
    _step("pause_or_resume_all", replay=st.booleans()),
    _step("skip_next"),
    _step("trigger", rule=st.sampled_from(["beside", "queue", "skip"])),
    _step("cancel", pick=_PICK, which=st.booleans()),
    _step("retry", pick=_PICK),
    _step("backfill", ago=_SPANS, at_once=st.integers(1, 3), failed=st.booleans(), pace=st.sampled_from([0, 0, 15])),
    _step("cancel_backfill"),
    _step("redeploy", times=schedules()),
    _step("create_anew"),
]


def steps() -> st.SearchStrategy[Step]:
    return st.one_of(*_USUAL, *_USUAL, *_OTHERS)
