"""Orders, as handlers and workers see them."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from slotwise import Every, JobContext, JobRegistry, Retry, job
from slotwise.model.events import HandedBackEvent, Settled
from slotwise.store.reading.reader import Reader
from slotwise.testing import ManualWorker

PATIENCE = 30.0


@job(
    name="hourly",
    schedule=Every("1h"),
    retry=Retry.exponential(max_attempts=3, initial="1m"),
)
def hourly(ctx: JobContext) -> None:
    """Never comes to a good end."""
    raise RuntimeError("boom")


def test_a_heartbeat_brings_the_order() -> None:
    """The handler sees the reason; the slot ends as cancelled, and the schedule goes on."""
    with ManualWorker([hourly]) as worker:
        worker.tick("1h")
        (claim,) = worker.poll()
        assert worker.begin(claim)
        assert worker.client.operations.cancel("hourly") == [claim.slot]
        signal = worker._holding(claim).signal
        assert not signal.is_set
        worker.beat()
        assert signal.reason == "operator"
        assert not worker.is_lost(claim)


def test_a_retry_that_is_cancelled_does_not_start() -> None:
    """Whoever claims it ends it, and its attempts stay as many as they were."""
    with ManualWorker([hourly]) as worker:
        worker.tick("1h")
        (ended,) = worker.run_due()
        assert isinstance(ended, Settled)
        assert ended.reason == "retry"
        worker.client.operations.cancel("hourly", ended.slot)
        (ended,) = worker.run_due()
        assert not isinstance(ended, HandedBackEvent)
        assert (ended.outcome, ended.reason) == ("cancelled", "operator")  # type: ignore[union-attr]
        (line, *_) = Reader(worker.store).slots("hourly")
        assert (line.outcome, line.attempts) == ("cancelled", 1)


@pytest.mark.parametrize("fixture", ["pg_url", "sqlite_url"])
def test_a_running_handler_is_cancelled(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    """On a real worker, within a heartbeat."""
    begun, reasons, settled = threading.Event(), list[str | None](), threading.Event()

    @job(name="endless", schedule=Every("1h"))
    def endless(ctx: JobContext) -> None:
        begun.set()
        ctx.wait(timedelta(seconds=PATIENCE))
        reasons.append(ctx.cancel_reason)
        ctx.check()

    def listen(event: Any) -> None:
        if isinstance(event, Settled):
            settled.set()

    registry = JobRegistry(
        jobs=[endless],
        listeners=[listen],
        database_url=request.getfixturevalue(fixture),
        heartbeat_interval="300ms",
        poll_interval="300ms",
        process_hook=False,
    )
    with registry:
        operations = registry.client.operations
        slot = operations.trigger("endless")
        assert begun.wait(PATIENCE)
        assert operations.cancel(endless) == [slot]
        assert settled.wait(PATIENCE)
        line = (
            Reader(registry.worker.store).slot("endless", slot) if registry.worker else None
        )
    assert reasons == ["operator"]
    assert line is not None
    assert (line.outcome, line.reason, line.origin) == ("cancelled", "operator", "trigger")


def test_a_backfill_knows_its_intervals() -> None:
    """Its slots are the schedule's: each with the interval that it ends, and with its key."""
    seen = []

    @job(name="daily", schedule=Every("1d"))
    def daily(ctx: JobContext) -> None:
        seen.append((ctx.slot, ctx.interval_start, ctx.idempotency_key, ctx.is_catch_up))

    with ManualWorker([daily]) as worker:
        day = worker.clock.now()
        worker.client.operations.backfill(
            "daily", day - timedelta(days=2), day - timedelta(days=1)
        )
        worker.run_due()
    days = [day - timedelta(days=back) for back in (2, 1)]
    assert seen == [
        (slot, slot - timedelta(days=1), f"daily/recurring/{slot.isoformat()}", False)
        for slot in days
    ]
