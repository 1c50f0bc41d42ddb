"""Backfill: what is missing runs, and nothing else; so many at once, and no faster than told."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tests.kit.records import Failed, HandedBack
from tests.kit.store import facts
from tests.store.bench import Bench, at
from tests.store.hearing import hearing

from slotwise import ConfigurationError
from slotwise.explain.slot_explanation import explain
from slotwise.operations import Operations
from slotwise.spi import Claim


@pytest.fixture
def operations(bench: Bench) -> Operations:
    """Of an operator, ten minutes after noon: 1 ran, 2 failed, 3 was skipped alone, 4 to 9 in a
    gap, 10 ran.
    """
    bench.tick()
    bench.settle(bench.claim_one("plain"))
    bench.tick()
    bench.settle(bench.claim_one("plain"), Failed("boom"))
    operations = bench.client.operations.by("ada")
    assert operations.skip_next("plain") == at(3)
    bench.tick(8)
    bench.settle(bench.claim_one("plain"))
    assert bench.gaps("plain") == [(4, 9, 6, "collapsed")]
    return operations


def started(claims: list[Claim]) -> list[datetime | None]:
    return [claim.slot for claim in claims]


def test_what_never_ran_runs(bench: Bench, operations: Operations) -> None:
    """The oldest first, one after another; what did run, or failed, is left alone, and so is the
    plan row.
    """
    before = bench.row("plain")
    found = operations.backfill("plain", at(1), at(10), note="lost a day")
    assert list(found.slots) == [at(minute) for minute in range(3, 10)]
    assert (found.present, found.first, found.last) == (3, at(1), at(10))
    for minute in range(3, 10):
        claim = bench.claim_one("plain")
        assert (claim.slot, claim.row.origin) == (at(minute), "backfill")
        assert bench.claim("plain") == []
        bench.settle(claim)
    assert bench.claim("plain") == []
    assert bench.row("plain") == before
    assert bench.outcomes("plain") == [
        (minute, "failed" if minute == 2 else "succeeded") for minute in range(1, 11)
    ]


def test_a_range_knows_what_has_run_since(
    bench: Bench, operations: Operations
) -> None:
    """It stays one line, and says how many slots have lines of their own; one that waits is
    explained as such.

    What was triggered in that time, and what others run, is none of them.
    """
    with bench.store.transaction() as connection:
        slots = bench.tables.slots
        row = dict(
            connection.execute(sa.select(slots).where(slots.c.slot == at(10)))
            .mappings()
            .one()
        )
        triggered = row | {"slot": at(5.5), "origin": "trigger"}
        others = row | {
            "slot": at(6),
            "origin": "backfill",
            "task_instance": "another",
        }
        connection.execute(sa.insert(slots), [triggered, others])
    operations.backfill("plain", at(4), at(7))
    told = [
        explain(facts(bench.store, "plain", at(minute))).outcome for minute in (5, 9)
    ]
    assert told == ["waiting", "skipped"]
    for _ in range(3):
        bench.settle(bench.claim_one("plain"))
    (gap,) = [line for line in bench.inspect.slots("plain") if line.last is not None]
    assert (gap.slot, gap.last, gap.count, gap.run_since) == (at(4), at(9), 6, 3)


def test_failed_ones_too(bench: Bench, operations: Operations) -> None:
    """When asked: as the same slot, its attempts counted on."""
    found = operations.backfill("plain", at(1), at(2), failed=True)
    assert found.slots == (at(2),)
    claim = bench.claim_one("plain")
    assert (claim.slot, claim.row.attempt) == (at(2), 2)


def test_a_backfill_is_previewed(bench: Bench, operations: Operations) -> None:
    """A rehearsal says which slots would run, and leaves nothing behind."""
    found = operations.backfill("plain", at(1), at(10), dry_run=True)
    assert len(found.slots) == 7
    assert bench.claim("plain") == []
    assert bench.outcomes("plain")[2] == (3, "skipped")
    assert [operation.operation for operation in bench.inspect.audit()] == [
        "skip_next"
    ]


def test_a_second_backfill_adds_only_what_lacks(
    bench: Bench, operations: Operations
) -> None:
    """A slot that waits already is not missing."""
    operations.backfill("plain", at(4), at(6))
    assert operations.backfill("plain", at(3), at(7)).slots == (at(3), at(7))
    assert operations.backfill("plain", at(3), at(7)).slots == ()


def test_so_many_at_once(bench: Bench, operations: Operations) -> None:
    """Each that ends lets the next one go; one that is handed back, or tried again, does not."""
    operations.backfill("plain", at(1), at(10), concurrency=3)
    first, second, third = bench.claim("plain")
    assert started([first, second, third]) == [at(3), at(4), at(5)]
    bench.settle(second)
    assert started(bench.claim("plain")) == [at(6)]
    bench.settle(first, HandedBack())
    assert started(bench.claim("plain")) == [at(3)]


@pytest.mark.parametrize("end", ["runs", "is called off"])
def test_a_place_stays_with_its_backfill(
    bench: Bench, operations: Operations, end: str
) -> None:
    """Another backfill of the job that comes to its end hands its place to nobody."""
    operations.backfill("plain", at(4), at(9))
    operations.backfill("plain", at(3), at(3))
    if end == "is called off":
        operations.cancel("plain", at(3))
    claims = {claim.slot: claim for claim in bench.claim("plain")}
    if end == "runs":
        bench.settle(claims.pop(at(3)))
    assert list(claims) == [at(4)]
    assert bench.claim("plain") == []
    bench.settle(claims[at(4)])
    assert started(bench.claim("plain")) == [at(5)]


def test_a_lost_slot_lets_none_go(bench: Bench, operations: Operations) -> None:
    """It runs again first."""
    operations.backfill("plain", at(1), at(10))
    claim = bench.claim_one("plain")
    bench.clock.tick(timedelta(seconds=30))
    bench.take_over(claim)
    assert started(bench.claim("plain")) == [at(3)]


@pytest.mark.parametrize(
    ("concurrency", "dues"),
    [
        pytest.param(1, [0, 10, 20, 30], id="one"),
        pytest.param(2, [0, 10, 20, 30], id="two"),
    ],
)
def test_starts_are_a_pace_apart(
    bench: Bench, operations: Operations, concurrency: int, dues: list[int]
) -> None:
    """However short the runs are, and however many may run at once."""
    begun = bench.clock.now()
    operations.backfill("plain", at(3), at(6), pace="10s", concurrency=concurrency)
    starts = []
    for _ in range(31):
        for claim in bench.claim("plain"):
            starts.append((bench.clock.now() - begun).total_seconds())
            bench.settle(claim)
        bench.clock.tick(timedelta(seconds=1))
    assert starts == dues


def test_starts_are_a_pace_apart_however_long_each_runs(
    bench: Bench, operations: Operations
) -> None:
    """One that has run for long, and one that was short, end together: what follows them does not
    start together.
    """
    begun = bench.clock.now()
    operations.backfill("plain", at(3), at(7), pace="10s", concurrency=2)
    starts, long = [], bench.claim_one("plain")
    for second in range(60):
        for claim in bench.claim("plain"):
            starts.append((bench.clock.now() - begun).total_seconds())
            bench.settle(claim)
        if second == 29:
            bench.settle(long)
        bench.clock.tick(timedelta(seconds=1))
    assert starts == [10, 20, 30, 40]
    assert bench.inspect.audit()[0].arguments["pace"] == "10s"


def test_starts_are_a_pace_apart_when_one_that_waits_is_cancelled(
    bench: Bench, operations: Operations
) -> None:
    """It has run in vain before, and the start of then is not what the pace counts from."""
    for _ in range(4):
        bench.tick()
        bench.settle(bench.claim_one("plain"), Failed("boom"))
    begun = bench.clock.now()
    operations.backfill("plain", at(11), at(14), pace="10s", failed=True)
    operations.cancel("plain", at(12))
    starts = []
    for _ in range(31):
        for claim in bench.claim("plain"):
            if claim.row.cancel_requested:
                bench.settle(claim, HandedBack("operator"))
                continue
            starts.append((claim.slot, (bench.clock.now() - begun).total_seconds()))
            bench.settle(claim)
        bench.clock.tick(timedelta(seconds=1))
    (_, first), (_, second), (_, third) = starts
    assert [slot for slot, _ in starts] == [at(11), at(13), at(14)]
    assert second - first >= 10
    assert third - second >= 10


def test_a_slot_that_never_began_does_not_count_for_the_pace(
    bench: Bench, operations: Operations
) -> None:
    """It failed before the backfill, and is cancelled before it starts again: the pace counts from
    its end, not from the start of then.
    """
    operations.backfill("plain", at(2), at(5), pace="10s", failed=True)
    claim = bench.claim_one("plain")
    assert claim.slot == at(2)
    operations.cancel("plain", at(2))
    bench.clock.tick(timedelta(seconds=7))
    bench.settle(claim, HandedBack("operator"))
    bench.clock.tick(timedelta(seconds=9))
    assert bench.claim("plain") == []
    bench.clock.tick(timedelta(seconds=1))
    assert bench.claim_one("plain").slot == at(3)


def test_history_before_the_job_was_there(
    bench: Bench, operations: Operations
) -> None:
    """Slots that no row has ever known are missing, too; their handler learns the interval."""
    found = operations.backfill("plain", at(-3), at(0))
    assert found.slots == tuple(at(minute) for minute in (-3, -2, -1, 0))
    claim = bench.claim_one("plain")
    assert (claim.slot, claim.row.schedule) == (at(-3), bench.row("plain").schedule)


def test_what_is_to_come_is_left_to_the_schedule(
    bench: Bench, operations: Operations
) -> None:
    """Also what is due by now, and waits."""
    bench.tick(3)
    found = operations.backfill("plain", at(10), at(100))
    assert (found.slots, found.last) == ((), at(11) - timedelta(microseconds=1))
    assert (found.present, found.undecided) == (1, 3)  # 11 to 13 have come
    assert operations.backfill("plain", at(12), at(12)).undecided == 1
    assert operations.backfill("plain", at(1), at(10), dry_run=True).undecided == 0


def test_no_slot_runs_before_its_time(bench: Bench, operations: Operations) -> None:
    """One that was left out is missing when its time has come, and not before."""
    slot = operations.skip_next("plain")
    assert slot > bench.clock.now()
    with pytest.raises(
        ConfigurationError, match="is yet to come, and is left to the schedule"
    ):
        operations.backfill("plain", slot, slot)
    bench.clock.set(slot)
    assert operations.backfill("plain", slot, slot).slots == (slot,)


@pytest.mark.parametrize(
    ("job", "first", "words"),
    [
        pytest.param("delayed", at(-10), "has no slots of its own", id="fixed delay"),
        pytest.param(
            "plain", at(-11_000), "at most 10000 run in one go", id="too many"
        ),
        pytest.param(
            "plain", at(-300_000), "at most 200000 are looked at", id="far too many"
        ),
    ],
)
def test_a_backfill_has_limits(
    bench: Bench, operations: Operations, job: str, first: datetime, words: str
) -> None:
    """One line with the cure; nothing is half done."""
    with pytest.raises(ConfigurationError, match=words):
        operations.backfill(job, first, at(10))
    assert [operation.operation for operation in bench.inspect.audit()] == [
        "skip_next"
    ]


@pytest.mark.parametrize("concurrency", [2**31, 0, -1, True, 1.5])
def test_at_once_is_a_whole_number(operations: Operations, concurrency: Any) -> None:
    """One or more."""
    with pytest.raises(ConfigurationError, match="whole number"):
        operations.backfill("plain", at(1), at(2), concurrency=concurrency)


def test_a_backfill_is_called_off(bench: Bench, operations: Operations) -> None:
    """What has not begun ends as it was, or as cancelled; what runs goes on, and lets nothing
    go.
    """
    operations.backfill("plain", at(1), at(10))
    claim = bench.claim_one("plain")
    assert operations.cancel_backfill("plain") == 6
    bench.settle(claim)
    assert bench.claim("plain") == []
    assert bench.outcomes("plain") == [
        (1, "succeeded"),
        (2, "failed"),
        (3, "succeeded"),
        *((minute, "cancelled") for minute in range(4, 10)),
        (10, "succeeded"),
    ]
    assert operations.cancel_backfill("plain") == 0


def test_a_slot_of_a_backfill_that_is_cancelled_lets_the_next_one_go(
    bench: Bench, operations: Operations
) -> None:
    """A chain does not break where an operator takes a link out."""
    operations.backfill("plain", at(1), at(10))
    operations.cancel("plain", at(3))
    assert bench.outcomes("plain")[2] == (3, "skipped")
    assert started(bench.claim("plain")) == [at(4)]


def test_a_backfill_sleeps_with_its_job(bench: Bench, operations: Operations) -> None:
    """What waits, and what is let go meanwhile."""
    operations.backfill("plain", at(1), at(10))
    claim = bench.claim_one("plain")
    operations.pause("plain")
    bench.settle(claim)
    assert bench.claim("plain") == []
    operations.resume("plain")
    assert started(bench.claim("plain")) == [at(4)]


def test_a_job_that_gives_up_runs_what_never_started(bench: Bench) -> None:
    """At most one start is none so far: skipped slots may run, once."""
    operations = bench.client.operations
    assert operations.skip_next("strict") == at(1)
    bench.tick(2)
    bench.settle(bench.claim_one("strict"))
    operations.backfill("strict", at(1), at(2))
    claim = bench.claim_one("strict")
    assert claim.slot == at(1)
    assert bench.store.held.mark_running(claim)
    bench.settle(claim)
    assert bench.outcomes("strict") == [(1, "succeeded"), (2, "succeeded")]


# -- many slots -----------------------------------------------------------------------------------


def test_many_slots_are_entered_in_chunks(
    bench: Bench, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two of them no row is locked, so claims and settlements wait for no more than one;
    none starts before the last one. The same for a backfill that is cancelled.
    """
    monkeypatch.setattr("slotwise.store.operations.transaction.CHUNK", 3)
    progress = list[int]()

    def between(rows: int) -> None:
        progress.append(rows)
        if bench.database.dialect_name == "postgresql":
            with bench.database.main.begin() as free:
                free.exec_driver_sql(
                    "SELECT FROM scheduled_tasks WHERE task_name = 'plain' FOR UPDATE NOWAIT"
                )
        if rows < 7:
            assert bench.claim("plain") == []

    with hearing(bench.database) as heard:
        found = operations.backfill(
            "plain", at(1), at(10), concurrency=2, progress=between
        )
    assert (len(found.slots), progress) == (7, [3, 6, 7])
    assert (
        len(
            [
                sent
                for sent, _ in heard
                if sent.startswith("INSERT INTO scheduled_tasks")
            ]
        )
        == 3
    )
    assert started(bench.claim("plain")) == [at(3), at(4)]
    progress.clear()
    assert operations.cancel_backfill("plain", dry_run=True) == 5
    assert operations.cancel_backfill("plain", progress=between) == 5
    assert progress == [3, 5]
    assert [operation.operation for operation in bench.inspect.audit()] == [
        "cancel_backfill",
        "backfill",
        "skip_next",
    ]


@pytest.mark.parametrize("then", ["again", "wider", "later", "cancel"])
def test_a_backfill_that_was_interrupted_continues(
    bench: Bench, operations: Operations, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """Nothing of it has started; the next one of that time takes it over, one slot after
    another.
    """
    monkeypatch.setattr("slotwise.store.operations.transaction.CHUNK", 2)

    def stop(rows: int) -> None:
        if rows == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        operations.backfill("plain", at(3), at(9), progress=stop)
    assert bench.claim("plain") == []
    if then == "cancel":
        assert operations.cancel_backfill("plain") == 4
        assert bench.outcomes("plain")[2:6] == [
            (3, "skipped"),
            *((minute, "cancelled") for minute in range(4, 7)),
        ]
        return
    first = 2 if then == "wider" else 3
    begin = (
        6 if then == "later" else first
    )  # what the interrupted one has entered before is not left behind
    assert (
        len(
            operations.backfill(
                "plain", at(begin), at(9), failed=then == "wider"
            ).slots
        )
        == 10 - first
    )
    for minute in range(first, 10):
        (claim,) = bench.claim("plain")
        assert claim.slot == at(minute)
        bench.settle(claim)
    assert bench.claim("plain") == []
