"""Slots that are late together are decided together: that is faster, and no other decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from tests.kit.decisions import claim as decide
from tests.kit.records import HandedBack, Row
from tests.store.bench import LEASE, MINUTE, Bench, a_job, at, claim_due

from slotwise import CatchUp, Every, Overlap
from slotwise.spi import Claim, Database

#: Rows with the same decision.
ALIKE = 8

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
    "begun": ([(1, "lost"), (5, "running")], [(2, 4, 3, "collapsed")]),
    "begun-strict": ([(1, "skipped"), (5, "claimed")], [(2, 4, 3, "collapsed")]),
    "newest-ended": ([(5, "succeeded")], [(1, 4, 4, "collapsed")]),
    "unreadable": ([], []),
}


def _outage(bench: Bench) -> None:
    """Five slots of each job are missed; of some, the ledger knows more than the queue, which was
    restored.
    """
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
    rows = {
        (row["task_name"], row["task_instance"]): dict(row) for row in bench.backup()
    }
    return {
        "rows": rows,
        "slots": [*map(bench.slots, names)],
        "gaps": [*map(bench.gaps, names)],
    }


def test_a_batch_is_decided_as_each_by_itself(database: Database) -> None:
    """Which slots run, what becomes of the others, and what queue, ledger and gaps say of both."""
    found = []
    for limit in (100, 1):
        bench = Bench(database, JOBS)
        _outage(bench)
        taken, claims = 1, list[Any]()
        while taken:
            taken, some = claim_due(
                bench.store,
                "host:1:a",
                limit,
                lease=LEASE,
                names=sorted(bench.definitions),
            )
            claims += some
        found.append((sorted(claim.key for claim in claims), _seen(bench)))
    assert found[0] == found[1]
    for job in JOBS:
        assert (bench.outcomes(job.name), bench.gaps(job.name)) == EXPECTED.get(
            job.name, LATEST
        ), job.name


#: Of each kind enough for one decision to serve them.
ALIKE_JOBS = [
    a_job(f"{kind}-{number}", **policies)
    for kind, policies in (
        ("latest", {}),
        ("first", {"catch_up": CatchUp.first()}),
        ("strict", {"on_lost": "give_up"}),
        ("all", {"catch_up": CatchUp.all(max=2)}),
    )
    for number in range(ALIKE + 2)
]


def test_one_decision_serves_rows_that_are_alike(database: Database) -> None:
    """And nothing can tell; the ledger is ahead of some, whose rows were restored, and decides
    about those.
    """
    found = []
    for limit in (500, 1):
        bench = Bench(database, ALIKE_JOBS)
        with bench.store.transaction() as connection:
            for table in (
                bench.tables.tasks,
                bench.tables.slots,
                bench.tables.gaps,
                bench.tables.attempts,
            ):
                connection.execute(table.delete())
        bench.clock.set(at(0))
        bench.plan(revision="1")
        backup = bench.backup()
        bench.tick()
        _end("latest-0", bench.claim("latest-0", "strict-0"), bench)
        bench.tick(2.5)
        _end("latest-1", bench.claim("latest-1", "strict-1"), bench)
        too_late = bench.beside(
            a_job("latest-2", catch_up=CatchUp.none(grace=timedelta(seconds=1)))
        )
        assert too_late.claim("latest-2") == []
        bench.restore(backup)
        bench.clock.set(at(5.5))
        taken = 1
        while taken:
            taken, _ = claim_due(
                bench.store,
                "host:1:a",
                limit,
                lease=LEASE,
                names=sorted(bench.definitions),
            )
        names = [job.name for job in ALIKE_JOBS]
        found.append(
            (
                [*map(bench.row, names)],
                [*map(bench.slots, names)],
                [*map(bench.gaps, names)],
            )
        )
    assert found[0] == found[1]
    assert (bench.outcomes("latest-9"), bench.gaps("latest-9")) == LATEST
    assert bench.gaps("latest-1") == [
        (1, 2, 2, "collapsed")
    ]  # 3 ran, 4 was left out, 5 runs
    assert bench.outcomes("latest-1") == [
        (3, "succeeded"),
        (4, "skipped"),
        (5, "running"),
    ]
    assert bench.gaps("latest-2") == [
        (1, 3, 3, "late")
    ]  # the gap was ahead: 4 was left out, 5 runs
    assert bench.outcomes("latest-2") == [(4, "skipped"), (5, "running")]


def test_rows_with_data_share_a_decision(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a version that this release does not know sets a row apart."""
    decided = []
    at_claim = decide.at_claim

    def counting(row: Row, *facts: Any, **others: Any) -> Any:
        decided.append(row.task_name)
        return at_claim(row, *facts, **others)

    monkeypatch.setattr(decide, "at_claim", counting)
    names = [f"versioned-{number}" for number in range(ALIKE)]
    own = Bench(
        bench.database, [a_job(name, payload_version=2) for name in names]
    ).planned()
    own.tick(5.5)
    assert len(own.claim(*names)) == ALIKE
    assert len(decided) == 1


