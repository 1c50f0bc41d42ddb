"""One-time tasks of a name: how many are due, what holds them back, and for how long."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace

import sqlalchemy as sa
from tests.kit.events import Listeners
from tests.kit.loops import Counting, Tally, WorkerCommon
from tests.kit.store import RECENT, TASK, Counts, Ended, hour_of
from tests.store.bench import Bench, at

from slotwise import Every, Settings


def told(bench: Bench) -> str:
    return " ".join(bench.inspect.explain_backlog("mail").sentences)


def schedule(bench: Bench, count: int) -> None:
    for number in range(count):
        bench.client.schedule("mail", id=str(number), delay="1m")


def test_what_is_due(bench: Bench) -> None:
    """The number, the oldest, and that no worker is there."""
    schedule(bench, 3)
    assert told(bench).startswith("0 tasks are due; running: 0.")
    bench.tick(5)
    found = bench.inspect.explain_backlog("mail")
    assert (found.task, found.id, found.state) == ("mail", "", "waiting")
    assert "3 tasks are due, the oldest since " in found.sentences[0]
    assert "No live worker can" in told(bench)
    bench.claim("mail")
    assert "running: 3." in told(bench)


def test_one_task_is_due(bench: Bench) -> None:
    """The sentence has the singular."""
    schedule(bench, 1)
    bench.tick(5)
    assert told(bench).startswith("one task is due, the oldest since ")


def count(bench: Bench, at: datetime, succeeded: int, failed: int = 0) -> None:
    """Count as a worker does once a minute."""
    bench.clock.set(at)
    hour = hour_of(at)
    ended = {
        Ended("mail", hour, TASK, "succeeded", ""): succeeded,
        Ended("mail", hour, TASK, "failed", ""): failed,
    }
    Counts(bench.store).add({one: number for one, number in ended.items() if number})


def test_a_burst(bench: Bench) -> None:
    """60 at once, 20 of which succeed in a minute: whatever the hour, and since the work began."""
    bench.clock.set(at(38))
    schedule(bench, 60)
    began = at(39) + timedelta(seconds=10)
    bench.clock.set(began)
    assert "No success is counted in the last 5m" in told(bench)
    succeed(bench, 10)
    count(bench, began + timedelta(seconds=30), 10)
    bench.clock.set(began + timedelta(seconds=40))
    assert "too early to say how fast they end" in told(bench)
    assert "end in" not in told(bench)
    for minute in (1, 2):
        succeed(bench, 20)
        count(bench, began + timedelta(seconds=30 + 60 * minute), 20)
    bench.clock.set(began + timedelta(seconds=150))
    assert "In 2m, as far as is counted, 40 succeeded." in told(bench)
    assert "At this rate, those that are due end in 30s." in told(bench)
    assert (
        "About 0 come due in an hour, and 1,200 succeed: the backlog is gone in 30s."
        in told(bench)
    )
    (found,) = bench.inspect.task_counts()
    assert (found.came, found.ended) == (0, 1200)
    assert found.left == timedelta(seconds=30)


def succeed(bench: Bench, number: int) -> None:
    for claim in bench.claim("mail", limit=number):
        bench.settle(claim)


def test_a_slow_limit(bench: Bench) -> None:
    """One in ten minutes: two that are due end in 20 minutes. An earlier burst does not count."""
    bench.clock.set(at(0))
    count(bench, at(0), 1000)
    bench.clock.set(at(20))
    schedule(bench, 2)
    for minute in (21, 31, 41):
        count(bench, at(minute), 1)
    bench.clock.set(at(42))
    assert "In 20m, as far as is counted, 2 succeeded." in told(bench)
    assert "end in 20m." in told(bench)


def test_failed_attempts(bench: Bench) -> None:
    schedule(bench, 30)
    for minute in (1, 11):
        count(bench, at(minute), 60, 6)
    bench.clock.set(at(12))
    assert (
        "In 10m, as far as is counted, 60 succeeded, and 6 attempts failed."
        in told(bench)
    )


def test_a_backlog_that_grows(bench: Bench) -> None:
    """What comes due meanwhile is counted in the same time as what succeeds."""
    schedule(bench, 30)
    for minute in (2, 4, 6, 8, 10, 12):
        count(bench, at(minute), 1)
    for number in range(20):
        bench.client.schedule("mail", id=f"later {number}", at=at(5))
    bench.clock.set(at(12))
    assert (
        "About 120 come due in an hour, and 30 succeed: the backlog does not shrink."
        in told(bench)
    )


def test_a_steady_queue_is_no_backlog(bench: Bench) -> None:
    """All that was due when the count began has been claimed since."""
    for minute in range(5, 10):
        count(bench, at(minute), 60)
    bench.clock.set(at(8))
    schedule(bench, 3)
    bench.clock.set(at(9) + timedelta(seconds=30))
    (found,) = bench.inspect.task_counts()
    assert (found.came, found.ended) == (None, 3600)
    assert "come due in an hour" not in told(bench)


def test_handlers_that_last_for_hours(bench: Bench) -> None:
    """What counts is when they ended, whatever the hour in which they started."""
    bench.clock.set(at(0))
    schedule(bench, 30)
    for minute in (300, 310, 320):
        bench.clock.set(at(minute))
        started = {Ended("mail", hour_of(at(minute - 240)), TASK, "succeeded", ""): 5}
        Counts(bench.store).add(started)
    bench.clock.set(at(322))
    assert "In 20m, as far as is counted, 10 succeeded." in told(bench)


def test_a_stopped_queue(bench: Bench) -> None:
    """The time without a success counts; what is not recent is forgotten."""
    schedule(bench, 30)
    for minute in (1, 2, 3):
        count(bench, at(minute), 20)
    bench.clock.set(at(43))
    assert "In 40m, as far as is counted, 40 succeeded." in told(bench)
    bench.clock.set(at(200))
    (found,) = bench.inspect.task_counts()
    assert (found.ended, found.left) == (0.0, None)
    count(bench, at(200), 1)
    counts = bench.store.tables.counts
    with bench.store.transaction() as connection:
        recent = sa.select(counts.c.hour).where(counts.c.kind == RECENT)
        left = connection.scalars(recent).all()
    assert len(left) == 1


def test_the_first_due_time(bench: Bench) -> None:
    """How many are due, and since when."""
    schedule(bench, 30)
    bench.client.schedule("mail", id="later", delay="1d")
    bench.clock.set(at(61))
    (found,) = bench.inspect.task_counts()
    assert (found.waiting, found.due, found.oldest) == (31, 30, at(1))


def test_recurring_instances_are_named(bench: Bench) -> None:
    """They are no one-time tasks; the command that lists them is told."""
    assert "recurring" not in told(bench)
    for number in range(3):
        bench.client.schedule_recurring("mail", str(number), Every(timedelta(hours=1)))
    assert (
        "Beside them, mail has 3 recurring instances: slotwise jobs mail --instances"
        in told(bench)
    )


def test_a_worker_counts_the_pace(bench: Bench) -> None:
    """Each minute apart, and beside the hour; of slots of jobs nothing."""
    tally = Tally()
    active = SimpleNamespace(elapsed=float)
    settings = Settings(database_url="sqlite://")
    common = WorkerCommon(Listeners(()), "w", settings, bench.store, active)  # type: ignore[arg-type]
    counting = Counting(common, tally)
    schedule(bench, 3)
    bench.plan()
    bench.clock.set(at(5))
    for minute, name in ((5, "mail"), (6, "mail"), (7, "plain")):
        bench.clock.set(at(minute))
        claims = bench.claim(name, limit=1)
        tally.add(
            [SimpleNamespace(claim=one, is_slot=name == "plain") for one in claims], ()
        )  # type: ignore[misc]
        counting.run_once()
    bench.clock.set(at(7))
    assert "In 1m, as far as is counted, 1 succeeded." in told(bench)
