"""Operations, as handlers and workers see them."""

from __future__ import annotations

import asyncio
import threading
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.kit.patience import PATIENCE

from slotwise import (
    Calendar,
    ConfigurationError,
    DatabaseProblem,
    Every,
    JobContext,
    JobRegistry,
    Retry,
    SchemaMissing,
    job,
)
from slotwise.operations import (
    AsyncOperations,
    Operations,
    Schema,
    SchemaUpgrade,
    SchemaVersion,
)
from slotwise.spi import HandedBackEvent, Settled
from slotwise.testing import ManualWorker


@job(
    name="hourly",
    schedule=Every("1h"),
    retry=Retry.exponential(max_attempts=3, initial="1m"),
)
def hourly(ctx: JobContext) -> None:
    """Never comes to a good end."""
    raise RuntimeError("boom")


def test_a_heartbeat_brings_the_operation() -> None:
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
        (line, *_) = worker.client.inspect.slots("hourly")
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
        line = registry.inspect.slot("endless", slot) if registry.worker else None
    assert reasons == ["operator"]
    assert line is not None
    assert (line.outcome, line.reason, line.origin) == (
        "cancelled",
        "operator",
        "trigger",
    )


def test_a_backfill_knows_its_intervals() -> None:
    """Its slots are the schedule's: each with the interval that it ends, and with its key."""
    seen = []

    @job(name="daily", schedule=Every("1d"))
    def daily(ctx: JobContext) -> None:
        seen.append(
            (ctx.slot, ctx.interval_start, ctx.idempotency_key, ctx.is_catch_up)
        )

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


@pytest.fixture
def planned(tmp_path: Path) -> JobRegistry:
    """A registry whose job has a row in a new database of SQLite."""
    address = f"sqlite:///{tmp_path / 'jobs.db'}"
    registry = JobRegistry(jobs=[quiet], database_url=address)
    assert [one.change for one in registry.preview(installed=False)] == ["added"]
    with pytest.raises(DatabaseProblem):
        registry.preview()
    done = Schema(registry.settings).upgrade()
    assert done == SchemaUpgrade(
        applied=["sw0001", "sw0002", "sw0003", "sw0004", "sw0005", "sw0006", "sw0007"],
        warnings=[],
    )
    assert [one.change for one in registry.preview()] == ["added"]
    with registry:
        pass
    assert [one.change for one in registry.preview()] == ["kept"]
    return registry


@job(name="quiet", schedule=Every("1h"))
def quiet(ctx: JobContext) -> None:
    """Does nothing."""


def test_operations_need_no_application(planned: JobRegistry) -> None:
    """Settings are enough; what was done is in the audit, with its author."""
    with Operations.open(planned.settings, author="ops@host") as operations:
        assert operations.pause("quiet", dry_run=True, note="why")
        assert planned.inspect.audit() == []
        assert operations.pause("quiet", note="why")
        assert [one.job for one in operations.resume("quiet")] == ["quiet"]
    audit = planned.inspect.audit()
    assert [(one.operation, one.author, one.note) for one in audit] == [
        ("resume", "ops@host", None),
        ("pause", "ops@host", "why"),
    ]


def test_operations_are_awaited(planned: JobRegistry) -> None:
    """Each has the same arguments and result; the author is kept."""
    calls = {name for name in dir(Operations) if not name.startswith("_")}
    assert calls - {"open", "aio", "calendars"} <= set(dir(AsyncOperations))

    async def operate() -> list[bool]:
        operations = planned.operations.by("page").aio
        return [
            await operations.pause("quiet"),
            await operations.by("me").pause("quiet"),
        ]

    assert asyncio.run(operate()) == [True, False]
    assert [one.author for one in planned.inspect.audit()] == ["page"]


def test_calendars_are_changed_by_operations(planned: JobRegistry) -> None:
    """A change says what it would do, and what it did; the audit has the author."""

    def closed(before: Calendar | None) -> Calendar:
        return Calendar(name="co", days=[date(2026, 12, 24)])

    calendars = planned.operations.by("ops").calendars
    preview = calendars.change("co", closed, "close", dry_run=True)
    assert preview.before is None
    assert calendars.all() == []
    assert calendars.change("co", closed, "close").after.revision == 1
    assert [one.name for one in calendars.all()] == ["co"]
    assert calendars.remove("co", "open again").name == "co"
    assert [one.author for one in planned.inspect.audit()] == ["ops", "ops"]


def test_the_schema_is_handled_by_its_settings(planned: JobRegistry) -> None:
    """Checked, printed and taken down; SQLite has no roles."""
    schema = Schema(planned.settings)
    assert schema.version() == SchemaVersion(version=1, needed=1, revision="sw0007")
    assert schema.check() == []
    assert "CREATE TABLE scheduled_tasks" in schema.sql()
    for give in (schema.grants, schema.grant):
        with pytest.raises(ConfigurationError, match="has no roles"):
            give("worker", "jobs_worker")
    server = Schema(planned.settings.replace(database_url="postgresql://db/jobs"))
    assert "GRANT" in server.grants("worker", "jobs_worker")
    assert schema.keeps_data("sw0007")
    assert not schema.keeps_data("sw0004")
    assert schema.downgrade("sw0001") == [
        "sw0007",
        "sw0006",
        "sw0005",
        "sw0004",
        "sw0003",
        "sw0002",
    ]
    with pytest.raises(ConfigurationError, match="is above the applied revision"):
        schema.downgrade("sw0002")
    assert schema.downgrade() == ["sw0001"]
    with pytest.raises(SchemaMissing):
        schema.check()
