"""A worker inside an asyncio application: on its loop, in its life, never in its way."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.integration.hearing import Heard, gone, sorted_out, threads_of_ours
from tests.kit.patience import PATIENCE

from slotwise import (
    ConfigurationError,
    Every,
    JobContext,
    JobRegistry,
    SchemaMissing,
    job,
    task,
)


def nothing(ctx: JobContext) -> None:
    """Returns."""


def a_registry(
    url: str, heard: Heard, *subjects: object, **options: Any
) -> JobRegistry:
    options = {"shutdown_grace": "10s", "poll_interval": "1s"} | options
    return JobRegistry(
        **sorted_out(*subjects), listeners=[heard], database_url=url, **options
    )


async def eventually(event: threading.Event | asyncio.Event) -> None:
    """Wait for something that must happen, without blocking the loop."""
    if isinstance(event, asyncio.Event):
        await asyncio.wait_for(event.wait(), PATIENCE)
    else:
        assert await asyncio.to_thread(event.wait, PATIENCE)


def test_coroutines_run_on_the_hosts_loop(url: str, heard: Heard) -> None:
    """The very loop, which goes on meanwhile; functions run on threads of ours; signals stay the
    host's.
    """

    async def host() -> None:
        mine, done = asyncio.get_running_loop(), asyncio.Event()
        before = [
            signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)
        ]
        where: list[Any] = []

        async def later(ctx: JobContext) -> None:
            where.append(asyncio.get_running_loop())
            done.set()

        registry = a_registry(
            url,
            heard,
            task(name="later")(later),
            task(name="now")(lambda ctx: where.append(threading.current_thread())),
        )
        async with registry as entered:
            assert entered is registry
            assert [
                signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)
            ] == before
            await asyncio.to_thread(registry.client.schedule, "later")
            await asyncio.to_thread(registry.client.schedule, "now")
            await eventually(done)
            await asyncio.to_thread(heard.wait, "settled", 2)
            assert "slotwise-loop" not in threads_of_ours()
        assert mine in where
        assert any(
            getattr(found, "name", "").startswith("slotwise-handler")
            for found in where
        )
        assert gone()

    asyncio.run(host())


def test_the_hosts_loop_is_never_blocked(pg_url: str, heard: Heard) -> None:
    """Not by the start, which asks the database, nor by the drain, which waits for handlers."""

    async def host() -> None:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.001)

        async def handler(ctx: JobContext) -> None:
            entered.set()
            await asyncio.sleep(0.3)

        entered = asyncio.Event()
        turning = asyncio.create_task(turn())
        registry = a_registry(pg_url, heard, task(name="mail")(handler))
        async with registry:
            assert turns > 5
            await asyncio.to_thread(registry.client.schedule, "mail")
            await eventually(entered)
            before = turns
        assert turns - before > 50
        assert [event.outcome for event in heard.of("settled")] == ["succeeded"]
        turning.cancel()

    asyncio.run(host())


def test_the_lifespan_is_the_hosts_too(url: str, heard: Heard) -> None:
    """Entered in its loop, left there after the drain, in the same task; ctx.state for both kinds
    of handlers.
    """

    async def host() -> None:
        mine, said, seen = asyncio.get_running_loop(), [], []

        @asynccontextmanager
        async def life() -> AsyncIterator[str]:
            assert asyncio.get_running_loop() is mine
            said.append("enter")
            task_of_life = asyncio.current_task()
            yield "state"
            assert asyncio.current_task() is task_of_life
            said.append("leave")

        async def later(ctx: JobContext) -> None:
            seen.append(ctx.state)
            await asyncio.sleep(0.2)
            said.append("handled")

        registry = a_registry(
            url,
            heard,
            task(name="later")(later),
            task(name="now")(lambda ctx: seen.append(ctx.state)),
            lifespan=life,
        )
        async with registry:
            assert said == ["enter"]
            await asyncio.to_thread(registry.client.schedule, "now")
            await asyncio.to_thread(registry.client.schedule, "later")
            await asyncio.to_thread(heard.wait, "handler_start", 2)
        assert said == ["enter", "handled", "leave"]
        assert seen == ["state", "state"]

    asyncio.run(host())


def test_a_start_that_fails_leaves_the_host_as_it_was(
    sqlite_empty_url: str, heard: Heard
) -> None:
    """The error is the start's; no thread, no task."""

    async def host() -> None:
        with pytest.raises(SchemaMissing):
            async with a_registry(sqlite_empty_url, heard, task(name="mail")(nothing)):
                pytest.fail("entered")
        assert gone()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(host())