QUEUED_JOBS = [
    a_job(f"{kind}-{number}", overlap=Overlap.queue())
    for kind in ("missed", "queued")
    for number in range(ALIKE)
]


def test_queued_slots_are_not_decided_together_with_missed_ones(
    database: Database,
) -> None:
    """Rule 1: a slot that came due while its job was held starts, beside jobs that miss the same
    slot.
    """
    bench = Bench(database, QUEUED_JOBS).planned()
    bench.tick()
    claims = bench.claim()
    _end_of("missed", claims, bench)
    bench.tick(1.2)
    _end_of("queued", claims, bench)
    bench.tick(3)
    begun = {claim.key[0]: claim.slot for claim in bench.claim()}
    for job in QUEUED_JOBS:
        assert begun[job.name] == at(2 if job.name.startswith("queued") else 5), (
            job.name
        )


def _end_of(kind: str, claims: Sequence[Claim], bench: Bench) -> None:
    for claim in claims:
        if claim.row.task_name.startswith(kind):
            bench.settle(claim)


def test_rows_that_are_alike_extend_their_gaps(database: Database) -> None:
    """One row for slots that are too late in a row, also where a batch decides."""
    hasty = CatchUp.none(grace=timedelta(seconds=30))
    jobs = [a_job(f"hasty-{number}", catch_up=hasty) for number in range(ALIKE)]
    bench = Bench(database, jobs).planned()
    bench.tick(5.75)
    assert bench.claim() == []
    bench.tick(2.5)
    assert {claim.slot for claim in bench.claim()} == {at(8)}
    for job in jobs:
        assert bench.gaps(job.name) == [(1, 7, 7, "late")], job.name


# -- gaps that go on ------------------------------------------------------------------------------


def test_a_gap_goes_on_while_nothing_runs(bench: Bench) -> None:
    """One row for an outage that several claims look at; what follows a run is another one."""
    too_late = bench.beside(
        a_job("plain", catch_up=CatchUp.none(grace=timedelta(seconds=1)))
    )
    for minutes in (5.5, 4, 3):
        bench.tick(minutes)
        assert too_late.claim("plain") == []
    assert bench.gaps("plain") == [(1, 12, 12, "late")]
    bench.tick(3)
    claim = bench.claim_one("plain")
    assert (claim.slot, bench.gaps("plain")[1:]) == (
        at(15),
        [(13, 14, 2, "collapsed")],
    )  # another reason
    bench.settle(claim, HandedBack())
    bench.tick(3)
    claim = bench.claim_one("plain")  # it never began: its slot is one of those missed
    assert (claim.slot, bench.gaps("plain")[1:]) == (
        at(18),
        [(13, 17, 5, "collapsed")],
    )
    bench.settle(claim)
    bench.tick(3)
    assert bench.claim_one("plain").slot == at(21)
    assert bench.gaps("plain")[1:] == [
        (13, 17, 5, "collapsed"),
        (19, 20, 2, "collapsed"),
    ]


