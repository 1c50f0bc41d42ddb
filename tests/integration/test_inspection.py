"""``registry.inspect``: what the tables say, as typed values, from a process that runs no
worker.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slotwise import (
    Calendar,
    Client,
    Cron,
    DatabaseUnreachable,
    Every,
    JobContext,
    JobRegistry,
    SchemaMissing,
    Settings,
    TaskContext,
    UnknownTask,
    job,
    task,
)
from slotwise.inspect import (
    RECURRING,
    AsyncInspection,
    AttemptInfo,
    AuditEntry,
    Health,
    Inspection,
    JobInfo,
    SlotInfo,
    TaskInfo,
    WorkerInfo,
)
from slotwise.testing import ManualClock, ManualWorker

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@job(name="hourly", schedule=Every("1h"))
def hourly(ctx: JobContext) -> None: ...


@task(name="mail", record="all", retry=None)
def mail(ctx: TaskContext[int]) -> None:
    if ctx.data:
        raise ValueError("boom")


@pytest.fixture
def registry(url: str) -> Iterator[JobRegistry]:
    """Nobody is at work; one slot ran, three were missed by one run, the next is left out; of the
    tasks one is dead.
    """
    with ManualWorker([hourly, mail], url, ManualClock(NOON)) as worker:
        worker.client.schedule_recurring(hourly, "customer-7", "EVERY|2h")
        worker.tick("4h")
        worker.run_due()
        for number in range(2):
            worker.client.schedule(mail, number, id=str(number))
        worker.run_due()
        worker.client.schedule(mail, 0, id="later", delay="36500d")
        worker.operations.by("ada").skip_next("hourly", note="a holiday")
    registry = JobRegistry(jobs=[hourly], tasks=[mail], database_url=url)
    yield registry
    registry.database.close()


def test_it_says_what_the_tables_say(registry: JobRegistry) -> None:
    """Jobs, slots, gaps and why; tasks; workers, health and the audit."""
    look = registry.inspect
    (line,) = look.jobs()
    assert isinstance(line, JobInfo)
    assert (line.job, line.id, line.state, line.next_slot) == (
        "hourly",
        "recurring",
        "no_live_worker",
        NOON + 6 * HOUR,
    )
    assert look.job(hourly) == line
    assert [one.id for one in look.instances("hourly")] == ["customer-7"]
    assert look.job("hourly", id="customer-8") is None
    skipped, ran, missed = look.slots(hourly, id="recurring")
    assert isinstance(ran, SlotInfo)
    assert (ran.slot, ran.outcome, ran.missed_count) == (
        NOON + 4 * HOUR,
        "succeeded",
        3,
    )
    assert (skipped.outcome, skipped.reason, missed.count, missed.reason) == (
        "skipped",
        "operator",
        3,
        "collapsed",
    )
    assert look.slots("hourly", id="recurring", before=ran.slot) == [missed]
    assert look.slot("hourly", ran.slot) == ran
    assert [one.slot for one in look.pending("hourly", id="recurring")] == [
        NOON + 6 * HOUR
    ]
    assert look.explain("hourly", NOON + 2 * HOUR).reason == "collapsed"
    assert [(one.id, one.state) for one in look.tasks()] == [
        ("1", "dead"),
        ("later", "waiting"),
    ]
    dead = look.explain_task("mail", "1")
    assert (dead.state, dead.sentences[0]) == (
        "dead",
        "It is dead after one attempt; to try it again: slotwise tasks retry mail 1.",
    )
    assert look.explain_task("mail", "0").sentences[0].startswith("It succeeded at ")
    (only,), (failed,) = look.attempts("hourly", ran.slot), look.attempts(mail, id="1")
    assert isinstance(only, AttemptInfo)
    assert (only.number, only.outcome, only.worker, only.error) == (
        1,
        "succeeded",
        ran.worker,
        None,
    )
    assert (failed.number, failed.outcome) == (1, "failed")
    assert failed.error.endswith("ValueError: boom")
    assert look.task("mail", "1") == registry.client.get("mail", "1")
    assert [one.outcome for one in look.task_results("mail", "0")] == ["succeeded"]
    assert [(one.task, one.waiting, one.dead) for one in look.task_counts()] == [
        ("mail", 1, 1)
    ]
    assert all(
        not isinstance(one, WorkerInfo) or not one.live for one in look.workers()
    )
    health = look.health("5m")
    assert isinstance(health, Health)
    assert (health.live_workers, health.dead) == (0, 1)
    (entry,) = look.audit("hourly")
    assert isinstance(entry, AuditEntry)
    assert (entry.operation, entry.author, entry.note, entry.id) == (
        "skip_next",
        "ada",
        "a holiday",
        "recurring",
    )
    assert look.all_paused() is None
    assert look.now().utcoffset() == timedelta(0)


def test_the_same_is_awaited(registry: JobRegistry) -> None:
    """Each call has an awaited form of the same signature and the same answer."""
    look = registry.inspect
    given: dict[str, tuple[Any, ...]] = {
        "job": ("hourly",),
        "instances": ("hourly",),
        "slots": ("hourly",),
        "pending": ("hourly",),
        "slot": ("hourly", NOON + 4 * HOUR),
        "explain": ("hourly", NOON + 4 * HOUR),
        "task": ("mail", "1"),
        "task_results": ("mail", "0"),
        "trace": ("mail", "1"),
        "jobs": (),
        "tasks": (),
        "task_counts": (),
        "workers": (),
        "all_paused": (),
        "audit": (),
        "explain_task": ("mail", "1"),
        "explain_backlog": ("mail",),
        "attempts": ("hourly", NOON + 4 * HOUR),
        "check_name": ("hourly",),
        "jobs_among": (["hourly", "mail"],),
        "zone": ("hourly",),
        "zones": ([("hourly", RECURRING)],),
        "common_zone": (),
        "instance_counts": (),
        "schedules": (),
        "slots_within": ("hourly", NOON, NOON + 8 * HOUR),
        "explain_job": ("hourly",),
        "calendars": (Cron("0 9 * * *").excluding(Calendar(name="CO")),),
        "ledger_names": (),
        "failures": (NOON,),
        "windows": (NOON, NOON + 8 * HOUR),
        "outcome_counts": (NOON, NOON + 8 * HOUR),
        "outcome_totals": (NOON, NOON + 8 * HOUR),
        "outcome_parts": (["hourly"], NOON, NOON + 8 * HOUR, 4),
        "rates": ("hourly",),
        "rates_of": (["hourly"],),
        "troubles": (),
        "pauses": (),
        "deploys": (NOON, NOON + 8 * HOUR),
        "worker_lives": (NOON, NOON + 8 * HOUR),
        "finish_forecasts": (),
        "schedule_spans": (NOON, NOON + 8 * HOUR),
    }
    calls = {name for name in dir(Inspection) if not name.startswith("_")} - {
        "aio",
        "iter_slots",
        "open",
    }
    awaited = {name for name in dir(AsyncInspection) if not name.startswith("_")}
    assert (
        calls
        == awaited - {"iter_slots"}
        == {*given, "now", "health", "backlog", "since_success", "database"}
    )

    async def main() -> dict[str, Any]:
        return {
            name: await getattr(look.aio, name)(*arguments)
            for name, arguments in given.items()
        }

    found = asyncio.run(main())
    for name, arguments in given.items():
        if not name.startswith("explain"):  # their sentences count the time
            assert found[name] == getattr(look, name)(*arguments), name
    for name in calls:
        assert inspect.signature(getattr(Inspection, name)) == inspect.signature(
            getattr(AsyncInspection, name)
        )
    assert isinstance(asyncio.run(look.aio.health()), Health)

    async def stream() -> list[SlotInfo]:
        return [line async for line in look.aio.iter_slots("hourly", limit=2)]

    assert asyncio.run(stream()) == list(look.iter_slots("hourly", limit=2))
    assert [type(one) for one in found["tasks"]] == [TaskInfo, TaskInfo]


def test_it_opens_without_an_application(
    registry: JobRegistry, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an address, from settings, from the environment; its connections are closed."""
    expected = registry.inspect.jobs()
    with Inspection.open(url) as look:
        assert look.jobs() == expected
    with Inspection.open(Settings(database_url=url)) as look:
        assert look.jobs() == expected
    monkeypatch.setenv("SLOTWISE_DATABASE_URL", url)
    with Inspection.open() as look:
        assert look.jobs() == expected
    with Client.open(url) as client:
        assert client.inspect.jobs() == expected
        assert client.operations.pause("hourly", dry_run=True)
        assert client.get("mail", "1") == registry.client.get("mail", "1")


