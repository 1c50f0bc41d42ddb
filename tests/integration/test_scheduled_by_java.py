"""A row as Java's db-scheduler inserts it, with its data as JSON, is a task of Python's."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa

from slotwise import TaskContext, task
from slotwise.testing import ManualClock, ManualWorker

NOW = datetime(2026, 11, 20, 9, tzinfo=UTC)
INSERT = sa.text(
    "INSERT INTO scheduled_tasks(task_name, task_instance, task_data, execution_time, picked, "
    "version, priority) VALUES ('send-mail', 'order-17', :data, :due, false, 1, 0)"
)

seen: list[tuple[str, dict[str, object]]] = []


@task(name="send-mail")
def send_mail(ctx: TaskContext[dict[str, object]]) -> None:
    seen.append((ctx.id, ctx.data))


def test_a_task_that_java_scheduled_runs(pg_url: str) -> None:
    """As `SchedulerClient.schedule` of db-scheduler 16 writes it with a JSON serializer."""
    seen.clear()
    with ManualWorker([send_mail], pg_url, ManualClock(NOW)) as worker:
        worker.plan()
        with worker.store.transaction() as connection:
            data = b'{"to": "ann@example.org", "order": 17}'
            connection.execute(INSERT, {"data": data, "due": NOW})
        worker.tick("1s")
        worker.run_due()
    assert seen == [("order-17", {"to": "ann@example.org", "order": 17})]
