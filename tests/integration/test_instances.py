"""Recurring instances as their handlers see them, on a worker of the test kit and on a real one."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slotwise import Disabled, JobContext, JobRegistry, OneTimeTask, Retry, job
from slotwise.testing import ManualClock, ManualWorker

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Note(OneTimeTask[dict[str, int]]):
    """A task with typed data, which recurs."""

    name = "note"
    retry = Retry(attempts=1)

    def execute(self, ctx: Any) -> None:
        seen.append((ctx.instance, ctx.slot, ctx.data))


seen: list[tuple[Any, ...]] = []


@job(name="feed", schedule=Disabled())
def feed(ctx: JobContext) -> None:
    """Writes down what it is told."""
    seen.append((ctx.instance, ctx.slot, ctx.interval_start, ctx.data, ctx.idempotency_key, ctx.collapsed))


@pytest.mark.parametrize("url", ["pg_url", "sqlite_url"])
def test_a_handler_knows_its_instance(request: pytest.FixtureRequest, url: str) -> None:
    """Id, slot, interval and data are the instance's; the key is no other's; a catch-up counts its own slots."""
    seen.clear()
    with ManualWorker([feed, Note()], request.getfixturevalue(url), ManualClock(NOON)) as worker:
        worker.client.schedule_recurring(feed, "a", "EVERY|1h", {"n": 1})
        worker.client.schedule_recurring(feed, "b", "EVERY|3h", {"n": 2})
        worker.client.schedule_recurring(Note, "c", "EVERY|3h", {"n": 3})
        worker.tick("3h")
        worker.run_due()
    slot = NOON + 3 * HOUR
    assert sorted(seen, key=lambda one: str(one[0])) == [
        ("a", slot, slot - HOUR, {"n": 1}, f"feed/a/{slot.isoformat()}", 2),
        ("b", slot, slot - 3 * HOUR, {"n": 2}, f"feed/b/{slot.isoformat()}", 0),
        ("c", slot, {"n": 3}),
    ]


def test_a_worker_that_runs_takes_what_is_new(pg_url: str) -> None:
    """Made while it works: it is woken, and runs the first slot when that comes."""
    ran = threading.Event()

    @job(name="live", schedule=Disabled())
    def live(ctx: JobContext) -> None:
        if ctx.data == "now":
            ran.set()

    registry = JobRegistry(jobs=[live], database_url=pg_url, process_hook=False, poll_interval="1h")
    with registry:
        registry.client.schedule_recurring(live, "x", "EVERY|1s", "now")
        assert ran.wait(20)
        assert registry.client.unschedule_recurring(live, "x")
