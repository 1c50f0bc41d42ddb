"""Scripts in which cluster and model once differed, as short as they could be made."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.model.cluster import JOB, Cluster
from tests.model.policies import Terms
from tests.model.script import Script, Step
from tests.model.timeline import Times, after_the_end, either, every

from slotwise.spi import Database


def seconds(number: int) -> timedelta:
    return timedelta(seconds=number)


def run(after: int, pick: int = 0) -> Step:
    return "wait_and_run", {"pick": pick, "by": seconds(after)}


def later(by: int) -> Step:
    return "pass_time", {"by": seconds(by)}


def step(name: str, **given: Any) -> Step:
    return name, given


PAUSE = step("pause_or_resume", replay=False)

#: What was wrong, the job, and how it came to light.
FOUND: dict[str, tuple[Terms, Times, list[Step]]] = {
    "a catch-up's window did not hold for the only missed slot": (
        Terms(catching="all", window=seconds(60)),
        every(300),
        [later(400), step("poll", pick=0)],
    ),
    "a pause made a trigger forget that it waits for others": (
        Terms(),
        every(60),
        [
            run(60),
            PAUSE,
            step("trigger", rule="queue"),
            PAUSE,
            run(1, 1),
            step("succeed", pick=0),
            run(1),
        ],
    ),
    "a pause made an operator's cancellation a newer slot's": (
        Terms(),
        every(60),
        [
            run(60),
            PAUSE,
            step("cancel", pick=0, which=False),
            PAUSE,
            step("fail", pick=0, final=False),
        ],
    ),
    "an attempt that was called off before it began was counted": (
        Terms(),
        every(60),
        [later(60), step("poll", pick=0), step("cancel", pick=0, which=False), run(1)],
    ),
    "a fixed delay that was late was late again, run by run, up to the present": (
        Terms(catching="none"),
        after_the_end(30),
        [later(1000), step("poll", pick=0), step("poll", pick=0), run(40)],
    ),
    "a skipped slot brought two starts together": (
        Terms(min_interval=seconds(50)),
        every(20),
        [run(20), step("succeed", pick=0), step("skip_next"), run(20), run(10)],
    ),
    "a retry was put off by its distance to beyond the next slot": (
        Terms(min_interval=seconds(50), attempts=2),
        every(40),
        [run(40), step("fail", pick=0, final=False), run(40), run(20)],
    ),
    "a pause brought two starts together": (
        Terms(min_interval=seconds(50)),
        every(20),
        [run(20), step("succeed", pick=0), PAUSE, later(20), PAUSE, run(10)],
    ),
    "a deploy brought two starts together": (
        Terms(min_interval=seconds(30)),
        every(60),
        [run(60), step("succeed", pick=0), step("redeploy", times=every(20)), run(20)],
    ),
    "a job made anew brought two starts together": (
        Terms(min_interval=seconds(100)),
        every(60),
        [run(60), step("succeed", pick=0), step("create_anew"), run(60)],
    ),
    "slots that were passed by one handed back were decided twice": (
        Terms(catching="first", start_within=seconds(100)),
        every(20),
        [
            later(1000),
            step("poll", pick=0),
            later(1000),
            step("begin", pick=0),
            step("poll", pick=1),
        ],
    ),
    "a skipped slot took another one along that was handed back": (
        Terms(),
        every(60),
        [
            later(60),
            step("poll", pick=0),
            step("skip_next"),
            *[later(50)] * 4,
            step("begin", pick=0),
            run(1, 1),
        ],
    ),
    "a trigger was skipped for a slot that did not start": (
        Terms(start_within=seconds(10)),
        every(60),
        [step("trigger", rule="skip"), later(90), step("poll", pick=0)],
    ),
    "a slot that catches up stopped the one before it": (
        Terms(catching="all", overlap="cancel_previous"),
        every(60),
        [run(400), run(20), step("succeed", pick=0), run(1)],
    ),
    "the pace of a catch-up counted from a death, not from a start": (
        Terms(catching="all", pace=seconds(15), max_lost=1),
        every(20),
        [run(90), step("crash", pick=0), later(400), step("reap")],
    ),
    "a catch-up that goes on forgot its limits: an outage later all of it ran": (
        Terms(catching="all", max=3, window=seconds(200)),
        every(60),
        [
            run(400),
            step("succeed", pick=0),
            later(1000),
            *[run(1), step("succeed", pick=0)] * 4,
        ],
    ),
    "what joined a catch-up started at once, whatever its pace": (
        Terms(catching="all", pace=seconds(15)),
        every(20),
        [run(40), *[step("succeed", pick=0), run(15)] * 6],
    ),
    "slots of a catch-up that were too late took a look and a row each": (
        Terms(catching="all", start_within=seconds(100)),
        every(20),
        [
            run(400),
            step("succeed", pick=0),
            later(400),
            run(1),
            step("succeed", pick=0),
        ],
    ),
    "a job slower than its schedule never came out of its catch-up": (
        Terms(catching="all", max=3, window=seconds(200)),
        every(20),
        [run(40), *[later(50), step("succeed", pick=0), step("run_due", pick=0)] * 6],
    ),
    "an outage that began during a run was not caught up": (
        Terms(catching="all"),
        every(60),
        [
            run(60),
            step("crash", pick=0),
            later(400),
            step("reap"),
            later(400),
            step("reap"),
            run(40),
            step("succeed", pick=0),
            *[run(1), step("succeed", pick=0)] * 3,
        ],
    ),
    "a slot that was handed back forgot how late it may start": (
        Terms(overlap="allow", most=2, start_within=seconds(60), gives_up=True),
        every(60),
        [
            later(60),
            step("poll", pick=0),
            step("crash", pick=0),
            *[later(400), step("reap")] * 2,
            run(1),
        ],
    ),
    "a retry that was called off in an outage took the catch-up with it": (
        Terms(catching="all", max=3, attempts=2, retry_pause=seconds(50), past=True),
        every(60),
        [
            run(60),
            step("fail", pick=0, final=False),
            later(200),
            step("cancel", pick=0, which=True),
            later(200),
            run(1),
            *[run(1), step("succeed", pick=0)] * 4,
        ],
    ),
    "slots that were missed were overlap's where all of a queue was too late": (
        Terms(
            overlap="queue_all",
            start_within=seconds(100),
            attempts=2,
            retry_pause=seconds(50),
            past=True,
        ),
        every(60),
        [
            run(60),
            later(50),
            later(50),
            later(50),
            step("fail", pick=0, final=False),
            later(400),
            run(1),
            step("succeed", pick=0),
            *[run(1), step("succeed", pick=0)] * 4,
        ],
    ),
    "slots of an outage ran because one waited in a queue": (
        Terms(overlap="queue_all"),
        every(60),
        [
            run(60),
            later(50),
            later(50),
            later(50),
            step("succeed", pick=0),
            later(400),
            *[run(1), step("succeed", pick=0)] * 5,
        ],
    ),
    "a deploy during a run left the next slot of before in a retry's way": (
        Terms(attempts=2, retry_pause=seconds(50)),
        every(60),
        [
            run(60),
            step("redeploy", times=every(300)),
            later(30),
            step("fail", pick=0, final=False),
        ],
    ),
    "a retry was made beyond the next slot that a deploy has brought": (
        Terms(attempts=2, retry_pause=seconds(50)),
        every(300),
        [
            run(300),
            step("redeploy", times=every(20)),
            step("fail", pick=0, final=False),
        ],
    ),
    "a deploy put a slot that was left out in a retry's way": (
        Terms(attempts=3, retry_pause=seconds(50)),
        every(60),
        [
            run(60),
            step("skip_next"),
            step("fail", pick=0, final=False),
            step("redeploy", times=every(300)),
            run(50),
            step("fail", pick=0, final=False),
        ],
    ),
    "a slot that was skipped stood in the way of a retry beside its plan": (
        Terms(overlap="allow", most=2, attempts=2),
        every(60),
        [run(60), later(57), step("skip_next"), step("fail", pick=0, final=False)],
    ),
    "the text of before a deploy stood in the way of a retry beside its plan": (
        Terms(overlap="allow", attempts=2, retry_pause=seconds(50)),
        every(60),
        [
            run(60),
            later(10),
            step("redeploy", times=every(300)),
            step("fail", pick=0, final=False),
        ],
    ),
    "a slot that was handed back, and is too late, kept its place from one that is on time": (
        Terms(overlap="allow", start_within=seconds(60), gives_up=True),
        every(60),
        [
            later(60),
            step("poll", pick=0),
            step("crash", pick=0),
            *[later(400), step("reap")] * 2,
            run(1),
        ],
    ),
    "a catch-up kept its pace from a start that there had not been": (
        Terms(catching="all", pace=seconds(15), gives_up=True),
        every(60),
        [
            later(400),
            step("poll", pick=0),
            step("cancel", pick=0, which=False),
            run(1),
            run(0),
        ],
    ),
    "a pause moved the due time of a retry": (
        Terms(attempts=2),
        every(60),
        [run(60), step("fail", pick=0, final=False), PAUSE, later(60), PAUSE, run(1)],
    ),
    "an absence at the end of a tail's last slot was overlap's": (
        Terms(catching="all", max=1),
        every(60),
        [
            run(200),
            *[later(50)] * 2,
            step("complete", pick=0, kind="crash"),
            later(400),
            step("reap"),
        ],
    ),
    "a slot that had waited for another to stop ran alone after an absence": (
        Terms(overlap="cancel_previous"),
        every(60),
        [run(60), run(60), step("succeed", pick=0), run(60)],
    ),
    "the slots of a tail that were all too late waited for a claim": (
        Terms(catching="all", window=seconds(60)),
        either(every(300), every(300, 7)),
        [run(310), *[later(50)] * 2, step("succeed", pick=0), run(1)],
    ),
    "a queued slot that was handed back was catch-up's, as the one after it had been skipped": (
        Terms(overlap="queue_all"),
        every(20),
        [
            run(20),
            *[later(50)] * 2,
            step("succeed", pick=0),
            later(1),
            step("poll", pick=0),
            step("skip_next"),
            *[later(50)] * 2,
            step("begin", pick=0),
            run(1),
        ],
    ),
    "whether a tail's next slot may start in time was asked for a time before its min_interval": (
        Terms(catching="all", window=seconds(60), min_interval=seconds(30)),
        every(37),
        [run(73), step("succeed", pick=0), run(30)],
    ),
    "an absence did not extend a tail whose first slot was handed back": (
        Terms(catching="all", max=1),
        every(60),
        [
            later(400),
            step("poll", pick=0),
            step("skip_next"),
            *[later(50)] * 8,
            step("begin", pick=0),
            run(1),
        ],
    ),
    "a slot started in one claim with a retry that an operator requested": (
        Terms(min_interval=seconds(50)),
        every(60),
        [
            run(60),
            step("fail", pick=0, final=True),
            later(50),
            later(10),
            step("retry", pick=0),
            run(0),
            later(50),
            run(0),
        ],
    ),
    "a slot started right after a trigger": (
        Terms(min_interval=seconds(50)),
        every(60),
        [later(50), step("trigger", rule="beside"), run(0), run(10), run(40)],
    ),
    "a slot started right after a backfill of a range": (
        Terms(catching="none", grace=seconds(10), min_interval=seconds(50)),
        every(60),
        [
            later(170),
            later(50),
            step("poll", pick=0),
            step("backfill", ago=seconds(400), at_once=1, failed=False, pace=0),
            later(10),
            run(0),
            run(10),
            run(40),
        ],
    ),
    "a deploy brought a slot together with a trigger": (
        Terms(min_interval=seconds(50)),
        every(300),
        [
            step("trigger", rule="beside"),
            run(1),
            step("redeploy", times=every(20)),
            run(20),
            run(31),
        ],
    ),
    "a queued slot was put off, and its queue was catch-up's then": (
        Terms(overlap="queue_all", min_interval=seconds(40)),
        every(20),
        [
            run(20),
            *[later(50)] * 2,
            step("trigger", rule="beside"),
            run(0),
            step("succeed", pick=0),
            run(1),
            run(45),
        ],
    ),
    "a slot behind a tail whose last slot was skipped was taken for a queued one": (
        Terms(catching="all", overlap="queue"),
        every(60),
        [
            step("pass_until", pick=2, off=seconds(-1)),
            run(0),
            step("succeed", pick=0),
            step("skip_next"),
            run(61),
            step("succeed", pick=0),
            run(0),
            step("complete", pick=0, kind="crash"),
            later(400),
            step("reap"),
        ],
    ),
    "the interval to a tail's next slot was measured from a deploy": (
        Terms(catching="all"),
        every(20),
        [
            run(90),
            later(20),
            step("redeploy", times=every(60)),
            later(15),
            step("redeploy", times=every(60, 30)),
            later(1),
            step("succeed", pick=0),
            run(0),
        ],
    ),
    "a gap went on over the last slot of the schedule before": (
        Terms(overlap="cancel_previous"),
        every(60),
        [
            step("pass_until", pick=0, off=seconds(0)),
            step("redeploy", times=either(every(60), every(45, 10))),
            later(400),
            step("redeploy", times=every(60)),
            step("run_due", pick=0),
            later(150),
            step("succeed", pick=0),
            step("run_due", pick=0),
        ],
    ),
    "the slot behind a queue that was too late was due at the end of an interval that had passed": (
        Terms(
            catching="latest",
            grace=seconds(10),
            start_within=seconds(10),
            overlap="queue_all",
            attempts=2,
            retry_pause=seconds(4),
            min_interval=seconds(30),
        ),
        every(60),
        [
            run(60),
            later(120),
            step("end_late", pick=0, kind="fail", by=seconds(1)),
            later(69),
            run(0),
            step("succeed", pick=0),
            run(30),
        ],
    ),
    "a slot of a backfill whose retry was refused was taken for one that had just started": (
        Terms(grace=seconds(10), gives_up=True),
        every(60),
        [
            *[
                one
                for _ in range(7)
                for one in (step("pass_until", pick=0, off=seconds(0)), run(0))
            ],
            step("fail", pick=0, final=False),
            later(60),
            run(0),
            later(300),
            step("fail", pick=0, final=False),
            step("backfill", ago=seconds(400), at_once=2, failed=True, pace=15),
            later(15),
            run(0),
        ],
    ),
    "a trigger at the very instant of a slot took its place": (
        Terms(overlap="queue"),
        every(60),
        [
            run(60),
            step("pass_until", pick=0, off=seconds(0)),
            step("trigger", rule="skip"),
            run(0),
            step("succeed", pick=0),
            run(1),
        ],
    ),
}


@pytest.mark.parametrize("found", FOUND.values(), ids=FOUND)
def test_what_was_found_stays_mended(
    plain: Database, found: tuple[Terms, Times, list[Step]]
) -> None:
    """Each of them is a difference that the model has shown."""
    terms, times, script = found
    Script(Cluster(plain, terms, times)).play(script)


#: What each dialect has a statement of its own for.
OF_DIALECTS = ("a gap went on over the last slot of the schedule before",)


@pytest.mark.parametrize("name", OF_DIALECTS)
def test_it_stays_mended_on_postgresql(plain_postgresql: Database, name: str) -> None:
    """The same, on the reference."""
    terms, times, script = FOUND[name]
    Script(Cluster(plain_postgresql, terms, times)).play(script)


def test_a_script_that_is_played_again_is_the_same(plain: Database) -> None:
    """Also where what happens depends on an id: how long a row pauses after its second loss."""
    loss = [run(1), step("crash", pick=0), later(400), step("reap")]
    script = [
        step("trigger", rule="beside"),
        step("trigger", rule="beside"),
        *loss,
        *loss,
        *loss,
    ]
    played = []
    for _ in range(2):
        cluster = Cluster(plain, Terms(max_lost=5), every(300))
        Script(cluster).play(script)
        played.append(
            [
                (course.slot, course.due, course.lost)
                for course in cluster.model.courses
            ]
        )
    assert max(lost for _, _, lost in played[0]) > 1
    assert played[0] == played[1]


@pytest.mark.parametrize(("rule", "ran"), [("queue", 2), ("skip", 1)])
def test_triggers_that_mind_each_other_do_not_keep_each_other_from_running(
    plain: Database, rule: str, ran: int
) -> None:
    """Ordered twice, and claimed at once: the first runs, the second waits for it, or is
    skipped.
    """
    cluster = Cluster(plain, Terms(), every(300))
    for _ in range(2):
        cluster.operations.trigger(JOB, overlap=rule)  # type: ignore[arg-type]
    worker, started = cluster.members[0].worker, 0
    for _ in range(4):
        claims = worker.poll()
        assert len(claims) <= 1
        started += sum(worker.finish(claim) for claim in claims)
        worker.settle()
        cluster.clock.tick(seconds(2))
    assert started == ran
