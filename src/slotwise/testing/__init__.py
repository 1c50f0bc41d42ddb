"""For tests of your own jobs: time that moves when told, and a worker that does one thing at a
time.

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

``override`` gives a registry that is a global another database, ``scheduled`` captures what is
scheduled, and ``SlotwiseTestMixin`` does both for unittest. The pytest plugin that comes with the
package offers all as fixtures: ``slotwise_worker`` (makes workers), ``slotwise_clock`` (their
clock), ``slotwise_database`` (their database, in memory or a disposable one),
``slotwise_disposable_database``, ``slotwise_override`` and ``slotwise_scheduled``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotwise.testing.capture import (
        ScheduledTask,
        ScheduledTasks,
        SlotwiseTestMixin,
        override,
        scheduled,
    )
    from slotwise.testing.clock import ManualClock
    from slotwise.testing.disposable import disposable_database
    from slotwise.testing.manual_worker import ManualWorker

_HOMES = {
    "ManualClock": "clock",
    "ManualWorker": "manual_worker",
    "disposable_database": "disposable",
}
__all__ = [
    "ManualClock",
    "ManualWorker",
    "ScheduledTask",
    "ScheduledTasks",
    "SlotwiseTestMixin",
    "disposable_database",
    "override",
    "scheduled",
]


def __getattr__(name: str) -> object:
    """Import the engine when a test needs it: every run of pytest imports this package with its
    plugin.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_HOMES.get(name, 'capture')}")
    found: object = getattr(home, name)
    return found


def __dir__() -> list[str]:
    return __all__
