"""What is asked of a queue at once stays cheap where it has just grown: the planner takes the
table for a small one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from tests.databases import Databases
from tests.kit.store import Pruner
from tests.store.bench import a_task
from tests.store.explained import Explained, nodes, scanned

from slotwise import Client

pytestmark = pytest.mark.extended

ROWS = 20_000

GROW = f"""
ALTER TABLE scheduled_tasks SET (autovacuum_enabled = false);
ALTER TABLE scheduled_slots SET (autovacuum_enabled = false);
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, picked, version)
SELECT 'small', n::text, now(), false, 1000 FROM generate_series(1, 5) AS n;
INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, origin, finished)
SELECT 'small', n::text, now(), 'succeeded', 'task', now() FROM generate_series(1, 5) AS n;
ANALYZE scheduled_tasks; ANALYZE scheduled_slots;
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, picked, version, state)
SELECT 'mail', n::text, now(), false, 1000, CASE WHEN n % 2 = 0 THEN 'dead' END FROM generate_series(1, {ROWS}) AS n;
INSERT INTO scheduled_slots (task_name, task_instance, slot, outcome, origin, finished, expires)
SELECT 'mail', n::text, now(), 'succeeded', 'task', now(), now() FROM generate_series(1, {ROWS}) AS n;
"""


@pytest.fixture(scope="module")
def grown(databases: Databases) -> Iterator[Explained]:
    with databases.provisioned() as url:
        stage = Explained(url, [a_task("mail"), a_task("small")])
        stage.driver.execute(GROW)
        yield stage
        stage.close()


def _retry(stage: Explained) -> int:
    return len(Client(lambda: stage.store).retry("mail"))


def _cancel_waiting(stage: Explained) -> int:
    return Client(lambda: stage.store).cancel_all("mail", state="waiting")


def _cancel(stage: Explained) -> int:
    return Client(lambda: stage.store).cancel_all("mail")


def _prune(stage: Explained) -> int:
    return sum(
        page.slots
        for page in Pruner(
            stage.store, keep=timedelta(0), failure_retention=timedelta(0)
        ).pages()
    )


VERBS: list[tuple[Callable[[Explained], int], int]] = [
    (_retry, ROWS // 2),
    (_cancel_waiting, ROWS),
    (_cancel, 0),
    (_prune, ROWS),
]


def test_many_are_taken_at_once(grown: Explained) -> None:
    """Each statement looks for its rows once, by an index, and writes them by their places; all of
    them in seconds.
    """
    for (
        play,
        count,
    ) in VERBS:  # one after the other: each leaves to the next what it has not taken
        _takes(grown, play, count)


def _takes_rows(statement: str) -> bool:
    """Whether it is not the lock of those who count slots, which is one row of the meta table."""
    return "FOR UPDATE" in statement and "scheduled_meta" not in statement


def _takes(grown: Explained, play: Callable[[Explained], int], count: int) -> None:
    done: list[int] = []
    sent = grown.sent(lambda: done.append(play(grown)))
    assert done == [count], play.__name__
    for mode in ("custom", "generic"):
        plan = grown.plan(next(one for one in sent if _takes_rows(one[0])), mode)
        (found,) = [node for node in nodes(plan) if node["Node Type"] == "LockRows"]
        places = [node for node in nodes(plan) if node["Node Type"] == "Tid Scan"]
        is_once = any(
            node.get("Parent Relationship") == "InitPlan" and found in nodes(node)
            for node in nodes(plan)
        )
        shown = f"{play.__name__}, {mode}:\n{json.dumps(plan, indent=1)}"
        assert (is_once, len(places), scanned(plan)) == (True, 1, set()), shown
