"""Keeping claims alive, learning which are lost, giving back what nobody knows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta

import pytest
from tests.kit.events import ClaimSuspect
from tests.kit.loops import LeaseWatch
from tests.kit.records import HandedBack, Succeeded
from tests.unit.engine.conftest import Bench, MakeBench

from slotwise import task
from slotwise.spi import Claim, ClaimLostEvent, HandedBackEvent, HeartbeatSent, Settled

INTERVAL = timedelta(seconds=10)


def test_a_heartbeat_renews_everything_that_is_held(bench: Bench) -> None:
    """Also what still waits to begin; measured from before it was sent."""
    active_claims = bench.hold(3)
    bench.clock.tick(timedelta(seconds=20))
    assert bench.worker.heartbeat.run_once() == INTERVAL
    assert all(holding.renewed == bench.clock.elapsed() for holding in active_claims)
    (sent,) = bench.said(HeartbeatSent)
    assert (sent.count, sent.lost) == (3, 0)


def test_a_lease_is_renewed_from_before_the_heartbeat_was_sent(bench: Bench) -> None:
    """Law 6: a reaper counts from the heartbeat, not from its reply. A slow reply makes no lease
    longer.
    """
    (holding,) = bench.hold()
    assert holding.begin()
    bench.clock.tick(timedelta(seconds=20))
    bench.delay_reply(bench.worker.store.held, "beat", timedelta(seconds=30))
    assert bench.worker.heartbeat.run_once() == timedelta(0)
    assert bench.clock.elapsed() - holding.renewed == 30
    bench.clock.tick(holding.claim.lease - timedelta(seconds=30))
    bench.worker.lease_watch.run_once()
    assert holding.signal.reason == "lost"


def test_a_claim_that_was_taken_over_is_lost(bench: Bench) -> None:
    """Its handler is told, and it is said once."""
    lost, kept = bench.hold(2)
    bench.worker.store.settlements.settle([(lost.claim, HandedBack("somebody"))])
    for _ in range(2):
        bench.worker.heartbeat.run_once()
    assert (lost.lost, lost.signal.reason, kept.lost) == (True, "lost", False)
    assert [event.reason for event in bench.said(ClaimLostEvent)] == [
        "the heartbeat was refused"
    ]


def test_a_settlement_on_its_way_is_no_loss(bench: Bench) -> None:
    """Race: the settlement has been committed, its reply not yet read: the claim is gone, and
    still in the holdings.
    """
    (holding,) = bench.hold()
    assert holding.end()
    bench.worker.store.settlements.settle([(holding.claim, Succeeded())])
    bench.worker.heartbeat.run_once()
    assert bench.said(ClaimLostEvent) == []
    assert holding.signal.reason is None


def test_a_claim_whose_reply_was_lost_goes_back(bench: Bench) -> None:
    """The database says that we hold it, we do not know of it: nothing is burnt."""
    (holding,) = bench.hold()
    bench.lose_reply(holding)
    bench.worker.heartbeat.run_once()
    assert [event.reason for event in bench.said(HandedBackEvent)] == ["unknown"]
    row = bench.row(holding)
    assert (row.picked, row.attempt) == (False, 0)


def test_an_idle_worker_asks_for_its_rows_only_after_a_claim(bench: Bench) -> None:
    """Else a heartbeat costs one statement. After a failure for a lease: what the server commits
    late is found, too.
    """
    looks, look = list[str](), bench.worker.store.held.held_by

    def counted(holder: str) -> Sequence[Claim]:
        looks.append(holder)
        return look(holder)

    bench.worker.store.held.held_by = counted  # type: ignore[method-assign]
    bench.worker.heartbeat.run_once()
    assert len(looks) == 0
    bench.worker.poller.claim(1)
    for _ in range(2):
        bench.worker.heartbeat.run_once()
    assert len(looks) == 1
    (holding,) = bench.hold()
    looks.clear()
    bench.worker.heartbeat.run_once()
    assert len(looks) == 1
    bench.lose_reply(holding)
    for passed in (timedelta(0), bench.worker.settings.lease - timedelta(seconds=1)):
        bench.clock.tick(passed)
        bench.worker.heartbeat.run_once()
    assert len(looks) == 3
    bench.clock.tick(timedelta(seconds=1))
    bench.worker.heartbeat.run_once()
    assert len(looks) == 3


def test_nothing_goes_back_while_a_claim_is_under_way(bench: Bench) -> None:
    """Race: it may be committed, and on its way into the holdings."""
    (holding,) = bench.hold()
    bench.lose_reply(holding)
    with bench.worker.active_claims.claiming():
        bench.worker.heartbeat.run_once()
    assert bench.row(holding).picked
    assert bench.said(HandedBackEvent) == []


def test_nothing_goes_back_that_is_claimed_during_the_look(bench: Bench) -> None:
    """Race: no claim was under way before the look; one is committed before the look ends, and its
    reply is not here. So the look finds a row that the holdings do not have, and that is not lost.
    """
    worker, look = bench.worker, bench.worker.store.held.held_by
    bench.hold()
    bench.registry.client.schedule("mail", id="claimed meanwhile")
    with ExitStack() as under_way:

        def look_and_claim(holder: str) -> Sequence[Claim]:
            under_way.enter_context(worker.active_claims.claiming())
            worker.store.claims.claim_tasks(
                holder, 1, lease=worker.settings.lease, names=["mail"]
            )
            return look(holder)

        worker.store.held.held_by = look_and_claim  # type: ignore[method-assign]
        worker.heartbeat.run_once()
    standing = {claim.key.task_instance for claim in look(worker.name)}
    assert "claimed meanwhile" in standing
    assert bench.said(HandedBackEvent) == []


@pytest.mark.parametrize(
    ("marked", "outcome"), [(False, None), (True, "lost")], ids=["claimed", "running"]
)
def test_an_unknown_claim_of_a_job_that_gives_up(
    bench: Bench, marked: bool, outcome: str | None
) -> None:
    """At most one start: where the mark stands, the handler may have started, so the slot does not
    start again.
    """
    (holding,) = bench.hold(name="strict")
    if marked:
        assert bench.worker.store.held.mark_running(holding.claim)
    bench.lose_reply(holding)
    bench.worker.heartbeat.run_once()
    row = bench.row(holding)
    assert not row.picked
    assert (row.slot == holding.claim.slot) is not marked
    assert bench.outcome(holding) == outcome
    assert len(bench.said(Settled)) == int(marked)


@pytest.mark.parametrize("marked", [False, True], ids=["claimed", "marked"])
def test_an_unknown_claim_of_a_task_that_gives_up(
    make_bench: MakeBench, marked: bool
) -> None:
    """As of a job: without a mark it is handed back, and nothing is burnt."""
    bench = make_bench(task(name="mail", on_lost="give_up")(print))
    (holding,) = bench.hold()
    if marked:
        assert bench.worker.store.held.mark_running(holding.claim)
    bench.lose_reply(holding)
    bench.worker.heartbeat.run_once()
    row = bench.row(holding)
    assert (row.picked, row.state, row.attempt) == (
        False,
        "dead" if marked else None,
        int(marked),
    )


# -- the lease watch: no database -----------------------------------------------------------------


def test_a_claim_without_a_heartbeat_is_doubtful_and_then_lost(bench: Bench) -> None:
    """Below one interval nothing starts on it; at the end of the lease the handler is told. Each
    is said once.
    """
    (holding,) = bench.hold()
    assert holding.begin()
    watch = bench.worker.lease_watch
    assert watch.run_once() == INTERVAL / 4
    bench.clock.tick(timedelta(seconds=51))
    for _ in range(2):
        watch.run_once()
    assert len(bench.said(ClaimSuspect)) == 1
    assert holding.signal.reason is None
    bench.clock.tick(timedelta(seconds=9))
    for _ in range(2):
        watch.run_once()
    assert [event.reason for event in bench.said(ClaimLostEvent)] == [
        "the lease ran out without a heartbeat"
    ]
    assert holding.signal.reason == "lost"


def test_the_handler_is_told_when_the_lease_ends_and_no_round_later(
    bench: Bench,
) -> None:
    """Whoever takes over may start at that very moment."""
    (holding,) = bench.hold()
    assert holding.begin()
    watch = bench.worker.lease_watch
    bench.clock.tick(holding.claim.lease - timedelta(seconds=1.5))
    rest = watch.run_once()
    assert rest == timedelta(seconds=1.5)
    bench.clock.tick(rest)
    assert watch.run_once() == INTERVAL / 4
    assert holding.signal.reason == "lost"


def test_a_heartbeat_ends_the_doubt(bench: Bench) -> None:
    """And a later doubt is said again."""
    (holding,) = bench.hold()
    assert holding.begin()
    for _ in range(2):
        bench.clock.tick(timedelta(seconds=51))
        bench.worker.lease_watch.run_once()
        bench.worker.heartbeat.run_once()
        assert holding.doubt(INTERVAL.total_seconds()) != "suspect"
    assert len(bench.said(ClaimSuspect)) == 2
    assert bench.said(ClaimLostEvent) == []


def test_what_has_ended_is_the_settlers(bench: Bench) -> None:
    """Nobody runs any more who could be told to stop."""
    (holding,) = bench.hold()
    assert holding.end()
    bench.clock.tick(timedelta(minutes=2))
    bench.worker.lease_watch.run_once()
    assert bench.events == []


def test_what_could_not_start_within_an_interval_goes_back(bench: Bench) -> None:
    """A blocked loop cannot look at its own queue; what has begun is left alone."""
    waiting, running = bench.hold(2)
    assert running.begin()
    bench.clock.tick(INTERVAL)
    bench.worker.lease_watch.run_once()
    assert not waiting.ended
    bench.clock.tick(timedelta(seconds=1))
    bench.worker.lease_watch.run_once()
    bench.worker.settler.flush()
    assert [(event.id, event.reason) for event in bench.said(HandedBackEvent)] == [
        (waiting.claim.key.task_instance, "queued")
    ]
    assert not waiting.begin()
    assert not running.ended


def test_a_claim_whose_start_hook_runs_is_kept(bench: Bench) -> None:
    """It has a thread. Handed back, the slot would come again, and its hook would take another
    one.
    """
    (holding,) = bench.hold()
    holding.held = ExitStack()
    bench.clock.tick(INTERVAL + timedelta(seconds=1))
    bench.worker.lease_watch.run_once()
    assert not holding.ended
    assert holding.begin()


def test_the_lease_watch_needs_no_database() -> None:
    """It is there for the time when there is none."""
    assert not hasattr(LeaseWatch, "_store")
