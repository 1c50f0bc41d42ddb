"""What the tests of the engine's parts are built from: claims without a database, a runner without
a settler.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from typing import Any

from tests.kit.events import Listeners
from tests.kit.loops import ActiveClaims, EventLoop, Holding, Runner
from tests.kit.patience import PATIENCE
from tests.kit.records import AttemptOutcome, Stopwatch

from slotwise import JobContext
from slotwise.engine.run.hooks import BeforeStart, Hooks, Interceptor
from slotwise.inspect import RECURRING
from slotwise.spi import Claim, Definition, Event, Kind, Row, define, elapsed

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)

_versions = itertools.count(1)


def a_claim(
    name: str = "job",
    *,
    lease: timedelta = MINUTE,
    instance: str = RECURRING,
    **columns: Any,
) -> Claim:
    """Each is of another token; without a schedule it is a task's."""
    kind = Kind.PLAN if columns.get("schedule", "EVERY|1m") else Kind.TASK
    columns = {
        "kind": kind,
        "slot": NOON,
        "schedule": "EVERY|1m",
        "attempt": 1,
        "created_version": 1,
    } | columns
    row = Row(
        task_name=name,
        task_instance=instance,
        execution_time=NOON,
        version=next(_versions),
        picked=True,
        **columns,
    )
    return Claim(row=row, holder="host:1:a", lease=lease, claimed_at=NOON)


class NoFence:
    """Lets everything through."""

    def guard(self, claim: Claim, connection: Any) -> None:
        pass

    def complete_in(self, claim: Claim, connection: Any) -> None:
        pass

    def save(self, claim: Claim, value: object, connection: Any = None) -> None:
        pass

    def saved(self, claim: Claim) -> object:
        return None

    def is_open(self, connection: Any) -> bool:
        return False


class Rig:
    """A runner, and what its attempts came to. ``marks``: whether the mark of a job that gives up
    can be set.
    """

    def __init__(
        self,
        *subjects: object,
        capacity: int = 4,
        margin: timedelta = timedelta(seconds=10),
        mark: Callable[[Claim], bool] = lambda _: True,
        loop: EventLoop | None = None,
        interceptors: tuple[Interceptor, ...] = (),
        before_start: tuple[BeforeStart, ...] = (),
        stopwatch: Stopwatch = elapsed,
    ) -> None:
        found = [define(subject) for subject in subjects]
        self.definitions: dict[str, Definition] = {
            definition.name: definition for definition in found
        }
        self._elapsed = stopwatch
        self.active_claims = ActiveClaims(stopwatch)
        self.events: list[Event] = []
        self.loop = loop or EventLoop()
        self._ends: SimpleQueue[tuple[Holding, AttemptOutcome]] = SimpleQueue()
        self.runner = Runner(
            capacity=capacity,
            definitions=self.definitions,
            active_claims=self.active_claims,
            listeners=Listeners((self.events.append,)),
            mark_running=mark,
            make_context=lambda holding: JobContext(holding, fence=NoFence()),
            margin=margin,
            loop=self.loop,
            hooks=Hooks(interceptors=interceptors, before_start=before_start),
        )
        self.runner.on_end = lambda holding, outcome: self._ends.put(
            (holding, outcome)
        )

    def __enter__(self) -> Rig:
        if self.loop._loop is None:
            self.loop.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.runner.close()
        self.loop.stop()

    def hold(
        self, name: str = "job", *, renewed: float | None = None, **claim: Any
    ) -> Holding:
        return self.active_claims.add(
            [a_claim(name, **claim)], self._elapsed() if renewed is None else renewed
        )[0]

    def start(self, name: str = "job", **claim: Any) -> Holding:
        holding = self.hold(name, **claim)
        self.runner.start([holding])
        return holding

    def end(self) -> AttemptOutcome:
        """The next outcome, of whichever attempt."""
        return self._ends.get(timeout=PATIENCE)[1]

    def run(self, name: str = "job", **claim: Any) -> AttemptOutcome:
        self.start(name, **claim)
        return self.end()

    def names(self) -> list[str]:
        return [event.name for event in self.events]


class Gate:
    """A handler comes in, and waits until it is let through."""

    def __init__(self) -> None:
        self._entered, self._open = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self._entered.set()
        assert self._open.wait(PATIENCE)

    def wait_entered(self) -> None:
        assert self._entered.wait(PATIENCE)

    def open(self) -> None:
        self._open.set()
