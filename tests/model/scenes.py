"""What hypothesis may let happen: steps, and short scenes that lead to a state on purpose.

Each example draws a few kinds of disturbance and does without the others (swarm testing): one in
which everything may happen is interrupted before anything comes of it. Time passes mostly up to
instants at which something happens.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeAlias

from hypothesis import strategies as st
from tests.model.declarations import schedules
from tests.model.script import Step

Scene: TypeAlias = "st.SearchStrategy[list[Step]]"

_PICK = st.integers(0, 7)
_EITHER = st.booleans()
_SPANS = st.sampled_from(
    [timedelta(seconds=seconds) for seconds in (1, 7, 20, 40, 60, 90, 150, 400, 1000)]
)
_LONG = st.sampled_from([timedelta(seconds=seconds) for seconds in (150, 400, 1000)])
_OFF = st.sampled_from([timedelta(seconds=seconds) for seconds in (0, 0, 0, 1, -1, 6)])


def _step(name: str, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(name), st.fixed_dictionaries(given))


def _scene(*steps: st.SearchStrategy[Step]) -> Scene:
    return st.tuples(*steps).map(list)


_TO_NEXT = _step("pass_until", pick=st.integers(0, 3), off=_OFF)
_SOON = st.one_of(_TO_NEXT, _step("pass_time", by=_SPANS))
_POLL = _step("poll", pick=_PICK)
_BEGIN = _step("begin", pick=_PICK)
_RUN = _step("run_due", pick=_PICK)
_SUCCEED = _step("succeed", pick=_PICK)
_FAIL = _step("fail", pick=_PICK, final=st.sampled_from([False, False, False, True]))
_CRASH = _step("crash", pick=_PICK)
_FREEZE = _step("freeze_or_thaw", pick=_PICK)
_REAP = _step("reap")
_PAUSE = _step("pause_or_resume", replay=_EITHER)
_PAUSE_ALL = _step("pause_or_resume_all", replay=_EITHER)
_SKIP = _step("skip_next")
_CANCEL = _step("cancel", pick=_PICK, which=_EITHER)
_TRIGGER = _step("trigger", rule=st.sampled_from(["beside", "queue", "skip"]))
_RETRY = _step("retry", pick=_PICK)
_DEPLOY = _step("redeploy", times=schedules())
_BACK = _step("deploy_the_former")
_BACKFILL = _step(
    "backfill",
    ago=_SPANS,
    at_once=st.integers(1, 3),
    failed=_EITHER,
    pace=st.sampled_from([0, 0, 15, 60]),
)
_OTHERWISE = _step(
    "end_otherwise",
    pick=_PICK,
    kind=st.sampled_from(["snooze", "snooze", "cancel", "stop"]),
)
_END = st.one_of(_SUCCEED, _SUCCEED, _FAIL)

#: The usual course of things; how often each comes up.
USUAL: list[tuple[int, Scene]] = [
    (6, _scene(_TO_NEXT, _RUN)),
    (2, _scene(_SOON, _RUN)),
    (5, _scene(_SUCCEED)),
    (3, _scene(_FAIL)),
    (2, _scene(_TO_NEXT)),
    (2, _scene(_SOON)),
    (2, _scene(_POLL)),
    (2, _scene(_BEGIN)),
    (1, _scene(_TO_NEXT, _RUN, _SOON, _END)),
    (1, _scene(_TO_NEXT, _RUN, _TO_NEXT, _TO_NEXT, _END, _RUN)),
]

#: Of these kinds an example has some.
DISTURBANCES: dict[str, list[Scene]] = {
    "deaths": [
        _scene(_CRASH),
        _scene(_REAP),
        _scene(_TO_NEXT, _RUN, _CRASH, _step("pass_time", by=_LONG), _REAP),
        _scene(_RUN, _CRASH, _REAP, _RUN, _CRASH, _REAP),
    ],
    "deaths before the start": [
        _scene(_TO_NEXT, _POLL, _CRASH, _SOON, _REAP),
        _scene(_POLL, _step("pass_time", by=_LONG), _BEGIN),
    ],
    "zombies": [
        _scene(_FREEZE),
        _scene(
            _RUN, _FREEZE, _step("pass_time", by=_LONG), _REAP, _RUN, _FREEZE, _END
        ),
        _scene(_POLL, _FREEZE, _step("pass_time", by=_LONG), _REAP, _FREEZE, _BEGIN),
    ],
    "outages": [
        _scene(_step("pass_time", by=_LONG), _RUN),
        _scene(_END, _step("pass_time", by=_LONG), _RUN, _END, _RUN),
    ],
    "other ends": [
        _scene(
            _step(
                "end_otherwise",
                pick=_PICK,
                kind=st.sampled_from(["snooze", "snooze", "cancel", "stop"]),
            )
        ),
    ],
    "late settlements": [
        _scene(
            _step(
                "end_late",
                pick=_PICK,
                kind=st.sampled_from(["succeed", "succeed", "fail", "snooze"]),
                by=_SPANS,
            ),
            _RUN,
        ),
    ],
    "complete": [
        _scene(
            _step(
                "complete",
                pick=_PICK,
                kind=st.sampled_from(["succeed", "fail", "crash"]),
            )
        ),
        _scene(_RUN, _step("complete", pick=_PICK, kind=st.just("crash")), _REAP),
    ],
    "pauses": [
        _scene(_PAUSE),
        _scene(_PAUSE, _SOON, _PAUSE),
        _scene(_RUN, _PAUSE, _SOON, _END, _SOON, _PAUSE, _RUN),
    ],
    "pauses of all": [_scene(_PAUSE_ALL), _scene(_PAUSE_ALL, _SOON, _PAUSE_ALL)],
    "skips": [
        _scene(_SKIP),
        _scene(_RUN, _SKIP, _END),
        _scene(_TO_NEXT, _POLL, _SKIP, _step("pass_time", by=_LONG), _BEGIN, _RUN),
    ],
    "triggers": [
        _scene(_TRIGGER),
        _scene(_RUN, _TRIGGER, _RUN, _END, _SOON, _RUN),
        _scene(_TRIGGER, _RUN, _END),
    ],
    "cancellations": [
        _scene(_CANCEL),
        _scene(_RUN, _CANCEL, _END),
        _scene(_RUN, _FAIL, _CANCEL, _RUN),
        _scene(_POLL, _CANCEL, _BEGIN),
    ],
    "retries by hand": [_scene(_RETRY), _scene(_RUN, _FAIL, _RETRY, _RUN, _END)],
    "backfills": [
        _scene(_BACKFILL),
        _scene(_BACKFILL, _RUN, _END, _RUN, _END),
        _scene(_BACKFILL, _step("cancel", pick=_PICK, which=st.just(True)), _RUN),
        _scene(_step("cancel_backfill")),
    ],
    "deploys": [
        _scene(_DEPLOY),
        _scene(_DEPLOY, _SOON, _BACK),
        _scene(_RUN, _DEPLOY, _END),
        _scene(_RUN, _FAIL, _DEPLOY, _RUN),
        _scene(_RUN, _SKIP, _DEPLOY, _END),
        _scene(
            _step("pass_time", by=_LONG), _DEPLOY, _SOON, _DEPLOY, _SOON, _DEPLOY, _RUN
        ),
        _scene(
            _RUN, _step("pass_time", by=_LONG), _DEPLOY, _SOON, _DEPLOY, _END, _RUN
        ),
    ],
    "births": [
        _scene(_step("create_anew")),
        _scene(_RUN, _END, _step("create_anew"), _SOON, _RUN),
    ],
}


@st.composite
def scripts(draw: st.DrawFn, least: int = 12, most: int = 20) -> list[Step]:
    """Steps to play; ``least`` and ``most``: how many scenes."""
    kinds = draw(
        st.lists(
            st.sampled_from(sorted(DISTURBANCES)), min_size=3, max_size=6, unique=True
        )
    )
    scenes = [scene for weight, scene in USUAL for _ in range(weight)]
    for kind in kinds:
        scenes += [
            scene
            for scene in DISTURBANCES[kind]
            for _ in range(6 // len(DISTURBANCES[kind]) or 1)
        ]
    picked = st.integers(0, len(scenes) - 1).flatmap(scenes.__getitem__)
    return [
        step
        for scene in draw(st.lists(picked, min_size=least, max_size=most))
        for step in scene
    ]
