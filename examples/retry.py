"""A task that fails twice and is retried after growing waits; the count is stored in its row.

    python examples/retry.py

prints

    attempt 1: the other side is down
    attempt 2: the other side is down
    attempt 3: delivered
"""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

from _database import database_url, make_tables

from slotwise import JobRegistry, OneTimeTask, Retry, TaskContext


class Deliver(OneTimeTask):
    name = "example-deliver"
    retry = Retry.exponential(
        max_attempts=5,
        initial=timedelta(milliseconds=200),
        max_wait=timedelta(seconds=5),
    )

    def __init__(self) -> None:
        self.delivered = threading.Event()

    def execute(self, ctx: TaskContext) -> None:
        if ctx.attempt < 3:
            print(f"attempt {ctx.attempt}: the other side is down")
            raise ConnectionError("the other side is down")
        print(f"attempt {ctx.attempt}: delivered")
        self.delivered.set()


def main() -> None:
    logging.basicConfig(
        level=logging.ERROR
    )  # a failed attempt is a warning, with its traceback
    deliver = Deliver()
    registry = JobRegistry(tasks=[deliver], database_url=database_url())
    make_tables(registry)
    registry.client.schedule(deliver)
    with registry:
        assert deliver.delivered.wait(timeout=30), "the task has not succeeded"


if __name__ == "__main__":
    main()
