"""Handlers that harm the worker that runs them. A job does so once; a task does what its payload
says.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from tests.faults.cast.witness import LOG, attempt, tell

from slotwise import DistributedJob, Every, JobContext, OneTimeTask


class Exits(DistributedJob):
    """Takes its process down at every attempt of one slot; later slots are harmless."""

    name = "exits"
    schedule = Every("1s")
    max_lost = 2

    def execute(self, ctx: JobContext) -> None:
        with attempt(ctx) as is_first:
            if ctx.attempt > 1 or is_first:
                os._exit(9)


class Deaf(DistributedJob):
    """Never returns, whatever it is told."""

    name = "deaf"
    schedule = Every("1s")

    def execute(self, ctx: JobContext) -> None:
        with attempt(ctx) as is_first:
            if is_first:
                while True:
                    time.sleep(60)


class DeafAsync(DistributedJob):
    """Never returns either: it swallows its cancellation."""

    name = "deaf-async"
    schedule = Every("1s")

    async def execute(self, ctx: JobContext) -> None:
        with attempt(ctx) as is_first:
            while is_first or ctx.cancelled:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    continue


class Hog(DistributedJob):
    """Holds the interpreter's lock, so that nothing else of this process runs, until something
    comes down a pipe.
    """

    name = "hog"
    schedule = Every("1s")

    def execute(self, ctx: JobContext) -> None:
        with attempt(ctx) as is_first:
            if is_first:
                os.mkfifo(pipe := f"{LOG.path}.pipe")
                ctypes.PyDLL(None).read(
                    os.open(pipe, os.O_RDWR), ctypes.create_string_buffer(1), 1
                )


class Busy(DistributedJob):
    """Counts in pure Python for longer than the lease: the other threads are slow, not still."""

    name = "busy"
    schedule = Every("1s")

    def execute(self, ctx: JobContext) -> None:
        with attempt(ctx) as is_first:
            end = time.monotonic() + (3.5 if is_first else 0)
            while time.monotonic() < end:
                sum(range(1000))


class Blocks(DistributedJob):
    """Blocks the event loop of its worker for longer than the lease."""

    name = "blocks"
    schedule = Every("1s")

    async def execute(self, ctx: JobContext) -> None:
        with attempt(ctx) as is_first:
            if is_first:
                tell("blocked")
                time.sleep(3.5)


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _raise(error: BaseException) -> NoReturn:
    raise error


def _recurse(depth: int) -> None:
    _recurse(depth + 1)


async def _exit_beside() -> None:
    sys.exit(4)


#: What a payload may ask for.
HARM: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "sys.exit": lambda: sys.exit(3),
    "KeyboardInterrupt": lambda: _raise(KeyboardInterrupt()),
    "BaseException": lambda: _raise(BaseException("as agreed")),
    "GeneratorExit": lambda: _raise(GeneratorExit()),
    "StopIteration": lambda: _raise(StopIteration()),
    "CancelledError": lambda: _raise(asyncio.CancelledError()),
    "MemoryError": lambda: bytearray(1 << 62),
    "RecursionError": lambda: _recurse(0),
    "unspeakable text": lambda: _raise(ValueError("\x00 \ud800 \x1b[31m")),
    "no text": lambda: _raise(MuteError()),
    "a group": lambda: _raise(
        BaseExceptionGroup("as agreed", [SystemExit(1), KeyError("x")])
    ),
    "a long text": lambda: _raise(ValueError("x" * 1_000_000)),
}


class Harm(OneTimeTask):
    name = "harm"
    retry = None

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            HARM[ctx.data]()


class HarmAsync(OneTimeTask):
    name = "harm-async"
    retry = None

    async def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            HARM[ctx.data]()


class ExitBeside(OneTimeTask):
    """A task of its own beside the handler exits: that ends the loop that runs both."""

    name = "exit-beside"
    retry = None

    async def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            beside = asyncio.ensure_future(_exit_beside())
            await asyncio.sleep(0.1)
            del beside
