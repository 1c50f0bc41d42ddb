"""The workers of all chosen shards in one process: each starts, waits and fails by itself.

Races: a thread cannot be killed, and other shards may still drain when one is through. So no shard
hands back the slot of a handler that runs on: its claim is kept until the process ends, and other
workers take over when the lease does.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from enum import StrEnum
from typing import Final

from slotwise import ConfigurationError, SlotwiseError
from slotwise.contrib.shards.lifespan import LoopThread, SharedLifespan
from slotwise.contrib.shards.marks import MapDiffers
from slotwise.contrib.shards.one_shard import ShardRegistry
from slotwise.spi import START_WAIT, Worker, describe_error, elapsed

logger = logging.getLogger("slotwise.shards")

#: How often a running shard is asked for its map, and a failed one is started again, in seconds.
CHECK: Final = 15.0
RETRY: Final = 30.0
#: How many workers start at a time, and how long one holds the next one up, in seconds.
WAVE: Final = 8
WAVE_PATIENCE: Final = 2.0
#: How often the shards are looked at, in seconds.
TICK: Final = 0.5
#: How many shards are asked at a time.
ASKING: Final = 4
#: Descriptors of a shard, at most: connections, sockets, selectors.
DESCRIPTORS: Final = 24


class ShardState(StrEnum):
    """What the worker of a shard does in this process."""

    STARTING = "starting"
    #: It starts when the database answers.
    WAITING = "waiting"
    RUNNING = "running"
    #: It runs, and its database does not answer.
    AWAY = "away"
    #: It cannot start; it is tried again.
    FAILED = "failed"


class Member:
    """The worker of one shard, started again after a failure."""

    def __init__(self, registry: ShardRegistry) -> None:
        self.registry = registry
        self.name = registry.shard.name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._asked: Future[None] | None = None
        self._next = elapsed() + CHECK

    @property
    def worker(self) -> Worker | None:
        return self.registry.worker

    @property
    def error(self) -> BaseException | None:
        """Why it cannot start; None unless it has failed."""
        return self._error or self.registry.start_error

    @property
    def state(self) -> ShardState:
        if self._thread is None and self._error is None:
            return ShardState.STARTING
        worker = self.worker
        if self.error is not None or worker is None:
            return ShardState.FAILED
        is_away = worker.common.is_away
        if self._thread is not None and self._thread.is_alive():
            return ShardState.WAITING if is_away else ShardState.STARTING
        return ShardState.AWAY if is_away else ShardState.RUNNING

    def launch(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Start the worker on a thread of its own."""
        self._error = None
        self._next = elapsed() + RETRY
        try:
            self._thread = self.registry.start_aside(loop)
        except SlotwiseError as error:
            self._error = error
            logger.error("shard %s: %s", self.name, error)

    def tick(
        self, pool: ThreadPoolExecutor, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        """Check the map when it is time, or start a failed worker again."""
        if self._asked is not None and not self._asked.done():
            return
        state = self.state
        if state is ShardState.FAILED:
            if elapsed() >= self._next:
                self.launch(loop)
        elif state is ShardState.RUNNING and elapsed() >= self._next:
            self._next = elapsed() + CHECK
            self._asked = pool.submit(self._check)

    def _check(self) -> None:
        """Stop the worker if its database is another shard now, or has another map."""
        try:
            self.registry.check()
        except ConfigurationError as error:
            logger.error("shard %s stops: %s", self.name, error)
            self._error = error  # before the end, which makes others ask for it
            self._next = elapsed() + RETRY
            self.registry.stop()
        except Exception as error:  # an outage: the worker's loops report it
            logger.debug(
                "shard %s was not asked: %s", self.name, describe_error(error)
            )

    @property
    def problem(self) -> str | None:
        """What is wrong with it, in one line; None if it runs."""
        match self.state:
            case ShardState.FAILED:
                error = self.error
                why = "it is stopped" if error is None else str(error)
            case ShardState.WAITING | ShardState.AWAY:
                why = "the database does not answer"
            case _:
                return None
        why = " ".join(why.split())
        return (
            why
            if why.startswith(f"shard {self.name}")
            else f"shard {self.name}: {why}"
        )


class Fleet:
    """The workers of several shards, with the methods of one worker, for the host that runs it.

    A shard that is down, or must not start, stops only itself: it is logged, is its member's
    ``problem``, and is tried again. ``loop`` runs the ``async def`` handlers; without one there is
    a loop of its own if ``needs_loop``.
    """

    def __init__(
        self,
        registries: Sequence[ShardRegistry],
        *,
        lifespan: SharedLifespan | None,
        needs_loop: bool,
        loop: asyncio.AbstractEventLoop | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.members = [Member(registry) for registry in registries]
        self._lifespan = lifespan
        self._own_loop = LoopThread() if needs_loop and loop is None else None
        self._loop = self._own_loop.loop if self._own_loop else loop
        self._on_end = on_end
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._turn = threading.Lock()
        self._watch: threading.Thread | None = None
        self._pool = ThreadPoolExecutor(ASKING, "slotwise-shards")
        #: Number of handlers, outcomes and lifespans that were left behind.
        self.unfinished = 0

    def start(self) -> None:
        """Start all workers; return when each runs, waits for its database, or has failed.

        Raises the first error if all of them have failed; then nothing is left running.
        """
        _raise_file_limit(len(self.members))
        if self._own_loop is not None:
            self._own_loop.start()
        self._watch = threading.Thread(
            target=self._look, name="slotwise-shards", daemon=True
        )
        self._watch.start()
        self._await_settled()
        states = [member.state for member in self.members]
        if all(state is ShardState.FAILED for state in states):
            error = self.members[0].error
            self.stop(timedelta(0))
            if error is not None:
                raise error
            return
        for member in self.members:
            if (problem := member.problem) is not None:
                logger.warning("the others run without it: %s", problem)

    def _await_settled(self) -> None:
        """Wait until no shard is starting, as long as a host waits for one worker."""
        until = elapsed() + max(START_WAIT.total_seconds(), len(self.members) * 0.1)
        while elapsed() < until and not self._stopping.is_set():
            if all(one.state is not ShardState.STARTING for one in self.members):
                return
            time.sleep(0.01)

    def _launch_all(self) -> None:
        """Start the workers, some at a time: they share pools, and a start has many statements.

        A start that takes long holds the others up for ``WAVE_PATIENCE`` only.
        """
        for place, member in enumerate(self.members):
            until = elapsed() + WAVE_PATIENCE
            while self._starting(place) >= WAVE and elapsed() < until:
                if self._stopping.wait(0.01):
                    return
            member.launch(self._loop)

    def _starting(self, launched: int) -> int:
        """How many of the launched workers are on their way."""
        states = [member.state for member in self.members[:launched]]
        return states.count(ShardState.STARTING)

    def _look(self) -> None:
        self._launch_all()
        while not self._stopping.wait(TICK):
            for member in self.members:
                if self._stopping.is_set():
                    return
                member.tick(self._pool, self._loop)

    def request_stop(self, reason: str | None = None) -> None:
        """Request a stop, from any thread; the one that waits for it drains."""
        self._stopping.set()
        for member in self.members:
            if (worker := member.worker) is not None:
                worker.request_stop(reason)

    def cancel(self) -> None:
        """Ask all running handlers to stop, in the current drain or the next one."""
        self._stopping.set()
        for member in self.members:
            if (worker := member.worker) is not None:
                worker.cancel()

    def wait_for_stop(self, seconds: float | None = None) -> bool:
        """Wait until a stop is requested; return whether it was."""
        return self._stopping.wait(seconds)

    def stop(self, grace: timedelta | None = None, *, ending: bool = False) -> int:
        """Drain all workers at a time; return how much they left behind. A second call waits.

        ``ending`` changes nothing: see the top of this module.
        """
        self.request_stop()
        with self._turn:
            if self._ended.is_set():
                return self.unfinished
            if self._watch is not None:
                self._watch.join()
            self._pool.shutdown(wait=True)
            with ThreadPoolExecutor(len(self.members), "slotwise-drain") as drains:
                left = drains.map(
                    lambda member: member.registry.stop(grace), self.members
                )
                self.unfinished = sum(left)
            if self._own_loop is not None:
                self._own_loop.stop()
            self._on_end()
            self._ended.set()
        return self.unfinished

    def blame(self, error: BaseException) -> str | None:
        """Return the name of the application's lifespan if it raised this error, else None."""
        lifespan = self._lifespan
        is_its = lifespan is not None and lifespan.failure is error
        return lifespan.name if lifespan is not None and is_its else None

    @property
    def problems(self) -> list[str]:
        """What is wrong, one line for each shard that does not run."""
        found = (member.problem for member in self.members)
        return [problem for problem in found if problem is not None]

    @property
    def has_stale_map(self) -> bool:
        """Whether a shard is stopped because it has another map."""
        return any(isinstance(member.error, MapDiffers) for member in self.members)

    @property
    def database(self) -> Fleet:
        """What a host closes at the end: this."""
        return self

    def close(self) -> None:
        """Close what is left open; ``stop`` has closed the rest."""
        self._on_end()


def _raise_file_limit(shards: int) -> None:
    """Raise the soft limit of open files, up to the hard one, where many shards need it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 512 + shards * DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
