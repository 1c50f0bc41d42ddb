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


OPTION = "slotwise_disposable_database"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names a database which tests may empty."""
    described = (
        "address of a database that slotwise's fixtures may empty, with 'test' in its name, or "
        "'embedded'"
    )
    parser.getgroup("slotwise").addoption(
        f"--{OPTION.replace('_', '-')}", help=described
    )
    parser.addini(OPTION, described)


def _disposable(config: pytest.Config) -> str | None:
    return config.getoption(OPTION) or config.getini(OPTION) or None


@pytest.fixture
def slotwise_disposable_database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """The database of ``slotwise_disposable_database`` in pytest's configuration, with the tables
    and without their rows.
    """
    from slotwise.testing import disposable_database

    url = _disposable(request.config)
    if url is None:
        raise pytest.UsageError(
            f"{OPTION} is not set; write into pyproject.toml, below [tool.pytest.ini_options]: "
            f'{OPTION} = "postgresql://localhost/shop_test", or "embedded"'
        )
    with disposable_database(url) as database:
        yield database


@pytest.fixture
def slotwise_database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """The disposable database, if pytest's configuration names one; else a fresh one in memory,
    with the tables.
    """
    from slotwise.testing import ManualWorker

    if _disposable(request.config) is not None:
        yield request.getfixturevalue("slotwise_disposable_database")
        return
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
def slotwise_override(
    request: pytest.FixtureRequest,
) -> Iterator[Callable[..., JobRegistry]]:
    """Gives a registry other settings until the test ends: ``slotwise_override(registry,
    database_url=url)``. Without an address it has the disposable database, if pytest's
    configuration names one, else one of its own in memory.
    """
    from contextlib import ExitStack

    from slotwise.testing import override

    def give(registry: JobRegistry, **settings: object) -> JobRegistry:
        if "database_url" not in settings and _disposable(request.config) is not None:
            database = request.getfixturevalue("slotwise_disposable_database")
            settings["database_url"] = database.settings.database_url
        return stack.enter_context(override(registry, **settings))

    with ExitStack() as stack:
        yield give


@pytest.fixture
def slotwise_scheduled() -> Iterator[Callable[[JobRegistry], ScheduledTasks]]:
    """Captures what a registry's client schedules until the test ends: ``tasks =
    slotwise_scheduled(registry)``.
    """
    from contextlib import ExitStack

    from slotwise.testing import scheduled

    with ExitStack() as stack:
        yield lambda registry: stack.enter_context(scheduled(registry))
