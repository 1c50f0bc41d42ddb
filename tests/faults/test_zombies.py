"""Workers that come back from the dead, and the effects that they must not have."""

from __future__ import annotations

import signal

import pytest
from tests.faults.bench import HEARTBEAT, LEASE, TAKE_OVER, Bench, eventually
from tests.faults.conftest import MakeBench


def leave(stage: Bench, job: str) -> None:
    until = stage.now()
    stage.wait("settled", job=job, slot=lambda slot: slot > until)
    stage.end_all()
    stage.expect_clean(until=until)


@pytest.mark.parametrize(
    ("job", "trap"),
    [
        pytest.param("hold-give-up", "", id="in the handler"),
        # also among the freezes at any phase
        pytest.param(
            "give-up",
            "handler_start:1:STOP",
            id="between mark and handler",
            marks=pytest.mark.extended,
        ),
    ],
)
def test_a_zombie_that_gives_up_has_started_once(
    bench: MakeBench, job: str, trap: str
) -> None:
    """give_up: a worker frozen past its lease finishes, or even starts, late; but nobody else ever
    starts that slot.
    """
    stage = bench(job)
    zombie = stage.start("zombie", trap=trap)
    start = stage.wait("handler_start", by=zombie)
    if trap:
        stage.wait("trap", by=zombie)
    else:
        eventually(lambda: stage.starts(job))
        zombie.freeze()
    stage.start("other")
    reaped = stage.wait("reaped", job=start["job"], token=start["token"])
    assert reaped["outcome"] == "lost"
    stage.wait("settled", job=job, after=reaped)  # the schedule goes on
    zombie.thaw()
    stage.wait("claim_lost", by=zombie, job=start["job"], token=start["token"])
    stage.wait("handler_end", by=zombie, job=start["job"], token=start["token"])
    leave(stage, job)
    assert len([line for line in stage.starts(job) if line.slot == start["slot"]]) == 1
    row = stage.ledger(job)[start["slot"]]
    assert (row.outcome, row.reason, row.attempts) == (
        "lost",
        "may_still_be_running",
        1,
    )


def test_the_outcome_of_a_zombie_is_refused_while_another_holds_its_slot(
    bench: MakeBench,
) -> None:
    """The row is held again, under another token and by another worker: the zombie's success is
    not taken for its.
    """
    stage = bench("hold-again")
    zombie = stage.start("zombie", trap="handler_start:1:STOP")
    stage.wait("trap", by=zombie)
    other = stage.start("other")
    again = stage.wait("handler_start", by=other, attempt=2)
    zombie.thaw()
    stage.wait("handler_end", by=zombie, slot=again["slot"], outcome="succeeded")
    end = stage.wait("handler_end", by=other, job=again["job"], token=again["token"])
    settled = stage.wait(
        "settled", "claim_lost", job=again["job"], token=again["token"]
    )
    assert (settled.name, settled.number > end.number) == ("settled", True)
    assert stage.events.all("settled", by=zombie, slot=again["slot"]) == []
    leave(stage, "hold-again")
    assert stage.ledger("hold-again")[again["slot"]].token == again["token"]


def test_the_outcome_of_a_zombie_is_refused_where_its_id_lives_again(
    bench: MakeBench,
) -> None:
    """Its task was taken over, ended and scheduled anew under the same id: that one is not settled
    by the zombie.
    """
    stage = bench("linger")
    zombie = stage.start("zombie")
    stage.wait("worker_start", by=zombie)
    stage.registry.client.schedule("linger", 1, id="bill")
    first = stage.wait("handler_start", by=zombie)
    eventually(lambda: stage.starts("linger"))
    zombie.freeze()
    other = stage.start("other")
    stage.wait("settled", id="bill", by=other)
    assert stage.registry.client.schedule("linger", 3, id="bill").status == "scheduled"
    anew = stage.wait(
        "handler_start", by=other, after=stage.wait("settled", id="bill", by=other)
    )
    zombie.thaw()
    stage.wait("claim_lost", by=zombie, job="linger", token=first["token"])
    last = stage.wait("settled", id="bill", token=anew["token"])
    assert (last.worker, last["outcome"], last["attempt"]) == (other, "succeeded", 1)
    stage.wait_for_empty_queue()
    stage.end_all()
    tokens = [line.token for line in stage.starts("linger")]
    assert (tokens, len(tokens)) == (sorted(set(tokens)), 3)
    assert {seen.worker for seen in stage.events.all("settled", id="bill")} == {other}


