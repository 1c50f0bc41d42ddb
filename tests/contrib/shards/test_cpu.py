"""What a slot costs at one, two and four databases with the same load each: CPU of the worker and
the server together.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.contrib.shards.conftest import own_installation
from tests.databases import provision

from slotwise import Every, job
from slotwise.contrib.shards import ShardedRegistry, Shards
from slotwise.embedded import EmbeddedPostgres

#: Jobs in each database, each with two slots a second.
JOBS = 80
#: How long a run is warmed up and measured, in seconds, and how often each is repeated.
WARM_UP, MEASURED, ROUNDS = 4, 10, 2
_TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def server(open_path: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(open_path / "pg", durable=False, temporary=True) as server:
        yield server


def server_cpu(server: EmbeddedPostgres) -> float:
    """CPU seconds of the server's processes, those that have ended included."""
    postmaster = int((server.data / "postmaster.pid").read_text().split()[0])
    used = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(entry.name) == postmaster:
            used += sum(map(int, fields[11:15]))
        elif int(fields[1]) == postmaster:
            used += sum(map(int, fields[11:13]))
    return used / _TICKS


def shards_of(server: EmbeddedPostgres, count: int, turn: int) -> Shards:
    urls = {}
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        for number in range(count):
            name = f"d{turn}_{count}_{number}"
            connection.execute(f"CREATE DATABASE {name}".encode())
            urls[name] = server.url(name)
            provision(urls[name])
            own_installation(urls[name])
    return Shards(urls, default=next(iter(urls)))


def measure(server: EmbeddedPostgres, count: int, turn: int) -> tuple[float, float]:
    """Return CPU per slot in milliseconds, and slots per second."""
    ran = [0]

    def make(number: int) -> object:
        @job(name=f"j{number}", schedule=Every("500ms"), each_shard=True)
        def tick() -> None:
            ran[0] += 1

        return tick

    shards = shards_of(server, count, turn)
    jobs = [make(number) for number in range(JOBS)]
    registry = ShardedRegistry(shards=shards, jobs=jobs, poll_interval="500ms")
    with registry:
        time.sleep(WARM_UP)
        before, began = ran[0], time.monotonic()
        own, theirs = sum(os.times()[:2]), server_cpu(server)
        time.sleep(MEASURED)
        used = sum(os.times()[:2]) - own + server_cpu(server) - theirs
        slots = ran[0] - before
        seconds = time.monotonic() - began
    return 1000 * used / slots, slots / seconds


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_slot_costs_the_same_on_several_databases(server: EmbeddedPostgres) -> None:
    """Interleaved rounds; the cheapest of each counts, as load of others only adds."""
    found: dict[int, list[tuple[float, float]]] = {1: [], 2: [], 4: []}
    for turn in range(ROUNDS):
        for count, runs in found.items():
            runs.append(measure(server, count, turn))
    cheapest = {count: min(cost for cost, _ in runs) for count, runs in found.items()}
    for count, runs in found.items():
        ratio = cheapest[count] / cheapest[1]
        rates = ", ".join(f"{rate:.0f}/s" for _, rate in runs)
        print(f"{count}: {cheapest[count]:.2f} ms a slot, {ratio:.2f} x; {rates}")
    assert cheapest[2] <= 1.1 * cheapest[1]
    assert cheapest[4] <= 1.1 * cheapest[1]
