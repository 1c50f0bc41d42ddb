"""How outcomes are written: together, in order, once; and what is free when."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.kit.connections import sqlite_connections
from tests.kit.events import SettledDead, SettleSent
from tests.kit.loops import AT_ONCE
from tests.kit.records import (
    SUCCEEDED,
    Aborted,
    AttemptOutcome,
    Cancelled,
    Failed,
    HandedBack,
    Succeeded,
)
from tests.kit.store import Settlement
from tests.unit.engine.conftest import Bench, MakeBench

from slotwise.engine.loops.tuning import LONGEST_STUCK_PAUSE
from slotwise.spi import ClaimLostEvent, HandedBackEvent, Reaped, Settled


def test_whatever_has_gathered_goes_together(bench: Bench) -> None:
    """Three ends, one transaction; then there is nothing to do until the next."""
    for holding in bench.hold(3):
        bench.end(holding)
    assert bench.worker.settler.run_once() == AT_ONCE
    assert bench.worker.settler.run_once() is None
    assert [event.count for event in bench.said(SettleSent)] == [3]
    assert [event.outcome for event in bench.said(Settled)] == ["succeeded"] * 3


def test_capacity_is_free_only_after_the_settlement(bench: Bench) -> None:
    """Not when the handler ends: what cannot be written must not pile up. Then the poller is
    woken.
    """
    (holding,) = bench.hold()
    full = bench.worker.capacity
    bench.end(holding)
    assert bench.room_for_tasks() == full - 1
    assert not bench.worker.poller._wake.is_set()
    bench.worker.settler.run_once()
    assert bench.room_for_tasks() == full
    assert bench.worker.poller._wake.is_set()


def test_the_first_word_stands(bench: Bench) -> None:
    """Race: a handler succeeds while the shutdown gives it up, or the other way round."""
    first, second = bench.hold(2)
    bench.end(first, Succeeded())
    bench.end(first, Aborted("shutdown"))
    bench.end(second, Aborted("shutdown"))
    bench.end(second, Succeeded())
    bench.worker.settler.run_once()
    assert {event.outcome for event in bench.said(Settled)} == {"succeeded", "aborted"}
    assert bench.row(first) is None
    assert bench.row(second) is not None
    assert bench.worker.settler.run_once() is None
    assert bench.said(ClaimLostEvent) == []


def test_what_comes_due_between_an_end_and_its_settlement_is_not_overlapped(
    bench: Bench,
) -> None:
    """The database was away, for instance: the settlement says how long ago the handler has
    ended.
    """
    (holding,) = bench.hold(name="plain")
    bench.clock.tick(timedelta(seconds=90))
    bench.end(holding)
    bench.clock.tick(timedelta(minutes=5))
    bench.worker.settler.run_once()
    assert holding.claim.slot is not None
    assert bench.row(holding).slot == holding.claim.slot + timedelta(minutes=2)


def test_only_what_has_not_begun_can_be_handed_back(bench: Bench) -> None:
    """Nothing is burnt, and what runs goes on."""
    waiting, running = bench.hold(2)
    assert running.begin()
    assert bench.worker.settler.put(waiting, HandedBack("shutdown"), unstarted=True)
    assert not bench.worker.settler.put(
        running, HandedBack("shutdown"), unstarted=True
    )
    assert not bench.worker.settler.put(
        waiting, HandedBack("shutdown"), unstarted=True
    )
    bench.worker.settler.run_once()
    assert [(event.id, event.reason) for event in bench.said(HandedBackEvent)] == [
        (waiting.claim.key.task_instance, "shutdown")
    ]
    row = bench.row(waiting)
    assert (row.picked, row.attempt) == (False, 0)


def test_a_refused_outcome_is_a_lost_claim(bench: Bench) -> None:
    """Somebody else has the row: said once, and nothing is held any more."""
    (holding,) = bench.hold()
    bench.worker.store.settlements.settle([(holding.claim, HandedBack("somebody"))])
    bench.end(holding)
    bench.worker.settler.run_once()
    assert [event.reason for event in bench.said(ClaimLostEvent)] == [
        "its outcome was refused: another worker has the row"
    ]
    assert holding.lost
    assert len(bench.worker.active_claims) == 0


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Somebody else writes: for SQLite that is an outage."""
    connection = sqlite3.connect(
        Path(url.removeprefix("sqlite:///")), isolation_level=None
    )
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


