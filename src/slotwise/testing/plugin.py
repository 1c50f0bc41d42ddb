"""The pytest plugin: fixtures for tests of your own jobs. Loads the engine only where a test asks
for it.

def test_report(slotwise_worker):
    worker = slotwise_worker([NightlyReport()])
    worker.tick("1d")
    assert [event.outcome for event in worker.run_due()] == ["succeeded"]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from slotwise import JobRegistry
    from slotwise.spi import Database
    from slotwise.testing import ManualClock, ManualWorker, ScheduledTasks


@pytest.fixture
def slotwise_clock() -> ManualClock:
    """The clock of this test's workers and of their database; it stands at 2026-01-01T00:00Z."""
    from datetime import UTC, datetime

    from slotwise.testing import ManualClock

    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def slotwise_database() -> Iterator[Database]:
    """A fresh database in memory, with the tables; override it to test on a real one."""
    from slotwise.testing import ManualWorker

    database = ManualWorker.database_in_memory()
    yield database
    database.close()


@pytest.fixture
def slotwise_worker(
    slotwise_clock: ManualClock, slotwise_database: Database
) -> Iterator[Callable[..., ManualWorker]]:
    """Makes ManualWorkers that share clock and database: ``slotwise_worker(jobs, **settings)``,
    planned already.
    """
    from slotwise.testing import ManualWorker

    workers: list[ManualWorker] = []

    def make(jobs: JobRegistry | Iterable[object], **settings: Any) -> ManualWorker:
        worker = ManualWorker(jobs, slotwise_database, slotwise_clock, **settings)
        workers.append(worker)
        worker.plan()
        return worker

    yield make
    for worker in workers:
        worker.close()


@pytest.fixture
def slotwise_override() -> Iterator[Callable[..., JobRegistry]]:
    """Gives a registry other settings until the test ends: ``slotwise_override(registry,
    database_url=url)``.
    """
    from contextlib import ExitStack

    from slotwise.testing import override

    with ExitStack() as stack:
        yield lambda registry, **settings: stack.enter_context(
            override(registry, **settings)
        )


@pytest.fixture
def slotwise_scheduled() -> Iterator[Callable[[JobRegistry], ScheduledTasks]]:
    """Captures what a registry's client schedules until the test ends: ``tasks =
    slotwise_scheduled(registry)``.
    """
    from contextlib import ExitStack

    from slotwise.testing import scheduled

    with ExitStack() as stack:
        yield lambda registry: stack.enter_context(scheduled(registry))
