"""The test kit: a worker by hand tells the truth about a worker, and the plugin is no burden."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.kit.records import Failed, HandedBack

from slotwise import (
    ClaimLost,
    Disabled,
    DistributedJob,
    Every,
    InvalidJob,
    JobContext,
    JobRegistry,
    Retry,
    job,
    task,
)
from slotwise.spi import Pruned, Settled
from slotwise.testing import ManualClock, ManualWorker

pytest_plugins = ["pytester"]

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class Minutely(DistributedJob):
    """Writes down what it was given."""

    name = "minutely"
    schedule = Every("1m")

    def __init__(self) -> None:
        self.slots: list[datetime] = []
        self.contexts: list[JobContext] = []

    def execute(self, ctx: JobContext) -> None:
        self.slots.append(ctx.slot)
        self.contexts.append(ctx)


@pytest.fixture
def minutely() -> Minutely:
    return Minutely()


@pytest.fixture
def worker(minutely: Minutely) -> Iterator[ManualWorker]:
    with ManualWorker([minutely]) as worker:
        yield worker


# -- the worker -----------------------------------------------------------------------------------


def test_nothing_runs_before_its_time(
    worker: ManualWorker, minutely: Minutely
) -> None:
    """Time stands still until the test lets it pass."""
    assert worker.run_due() == []
    worker.tick("59s")
    assert worker.run_due() == []
    worker.tick("1s")
    assert [event.name for event in worker.run_due()] == ["settled"]
    assert minutely.slots == [MIDNIGHT + MINUTE]


def test_each_slot_runs_once(worker: ManualWorker, minutely: Minutely) -> None:
    """Slot by slot, in order."""
    for _ in range(5):
        worker.tick(MINUTE)
        worker.run_due()
    assert minutely.slots == [MIDNIGHT + number * MINUTE for number in range(1, 6)]


def test_an_outage_is_caught_up_as_in_a_worker(
    worker: ManualWorker, minutely: Minutely
) -> None:
    """The kit has no rules of its own: the newest missed slot runs and stands for the others."""
    worker.tick("1h")
    worker.run_due()
    assert minutely.slots == [MIDNIGHT + 60 * MINUTE]
    assert minutely.contexts[0].missed_count == 59


def test_a_handler_that_raises_is_an_outcome() -> None:
    """As in a worker: the test looks at what became of the attempt."""

    @job(
        name="fails",
        schedule=Every("1m"),
        retry=Retry.exponential(max_attempts=2, initial=timedelta(seconds=1)),
    )
    def fails(ctx: JobContext) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    with ManualWorker([fails]) as worker:
        worker.tick("1m")
        (first,) = worker.run_due()
        worker.tick("10s")
        (second,) = worker.run_due()
    assert (first.outcome, first.error, first.reason) == (
        "failed",
        "ValueError: attempt 1",
        "retry",
    )
    assert (second.outcome, second.error, second.reason) == (
        "failed",
        "ValueError: attempt 2",
        None,
    )


def test_async_handlers_run_too() -> None:
    """On the real loop, with the lifespan's state; the test waits for their end."""
    seen: list[Any] = []

    @asynccontextmanager
    async def lifespan() -> Any:
        seen.append("entered")
        yield "state"
        seen.append("left")

    @job(name="later", schedule=Every("1m"))
    async def later(ctx: JobContext) -> None:
        seen.append(ctx.state)

    with ManualWorker(JobRegistry(jobs=[later], lifespan=lifespan)) as worker:
        worker.tick("1m")
        worker.run_due()
    assert seen == ["entered", "state", "left"]


def test_a_registry_brings_all_it_has() -> None:
    """Jobs, tasks, settings, listeners and interceptors."""
    names: list[str] = []
    around: list[str] = []

    @contextmanager
    def interceptor(ctx: JobContext) -> Iterator[None]:
        around.append(ctx.name)
        yield

    @task(name="greet")
    def greet(ctx: JobContext) -> None:
        names.append(ctx.data["name"])

    registry = JobRegistry(
        tasks=[greet], interceptors=[interceptor], heartbeat_interval="3s"
    )
    with ManualWorker(registry) as worker:
        worker.client.schedule(greet, {"name": "Ada"}, delay="1m")
        assert worker.run_due() == []
        worker.tick("1m")
        assert [event.outcome for event in worker.run_due()] == ["succeeded"]
    assert (names, around) == (["Ada"], ["greet"])
    assert worker.store.database.settings.heartbeat_interval == timedelta(seconds=3)


