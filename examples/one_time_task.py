"""A task that is scheduled in your own transaction: it exists only if that transaction commits.

    python examples/one_time_task.py

prints

    rolled back: no mail for order 1
    mail for order 2 to ann@example.com
"""

from __future__ import annotations

import threading
from typing import Any

from _database import application_engine, database_url, make_tables

from slotwise import JobRegistry, TaskContext, task

sent = threading.Event()


@task(name="example-mail")
def send_mail(ctx: TaskContext[dict[str, Any]]) -> None:
    print(f"mail for order {ctx.data['order']} to {ctx.data['to']}")
    sent.set()


def main() -> None:
    registry = JobRegistry(tasks=[send_mail], database_url=database_url())
    make_tables(registry)
    engine = application_engine()
    with engine.connect() as connection:
        registry.client.schedule(
            send_mail, {"order": 1, "to": "ann@example.com"}, connection=connection
        )
        connection.rollback()
    print("rolled back: no mail for order 1")
    with engine.begin() as connection:
        registry.client.schedule(
            send_mail, {"order": 2, "to": "ann@example.com"}, connection=connection
        )
    with registry:
        assert sent.wait(timeout=30), "the task has not run"
    engine.dispose()


if __name__ == "__main__":
    main()
