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
    assert "None has succeeded in the last 1h" in told(bench)
    ended = {
        Ended("mail", NOON, TASK, "succeeded", ""): 60,
        Ended("mail", NOON, TASK, "failed", ""): 6,
    }
    Counts(bench.store).add(ended)
    assert "In the last 1h, 60 succeeded, and 6 attempts failed." in told(bench)
    assert "At this rate, those that are due end in 30m." in told(bench)
    bench.clock.set(at(60) + timedelta(minutes=30))
    assert "end in 45m." in told(bench)