def test_the_test_may_stand_in_for_the_handler(
    worker: ManualWorker, minutely: Minutely
) -> None:
    """An attempt can be begun, be held for as long as the test likes, and end in any way."""
    worker.tick("1m")
    (claim,) = worker.poll()
    assert (worker.held, worker.waiting) == ([claim], [claim])
    assert worker.begin(claim)
    assert (worker.held, worker.waiting) == ([claim], [])
    worker.tick("30s")
    worker.finish(claim, Failed("as the test wants it"))
    (settled,) = worker.settle()
    assert (settled.outcome, settled.error) == ("failed", "as the test wants it")
    assert worker.held == []
    assert minutely.slots == []


def test_a_claim_that_waited_too_long_goes_back(worker: ManualWorker) -> None:
    """The rules before a start are the engine's: a claim that nobody began in time is another
    worker's chance.
    """
    worker.tick("1m")
    (claim,) = worker.poll()
    worker.tick("11s")
    assert not worker.begin(claim)
    (back,) = worker.settle()
    assert (back.name, back.reason) == ("handed_back", "queued")


def test_a_hand_back_can_be_played(worker: ManualWorker) -> None:
    """As after a drain: the slot is there for the next poll, at once."""
    worker.tick("1m")
    (claim,) = worker.poll()
    worker.finish(claim, HandedBack("shutdown"))
    worker.settle()
    (again,) = worker.poll()
    assert (again.slot, again.row.attempt) == (claim.slot, 1)
    assert again.token > claim.token


def test_a_crashed_workers_slot_is_taken_over(
    slotwise_worker: Callable[..., ManualWorker],
) -> None:
    """Two workers on one database: the reaper of one observes the death of the other, and the slot
    runs again.
    """
    first, second = slotwise_worker([Minutely]), slotwise_worker([Minutely])
    first.tick("1m")
    (claim,) = first.poll()
    first.begin(claim)
    first.crash()
    second.reap()
    while not (reaped := second.reap()):
        second.tick("10s")
    assert [(event.holder, event.outcome, event.reason) for event in reaped] == [
        (first.name, "lost", "rerun")
    ]
    (again,) = second.poll()
    assert (again.slot, again.row.attempt) == (claim.slot, 2)


def test_a_lost_slot_that_does_not_run_again_is_told_as_such(
    slotwise_worker: Callable[..., ManualWorker],
) -> None:
    """A listener that alarms people can tell it from one that another worker goes on with."""
    once = job(name="once", schedule=Every("1m"), on_lost="give_up")(print)
    first, second = slotwise_worker([once]), slotwise_worker([once])
    first.tick("1m")
    (claim,) = first.poll()
    first.begin(claim)
    first.crash()
    while not (reaped := second.reap()):
        second.tick("10s")
    assert [(event.outcome, event.reason) for event in reaped] == [
        ("lost", "may_still_be_running")
    ]


def test_a_zombie_is_fenced_off(slotwise_worker: Callable[..., ManualWorker]) -> None:
    """A worker that was not called for longer than its lease has lost its claim, and its outcome
    is refused.
    """
    zombie, other = slotwise_worker([Minutely]), slotwise_worker([Minutely])
    zombie.tick("1m")
    (claim,) = zombie.poll()
    zombie.begin(claim)
    while not other.reap():
        other.tick("10s")
    zombie.finish(claim)
    (event,) = zombie.settle()
    assert event.name == "claim_lost"


def test_leases_run_out_without_the_database(
    worker: ManualWorker, minutely: Minutely
) -> None:
    """The holder's own sense of time tells it so; a step of the database's clock does not."""
    worker.tick("1m")
    (claim,) = worker.poll()
    worker.begin(claim)
    worker.clock.set(worker.clock.now() + timedelta(days=1))
    assert worker.watch() == []
    worker.tick("61s")
    assert worker.watch() == [claim]


def test_a_drain_hands_back_what_waits(worker: ManualWorker) -> None:
    """And nothing more is claimed."""
    worker.tick("1m")
    worker.poll()
    (back,) = worker.drain()
    assert (back.name, back.reason) == ("handed_back", "shutdown")
    assert worker.poll() == []


def test_plan_says_what_it_did(worker: ManualWorker) -> None:
    """A second worker with another schedule plans as a redeploy would."""
    assert [plan.change for plan in worker.plan()] == ["kept"]
    other = ManualWorker(
        [type("Off", (Minutely,), {"schedule": Disabled()})],
        worker.store.database,
        worker.clock,
    )
    assert [plan.change for plan in other.plan()] == ["changed"]


