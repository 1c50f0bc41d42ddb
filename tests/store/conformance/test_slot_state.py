"""What a process that runs one slot in the foreground reads about it, and what it then does."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.kit.records import Failed
from tests.kit.store import (
    Badge,
    Claims,
    Planner,
    Revision,
    WorkerRegistry,
    slot_state,
)
from tests.store.bench import MINUTE, NOON, Bench, a_job, at

from slotwise import Cron, Every, FixedDelay, Overlap
from slotwise.contrib.processes.slot_steps import (
    Leave,
    Over,
    Stay,
    Step,
    Take,
    next_step,
)
from slotwise.inspect import RECURRING
from slotwise.spi import Key

ME = "pod:1:a"


def step(
    bench: Bench, name: str, minutes: float, *, waits: bool = True
) -> Step | None:
    return next_step(slot_state(bench.store, name, at(minutes)), me=ME, waits=waits)


def claim_row(
    bench: Bench, name: str, instance: str = RECURRING, holder: str = ME
) -> list[float]:
    """The slots that a claim of this row alone starts, in minutes after noon."""
    claims: Claims = bench.store.claims
    made = claims.claim_row(holder, Key(name, instance), lease=MINUTE).claims
    return [(claim.slot - NOON) / MINUTE for claim in made if claim.slot is not None]


def a_worker(bench: Bench, *tasks: str) -> None:
    """A live worker that knows these tasks."""
    badge = Badge(
        worker="w:1:b",
        host="w",
        pid=1,
        boot_id="b",
        version="1",
        capacity=1,
        tags=[],
        tasks=tasks,
        lease=MINUTE * 9,
        started=bench.clock.now(),
        revision=None,
        refused=[],
        passed_over={},
    )
    WorkerRegistry(bench.store).sign_in(badge, "running")


def test_a_due_slot_is_taken_and_its_end_is_seen(bench: Bench) -> None:
    """Waiting, due, held, over; and the slot after it is not due."""
    assert step(bench, "plain", 1) == Stay(
        "it is due at 2026-01-01T12:01:00Z: waiting", at(1)
    )
    bench.tick()
    assert step(bench, "plain", 1) == Take(Key("plain", RECURRING))
    claim = bench.claim_one("plain")
    assert isinstance(step(bench, "plain", 1), Stay)
    bench.settle(claim)
    assert isinstance(step(bench, "plain", 1), Over)
    assert claim_row(bench, "plain") == []


def test_one_row_alone_is_claimed(bench: Bench) -> None:
    """A process for one slot leaves other rows of the job to others: triggers, for example."""
    bench.client.operations.trigger("plain")
    bench.tick()
    assert claim_row(bench, "plain") == [1]
    assert [row["outcome"] for row in bench.slots("plain")] == ["running"]


def test_a_held_slot_is_left_only_to_a_live_worker(bench: Bench) -> None:
    """Where no worker is live, nobody else would take it over."""
    bench.tick()
    bench.claim_one("plain", holder="other:1:c")
    assert isinstance(step(bench, "plain", 1), Stay)
    assert step(bench, "plain", 1, waits=False) == Leave(
        "it is held by other:1:c; not waiting", "running"
    )
    a_worker(bench, "strict")
    assert isinstance(step(bench, "plain", 1), Stay), (
        "a worker that does not know the job is no help"
    )
    WorkerRegistry(bench.store).sign_out("w:1:b")
    a_worker(bench, "plain")
    assert step(bench, "plain", 1) == Leave(
        "it is held by other:1:c, and a live worker can finish it", "running"
    )
    bench.tick(30)  # the worker has fallen silent
    assert isinstance(step(bench, "plain", 1), Stay)


def test_a_row_of_ones_own_is_waited_for(bench: Bench) -> None:
    """The reply to the claim was lost: the next heartbeat hands the row back, whatever workers
    live.
    """
    a_worker(bench, "plain")
    bench.tick()
    bench.claim_one("plain", holder=ME)
    assert isinstance(step(bench, "plain", 1, waits=False), Stay)


def test_a_lost_slot_is_taken_over(bench: Bench) -> None:
    """After a reaper's look the row is due as the next attempt of the same slot."""
    bench.tick()
    bench.take_over(bench.claim_one("plain", holder="dead:1:d"))
    bench.tick()
    assert isinstance(step(bench, "plain", 1), Take)
    assert claim_row(bench, "plain") == [1]
    assert bench.slot("plain")["attempts"] == 2


def test_a_retry_is_waited_for(bench: Bench) -> None:
    """Until its time, where no worker is live; else it is left."""
    bench.tick()
    bench.settle(bench.claim_one("retried"), Failed("no"))
    found = step(bench, "retried", 1)
    assert isinstance(found, Stay)
    assert found.until == bench.row("retried").execution_time
    assert isinstance(step(bench, "retried", 1, waits=False), Leave)
    a_worker(bench, "retried")
    assert isinstance(step(bench, "retried", 1), Leave)


