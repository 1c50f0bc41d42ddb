"""A job that runs once a second, for three seconds.

    python examples/quick_start.py

prints, with other times:

    slot 02:00:01, attempt 1
    slot 02:00:02, attempt 1
    slot 02:00:03, attempt 1
"""

from __future__ import annotations

import time

from _database import database_url, make_tables

from slotwise import DistributedJob, Every, JobContext, JobRegistry


class Tick(DistributedJob):
    name = "example-tick"
    schedule = Every("1s")

    def execute(self, ctx: JobContext) -> None:
        print(f"slot {ctx.slot:%H:%M:%S}, attempt {ctx.attempt}")


registry = JobRegistry(jobs=[Tick()], database_url=database_url(), poll_interval="1s")

if __name__ == "__main__":
    make_tables(registry)
    with (
        registry
    ):  # a worker in this process; or run `slotwise worker --app quick_start`
        time.sleep(3.2)