def test_mistakes_of_the_test_are_told(worker: ManualWorker) -> None:
    """A claim that is not held, a worker that has crashed, time that would pass backwards."""
    worker.tick("1m")
    (claim,) = worker.poll()
    worker.finish(claim)
    worker.settle()
    with pytest.raises(ClaimLost, match="does not hold"):
        worker.finish(claim)
    worker.crash()
    with pytest.raises(RuntimeError, match="has crashed"):
        worker.poll()
    with pytest.raises(ValueError, match="backwards"):
        worker.clock.tick(-MINUTE)
    with pytest.raises(ValueError, match="aware"):
        ManualClock(datetime(2026, 1, 1))  # noqa: DTZ001


def test_the_environment_does_not_reach_a_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A developer's DATABASE_URL is not where a test of theirs plays."""
    monkeypatch.setenv("DATABASE_URL", "postgresql://prod/prod")
    monkeypatch.setenv("SLOTWISE_HEARTBEAT_INTERVAL", "1h")
    with ManualWorker([Minutely]) as worker:
        assert worker.store.database.dialect_name == "sqlite"
        assert worker.store.database.settings.heartbeat_interval == timedelta(
            seconds=10
        )


# -- the plugin -----------------------------------------------------------------------------------


def test_the_plugin_loads_no_engine() -> None:
    """Whoever has the package installed runs their other tests as fast as before."""
    code = (
        "import sys, slotwise.testing.plugin; print(sorted({'sqlalchemy', 'alembic', "
        "'psycopg'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_users_test_with_the_fixtures(pytester: pytest.Pytester) -> None:
    """What the documentation of the plugin shows."""
    pytester.makepyfile(
        """
        from slotwise import Every, job

        @job(name="tick", schedule=Every("1h"))
        def tick(ctx):
            pass

        def test_tick(slotwise_worker, slotwise_clock):
            worker = slotwise_worker([tick])
            assert worker.clock is slotwise_clock
            worker.tick("1d")
            assert [event.outcome for event in worker.run_due()] == ["succeeded"]

        def test_each_test_has_its_own(slotwise_worker):
            worker = slotwise_worker([tick])
            assert worker.clock.now().isoformat() == "2026-01-01T00:00:00+00:00"
            assert worker.run_due() == []
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


@job(name="kept", schedule=Every("1h"))
def kept(ctx: JobContext) -> None:
    """Runs each hour."""


def test_history_goes_when_it_is_too_old() -> None:
    """A round of the pruner, as a worker makes it each hour; it tells what went."""
    with ManualWorker([kept], retention="1d") as worker:
        for _ in range(30):
            worker.tick("1h")
            worker.run_due()
        assert worker.prune() == Pruned(worker=worker.name, slots=5, gaps=0)
        assert worker.prune() is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            lambda: [Minutely(), Minutely()],
            "names must be unique within a registry; more than once: 'minutely'",
        ),
        (lambda: Minutely, "pass a list of jobs"),
        (lambda: Minutely(), "pass a list of jobs"),
        (list, "at least one job or task must be registered"),
        (lambda: [7], "7 is not a job"),
    ],
    ids=["twice", "a class", "an instance", "nothing", "a number"],
)
def test_what_cannot_be_a_list_of_jobs(given: Callable[[], Any], words: str) -> None:
    """It says so as a registry does."""
    with pytest.raises(InvalidJob, match=re.escape(words)):
        ManualWorker(given())


def test_an_error_that_is_not_worth_another_attempt_ends_the_slot() -> None:
    """Of a job at once as failed, of a task as dead, whatever attempts are left; another error is
    tried again.
    """
    errors: list[Exception] = [
        OSError("no route"),
        ValueError("no sense"),
        OSError("no route"),
        ValueError("no sense"),
    ]
    retry = Retry.exponential(
        max_attempts=5, initial="1s", jitter="0s", retry_on=OSError
    )

    def fails(ctx: JobContext) -> None:
        raise errors.pop(0)

    with ManualWorker(
        [
            job(name="j", schedule=Every("1h"), retry=retry)(fails),
            task(name="t", retry=retry)(fails),
        ]
    ) as worker:
        for step in ("1h", "1s", "1s"):
            worker.tick(step)
            worker.run_due()
        worker.client.schedule("t", id="1")
        for step in ("1s", "1s", "1s"):
            worker.run_due()
            worker.tick(step)
        told = [
            (event.job, event.attempt, event.outcome, event.reason)
            for event in worker.events
            if isinstance(event, Settled)
        ]
    assert told == [
        ("j", 1, "failed", "retry"),
        ("j", 2, "failed", None),
        ("t", 1, "failed", "retry"),
        ("t", 2, "dead", None),
    ]