@pytest.mark.extended
def test_an_async_zombie_is_cancelled(bench: MakeBench) -> None:
    """When it wakes up it learns that its claim is gone, its handler is cancelled, and its outcome
    is refused.
    """
    stage = bench("hold-async")
    zombie = stage.start("zombie")
    start = stage.wait("handler_start", by=zombie)
    eventually(lambda: stage.starts("hold-async"))
    zombie.freeze()
    stage.start("other")
    stage.wait("settled", job="hold-async", slot=start["slot"], attempt=2)
    zombie.thaw()
    stage.wait("claim_lost", by=zombie, job=start["job"], token=start["token"])
    end = stage.wait("handler_end", by=zombie, job=start["job"], token=start["token"])
    assert end["outcome"] == "cancelled"
    leave(stage, "hold-async")


def test_a_worker_killed_after_the_users_commit_had_its_effect_once(
    bench: MakeBench,
) -> None:
    """complete_in: the commit decided; the reaper finds the success, and the slot never starts
    again.
    """
    stage = bench("hold-after-commit")
    victim = stage.start("victim")
    done = stage.wait("committed", by=victim)
    victim.kill()
    stage.start("other")
    reaped = stage.wait("reaped", job=done["job"], token=done["token"])
    assert reaped["outcome"] == "succeeded"
    leave(stage, "hold-after-commit")
    assert stage.rows(
        "select count(*) from effects where key = :key", key=done["slot"].isoformat()
    ) == [(1,)]
    assert stage.ledger("hold-after-commit")[done["slot"]].outcome == "succeeded"


@pytest.mark.extended
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_task_stopped_after_the_users_commit_had_its_effect_once(
    bench: MakeBench, number: int
) -> None:
    """The same for a one-time task, which has no slot; killed, or told to stop by a shutdown."""
    stage = bench("pay", shutdown_grace="0s")
    victim = stage.start("victim")
    stage.wait("worker_start", by=victim)
    stage.registry.client.schedule("pay", id="invoice-1")
    stage.wait("committed", by=victim)
    victim.kill(number)
    victim.wait()
    stage.start("other")
    stage.wait_for_empty_queue()
    stage.end_all()
    assert stage.rows("select key, count(*) from effects group by 1") == [
        ("invoice-1", 1)
    ]


def test_the_lock_of_a_frozen_guard_ends_with_the_lease(bench: MakeBench) -> None:
    """A worker frozen inside its guarded transaction blocks the slot for a lease, and its effect
    is never seen.

    How long that was is counted in heartbeats of the worker that takes over: who waits for a core
    looks less often.
    """
    stage = bench("hold-in-guard")
    zombie = stage.start("zombie")
    guarded = stage.wait("guarded", by=zombie)
    zombie.freeze()
    other = stage.start("other")
    again = stage.wait("handler_start", by=other, slot=guarded["slot"])
    looks = [
        seen
        for seen in stage.events.all("heartbeat", by=other)
        if guarded.number < seen.number < again.number
    ]
    assert len(looks) <= (LEASE + TAKE_OVER) / HEARTBEAT + 2
    zombie.thaw()
    end = stage.wait(
        "handler_end", by=zombie, job=guarded["job"], token=guarded["token"]
    )
    assert end["outcome"] == "failed"
    leave(stage, "hold-in-guard")
    key = guarded["slot"].isoformat()
    tokens = stage.rows("select token from effects where key = :key", key=key)
    assert tokens == [(again["token"],)]
