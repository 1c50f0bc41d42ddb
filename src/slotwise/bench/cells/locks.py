"""What a lock costs: acquire and release, by each provider and by its bare statements."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

from slotwise.bench.journal import RanWrong
from slotwise.bench.readings import Reading, distribution
from slotwise.bench.run import Cell, Run
from slotwise.locks import Lock, RedisLocks, SQLLocks
from slotwise.model.clock import elapsed
from slotwise.store.connect.dsn import psycopg

TIMES = 2_000
_NAME = "bench"
_STARTED_WITHIN = 10.0

# ShedLock's, without slotwise's conditions.
_LOCK = """\
INSERT INTO shedlock(name, lock_until, locked_at, locked_by)
VALUES('bench', timezone('utc', CURRENT_TIMESTAMP) + interval '1 hour', timezone('utc', CURRENT_TIMESTAMP), 'bare')
ON CONFLICT (name) DO UPDATE
SET lock_until = excluded.lock_until, locked_at = excluded.locked_at, locked_by = excluded.locked_by
WHERE shedlock.lock_until <= timezone('utc', CURRENT_TIMESTAMP)"""
_UNLOCK = """\
UPDATE shedlock SET lock_until = timezone('utc', CURRENT_TIMESTAMP) WHERE name = 'bench' AND locked_by = 'bare'"""

#: Acquires and releases once.
Step: TypeAlias = Callable[[], object]


def _locks(run: Run) -> Iterator[Reading]:
    with ExitStack() as stack:
        steps: dict[str, Step] = {}
        url = run.server.url("locks")
        steps["slotwise postgresql"] = _ours(stack, SQLLocks(url))
        steps["bare postgresql"] = _bare_postgresql(stack, url)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slotwise-bench-")))
        steps["slotwise sqlite"] = _ours(stack, SQLLocks(f"sqlite:///{folder}/locks.db"))
        steps["bare sqlite"] = _bare_sqlite(stack, folder / "locks.db")
        if shutil.which("redis-server") is None:
            yield Reading(cell="locks", contender="slotwise redis", note="redis-server is not installed")
        else:
            address = stack.enter_context(_redis_server(folder))
            steps["slotwise redis"] = _ours(stack, RedisLocks(address))
            steps["bare redis"] = _bare_redis(stack, address)
        for number in range(1, run.rounds + 1):
            for contender, step in steps.items():
                yield _measured(contender, number, step, run.scaled(TIMES, 20))


def _measured(contender: str, number: int, step: Step, times: int) -> Reading:
    for _ in range(max(times // 20, 3)):
        step()
    began, spread = elapsed(), []
    for _ in range(times):
        before = elapsed()
        step()
        spread.append((elapsed() - before) * 1000)
    figures = {"rate": times / (elapsed() - began), **distribution(spread)}
    return Reading(
        cell="locks", contender=contender, round=number, figures=figures, spread=tuple(spread), checked=times
    )


def _ours(stack: ExitStack, provider: SQLLocks | RedisLocks) -> Step:
    stack.callback(provider.close)
    if isinstance(provider, SQLLocks):
        provider.create_table()
    lock = Lock(_NAME, at_most_for="1h", provider=provider)
    return lambda: lock.acquire().release()


def _bare_postgresql(stack: ExitStack, url: str) -> Step:
    connection = stack.enter_context(psycopg().connect(url, autocommit=True))

    def step() -> None:
        _expect(connection.execute(_LOCK).rowcount == 1)
        _expect(connection.execute(_UNLOCK).rowcount == 1)

    return step


def _bare_sqlite(stack: ExitStack, file: Path) -> Step:
    connection = sqlite3.connect(file, isolation_level=None)
    stack.callback(connection.close)
    lock = (
        "INSERT INTO shedlock VALUES ('bare', '3', '2', 'me') ON CONFLICT (name) DO UPDATE "
        "SET lock_until = '3', locked_at = '2', locked_by = 'me' WHERE lock_until <= '2'"
    )
    unlock = "UPDATE shedlock SET lock_until = '1' WHERE name = 'bare' AND locked_by = 'me'"

    def step() -> None:
        _expect(connection.execute(lock).rowcount == 1)
        _expect(connection.execute(unlock).rowcount == 1)

    return step


def _bare_redis(stack: ExitStack, address: str) -> Step:
    from redis import Redis

    client = stack.enter_context(Redis.from_url(address))
    key, hour = f"bare:{_NAME}", timedelta(hours=1)
    delete = client.register_script("return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0")

    def step() -> None:
        _expect(bool(client.set(key, "bare", nx=True, px=hour)))
        _expect(delete(keys=[key], args=["bare"]) == 1)

    return step


def _expect(is_so: bool) -> None:
    if not is_so:
        raise RanWrong("a lock that nobody holds was refused")


@contextmanager
def _redis_server(folder: Path) -> Iterator[str]:
    socket = folder / "redis.sock"
    arguments = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no"]
    with (folder / "redis.log").open("wb") as log:
        server = subprocess.Popen(["redis-server", *arguments], cwd=folder, stdout=log, stderr=log)
    try:
        end = elapsed() + _STARTED_WITHIN
        while not socket.exists():
            if server.poll() is not None or elapsed() > end:
                raise RanWrong(f"redis-server did not start: {(folder / 'redis.log').read_text()[-300:]}")
            time.sleep(0.01)
        yield f"unix://{socket}"
    finally:
        with suppress(ProcessLookupError):
            server.terminate()
        server.wait()


LOCKS = Cell(name="locks", title="acquire and release a lock, one process, by provider", measure=_locks)
