"""Many held rows, and everybody at them at once: heartbeats, settlers, reapers, operators,
a user's lock.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from tests.faults.bench import Bench, Seen, eventually
from tests.faults.conftest import MakeBench
from tests.kit.dialect import DIALECT

from slotwise import ConfigurationError, Item
from slotwise.embedded import EmbeddedPostgres

#: They end within seconds: so many as a base that owes half the speed can claim meanwhile.
HELD = 500 if DIALECT == "locking" else 2000
OPERATORS, MOVERS = 3, 2
#: So many rows in one statement that it meets several of those that a settlement, or another one,
#: has locked.
MANY = HELD // 10
JOBS = ("rerun", "give-up", "abreast")
HEARTBEAT = timedelta(seconds=1)


class Crowd:
    """Keeps that many rows held; each by a handler that takes some seconds."""

    def __init__(self, stage: Bench, lot: random.Random) -> None:
        self.stage, self._lot = stage, lot
        self.made = 0

    def fill(self, seconds: tuple[float, float]) -> None:
        """So many more that there would be enough, if none ended meanwhile."""
        missing = HELD - self.count(
            "schedule is null and (picked or execution_time <= now())"
        )
        items = [
            Item(self._lot.uniform(*seconds), id=f"{self.made + number:05}")
            for number in range(missing)
        ]
        if items:
            self.stage.registry.client.schedule_many("stay", items)
            self.made += missing  # who moves them would make them, else

    @property
    def newest(self) -> list[str]:
        """Most of these are held."""
        return [
            f"{number:05}" for number in range(max(self.made - HELD, 0), self.made)
        ]

    def count(self, which: str) -> int:
        return int(
            self.stage.rows(f"select count(*) from scheduled_tasks where {which}")[0][
                0
            ]
        )


def operate(
    stage: Bench, crowd: Crowd, over: threading.Event, seed: int
) -> Counter[str]:
    """Whatever operators and clients may do to rows that are held; what cannot be done is said."""
    lot, told = random.Random(seed), Counter[str]()
    client = stage.registry.client
    operations = client.operations.by(f"operator-{seed}")
    while not over.is_set():
        job, id = lot.choice(JOBS), lot.choice(crowd.newest)
        orders = {
            "cancel": lambda id=id: client.cancel("stay", id).status,
            "reschedule": lambda id=id: (
                client.reschedule("stay", id, delay="1h").status
            ),
            "replace": lambda id=id: (
                client.schedule("stay", 1, id=id, if_exists="keep").status
            ),
            "pause": lambda job=job: operations.pause(job),
            "resume": lambda job=job: operations.resume(job),
            "trigger": lambda job=job: operations.trigger(job),
            "stop": lambda job=job: operations.cancel(job),
            "skip": lambda job=job: operations.skip_next(job),
        }
        word = lot.choices(list(orders), [1, 2, 2, 1, 2, 2, 1, 1])[0]
        try:
            told[
                f"{word} {orders[word]()}"
                if word in ("cancel", "reschedule")
                else word
            ] += 1  # type: ignore[no-untyped-call]
        except ConfigurationError:
            told[f"{word} refused"] += 1
        over.wait(0.01)
    return told


def move(stage: Bench, crowd: Crowd, over: threading.Event, seed: int) -> Counter[str]:
    """Whoever moves many at once, in whatever order: two of them meet, and settlements meet
    both.
    """
    lot, told = random.Random(seed), Counter[str]()
    while not over.is_set():
        many = [Item(1, id=id) for id in lot.sample(crowd.newest, MANY)]
        stage.registry.client.schedule_many(
            "stay", many, delay="1h", if_exists="reschedule"
        )
        told["many"] += 1
    return told


@contextmanager
def a_users_lock(stage: Bench, *ids: str) -> Iterator[None]:
    """Somebody's transaction keeps a held row locked, and does not end."""
    with stage.connect() as connection:
        connection.exec_driver_sql(
            "select from scheduled_tasks where task_instance = any(%s) for update",
            (list(ids),),
        )
        yield


