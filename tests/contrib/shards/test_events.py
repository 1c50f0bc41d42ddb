"""Events of an application with shards: each shard publishes and handles its own."""

from __future__ import annotations

import threading

import pytest
from tests.contrib.shards.conftest import MakeShards
from tests.contrib.shards.test_workers import FAST, eventually

from slotwise import ConfigurationError, TaskContext, task
from slotwise.contrib.events import Events
from slotwise.contrib.shards import ShardedRegistry


@task(name="other")
def other() -> None:
    """Never run here."""


def loops() -> int:
    return sum(one.name == "slotwise-events" for one in threading.enumerate())


@pytest.mark.parametrize("is_passed", [True, False])
def test_each_shard_handles_what_was_published_in_it(
    make_shards: MakeShards, is_passed: bool
) -> None:
    events = Events()
    seen: list[tuple[str, str, int]] = []

    @events.on("order.paid", name="mail")
    def mail(ctx: TaskContext[int]) -> None:
        seen.append((ctx.shard.name, ctx.id, ctx.data))

    tasks = events.tasks if is_passed else [other]
    registry = ShardedRegistry(shards=make_shards("eu", "us"), tasks=tasks, **FAST)
    events.attach(registry)
    with registry:
        for step, name in enumerate(["eu", "us", "us"]):
            with registry.shards[name].engine.begin() as connection:
                events.publish(connection, "order.paid", step, key="a")
        eventually(lambda: len(seen) == 3)
        assert loops() == 2
    assert loops() == 0
    assert [one for one in seen if one[0] == "us"] == [
        ("us", "event-1", 1),
        ("us", "event-2", 2),
    ]
    assert ("eu", "event-1", 0) in seen


def test_what_is_about_one_shard_names_it(make_shards: MakeShards) -> None:
    events = Events()

    @events.on("order.paid", name="mail")
    def mail(ctx: TaskContext[int]) -> None: ...

    registry = ShardedRegistry(shards=make_shards("eu", "us"), tasks=[other])
    events.attach(registry)
    with pytest.raises(ConfigurationError, match=r"events.on_shard\('eu'\)"):
        events.fan_out()
    with pytest.raises(ConfigurationError, match="known are eu, us"):
        events.on_shard("asia")
    events.on_shard("us").register()
    assert events.on_shard("us").fan_out().events == 0
    registry.stop()
