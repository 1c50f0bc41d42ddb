"""One-time tasks of a name: how many are due, what holds them back, and for how long."""

from __future__ import annotations

from datetime import timedelta

from tests.store.bench import NOON, Bench, at

from slotwise.store.slots.counts import TASK, Counts, Ended


def told(bench: Bench) -> str:
    return " ".join(bench.inspect.explain_backlog("mail").sentences)


def schedule(bench: Bench, count: int) -> None:
    for number in range(count):
        bench.client.schedule("mail", id=str(number), delay="1m")


def test_what_is_due(bench: Bench) -> None:
    """The number, the oldest, and that no worker is there."""
    schedule(bench, 3)
    assert told(bench).startswith("0 tasks are due; 0 run.")
    bench.tick(5)
    found = bench.inspect.explain_backlog("mail")
    assert (found.task, found.id, found.state) == ("mail", "", "waiting")
    assert "3 tasks are due, the oldest since " in found.sentences[0]
    assert "No live worker can" in told(bench)
    bench.claim("mail")
    assert "3 run." in told(bench)


def test_the_time_that_is_left(bench: Bench) -> None:
    """By what has succeeded since the hour before; without that, nothing is promised."""
    schedule(bench, 30)
    bench.clock.set(at(60))
    assert "No success is counted in the last 1h" in told(bench)
    ended = {
        Ended("mail", NOON, TASK, "succeeded", ""): 60,
        Ended("mail", NOON, TASK, "failed", ""): 6,
    }
    Counts(bench.store).add(ended)
    assert "In the last 1h, 60 succeeded, and 6 attempts failed." in told(bench)
    assert "At this rate, those that are due end in 30m." in told(bench)
    assert (
        "About 31 come due in an hour, and 60 succeed: the backlog is gone in 1h1m."
        in told(bench)
    )
    bench.clock.set(at(60) + timedelta(minutes=30))
    assert "end in 45m." in told(bench)


def test_a_backlog_that_grows(bench: Bench) -> None:
    """It has no end; what has just come due is no backlog."""
    schedule(bench, 30)
    Counts(bench.store).add({Ended("mail", NOON, TASK, "succeeded", ""): 6})
    bench.clock.set(at(1) + timedelta(seconds=30))
    assert "come due in an hour" not in told(bench)
    bench.clock.set(at(31))
    assert (
        "About 60 come due in an hour, and 12 succeed: the backlog does not shrink."
        in told(bench)
    )


def test_counts_have_the_same_figures(bench: Bench) -> None:
    """How many are due and since when, how many come and end in an hour, and the time left."""
    schedule(bench, 30)
    bench.client.schedule("mail", id="later", delay="1d")
    bench.clock.set(at(61))
    Counts(bench.store).add({Ended("mail", NOON, TASK, "succeeded", ""): 61})
    (found,) = bench.inspect.task_counts()
    assert (found.waiting, found.due, found.oldest) == (31, 30, at(1))
    assert (found.came, found.ended) == (30.0, 60.0)
    assert found.left == timedelta(minutes=30)
    bench.clock.set(at(200))
    (found,) = bench.inspect.task_counts()
    assert (found.ended, found.left) == (0.0, None)
