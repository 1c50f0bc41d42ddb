"""Procrastinate: coroutine tasks, many at a time, finished jobs deleted."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from slotwise.bench.contender import Contender, Send, micros, python
from slotwise.bench.crew import Command
from slotwise.bench.journal import Journal
from slotwise.store.dsn import psycopg

_CHUNK = 1_000


class Procrastinate(Contender):
    """``concurrency`` coroutines per worker; its poll interval is the default."""

    family = "procrastinate"
    share = 0.06

    def __init__(self, concurrency: int) -> None:
        self.name = f"procrastinate-{concurrency}"
        self._concurrency = concurrency
        self._has_tables = False

    def prepare(self, url: str) -> None:
        if not self._has_tables:
            with _app(url).open() as app:
                app.schema_manager.apply_schema()
        self._has_tables = True

    def empty(self, url: str) -> None:
        """It has no call for that; its tables are few."""
        with psycopg().connect(url, autocommit=True) as connection:
            connection.execute("TRUNCATE procrastinate_jobs, procrastinate_events, procrastinate_workers CASCADE")

    def fill(self, url: str, count: int) -> None:
        with _app(url).open() as app:
            for first in range(1, count + 1, _CHUNK):
                ids = range(first, min(first + _CHUNK, count + 1))
                app.configure_task("bench").batch_defer(*({"number": one} for one in ids))

    def command(self, url: str) -> Command:
        return python("slotwise.bench.peers.procrastinate", url=url, concurrency=self._concurrency)

    @contextmanager
    def sender(self, url: str) -> Iterator[Send]:
        with _app(url).open() as app:
            yield lambda number: app.configure_task("bench").defer(number=number)

    def plan(self, url: str, due: Sequence[datetime]) -> Command:
        with _app(url).open() as app:
            for instant in due:
                app.configure_task("bench", schedule_at=instant).defer(number=micros(instant))
        return self.command(url)


def _app(url: str, note: Callable[[int], None] = lambda _: None) -> Any:
    procrastinate = importlib.import_module("procrastinate")
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

    async def bench(number: int) -> None:
        note(number)

    app.task(name="bench")(bench)
    return app


async def _work(app: Any, concurrency: int) -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=concurrency, delete_jobs="always")


def main() -> None:
    """A worker, until SIGTERM."""
    options = json.loads(os.environ["BENCH_OPTIONS"])
    journal = Journal(Path(os.environ["BENCH_JOURNAL"]))
    asyncio.run(_work(_app(options["url"], journal.note), options["concurrency"]))


if __name__ == "__main__":
    main()