def test_a_gap_does_not_go_on_across_slots_of_an_earlier_schedule(
    bench: Bench,
) -> None:
    """Law 8: those have rows of their own, and no gap counts them a second time."""
    hasty = CatchUp.none(grace=timedelta(seconds=1))
    minutely = bench.beside(a_job("plain", catch_up=hasty))
    bench.tick(5.5)
    assert minutely.claim("plain") == []
    bench.tick(0.5)
    minutely.settle(minutely.claim_one("plain"))
    seldom = bench.beside(a_job("plain", Every(5 * MINUTE), catch_up=hasty))
    seldom.plan("plain", revision="2")
    bench.tick(9.5)
    assert seldom.claim("plain") == []
    assert bench.outcomes("plain") == [(6, "succeeded")]
    assert bench.gaps("plain") == [(1, 5, 5, "late"), (10, 15, 2, "late")]


# -- the queue was restored alone -----------------------------------------------------------------


def test_what_a_gap_has_decided_does_not_run_after_a_restore(bench: Bench) -> None:
    """Law 2: the gaps know of newer slots than the row and the ledger, and outrank both."""
    backup = bench.backup()
    bench.tick(5.5)
    too_late = bench.beside(
        a_job("plain", catch_up=CatchUp.none(grace=timedelta(seconds=1)))
    )
    assert too_late.claim("plain") == []
    assert bench.gaps("plain") == [(1, 5, 5, "late")]
    bench.restore(backup)
    assert bench.claim("plain") == []
    assert (bench.row("plain").slot, bench.outcomes("plain"), bench.gaps("plain")) == (
        at(6),
        [],
        [(1, 5, 5, "late")],
    )


def test_a_skipped_slot_of_an_older_schedule_may_start_after_a_restore(
    bench: Bench,
) -> None:
    """Once: it never had. A claim on time looks at no gaps, which would cost each slot a look."""
    too_late = CatchUp.none(grace=timedelta(milliseconds=1))
    hasty = bench.beside(a_job("plain", Every("1s"), catch_up=too_late))
    bench.tick(0.5)
    backup = bench.backup()
    hasty.plan("plain", revision="2")
    bench.clock.set(at(1.5) + timedelta(milliseconds=500))
    assert hasty.claim("plain") == []
    bench.restore(backup)
    bench.settle(bench.claim_one("plain"))
    assert (bench.outcomes("plain"), bench.row("plain").slot) == (
        [(1, "succeeded")],
        at(2),
    )
    bench.restore(backup)
    assert bench.claim("plain") == []


def test_a_gap_does_not_go_on_across_an_open_slot(bench: Bench) -> None:
    """Law 8: a slot that began before the restore ends in the ledger, and no gap counts it a
    second time.
    """
    too_late = bench.beside(
        a_job("plain", catch_up=CatchUp.none(grace=timedelta(seconds=1)))
    )
    bench.tick(5.5)
    assert too_late.claim("plain") == []
    backup = bench.backup()
    bench.tick(0.5)
    assert bench.claim_one("plain").slot == at(6)
    bench.restore(backup)
    bench.tick(4.5)
    assert too_late.claim("plain") == []
    assert bench.outcomes("plain") == [(6, "lost")]
    assert bench.gaps("plain") == [(1, 5, 5, "late"), (7, 10, 4, "late")]


def test_a_strict_slot_is_not_claimed_again_after_a_restore(bench: Bench) -> None:
    """Law 3: a late slot that stands in the ledger as claimed has had its only claim, and the row
    moves past it.
    """
    backup = bench.backup()
    bench.tick(5)
    orphan = bench.claim_one("strict", "host:1:a")
    assert orphan.slot == at(5)
    bench.restore(backup)
    bench.tick(0.5)
    assert bench.claim("strict", holder="host:2:b") == []
    assert bench.row("strict").slot == at(6)
    assert (bench.outcomes("strict"), bench.gaps("strict")) == (
        [(5, "cancelled")],
        [(1, 4, 4, "collapsed")],
    )
    assert not bench.store.held.mark_running(orphan)


