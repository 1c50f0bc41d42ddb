"""The short way of a slot that succeeded: what it writes, and what it leaves to the settlement."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError
from tests.kit.patience import PATIENCE
from tests.kit.ports import Parted
from tests.kit.records import SUCCEEDED, Fence
from tests.kit.store import SettlementHooks, usual
from tests.store.bench import LEASE, Bench, a_job, at, stale
from tests.store.waiting import run_into_lock

from slotwise import Every, Settings
from slotwise.spi import Claim, Database, RowState

NAMES = ("plain", "retried", "strict")


@pytest.fixture
def bench(pg_bench: Bench) -> Bench:
    """Only PostgreSQL has this way."""
    return pg_bench


def held(bench: Bench, *names: str, minutes: float = 1) -> list[Claim]:
    """On time, or late, started, and held by one worker."""
    bench.tick(minutes)
    claims = bench.claim(*names or NAMES)
    assert all(
        bench.store.held.mark_running(claim)
        for claim in claims
        if claim.row.task_name == "strict"
    )
    return claims


def gone(bench: Bench, claims: list[Claim]) -> set[Fence]:
    assert all(usual(claim, SUCCEEDED) for claim in claims)
    return set(
        bench.store.settlements._advance([(claim, SUCCEEDED) for claim in claims])
    )


@pytest.mark.parametrize("minutes", [1, 5.5], ids=["on time", "late"])
def test_it_writes_what_the_settlement_writes(bench: Bench, minutes: float) -> None:
    """Row by row and column by column; which of the two it was, nobody can tell."""
    bench.change(
        "retried", consecutive_failures=2, last_failure=at(0), last_error="boom"
    )
    found = []
    for hooks in (
        SettlementHooks(),
        SettlementHooks(dict.fromkeys(NAMES, lambda rows, tx: None)),
    ):  # with one, it is the settlement
        bench.store.settlements.hooks = hooks
        backup = bench.backup()
        claims = held(bench, minutes=minutes)
        assert all(usual(claim, SUCCEEDED) for claim in claims)
        settlements = bench.store.settlements.settle(
            [(claim, SUCCEEDED) for claim in claims]
        )
        assert [one.transition and one.transition.label for one in settlements] == [
            "succeeded"
        ] * len(claims)
        found.append(
            (
                [bench.row(name) for name in NAMES],
                [bench.slots(name) for name in NAMES],
            )
        )
        with bench.store.transaction() as connection:
            connection.execute(bench.tables.slots.delete())
            connection.execute(bench.tables.gaps.delete())
        bench.restore(backup)
        bench.clock.set(at(0))
    assert found[0] == found[1]


def test_a_batch_goes_on_in_one_statement(bench: Bench) -> None:
    """All of them, whatever differs from row to row."""
    bench.change("retried", slot=at(0), next_slot=at(5), schedule=str(Every("5m")))
    claims = held(bench)
    assert gone(bench, claims) == {claim.fence for claim in claims}
    assert [bench.row(name).slot for name in NAMES] == [at(2), at(5), at(2)]


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"key": "recurring@other"}, id="another key"),
        pytest.param({"version": 1}, id="a later version"),
        pytest.param({"version": -1}, id="an earlier version"),
        pytest.param({"holder": "host:1:b"}, id="another boot"),
    ],
)
def test_a_write_outside_its_fence_changes_nothing(
    bench: Bench, wrong: dict[str, Any]
) -> None:
    """Key, version and holder."""
    (claim,) = held(bench, "plain")
    before = bench.row("plain"), bench.slots("plain")
    assert gone(bench, [stale(claim, **wrong)]) == set()
    assert (bench.row("plain"), bench.slots("plain")) == before
    assert gone(bench, [claim]) == {claim.fence}


@pytest.mark.parametrize("column", ["version", "picked_by"])
def test_a_zombie_leaves_its_successors_claim_alone(bench: Bench, column: str) -> None:
    """Version and holder each keep it out by themselves: an id may come again with an old
    version.
    """
    (zombie,) = held(bench, "plain")
    bench.change(
        "plain",
        **{column: {"version": zombie.token + 1, "picked_by": "host:2:b"}[column]},
    )
    if column == "version":
        with bench.store.transaction() as connection:
            connection.execute(bench.tables.slots.update().values(token=zombie.token))
    before = bench.row("plain"), bench.slots("plain")
    assert gone(bench, [zombie]) == set()
    assert (bench.row("plain"), bench.slots("plain")) == before


ASKED: dict[str, dict[str, Any]] = {
    "paused": {"state": "paused"},
    "deleted": {"state": RowState.DELETED},
    "called off": {"cancel_requested": at(1)},
    "wished": {"wanted_due": at(5)},
    "next slot left out": {"watermark": at(2), "next_slot": at(3)},
    "another text": {"schedule": str(Every("5m"))},
    "catching up": {
        "pending": {"catch_up_until": at(3).isoformat()},
        "origin": "catch_up",
    },
    "collapsed": {"collapsed": 3},
    "another slot": {"slot": at(0)},
    "a second attempt": {"attempt": 2},
    "lost before": {"lost_count": 1},
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_whatever_a_row_was_asked_meanwhile_is_for_the_settlement(
    bench: Bench, asked: dict[str, Any]
) -> None:
    """Row and ledger stay as they are; the others of the batch go on."""
    claims = held(bench)
    bench.change("plain", **asked)
    before = bench.row("plain"), bench.slots("plain")
    assert {fence.key.task_name for fence in gone(bench, claims)} == {
        "retried",
        "strict",
    }
    assert (bench.row("plain"), bench.slots("plain")) == before


ENTRIES: dict[str, dict[str, Any]] = {
    "of another claim": {"token": 1},
    "ended": {"outcome": "succeeded", "finished": at(1)},
    "not started": {"outcome": "claimed"},
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_whatever_the_ledger_says_otherwise_is_for_the_settlement(
    bench: Bench, entry: dict[str, Any]
) -> None:
    """A row goes on together with its ledger row, or not at all."""
    claims, slots = held(bench), bench.tables.slots
    with bench.store.transaction() as connection:
        connection.execute(
            slots.update().where(slots.c.task_name == "plain").values(**entry)
        )
    before = bench.row("plain"), bench.slots("plain")
    assert {fence.key.task_name for fence in gone(bench, claims)} == {
        "retried",
        "strict",
    }
    assert (bench.row("plain"), bench.slots("plain")) == before


def test_a_slot_without_a_ledger_row_is_for_the_settlement(bench: Bench) -> None:
    """The ledger was lost, or the queue was restored alone."""
    (claim,) = held(bench, "plain")
    with bench.store.transaction() as connection:
        connection.execute(bench.tables.slots.delete())
    before = bench.row("plain")
    assert gone(bench, [claim]) == set()
    assert bench.row("plain") == before


@pytest.mark.parametrize(
    ("after", "goes"), [(timedelta(minutes=1, microseconds=-1), True), (LEASE, False)]
)
def test_once_the_next_slot_has_come_it_is_the_settlements(
    bench: Bench, after: timedelta, goes: bool
) -> None:
    """Overlap has its say then: by the database's time, at the moment of the settlement."""
    (claim,) = held(bench, "plain")
    bench.clock.tick(after)
    assert bool(gone(bench, [claim])) is goes
    assert bench.settle(claim) is None if goes else bench.settle(claim) is not None
    assert (
        bench.outcomes("plain") == [(1, "succeeded")]
        if goes
        else [(1, "succeeded"), (2, "skipped")]
    )


