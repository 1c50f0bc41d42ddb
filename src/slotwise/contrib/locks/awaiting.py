"""Blocking calls, awaited: each on a thread of its own, so that no full executor delays a renewal or a release."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

Result = TypeVar("Result")


async def in_thread(call: Callable[[], Result], undo: Callable[[Result], object] | None = None) -> Result:
    """Run the call to its end. If the caller is cancelled meanwhile, pass the result to ``undo``, on a thread as well.

    Raise what the call raises.
    """
    run = _Call(call, undo, asyncio.get_running_loop())
    threading.Thread(target=run.run, name="slotwise-lock-call", daemon=True).start()
    try:
        await run.returned.wait()
    except asyncio.CancelledError:
        run.abandon()
        raise
    return run.result()


class _Call(Generic[Result]):
    def __init__(
        self, call: Callable[[], Result], undo: Callable[[Result], object] | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._call = call
        self._undo = undo
        self._loop = loop
        self._mutex = threading.Lock()
        self._is_abandoned = False
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self.returned = asyncio.Event()

    def run(self) -> None:
        try:
            result = self._call()
        except BaseException as error:
            self._error = error
        else:
            # Race: the caller is cancelled while the call returns. Either it finds the result and undoes it, or it
            # has left before, and the result is undone here.
            with self._mutex:
                self._results.append(result)
                is_abandoned = self._is_abandoned
            if is_abandoned:
                self._undo_it()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.returned.set)

    def abandon(self) -> None:
        with self._mutex:
            self._is_abandoned = True
            has_returned = bool(self._results)
        if has_returned:
            threading.Thread(target=self._undo_it, name="slotwise-lock-undo", daemon=True).start()

    def _undo_it(self) -> None:
        if self._undo is not None:
            self._undo(self._results[0])

    def result(self) -> Result:
        if self._error is not None:
            raise self._error
        return self._results[0]
