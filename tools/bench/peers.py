"""Peers: other libraries that join a run where they are installed.

Each is used through its public interface, in its best known setting. ``pip install
'slotwise[bench-peers]'`` installs them. An adapter imports its library by name when it is used, so
that slotwise itself never needs one. Run as a program, this module is a worker of one of them.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypedDict

import psycopg

from slotwise import ConfigurationError
from tools.bench.crew import Command
from tools.bench.inside import database_url
from tools.bench.journal import Journal
from tools.bench.run import Contender, Send, micros, python


class Options(TypedDict, total=False):
    """What a process of a peer is told."""

    peer: str
    url: str
    batch: int
    concurrency: int


class Queries(Protocol):
    """What is called of pgqueuer's Queries."""

    async def has_table(self, name: str, /) -> bool: ...
    async def install(self) -> None: ...
    async def clear_queue(self) -> None: ...
    async def clear_queue_log(self) -> None: ...
    async def enqueue(
        self,
        entrypoint: str | list[str],
        payload: bytes | list[bytes],
        priority: int | list[int] = 0,
        execute_after: list[timedelta | None] | None = None,
        /,
    ) -> object: ...


# -- PgQueuer -------------------------------------------------------------------------------------


_PGQUEUER_CHUNK = 5_000


class PgQueuer(Contender):
    """On asyncpg and, where it is installed, uvloop, as its documentation advises; ``batch`` jobs
    per dequeue.
    """

    family = "pgqueuer"

    def __init__(self, batch: int) -> None:
        self.name = f"pgqueuer-{batch}"
        self._batch = batch

    def prepare(self, url: str) -> None:
        async def work(queries: Queries) -> None:
            if not await queries.has_table("pgqueuer"):
                await queries.install()

        _with_queries(url, work)

    def empty(self, url: str) -> None:
        async def work(queries: Queries) -> None:
            await queries.clear_queue()
            await queries.clear_queue_log()

        _with_queries(url, work)

    def fill(self, url: str, count: int) -> None:
        async def work(queries: Queries) -> None:
            for first in range(1, count + 1, _PGQUEUER_CHUNK):
                ids = range(first, min(first + _PGQUEUER_CHUNK, count + 1))
                await queries.enqueue(
                    ["bench"] * len(ids),
                    [str(one).encode() for one in ids],
                    [0] * len(ids),
                )

        _with_queries(url, work)

    def command(self, url: str) -> Command:
        return python("tools.bench.peers", peer="pgqueuer", url=url, batch=self._batch)

    @contextmanager
    def sender(self, url: str) -> Iterator[Send]:
        with asyncio.Runner() as runner:
            connection = runner.run(importlib.import_module("asyncpg").connect(url))
            queries = _queries(connection)
            yield lambda number: runner.run(
                queries.enqueue("bench", str(number).encode())
            )
            runner.run(connection.close())

    def plan(self, url: str, due: Sequence[datetime]) -> Command:
        async def work(queries: Queries) -> None:
            now = datetime.now(UTC)
            ids = [str(micros(instant)).encode() for instant in due]
            waits: list[timedelta | None] = [instant - now for instant in due]
            await queries.enqueue(["bench"] * len(due), ids, [0] * len(due), waits)

        _with_queries(url, work)
        return self.command(url)


def _queries(connection: object) -> Queries:
    pgqueuer = importlib.import_module("pgqueuer")
    queries: Queries = pgqueuer.Queries(pgqueuer.AsyncpgDriver(connection))
    return queries


def _with_queries(url: str, work: Callable[[Queries], Awaitable[object]]) -> None:
    async def run() -> None:
        connection = await importlib.import_module("asyncpg").connect(url)
        try:
            await work(_queries(connection))
        finally:
            await connection.close()

    asyncio.run(run())


async def _work_pgqueuer(url: str, batch: int, note: Callable[[int], None]) -> None:
    pgqueuer = importlib.import_module("pgqueuer")
    asyncpg = importlib.import_module("asyncpg")
    app = pgqueuer.PgQueuer(pgqueuer.AsyncpgDriver(await asyncpg.connect(url)))

    async def bench(job: Any) -> None:
        note(int(job.payload))

    app.entrypoint("bench")(bench)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.shutdown.set)
    await app.run(batch_size=batch)


def _run_pgqueuer(options: Options) -> None:
    with suppress(ImportError):
        asyncio.set_event_loop_policy(
            importlib.import_module("uvloop").EventLoopPolicy()
        )
    asyncio.run(_work_pgqueuer(options["url"], options["batch"], _journal().note))


# -- Procrastinate --------------------------------------------------------------------------------


_PROCRASTINATE_CHUNK = 1_000


