"""Whose turn it is: a flood of one task, with a limit or without, keeps no other waiting."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.kit.events import Claimed
from tests.kit.loops import AT_ONCE
from tests.unit.engine.conftest import Bench, MakeBench
from tests.unit.engine.parts import Gate

from slotwise import JobContext, task
from slotwise.spi import Settled


def nothing(ctx: JobContext) -> None:
    """Returns."""


def named(*names: str, **policies: Any) -> list[Any]:
    return [task(name=name, **policies)(nothing) for name in names]


def claims(bench: Bench, count: int) -> list[list[str]]:
    """The names of each of so many claims, of which each is settled before the next."""
    found = []
    for _ in range(count):
        before, ended = len(bench.said(Claimed)), len(bench.said(Settled))
        bench.worker.poller.run_once()
        found.append([event.job for event in bench.said(Claimed)[before:]])
        while len(bench.said(Settled)) < ended + len(found[-1]):
            bench.worker.settler.run_once()
    return found


def schedule(bench: Bench, **counts: int) -> None:
    for name, count in counts.items():
        bench.registry.client.schedule_many(name, range(count))


def test_whoever_was_served_goes_to_the_end(make_bench: MakeBench) -> None:
    """With a hundred tasks, two of which flood, a row waits for one claim of each flood: not for a
    hundred.
    """
    names = [f"t{number:02}" for number in range(100)]
    bench = make_bench(*named(*names), threads=1)
    schedule(bench, t50=9, t98=9, t99=1)
    assert claims(bench, 4) == [["t50"], ["t98"], ["t99"], ["t50"]]
    schedule(bench, t00=1)
    assert claims(bench, 2) == [["t00"], ["t98"]]


@pytest.mark.parametrize(
    "limit",
    [{"concurrency": 5}, {"rate_limit": "1000/s"}],
    ids=["concurrency", "rate_limit"],
)
@pytest.mark.parametrize("flood", ["free", "limited"])
def test_a_limit_is_no_reason_to_wait(
    make_bench: MakeBench, limit: dict[str, Any], flood: str
) -> None:
    """Neither for the task with the limit, while others flood; nor for the others, while that one
    does.
    """
    bench = make_bench(*named("free"), *named("limited", **limit), threads=2)
    schedule(bench, **{"free": 1, "limited": 1} | {flood: 50})
    assert {name for some in claims(bench, 2) for name in some} == {"free", "limited"}


def test_a_full_task_is_left_alone(make_bench: MakeBench, gate: Gate) -> None:
    """While it runs as often as it may, polls count its places each quarter of a second, and after
    an end of ours.
    """
    few = task(name="few", concurrency=1)(lambda ctx: gate.pass_through())
    bench = make_bench(few, *named("many"), threads=5)
    schedule(bench, few=3)
    counted = count_places(bench)
    poller = bench.worker.poller
    pauses = [poller.run_once() for _ in range(5)]
    assert counted == [{"few": 1}, {"few": 0}]
    assert (
        timedelta(milliseconds=240)
        < (pauses[-1] or AT_ONCE)
        <= timedelta(milliseconds=250)
    )
    bench.clock.tick(timedelta(milliseconds=250))
    poller.run_once()
    assert counted[2:] == [{"few": 0}]
    gate.open()
    while not bench.said(Settled):
        bench.worker.settler.run_once()
    poller.run_once()
    assert counted[3:] == [{"few": 1}]


def count_places(bench: Bench) -> list[dict[str, int]]:
    """The free places that each claim has counted."""
    counted, room = list[dict[str, int]](), bench.worker.store.gates.room

    def listening(*asked: Any) -> dict[str, int]:
        counted.append(room(*asked))
        return counted[-1]

    bench.worker.store.gates.room = listening  # type: ignore[method-assign]
    return counted


def test_a_full_task_hides_nothing_that_comes_due(
    make_bench: MakeBench, gate: Gate
) -> None:
    """The poller sleeps until the next row of the others, though rows of the full task are due."""
    few = task(name="few", concurrency=1)(lambda ctx: gate.pass_through())
    bench = make_bench(few, *named("many"), threads=5)
    schedule(bench, few=3)
    for _ in range(3):
        bench.worker.poller.run_once()
    bench.registry.client.schedule("many", delay="100ms")
    pause = bench.worker.poller.run_once()
    assert (
        timedelta(milliseconds=90) < (pause or AT_ONCE) <= timedelta(milliseconds=100)
    )
    gate.open()


def test_a_full_task_fills_no_claim(make_bench: MakeBench, gate: Gate) -> None:
    """Whatever the priority of its rows: a claim takes no more of them than may start."""
    few = task(name="few", concurrency=2)(lambda ctx: gate.pass_through())
    bench = make_bench(few, *named("many"), threads=5)
    bench.registry.client.schedule_many("few", range(600), priority=90)
    schedule(bench, many=3)
    bench.worker.poller.run_once()
    names = [event.job for event in bench.said(Claimed)]
    assert sorted(names) == ["few", "few", "many", "many", "many"]
    gate.open()


@pytest.mark.extended
def test_a_flood_at_the_highest_priority(make_bench: MakeBench) -> None:
    """After a hundred of its rows others have a part of a claim, also behind a second flood; then
    it goes on.
    """
    bench = make_bench(*named("flood", "second", "ping"), threads=50)
    for name, priority in (("flood", 32767), ("second", 32766)):
        bench.registry.client.schedule_many(name, range(600), priority=priority)
    schedule(bench, ping=1)
    found = [set(some) for some in claims(bench, 3)]
    assert found == [{"flood"}, {"flood"}, {"flood", "second"}]
    assert any("ping" in some for some in claims(bench, 20))