CLAIMS: dict[str, Callable[[Bench], Claim]] = {
    "a second attempt": lambda bench: _again(bench),
    "a detached row": lambda bench: _triggered(bench),
}


def _again(bench: Bench) -> Claim:
    (claim,) = held(bench, "plain")
    bench.take_over(claim)
    bench.tick(0.5)
    return bench.claim_one("plain")


def _triggered(bench: Bench) -> Claim:
    (claim,) = held(bench, "plain")
    bench.change("plain", "recurring", state="paused")
    claim.row.kind = "detached"
    return claim


@pytest.mark.parametrize("make", CLAIMS.values(), ids=CLAIMS)
def test_some_claims_never_take_the_short_way(
    bench: Bench, make: Callable[[Bench], Claim]
) -> None:
    """They are not tried."""
    assert usual(make(bench), SUCCEEDED) is None


def test_a_locked_row_is_not_waited_for(pg_bench: Bench) -> None:
    """Race: an operation, or a heartbeat, has the row. It is left; whoever settles it waits for its
    lock.
    """
    claims, tasks = held(pg_bench), pg_bench.tables.tasks
    with pg_bench.database.main.connect() as other, other.begin():
        other.execute(
            tasks.update()
            .where(tasks.c.task_name == "plain")
            .values(last_heartbeat=at(1))
        )
        assert {fence.key.task_name for fence in gone(pg_bench, claims)} == {
            "retried",
            "strict",
        }
    assert (
        pg_bench.settle(
            next(claim for claim in claims if claim.row.task_name == "plain")
        )
        is not None
    )


