"""The test kit for applications: capture of what was scheduled, run inline, another database for a
global registry.
"""

from __future__ import annotations

import unittest
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tests.kit.times import schedules

from slotwise import (
    ConfigurationError,
    InvalidPayload,
    JobContext,
    JobRegistry,
    TaskContext,
    UnknownTask,
    job,
    task,
)
from slotwise.testing import (
    ManualWorker,
    ScheduledTasks,
    SlotwiseTestMixin,
    override,
    scheduled,
)

pytest_plugins = ["pytester"]


@dataclass
class Mail:
    to: str


@task(name="mail")
def mail(ctx: TaskContext[Mail]) -> str:
    sent.append(ctx.data.to)
    if ctx.data.to == "all":
        ctx.then(mail, Mail("ann"), id="next")
    return f"sent to {ctx.data.to}"


@task(name="slow")
async def slow(ctx: JobContext) -> str:
    return f"{ctx.name} {ctx.id} {ctx.attempt} {ctx.data}"


@task(name="guarded")
def guarded(ctx: JobContext) -> None:
    ctx.complete_in(None)  # type: ignore[call-overload]


sent: list[str] = []
registry = JobRegistry(
    tasks=[mail, slow, guarded], database_url="postgresql://127.0.0.1:1/production"
)


def application(to: str) -> None:
    """What is tested: it knows the registry only."""
    registry.client.schedule(mail, Mail(to), id=f"to-{to}", delay="10m", priority=70)


@pytest.fixture
def tasks(slotwise_override: Any, slotwise_scheduled: Any) -> ScheduledTasks:
    sent.clear()
    found: ScheduledTasks = slotwise_scheduled(slotwise_override(registry))
    return found


def test_what_was_scheduled(tasks: ScheduledTasks) -> None:
    """By task, and by the values of its data."""
    application("ann")
    application("bob")
    one = tasks.one(mail, to="ann")
    assert (one.task, one.id, one.data, one.delay, one.at, one.priority) == (
        "mail",
        "to-ann",
        Mail("ann"),
        timedelta(minutes=10),
        None,
        70,
    )
    assert [found.id for found in tasks] == ["to-ann", "to-bob"]
    assert tasks[0] is one
    assert tasks.of("mail") == list(tasks)
    tasks.none(mail, to="eve")
    tasks.none(slow)


def test_what_was_not(tasks: ScheduledTasks) -> None:
    """The assertion tells what was scheduled instead."""
    application("ann")
    with pytest.raises(
        AssertionError,
        match=r"0 tasks match mail \{'to': 'eve'\}, expected one; scheduled: .*to-ann",
    ):
        tasks.one(mail, to="eve")
    with pytest.raises(AssertionError, match="1 tasks were scheduled, expected none"):
        tasks.none(mail)
    application("bob")
    with pytest.raises(AssertionError, match="2 tasks match a task, expected one"):
        tasks.one()


def test_an_unknown_keyword(tasks: ScheduledTasks) -> None:
    """The error names those that there are, and no function of ours."""
    with pytest.raises(
        TypeError,
        match=r"^unexpected keyword argument 'conn'; there are at, connection, countdown, ",
    ):
        registry.client.schedule(mail, Mail("ann"), conn=None)  # type: ignore[call-overload]


def test_run_inline(tasks: ScheduledTasks) -> None:
    """With its data, awaited if it is async; what it schedules in turn is captured."""
    application("all")
    assert tasks.run(tasks.one(mail)) == "sent to all"
    assert [one.id for one in tasks] == ["to-all", "next"]
    registry.client.schedule(slow, [1], id="s")
    assert tasks.run(tasks.one(slow)) == "slow s 1 [1]"
    sent.clear()
    assert tasks.run_all() == [
        "sent to all",
        "sent to ann",
        "slow s 1 [1]",
        "sent to ann",
    ]
    assert (sent, list(tasks)) == (["all", "ann", "ann"], [])


def test_what_cannot_run_inline(tasks: ScheduledTasks) -> None:
    """A claim is in the database; an unknown task has no handler; wrong data are refused where
    they are scheduled.
    """
    registry.client.schedule(guarded, id="g")
    with pytest.raises(
        ConfigurationError, match="test this handler with ManualWorker"
    ):
        tasks.run(tasks.one(guarded))
    registry.client.schedule("of another service", id="x")
    with pytest.raises(
        UnknownTask, match="no task 'of another service', so it cannot run here"
    ):
        tasks.run(tasks.one("of another service"))
    with pytest.raises(InvalidPayload):
        registry.client.schedule(mail, 7)  # type: ignore[arg-type]