class Procrastinate(Contender):
    """``concurrency`` coroutines per worker, the default poll interval, finished jobs deleted."""

    family = "procrastinate"
    share = 0.06

    def __init__(self, concurrency: int) -> None:
        self.name = f"procrastinate-{concurrency}"
        self._concurrency = concurrency
        self._has_tables = False

    def prepare(self, url: str) -> None:
        if not self._has_tables:
            with _procrastinate(url).open() as app:
                app.schema_manager.apply_schema()
        self._has_tables = True

    def empty(self, url: str) -> None:
        """Truncate its tables, since it has no call for that."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "TRUNCATE procrastinate_jobs, procrastinate_events, procrastinate_workers CASCADE"
            )

    def fill(self, url: str, count: int) -> None:
        with _procrastinate(url).open() as app:
            for first in range(1, count + 1, _PROCRASTINATE_CHUNK):
                ids = range(first, min(first + _PROCRASTINATE_CHUNK, count + 1))
                app.configure_task("bench").batch_defer(
                    *({"number": one} for one in ids)
                )

    def command(self, url: str) -> Command:
        return python(
            "tools.bench.peers",
            peer="procrastinate",
            url=url,
            concurrency=self._concurrency,
        )

    @contextmanager
    def sender(self, url: str) -> Iterator[Send]:
        with _procrastinate(url).open() as app:
            yield lambda number: app.configure_task("bench").defer(number=number)

    def plan(self, url: str, due: Sequence[datetime]) -> Command:
        with _procrastinate(url).open() as app:
            for instant in due:
                app.configure_task("bench", schedule_at=instant).defer(
                    number=micros(instant)
                )
        return self.command(url)


def _procrastinate(url: str, note: Callable[[int], None] = lambda _: None) -> Any:
    procrastinate = importlib.import_module("procrastinate")
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

    async def bench(number: int) -> None:
        note(number)

    app.task(name="bench")(bench)
    return app


async def _work_procrastinate(app: Any, concurrency: int) -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=concurrency, delete_jobs="always")


def _run_procrastinate(options: Options) -> None:
    asyncio.run(
        _work_procrastinate(
            _procrastinate(options["url"], _journal().note), options["concurrency"]
        )
    )


# -- APScheduler ----------------------------------------------------------------------------------


_HANDLER = "tools.bench.peers:note"


class APScheduler(Contender):
    """APScheduler 3 with its jobs in PostgreSQL and ten threads; a late job runs, too.

    One process only: its documentation says that a job store must not be shared.
    """

    family = "apscheduler"
    share = 0.03
    is_single = True
    name = "apscheduler-3"

    def prepare(self, url: str) -> None:
        """Nothing to do: it makes its table by itself."""

    def empty(self, url: str) -> None:
        asyncio.run(_with_store(url, lambda scheduler: scheduler.remove_all_jobs()))

    def fill(self, url: str, count: int) -> None:
        now = datetime.now(UTC)
        self._add(url, [(number, now) for number in range(1, count + 1)])

    def plan(self, url: str, due: Sequence[datetime]) -> Command:
        self._add(url, [(micros(instant), instant) for instant in due])
        return self.command(url)

    def command(self, url: str) -> Command:
        return python("tools.bench.peers", peer="apscheduler", url=url)

    def _add(self, url: str, jobs: Sequence[tuple[int, datetime]]) -> None:
        def add(scheduler: Any) -> None:
            for number, instant in jobs:
                scheduler.add_job(
                    _HANDLER, "date", run_date=instant, args=[number], id=str(number)
                )

        asyncio.run(_with_store(url, add))


async def _with_store(url: str, work: Callable[[Any], None]) -> None:
    """Call ``work`` with a paused scheduler. A paused one with threads would run what is due when
    it is shut down.
    """
    scheduler = _scheduler(url, "asyncio.AsyncIOScheduler")
    scheduler.start(paused=True)
    work(scheduler)
    scheduler.shutdown()


def _scheduler(url: str, kind: str = "background.BackgroundScheduler") -> Any:
    module, _, name = kind.partition(".")
    stores = importlib.import_module("apscheduler.jobstores.sqlalchemy")
    pool = importlib.import_module("apscheduler.executors.pool")
    store = stores.SQLAlchemyJobStore(
        url=database_url(url).render_as_string(hide_password=False)
    )
    return getattr(importlib.import_module(f"apscheduler.schedulers.{module}"), name)(
        jobstores={"default": store},
        executors={"default": pool.ThreadPoolExecutor(10)},
        job_defaults={"misfire_grace_time": None},
        timezone=UTC,
    )


def note(number: int) -> None:
    """The handler of its jobs, which APScheduler finds by name."""
    _journal().note(number)


def _run_apscheduler(options: Options) -> None:
    logging.disable(logging.INFO)
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    scheduler = _scheduler(options["url"])
    scheduler.start()
    while not stopped.wait(1.0):
        continue
    scheduler.shutdown(wait=False)


# -- all of them ----------------------------------------------------------------------------------


#: By name: the modules that must be installed, and the settings that take part.
KNOWN: dict[str, tuple[tuple[str, ...], Sequence[Contender]]] = {
    "pgqueuer": (("pgqueuer", "asyncpg"), (PgQueuer(100), PgQueuer(500))),
    "procrastinate": (("procrastinate",), (Procrastinate(30),)),
    "apscheduler": (("apscheduler",), (APScheduler(),)),
}


def find(names: Iterable[str]) -> tuple[list[Contender], dict[str, str]]:
    """Return the contenders of these names, and the installed versions. Raises
    ConfigurationError.
    """
    contenders: list[Contender] = []
    versions: dict[str, str] = {}
    for name in names:
        if name not in KNOWN:
            raise ConfigurationError(f"--peers {name}: known are {', '.join(KNOWN)}")
        modules, settings = KNOWN[name]
        for module in modules:
            _require(name, module)
            versions[module] = version(module)
        contenders.extend(settings)
    return contenders, versions


def _require(name: str, module: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"--peers {name}: {module} cannot be imported ({error}); pip install "
            "'slotwise[bench-peers]'"
        ) from None


@functools.cache
def _journal() -> Journal:
    return Journal(Path(os.environ["BENCH_JOURNAL"]))


def main() -> None:
    """Run a worker of the peer that BENCH_OPTIONS names, until SIGTERM."""
    options = json.loads(os.environ["BENCH_OPTIONS"])
    workers: dict[str, Callable[[Options], None]] = {
        "pgqueuer": _run_pgqueuer,
        "procrastinate": _run_procrastinate,
        "apscheduler": _run_apscheduler,
    }
    workers[options["peer"]](options)


if __name__ == "__main__":
    main()
