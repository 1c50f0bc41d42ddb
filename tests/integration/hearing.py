"""A listener that tests wait with: for events, never for time."""

from __future__ import annotations

import threading
import time
from typing import Any

from tests.kit.patience import PATIENCE

from slotwise.spi import Event, define


class Heard:
    """Everything that a worker said."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._said = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._said:
            self._events.append(event)
            self._said.notify_all()

    def of(self, name: str, **fields: Any) -> list[Any]:
        """Those of this name whose fields are these."""
        with self._said:
            return self._of(name, fields)

    def _of(self, name: str, fields: dict[str, Any]) -> list[Any]:
        return [
            event
            for event in self._events
            if event.name == name
            and all(getattr(event, field) == value for field, value in fields.items())
        ]

    def wait(self, name: str, count: int = 1, **fields: Any) -> list[Any]:
        """Until there are so many."""
        with self._said:
            there = self._said.wait_for(
                lambda: len(self._of(name, fields)) >= count, PATIENCE
            )
            assert there, (
                f"no {count} × {name} {fields} within {PATIENCE} s; said was: {self.names()}"
            )
            return self._of(name, fields)

    def names(self) -> list[str]:
        with self._said:
            return [event.name for event in self._events]


#: Threads that tests before have left: the loop of a worker that nobody has closed, a timer with
#: the last wake-up.
OTHERS: set[threading.Thread] = set()


def threads_of_ours() -> list[str]:
    """Names of the threads of slotwise that this test has started."""
    return sorted(thread.name for thread in _of_ours())


def _of_ours() -> list[threading.Thread]:
    return [
        one
        for one in threading.enumerate()
        if one.name.startswith("slotwise") and one not in OTHERS
    ]


def gone() -> bool:
    """Whether all of them end, as they do a moment after whoever waited for their work."""
    deadline = time.monotonic() + PATIENCE
    for thread in _of_ours():
        thread.join(max(deadline - time.monotonic(), 0))
    return threads_of_ours() == []


def sorted_out(*subjects: object) -> dict[str, Any]:
    """Jobs and tasks, each under the keyword that a registry wants for them."""
    found: dict[str, Any] = {"jobs": [], "tasks": []}
    for subject in subjects:
        found["jobs" if define(subject).is_job else "tasks"].append(subject)
    return found
