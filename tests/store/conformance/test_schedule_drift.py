"""What a release has moved is said at a worker's start; what it has not, is not."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.kit.events import events
from tests.kit.records import Failed, HandedBack
from tests.kit.store import Moved, moved
from tests.store.bench import MINUTE, Bench, a_job, a_task, at

from slotwise import (
    CatchUp,
    Cron,
    Daily,
    Disabled,
    Every,
    FixedDelay,
    JobRegistry,
    Once,
    Overlap,
    Retry,
    job,
)
from slotwise.spi import Database
from slotwise.store.reading.monitoring import since_success

CLOSED = "EXCLUDING(DAILY|09:00|UTC; CO@1[SAT,SUN 2026:0102]; skip)"
DEFINITIONS = (
    a_job("plain"),
    a_job("daily", Daily("09:00", tz="Europe/Vienna")),
    a_job("closed", CLOSED),
    a_job("delayed", FixedDelay("1m")),
    a_job("once", Once(at(-5))),
    a_job("off", Disabled()),
    a_job("all", catch_up=CatchUp.all()),
    a_job("queue", overlap=Overlap.queue(3)),
    a_job(
        "retried",
        retry=Retry.exponential(max_attempts=3, initial=timedelta(seconds=1)),
    ),
    a_job("spread", spread="30s", min_interval="50s"),
    a_task("mail"),
)


@pytest.fixture
def bench(database: Database) -> Bench:
    """Jobs of all kinds, planned at noon."""
    return Bench(database, DEFINITIONS).planned()


def found(bench: Bench) -> list[Moved]:
    return moved(bench.store, sorted(bench.definitions))


def test_any_number_of_names_can_be_asked_for(bench: Bench) -> None:
    """A statement takes at most 65,535 parameters, on SQLite 32,766: a worker with more jobs would
    never start.
    """
    names = [*bench.definitions, *(f"job-{number}" for number in range(70_000))]
    assert moved(bench.store, names) == []
    assert bench.inspect.jobs_among(names) == set(bench.definitions) - {"mail"}
    planned = set(bench.definitions) - {"mail", "off"}
    assert since_success(bench.store, names).keys() == planned


def test_nothing_has_moved_by_itself(bench: Bench) -> None:
    """Whatever a row has been through: missed, overlapped, retried, changed, skipped by a
    calendar, spread.
    """
    bench.client.schedule("mail")
    bench.client.schedule_recurring("plain", "instance", "H * * * *")
    assert found(bench) == []
    for minutes in (1, 4, 0.5, 60 * 24 * 3):
        bench.tick(minutes)
        claims = bench.claim()
        assert found(bench) == []
        bench.tick(2.5)
        for number, claim in enumerate(claims):
            bench.settle(claim, Failed("oops") if number % 2 else None)
        assert found(bench) == []
    bench.beside(
        a_job("plain", Every("7m")), a_job("daily", Cron("0 10 * * *"))
    ).plan()
    assert found(bench) == []


@pytest.mark.parametrize(
    "catch_up",
    [CatchUp.first(), CatchUp.latest(), CatchUp.all(max=3)],
    ids=lambda one: one.mode,
)
def test_what_was_handed_back_has_not_moved(bench: Bench, catch_up: CatchUp) -> None:
    """The slots that were left out with it are decided: its row says what comes after them, as it
    should.
    """
    bench = bench.beside(a_job("plain", catch_up=catch_up))
    bench.tick(10)
    claim = bench.claim_one("plain")
    bench.settle(claim, HandedBack("shutdown"))
    assert found(bench) == []
    bench.change("plain", next_slot=at(11.5))
    assert [one.stored for one in found(bench)] == [at(11.5)]


def test_a_slot_that_has_moved_is_said(bench: Bench) -> None:
    """With what the row says and what its text comes to; the row stays."""
    before = bench.row("daily")
    assert before.slot is not None
    bench.change(
        "daily", slot=before.slot + MINUTE, execution_time=before.slot + MINUTE
    )
    bench.plan()
    assert found(bench) == [
        Moved(
            job="daily",
            id="recurring",
            stored=before.slot + MINUTE,
            computed=before.slot + timedelta(days=1),
        )
    ]
    assert bench.row("daily").slot == before.slot + MINUTE


def test_the_slot_after_the_next_counts(bench: Bench) -> None:
    """The next one is right, the one after is not: said before it surprises anybody."""
    bench.change("plain", next_slot=at(2.5))
    assert found(bench) == [
        Moved(job="plain", id="recurring", stored=at(2.5), computed=at(2))
    ]


def test_instances_are_counted_not_listed(bench: Bench) -> None:
    """One line for a job, however many of its rows."""
    for number in range(5):
        bench.client.schedule_recurring("plain", str(number), "EVERY|1h")
        bench.change("plain", str(number), next_slot=at(100))
    (one,) = found(bench)
    assert (one.job, one.id, one.count, one.computed) == ("plain", "0", 5, at(120))


def test_a_worker_says_it_at_its_start(bench: Bench, url: str) -> None:
    """As an event, for each job once."""
    bench.change(
        "plain", slot=at(10**6), next_slot=at(10**6 + 1.5), execution_time=at(10**6)
    )
    told: list[events.Event] = []
    plain = job(name="plain", schedule=Every(MINUTE))(lambda ctx: None)
    registry = JobRegistry(jobs=[plain], database_url=url, listeners=[told.append])
    try:
        registry.make_worker().sign_in.plan()
    finally:
        registry.database.close()
    (said,) = [event for event in told if isinstance(event, events.SlotsMoved)]
    assert (said.job, said.stored, said.computed, said.count) == (
        "plain",
        at(10**6 + 1.5),
        at(10**6 + 1),
        1,
    )


def test_a_row_that_cannot_be_read_holds_up_no_start(bench: Bench) -> None:
    """The claim quarantines it and says why; here the others are looked at."""
    bench.change("plain", pending={"catch_up_until": "the day after"})
    assert found(bench) == []
