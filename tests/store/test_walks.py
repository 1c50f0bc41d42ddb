"""How many modules a slot and a task walk through: whoever changes the hot path has to open these files."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import sqlalchemy as sa
from tests.store.bench import NOON, Bench, a_job, a_task

from slotwise.engine.worker import Worker
from slotwise.model.events import Listeners

PATIENCE = 30.0

#: Modules of slotwise entered for a slot on time, from the poll to its settlement. The goal is 12.
FROM_POLL_TO_SETTLED = 33
#: Modules of slotwise entered for ``client.schedule``, from the call to its INSERT. The goal is 8.
FROM_SCHEDULE_TO_INSERT = 8


class Walk:
    """The modules of slotwise in which a function is entered while ``is_open``, on any thread that begins meanwhile."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.is_open = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.is_open and event == "call":
            module = frame.f_globals.get("__name__", "")
            if module.partition(".")[0] == "slotwise":
                self.modules.add(module)

    @contextmanager
    def begin(self) -> Iterator[None]:
        self.is_open = True
        try:
            yield
        finally:
            self.is_open = False


@pytest.fixture
def walk() -> Iterator[Walk]:
    """A walk that sees this thread, and each thread that the test starts."""
    walk, before = Walk(), (sys.getprofile(), threading.getprofile())
    sys.setprofile(walk)
    threading.setprofile(walk)
    try:
        yield walk
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])


def test_few_modules_lie_between_the_poll_of_a_slot_and_its_settlement(
    pg_bench: Bench, walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot on time that succeeds, with the worker's caches warm and its threads started."""
    bench = Bench(pg_bench.database, [a_job("walked")]).planned()
    worker = Worker(
        bench.database.settings, bench.definitions, database=bench.database, listeners=Listeners(), clock=bench.clock
    )
    ended, wake = threading.Event(), worker.settler.wake
    monkeypatch.setattr(worker.settler, "wake", lambda: (wake(), ended.set()))

    def run_slot() -> None:
        ended.clear()
        worker.poller.run_once()
        assert ended.wait(PATIENCE)
        worker.settler.run_once()

    for _ in range(2):
        bench.tick()
        run_slot()
    bench.tick()
    with walk.begin():
        run_slot()
    worker.runner.close()

    assert bench.outcomes("walked") == [(minutes, "succeeded") for minutes in (1, 2, 3)]
    assert len(walk.modules) <= FROM_POLL_TO_SETTLED, "\n".join(["", *sorted(walk.modules)])


def test_few_modules_lie_between_a_call_of_schedule_and_its_insert(pg_bench: Bench, walk: Walk) -> None:
    """A task with data for now, in a transaction of its own, with the client's caches warm."""
    bench = Bench(pg_bench.database, [a_task("mail")])
    inserts: list[str] = []

    def stop_at_insert(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if "INSERT INTO" in statement:
            inserts.append(statement)
            walk.is_open = False

    for engine in {bench.database.main, bench.database.claims}:
        sa.event.listen(engine, "before_cursor_execute", stop_at_insert)
    for number in range(2):
        bench.client.schedule("mail", {"to": number}, at=NOON)
    with walk.begin():
        bench.client.schedule("mail", {"to": "you"}, at=NOON)

    assert len(inserts) == 3
    assert len(walk.modules) <= FROM_SCHEDULE_TO_INSERT, "\n".join(["", *sorted(walk.modules)])
