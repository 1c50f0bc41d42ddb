"""The workers of several shards in one process, on real databases."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

import psycopg
import pytest
import sqlalchemy as sa
from tests.contrib.shards.conftest import MakeShards

from slotwise import (
    ConfigurationError,
    Every,
    JobContext,
    TaskContext,
    job,
    task,
)
from slotwise.contrib.dashboard import Dashboard, Request
from slotwise.contrib.shards import ShardedRegistry, Shards, fleet
from slotwise.contrib.shards.fleet import ShardState
from slotwise.contrib.shards.marks import apply_marks
from slotwise.contrib.shards.monitoring import FleetMetrics

FAST = {
    "poll_interval": "100ms",
    "heartbeat_interval": "1s",
    "shutdown_grace": "1s",
}


class Seen:
    """What ran, by job and shard, with the database that ``ctx.shard`` led to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.runs: Counter[tuple[str, str]] = Counter()
        self.databases: dict[str, str] = {}

    def note(self, ctx: JobContext | TaskContext) -> None:
        with ctx.shard.engine.connect() as connection:
            found = connection.scalar(sa.text("SELECT current_database()"))
        with self._lock:
            self.runs[ctx.name, ctx.shard.name] += 1
            self.databases[ctx.shard.name] = str(found)


@pytest.fixture
def seen() -> Seen:
    return Seen()


def application(seen: Seen, shards: Shards) -> ShardedRegistry:
    """A job of the default shard, one of each shard, and a task."""

    @job(name="report", schedule=Every("1s"))
    def report(ctx: JobContext) -> None:
        seen.note(ctx)

    @job(name="purge", schedule=Every("1s"), each_shard=True)
    def purge(ctx: JobContext) -> None:
        seen.note(ctx)

    @task(name="mail")
    def mail(ctx: TaskContext) -> None:
        seen.note(ctx)

    return ShardedRegistry(shards=shards, jobs=[report, purge], tasks=[mail], **FAST)


def identify(seen: Seen, shards: Shards) -> None:
    """Mark the databases, as workers that ran before have done."""
    registry = application(seen, shards)
    for shard in shards:
        registry.on(shard.name).identify()
    registry.stop()


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not become true in time"
        time.sleep(0.02)


def states(registry: ShardedRegistry) -> dict[str, ShardState]:
    assert registry.fleet is not None
    return {one.name: one.state for one in registry.fleet.members}


def test_each_job_runs_where_it_lives(make_shards: MakeShards, seen: Seen) -> None:
    shards = make_shards("eu", "us")
    registry = application(seen, shards)
    with registry:
        receipts = [registry.sharded.schedule("mail") for _ in range(20)]
        registry.sharded.schedule("mail", id="here", shard="us")
        wanted = [("report", "eu"), ("purge", "eu"), ("purge", "us")]
        eventually(lambda: all(seen.runs[one] >= 2 for one in wanted))
        placed = Counter(registry.sharded.shard_of(one.id) for one in receipts)
        eventually(lambda: seen.runs["mail", "eu"] == placed["eu"])
        eventually(lambda: seen.runs["mail", "us"] == placed["us"] + 1)
    assert ("report", "us") not in seen.runs
    for name, database in seen.databases.items():
        assert database in shards[name].database_url
    assert not registry.is_running


def test_a_missing_database_stops_only_its_shard(
    make_shards: MakeShards, seen: Seen
) -> None:
    found = make_shards("eu", "us")
    urls = {one.name: one.database_url for one in found}
    urls["us"] = "postgresql://nobody@127.0.0.1:1/nowhere"
    registry = application(seen, Shards(urls, default="eu"))
    with registry:
        eventually(lambda: seen.runs["purge", "eu"] >= 1)
        assert states(registry) == {"eu": ShardState.RUNNING, "us": ShardState.WAITING}
        assert "us" in registry.problems
        registry.sharded.schedule("mail", shard="eu")
        with pytest.raises(Exception, match="shard us"):
            registry.sharded.schedule("mail", shard="us")


def test_a_missing_default_stops_only_itself(
    make_shards: MakeShards, seen: Seen
) -> None:
    found = make_shards("eu", "us")
    urls = {one.name: one.database_url for one in found}
    urls["eu"] = "postgresql://nobody@127.0.0.1:1/nowhere"
    with application(seen, Shards(urls, default="eu")) as registry:
        eventually(lambda: seen.runs["purge", "us"] >= 1)
        assert states(registry)["eu"] is ShardState.WAITING


def test_pages_and_figures_name_their_shard(
    make_shards: MakeShards, seen: Seen
) -> None:
    """A page is about one shard, the figures about all that run."""
    found = make_shards("eu", "us")
    urls = {one.name: one.database_url for one in found}
    registry = application(seen, found)
    with registry:
        eventually(lambda: set(states(registry).values()) == {ShardState.RUNNING})
        assert registry.fleet is not None
        metrics = FleetMetrics(registry.fleet, max_names=10, stuck_after=None)
        assert metrics.snapshot()["slotwise_shard_running"] == {
            ("eu",): 1.0,
            ("us",): 1.0,
        }
    for where, name in ((registry, "eu"), (urls["us"], "us")):
        dashboard = Dashboard(where, role="viewer")
        page = dashboard.respond(Request(method="GET", path="/"))
        data = dashboard.respond(Request(method="GET", path="/today.json"))
        dashboard.close()
        assert f"shard <bdi>{name}</bdi>" in page.body.decode()
        assert json.loads(data.body)["shard"] == name


