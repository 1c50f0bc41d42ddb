"""A model is trusted after it has differed: a product with one rule broken is found out by a script."""

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

from slotwise.store.connect.database import Database

#: So many generated scripts may pass before a mutant must have been found out.
SCRIPTS = 1000
REAP = step("reap")
SUCCEED = step("succeed", pick=0)

#: Scripts in which the product and a rule that is broken differ, where those that once found something show nothing.
SHOWN: dict[str, tuple[Terms, Times, list[Step]]] = {
    "complete_in outlives its holder": (
        Terms(), every(300), [run(300), step("complete", pick=0, kind="crash"), later(400), REAP],
    ),
    "a worker that was silent for long succeeds": (
        Terms(), every(300),
        [run(300), step("freeze_or_thaw", pick=0), later(400), REAP, step("freeze_or_thaw", pick=0), SUCCEED],
    ),
    "a job that gives up starts once": (
        Terms(gives_up=True), every(300), [run(300), step("fail", pick=0, final=False), step("retry", pick=0), run(1)],
    ),
    "a lost attempt is no try": (
        Terms(attempts=2, past=True), every(300),
        [run(300), step("crash", pick=0), later(400), REAP, run(10), step("fail", pick=0, final=False)],
    ),
    "a snoozed attempt is no try": (
        Terms(attempts=2), every(300),
        [run(300), step("end_otherwise", pick=0, kind="snooze"), run(30), step("fail", pick=0, final=False)],
    ),
    "what was called off is not tried again": (
        Terms(attempts=3), every(300),
        [run(300), step("cancel", pick=0, which=False), step("fail", pick=0, final=False)],
    ),
    "what waits for its retry is stopped": (
        Terms(overlap="cancel_previous", attempts=2, retry_pause=seconds(50), past=True), every(20),
        [run(20), step("fail", pick=0, final=False), run(20), run(1)],
    ),
    "a row that was paused while it was held sleeps": (
        Terms(attempts=2), every(300), [run(300), PAUSE, step("fail", pick=0, final=False)],
    ),
    "an order on a held row is read": (Terms(), every(60), [run(60), PAUSE, step("succeed", pick=0), run(60)]),
    "a new row begins after a slot that was left out": (
        Terms(), every(60), [step("skip_next"), step("create_anew"), run(60)],
    ),
    "a new row begins after a gap": (
        Terms(spread=seconds(200)), every(20), [later(60), step("create_anew"), *[run(20)] * 3],
    ),
    "a backfill keeps its pace, and goes on": (
        Terms(), every(60),
        [
            later(400), run(1), step("succeed", pick=0),
            step("backfill", ago=seconds(400), at_once=1, failed=False, pace=60), step("cancel", pick=0, which=True),
            *[run(20), step("succeed", pick=0)] * 4,
        ],
    ),
}  # fmt: skip


def test_an_unbroken_product_passes(plain: Database) -> None:
    """What these scripts show, they show of the broken ones alone."""
    for terms, times, script in SHOWN.values():
        play(plain, terms, times, script)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_point_is_there(mutant: Mutant) -> None:
    """Else whoever runs the mutants learns nothing of its rule."""
    with mutant.at_large():
        pass


@pytest.mark.parametrize("rule", MUTANTS)
def test_a_product_without_a_rule_is_found_out(plain: Database, rule: str) -> None:
    """By a known script, or else by a generated one."""
    with MUTANTS[rule].at_large():
        assert _fails_a_known_script(plain) or _fails_a_generated_script(plain)


def _fails_a_known_script(database: Database) -> bool:
    return any(_fails(database, *known) for known in (*SHOWN.values(), *FOUND.values()))


def _fails(database: Database, terms: Terms, times: Times, script: list[Step]) -> bool:
    """By a difference, or by any error: a broken product may stumble over itself."""
    try:
        play(database, terms, times, script)
    except Exception:
        return True
    return False


def _fails_a_generated_script(database: Database) -> bool:
    @settings(
        max_examples=SCRIPTS, deadline=None, database=None, phases=[Phase.generate], derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(**GIVEN)
    def look(terms: Terms, times: Times, script: list[Step]) -> None:
        play_drawn(database, terms, times, script)

    try:
        look()
    except Exception:
        return True
    return False
