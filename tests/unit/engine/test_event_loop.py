"""The one loop of the coroutines, and the lifespan around it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from tests.kit.loops import EventLoop, event_loop
from tests.kit.patience import PATIENCE

#: Loops of tests before: of lifespans, say, that were never left.
OTHERS: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def others() -> None:
    OTHERS.clear()
    OTHERS.update(threading.enumerate())


def loop_threads() -> int:
    return sum(
        thread.name == "slotwise-loop"
        for thread in threading.enumerate()
        if thread not in OTHERS
    )


class Life:
    """A lifespan that says what happens to it; ``fails`` while it is entered, or left."""

    def __init__(self, *, fails: str = "") -> None:
        self._fails = fails
        self.said: list[str] = []
        self.tasks: list[Any] = []

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[str]:
        self._say("enter")
        yield "state"
        self._say("leave")

    def _say(self, word: str) -> None:
        self.said.append(word)
        self.tasks.append(asyncio.current_task())
        if word == self._fails:
            raise OSError(f"cannot {word}")


def test_the_loop_has_a_thread_of_its_own_and_leaves_none() -> None:
    """Made at the start, gone after the stop, closed."""
    loop = EventLoop()
    loop.start()
    assert loop.state is None
    inner = loop._loop
    assert loop.submit(asyncio.sleep(0, "done")).result(PATIENCE) == "done"
    loop.stop()
    assert loop_threads() == 0
    assert inner is not None
    assert inner.is_closed()


def test_the_lifespan_is_entered_once_and_left_in_the_same_task() -> None:
    """What it gave is the state; context variables and task groups need one task."""
    life = Life()
    loop = EventLoop(life)
    loop.start()
    assert loop.state == "state"
    assert life.said == ["enter"]
    loop.stop()
    assert life.said == ["enter", "leave"]
    assert life.tasks[0] is life.tasks[1]
    assert loop_threads() == 0


def test_a_lifespan_that_cannot_be_entered() -> None:
    """Its error is the start's, and nothing is left."""
    loop = EventLoop(Life(fails="enter"))
    with pytest.raises(OSError, match="cannot enter"):
        loop.start()
    assert loop_threads() == 0
    loop.stop()  # changes nothing


def test_a_lifespan_that_cannot_be_left() -> None:
    """Its error is the stop's; the loop has ended all the same."""
    loop = EventLoop(Life(fails="leave"))
    loop.start()
    with pytest.raises(OSError, match="cannot leave"):
        loop.stop()
    assert loop_threads() == 0


def test_a_lifespan_that_exits() -> None:
    """A SystemExit in it does not end the thread in silence."""

    @asynccontextmanager
    async def exits() -> AsyncIterator[None]:
        raise SystemExit(3)
        yield

    loop = EventLoop(exits)
    with pytest.raises(SystemExit):
        loop.start()
    assert loop_threads() == 0


def test_a_loop_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more file descriptors, for instance: the start says so, instead of waiting for ever."""

    def refuse(*_: object) -> None:
        raise OSError("Too many open files")

    monkeypatch.setattr(asyncio.events, "new_event_loop", refuse)
    with pytest.raises(OSError, match="Too many"):
        EventLoop().start()


def test_nothing_runs_without_a_loop() -> None:
    """Before the start and after the stop; the coroutine is closed, so that nobody warns of it."""
    loop = EventLoop()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="has not been started, or has ended"):
            loop.submit(asyncio.sleep(0))
        loop.start()
        loop.stop()


def test_what_runs_at_the_end_is_cancelled() -> None:
    """As asyncio.run does it: nothing is destroyed while it is pending."""
    ended, entered = [], threading.Event()

    async def waits() -> None:
        entered.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("cancelled")

    loop = EventLoop()
    loop.start()
    loop.submit(waits())
    assert entered.wait(PATIENCE)
    loop.stop()
    assert ended == ["cancelled"]


def test_a_handler_that_blocks_the_loop_does_not_hold_up_the_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is left behind, in a daemon thread."""
    monkeypatch.setattr(event_loop, "EVENT_LOOP_PATIENCE", event_loop.LIFESPAN_CHECK)
    go, entered = threading.Event(), threading.Event()

    async def blocks() -> None:
        entered.set()
        go.wait(PATIENCE)

    loop = EventLoop()
    loop.start()
    loop.submit(blocks())
    assert entered.wait(PATIENCE)
    thread = loop._thread
    loop.stop()
    assert thread is not None
    assert thread.is_alive()
    assert thread.daemon
    go.set()
    thread.join(PATIENCE)
    assert loop_threads() == 0


