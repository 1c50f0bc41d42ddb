"""Slots that come while nobody holds the job though it is due are catch-up's, whatever the row
waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.kit.records import Aborted, Failed, HandedBack, Snoozed
from tests.store.conformance.test_policies import drain, ledger, working

from slotwise import CatchUp, Every, Overlap, Retry, job
from slotwise.spi import Claim, Database
from slotwise.testing import ManualWorker


def pass_halves(worker: ManualWorker, number: int, *, beating: bool = True) -> None:
    """So many half minutes."""
    for _ in range(number):
        worker.tick("30s")
        if beating:
            worker.beat()


def begin(worker: ManualWorker) -> Claim:
    (claim,) = worker.poll()
    assert worker.begin(claim)
    return claim


def end_with(outcome: Any) -> Callable[[ManualWorker, Claim], None]:
    def end(worker: ManualWorker, claim: Claim) -> None:
        worker.finish(claim, outcome)
        worker.settle()

    return end


WAYS = {
    "told to stop": end_with(Aborted("shutdown")),
    "failed": end_with(Failed("no luck")),
    "asked for later": end_with(Snoozed(timedelta(seconds=1))),
}


#: Which of the slots that were missed run, and why the others do not.
CATCH_UPS = pytest.mark.parametrize(
    ("catch_up", "runs", "reason"),
    [
        pytest.param(CatchUp.latest(), slice(-1, None), "collapsed", id="latest"),
        pytest.param(
            CatchUp.first(),
            slice(0, 1),
            "collapsed",
            id="first",
            marks=pytest.mark.extended,
        ),
        pytest.param(CatchUp.all(), slice(None), "", id="all"),
        pytest.param(
            CatchUp.all(max=2),
            slice(-2, None),
            "collapsed",
            id="two",
            marks=pytest.mark.extended,
        ),
        pytest.param(
            CatchUp.none(grace="10s"),
            slice(0, 0),
            "late",
            id="none",
            marks=pytest.mark.extended,
        ),
    ],
)


def fates(database: Database) -> dict[float, str]:
    """Of each slot: that it succeeded, or why it did not run."""
    return {slot: said.split()[-1] for slot, said in ledger(database).items()}


def missed(
    database: Database, first: int, last: int, runs: slice, reason: str
) -> None:
    """Of the slots from the first to the last these ran, and the others did not, for that
    reason.
    """
    found, slots = fates(database), range(first, last + 1)
    assert {slot: found[slot] for slot in slots} == {
        slot: "succeeded" if slot in slots[runs] else reason for slot in slots
    }


@CATCH_UPS
@pytest.mark.parametrize("way", WAYS)
def test_an_outage_while_an_attempt_is_due(
    database: Database, way: str, catch_up: CatchUp, runs: slice, reason: str
) -> None:
    """Slots 1 to 3 come while slot 0 is held; 4 to 6 while its next attempt is due and nobody
    lives.
    """
    retry = Retry(max_attempts=2, past_next_slot=True)
    with working(database, catch_up=catch_up, retry=retry) as (worker, _):
        worker.tick("1s")
        claim = begin(worker)
        pass_halves(worker, 7)
        WAYS[way](worker, claim)
        pass_halves(worker, 6, beating=False)
        drain(worker)
    assert [fates(database)[slot] for slot in (0, 1, 2, 3)] == [
        "succeeded",
        *["overlap"] * 3,
    ]
    missed(database, 4, 6, runs, reason)


@CATCH_UPS
def test_an_outage_after_the_last_heartbeat(
    database: Database, catch_up: CatchUp, runs: slice, reason: str
) -> None:
    """The worker is killed; slots 1 and 2 come before its last heartbeat, 3 to 6 before the next
    attempt starts, and 7 while that runs.
    """
    with working(database, catch_up=catch_up) as (worker, _):
        worker.tick("1s")
        claim = begin(worker)
        pass_halves(worker, 5)
        subject = job(name="minutely", schedule=Every("1m"), catch_up=catch_up)(
            lambda ctx: None
        )
        heir = ManualWorker([subject], worker.store.database, worker.clock)
        worker.crash()
        for _ in range(21):
            heir.tick("10s")
            heir.reap()
        again = begin(heir)
        assert (again.slot, again.row.attempt) == (claim.slot, 2)
        pass_halves(heir, 3)
        heir.finish(again)
        heir.settle()
        drain(heir)
    assert [fates(database)[slot] for slot in (0, 1, 2)] == [
        "succeeded",
        *["overlap"] * 2,
    ]
    missed(database, 3, 7, runs, reason)


@CATCH_UPS
@pytest.mark.parametrize(
    ("overlap", "kept"),
    [
        (Overlap.queue(), [3]),
        (Overlap.queue(2), [2, 3]),
        (Overlap.queue_all(), [1, 2, 3]),
    ],
    ids=["queue", "queue of two", "queue_all"],
)
def test_an_outage_while_a_slot_waits_in_its_queue(
    database: Database,
    overlap: Overlap,
    kept: list[int],
    catch_up: CatchUp,
    runs: slice,
    reason: str,
) -> None:
    """Slots 1 to 3 come while slot 0 is held; 4 to 6 while those that are kept are due and nobody
    lives; 7 while the first of them runs.
    """
    with working(database, catch_up=catch_up, overlap=overlap) as (worker, _):
        worker.tick("1s")
        claim = begin(worker)
        pass_halves(worker, 7)
        worker.finish(claim)
        worker.settle()
        pass_halves(worker, 6, beating=False)
        claim = begin(worker)
        pass_halves(worker, 2)
        worker.finish(claim)
        worker.settle()
        drain(worker)
    found = fates(database)
    assert [slot for slot in (1, 2, 3) if found[slot] == "succeeded"] == kept
    assert all(found[slot] == "overlap" for slot in (1, 2, 3) if slot not in kept)
    missed(database, 4, 7, runs, reason)


@pytest.mark.parametrize(
    "overlap", [Overlap.allow(2), Overlap.cancel_previous()], ids=lambda one: one.mode
)
@pytest.mark.parametrize(
    ("policies", "reason"),
    [
        ({"start_within": "1m"}, "late"),
        ({"catch_up": CatchUp.none(grace="1m")}, "late"),
        ({"catch_up": CatchUp.all(window="2m")}, "late"),
        ({"catch_up": CatchUp.all(max=3)}, "collapsed"),
        ({"catch_up": CatchUp.latest()}, "succeeded"),
    ],
    ids=["start_within", "none", "window", "max", "latest"],
)
def test_a_slot_side_by_side_that_never_began(
    database: Database, overlap: Overlap, policies: dict[str, Any], reason: str
) -> None:
    """It was handed back, and nobody came for minutes: what its job allows to be late holds for
    it, too.
    """
    with working(database, overlap=overlap, **policies) as (worker, started):
        worker.tick("1s")
        (claim,) = worker.poll()
        worker.finish(claim, HandedBack("shutdown"))
        worker.settle()
        worker.tick("5m")
        drain(worker)
    assert (fates(database)[0], 0 in started) == (reason, reason == "succeeded")


@pytest.mark.parametrize("outcome", [None, Failed("no luck")], ids=str)
def test_an_outcome_that_cannot_be_written_keeps_its_claim(
    database: Database, outcome: Any
) -> None:
    """On a full disk neither heartbeats nor settlements are written. This worker's reaper leaves
    its own ended claims to its settler: the hold ended with the handler, and no attempt is lost.
    """
    with working(database) as (worker, _):
        worker.tick("1s")
        claim = begin(worker)
        worker.finish(claim, outcome)
        for _ in range(6):
            worker.tick("30s")
            assert worker.reap() == []
        worker.settle()
        drain(worker)
    assert "overlap" not in fates(database).values()