def test_a_locked_ledger_row_takes_all_of_it_back(pg_url: str) -> None:
    """Race: a user's guard has the ledger row. After the lock timeout nothing was written."""
    database = Database(
        Settings(database_url=pg_url, heartbeat_interval=timedelta(milliseconds=200))
    )
    bench = Bench(database, [a_job("plain"), a_job("other")]).planned()
    claims, slots = held(bench, "plain", "other"), bench.tables.slots
    with bench.database.main.connect() as other, other.begin():
        other.execute(
            slots.select()
            .where(slots.c.task_name == "plain")
            .with_for_update(read=True)
        )
        with pytest.raises(DBAPIError):
            gone(bench, claims)
        assert {bench.row(claim.row.task_name).picked for claim in claims} == {True}
    assert gone(bench, claims) == {claim.fence for claim in claims}
    database.close()


def test_row_and_ledger_row_never_part(pg_bench: Bench) -> None:
    """Race: while the statement runs, a ledger row that it has found ends under another
    transaction. Laws 1 and 3: its row does not go on without it, and nothing of the batch is
    committed.
    """
    claims, slots = held(pg_bench, *NAMES), pg_bench.tables.slots
    with ThreadPoolExecutor(1) as pool, pg_bench.database.main.connect() as other:
        ended = {"outcome": "cancelled", "finished": at(1)}
        other.execute(
            slots.update().where(slots.c.task_name == "plain").values(**ended)
        )
        going = run_into_lock(pg_bench, pool, lambda: gone(pg_bench, claims))
        other.commit()
        assert going.result(PATIENCE) == set()
    assert {(row.picked, row.slot) for row in map(pg_bench.row, NAMES)} == {
        (True, at(1))
    }
    assert [pg_bench.slot(name)["outcome"] for name in NAMES] == [
        "cancelled",
        "running",
        "running",
    ]


def test_a_row_goes_on_with_its_ledger_row_or_not_at_all(pg_bench: Bench) -> None:
    """Race: the ledger row ends, in another transaction, after the statement has found it: all is
    taken back.
    """
    bench = pg_bench
    bench.tick()
    claim, slots = bench.claim_one("plain"), bench.tables.slots
    following = usual(claim, SUCCEEDED)
    assert following is not None

    def advance() -> None:
        with bench.store.transaction() as connection:
            bench.store.dialect.advance(connection, [(claim, following)])

    with ThreadPoolExecutor(1) as thread, bench.database.main.connect() as other:
        other.execute(slots.update().values(outcome="cancelled", finished=at(1)))
        waiting = run_into_lock(bench, thread, advance)
        other.commit()
        with pytest.raises(Parted):
            waiting.result()
    assert (bench.row("plain").picked, bench.row("plain").version) == (
        True,
        claim.token,
    )