# -- on a host's loop -----------------------------------------------------------------------------


def test_the_hosts_loop_is_used_and_stays() -> None:
    """No thread of ours, and the host goes on after us."""
    life = Life()

    async def host() -> None:
        mine = asyncio.get_running_loop()
        loop = EventLoop(life, mine)
        await asyncio.to_thread(loop.start)
        assert loop.state == "state"
        assert loop_threads() == 0

        async def where() -> Any:
            return asyncio.get_running_loop()

        assert await asyncio.wrap_future(loop.submit(where())) is mine
        await asyncio.to_thread(loop.stop)
        assert life.said == ["enter", "leave"]

    asyncio.run(host())


def test_a_host_that_ends_before_us(caplog: pytest.LogCaptureFixture) -> None:
    """The stop does not wait for a loop that no longer runs."""
    life = Life()

    async def host() -> EventLoop:
        loop = EventLoop(life, asyncio.get_running_loop())
        await asyncio.to_thread(loop.start)
        return loop

    loop = asyncio.run(host())  # which cancels the lifespan's task, and so leaves it
    loop.stop()
    assert life.said[0] == "enter"


def test_a_host_whose_loop_stands_still(caplog: pytest.LogCaptureFixture) -> None:
    """It neither runs nor is closed: nobody will ever leave the lifespan, and the stop says so."""
    life = Life()
    mine = asyncio.new_event_loop()
    loop = EventLoop(life, mine)

    async def host() -> None:
        await asyncio.to_thread(loop.start)

    mine.run_until_complete(host())
    loop.stop()
    assert "its lifespan was not left" in caplog.text
    for each in asyncio.all_tasks(mine):
        each.cancel()
        with pytest.raises(asyncio.CancelledError):
            mine.run_until_complete(each)
    mine.run_until_complete(mine.shutdown_default_executor())
    mine.close()


variable: contextvars.ContextVar[str] = contextvars.ContextVar(
    "variable", default="unset"
)


def test_a_context_variable_of_the_lifespan_can_be_reset() -> None:
    """A token is good only in the context that made it."""

    @asynccontextmanager
    async def sets() -> AsyncIterator[None]:
        token = variable.set("set")
        try:
            yield
        finally:
            variable.reset(token)

    loop = EventLoop(sets)
    loop.start()
    loop.stop()


def test_a_stop_while_the_lifespan_is_entered() -> None:
    """It is cancelled where it waits, and may clean up; the start gives nothing."""
    stopping, said = threading.Event(), list[str]()

    @asynccontextmanager
    async def slow() -> AsyncIterator[str]:
        stopping.set()
        try:
            await asyncio.sleep(3600)
            yield "state"
        finally:
            said.append("cleaned")

    loop = EventLoop(slow)
    loop.start(stopping)
    assert loop.state is None
    loop.stop()
    assert (said, loop.left_behind, loop_threads()) == (["cleaned"], False, 0)


def test_a_lifespan_that_is_entered_all_the_same() -> None:
    """Whoever does not hear its cancellation is left as always."""
    stopping, said = threading.Event(), list[str]()

    @asynccontextmanager
    async def stubborn() -> AsyncIterator[str]:
        stopping.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        yield "state"
        said.append("left")

    loop = EventLoop(stubborn)
    loop.start(stopping)
    assert loop.state is None
    loop.stop()
    assert (said, loop.left_behind, loop_threads()) == (["left"], False, 0)
