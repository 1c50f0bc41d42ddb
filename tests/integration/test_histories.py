"""A worker's life, its deploy, and what it has settled, as the histories have them."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from tests.kit.patience import PATIENCE

from slotwise import Every, JobContext, JobRegistry, TaskContext, job, task

DAY = timedelta(days=1)


@pytest.mark.parametrize("url", ["pg_url", "sqlite_url"])
def test_a_worker_counts_what_it_has_settled(
    url: str, request: pytest.FixtureRequest
) -> None:
    """Each slot once, when it signs out at the latest; also tasks, which leave no row."""
    enough = threading.Semaphore(0)

    @job(name="tick", schedule=Every("100ms"))
    def tick(ctx: JobContext) -> None:
        enough.release()

    @task(name="mail")
    def mail(ctx: TaskContext[None]) -> None:
        enough.release()

    registry = JobRegistry(
        jobs=[tick],
        tasks=[mail],
        database_url=request.getfixturevalue(url),
        process_hook=False,
    )
    begin = registry.inspect.now()
    registry.start()
    for _ in range(3):
        registry.client.schedule(mail)
    for _ in range(8):
        assert enough.acquire(timeout=PATIENCE)
    assert registry.stop() == 0
    now = registry.inspect.now() + DAY
    look = registry.inspect
    ended = [
        line for line in look.slots("tick", limit=None) if line.finished is not None
    ]
    counted = look.outcome_counts(begin, now, job="tick")
    assert sum(one.count for one in counted) == sum(line.count for line in ended)
    assert {one.outcome for one in counted} <= {"succeeded", "skipped"}
    (of_tasks,) = look.outcome_counts(begin, now, job="mail", kind="task")
    assert (of_tasks.outcome, of_tasks.count) == ("succeeded", 3)
    (life,) = look.worker_lives(begin, now)
    assert (life.outcome, life.reason) == ("left", "stop")
    assert set(life.tasks) == {"tick", "mail"}
    (deploy,) = look.deploys(begin, now)
    assert (deploy.job, deploy.former) == ("tick", None)
    registry.database.close()
