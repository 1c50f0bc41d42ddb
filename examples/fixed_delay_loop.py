"""A job that starts again a second after it ended, however long it took.

    python examples/fixed_delay_loop.py

prints

    worked for 0.5 s
    worked for 0.5 s, 1.0 s after the end of the run before
    worked for 0.5 s, 1.0 s after the end of the run before
"""

from __future__ import annotations

import threading
import time

from _database import database_url, make_tables

from slotwise import DistributedJob, FixedDelay, JobContext, JobRegistry


class Refill(DistributedJob):
    name = "example-refill"
    schedule = FixedDelay("1s")

    def __init__(self) -> None:
        self.runs = threading.Semaphore(0)
        self._ended: float | None = None

    def execute(self, ctx: JobContext) -> None:
        begun = time.monotonic()
        pause = (
            ""
            if self._ended is None
            else f", {begun - self._ended:.1f} s after the end of the run before"
        )
        ctx.wait("500ms")  # sleeps, and returns early if the handler should stop
        self._ended = time.monotonic()
        print(f"worked for {self._ended - begun:.1f} s{pause}")
        self.runs.release()


def main() -> None:
    refill = Refill()
    registry = JobRegistry(jobs=[refill], database_url=database_url())
    make_tables(registry)
    with registry:
        for _ in range(3):
            assert refill.runs.acquire(timeout=30), "no slot has run"


if __name__ == "__main__":
    main()
