"""Handlers that harm the worker that runs them."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any

from tests.faults.cast.witness import LOG, first_in_cluster, tell

from slotwise import DistributedJob, Every, JobContext, OneTimeTask


class Exits(DistributedJob):
    """Takes its process down for one slot, three times; later slots are harmless."""

    name = "exits"
    schedule = Every("1s")
    max_lost = 2

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            if first_in_cluster(f"{ctx.name}.{ctx.attempt}") or ctx.attempt > 1:
                tell("exiting", slot=ctx.slot.isoformat(), attempt=ctx.attempt)
                os._exit(9)


class Deaf(DistributedJob):
    """Never returns, whatever it is told."""

    name = "deaf"
    schedule = Every("1s")

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            while first_in_cluster(ctx.name) or self._forever:
                time.sleep(60)

    _forever = True


class Hog(DistributedJob):
    """Holds the interpreter's lock, so that nothing else of this process runs, for longer than the lease."""

    name = "hog"
    schedule = Every("1s")

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            if first_in_cluster(ctx.name):
                tell("hogging", slot=ctx.slot.isoformat(), token=ctx.token)
                ctypes.PyDLL(None).usleep(4_000_000)


class Busy(DistributedJob):
    """Counts in pure Python for longer than the lease: the other threads are slow, not still."""

    name = "busy"
    schedule = Every("1s")

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            end = time.monotonic() + (4 if first_in_cluster(ctx.name) else 0)
            while time.monotonic() < end:
                sum(range(1000))


def _raise(kind: str) -> None:
    match kind:
        case "exit":
            sys.exit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "base":
            raise BaseException("as agreed")
        case "memory":
            raise MemoryError
        case "stop":
            raise StopIteration
        case "generator":
            raise GeneratorExit
        case "recursion":
            _raise(kind)
        case "text":
            raise ValueError("\x00 and \ud800 and \x1b[31m")
        case "mute":
            raise _MuteError


class _MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Raises(OneTimeTask):
    """Raises what its payload names; only once, where it says so."""

    name = "raises"
    retry = None

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            _raise(ctx.data)


class RaisesAsync(OneTimeTask):
    name = "raises-async"
    retry = None

    async def execute(self, ctx: JobContext) -> Any:
        with LOG.attempt(ctx):
            _raise(ctx.data)


POISON = (Exits, Deaf, Hog, Busy)