def test_an_outage_loses_no_outcome(
    make_bench: MakeBench, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are put back, in their order, and capacity stays taken; afterwards all are written."""
    monkeypatch.setattr(sqlite_connections, "BUSY_TIMEOUT", timedelta(milliseconds=50))
    bench = make_bench(heartbeat_interval="50ms")
    active_claims = bench.hold(3)
    for holding in active_claims[:2]:
        bench.end(holding)
    with locked(sqlite_url):
        for _ in range(2):
            with pytest.raises(sa.exc.OperationalError):
                bench.worker.settler.run_once()
        bench.end(active_claims[2], Failed("boom", final=True))
        assert bench.room_for_tasks() == bench.worker.capacity - 3
        assert list(bench.worker.settler._ended) == active_claims
    bench.worker.settler.flush()
    assert [event.outcome for event in bench.said(Settled)] == [
        "succeeded",
        "succeeded",
        "dead",
    ]
    assert len(bench.worker.active_claims) == 0


def test_what_is_settled_is_not_sent_again_after_an_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that succeeded go first. If the others fail, only those are put back."""
    (task,) = bench.hold()
    (slot,) = bench.hold(name="plain")
    settlements = bench.worker.store.settlements

    def fail(endings: Any, **options: Any) -> list[Settlement]:
        raise sa.exc.OperationalError("settle", {}, OSError("connection lost"))

    bench.end(task, SUCCEEDED)
    bench.end(slot, SUCCEEDED)
    with monkeypatch.context() as broken:
        broken.setattr(settlements, "settle", fail)
        with pytest.raises(sa.exc.OperationalError):
            bench.worker.settler.run_once()
    assert list(bench.worker.settler._ended) == [slot]
    bench.worker.settler.flush()
    assert [event.outcome for event in bench.said(Settled)] == [
        "succeeded",
        "succeeded",
    ]
    assert bench.said(ClaimLostEvent) == []


def test_an_outage_is_waited_out_by_the_loop(
    make_bench: MakeBench, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said once; the outcome is written when the database is back, without another wake-up."""
    monkeypatch.setattr(sqlite_connections, "BUSY_TIMEOUT", timedelta(milliseconds=20))
    bench = make_bench(heartbeat_interval="50ms")
    (holding,) = bench.hold()
    settler = bench.worker.settler
    with locked(sqlite_url):
        bench.end(holding)
        settler.start()
        while len(bench.said(SettleSent)) < 3:
            settler.join(timedelta(milliseconds=10))
    assert bench.worker.active_claims.wait_empty(10)
    settler.stop()
    assert settler.join(timedelta(seconds=10))
    assert [
        event.name for event in bench.events if event.name.startswith("database")
    ] == [
        "database_lost",
        "database_back",
    ]
    assert [event.outcome for event in bench.said(Settled)] == ["succeeded"]


def refusing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[Settlement]:
    """Settlements come back with an error as long as the list that is returned is empty."""
    mended: list[Settlement] = []
    whole = bench.worker.store.settlements.settle

    def settle(endings: Any, **options: Any) -> list[Settlement]:
        if mended:
            return whole(endings, **options)
        return [
            Settlement(claim=claim, error=TimeoutError("locked"))
            for claim, _ in endings
        ]

    monkeypatch.setattr(bench.worker.store.settlements, "settle", settle)
    return mended


def test_an_outcome_is_kept_beyond_its_lease(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be written is tried again until it is, or until the fence refuses it: never "not
    started".
    """
    (holding,) = bench.hold(name="plain")
    mended = refusing(bench, monkeypatch)
    bench.end(holding)
    bench.worker.settler.flush()
    bench.clock.tick(2 * bench.worker.settings.lease)
    bench.worker.lease_watch.run_once()
    assert holding.lost
    bench.worker.settler.flush()
    bench.worker.heartbeat.run_once()
    assert bench.said(HandedBackEvent) == []
    mended.append(Settlement(claim=holding.claim))
    bench.clock.tick(timedelta(seconds=10))
    bench.worker.settler.flush()
    assert [event.outcome for event in bench.said(Settled)] == ["succeeded"]
    assert bench.outcome(holding) == "succeeded"


def test_an_outage_loses_nothing_that_was_set_aside(
    make_bench: MakeBench, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database may go away while it is tried again, too."""
    monkeypatch.setattr(sqlite_connections, "BUSY_TIMEOUT", timedelta(milliseconds=50))
    bench = make_bench(heartbeat_interval="50ms")
    (holding,) = bench.hold(name="plain")
    mended = refusing(bench, monkeypatch)
    bench.end(holding)
    bench.worker.settler.flush()
    mended.append(Settlement(claim=holding.claim))
    bench.clock.tick(timedelta(seconds=10))
    with locked(sqlite_url), pytest.raises(sa.exc.OperationalError):
        bench.worker.settler.run_once()
    bench.worker.settler.flush()
    assert [event.outcome for event in bench.said(Settled)] == ["succeeded"]
    assert holding.claim not in bench.worker.active_claims


def test_what_is_set_aside_keeps_nobody_waiting(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again by itself, after a pause; all others settle at once."""
    first, second = bench.hold(2)
    mended = refusing(bench, monkeypatch)
    bench.end(first)
    bench.worker.settler.run_once()
    for _ in range(3):
        pause = bench.worker.settler.run_once()
        assert pause is not None
        assert timedelta(0) < pause <= LONGEST_STUCK_PAUSE
        bench.clock.tick(pause + timedelta(microseconds=1))
    mended.append(Settlement(claim=first.claim))
    bench.end(second)
    bench.worker.settler.run_once()
    assert second.claim not in bench.worker.active_claims


# -- what is dead ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mail", "plain"], ids=["a task", "a slot"])
def test_what_its_holders_have_died_of_is_told_with_its_cure(
    bench: Bench, name: str
) -> None:
    """The reaper that ends it reports an error besides its warning: nothing tries again what it
    took over.
    """
    (holding,) = bench.hold(name=name)
    tasks = bench.worker.store.tables.tasks
    with bench.worker.store.transaction() as connection:
        connection.execute(tasks.update().where(tasks.c.picked).values(lost_count=2))
    _, rows = bench.worker.store.held.silent_rows([name])
    bench.worker.reaper.take_over(rows)
    claim = holding.claim
    cure = (
        f"retry plain {claim.slot.isoformat()}"
        if claim.slot
        else f"tasks retry mail {claim.key.task_instance}"
    )
    (told,) = bench.said(SettledDead)
    assert (told.level, told.job, told.outcome) == (logging.ERROR, name, "dead")
    assert told.cure == f"slotwise {cure}"
    assert "lost 3 times" in told.error


# -- how loud it is -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "outcome", "level"),
    [
        ("plain", Succeeded(), logging.INFO),
        ("plain", Aborted("shutdown"), logging.INFO),
        ("plain", Cancelled("not today"), logging.INFO),
        ("plain", Failed("boom"), logging.ERROR),
        ("plain", Failed("boom", final=True), logging.ERROR),
        ("mail", Failed("boom"), logging.WARNING),
        ("mail", Failed("boom", final=True), logging.ERROR),
    ],
    ids=repr,
)
def test_a_failure_is_logged_with_its_traceback(
    bench: Bench,
    caplog: pytest.LogCaptureFixture,
    name: str,
    outcome: AttemptOutcome,
    level: int,
) -> None:
    """Once: as a warning where another attempt follows, as an error where the slot or task has
    failed for good.
    """
    boom = ValueError("boom")
    if isinstance(outcome, Failed):
        outcome = replace(outcome, exception=boom)
    (holding,) = bench.hold(name=name)
    bench.end(holding, outcome)
    bench.worker.settler.run_once()
    (told,) = bench.said(Settled)
    assert (told.level, told.exception) == (
        level,
        boom if isinstance(outcome, Failed) else None,
    )
    assert "exception" not in told.facts()
    raised = [
        (record.levelno, record.exc_info and record.exc_info[1])
        for record in caplog.records
    ]
    assert raised == ([(level, boom)] if level > logging.INFO else [])


@pytest.mark.parametrize(
    ("name", "lost", "counted"),
    [("plain", 2, {"dead": 1}), ("plain", 0, {}), ("strict", 0, {"lost": 1})],
    ids=["dead", "runs again", "lost for good"],
)
def test_what_a_reaper_ends_is_counted_at_once(
    bench: Bench, name: str, lost: int, counted: dict[str, int]
) -> None:
    """As what a worker settles: not only when the hour is closed."""
    (holding,) = bench.hold(name=name)
    store = bench.worker.store
    if name == "strict":
        assert store.held.mark_running(holding.claim)
    tasks = store.tables.tasks
    with store.transaction() as connection:
        connection.execute(
            tasks.update().where(tasks.c.picked).values(lost_count=lost)
        )
    _, rows = store.held.silent_rows([name])
    bench.worker.reaper.take_over(rows)
    bench.worker.counting.run_once()
    counts = store.tables.counts.c
    wanted = sa.select(counts.outcome, counts.count).where(counts.outcome != "skipped")
    with store.transaction() as connection:
        found = connection.execute(wanted).all()
    assert [tuple(one) for one in found] == list(counted.items())


@pytest.mark.parametrize(
    ("name", "level"), [("plain", logging.WARNING), ("strict", logging.ERROR)]
)
def test_a_loss_is_logged_by_the_worker_that_takes_over(
    bench: Bench, name: str, level: int
) -> None:
    """With the dead worker's name: a warning where the slot runs again, an error where it is lost
    for good.
    """
    (holding,) = bench.hold(name=name)
    if name == "strict":
        assert bench.worker.store.held.mark_running(holding.claim)
    _, rows = bench.worker.store.held.silent_rows([name])
    bench.worker.reaper.take_over(rows)
    (told,) = bench.said(Reaped)
    assert (told.level, told.outcome, told.holder) == (
        level,
        "lost",
        holding.claim.holder,
    )
    assert bench.said(Settled) == []
