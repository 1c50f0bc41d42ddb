"""The double runs that other schedulers were seen to make, with our workers: none of them
happens.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from tests.faults.bench import WIDE
from tests.faults.clocks import LIBRARIES, SteppedClock
from tests.faults.conftest import MakeBench

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


@pytest.mark.skipif(
    not LIBRARIES, reason="libfaketime is not installed; run: apt-get install faketime"
)
def test_four_workers_whose_clocks_disagree_start_each_slot_once(
    bench: MakeBench, tmp_path: Path
) -> None:
    """Three seconds ahead, as much behind, an hour ahead, and one steps back an hour during a
    run.
    """
    stage = bench("beat,give-up,hold-long", missed_heartbeats_limit=WIDE)
    offsets = {
        "true": 0 * SECOND,
        "ahead": 3 * SECOND,
        "behind": -3 * SECOND,
        "far": HOUR,
    }
    clocks = {
        name: SteppedClock(tmp_path / name, offset) for name, offset in offsets.items()
    }
    for name, clock in clocks.items():
        stage.start(name, beneath=clock.variables)
    for player in stage.players:
        off = offsets[player.name].total_seconds()
        stage.wait(
            "heartbeat", by=player, skew=lambda skew, off=off: abs(skew - off) < 1
        )

    begun = stage.now()
    start = stage.wait("handler_start", job="hold-long")
    clocks[str(start.worker)].step(offsets[str(start.worker)] - HOUR)
    stage.wait(
        "heartbeat",
        by=start.worker,
        skew=lambda skew: skew < -HOUR.total_seconds() / 2 or abs(skew) < 1,
    )
    for job in ("beat", "give-up"):
        stage.wait("settled", job=job, slot=lambda slot: slot > begun + 4 * SECOND)
    assert stage.events.all("handler_end", job="hold-long") == []
    stage.release("hold-long")
    end = stage.wait("settled", job="hold-long", slot=start["slot"])
    assert (end.worker, end["attempt"], end["outcome"]) == (
        start.worker,
        1,
        "succeeded",
    )
    until = stage.now()
    stage.end_all()

    said = stage.events.all("log", message=lambda text: "off the database's" in text)
    assert {player.name for player in stage.players} - {
        str(seen.worker) for seen in said
    } <= {"true"}

    starts = Counter(
        (line.job, line.slot) for line in stage.log.read() if line.mark == "start"
    )
    assert set(starts.values()) == {1}
    assert len([slot for job, slot in starts if job == "beat" and slot > begun]) >= 4
    # "overlap" is judged by the handlers' own clocks.
    assert [
        str(one)
        for one in stage.verdict(until=until - SECOND).findings
        if one.law != "overlap"
    ] == []


@pytest.mark.extended
def test_tasks_that_wait_behind_others_for_longer_than_a_lease_run_once(
    bench: MakeBench,
) -> None:
    """Two workers of one thread each, and runs longer than the lease: what was claimed and waits
    is no one else's.
    """
    stage = bench("linger", threads="1", missed_heartbeats_limit=WIDE)
    stage.start_all(2)
    for number, seconds in enumerate((3.5, 3.5, 0.0, 0.0)):
        stage.registry.client.schedule("linger", seconds, id=str(number))
    stage.wait_for_empty_queue()
    stage.end_all()
    assert Counter(line.instance for line in stage.starts("linger")) == {
        str(number): 1 for number in range(4)
    }
    assert stage.events.all("reaped", "claim_lost") == []
