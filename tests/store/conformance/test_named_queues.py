"""Queues are sets of tasks, and tags: whoever may take a task takes it, and nobody else."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tenacity import wait_fixed
from tests.store.bench import NOON

from slotwise import JobContext, Retry, task
from slotwise.spi import Database
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
def test_who_takes_which_tasks(
    database: Database, settings: dict[str, Any], taken: set[str]
) -> None:
    """By the tags that a worker carries, and by the tasks that it serves; the others wait for
    somebody else.
    """
    tasks = [
        task(name="mail")(lambda ctx: None),
        task(name="render", runs_on={"gpu"})(lambda ctx: None),
    ]
    worker = ManualWorker(tasks, database, ManualClock(NOON), **settings)
    for name in ("mail", "render"):
        worker.client.schedule(name)
    assert {ended.job for ended in worker.run_due()} == taken
    assert {line.task for line in worker.client.list()} == {"mail", "render"} - taken


def test_of_many_workers_the_one_with_the_tags_takes_it(database: Database) -> None:
    """Its retries too: whoever lacks a tag leaves them alone, however often it looks."""
    tried: list[str] = []

    @task(
        name="render",
        runs_on={"gpu", "big"},
        retry=Retry(max_attempts=2, wait=wait_fixed(60)),
    )
    def render(ctx: JobContext) -> None:
        tried.append(ctx.worker)
        if ctx.attempt == 1:
            raise RuntimeError("once more")

    clock = ManualClock(NOON)
    able, *lacking = (
        ManualWorker(
            [render], database, clock, worker_name="-".join(tags) or "none", tags=tags
        )
        for tags in (("big", "fast", "gpu"), (), ("gpu",), ("big", "fast"))
    )
    able.client.schedule(render)
    for _ in range(2):
        assert [worker.run_due() for worker in lacking] == [[], [], []]
        able.run_due()
        clock.tick(timedelta(minutes=2))
    assert tried == [able.name, able.name]
    assert able.client.list() == []