def see_deadlocks(server: EmbeddedPostgres) -> None:
    """Soon: else each is ended by somebody's ``lock_timeout``, half a heartbeat, before the server
    looks for it.
    """
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("alter system set deadlock_timeout = '20ms'")
        connection.execute("select pg_reload_conf()")


def expect_no_deadlock(server: EmbeddedPostgres) -> None:
    seen = [
        line
        for line in server.log.read_text().splitlines()
        if "deadlock detected" in line
    ]
    assert seen == []


def settled_since(stage: Bench, mark: Seen) -> list[Seen]:
    return [
        seen
        for seen in stage.events.all("settled", job="stay")
        if seen.number > mark.number
    ]


def stays_locked(stage: Bench) -> None:
    """While one row is locked, hundreds of others are settled; when its lock ends, so is that
    one.
    """
    with a_users_lock(stage, "locked"):
        began = stage.mark()
        stage.wait("handler_end", id="locked")
        stage.rest(2 * HEARTBEAT)
        eventually(lambda: len(settled_since(stage, began)) > HELD / 10)
        assert stage.events.all("settled", id="locked") == []
    end = stage.wait("settled", id="locked")
    assert (end["outcome"], end["attempt"]) == ("succeeded", 1)


def crowd_at_work(
    bench: MakeBench, server: EmbeddedPostgres, span: tuple[float, float], seconds: int
) -> None:
    see_deadlocks(server)
    stage = bench(
        ",".join(("stay", *JOBS)),
        url=server.dsn,
        threads=str(HELD * 2 // 3),  # neither holds all
        heartbeat_interval="1s",
        missed_heartbeats_limit="6",
        shutdown_grace="20s",
    )
    crew = stage.start_all(2)
    crowd, over = Crowd(stage, random.Random(1)), threading.Event()
    crowd.fill(span)
    stage.registry.client.schedule("stay", 1.5, id="locked")
    stage.wait("handler_start", id="locked")
    eventually(lambda: crowd.count("picked") >= HELD * 0.9)
    assert {seen.worker for seen in stage.events.all("claimed", job="stay")} == set(
        crew
    )
    with ThreadPoolExecutor(OPERATORS + MOVERS) as others:
        told = [
            others.submit(operate, stage, crowd, over, seed)
            for seed in range(OPERATORS)
        ]
        told += [
            others.submit(move, stage, crowd, over, seed) for seed in range(MOVERS)
        ]
        try:
            stays_locked(stage)
            for _ in range(seconds):
                stage.rest(timedelta(seconds=1))
                crowd.fill(span)
        finally:
            over.set()
            expect_no_deadlock(server)  # whatever else went wrong, by then that is why
        done = sum((one.result() for one in told), Counter[str]())
    for job in JOBS:
        stage.registry.client.operations.resume(job)
    assert set(stage.end_all()) == {0}
    expect_no_deadlock(server)
    assert (
        stage.events.all("reaped", "claim_lost", "claim_suspect", "database_lost")
        == []
    )
    starts = Counter(
        (line.job, line.instance, line.token)
        for line in stage.log.read()
        if line.mark == "start"
    )
    assert set(starts.values()) == {1}
    assert min(done["cancel running"], done["reschedule running"]) > 0
    assert crowd.count("picked") == 0


@pytest.mark.extended
def test_a_crowd_of_held_rows_gets_along(
    bench: MakeBench, own_server: EmbeddedPostgres
) -> None:
    """No deadlock that the server saw, no claim lost or doubted; one row that a user keeps locked
    holds up no other.
    """
    crowd_at_work(bench, own_server, (2.0, 4.0), 0)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_crowd_of_held_rows_gets_along_for_a_minute(
    bench: MakeBench, own_server: EmbeddedPostgres
) -> None:
    """The same, with rows that end replaced by others."""
    crowd_at_work(bench, own_server, (3.0, 6.0), 60)
