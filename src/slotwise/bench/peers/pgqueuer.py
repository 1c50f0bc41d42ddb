"""PgQueuer, on asyncpg and, where it is installed, uvloop: the fastest setting that its own documentation names."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from slotwise.bench.contender import Contender, Send, micros, python
from slotwise.bench.crew import Command
from slotwise.bench.journal import Journal

_CHUNK = 5_000


class PgQueuer(Contender):
    """Coroutine entrypoints, ``batch`` jobs per dequeue."""

    family = "pgqueuer"

    def __init__(self, batch: int) -> None:
        self.name = f"pgqueuer-{batch}"
        self._batch = batch

    def prepare(self, url: str) -> None:
        async def work(queries: Any) -> None:
            if not await queries.has_table("pgqueuer"):
                await queries.install()

        _with_queries(url, work)

    def empty(self, url: str) -> None:
        async def work(queries: Any) -> None:
            await queries.clear_queue()
            await queries.clear_queue_log()

        _with_queries(url, work)

    def fill(self, url: str, count: int) -> None:
        async def work(queries: Any) -> None:
            for first in range(1, count + 1, _CHUNK):
                ids = range(first, min(first + _CHUNK, count + 1))
                await queries.enqueue(["bench"] * len(ids), [str(one).encode() for one in ids], [0] * len(ids))

        _with_queries(url, work)

    def command(self, url: str) -> Command:
        return python("slotwise.bench.peers.pgqueuer", url=url, batch=self._batch)

    @contextmanager
    def sender(self, url: str) -> Iterator[Send]:
        with asyncio.Runner() as runner:
            connection = runner.run(importlib.import_module("asyncpg").connect(url))
            queries = _queries(connection)
            yield lambda number: runner.run(queries.enqueue("bench", str(number).encode()))
            runner.run(connection.close())

    def plan(self, url: str, due: Sequence[datetime]) -> Command:
        async def work(queries: Any) -> None:
            now = datetime.now(UTC)
            ids = [str(micros(instant)).encode() for instant in due]
            waits: list[timedelta | None] = [instant - now for instant in due]
            await queries.enqueue(["bench"] * len(due), ids, [0] * len(due), waits)

        _with_queries(url, work)
        return self.command(url)


def _queries(connection: Any) -> Any:
    pgqueuer = importlib.import_module("pgqueuer")
    return pgqueuer.Queries(pgqueuer.AsyncpgDriver(connection))


def _with_queries(url: str, work: Callable[[Any], Any]) -> None:
    async def run() -> None:
        connection = await importlib.import_module("asyncpg").connect(url)
        try:
            await work(_queries(connection))
        finally:
            await connection.close()

    asyncio.run(run())


async def _work(url: str, batch: int, note: Callable[[int], None]) -> None:
    pgqueuer, asyncpg = importlib.import_module("pgqueuer"), importlib.import_module("asyncpg")
    app = pgqueuer.PgQueuer(pgqueuer.AsyncpgDriver(await asyncpg.connect(url)))

    async def bench(job: Any) -> None:
        note(int(job.payload))

    app.entrypoint("bench")(bench)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.shutdown.set)
    await app.run(batch_size=batch)


def main() -> None:
    """A worker, until SIGTERM."""
    options = json.loads(os.environ["BENCH_OPTIONS"])
    note = Journal(Path(os.environ["BENCH_JOURNAL"])).note
    with suppress(ImportError):
        asyncio.set_event_loop_policy(importlib.import_module("uvloop").EventLoopPolicy())
    asyncio.run(_work(options["url"], options["batch"], note))


if __name__ == "__main__":
    main()
