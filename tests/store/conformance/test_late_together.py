"""Slots that are late together are decided together: that is faster, and no other decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from tests.store.bench import LEASE, Bench, a_job, at

from slotwise import CatchUp, Overlap
from slotwise.model.records import Claim
from slotwise.store.connect.database import Database

JOBS = (
    a_job("latest"),
    a_job("first", catch_up=CatchUp.first()),
    a_job("all", catch_up=CatchUp.all(max=2)),
    a_job("too-late", catch_up=CatchUp.none(grace=timedelta(seconds=1))),
    a_job("strict", on_lost="give_up"),
    a_job("beside", overlap=Overlap.allow(2)),
    a_job("ended"),
    a_job("begun"),
    a_job("begun-strict", on_lost="give_up"),
    a_job("newest-begun"),
    a_job("newest-ended"),
    a_job("unreadable"),
)

LATEST = ([(5, "running")], [(1, 4, 4, "collapsed")])
#: Ledger and gaps: of slots, and of ranges, in minutes.
EXPECTED: dict[str, tuple[list[Any], list[Any]]] = {
    "first": ([(1, "running")], [(2, 5, 4, "collapsed")]),
    "all": ([(4, "running")], [(1, 3, 3, "collapsed")]),
    "too-late": ([], [(1, 5, 5, "late")]),
    "strict": ([(5, "claimed")], [(1, 4, 4, "collapsed")]),
    "ended": ([(1, "succeeded"), (5, "running")], [(2, 4, 3, "collapsed")]),
    "begun": ([(1, "lost"), (5, "running")], [(1, 4, 4, "collapsed")]),
    "begun-strict": ([(1, "skipped"), (5, "claimed")], [(1, 4, 4, "collapsed")]),
    "newest-ended": ([(5, "succeeded")], [(1, 4, 4, "collapsed")]),
    "unreadable": ([], []),
}


def _outage(bench: Bench) -> None:
    """Five slots of each job are missed; of some, the ledger knows more than the queue, which was restored."""
    tables = bench.tables
    with bench.store.transaction() as connection:
        for table in (tables.tasks, tables.slots, tables.gaps, tables.attempts):
            connection.execute(table.delete())
    bench.clock.set(at(0))
    bench.plan(revision="1")
    backup = bench.backup()
    bench.tick()
    _end("ended", bench.claim("ended", "begun", "begun-strict"), bench)
    bench.clock.set(at(5))
    _end("newest-ended", bench.claim("newest-begun", "newest-ended"), bench)
    bench.restore(backup)
    bench.change("unreadable", schedule="MOON|full")
    bench.clock.set(at(5.5))


def _end(name: str, claims: Sequence[Claim], bench: Bench) -> None:
    for claim in claims:
        if claim.row.task_name == name:
            bench.settle(claim)


def _seen(bench: Bench) -> Mapping[str, Any]:
    names = [found.name for found in JOBS]
    rows = {(row["task_name"], row["task_instance"]): dict(row) for row in bench.backup()}
    return {"rows": rows, "slots": [*map(bench.slots, names)], "gaps": [*map(bench.gaps, names)]}


def test_a_batch_is_decided_as_each_by_itself(database: Database) -> None:
    """Which slots run, what becomes of the others, and what queue, ledger and gaps say of both."""
    found = []
    for limit in (100, 1):
        bench = Bench(database, JOBS)
        _outage(bench)
        taken, claims = 1, list[Any]()
        while taken:
            taken, some = bench.store.claims.claim("host:1:a", limit, lease=LEASE, names=sorted(bench.definitions))
            claims += some
        found.append((sorted(claim.key for claim in claims), _seen(bench)))
    assert found[0] == found[1]
    for job in JOBS:
        assert (bench.outcomes(job.name), bench.gaps(job.name)) == EXPECTED.get(job.name, LATEST), job.name


# -- the queue was restored alone -------------------------------------------------------------------------------


def test_what_a_gap_has_decided_does_not_run_after_a_restore(bench: Bench) -> None:
    """Law 2: the gaps know of newer slots than the row and the ledger, and outrank both."""
    backup = bench.backup()
    bench.tick(5.5)
    too_late = bench.beside(a_job("plain", catch_up=CatchUp.none(grace=timedelta(seconds=1))))
    assert too_late.claim("plain") == []
    assert bench.gaps("plain") == [(1, 5, 5, "late")]
    bench.restore(backup)
    assert bench.claim("plain") == []
    assert (bench.row("plain").slot, bench.outcomes("plain"), bench.gaps("plain")) == (at(6), [], [(1, 5, 5, "late")])


def test_a_strict_slot_is_not_claimed_again_after_a_restore(bench: Bench) -> None:
    """Law 3: a late slot that stands in the ledger as claimed has had its only claim, and the row moves past it."""
    backup = bench.backup()
    bench.tick(5)
    orphan = bench.claim_one("strict", "host:1:a")
    assert orphan.slot == at(5)
    bench.restore(backup)
    bench.tick(0.5)
    assert bench.claim("strict", holder="host:2:b") == []
    assert bench.row("strict").slot == at(6)
    assert (bench.outcomes("strict"), bench.gaps("strict")) == ([(5, "cancelled")], [(1, 4, 4, "collapsed")])
    assert not bench.store.held.mark_running(orphan)


def test_a_strict_slot_that_started_is_decided(bench: Bench) -> None:
    """Law 2: nothing that may still run is counted among the missed slots. It ends as lost, and newer ones start."""
    backup = bench.backup()
    bench.tick(5)
    assert bench.store.held.mark_running(bench.claim_one("strict", "host:1:a"))
    bench.restore(backup)
    bench.tick(1.5)
    assert bench.claim_one("strict", "host:2:b").slot == at(6)
    assert bench.gaps("strict") == [(1, 4, 4, "collapsed")]
    entry = bench.slots("strict")[0]
    assert (entry["slot"], entry["outcome"], entry["reason"]) == (at(5), "lost", "orphaned")


def test_a_late_slot_that_gives_up_begins_with_its_mark(bench: Bench) -> None:
    """It is claimed and has not started; a slot that reruns has."""
    bench.tick(5)
    bench.claim("plain", "strict")
    begun = {name: (bench.slots(name)[-1]["outcome"], bench.slots(name)[-1]["started"]) for name in ("plain", "strict")}
    assert begun == {"plain": ("running", at(5)), "strict": ("claimed", None)}


def test_a_gap_never_becomes_narrower(bench: Bench) -> None:
    """Law 8: a restored holder skips fewer slots than were skipped before. No slot drops out of a gap."""
    bench.tick()
    claim = bench.claim_one("plain")
    backup = bench.backup()
    bench.tick(4.5)
    bench.settle(claim)
    assert bench.gaps("plain") == [(2, 5, 4, "overlap")]
    bench.restore(backup)
    queues = bench.beside(a_job("plain", overlap=Overlap.queue()))
    queues.settle(claim)
    assert bench.row("plain").slot == at(5)
    assert bench.gaps("plain") == [(2, 5, 4, "overlap")]
