"""Heartbeats: they renew what is held, wait for nothing, and take nobody's silence for a loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from tests.kit.records import HandedBack
from tests.store.bench import Bench, at, stale

from slotwise.spi import Claim


@contextmanager
def locked(bench: Bench, claim: Claim) -> Iterator[sa.Connection]:
    """Somebody's transaction has this row, and does not let go."""
    tasks = bench.tables.tasks
    mine = [
        tasks.c.task_name == claim.row.task_name,
        tasks.c.task_instance == claim.row.task_instance,
    ]
    with bench.database.main.begin() as connection:
        connection.execute(
            sa.select(tasks.c.version).where(*mine).with_for_update()
        ).one()
        yield connection


def test_a_heartbeat_renews_all_held_claims(bench: Bench) -> None:
    """One statement; neither version nor anything but the time of the heartbeat changes."""
    bench.tick()
    claims = bench.claim(holder="host:1:a")
    before = {claim.key: bench.row(*claim.key) for claim in claims}
    bench.tick(0.2)
    assert bench.store.held.beat("host:1:a", claims) == set()
    for claim in claims:
        row = bench.row(*claim.key)
        assert row.last_heartbeat == at(1.2)
        assert row.version == before[claim.key].version == claim.token


def test_nothing_held_is_nothing_lost(bench: Bench) -> None:
    """No claims, no statement."""
    assert bench.store.held.beat("host:1:a", []) == set()


def test_only_ones_own_claims_are_renewed(bench: Bench) -> None:
    """Key, version and holder; whatever differs is lost, and the others are renewed all the
    same.
    """
    bench.tick()
    held = {claim.row.task_name: claim for claim in bench.claim(holder="host:1:a")}
    plain = held["plain"]
    bench.tick(0.2)
    asked = [
        stale(plain, version=-1),
        stale(held["strict"], key="other"),
        held["delayed"],
        held["retried"],
    ]
    assert bench.store.held.beat("host:1:a", asked) == {asked[0].fence, asked[1].fence}
    beats = {name: bench.row(name).last_heartbeat for name in held}
    assert beats == {
        "plain": at(1),
        "strict": at(1),
        "delayed": at(1.2),
        "retried": at(1.2),
    }
    assert bench.store.held.beat("host:1:b", [stale(plain, holder="host:1:b")]) == {
        plain.fence
    }
    assert bench.row("plain").last_heartbeat == at(1)


@pytest.mark.parametrize(
    "how", ["settled", "handed back", "taken over", "claimed again", "deleted"]
)
def test_a_claim_that_is_gone_is_lost(bench: Bench, how: str) -> None:
    """Whoever has the row now, or nobody: the holder learns it with its next heartbeat."""
    bench.tick()
    claim = bench.claim_one("plain", "host:1:a")
    match how:
        case "settled":
            bench.settle(claim)
        case "handed back":
            bench.settle(claim, HandedBack())
        case "taken over":
            bench.take_over(claim)
        case "claimed again":
            bench.take_over(claim)
            assert bench.claim_one("plain", "host:1:a").token > claim.token
        case "deleted":
            bench.delete("plain")
    assert bench.store.held.beat("host:1:a", [claim]) == {claim.fence}


def test_a_row_claimed_again_by_its_own_holder(bench: Bench) -> None:
    """The old claim is lost, the new one is not: a key alone says nothing."""
    bench.tick()
    old = bench.claim_one("plain", "host:1:a")
    bench.take_over(old)
    new = bench.claim_one("plain", "host:1:a")
    assert bench.store.held.beat("host:1:a", [old, new]) == {old.fence}


def test_skipped_is_not_lost(pg_bench: Bench) -> None:
    """A row that an operator's command has locked is not waited for, and not given up: it is read
    again.
    """
    bench = pg_bench
    bench.tick()
    plain, strict = bench.claim_one("plain"), bench.claim_one("strict")
    bench.tick(0.2)
    with locked(bench, plain):
        assert bench.store.held.beat("host:1:a", [plain, strict]) == set()
    assert bench.row("plain").last_heartbeat == at(1)
    assert bench.row("strict").last_heartbeat == at(1.2)


def test_skipped_and_taken_is_lost(pg_bench: Bench) -> None:
    """Locked by the very transaction that takes it over: still held until that commits, lost after
    it.
    """
    bench = pg_bench
    bench.tick()
    claim = bench.claim_one("plain")
    with locked(bench, claim) as connection:
        tasks = bench.tables.tasks
        connection.execute(
            tasks.update()
            .where(tasks.c.task_name == "plain")
            .values(version=tasks.c.version + 1)
        )
        assert bench.store.held.beat("host:1:a", [claim]) == set()
    assert bench.store.held.beat("host:1:a", [claim]) == {claim.fence}


def test_a_heartbeat_waits_for_no_other(pg_bench: Bench) -> None:
    """A poller with all connections in use, a ledger row locked by a user's guard: the heart beats
    on.
    """
    bench = pg_bench
    bench.tick()
    claim = bench.claim_one("plain")
    slots = bench.tables.slots
    taken = [bench.database.main.connect() for _ in range(8)]  # the whole pool
    try:
        taken[0].execute(sa.select(slots.c.token).with_for_update(read=True)).all()
        bench.tick(0.2)
        assert bench.store.held.beat("host:1:a", [claim]) == set()
    finally:
        for connection in taken:
            connection.close()
    assert bench.row("plain").last_heartbeat == at(1.2)


def test_what_a_worker_holds_without_knowing(bench: Bench) -> None:
    """A claim whose reply was lost is found by its boot id, with all that is needed to hand it
    back.
    """
    bench.tick()
    bench.claim_one("strict", "host:2:b")
    bench.claim_one("plain", "host:1:a")
    (found,) = bench.store.held.held_by("host:1:a")
    assert (found.key, found.holder, found.slot) == (
        bench.row("plain").key,
        "host:1:a",
        at(1),
    )
    bench.settle(found, HandedBack("unknown"))
    assert bench.slots("plain") == []
    assert bench.claim_one("plain", "host:2:b").row.attempt == 1