def test_everything_is_as_before() -> None:
    """The registry has its own settings, hooks and definitions again, also after an error."""
    before = (registry.settings, registry.hooks, registry.definitions)

    def fail() -> None:
        with override(registry), scheduled(registry) as tasks:
            application("ann")
            assert len(tasks) == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (registry.settings, registry.hooks, registry.definitions) == before


@pytest.mark.parametrize("driver", ["sqlalchemy", "psycopg"])
def test_a_transaction_that_is_rolled_back(pg_url: str, driver: str) -> None:
    """Captured, run inline, and nothing is left; a worker is refused there with the reason."""
    sent.clear()
    with override(registry, database_url=pg_url), scheduled(registry) as tasks:
        engine = sa.create_engine(
            pg_url.replace("postgresql://", "postgresql+psycopg://"),
            poolclass=sa.NullPool,
        )
        with engine.connect() as outer, outer.begin() as transaction:
            joined: Any = (
                outer if driver == "sqlalchemy" else outer.connection.dbapi_connection
            )
            registry.client.schedule(mail, Mail("ann"), id="1", connection=joined)
            assert tasks.run(tasks.one(mail, to="ann")) == "sent to ann"
            with pytest.raises(
                ConfigurationError,
                match=r"a worker commits its claims.*scheduled\(registry\).run_all",
            ):
                ManualWorker(registry, outer)  # type: ignore[arg-type]
            transaction.rollback()
        assert registry.client.get(mail, "1") is None
        engine.dispose()


class TestMixin(SlotwiseTestMixin, unittest.TestCase):
    """The same for unittest."""

    slotwise_registry = registry

    def test_one(self) -> None:
        application("ann")
        assert self.scheduled.one(mail).data.to == "ann"

    def test_another_has_its_own(self) -> None:
        assert list(self.scheduled) == []
        assert registry.client.list(mail) == []


@job(name="tick", schedule=schedules.Every("1h"))
def tick(ctx: JobContext) -> None: ...


class TestForeignRows:
    """The fake clock of the kit must not write where somebody works."""

    def test_a_database_in_use(self, pg_url: str) -> None:
        """Rows that were made before this process: refused with their number, and overruled by one
        keyword.
        """
        engine = sa.create_engine(
            pg_url.replace("postgresql://", "postgresql+psycopg://"),
            poolclass=sa.NullPool,
        )
        with engine.begin() as connection:
            connection.execute(
                sa.text(
                    "INSERT INTO scheduled_tasks (task_name, task_instance, "
                    "execution_time, picked, version, kind, "
                    "created_version) VALUES ('old', '1', now(), false, 1, "
                    "'task', 1700000000000000)"
                )
            )
        told = (
            r"has 1 jobs and tasks that this test has not made; name a database of the "
            r"tests, or pass foreign_rows="
        )
        with pytest.raises(ConfigurationError, match=told) as raised:
            ManualWorker([tick], pg_url)
        assert (sa.make_url(pg_url).password or "?") not in str(raised.value)
        with ManualWorker([tick], pg_url, foreign_rows=True) as worker:
            assert worker.run_due() == []
        engine.dispose()

    def test_a_live_worker(self, pg_url: str) -> None:
        """A cluster that has no rows yet."""
        with (
            JobRegistry(jobs=[tick], database_url=pg_url),
            pytest.raises(ConfigurationError, match="1 live workers"),
        ):
            ManualWorker([tick], pg_url)

    def test_rows_of_the_application_under_test(self, pg_url: str) -> None:
        """What the test itself has scheduled is no reason, and neither are the rows of another
        worker of the kit.
        """
        with override(registry, database_url=pg_url):
            application("ann")
            with ManualWorker(registry, pg_url) as worker:
                assert worker.client.get(mail, "to-ann") is not None
            with ManualWorker([tick], pg_url) as other:
                other.tick("1h")
                other.run_due()
            with ManualWorker([tick], pg_url):
                pass


def test_the_plugin_offers_them(pytester: pytest.Pytester) -> None:
    """In a test that imports nothing of the kit."""
    pytester.makepyfile(
        """
        from slotwise import JobRegistry, task

        @task(name="t")
        def t(ctx): return 7

        registry = JobRegistry(tasks=[t], database_url="postgresql://127.0.0.1:1/x")

        def test_it(slotwise_override, slotwise_scheduled):
            slotwise_override(registry)
            tasks = slotwise_scheduled(registry)
            registry.client.schedule(t, id="1")
            assert tasks.run(tasks.one(t)) == 7
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
