"""Blocking work beside an event loop, done to its end even if the task is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from slotwise.engine.run.threads import Threads


async def run_beside(
    work: Callable[[], object],
    on_cancel: Callable[[], None] = lambda: None,
    undo: Callable[[], object] | None = None,
) -> None:
    """Run ``work`` on a thread of its own while the loop goes on.

    Race: this task may be cancelled meanwhile, and the worker would have no owner. So it is
    stopped, and undone.
    """
    cancelled: asyncio.CancelledError | None = None
    threads = Threads(1, "slotwise-life")
    running = asyncio.wrap_future(threads.call(work))
    threads.close()
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
            on_cancel()
    if cancelled is not None:
        if running.exception() is None and undo is not None:
            await run_beside(undo, on_cancel)
        raise cancelled
    running.result()
