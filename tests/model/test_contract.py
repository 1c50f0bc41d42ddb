"""Random policies, outages, crashes and operations: the ledger agrees with a plain model of the
contract, slot by slot.

python -m pytest tests/model                                                              as on
each commit SLOTWISE_MODEL_EXAMPLES=5000 python -m pytest tests/model -o faulthandler_timeout=0
the long form
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ParamSpec

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from tests.model.cluster import Cluster
from tests.model.declarations import is_refused, schedules, terms
from tests.model.policies import Terms
from tests.model.scenes import scripts
from tests.model.script import Script, Step
from tests.model.timeline import Times

from slotwise import InvalidJob
from slotwise.spi import Database

USUAL = 80 if "TESTS_ALL" in os.environ else 50
EXAMPLES = int(os.environ.get("SLOTWISE_MODEL_EXAMPLES", USUAL))
#: PostgreSQL takes its time: so much fewer there.
SHARE = 20 if "TESTS_ALL" in os.environ else 12
#: On a busy machine an example may take seconds. A timeout that strikes within one is reported as
#: a FlakyFailure of it.
pytestmark = pytest.mark.timeout(280 if EXAMPLES == USUAL else 0)

P = ParamSpec("P")


def bounded(examples: int) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Always the same examples, unless more are asked for than usual."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=EXAMPLES == USUAL,
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


GIVEN: dict[str, Any] = {"terms": terms(), "times": schedules(), "script": scripts()}


def play(database: Database, terms: Terms, times: Times, script: list[Step]) -> None:
    Script(Cluster(database, terms, times)).play(script)


def play_drawn(
    database: Database, terms: Terms, times: Times, script: list[Step]
) -> None:
    """The same for a job that hypothesis has drawn, and that may be refused."""
    assume(not is_refused(terms, times))
    try:
        cluster = Cluster(database, terms, times)
    except InvalidJob:
        assume(False)
    Script(cluster).play(script)


@bounded(EXAMPLES)
@given(**GIVEN)
def test_the_ledger_agrees(
    plain: Database, terms: Terms, times: Times, script: list[Step]
) -> None:
    """After each step: every slot's outcome, reason and counts, and every row with its due time
    and holder.
    """
    play_drawn(plain, terms, times, script)


@bounded(max(EXAMPLES // SHARE, 1))
@given(**GIVEN)
def test_the_ledger_agrees_on_postgresql(
    plain_postgresql: Database, terms: Terms, times: Times, script: list[Step]
) -> None:
    """The same, on the reference."""
    play_drawn(plain_postgresql, terms, times, script)


@bounded(max(EXAMPLES // SHARE, 1))
@given(**GIVEN)
def test_the_ledger_agrees_on_mariadb(
    plain_mariadb: Database, terms: Terms, times: Times, script: list[Step]
) -> None:
    """And by locks of rows alone."""
    play_drawn(plain_mariadb, terms, times, script)
