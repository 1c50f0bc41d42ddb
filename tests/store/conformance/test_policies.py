"""Overlap and lateness, as they come out in the ledger, on each database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa

from slotwise import CatchUp, Every, JobContext, Overlap, Retry, job
from slotwise.spi import Database, define
from slotwise.testing import ManualClock, ManualWorker

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class Line(tuple[float, str]):
    """Minutes after noon, and what became of the slot."""


@contextmanager
def working(
    database: Database, body: Any = None, **policies: Any
) -> Iterator[tuple[ManualWorker, list[float]]]:
    """A worker with one minutely job, planned just before noon; and the slots that its handler was
    started for.
    """
    started: list[float] = []

    def handler(ctx: JobContext) -> None:
        started.append((ctx.slot - NOON) / MINUTE)
        if body is not None:
            body(ctx)

    subject = job(name="minutely", schedule=Every("1m"), **policies)(handler)
    clock = ManualClock(NOON - timedelta(seconds=1))
    with ManualWorker([subject], database, clock) as worker:
        yield worker, started


def ledger(database: Database) -> dict[float, str]:
    """Minutes after noon: the outcome, and the reason if there is one; gaps slot by slot."""
    with database.main.connect() as connection:
        slots = connection.execute(
            sa.text("SELECT slot, outcome, reason FROM scheduled_slots")
        ).all()
        gaps = connection.execute(
            sa.text("SELECT first_slot, last_slot, count, reason FROM scheduled_gaps")
        ).all()
    found = {
        minute(slot): f"{outcome} {reason or ''}".strip()
        for slot, outcome, reason in slots
    }
    for first, last, count, reason in gaps:
        covered = [
            minute(first) + step
            for step in range(int(minute(last) - minute(first)) + 1)
        ]
        assert len(covered) == count
        assert not set(covered) & set(found)
        found |= dict.fromkeys(covered, f"gap {reason}")
    return dict(sorted(found.items()))


def minute(value: Any) -> float:
    """Minutes after noon of an instant as the driver reads it."""
    if isinstance(value, datetime):
        # MariaDB's have no zone.
        instant = value.replace(tzinfo=UTC) if value.tzinfo is None else value
    else:
        instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)
    return (instant - NOON) / MINUTE


def drain(worker: ManualWorker) -> None:
    """Everything that is due now, and what becomes due by it."""
    while worker.run_due():
        pass


@pytest.mark.parametrize(
    "policies",
    [{"catch_up": CatchUp.none(grace="10s")}, {"start_within": "10s"}],
    ids=str,
)
def test_a_slot_that_is_too_late_does_not_start(
    database: Database, policies: Any
) -> None:
    """Also when it is the only one that is due; the next one runs again."""
    with working(database, **policies) as (worker, started):
        worker.tick(timedelta(seconds=41))
        drain(worker)
        assert started == []
        worker.tick(timedelta(seconds=20))
        drain(worker)
    assert started == [1]
    assert ledger(database) == {0: "skipped late", 1: "succeeded"}


def test_a_retry_is_never_too_late(database: Database) -> None:
    """start_within is about the first attempt."""

    def fail_once(ctx: JobContext) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("busy")

    retry = Retry.exponential(max_attempts=3, initial=timedelta(seconds=20))
    with working(database, fail_once, start_within="5s", retry=retry) as (
        worker,
        started,
    ):
        worker.tick("1s")
        drain(worker)
        worker.tick("45s")
        drain(worker)
    assert started == [0, 0]
    assert ledger(database) == {0: "succeeded"}


@pytest.mark.parametrize(
    ("overlap", "runs", "skipped"),
    [
        (Overlap.skip(), [0], [1, 2, 3]),
        (Overlap.queue(), [0, 3], [1, 2]),
        (Overlap.queue(2), [0, 2, 3], [1]),
        (Overlap.queue_all(), [0, 1, 2, 3], []),
    ],
    ids=["skip", "queue", "queue of two", "queue_all"],
)
def test_slots_that_come_due_during_a_run(
    database: Database, overlap: Overlap, runs: list[float], skipped: list[float]
) -> None:
    """The first run takes three and a half minutes; what follows is decided when it is settled."""
    with working(database, overlap=overlap) as (worker, started):
        worker.tick("1s")
        (claim,) = worker.poll()
        assert worker.begin(claim)
        for _ in range(7):
            worker.tick("30s")
            worker.beat()
        worker.finish(claim)
        worker.settle()
        drain(worker)
    assert [0, *started] == runs
    found = ledger(database)
    assert [slot for slot, said in found.items() if said == "succeeded"] == runs
    assert [
        slot for slot, said in found.items() if said.endswith("overlap")
    ] == skipped


def test_a_spread_moves_the_start_and_not_the_slot(database: Database) -> None:
    """The worker sleeps until the due time; the ledger knows the slot by its own instant."""
    subject = job(name="minutely", schedule=Every("1m"), spread="30s")
    schedule = define(subject(lambda ctx: None)).schedule
    assert schedule is not None
    wait = schedule.wait(NOON)
    assert timedelta(seconds=1) < wait < timedelta(seconds=30)
    with working(database, spread="30s") as (worker, started):
        worker.clock.set(NOON + wait - timedelta(milliseconds=1))
        assert worker.run_due() == []
        worker.clock.set(NOON + wait)
        drain(worker)
    assert started == [0]
    assert ledger(database) == {0: "succeeded"}


def test_min_interval_keeps_starts_apart(database: Database) -> None:
    """A job of each minute that starts at most every 150 s: what comes due meanwhile is collapsed,
    as if missed.
    """
    with working(database, min_interval="150s") as (worker, started):
        starts = []
        for _ in range(40):
            worker.tick("15s")
            if worker.run_due():
                starts.append(worker.clock.now())
    assert started == [0, 2, 5, 7]
    assert all(
        after - before >= timedelta(seconds=150) for before, after in pairwise(starts)
    )
    assert {
        slot for slot, said in ledger(database).items() if said == "skipped collapsed"
    } <= {1, 3, 4, 6, 8, 9}


def test_a_redeploy_brings_no_two_starts_nearer(database: Database) -> None:
    """The row of a changed schedule still keeps the distance to the last start."""
    with working(database, min_interval="10m") as (worker, _):
        worker.tick("1s")
        drain(worker)
        subject = job(name="minutely", schedule=Every("30s"), min_interval="10m")(
            lambda ctx: None
        )
        with ManualWorker([subject], database, worker.clock) as newer:
            (row,) = rows(database)
            assert row["schedule"].startswith("EVERY|30s")
            newer.tick("9m")
            assert newer.run_due() == []
            newer.tick("1m")
            assert len(newer.run_due()) == 1


def planned(row: sa.RowMapping) -> dict[str, Any]:
    """The document ``plan``; SQLite returns its text."""
    found = row["plan"]
    return json.loads(found) if isinstance(found, str) else found  # type: ignore[no-any-return]


def test_what_a_job_wants_stands_in_its_row(database: Database) -> None:
    """Priority and tags, for whoever has no code to look at; a deploy changes them."""
    with working(database, priority=90, runs_on=["gpu", "big"]):
        assert [
            (row["priority"], planned(row).get("runs_on")) for row in rows(database)
        ] == [(90, ["big", "gpu"])]
    with working(database):
        assert [
            (row["priority"], planned(row).get("runs_on")) for row in rows(database)
        ] == [(50, None)]


def test_a_higher_priority_goes_first_where_workers_are_short(
    database: Database,
) -> None:
    """Also of slots that came later; within a priority the oldest first. One-time tasks wait for
    all of them.
    """
    subjects = [
        job(name=f"{priority}-{number}", schedule=Every("1m"), priority=priority)(
            lambda ctx: None
        )
        for priority in (10, 50, 90)
        for number in range(2)
    ]
    with ManualWorker(
        subjects, database, ManualClock(NOON - timedelta(seconds=1)), threads=1
    ) as worker:
        worker.plan()
        with database.main.begin() as connection:
            older = "UPDATE scheduled_tasks SET execution_time = :due WHERE task_name LIKE '%-1'"
            value = sa.bindparam(
                "due",
                NOON - timedelta(seconds=1),
                worker.store.tables.tasks.c.execution_time.type,
            )
            connection.execute(sa.text(older).bindparams(value))
        worker.tick("2s")
        order = [ended.job for ended in worker.run_due()]
    assert order == ["90-1", "90-0", "50-1", "50-0", "10-1", "10-0"]


def test_a_worker_claims_only_what_it_carries_the_tags_for(database: Database) -> None:
    """It plans the others, and takes them over from the dead; it never runs them."""
    subject = job(name="minutely", schedule=Every("1m"), runs_on=["gpu"])(
        lambda ctx: None
    )
    clock = ManualClock(NOON - timedelta(seconds=1))
    with (
        ManualWorker(
            [subject], database, clock, worker_name="plain", tags=["big"]
        ) as plain,
        ManualWorker(
            [subject], database, clock, worker_name="gpu", tags=["gpu", "big"]
        ) as gpu,
    ):
        plain.tick("2s")
        assert plain.poll() == []
        (claim,) = gpu.poll()
        assert gpu.begin(claim)
        gpu.crash()
        taken = []
        for _ in range(10):
            plain.tick("10s")
            taken += plain.reap()
        assert [event.outcome for event in taken] == ["lost"]
        assert plain.poll() == []


def rows(database: Database) -> list[Any]:
    with database.main.connect() as connection:
        return list(
            connection.execute(sa.text("SELECT * FROM scheduled_tasks")).mappings()
        )