def test_it_opens_for_an_application(registry: JobRegistry) -> None:
    """Its settings say where the tables are, and what its jobs declare is known."""
    gaps = [line for line in registry.inspect.slots("hourly") if line.last is not None]
    gap = gaps[0].slot
    with Inspection.open(application=registry) as look:
        told = look.explain("hourly", gap).sentences
    with Inspection.open(registry.settings) as look:
        assert look.explain("hourly", gap).sentences != told
    assert any("The job declares catch_up=" in sentence for sentence in told)


def test_opening_needs_the_tables(pg_empty_url: str) -> None:
    """The error has the command of the cure."""
    with (
        pytest.raises(SchemaMissing, match="slotwise db upgrade"),
        Inspection.open(pg_empty_url),
    ):
        pass


def test_a_name_is_checked(registry: JobRegistry) -> None:
    """Of a job, an instance and a task; a near name is offered."""
    look = registry.inspect
    look.check_name(hourly)
    look.check_name("hourly", id="customer-7")
    look.check_name("mail", kind="task")
    with pytest.raises(UnknownTask, match=r"no job 'hourli'.*did you mean 'hourly'"):
        look.check_name("hourli")
    with pytest.raises(UnknownTask, match="no recurring instance 'customer-8'"):
        look.check_name("hourly", id="customer-8")


def test_a_database_that_is_not_there() -> None:
    """Is told as everywhere."""
    registry = JobRegistry(
        jobs=[hourly],
        database_url="postgresql://nobody@127.0.0.1:1/none?connect_timeout=1",
    )
    with pytest.raises(DatabaseUnreachable):
        registry.inspect.jobs()
    registry.database.close()