def test_only_the_chosen_shards(make_shards: MakeShards, seen: Seen) -> None:
    registry = application(seen, make_shards("eu", "us")).choose(["us"])
    with registry:
        assert list(states(registry)) == ["us"]
        eventually(lambda: seen.runs["purge", "us"] >= 1)
    assert set(seen.runs) == {("purge", "us")}


def test_a_database_of_another_name_starts_nothing(
    make_shards: MakeShards, seen: Seen
) -> None:
    """Two addresses that lead to one database: it says which shard it is."""
    found = make_shards("eu", "us")
    eu = found["eu"].database_url
    identify(seen, found)
    both = Shards({"eu": eu, "us": f"{eu}?application_name=x"}, default="eu")
    with application(seen, both) as registry:
        eventually(lambda: seen.runs["purge", "eu"] >= 1)
        assert states(registry)["us"] is ShardState.FAILED
        problem = registry.problems["us"]
    assert "lead to one database" in problem
    assert "slotwise shards apply --shard us" in problem
    assert ("purge", "us") not in seen.runs


def test_another_map_starts_nothing(make_shards: MakeShards, seen: Seen) -> None:
    found = make_shards("eu", "us")
    urls = {one.name: one.database_url for one in found}
    identify(seen, found)
    other = Shards(urls, default="eu", map={"eu": "0-99", "us": "100-1023"})
    registry = application(seen, other)
    with pytest.raises(ConfigurationError, match="slotwise shards apply"):
        registry.start()
    with pytest.raises(ConfigurationError, match="map of keys"):
        registry.sharded.schedule("mail", id="7")
    registry.stop()
    assert not seen.runs


def test_a_connection_leads_to_its_shard(make_shards: MakeShards, seen: Seen) -> None:
    registry = application(seen, make_shards("eu", "us"))
    us = registry.shards["us"]
    with us.engine.begin() as connection:
        registry.sharded.schedule("mail", id="a", connection=connection)
    with psycopg.connect(us.database_url) as driver:
        registry.sharded.schedule("mail", id="b", connection=driver)
    assert {one.id for one in registry.on("us").client.list("mail")} == {"a", "b"}
    assert registry.on("eu").client.list("mail") == []
    registry.stop()


def test_a_connection_to_no_shard_is_refused(
    make_shards: MakeShards, seen: Seen, pg_empty_url: str
) -> None:
    registry = application(seen, make_shards("eu", "us"))
    with (
        psycopg.connect(pg_empty_url) as driver,
        pytest.raises(ConfigurationError, match="none of the shards"),
    ):
        registry.sharded.schedule("mail", id="a", connection=driver)
    registry.stop()


def test_all_shards_share_one_lifespan(make_shards: MakeShards) -> None:
    """It is entered once in a process, and handlers of all shards run on its loop."""
    events: list[str] = []
    loops: dict[str, asyncio.AbstractEventLoop] = {}

    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        events.append("entered")
        yield "state"
        events.append("left")

    @job(name="tick", schedule=Every("1s"), each_shard=True)
    async def tick(ctx: JobContext) -> None:
        assert ctx.state == "state"
        loops[ctx.shard.name] = asyncio.get_running_loop()

    shards = make_shards("eu", "us")
    with ShardedRegistry(shards=shards, jobs=[tick], lifespan=lifespan, **FAST):
        eventually(lambda: len(loops) == 2)
    assert events == ["entered", "left"]
    assert loops["eu"] is loops["us"]


def test_a_lifespan_that_fails_ends_the_start(make_shards: MakeShards) -> None:
    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        raise RuntimeError("no mail server")
        yield

    @job(name="tick", schedule=Every("1s"), each_shard=True)
    def tick() -> None: ...

    shards = make_shards("eu", "us")
    registry = ShardedRegistry(shards=shards, jobs=[tick], lifespan=lifespan, **FAST)
    with pytest.raises(RuntimeError, match="no mail server"):
        registry.start()
    assert not registry.is_running


def test_a_running_worker_stops_for_another_map(
    make_shards: MakeShards, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One shard gets a new map: only its worker stops, and starts again with the old one."""
    monkeypatch.setattr(fleet, "CHECK", 0.2)
    monkeypatch.setattr(fleet, "RETRY", 0.2)
    registry = application(seen, make_shards("eu", "us"))
    with registry:
        eventually(lambda: seen.runs["purge", "us"] >= 1)
        database = registry.on("us").database
        urls = {one.name: one.database_url for one in registry.shards}
        other = Shards(urls, default="eu", map={"eu": "0-1023"})
        apply_marks(database, "us", other)
        eventually(lambda: states(registry)["us"] is ShardState.FAILED)
        assert "slotwise shards apply" in registry.problems["us"]
        assert states(registry)["eu"] is ShardState.RUNNING
        before = seen.runs["purge", "us"]
        apply_marks(database, "us", registry.shards)
        eventually(lambda: seen.runs["purge", "us"] > before)
