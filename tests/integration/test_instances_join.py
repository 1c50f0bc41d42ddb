"""Recurring instances in the caller's transaction over psycopg, plain and awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest
from psycopg.rows import dict_row

from slotwise import JobContext, JobRegistry, RecurringItem, task

ITEMS = [RecurringItem(f"c-{number:04}", "EVERY|1h") for number in range(1_200)]


@task(name="report")
def report(ctx: JobContext) -> None:
    """No test runs it."""


class Undone(Exception):
    """The caller's own error."""


@pytest.fixture
def registry(pg_url: str) -> Iterator[JobRegistry]:
    made = JobRegistry(tasks=[report], database_url=pg_url)
    yield made
    made.database.close()


def ids(registry: JobRegistry) -> list[str]:
    return sorted(one.id for one in registry.inspect.instances("report", limit=2_000))


@pytest.mark.parametrize("commits", [True, False])
def test_instances_commit_with_the_caller(
    registry: JobRegistry, pg_url: str, commits: bool
) -> None:
    """What the caller wrote, read and decided stays theirs, with their rows as dictionaries."""
    client = registry.client
    with suppress(Undone), psycopg.connect(pg_url, row_factory=dict_row) as caller:
        caller.execute("CREATE TABLE customers AS SELECT 7 AS number")
        slot = client.schedule_recurring(report, "own", "EVERY|1h", connection=caller)
        assert slot is not None
        found = client.sync_schedules(report, ITEMS, scope="crm", connection=caller)
        assert len(found.added) == 1_200
        assert client.unschedule_recurring(report, "own", connection=caller)
        row = caller.execute("SELECT number FROM customers").fetchone()
        assert row == {"number": 7}
        assert caller.info.transaction_status.name == "INTRANS"
        if not commits:
            raise Undone
    assert len(ids(registry)) == (1_200 if commits else 0)


def test_errors_stay_those_of_psycopg(registry: JobRegistry, pg_url: str) -> None:
    """The caller retries what psycopg calls a lock timeout."""
    client = registry.client
    client.schedule_recurring(report, "own", "EVERY|1h")
    with psycopg.connect(pg_url) as other, psycopg.connect(pg_url) as caller:
        other.execute("SELECT FROM scheduled_tasks FOR UPDATE")
        caller.execute("SET LOCAL lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            client.schedule_recurring(report, "own", "EVERY|2h", connection=caller)
        assert caller.info.transaction_status.name == "INERROR"


def test_awaited(registry: JobRegistry, pg_url: str) -> None:
    """Over an AsyncConnection, rolled back and committed; and in transactions of its own."""
    aio = registry.client.aio

    async def act() -> None:
        async with await psycopg.AsyncConnection.connect(pg_url) as caller:
            await aio.schedule_recurring(report, "own", "EVERY|1h", connection=caller)
            await caller.rollback()
            found = await aio.sync_schedules(
                report, ITEMS[:3], scope="crm", connection=caller
            )
            assert len(found.added) == 3
        found = await aio.sync_schedules(report, ITEMS[:4], scope="crm")
        assert (found.added, found.unchanged) == (("c-0003",), 3)

    asyncio.run(act())
    assert ids(registry) == [f"c-{number:04}" for number in range(4)]
