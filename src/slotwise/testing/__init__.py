"""For tests of your own jobs: time that moves when told, and a worker that does one thing at a time.

>>> from datetime import UTC, datetime
>>> from slotwise import Every, job
>>> @job(name="tick", schedule=Every("1h"))
... def tick(ctx):
...     print("ran for", ctx.slot.isoformat())
>>> with ManualWorker([tick], clock=ManualClock(datetime(2026, 1, 1, tzinfo=UTC))) as worker:
...     now = worker.tick("1h")
...     events = worker.run_due()
ran for 2026-01-01T01:00:00+00:00
>>> events[0].outcome
'succeeded'

The pytest plugin that comes with the package offers the same as fixtures: ``slotwise_worker`` (makes workers),
``slotwise_clock`` (their clock) and ``slotwise_database`` (their database, in memory).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise.model.clock import ManualClock

if TYPE_CHECKING:
    from slotwise.testing.worker import ManualWorker

__all__ = ["ManualClock", "ManualWorker"]


def __getattr__(name: str) -> type[ManualWorker]:
    """Import the engine when a test needs it: every run of pytest imports this package with its plugin."""
    if name != "ManualWorker":
        raise AttributeError(f"module 'slotwise.testing' has no attribute {name!r}")
    from slotwise.testing.worker import ManualWorker

    return ManualWorker