def test_an_entry_that_is_cancelled_while_the_database_is_away(heard: Heard) -> None:
    """The start gives up waiting, and nothing stays behind: the loop may be closed a moment
    later.
    """
    registry = a_registry(
        "postgresql://nobody@127.0.0.1:1/none", heard, task(name="mail")(nothing)
    )

    async def host() -> None:
        entering = asyncio.create_task(registry.__aenter__())
        await asyncio.to_thread(heard.wait, "database_lost")
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(entering, PATIENCE)
        assert registry.worker is None
        assert gone()

    asyncio.run(host())


def test_an_entry_that_is_cancelled_too_late(url: str, heard: Heard) -> None:
    """Race: the start has succeeded when the cancellation comes: it is taken back."""
    inside, go = threading.Event(), threading.Event()

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        inside.set()
        await asyncio.to_thread(go.wait, PATIENCE)
        yield

    registry = a_registry(url, heard, task(name="mail")(nothing), lifespan=slow)

    async def host() -> None:
        entering = asyncio.create_task(registry.__aenter__())
        await eventually(inside)
        entering.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(entering, PATIENCE)
        assert registry.worker is None
        assert gone()

    asyncio.run(host())


def test_an_exit_that_is_cancelled(url: str, heard: Heard) -> None:
    """The host is in a hurry: handlers are cancelled, everything ends, and the cancellation
    goes on.
    """

    async def host() -> None:
        entered = asyncio.Event()

        async def endless(ctx: JobContext) -> None:
            entered.set()
            await asyncio.get_running_loop().create_future()

        registry = a_registry(
            url, heard, task(name="mail")(endless), shutdown_grace="1h"
        )

        async def life() -> None:
            async with registry:
                await asyncio.to_thread(registry.client.schedule, "mail")
                await eventually(entered)

        living = asyncio.create_task(life())
        await asyncio.to_thread(heard.wait, "drain_begin")
        living.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(living, PATIENCE)
        assert registry.worker is None
        assert [event.outcome for event in heard.of("settled")] == ["aborted"]
        assert gone()

    asyncio.run(host())


def test_a_body_that_fails_drains_all_the_same(url: str, heard: Heard) -> None:
    """The host's error comes out, after the drain."""

    async def host() -> None:
        with pytest.raises(ValueError, match="the host's"):
            async with a_registry(url, heard, task(name="mail")(nothing)):
                raise ValueError("the host's")
        assert heard.names()[-1] == "drain_end"

    asyncio.run(host())


def test_a_host_that_is_told_to_end(url: str, heard: Heard) -> None:
    """Ctrl-C under asyncio.run cancels the main task: the drain runs on the loop that still lives,
    and ends it well.
    """

    async def host() -> None:
        async def endless(ctx: JobContext) -> None:
            await asyncio.sleep(0.2)

        async with a_registry(
            url, heard, job(name="often", schedule=Every("1s"))(endless)
        ):
            await asyncio.to_thread(heard.wait, "handler_start")
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(PATIENCE)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(host())
    assert {event.outcome for event in heard.of("settled")} == {"succeeded"}
    assert heard.names()[-1] == "drain_end"
    assert gone()


def test_a_worker_of_its_own_beside_a_loop(url: str, heard: Heard) -> None:
    """`with` inside a coroutine is allowed: a loop of our own then, and the host's waits for start
    and stop.
    """

    async def host() -> None:
        where: list[str] = []

        async def later(ctx: JobContext) -> None:
            where.append(threading.current_thread().name)

        registry = a_registry(url, heard, task(name="mail")(later), process_hook=False)
        with registry:
            registry.client.schedule("mail")
            await asyncio.to_thread(heard.wait, "settled")
        assert where == ["slotwise-loop"]

    asyncio.run(host())


def test_start_is_not_called_in_the_loop_it_is_given(
    sqlite_url: str, heard: Heard
) -> None:
    """It would wait for the loop that waits for it."""

    async def host() -> None:
        with pytest.raises(ConfigurationError, match="use: async with registry"):
            a_registry(sqlite_url, heard, task(name="mail")(nothing)).start(
                host_loop=asyncio.get_running_loop()
            )

    asyncio.run(host())
