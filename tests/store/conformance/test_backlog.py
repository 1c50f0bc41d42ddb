"""What is due of each name, for monitoring."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.kit.records import Failed
from tests.store.bench import Bench

from slotwise import Every
from slotwise.inspect import Backlog, Trouble

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
    monkeypatch.setattr("slotwise.store.reading.monitoring.MOST", 3)
    for number in range(6):
        bench.client.schedule("mail", id=str(number))
        bench.tick(1)
    assert lines(bench) == [("mail", 3, 6 * MINUTE)]


def since(bench: Bench, name: str) -> timedelta | None:
    found = bench.inspect.since_success([name]).get(name)
    return None if found is None else found.since


def test_time_since_the_last_success(bench: Bench) -> None:
    """It counts from the planning of a job that has never succeeded: an alarm then works for
    it, too.
    """
    bench.planned()
    bench.tick(1)
    names = ["plain", "no such job"]
    assert {
        name: one.since for name, one in bench.inspect.since_success(names).items()
    } == {"plain": MINUTE}
    bench.settle(bench.claim_one("plain"))
    assert since(bench, "plain") == timedelta(0)
    bench.tick(1)
    bench.settle(bench.claim_one("plain"), Failed("oh"))
    assert since(bench, "plain") == MINUTE


def test_the_instance_that_waits_longest_counts(bench: Bench) -> None:
    """A schedule that is disabled counts for nothing, beside instances and alone."""
    bench.planned()
    assert since(bench, "off") is None
    for id in ("a", "b"):
        bench.client.schedule_recurring("off", id, Every(MINUTE))
    for _ in range(3):
        bench.tick(1)
        for claim in bench.claim("off"):
            is_good = claim.row.task_instance == "a"
            bench.settle(claim, None if is_good else Failed("oh"))
    assert since(bench, "off") == 3 * MINUTE


def test_overdue_success_is_measured_by_the_schedule(bench: Bench) -> None:
    """A weekly job is not overdue for days; a late one is since the slot after its last success."""
    bench.client.schedule_recurring("off", "weekly", "EVERY|7d")
    bench.client.schedule_recurring("plain", "often", "EVERY|1m")
    bench.tick(4 * 24 * 60)
    found = bench.inspect.since_success(["off", "plain"])
    assert found["off"].since == timedelta(days=4)
    assert found["off"].overdue == timedelta(0)
    assert found["plain"].overdue == timedelta(days=4) - MINUTE


def overdue(bench: Bench, name: str) -> timedelta:
    return bench.inspect.since_success([name])[name].overdue


def test_a_pause_is_not_overdue(bench: Bench) -> None:
    """Neither while it lasts nor afterwards: nobody expects the slots that it skipped."""
    bench.planned()
    bench.tick(2)
    bench.settle(bench.claim_one("plain"))
    bench.client.operations.pause("plain")
    bench.tick(60)
    assert overdue(bench, "plain") == timedelta(0)
    bench.client.operations.resume("plain")
    assert overdue(bench, "plain") == timedelta(0)
    bench.tick(5)
    assert overdue(bench, "plain") == 4 * MINUTE


def test_a_failing_job_is_overdue_since_its_first_failure(bench: Bench) -> None:
    """Later slots that are still to come do not hide it."""
    bench.planned()
    bench.tick(1)
    bench.settle(bench.claim_one("plain"))
    for _ in range(3):
        bench.tick(1)
        bench.settle(bench.claim_one("plain"), Failed("oh"))
    assert overdue(bench, "plain") == 2 * MINUTE
    bench.tick(1)
    bench.settle(bench.claim_one("plain"))
    assert overdue(bench, "plain") == timedelta(0)


def test_a_new_schedule_is_not_overdue(bench: Bench) -> None:
    """What was monthly and is now due each minute has missed nothing yet."""
    bench.client.schedule_recurring("off", "one", "EVERY|30d")
    bench.tick(4 * 24 * 60)
    bench.client.schedule_recurring("off", "one", "EVERY|1m")
    assert overdue(bench, "off") == timedelta(0)


def test_troubles_count_by_name(bench: Bench) -> None:
    """Dead and failing rows, and since when a job is paused."""
    assert bench.inspect.troubles() == []
    bench.planned()
    bench.client.schedule("once", id="1")
    bench.settle(bench.claim_one("once"), Failed("oh", final=True))
    at = bench.tick(1)
    bench.settle(bench.claim_one("plain"), Failed("oh"))
    bench.client.operations.pause("plain")
    bench.tick(3)
    failing = Trouble(
        name="plain", failing=1, in_a_row=1, last_failure=at, paused=3 * MINUTE
    )
    assert bench.inspect.troubles() == [Trouble(name="once", dead=1), failing]