def test_a_strict_slot_that_started_is_decided(bench: Bench) -> None:
    """Law 2: nothing that may still run is counted among the missed slots. It ends as lost, and
    newer ones start.
    """
    backup = bench.backup()
    bench.tick(5)
    assert bench.store.held.mark_running(bench.claim_one("strict", "host:1:a"))
    bench.restore(backup)
    bench.tick(1.5)
    assert bench.claim_one("strict", "host:2:b").slot == at(6)
    assert bench.gaps("strict") == [(1, 4, 4, "collapsed")]
    entry = bench.slots("strict")[0]
    assert (entry["slot"], entry["outcome"], entry["reason"]) == (
        at(5),
        "lost",
        "orphaned",
    )


def test_a_late_slot_that_gives_up_begins_with_its_mark(bench: Bench) -> None:
    """It is claimed and has not started; a slot that reruns has."""
    bench.tick(5)
    bench.claim("plain", "strict")
    begun = {
        name: (bench.slots(name)[-1]["outcome"], bench.slots(name)[-1]["started"])
        for name in ("plain", "strict")
    }
    assert begun == {"plain": ("running", at(5)), "strict": ("claimed", None)}


def test_a_gap_never_becomes_narrower(bench: Bench) -> None:
    """Law 8: a restored holder skips fewer slots than were skipped before. No slot drops out of a
    gap.
    """
    bench.tick()
    claim = bench.claim_one("plain")
    backup = bench.backup()
    bench.tick(4.5)
    bench.settle(claim)
    assert bench.gaps("plain") == [(2, 5, 4, "overlap")]
    bench.restore(backup)
    queues = bench.beside(a_job("plain", overlap=Overlap.queue()))
    queues.settle(claim)
    assert bench.row("plain").slot == at(6)
    assert bench.gaps("plain") == [(2, 5, 4, "overlap")]


def test_a_gap_that_was_written_beside_a_held_row_never_becomes_narrower(
    bench: Bench,
) -> None:
    """Law 8: two deploys have skipped slots behind a running one. Its settlement does not look for
    that: nothing tells that the row was restored since.
    """
    old, second, third = (
        bench.beside(a_job("plain", Every(minutes * MINUTE), overlap=Overlap.queue(3)))
        for minutes in (1, 2, 3)
    )
    bench.tick()
    claim = old.claim_one("plain")
    backup = bench.backup()
    bench.tick(3.5)
    second.plan("plain", revision="2")
    bench.tick(2)
    third.plan("plain", revision="3")
    assert bench.gaps("plain") == [(2, 4, 3, "superseded")]
    bench.restore(backup)
    old.settle(claim)
    assert bench.gaps("plain") == [(2, 4, 3, "superseded")]


# -- jobs that stay behind ------------------------------------------------------------------------


def test_health_names_jobs_that_skip_slots_at_each_start(bench: Bench) -> None:
    """Each start is on time for its slot, and nothing else shows what is left out."""
    hasty = bench.beside(*(a_job(name, Every("1s")) for name in ("plain", "strict")))
    hasty.plan(revision="2")
    bench.tick(2)
    seen = []
    for _ in range(15):
        bench.clock.tick(timedelta(seconds=9))
        for claim in hasty.claim("plain"):
            hasty.settle(claim)
        bench.clock.tick(timedelta(seconds=3))
        seen.append(hasty.inspect.health(timedelta(minutes=1)).behind)
    assert (seen[3], seen[-1]) == ([], ["plain"])
    hasty.claim("plain", "strict")
    assert hasty.inspect.health(timedelta(minutes=1)).behind == []  # nothing is due
