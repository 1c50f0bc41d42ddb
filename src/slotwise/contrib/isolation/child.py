"""The child process that runs one attempt of a job with ``isolation="process"``; only a worker
starts it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias, TypedDict, cast

from slotwise import JobRegistry, Settings
from slotwise.contrib.isolation.attempts import Channel, say_outcome
from slotwise.contrib.processes.signals import StopSignals
from slotwise.spi import (
    AttemptOutcome,
    Claim,
    Event,
    Failed,
    HandedBack,
    HandlerStarted,
    Holding,
    Reason,
    Worker,
    growing_pauses,
    is_transient,
)

_PR_SET_PDEATHSIG = 1

#: Imports an application by its name, from a folder.
Load: TypeAlias = Callable[[str, Path], JobRegistry]
#: What the program above configures from the application's settings, such as logging.
Prepare: TypeAlias = Callable[[Settings], object]

FIRST_PAUSE = timedelta(milliseconds=100)
LONGEST_PAUSE = timedelta(seconds=2)


class AttemptRequest(TypedDict):
    """What the parent sends first: the claim, and where the application is."""

    #: Task, instance, token and holder.
    claim: tuple[str, str, int, str]
    renewed: float
    path: list[str]
    app: str
    settings: dict[str, object]


class Message(TypedDict, total=False):
    """What the parent sends later: the time of a renewal, the start of a drain, or the reason for
    a stop.
    """

    renewed: float
    draining: bool
    stop: str


def run_isolated(descriptor: int, load: Load, prepare: Prepare) -> None:
    """Run the attempt that the parent, a worker, requests over this socket; then end the process.

    ``load`` imports the application. ``prepare`` is called with its settings before the handler
    starts.
    """
    os.set_inheritable(descriptor, False)
    channel = Channel(socket.socket(fileno=descriptor))
    _follow_parent()
    request = _first(channel)
    channel.send(**say_outcome(_obey(request, channel, load, prepare)))
    with suppress(
        OSError, ValueError
    ):  # a full disk, or a stream that the handler closed
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # a thread that the handler left must not keep the slot from ending


def _follow_parent() -> None:
    """Stop only when the parent asks, even if a supervisor signals all processes; but die with the
    parent.

    Signals get a handler and are not ignored: child processes would inherit the latter, and could
    not be ended.
    """
    StopSignals(lambda number, count: None).__enter__()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _first(channel: Channel) -> AttemptRequest:
    while (said := channel.lines(None)) is not None:
        for request in said:
            return cast(AttemptRequest, request)
    _die()
    raise AssertionError


def _die() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _obey(
    request: AttemptRequest, channel: Channel, load: Load, prepare: Prepare
) -> AttemptOutcome:
    """Run the attempt. The main thread is the handler's, or that of the loop on which it runs:
    only there can it set signal handlers.
    """
    try:
        registry = _registry(request, channel, load, prepare)
        is_async = registry.definitions[request["claim"][0]].is_async
        loop = asyncio.new_event_loop() if is_async else None
        worker = registry.make_worker(host_loop=loop)
    except Exception as error:
        return _cannot_start(error)
    if loop is None:
        return _attempt(request, channel, worker)
    return _beside(loop, partial(_attempt, request, channel, worker))


def _beside(
    loop: asyncio.AbstractEventLoop, work: Callable[[], AttemptOutcome]
) -> AttemptOutcome:
    """Run the loop in this thread until ``work``, on another one, is done."""
    ended = Future[AttemptOutcome]()

    def attempt() -> None:
        try:
            ended.set_result(work())
        except BaseException as error:
            ended.set_exception(error)
        loop.call_soon_threadsafe(loop.stop)

    loop.call_soon(threading.Thread(target=attempt, daemon=True).start)
    while not ended.done():
        # A background task that exits ends neither the loop nor the attempt.
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
    return ended.result()


def _cannot_start(error: Exception) -> Failed:
    return Failed(f"its process cannot start: {error}")


def _attempt(
    request: AttemptRequest, channel: Channel, worker: Worker
) -> AttemptOutcome:
    try:
        claim, words = _find_claim(worker, request, channel)
    except Exception as error:
        return _cannot_start(error)
    if claim is None:
        return HandedBack(Reason.LOST)  # while the application was imported
    (holding,) = worker.active_claims.add([claim], request["renewed"])
    # It may have been renewed while the application was imported.
    for word in [*words, *(channel.lines(0) or ())]:
        _heed(cast(Message, word), holding, worker)
    threading.Thread(
        target=_listen, args=(channel, holding, worker), daemon=True
    ).start()
    ended: SimpleQueue[AttemptOutcome] = SimpleQueue()
    worker.runner.on_end = lambda _, outcome: ended.put(outcome)
    try:
        worker.loop.start()
    except BaseException as error:
        if (name := worker.blame(error)) is None:
            raise
        return Failed(
            f"its process cannot start: the lifespan {name} raised {type(error).__name__}: {error}"
        )
    worker.runner.run_here(holding)
    return ended.get()


def _find_claim(
    worker: Worker, request: AttemptRequest, channel: Channel
) -> tuple[Claim | None, list[Message]]:
    """Return the claim, if it is still valid, and the parent's messages so far.

    Wait while the database is unreachable. The parent ends this process if the claim is lost
    meanwhile; this process exits if the parent is gone.
    """
    words: list[Message] = []
    for pause in growing_pauses(FIRST_PAUSE, LONGEST_PAUSE):
        try:
            return worker.store.held.find_claim(*request["claim"]), words
        except Exception as error:
            if not is_transient(error):
                raise
        if (said := channel.lines(pause.total_seconds())) is None:
            _die()
        else:
            words += (cast(Message, word) for word in said)
    raise AssertionError("pauses never end")


def _registry(
    request: AttemptRequest, channel: Channel, load: Load, prepare: Prepare
) -> JobRegistry:
    """The application's registry, whose worker reports the start of a handler. Of that worker,
    only the runner is used, with the same handler, interceptors and lifespan.
    """
    sys.path[:] = request["path"]
    registry = load(request["app"], Path.cwd())
    registry.configure(**request["settings"] | {"only": []})
    prepare(registry.settings)
    definition = replace(registry.definitions[request["claim"][0]], isolation=None)
    registry.definitions = {**registry.definitions, definition.name: definition}

    def tell(event: Event) -> None:
        if isinstance(event, HandlerStarted):
            channel.send(say="starting")

    # The parent has called the hooks before a start, and holds what they return.
    registry.hooks = replace(registry.hooks, listeners=(tell,), before_start=())
    return registry


def _listen(channel: Channel, holding: Holding, worker: Worker) -> None:
    while (said := channel.lines(None)) is not None:
        for word in said:
            _heed(cast(Message, word), holding, worker)
    _die()


def _heed(word: Message, holding: Holding, worker: Worker) -> None:
    if "renewed" in word:
        holding.renew(word["renewed"])
    if word.get("draining"):
        worker.runner.is_draining = True
    if "stop" in word:
        holding.signal.set(word["stop"])
