"""How soon the work of a worker that is gone starts elsewhere; and that a live one keeps its
own.
"""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest
from tests.faults.bench import (
    HEARTBEAT,
    LEASE,
    POLL,
    SLACK,
    TAKE_OVER,
    WIDE,
    WIDE_LEASE,
    Bench,
    Player,
    Seen,
    eventually,
    loaded,
)
from tests.faults.conftest import MakeBench


def held_by_first(
    stage: Bench, job: str, trap: str = "", **settings: str
) -> tuple[Player, Player, Seen]:
    """A worker that holds the job's first slot in its handler, and one that waits beside it."""
    holder = stage.start("holder", trap=trap, **settings)
    start = stage.wait("handler_start", job=job, by=holder)
    other = stage.start("other")
    stage.wait("worker_start", by=other)
    return holder, other, start


def leave(stage: Bench) -> None:
    until = stage.now()
    stage.wait("settled", slot=lambda slot: slot > until)
    stage.end_all()
    stage.expect_clean(until=until)


def test_after_a_kill_the_slot_starts_elsewhere_within_the_lease(
    bench: MakeBench,
) -> None:
    """SIGKILL: the next attempt starts after at most the lease and two intervals of the reaper.
    The holder is gone.
    """
    stage = bench("hold")
    holder, other, start = held_by_first(stage, "hold")
    holder.kill()
    dead = stage.wait("exit", by=holder)
    again = stage.wait("handler_start", job="hold", slot=start["slot"], by=other)
    assert again["attempt"] == 2
    assert timedelta(seconds=again.at - dead.at) <= TAKE_OVER + loaded(SLACK)
    gone = "SELECT 1 FROM scheduled_workers WHERE state = 'gone'"
    eventually(
        lambda: stage.rows(gone), within=(2 * LEASE + loaded(SLACK)).total_seconds()
    )
    leave(stage)
    row = stage.ledger("hold")[start["slot"]]
    assert (row.outcome, row.attempts, row.lost) == ("succeeded", 2, 1)


def test_after_sigterm_aborted_work_starts_elsewhere_at_once(bench: MakeBench) -> None:
    """SIGTERM without grace: the handler is told to stop, and its slot starts elsewhere within one
    poll and 1 s.
    """
    stage = bench("hold")
    holder, other, start = held_by_first(stage, "hold", shutdown_grace="0s")
    holder.kill(signal.SIGTERM)
    drain = stage.wait("drain_begin", by=holder)
    again = stage.wait("handler_start", job="hold", slot=start["slot"], by=other)
    assert timedelta(seconds=again.at - drain.at) <= POLL + loaded(SLACK)
    assert stage.events.all("reaped") == []
    leave(stage)
    row = stage.ledger("hold")[start["slot"]]
    assert (row.outcome, row.attempts, row.lost, row.aborted) == ("succeeded", 2, 0, 1)


@pytest.mark.extended
def test_after_sigterm_unstarted_work_starts_elsewhere_at_once(
    bench: MakeBench,
) -> None:
    """A claim whose handler has not started when the drain begins is handed back, and nothing is
    burnt.
    """
    stage = bench("give-up")
    holder = stage.start(
        "holder", trap="claimed:1:NAP", heartbeat_interval="2s"
    )  # a nap is shorter than that
    trap = stage.wait("trap", by=holder)
    holder.kill(signal.SIGTERM)
    other = stage.start("other")
    back = stage.wait("handed_back", by=holder, job=trap["job"], token=trap["token"])
    assert back["reason"] == "shutdown"
    slot = back["slot"]
    begun = max(back.at, stage.wait("worker_start", by=other).at)
    again = stage.wait("handler_start", job="give-up", by=other)
    assert timedelta(seconds=again.at - begun) <= POLL + loaded(SLACK)
    assert again["slot"] >= slot
    assert holder.wait() == 0
    leave(stage)


@pytest.mark.extended
def test_a_drain_longer_than_the_lease_takes_nothing_away(bench: MakeBench) -> None:
    """Heartbeats go on while running handlers end: nobody else starts what a draining worker still
    runs.
    """
    stage = bench("hold-long", shutdown_grace="60s", missed_heartbeats_limit=WIDE)
    holder, _, start = held_by_first(stage, "hold-long")
    holder.kill(signal.SIGTERM)
    drain = stage.wait("drain_begin", by=holder)
    stage.rest(WIDE_LEASE + HEARTBEAT)
    stage.release("hold-long")
    end = stage.wait("settled", job="hold-long", slot=start["slot"])
    assert (end.worker, end["attempt"], end["outcome"]) == (holder, 1, "succeeded")
    assert end.number > drain.number
    assert holder.wait() == 0
    assert stage.events.all("reaped", "claim_lost") == []
    leave(stage)


def test_a_pause_shorter_than_the_lease_takes_nothing_away(bench: MakeBench) -> None:
    """SIGSTOP for half the lease, twice: no take-over, no second start.

    A busy machine makes a pause longer: then the lease is doubled.
    """
    for number in range(4):
        stage, paused = paused_twice(bench, f"hold-long@{number}", beats=12 << number)
        if paused:
            leave(stage)
            return
        # The machine was busy and made a pause longer than the lease: that proves nothing. Not
        # drained: its holder may have yet to freeze itself for the second time, and a frozen
        # process ends by a kill alone.
        stage.close()
    pytest.fail(
        "four times this machine took longer than half a lease to let a worker go on"
    )


def paused_twice(bench: MakeBench, job: str, beats: int) -> tuple[Bench, bool]:
    """Freeze the holder twice and look at the end; False if a pause became longer than the lease
    after all. A lease has so many heartbeats.
    """
    stage = bench(job, missed_heartbeats_limit=str(beats))
    lease = HEARTBEAT * beats
    holder, _, start = held_by_first(
        stage, job, trap="heartbeat:5:STOP heartbeat:7:STOP"
    )
    trap = None
    for _ in range(2):
        trap = stage.wait("trap", by=holder, after=trap)
        stage.rest(lease / 2)
        holder.thaw()
        beat = stage.wait("heartbeat", by=holder, after=trap)
        if timedelta(seconds=beat.at - trap.at) + 2 * HEARTBEAT > lease:
            return stage, False
    stage.release(job)
    end = stage.wait("settled", job=job, slot=start["slot"])
    assert (end.worker, end["attempt"], end["outcome"]) == (holder, 1, "succeeded")
    assert stage.events.all("reaped", "claim_lost") == []
    return stage, True
