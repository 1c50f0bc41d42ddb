"""The application of these tests: ``slotwise worker --app tests.faults.cast``.

CAST names the jobs and tasks, CAST_LOG the handlers' own log, CAST_URL the application's own way
to the database, CAST_TRAP a trap. Settings of the worker are said as always, with ``SLOTWISE_…``.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any, Self

from tests.faults import clocks
from tests.faults.cast import (
    cuts,
    deploys,
    holds,
    poison,
    policies,
    rolling,
    tasks,
    ticks,
)
from tests.faults.cast.trap import Trap
from tests.kit.events import Listener

from slotwise import DistributedJob, JobRegistry, OneTimeTask

KNOWN: dict[str, type[Any]] = {
    kind.name: kind
    for module in (ticks, holds, tasks, poison, policies, rolling, cuts)
    for kind in vars(module).values()
    if isinstance(kind, type)
    and issubclass(kind, DistributedJob | OneTimeTask)
    and hasattr(kind, "name")
}


class CastRegistry(JobRegistry):
    """Puts traps behind those who tell: an event is told, and then the trap springs."""

    def listen(self, listener: Listener) -> Self:
        known = self.hooks.listeners
        self.hooks = replace(self.hooks, listeners=(listener, *known))
        return self


def registry_of(names: str, **settings: Any) -> JobRegistry:
    """A registry of the jobs and tasks with these names, separated by commas."""
    found = [deploys.edited(KNOWN, name) for name in names.split(",")]
    return CastRegistry(
        jobs=[kind for kind in found if isinstance(kind, DistributedJob)],
        tasks=[kind for kind in found if isinstance(kind, OneTimeTask)],
        listeners=[
            Trap(text) for text in os.environ.get("CAST_TRAP", "").split() if text
        ],
        **settings,
    )


if clocks.is_faked():
    time.sleep = clocks.sleep

if "CAST" in os.environ:
    registry = registry_of(os.environ["CAST"])
