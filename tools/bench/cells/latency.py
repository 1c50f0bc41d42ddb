"""How long a task, or a slot, waits for its start once it is due, and how long a lock takes."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

import psycopg

from slotwise.locks import Lock, RedisLocks, SQLLocks
from tools.bench.app import OTHER
from tools.bench.crew import Crew
from tools.bench.journal import RanWrong, expect_once
from tools.bench.raw import Raw
from tools.bench.readings import Reading, distribution
from tools.bench.run import Cell, Contender, NotYet, Run, micros
from tools.bench.slotwise_contender import (
    Slotwise,
    SlotwiseFlood,
    fill_tasks,
    registry_for,
)

# -- from enqueue to start ------------------------------------------------------------------------


LATENCY_SENT = 300
LATENCY_APART = 0.02
#: Longer than any poll interval.
LATENCY_LATEST = 60.0


def _latency(run: Run) -> Iterator[Reading]:
    contenders = [
        Raw(100, name="raw-listen"),
        Slotwise(has_ids=False),
        Slotwise("slotwise-id"),
        *run.peers,
    ]
    for number, contender in run.turns(contenders, min(run.rounds, 2)):
        try:
            yield _enqueue_to_start(run, contender, number)
        except NotYet as reason:
            yield Reading(
                cell="latency",
                contender=contender.name,
                round=number,
                note=f"not compared: {reason}",
            )


def _enqueue_to_start(run: Run, contender: Contender, number: int) -> Reading:
    """Send tasks to an idle worker. The first, which opens connections, is checked but not
    measured.
    """
    count = run.scaled(LATENCY_SENT, 5)
    url = run.prepared(contender)
    sent: dict[int, int] = {}
    with (
        contender.sender(url) as send,
        Crew(
            run.server, contender.listening(url), 1, capacity=2 * count + 1000
        ) as crew,
    ):
        send(count + 1)
        crew.wait(
            lambda: crew.done() >= 1, "the first task had started", LATENCY_LATEST
        )
        time.sleep(0.5)
        for number_sent in range(1, count + 1):
            time.sleep(LATENCY_APART)
            sent[number_sent] = time.time_ns()
            send(number_sent)
        crew.wait(lambda: crew.done() > count, "all had started", LATENCY_LATEST)
        starts = crew.journals[0].starts()
        crew.stop()
        checked = expect_once(
            crew.journals, range(1, count + 2), f"latency, {contender.name}"
        )
    spread = tuple((starts[one] - at) / 1e6 for one, at in sent.items())
    return Reading(
        cell="latency",
        contender=contender.name,
        round=number,
        figures=distribution(spread),
        spread=spread,
        checked=checked,
    )


LATENCY = Cell(name="latency", title="enqueue to start, idle worker", measure=_latency)


# -- from slot to start ---------------------------------------------------------------------------


PUNCTUALITY_SLOTS = 200
PUNCTUALITY_APART = timedelta(milliseconds=100)
#: Until the first slot, in seconds: workers need it to start and plan.
PUNCTUALITY_AHEAD = 4.0
PUNCTUALITY_AHEAD_EACH = 4.0
#: How long, in seconds, to wait for a late slot. A job whose next slot comes due skips the one
#: that it missed.
PUNCTUALITY_LATEST = 30.0


def _punctuality(run: Run) -> Iterator[Reading]:
    one = Slotwise()
    three = Slotwise("slotwise ×3")
    rounds = min(run.rounds, 2)
    for number, contender in run.turns(
        [Raw(100, name="raw-timer"), one, three, *run.peers], rounds
    ):
        try:
            yield _slot_to_start(
                run, contender, number, 3 if contender is three else 1
            )
        except NotYet as reason:
            yield Reading(
                cell="punctuality",
                contender=contender.name,
                round=number,
                note=f"not compared: {reason}",
            )


def _slot_to_start(
    run: Run, contender: Contender, number: int, processes: int
) -> Reading:
    """Plan slots 37 ms after each tenth of a second, where no timer of a contender ticks."""
    count = run.scaled(PUNCTUALITY_SLOTS, 10)
    url = run.prepared(contender)
    ahead = run.seconds(PUNCTUALITY_AHEAD, 3) + processes * run.seconds(
        PUNCTUALITY_AHEAD_EACH, 3
    )
    first = datetime.now(UTC).replace(microsecond=37_000) + timedelta(seconds=ahead)
    due = [first + place * PUNCTUALITY_APART for place in range(count)]
    wanted = {micros(instant) for instant in due}
    end = (
        perf_counter()
        + (due[-1] - datetime.now(UTC)).total_seconds()
        + PUNCTUALITY_LATEST
    )
    with Crew(
        run.server, contender.plan(url, due), processes, capacity=20 * count + 5000
    ) as crew:
        crew.wait(
            lambda: perf_counter() > end or wanted <= _started(crew), "all were due"
        )
        crew.stop()
        expect_once(crew.journals, _started(crew), f"punctuality, {contender.name}")
        starts = [
            pair
            for journal in crew.journals
            for pair in journal.starts().items()
            if pair[0] in wanted
        ]
    if not starts:
        raise RanWrong(
            f"punctuality, {contender.name}: no start within {PUNCTUALITY_LATEST:.0f} s of its slot"
        )
    spread = tuple(at / 1e6 - slot / 1e3 for slot, at in starts)
    return Reading(
        cell="punctuality",
        contender=contender.name,
        round=number,
        figures={**distribution(spread), "not_run": float(count - len(spread))},
        spread=spread,
        checked=len(spread),
    )


def _started(crew: Crew) -> set[int]:
    return {one for journal in crew.journals for one in journal.ids()}


PUNCTUALITY = Cell(
    name="punctuality",
    title="start minus slot, 1 and 3 workers, poll interval 10 s",
    measure=_punctuality,
)


# -- behind a flood of another task ---------------------------------------------------------------


FAIRNESS_FLOOD = 100_000
FAIRNESS_SENT = 40
#: All within a second, before the flood is over.
FAIRNESS_APART = 0.025
FAIRNESS_LATEST = 60.0

#: How long each handler of the flood takes, in milliseconds.
FAIRNESS_TAKES = (0, 50)


def _fairness(run: Run) -> Iterator[Reading]:
    for takes in FAIRNESS_TAKES:
        yield _behind_flood(run, takes)


def _behind_flood(run: Run, takes: int) -> Reading:
    """Send tasks behind the flood. Their ids are negative, which tells them from those of the
    flood.
    """
    contender = SlotwiseFlood(f"slotwise, {takes} ms", takes=takes)
    url = run.prepared(contender)
    flood = run.scaled(FAIRNESS_FLOOD, 500)
    count = run.scaled(FAIRNESS_SENT, 4)
    fill_tasks(url, flood)
    registry = registry_for(url)
    sent = dict[int, int]()
    try:
        with Crew(
            run.server, contender.command(url), 1, capacity=2 * (flood + count) + 1000
        ) as crew:
            crew.wait(
                lambda: crew.done() >= 20, "the flood had begun", FAIRNESS_LATEST
            )
            for number in range(1, count + 1):
                time.sleep(FAIRNESS_APART)
                sent[-number] = time.time_ns()
                registry.client.schedule(OTHER, id=str(-number))
            crew.wait(
                lambda: sent.keys() <= crew.journals[0].starts().keys(),
                "all had started",
                FAIRNESS_LATEST,
            )
            starts = crew.journals[0].starts()
            done = crew.done()
            crew.stop()
    finally:
        registry.database.close()
    if done >= flood + count and run.scale >= 1:
        raise RanWrong(
            "the flood was over before all had started; this run proves nothing"
        )
    spread = tuple((starts[one] - at) / 1e6 for one, at in sent.items())
    return Reading(
        cell="fairness",
        contender=contender.name,
        figures=distribution(spread),
        spread=spread,
    )


FAIRNESS = Cell(
    name="fairness",
    title="a row of another task, behind 100,000 due rows of one",
    measure=_fairness,
)


# -- acquire and release a lock -------------------------------------------------------------------


LOCK_TIMES = 2_000
_LOCK_NAME = "bench"
_REDIS_STARTED_WITHIN = 10.0

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
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="slotwise-bench-"))
        )
        steps["slotwise sqlite"] = _ours(
            stack, SQLLocks(f"sqlite:///{folder}/locks.db")
        )
        steps["bare sqlite"] = _bare_sqlite(stack, folder / "locks.db")
        if shutil.which("redis-server") is None:
            yield Reading(
                cell="locks",
                contender="slotwise redis",
                note="redis-server is not installed",
            )
        else:
            address = stack.enter_context(_redis_server(folder))
            steps["slotwise redis"] = _ours(stack, RedisLocks(address))
            steps["bare redis"] = _bare_redis(stack, address)
        for number in range(1, run.rounds + 1):
            for contender, step in steps.items():
                yield _measured(contender, number, step, run.scaled(LOCK_TIMES, 20))


def _measured(contender: str, number: int, step: Step, times: int) -> Reading:
    for _ in range(max(times // 20, 3)):
        step()
    began = perf_counter()
    spread = []
    for _ in range(times):
        before = perf_counter()
        step()
        spread.append((perf_counter() - before) * 1000)
    figures = {"rate": times / (perf_counter() - began), **distribution(spread)}
    return Reading(
        cell="locks",
        contender=contender,
        round=number,
        figures=figures,
        spread=tuple(spread),
        checked=times,
    )


def _ours(stack: ExitStack, provider: SQLLocks | RedisLocks) -> Step:
    stack.callback(provider.close)
    if isinstance(provider, SQLLocks):
        provider.create_table()
    lock = Lock(_LOCK_NAME, at_most_for="1h", provider=provider)
    return lambda: lock.acquire().release()


def _bare_postgresql(stack: ExitStack, url: str) -> Step:
    connection = stack.enter_context(psycopg.connect(url, autocommit=True))

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
    unlock = (
        "UPDATE shedlock SET lock_until = '1' WHERE name = 'bare' AND locked_by = 'me'"
    )

    def step() -> None:
        _expect(connection.execute(lock).rowcount == 1)
        _expect(connection.execute(unlock).rowcount == 1)

    return step


def _bare_redis(stack: ExitStack, address: str) -> Step:
    from redis import Redis

    client = stack.enter_context(Redis.from_url(address))
    key = f"bare:{_LOCK_NAME}"
    hour = timedelta(hours=1)
    delete = client.register_script(
        "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0"
    )

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
    arguments = [
        "--port",
        "0",
        "--unixsocket",
        str(socket),
        "--save",
        "",
        "--appendonly",
        "no",
    ]
    with (folder / "redis.log").open("wb") as log:
        server = subprocess.Popen(
            ["redis-server", *arguments], cwd=folder, stdout=log, stderr=log
        )
    try:
        end = perf_counter() + _REDIS_STARTED_WITHIN
        while not socket.exists():
            if server.poll() is not None or perf_counter() > end:
                raise RanWrong(
                    f"redis-server did not start: {(folder / 'redis.log').read_text()[-300:]}"
                )
            time.sleep(0.01)
        yield f"unix://{socket}"
    finally:
        with suppress(ProcessLookupError):
            server.terminate()
        server.wait()


LOCKS = Cell(
    name="locks",
    title="acquire and release a lock, one process, by provider",
    measure=_locks,
)
