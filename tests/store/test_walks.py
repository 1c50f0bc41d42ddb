"""How many modules a slot and a task walk through: whoever changes the hot path has to open these
files.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest
import sqlalchemy as sa
from tests.kit.patience import PATIENCE
from tests.store.bench import NOON, Bench, a_job, a_task

from slotwise import Every
from slotwise.spi import Worker

#: Modules of slotwise entered for a slot on time, from the poll to its settlement.
FROM_POLL_TO_SETTLED = 17
#: Modules of slotwise entered for ``client.schedule``, from the call to its INSERT.
FROM_SCHEDULE_TO_INSERT = 14


#: Jobs and the days between their slots; no two share a decision that was made before.
PERIODS = {"first": 1000, "second": 1001, "walked": 1002}


class Walk:
    """The modules of slotwise in which a function is entered while ``is_open``, on any thread that
    begins meanwhile.

    Integrations do not count: a test of one that ran in this process before may have left a guard
    or a listener.
    """

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.is_open = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.is_open and event == "call":
            module = frame.f_globals.get("__name__", "")
            if module.startswith("slotwise.") and not module.startswith(
                "slotwise.contrib."
            ):
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
    """A slot on time that succeeds, by the database's clock, with the worker's caches warm and its
    threads started.
    """
    database = pg_bench.database
    bench = Bench(
        database,
        [a_job(name, Every(timedelta(days=days))) for name, days in PERIODS.items()],
    )
    worker = Worker(database.settings, bench.definitions, database=database)
    worker.sign_in.plan()
    ended, wake = threading.Event(), worker.settler.wake
    monkeypatch.setattr(worker.settler, "wake", lambda: (wake(), ended.set()))

    def run_slot() -> None:
        ended.clear()
        worker.settler._wake.clear()  # as its loop does before a round
        worker.poller.run_once()
        assert ended.wait(PATIENCE)
        worker.settler.run_once()

    for name in PERIODS:
        _make_due(bench, name)
        if name == "walked":
            with walk.begin():
                run_slot()
        else:
            run_slot()
    worker.runner.close()

    assert [len(bench.slots(name)) for name in PERIODS] == [1, 1, 1]
    assert {outcome for name in PERIODS for _, outcome in bench.outcomes(name)} == {
        "succeeded"
    }
    cure = (
        "a gate or a policy took the job off the one-statement path (see Gate.names), "
        "or a step enters more modules:"
    )
    assert len(walk.modules) <= FROM_POLL_TO_SETTLED, "\n".join(
        [cure, *sorted(walk.modules)]
    )


def _make_due(bench: Bench, name: str) -> None:
    """Move a job back by one slot: its slot is due now, and the next one is far away."""
    tasks = bench.tables.tasks
    row, period = bench.row(name), timedelta(days=PERIODS[name])
    assert row.slot is not None
    moved = {
        "slot": row.slot - period,
        "execution_time": row.slot - period,
        "next_slot": row.slot,
    }
    with bench.store.transaction() as connection:
        connection.execute(
            tasks.update().where(tasks.c.task_name == name).values(moved)
        )


def test_few_modules_lie_between_a_call_of_schedule_and_its_insert(
    pg_bench: Bench, walk: Walk
) -> None:
    """A task with data for now, in a transaction of its own, with the client's caches warm."""
    bench = Bench(pg_bench.database, [a_task("mail")])
    inserts: list[str] = []

    def stop_at_insert(
        _connection: Any, _cursor: Any, statement: str, *_rest: Any
    ) -> None:
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
    assert len(walk.modules) <= FROM_SCHEDULE_TO_INSERT, "\n".join(
        ["", *sorted(walk.modules)]
    )
