"""The database's clock jumps. Needs libfaketime (apt-get install faketime); the workers' own
clocks stay true.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.faults.bench import LEASE, SLACK, TAKE_OVER, Bench, loaded
from tests.faults.clocks import LIBRARIES, SteppedClock
from tests.faults.conftest import MakeBench

from slotwise.embedded import EmbeddedPostgres

HOUR = timedelta(hours=1)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not LIBRARIES,
        reason="libfaketime is not installed; run: apt-get install faketime",
    ),
]


@pytest.fixture
def database_clock(
    own_server: EmbeddedPostgres, open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SteppedClock]:
    """The clock of ``own_server``, which is restarted for it."""
    clock = SteppedClock(open_path / "clock")
    own_server._cluster.stop()
    with monkeypatch.context() as environment:
        for name, value in clock.variables.items():
            environment.setenv(name, value)
        own_server._cluster.ensure_running()
    yield clock
    clock.step(timedelta(0))


def expect_step(stage: Bench, clock: SteppedClock, offset: timedelta) -> None:
    """A fault that does not fire proves nothing."""
    before = stage.now()
    clock.step(offset)
    assert abs(abs(stage.now() - before) - HOUR) < timedelta(minutes=1)


def test_steps_of_the_databases_clock_steal_no_claim_and_make_none_immortal(
    bench: MakeBench, own_server: EmbeddedPostgres, database_clock: SteppedClock
) -> None:
    """An hour back, to the truth, an hour on: the living keep their claims, the dead lose theirs,
    slots go on.
    """
    stage = bench("rerun,give-up,hold,hold-give-up", url=own_server.dsn)
    holder = stage.start("holder", only="hold")
    victim = stage.start("victim", only="hold-give-up")
    start = stage.wait("handler_start", job="hold", by=holder)
    doomed = stage.wait("handler_start", job="hold-give-up", by=victim)
    others = [
        stage.start("other-1", only="rerun,give-up,hold-give-up,hold"),
        stage.start("other-2", only="rerun,hold"),
    ]
    for other in others:
        stage.wait("settled", job="rerun")
        stage.wait("worker_start", by=other)

    victim.freeze()  # its last heartbeat is an hour ahead of the database then
    expect_step(stage, database_clock, -HOUR)
    victim.kill()
    dead = stage.wait("exit", by=victim)
    reaped = stage.wait("reaped", job=doomed["job"], token=doomed["token"])
    assert timedelta(seconds=reaped.at - dead.at) <= TAKE_OVER + loaded(SLACK)
    stage.rest(LEASE)

    expect_step(stage, database_clock, timedelta(0))
    true = stage.now()
    stage.wait("settled", job="rerun", slot=lambda slot: slot > true)

    expect_step(stage, database_clock, HOUR)
    late = stage.now()
    for job in ("rerun", "give-up", "hold-give-up"):
        settled = stage.wait(
            "settled", job=job, slot=lambda slot: slot > late - timedelta(seconds=1)
        )
        assert settled["outcome"] == "succeeded"
    stage.rest(LEASE)

    assert (
        stage.events.all(
            "reaped", "claim_lost", job=start["job"], token=start["token"]
        )
        == []
    )
    assert [seen["job"] for seen in stage.events.all("reaped")] == ["hold-give-up"]
    until = stage.now()
    for job in ("rerun", "give-up", "hold-give-up"):
        stage.wait("settled", job=job, slot=lambda slot: slot > until)
    stage.end_all()
    found = stage.expect_clean()
    assert found.tally.skipped > 2 * HOUR.total_seconds()
