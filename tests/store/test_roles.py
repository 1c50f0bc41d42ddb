"""Each verb of the store under the printed grants: a worker's suffice, an enqueuer's do for its
own verbs alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy.exc import DBAPIError
from tests.databases import Databases
from tests.kit.connections import lacks_permission
from tests.kit.store import Store
from tests.store.bench import Bench
from tests.store.conftest import granted, opened, plan
from tests.store.statements import VERBS, Stage

from slotwise import DatabaseProblem

#: What an enqueuer may do; besides scheduling it only reads, and nothing of payloads.
OWN = {
    "schedule",
    "next_due",
    "next_due_of_tasks",
    "next_due_of_many",
    "look",
    "held_by",
}


@pytest.fixture
def planned(databases: Databases) -> Iterator[str]:
    with databases.provisioned("planned", plan) as url:
        yield url


@pytest.mark.parametrize("verb", VERBS)
def test_a_worker_may_send_each_statement(planned: str, verb: str) -> None:
    """And whatever prepares it."""
    with granted(planned, "worker") as theirs, opened(theirs) as database:
        VERBS[verb](Stage(Bench(database)))()


@pytest.mark.parametrize("verb", VERBS)
def test_an_enqueuer_may_not(planned: str, verb: str) -> None:
    """The database refuses the rest, whatever else is wrong with it."""
    with (
        granted(planned, "enqueuer") as theirs,
        opened(planned) as database,
        opened(theirs) as narrow,
    ):
        stage = Stage(Bench(database))
        play = VERBS[verb](stage)
        stage.store = Store(narrow, stage.store.definitions)
        if verb in OWN:
            play()
            return
        with pytest.raises((DBAPIError, DatabaseProblem)) as refused:
            play()
        assert lacks_permission(refused.value) or "permission denied" in str(
            refused.value
        ), refused.value
