"""Recurring instances as their handlers see them, on a worker of the test kit and on a real
one.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.kit.records import Failed

from slotwise import (
    Disabled,
    JobContext,
    JobRegistry,
    OneTimeTask,
    Retry,
    UnknownTask,
    job,
)
from slotwise.spi import Settled
from slotwise.testing import ManualClock, ManualWorker

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Note(OneTimeTask[dict[str, int]]):
    """A task with typed data, which recurs."""

    name = "note"
    retry = Retry(max_attempts=1)

    def execute(self, ctx: Any) -> None:
        seen.append((ctx.id, ctx.slot, ctx.data))


seen: list[tuple[Any, ...]] = []


@job(name="feed", schedule=Disabled())
def feed(ctx: JobContext) -> None:
    """Writes down what it is told."""
    seen.append(
        (
            ctx.id,
            ctx.slot,
            ctx.interval_start,
            ctx.data,
            ctx.idempotency_key,
            ctx.missed_count,
        )
    )


@pytest.mark.parametrize("url", ["pg_url", "sqlite_url"])
def test_a_handler_knows_its_instance(
    request: pytest.FixtureRequest, url: str
) -> None:
    """Id, slot, interval and data are the instance's; the key is no other's; a catch-up counts its
    own slots.
    """
    seen.clear()
    with ManualWorker(
        [feed, Note()], request.getfixturevalue(url), ManualClock(NOON)
    ) as worker:
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

    registry = JobRegistry(
        jobs=[live], database_url=pg_url, process_hook=False, poll_interval="1h"
    )
    with registry:
        registry.client.schedule_recurring(live, "x", "EVERY|1s", "now")
        assert ran.wait(60)
        assert registry.client.unschedule_recurring(live, "x")


@pytest.mark.parametrize("url", ["pg_url", "sqlite_url"])
def test_orders_are_about_one_instance(
    request: pytest.FixtureRequest, url: str
) -> None:
    """Trigger, skip, retry and backfill mean that one and no other; its handler sees its data and
    its key.
    """
    seen.clear()
    with ManualWorker(
        [feed], request.getfixturevalue(url), ManualClock(NOON)
    ) as worker:
        for number, id in enumerate(("a", "b"), start=1):
            worker.client.schedule_recurring(feed, id, "EVERY|1h", {"n": number})
        operations = worker.client.operations
        slot = operations.trigger("feed", id="a")
        assert operations.skip_next("feed", id="b") == NOON + HOUR
        worker.run_due()
        assert seen == [("a", slot, NOON, {"n": 1}, f"feed/a/{slot.isoformat()}", 0)]
        worker.tick("1h")
        assert [(event.id, event.outcome) for event in settled(worker)] == [
            ("a", "succeeded")
        ]
        found = operations.backfill("feed", NOON - HOUR, NOON + HOUR, id="b")
        assert found.slots == (NOON - HOUR, NOON, NOON + HOUR)
        while settled(worker):
            pass
        assert [(one[0], one[1], one[3]) for one in seen[2:]] == [
            ("b", at, {"n": 2}) for at in found.slots
        ]
        worker.tick("1h")
        failing = next(
            claim for claim in worker.poll() if claim.row.task_instance == "a"
        )
        worker.finish(failing, Failed("boom"))
        worker.settle()
        operations.retry("feed", NOON + 2 * HOUR, id="a")
        assert [event.outcome for event in settled(worker)] == [
            "succeeded",
            "succeeded",
        ]
        assert ("a", NOON + 2 * HOUR) in [one[:2] for one in seen]
        with pytest.raises(UnknownTask, match="no recurring instance 'c'"):
            operations.trigger("feed", id="c")


def settled(worker: ManualWorker) -> list[Settled]:
    return [event for event in worker.run_due() if isinstance(event, Settled)]
