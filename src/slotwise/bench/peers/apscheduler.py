"""APScheduler 3 with its jobs in PostgreSQL. One process only: it says itself that a store must not be shared."""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slotwise.bench.contender import Contender, micros, python
from slotwise.bench.crew import Command
from slotwise.bench.journal import Journal
from slotwise.store.dsn import database_url

_HANDLER = "slotwise.bench.peers.apscheduler:note"


class APScheduler(Contender):
    """Ten threads; a job that is late runs all the same."""

    family = "apscheduler"
    share = 0.03
    is_single = True
    name = "apscheduler-3"

    def prepare(self, url: str) -> None:
        """It makes its table by itself."""

    def empty(self, url: str) -> None:
        asyncio.run(_with_store(url, lambda scheduler: scheduler.remove_all_jobs()))

    def fill(self, url: str, count: int) -> None:
        now = datetime.now(UTC)
        self._add(url, [(number, now) for number in range(1, count + 1)])

    def plan(self, url: str, due: Sequence[datetime]) -> Command:
        self._add(url, [(micros(instant), instant) for instant in due])
        return self.command(url)

    def command(self, url: str) -> Command:
        return python("slotwise.bench.peers.apscheduler", url=url)

    def _add(self, url: str, jobs: Sequence[tuple[int, datetime]]) -> None:
        def add(scheduler: Any) -> None:
            for number, instant in jobs:
                scheduler.add_job(_HANDLER, "date", run_date=instant, args=[number], id=str(number))

        asyncio.run(_with_store(url, add))


async def _with_store(url: str, work: Callable[[Any], None]) -> None:
    """On a loop that is never left to a scheduler: a paused one of threads runs what is due when it is shut down."""
    scheduler = _scheduler(url, "asyncio.AsyncIOScheduler")
    scheduler.start(paused=True)
    work(scheduler)
    scheduler.shutdown()


def _scheduler(url: str, kind: str = "background.BackgroundScheduler") -> Any:
    module, _, name = kind.partition(".")
    stores = importlib.import_module("apscheduler.jobstores.sqlalchemy")
    pool = importlib.import_module("apscheduler.executors.pool")
    store = stores.SQLAlchemyJobStore(url=database_url(url).render_as_string(hide_password=False))
    return getattr(importlib.import_module(f"apscheduler.schedulers.{module}"), name)(
        jobstores={"default": store}, executors={"default": pool.ThreadPoolExecutor(10)},
        job_defaults={"misfire_grace_time": None}, timezone=UTC,
    )  # fmt: skip


@functools.cache
def _journal() -> Journal:
    return Journal(Path(os.environ["BENCH_JOURNAL"]))


def note(number: int) -> None:
    """The job; found by its name."""
    _journal().note(number)


def main() -> None:
    """A worker, until SIGTERM."""
    logging.disable(logging.INFO)
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    scheduler = _scheduler(json.loads(os.environ["BENCH_OPTIONS"])["url"])
    scheduler.start()
    while not stopped.wait(1.0):
        continue
    scheduler.shutdown(wait=False)


if __name__ == "__main__":
    main()
