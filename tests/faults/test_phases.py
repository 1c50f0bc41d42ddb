"""A worker falls at an exact place of its work, and the others pick up."""

from __future__ import annotations

import signal
from collections import Counter
from datetime import timedelta

import pytest
from tests.faults.bench import (
    SLACK,
    TAKE_OVER,
    Bench,
    Player,
    Seen,
    eventually,
    loaded,
)
from tests.faults.conftest import MakeBench

#: The jobs, one for each phase, and at which event of it the worker that runs only this job falls.
PHASES = {
    "rerun@poll_begin": "poll_begin:6",
    "rerun@claimed": "claimed:1",
    "rerun@handler_start": "handler_start:1",
    "rerun@handler_end": "handler_end:1",
    "rerun@settle_sent": "settle_sent:1",
    "rerun@settled": "settled:1",
    "rerun@heartbeat": "heartbeat:3",
    "give-up@claimed": "claimed:1",
    "give-up@handler_start": "handler_start:1",
    "give-up@handler_end": "handler_end:1",
    "async@handler_start": "handler_start:1",
    "completing@handler_end": "handler_end:1",
    "completing@settle_sent": "settle_sent:1",
}
#: Where the worker certainly holds its slot when it falls, what is said of that slot when it is
#: taken over.
TAKEN_OVER = {
    "rerun@claimed": "lost",
    "rerun@handler_start": "lost",
    "rerun@handler_end": "lost",
    "rerun@settle_sent": "lost",
    "give-up@claimed": "handed_back",  # the mark was never set, so the handler never started
    "give-up@handler_start": "lost",
    "give-up@handler_end": "lost",
    "async@handler_start": "lost",
    "completing@handler_end": "succeeded",  # the handler's own transaction has said so
    "completing@settle_sent": "succeeded",
}


class Scene:
    """One worker that runs everything, and for each phase one that runs one job only and falls."""

    def __init__(self, stage: Bench, word: str) -> None:
        self.stage = stage
        self.doomed: dict[str, Player] = {
            job: stage.start(job, trap=f"{phase}:{word}", only=job, threads="1")
            for job, phase in PHASES.items()
        }
        self.traps: dict[str, Seen] = {
            job: stage.wait("trap", by=player) for job, player in self.doomed.items()
        }

    def token(self, job: str) -> int:
        """That of the claim which the worker held when it fell: it had only one."""
        held = [
            self.traps[job],
            *self.stage.events.all("claimed", by=self.doomed[job]),
        ]
        return int(next(seen["token"] for seen in held if seen["token"]))

    def all_are_taken_over(self) -> None:
        """Whatever was held has gone to somebody else, in time, and as what it should. On a busy
        machine another slot of the job may have been taken over before.
        """
        stays = self.stage.start("stays")
        up = self.stage.wait("worker_start", by=stays)
        for job, outcome in TAKEN_OVER.items():
            reaped = self.stage.wait("reaped", job=job, token=self.token(job))
            assert (job, reaped["outcome"]) == (job, outcome)
            begun = max(up.at, self.traps[job].at)
            assert timedelta(seconds=reaped.at - begun) <= TAKE_OVER + loaded(SLACK), (
                job
            )

    def goes_on(self) -> None:
        """Every job goes on, everybody leaves, no law is broken."""
        until = self.stage.now()
        for job in PHASES:
            self.stage.wait("settled", job=job, slot=lambda slot: slot > until)
        self.stage.end_all()
        self.stage.expect_clean(
            until=until, completes=[job for job in PHASES if "completing" in job]
        )
        starts = Counter(
            (line.job, line.slot) for job in PHASES for line in self.stage.starts(job)
        )
        assert all(
            count == 1
            for (job, _), count in starts.items()
            if job.startswith("give-up")
        )


def kill_everywhere(bench: MakeBench) -> None:
    scene = Scene(bench(",".join(PHASES)), "KILL")
    for player in scene.doomed.values():
        assert player.wait() == -signal.SIGKILL
    scene.all_are_taken_over()
    scene.goes_on()


def freeze_everywhere(bench: MakeBench) -> None:
    scene = Scene(bench(",".join(PHASES)), "STOP")
    scene.all_are_taken_over()
    tokens = {job: scene.token(job) for job in TAKEN_OVER}
    for player in scene.doomed.values():
        player.thaw()
    for job, token in tokens.items():
        scene.stage.wait("claim_lost", by=scene.doomed[job], token=token)
        assert (
            scene.stage.events.all(
                "settled", "handed_back", by=scene.doomed[job], token=token
            )
            == []
        )
    scene.goes_on()


def kill_at_drain(bench: MakeBench) -> None:
    stage = bench("hold")
    victim = stage.start("victim", trap="drain_begin:1:KILL")
    start = stage.wait("handler_start", by=victim)
    eventually(
        lambda: stage.starts("hold")
    )  # by then it has noted that it is the first
    victim.kill(signal.SIGTERM)
    assert stage.wait("trap", by=victim)["phase"] == "drain_begin"
    assert victim.wait() == -signal.SIGKILL
    _is_taken_over_by_another(stage, start)


def kill_at_take_over(bench: MakeBench) -> None:
    stage = bench("hold")
    first = stage.start("first")
    start = stage.wait("handler_start", by=first)
    eventually(lambda: stage.starts("hold"))
    reaper = stage.start("reaper", trap="reaped:1:KILL")
    stage.wait("worker_start", by=reaper)
    first.kill()
    assert stage.wait("trap", by=reaper)["token"] == start["token"]
    assert reaper.wait() == -signal.SIGKILL
    _is_taken_over_by_another(stage, start)


def _is_taken_over_by_another(stage: Bench, start: Seen) -> None:
    last = stage.start("last")
    again = stage.wait("settled", by=last, slot=start["slot"])
    assert (again["outcome"], again["attempt"]) == ("succeeded", 2)
    until = stage.now()
    stage.wait("settled", by=last, slot=lambda slot: slot > until)
    stage.end_all()
    stage.expect_clean(until=until)


@pytest.mark.extended
def test_a_kill_while_draining_loses_nothing(bench: MakeBench) -> None:
    """SIGTERM, and SIGKILL when the drain begins: what it still held is taken over."""
    kill_at_drain(bench)


def test_a_kill_right_after_a_take_over_loses_nothing(bench: MakeBench) -> None:
    """The reaper itself dies: what it let go is let go once."""
    kill_at_take_over(bench)


@pytest.mark.timeout(300)
def test_a_kill_at_any_phase_loses_nothing(bench: MakeBench) -> None:
    """SIGKILL at each of these places: what was held is taken over in time, and every slot is
    accounted for.
    """
    kill_everywhere(bench)


@pytest.mark.timeout(300)
def test_a_freeze_at_any_phase_changes_nothing_afterwards(bench: MakeBench) -> None:
    """SIGSTOP at each of these places, for longer than the lease: whatever the zombie still writes
    is refused.
    """
    freeze_everywhere(bench)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(30))
def test_kills_at_any_phase_again(bench: MakeBench, number: int) -> None:
    """Thirty times over."""
    kill_everywhere(bench)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(30))
def test_kills_of_those_who_let_go_again(bench: MakeBench, number: int) -> None:
    """Thirty times over."""
    kill_at_drain(bench) if number % 2 else kill_at_take_over(bench)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(30))
def test_freezes_at_any_phase_again(bench: MakeBench, number: int) -> None:
    """Thirty times over."""
    freeze_everywhere(bench)