def test_skipped_slots_are_over(bench: Bench) -> None:
    """Slots that are one gap, and one that was skipped alone."""
    bench.tick(5)
    claim = bench.claim_one("plain")
    assert (claim.slot, bench.gaps("plain")) == (at(5), [(1, 4, 4, "collapsed")])
    assert isinstance(step(bench, "plain", 3), Over)
    assert slot_state(bench.store, "plain", at(3)).entry is None


def test_a_slot_behind_a_running_one_is_undecided(bench: Bench) -> None:
    """Overlap decides about it when the run ends: it waits for that."""
    bench.tick()
    claim = bench.claim_one("plain")
    bench.tick()
    found = step(bench, "plain", 2)
    assert isinstance(found, Stay)
    assert "slot 2026-01-01T12:01:00Z is held by" in found.why
    bench.settle(claim)
    assert isinstance(step(bench, "plain", 2), Over)


def test_a_slot_before_the_plan_is_not_ours(bench: Bench) -> None:
    """The schedule never had to decide it."""
    assert step(bench, "plain", -1) is None


def test_a_paused_job_starts_nothing(bench: Bench) -> None:
    """The job alone, and all."""
    bench.tick()
    bench.client.operations.pause("plain")
    assert isinstance(found := step(bench, "plain", 1), Leave)
    assert found.state == "paused"
    bench.client.operations.resume("plain", replay=True)
    bench.client.operations.pause_all(note="disk full")
    assert isinstance(found := step(bench, "plain", 1), Leave)
    assert "disk full" in found.why


def test_a_slot_in_a_row_of_its_own(bench: Bench) -> None:
    """With Overlap.allow the slot leaves the job's row; it is found in its own, and a retry there
    is taken.
    """
    beside = bench.beside(a_job("wide", overlap=Overlap.allow(max=2)))
    beside.plan()
    beside.tick()
    claim = beside.claim_one("wide")
    assert claim.row.is_detached
    assert isinstance(step(beside, "wide", 1), Stay)
    beside.take_over(claim)
    beside.tick()
    assert step(beside, "wide", 1) == Take(claim.key)
    assert claim_row(beside, "wide", claim.key.task_instance) == [1]


@pytest.mark.parametrize(
    ("early", "first"),
    [(timedelta(0), 0), (timedelta(seconds=10), 0), (timedelta(seconds=40), 1)],
)
def test_a_new_job_begins_with_the_due_slot(
    bench: Bench, early: timedelta, first: int
) -> None:
    """A pod that plans a new job runs the slot that has come, unless the next one is about to
    come.
    """
    beside = bench.beside(a_job("new"))
    beside.clock.tick(timedelta(seconds=30))
    deploy = Revision(started=beside.clock.now())
    Planner(beside.store).plan([beside.definitions["new"]], deploy, from_due=early)
    assert beside.row("new").slot == at(first)


@pytest.mark.parametrize(
    ("policies", "ago", "begins"),
    [
        ({}, 60, True),
        ({}, 61, False),
        ({"start_within": "2h"}, 120, True),
        ({"start_within": "5m"}, 6, False),
    ],
)
def test_a_new_job_begins_with_no_old_slot(
    bench: Bench, policies: dict[str, str], ago: int, begins: bool
) -> None:
    """A slot that came longer ago than start_within, or an hour without it, is left out: nobody
    has asked for it.
    """
    beside = bench.beside(a_job("new", Cron("0 12 * * *"), **policies))
    beside.clock.tick(timedelta(minutes=ago))
    deploy = Revision(started=beside.clock.now())
    Planner(beside.store).plan(
        [beside.definitions["new"]], deploy, from_due=timedelta(0)
    )
    assert beside.row("new").slot == (NOON if begins else NOON + timedelta(days=1))
    assert (
        next_step(slot_state(beside.store, "new", NOON), me="me", waits=True) is None
    ) is not begins


def test_a_new_job_that_is_not_new_reopens_nothing(bench: Bench) -> None:
    """A row that was deleted: what the ledger has decided stays decided."""
    bench.tick()
    bench.settle(bench.claim_one("plain"))
    bench.delete("plain")
    deploy = Revision(started=bench.clock.now())
    Planner(bench.store).plan(
        [bench.definitions["plain"]], deploy, from_due=timedelta(0)
    )
    assert bench.row("plain").slot == at(2)
    assert claim_row(bench, "plain") == []


def test_a_fixed_delay_is_planned_as_usual(bench: Bench) -> None:
    """It has no slots before its first run."""
    beside = bench.beside(
        a_job("later", FixedDelay("1m")), a_job("plain", Every("1m"))
    )
    deploy = Revision(started=beside.clock.now())
    Planner(beside.store).plan(
        [beside.definitions["later"]], deploy, from_due=timedelta(0)
    )
    assert beside.row("later").slot == at(0)
