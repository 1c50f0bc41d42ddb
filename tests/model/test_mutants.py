"""A model is trusted after it has differed: a product with one rule broken is found out by a
script.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.kit.breaks import Mutant
from tests.model.mutants import MUTANTS
from tests.model.policies import Terms
from tests.model.script import Step
from tests.model.test_contract import GIVEN, play, play_drawn
from tests.model.test_found import FOUND, PAUSE, later, run, seconds, step
from tests.model.timeline import Times, every

from slotwise.spi import Database

#: So many generated scripts may pass before a mutant must have been found out.
SCRIPTS = 1000
REAP = step("reap")
SUCCEED = step("succeed", pick=0)
FAIL = step("fail", pick=0, final=False)
CRASH = step("crash", pick=0)


def deploy(every_seconds: int) -> Step:
    return step("redeploy", times=every(every_seconds))


RETRY_SOON = Terms(attempts=2, past=True)
RETRY_LATER = Terms(attempts=2, retry_pause=seconds(50), past=True)
ALL_BUT_FEW = Terms(catching="all", max=2)

#: Rule by rule, what shows that overlap and catch-up meet elsewhere. By the name of the mutant.
POLICIES_MEET: dict[str, tuple[Terms, Times, list[Step]]] = {
    "a claim that is lost held the job to its last heartbeat": (
        Terms(),
        every(60),
        [run(60), CRASH, later(400), REAP, run(20), SUCCEED],
    ),
    "a handler held the job to its end, and not to its settlement": (
        Terms(),
        every(20),
        [run(20), step("end_late", pick=0, kind="succeed", by=seconds(30))],
    ),
    "a row that waits holds its job until it is due": (
        RETRY_LATER,
        every(20),
        [run(20), FAIL, run(50), SUCCEED],
    ),
    "a row that waits holds its job for a poll interval more": (
        RETRY_LATER,
        every(60),
        [run(60), later(5), FAIL, run(56), SUCCEED],
    ),
    "what came while nobody held the job is catch-up's": (
        RETRY_SOON,
        every(60),
        [run(60), FAIL, run(200), SUCCEED],
    ),
    "without such a slot, unheld_since is cleared": (
        RETRY_SOON,
        every(60),
        [run(60), FAIL, run(20), *[later(50)] * 2, SUCCEED],
    ),
    "overlap decides up to unheld_since": (
        Terms(overlap="queue"),
        every(60),
        [run(60), *[later(50)] * 2, SUCCEED, run(200), SUCCEED],
    ),
    "a queue keeps its newest slots anew at each settlement": (
        Terms(overlap="queue", most=2),
        every(60),
        [run(60), *[later(50)] * 3, SUCCEED, run(1), *[later(50)] * 2, SUCCEED],
    ),
    "a queue has a maximum": (
        Terms(overlap="queue"),
        every(60),
        [run(60), *[later(50)] * 3, SUCCEED],
    ),
    "a queue does not lift start_within": (
        Terms(overlap="queue_all", start_within=seconds(30)),
        every(60),
        [run(60), *[later(50)] * 2, SUCCEED, run(1)],
    ),
    "a catch-up has a maximum": (ALL_BUT_FEW, every(60), [run(400)]),
    "a catch-up has a window": (
        Terms(catching="all", window=seconds(60)),
        every(60),
        [run(400)],
    ),
    "a tail ends with what has come by its first start": (
        ALL_BUT_FEW,
        every(60),
        [run(200), *[later(50)] * 3, SUCCEED, run(1)],
    ),
    "an absence extends a tail": (
        ALL_BUT_FEW,
        every(60),
        [run(200), SUCCEED, run(400)],
    ),
    "what came during the tail of a fast job is a new tail": (
        Terms(catching="all"),
        every(60),
        [run(170), SUCCEED, run(1), later(10), SUCCEED],
    ),
    "what came during the tail of a slow job is overlap's": (
        Terms(catching="all"),
        every(60),
        [run(170), SUCCEED, run(1), *[later(50)] * 2, SUCCEED],
    ),
    "a catch-up has a pace": (
        Terms(catching="all", pace=seconds(15)),
        every(60),
        [run(170), SUCCEED],
    ),
    "a catch-up side by side has a pace": (
        Terms(catching="all", overlap="allow", most=2, pace=seconds(15)),
        every(60),
        [run(400)],
    ),
    "so many run side by side": (
        Terms(overlap="allow"),
        every(60),
        [run(60), run(60)],
    ),
    "a slot that is looked at in time, and finds no place, is overlap's": (
        Terms(overlap="allow"),
        every(60),
        [run(60), run(60)],
    ),
    "a slot that is looked at late waits for a place": (
        Terms(overlap="allow"),
        every(60),
        [run(60), later(50), run(50)],
    ),
    "no retry falls behind the next slot": (
        Terms(attempts=2, retry_pause=seconds(50)),
        every(60),
        [run(60), later(20), FAIL],
    ),
    "slots that have come are in no retry's way": (
        Terms(catching="all", attempts=2),
        every(60),
        [run(400), FAIL],
    ),
    "who moves a due time moves unheld_since along": (
        RETRY_LATER,
        every(60),
        [run(60), FAIL, step("cancel", pick=0, which=True), run(60)],
    ),
}

#: Scripts in which the product and a rule that is broken differ, where those that once found
#: something show nothing.
SHOWN: dict[str, tuple[Terms, Times, list[Step]]] = {
    **POLICIES_MEET,
    "complete_in outlives its holder": (
        Terms(),
        every(300),
        [run(300), step("complete", pick=0, kind="crash"), later(400), REAP],
    ),
    "a worker that was silent for long succeeds": (
        Terms(),
        every(300),
        [
            run(300),
            step("freeze_or_thaw", pick=0),
            later(400),
            REAP,
            step("run_due", pick=1),
            step("freeze_or_thaw", pick=0),
            SUCCEED,
        ],
    ),
    "a job that gives up starts once": (
        Terms(gives_up=True),
        every(300),
        [run(300), step("fail", pick=0, final=False), step("retry", pick=0), run(1)],
    ),
    "a lost attempt is no try": (
        Terms(attempts=2, past=True),
        every(300),
        [
            run(300),
            step("crash", pick=0),
            later(400),
            REAP,
            run(10),
            step("fail", pick=0, final=False),
        ],
    ),
    "a snoozed attempt is no try": (
        Terms(attempts=2),
        every(300),
        [
            run(300),
            step("end_otherwise", pick=0, kind="snooze"),
            run(30),
            step("fail", pick=0, final=False),
        ],
    ),
    "what was called off is not tried again": (
        Terms(attempts=3),
        every(300),
        [
            run(300),
            step("cancel", pick=0, which=False),
            step("fail", pick=0, final=False),
        ],
    ),
    "what waits for its retry is stopped": (
        Terms(
            overlap="cancel_previous", attempts=2, retry_pause=seconds(50), past=True
        ),
        every(20),
        [run(20), step("fail", pick=0, final=False), run(20), run(1)],
    ),
    "a row that was paused while it was held sleeps": (
        Terms(attempts=2),
        every(300),
        [run(300), PAUSE, step("fail", pick=0, final=False)],
    ),
    "an operation on a held row is read": (
        Terms(),
        every(60),
        [run(60), PAUSE, step("succeed", pick=0), run(60)],
    ),
    "a new row begins after a slot that was left out": (
        Terms(),
        every(60),
        [step("skip_next"), step("create_anew"), run(60)],
    ),
    "a new row begins after a gap": (
        Terms(spread=seconds(200)),
        every(20),
        [later(60), step("create_anew"), *[run(20)] * 3],
    ),
    "what the text before the last still owes is skipped": (
        Terms(),
        every(60),
        [later(200), deploy(37), later(100), deploy(300)],
    ),
    "changes without a slot between them count as one": (
        Terms(),
        every(60),
        [later(70), deploy(300), later(5), deploy(37), run(1)],
    ),
    "after a slot that has begun, a text owes nothing from before it": (
        Terms(overlap="queue_all"),
        every(60),
        [run(60), later(50), later(50), deploy(37), later(50), deploy(300), SUCCEED],
    ),
    "a backfill keeps its pace, and goes on": (
        Terms(),
        every(60),
        [
            later(400),
            run(1),
            step("succeed", pick=0),
            step("backfill", ago=seconds(400), at_once=1, failed=False, pace=60),
            step("cancel", pick=0, which=True),
            *[run(20), step("succeed", pick=0)] * 4,
        ],
    ),
}

#: The script that shows a rule, where it has another name: it is played first, which saves most of
#: the others.
SHOWN_BY = {
    "a slot is dead after max_lost": "the pace of a catch-up counted from a death, not from a start",
    "a hand-back does not count": "slots that were passed by one handed back were decided twice",
    "a slot with a row of its own is not forgotten": "a slot that was handed back forgot how late it may start",
    "a settlement minds the claim's version and holder": "a worker that was silent for long succeeds",
    "the ledger starts a slot that gives up once": "a job that gives up starts once",
    "a slot that gives up stays as it ended": "a job that gives up starts once",
    "what was called off does not start": "who moves a due time moves unheld_since along",
    "slots are collapsed only once": "slots that were passed by one handed back were decided twice",
    "two starts are min_interval apart": "a skipped slot brought two starts together",
    "a slot starts min_interval after what an operator requested": "a slot started right after a trigger",
    "what waits for its retry is stopped at once": "what waits for its retry is stopped",
    "a pause leaves a retry alone": "a skipped slot took another one along that was handed back",
    "a skipped slot is skipped alone": "a skipped slot took another one along that was handed back",
    "a trigger that minds others is skipped": "a pause made a trigger forget that it waits for others",
    "a backfill has a pace": "a backfill keeps its pace, and goes on",
    "a slot that is called off lets the next one go": "a backfill keeps its pace, and goes on",
    "a new row begins after all that was decided": "a new row begins after a slot that was left out",
    "a deploy brings no two starts together": "a deploy brought two starts together",
    "a slot that has ended lets its row move on": "a claim that is lost held the job to its last heartbeat",
}


@pytest.mark.extended
def test_an_unbroken_product_passes(plain: Database) -> None:
    """What these scripts show, they show of the broken ones alone."""
    for terms, times, script in SHOWN.values():
        play(plain, terms, times, script)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_point_is_there(mutant: Mutant) -> None:
    """Else whoever runs the mutants learns nothing of its rule."""
    with mutant.at_large():
        pass


#: No script shows these. That gaps count is seen where the clock is stepped back, which no script
#: does: tests/store/conformance/test_planner.py, test_a_gap_outlives_the_row_too.
SHOWN_ELSEWHERE = {"gaps count as decided"}


@pytest.mark.extended
@pytest.mark.parametrize(
    "rule", [rule for rule in MUTANTS if rule not in SHOWN_ELSEWHERE]
)
def test_a_product_without_a_rule_is_found_out(plain: Database, rule: str) -> None:
    """By a known script, or else by a generated one."""
    with MUTANTS[rule].at_large():
        assert _fails_a_known_script(plain, rule) or _fails_a_generated_script(plain)


@pytest.mark.extended
@pytest.mark.parametrize("rule", POLICIES_MEET)
def test_where_policies_meet_each_rule_has_its_script(
    plain: Database, rule: str
) -> None:
    with MUTANTS[rule].at_large():
        assert _fails(plain, *POLICIES_MEET[rule])


def _fails_a_known_script(database: Database, rule: str) -> bool:
    """The rule's own script is the first."""
    known = {**SHOWN, **FOUND}
    own = known.get(SHOWN_BY.get(rule, rule))
    return any(
        _fails(database, *script)
        for script in ([own] if own else []) + list(known.values())
    )


def _fails(database: Database, terms: Terms, times: Times, script: list[Step]) -> bool:
    """By a difference, or by any error: a broken product may stumble over itself."""
    try:
        play(database, terms, times, script)
    except Exception:
        return True
    return False


def _fails_a_generated_script(database: Database) -> bool:
    """What ends the test itself, such as its timeout, is no answer."""
    is_found_out = False

    @settings(
        max_examples=SCRIPTS,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(**GIVEN)
    def look(terms: Terms, times: Times, script: list[Step]) -> None:
        nonlocal is_found_out
        try:
            play_drawn(database, terms, times, script)
        except Exception:
            is_found_out = True
            raise

    try:
        look()
    except Exception:
        if not is_found_out:
            raise
    return is_found_out
