"""A schema per customer: many schemas of one database, with one worker process."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from tests.databases import Databases

from slotwise import JobContext, TaskContext, job, migrate, task
from slotwise.contrib.shards import Shard, ShardedRegistry, Shards
from slotwise.contrib.shards.fleet import ShardState


def make_schemas(url: str, count: int) -> Shards:
    """Make the tables once, and copy their schema as text for the others, each with its own id."""
    names = [f"t{number:03}" for number in range(count)]
    engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        connection.execute(sa.text("CREATE SCHEMA t000"))
        connection.commit()
        text = migrate.sql(schema="t000")
    engine.dispose()
    with psycopg.connect(url, autocommit=True) as connection:
        for name in names:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name}".encode())
            connection.execute(re.sub(r"\bt000\b", name, text).encode())
    shards = [Shard(name=name, database_url=url, schema=name) for name in names]
    return Shards(shards, default="t000", map={"t000": "0-1023"})


class Application:
    """Tasks that note the schema in which they ran, and a job in each."""

    def __init__(self, shards: Shards, **settings: str) -> None:
        self.ran: Counter[tuple[str, str]] = Counter()
        lock = threading.Lock()

        @job(name="purge", schedule="@hourly", each_shard=True)
        def purge(ctx: JobContext) -> None: ...

        @task(name="mail")
        def mail(ctx: TaskContext) -> None:
            with ctx.shard.engine.connect() as connection:
                found = connection.scalar(sa.text("SELECT current_schema()"))
            with lock:
                self.ran[ctx.shard.name, str(found)] += 1

        self.registry = ShardedRegistry(
            shards=shards, jobs=[purge], tasks=[mail], **settings
        )


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    with databases.empty() as url:
        yield url


def connections(url: str) -> Counter[str]:
    """The connections of workers to this database, by their role."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT application_name FROM pg_stat_activity WHERE datname = "
            "current_database() AND application_name LIKE 'slotwise %'"
        ).fetchall()
    return Counter(str(name).split()[-1] for (name,) in found)


def await_running(registry: ShardedRegistry, seconds: float) -> None:
    assert registry.fleet is not None
    until = time.monotonic() + seconds
    while any(one.state is not ShardState.RUNNING for one in registry.fleet.members):
        assert time.monotonic() < until, registry.problems
        time.sleep(0.05)


@pytest.mark.parametrize(
    "count", [5, pytest.param(200, marks=pytest.mark.slow, id="two hundred")]
)
def test_schemas_share_their_connections(url: str, count: int) -> None:
    """One connection listens for all; a task starts at once, long before the next poll."""
    shards = make_schemas(url, count)
    app = Application(shards, poll_interval="1h", heartbeat_interval="10s")
    names = [shard.name for shard in shards]
    with app.registry as registry:
        await_running(registry, 20 + count)
        until = time.monotonic() + 30
        while connections(url)["wake-up"] != 1:
            assert time.monotonic() < until, connections(url)
            time.sleep(0.05)
        time.sleep(1)  # each has asked for its echo
        for name in names[:: max(1, count // 20)]:
            registry.sharded.schedule("mail", shard=name)
        wanted = {(name, name): 1 for name in names[:: max(1, count // 20)]}
        until = time.monotonic() + 30
        while app.ran != wanted:
            assert time.monotonic() < until, app.ran
            time.sleep(0.05)
        found = connections(url)
        assert found["wake-up"] == 1
        assert found.total() <= 15
    assert connections(url).total() == 0


@pytest.mark.slow
def test_the_idle_cost_of_a_schema(url: str) -> None:
    """Prints what 200 idle schemas cost a worker process: CPU, threads and memory."""
    app = Application(make_schemas(url, 200))
    with app.registry as registry:
        await_running(registry, 200)
        time.sleep(15)
        began, at = sum(os.times()[:2]), time.monotonic()
        time.sleep(30)
        used = (sum(os.times()[:2]) - began) / (time.monotonic() - at)
        status = Path("/proc/self/status").read_text()
        memory = re.search(r"VmRSS:\s+(\d+)", status)
        assert memory is not None
        print(f"CPU {used:.3f}, threads {threading.active_count()}, {memory[1]} KiB")
        assert used < 0.6


def test_a_connection_leads_to_the_shard_of_its_schema(url: str) -> None:
    """The search path says it, as all schemas are in one database."""
    app = Application(make_schemas(url, 2))
    registry = app.registry
    with psycopg.connect(url, options="-csearch_path=t001") as connection:
        registry.sharded.schedule("mail", id="a", connection=connection)
    with registry.shards["t000"].engine.begin() as own:
        registry.sharded.schedule("mail", id="b", connection=own)
    listed = {
        name: [one.id for one in client.list("mail")]
        for name, client in registry.sharded.each()
    }
    assert listed == {"t000": ["b"], "t001": ["a"]}
    registry.stop()
