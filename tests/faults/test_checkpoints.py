"""Checkpoints of workers that die, and of one that comes back from the dead."""

from __future__ import annotations

from datetime import timedelta

from tests.faults.bench import Bench, Seen
from tests.faults.conftest import MakeBench

JOB = "hold-at-checkpoint"
DRAINED = "hold-until-drain"
OF_SLOT = "select key, token from effects where key like :slot || ' %' order by key"


def expect_resumed(stage: Bench, saved: Seen, job: str = JOB) -> Seen:
    """Each place was passed once: the first three by the first attempt, the others by the next."""
    done = stage.wait("settled", job=job, slot=saved["slot"], outcome="succeeded")
    slot = saved["slot"].isoformat()
    passed = stage.rows(OF_SLOT, slot=slot)
    tokens = 3 * [saved["token"]] + 2 * [done["token"]]
    assert [(row.key, row.token) for row in passed] == [
        (f"{slot} {place}", token) for place, token in enumerate(tokens)
    ]
    left = "select token from scheduled_checkpoints where slot = :slot"
    assert stage.rows(left, slot=saved["slot"]) == []
    return done


def leave(stage: Bench, job: str = JOB) -> None:
    until = stage.now()
    stage.wait("settled", job=job, slot=lambda slot: slot > until)
    stage.end_all()
    stage.expect_clean(until=until)


def test_what_a_killed_worker_has_saved_is_not_done_again(bench: MakeBench) -> None:
    """SIGKILL between two places: the next attempt begins at the fourth."""
    stage = bench(JOB)
    victim = stage.start("victim")
    saved = stage.wait("saved", by=victim)
    victim.kill()
    stage.start("other")
    expect_resumed(stage, saved)
    leave(stage)


def test_the_late_checkpoint_of_a_zombie_writes_nothing(bench: MakeBench) -> None:
    """It wakes up when another worker has ended its slot, and wants to go back to the beginning."""
    stage = bench(JOB)
    zombie = stage.start("zombie")
    saved = stage.wait("saved", by=zombie)
    zombie.freeze()
    stage.start("other")
    expect_resumed(stage, saved)
    stage.rest(timedelta(seconds=4))
    zombie.thaw()
    stage.wait("refused", by=zombie, slot=saved["slot"])
    expect_resumed(stage, saved)
    leave(stage)


def test_a_drain_hands_the_slot_over(bench: MakeBench) -> None:
    """Resume at a deploy: the slot goes on elsewhere from the fourth place, and nothing of it
    failed or was lost, though the job has one attempt.
    """
    stage = bench(DRAINED)
    drained = stage.start("drained")
    saved = stage.wait("saved", by=drained)
    other = stage.start("other")
    stage.wait("worker_start", by=other)
    assert drained.end() == 0
    done = expect_resumed(stage, saved, DRAINED)
    assert done.worker == other
    leave(stage, DRAINED)
    row = stage.ledger(DRAINED)[saved["slot"]]
    assert (row.outcome, row.lost, row.aborted) == ("succeeded", 0, 1)
