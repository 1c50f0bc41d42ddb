"""Histories of deploys and workers, which stop nothing."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
import sqlalchemy as sa
from tests.kit.store import Planner, Pruner, Revision, Store
from tests.store.bench import NOON, Bench, a_job, at
from tests.store.conformance.test_membership import LEASE, a_member

from slotwise import Disabled, Every, Settings
from slotwise.spi import Database

HOUR = timedelta(hours=1)
YEARS = 9000 * HOUR


def deploys(bench: Bench) -> list[tuple[str | None, str, str | None]]:
    found = bench.inspect.deploys(NOON - YEARS, NOON + YEARS, job="nightly")
    return [(one.former, one.schedule, one.revision) for one in reversed(found)]


def plan(bench: Bench, schedule: str, revision: str) -> None:
    job = a_job("nightly", Every(schedule))
    bench.beside(job)
    Planner(bench.store).plan([job], Revision(text=revision, started=at(0)))


def test_deploys(bench: Bench) -> None:
    """Each text that a job had, with its revision; what changes nothing is no entry."""
    plan(bench, "2h", "1")
    bench.clock.set(at(1))
    plan(bench, "2h", "2")
    bench.clock.set(at(2))
    plan(bench, "3h", "3")
    (first, second) = deploys(bench)
    assert first[0] is None
    assert (second[0], second[2]) == (first[1], "3")
    assert first[1] != second[1]
    found = bench.inspect.deploys(at(2), at(3))
    assert [(one.job, one.at) for one in found if one.job == "nightly"] == [
        ("nightly", at(2))
    ]
    assert bench.inspect.deploys(at(3), at(4)) == []


def test_who_disabled_a_job_is_explained(bench: Bench) -> None:
    """Which deploy, when, and what the schedule was."""
    plan(bench, "2h", "1")
    bench.clock.set(at(1))
    job = a_job("nightly", Disabled())
    bench.beside(job)
    Planner(bench.store).plan([job], Revision(text="2", started=at(1)))
    found = bench.inspect.explain_job("nightly")
    assert found is not None
    assert found.state == "disabled"
    text = " ".join(found.sentences)
    assert "The schedule was changed from " in text
    assert "by revision 2 at 2026-01-01T12:01:00Z." in text


def test_a_history_that_cannot_be_written_stops_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says so, however many entries are lost."""
    with bench.database.migrations().begin() as connection:
        for table in (bench.store.tables.deploys, bench.store.tables.worker_history):
            table.drop(connection)
    with caplog.at_level(logging.WARNING, "slotwise"):
        for number in range(3):
            bench.clock.set(at(number))
            plan(bench, f"{number + 2}h", str(number))
        member = a_member(bench)
        member.join()
        member.leave()
    assert bench.row("nightly").schedule is not None
    assert len([line for line in caplog.messages if "history of deploys" in line]) == 1
    assert len([line for line in caplog.messages if "history of workers" in line]) == 1


def test_lives_of_workers(bench: Bench) -> None:
    """Sign-in, drain with its reason, end; one that vanished ended when it was last seen."""
    bench.clock.set(at(0))
    one, two = a_member(bench, "host:1:a"), a_member(bench, "host:2:b")
    one.join()
    two.join()
    bench.clock.set(at(5))
    one.renew()
    two.renew()
    one.stop_reason = "SIGTERM"
    one.drain()
    one.leave()
    bench.clock.set(at(5) + 2 * LEASE)
    vanished, left = sorted(
        bench.inspect.worker_lives(at(0), at(9)),
        key=lambda life: life.worker != "host:2:b",
    )
    assert (left.ended, left.outcome, left.reason) == (at(5), "left", "SIGTERM")
    assert left.drained is not None
    assert abs(left.drained - at(5)) < timedelta(seconds=9)
    assert (vanished.ended, vanished.outcome, vanished.reason) == (at(5), "gone", None)
    assert bench.inspect.worker_lives(at(6), at(9)) == []
    assert bench.inspect.worker_lives(at(-9), at(-6)) == []


def test_a_worker_that_lives_has_no_end(bench: Bench) -> None:
    bench.clock.set(at(0))
    a_member(bench).join()
    (life,) = bench.inspect.worker_lives(at(1), at(9))
    assert (life.ended, life.outcome, life.started) == (None, None, at(0))


def test_the_end_outlasts_the_row_of_the_worker(bench: Bench) -> None:
    """Its row is deleted after a day, when another worker signs in."""
    bench.clock.set(at(0))
    a_member(bench, "host:1:a").join()
    bench.clock.set(at(0) + 25 * HOUR)
    a_member(bench, "host:2:b").join()
    assert [one.worker for one in bench.inspect.workers()] == ["host:2:b"]
    (life,) = bench.inspect.worker_lives(at(0), at(1))
    assert (life.ended, life.outcome) == (at(0), "gone")


def test_histories_are_pruned(bench: Bench) -> None:
    """Lives with the ledger, deploys after thirteen months."""
    plan(bench, "2h", "1")
    bench.clock.set(at(0))
    member = a_member(bench)
    member.join()
    member.leave()

    def left() -> tuple[int, int]:
        list(Pruner(bench.store, keep=HOUR, failure_retention=2 * HOUR).pages())
        tables = bench.store.tables
        with bench.store.transaction() as connection:
            lives, deployed = (
                connection.scalar(sa.select(sa.func.count()).select_from(table))
                for table in (tables.worker_history, tables.deploys)
            )
        return int(lives or 0), int(deployed or 0)

    bench.clock.set(at(60))
    assert left()[0] == 1
    bench.clock.set(at(121))
    assert left()[0] == 0
    assert left()[1] > 0
    bench.clock.set(at(0) + 401 * 24 * HOUR)
    assert left()[1] == 0


def test_a_worker_leaves_while_the_database_is_away() -> None:
    """Its end is missing in the history, and nothing else fails."""
    nowhere = Settings(database_url="postgresql://nobody@127.0.0.1:1/nowhere")
    history = Store(Database(nowhere), {}).history
    history.draining("worker", "SIGTERM", timedelta(0))
    history.left("worker")
    history.gone(NOON)
