"""Queues are sets of tasks, and tags: whoever may take a task takes it, and nobody else."""

from __future__ import annotations

from typing import Any

import pytest
from tests.store.bench import NOON

from slotwise import task
from slotwise.store.database import Database
from slotwise.testing import ManualClock, ManualWorker


@pytest.mark.parametrize(
    ("settings", "taken"),
    [
        ({}, {"mail"}),
        ({"tags": {"gpu"}}, {"mail", "render"}),
        ({"tags": {"gpu"}, "only": {"render"}}, {"render"}),
        ({"only": {"mail"}}, {"mail"}),
    ],
    ids=["any", "with tags", "with tags, of one task", "of one task"],
)
def test_who_takes_which_tasks(database: Database, settings: dict[str, Any], taken: set[str]) -> None:
    """By the tags that a worker carries, and by the tasks that it serves; the others wait for somebody else."""
    tasks = [task(name="mail")(lambda ctx: None), task(name="render", runs_on={"gpu"})(lambda ctx: None)]
    worker = ManualWorker(tasks, database, ManualClock(NOON), **settings)
    for name in ("mail", "render"):
        worker.client.schedule(name)
    assert {ended.job for ended in worker.run_due()} == taken
    assert {line.task for line in worker.client.list()} == {"mail", "render"} - taken
