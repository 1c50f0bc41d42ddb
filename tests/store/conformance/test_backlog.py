"""What is due of each name, for monitoring."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.store.bench import Bench

from slotwise.inspect import Backlog
from slotwise.model.records import Failed

MINUTE = timedelta(minutes=1)


def lines(bench: Bench) -> list[tuple[str, int, timedelta]]:
    return [
        (one.name, one.waiting, one.oldest)
        for one in bench.inspect.backlog()
        if one.name in ("mail", "once")
    ]


def test_due_rows_count_by_name(bench: Bench) -> None:
    """Neither those that are not due yet, nor those that are held or paused; of several priorities
    together.
    """
    assert lines(bench) == []
    bench.client.schedule("mail", id="urgent", priority=90)
    bench.tick(1)
    bench.client.schedule("mail", id="usual")
    bench.client.schedule("mail", id="later", delay="1h")
    bench.client.schedule("once", id="1")
    assert lines(bench) == [("mail", 2, MINUTE), ("once", 1, timedelta(0))]
    bench.claim("mail", limit=1)
    assert lines(bench) == [("mail", 1, timedelta(0)), ("once", 1, timedelta(0))]


def test_due_slots_of_jobs_count(bench: Bench) -> None:
    bench.tick(2)
    assert [one for one in bench.inspect.backlog() if one.name == "plain"] == [
        Backlog(name="plain", waiting=1, oldest=MINUTE)
    ]
    bench.claim_one("plain")
    assert "plain" not in {one.name for one in bench.inspect.backlog()}


def test_many_are_a_lower_bound(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one task no more rows are read; the oldest of them counts nevertheless."""
    monkeypatch.setattr("slotwise.store.reading.task_counts.MOST", 3)
    for number in range(6):
        bench.client.schedule("mail", id=str(number))
        bench.tick(1)
    assert lines(bench) == [("mail", 3, 6 * MINUTE)]


def test_time_since_the_last_success(bench: Bench) -> None:
    """It counts from the planning of a job that has never succeeded: an alarm then works for
    it, too.
    """
    bench.planned()
    bench.tick(1)
    assert bench.inspect.since_success(["plain", "no such job"]) == {"plain": MINUTE}
    bench.settle(bench.claim_one("plain"))
    assert bench.inspect.since_success(["plain"])["plain"] < MINUTE
    bench.tick(1)
    bench.settle(bench.claim_one("plain"), Failed("oh"))
    assert bench.inspect.since_success(["plain"]) == {"plain": MINUTE}
