"""Detached rows: one slot beside the plan row, claimed, settled and written down like any
other.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from tests.kit.records import Failed, HandedBack, Succeeded
from tests.kit.store import detach, trigger
from tests.store.bench import MINUTE, NOON, Bench, at

from slotwise.inspect import RECURRING
from slotwise.spi import Key


def detached(
    bench: Bench, slot: datetime, name: str = "plain", **columns: Any
) -> Key | None:
    with bench.store.transaction() as connection:
        return detach(
            bench.store.at(connection),
            name=name,
            slot=slot,
            origin="backfill",
            **columns,
        )


def test_a_detached_row_is_a_slot_of_its_own(bench: Bench) -> None:
    """It has the plan's schedule and leaves the plan row and its watermark alone, but for its
    statistics.

    It goes when its slot is final.
    """
    before = bench.row("plain")
    key = detached(bench, at(-5))
    assert key == Key("plain", f"{RECURRING}@{at(-5).isoformat()}")
    claim = bench.claim_one("plain")
    assert (claim.key, claim.slot, claim.row.schedule, claim.row.origin) == (
        key,
        at(-5),
        before.schedule,
        "backfill",
    )
    assert (claim.row.is_plan, claim.row.is_detached) == (False, True)
    bench.settle(claim)
    assert bench.find(*key) is None
    assert bench.row("plain") == replace(before, last_success=bench.clock.now())
    entry = bench.slot("plain")
    assert (entry["task_instance"], entry["outcome"], entry["origin"]) == (
        RECURRING,
        "succeeded",
        "backfill",
    )


def test_one_slot_is_detached_once(bench: Bench) -> None:
    """The key says so: whoever comes second learns it."""
    assert detached(bench, at(-5)) is not None
    assert detached(bench, at(-5)) is None


def test_a_slot_that_has_run_does_not_run_from_a_detached_row(bench: Bench) -> None:
    """The ledger's key says so in the claim; the row goes, and nothing else of the batch is
    stopped.
    """
    bench.tick()
    bench.settle(bench.claim_one("plain"))
    key = detached(bench, at(1))
    assert key is not None
    assert bench.claim("plain") == []
    assert bench.find(*key) is None
    assert bench.slot("plain")["outcome"] == "succeeded"


def test_a_mark_that_comes_after_the_hand_back_starts_nothing(bench: Bench) -> None:
    """It was held up on its way, and its claim, which had waited for too long, was given back
    before it: the ledger keeps the slot, which has not begun, for whoever claims it next.
    """
    detached(bench, at(-5), "strict")
    claim = bench.claim_one("strict")
    assert bench.settle(claim, HandedBack("queued")) is not None
    assert not bench.store.held.mark_running(claim)
    again = bench.claim_one("strict", "host:2:b")
    assert (again.slot, again.row.attempt, bench.store.held.mark_running(again)) == (
        at(-5),
        1,
        True,
    )


def begun_after_a_backup(bench: Bench, name: str) -> Key:
    """A detached row, put back to what it was when its first attempt was held; its second began,
    and no row knows.
    """
    key = detached(bench, at(-5), name)
    assert key is not None
    first = bench.claim_one(name)
    backup = bench.backup()
    bench.settle(first, HandedBack("shutdown"))
    bench.tick(0.1)
    second = bench.claim_one(name, "host:2:b")
    if name == "strict":
        assert bench.store.held.mark_running(second)
    bench.restore(backup)
    bench.take_over(first)
    bench.tick(5)
    return key


def test_a_restored_detached_row_runs_again(bench: Bench) -> None:
    """No row vouches for what the ledger calls running: its holder went with the queue that was
    put back.
    """
    begun_after_a_backup(bench, "plain")
    claim = next(
        one for one in bench.claim("plain", holder="host:3:c") if one.slot == at(-5)
    )
    bench.settle(claim)
    entry = bench.slots("plain")[0]
    assert (entry["slot"], entry["outcome"], entry["worker"]) == (
        at(-5),
        "succeeded",
        "host:3:c",
    )


def test_a_restored_detached_row_that_gives_up_leaves_nothing_open(
    bench: Bench,
) -> None:
    """It may have started: it does not start again, and its slot ends."""
    key = begun_after_a_backup(bench, "strict")
    assert [
        one.slot
        for one in bench.claim("strict", holder="host:3:c")
        if one.slot == at(-5)
    ] == []
    assert bench.find(*key) is None
    entry = bench.slots("strict")[0]
    assert (entry["slot"], entry["outcome"], entry["finished"] is not None) == (
        at(-5),
        "lost",
        True,
    )


@pytest.mark.parametrize(
    "columns", [{"due": at(3)}, {"state": "paused"}], ids=["later", "paused"]
)
def test_a_detached_row_waits_like_any_other(
    bench: Bench, columns: dict[str, Any]
) -> None:
    """For its due time, and while it has a state."""
    detached(bench, at(-5), **columns)
    assert bench.claim("plain") == []


def test_a_detached_row_that_cannot_be_read_here_runs_all_the_same(
    bench: Bench,
) -> None:
    """Its slot is known; the schedule says only what the interval before it was."""
    detached(bench, at(-5), schedule="MOON|full")
    assert bench.claim_one("plain").slot == at(-5)


def test_a_detached_row_is_retried_and_handed_back(bench: Bench) -> None:
    """As the same slot, in its own row."""
    key = detached(bench, at(-5), "retried")
    assert key is not None
    bench.settle(bench.claim_one("retried"), HandedBack())
    entry = bench.slot("retried")
    assert (entry["outcome"], entry["attempts"], entry["finished"]) == (
        "claimed",
        0,
        None,
    )
    bench.settle(bench.claim_one("retried"), Failed("boom"))
    row = bench.row(*key)
    assert (row.slot, row.attempt, row.picked) == (at(-5), 1, False)
    assert bench.slot("retried")["reason"] == "retry"


def test_a_detached_row_that_a_restore_takes_away_leaves_its_slot_in_the_ledger(
    bench: Bench,
) -> None:
    """Also one that was handed back before it began: no plan row comes back to it."""
    backup = bench.backup()
    detached(bench, at(-5), "strict")
    bench.tick()
    for claim in bench.claim("strict"):
        bench.settle(claim, HandedBack() if claim.row.is_detached else Succeeded())
    bench.restore(backup)
    bench.tick()
    bench.settle(bench.claim_one("strict"))
    assert bench.outcomes("strict") == [
        (-5, "cancelled"),
        (1, "succeeded"),
        (2, "succeeded"),
    ]


@pytest.mark.parametrize("on_lost", ["plain", "strict"])
def test_a_detached_row_that_was_handed_back_is_called_off(
    bench: Bench, on_lost: str
) -> None:
    """It ends as cancelled: it never began."""
    detached(bench, at(-5), on_lost)
    bench.settle(bench.claim_one(on_lost), HandedBack())
    bench.client.operations.cancel(on_lost, at(-5))
    entry = bench.slot(on_lost)
    assert (entry["outcome"], entry["reason"], entry["finished"]) == (
        "cancelled",
        "operator",
        bench.clock.now(),
    )


def test_triggers_of_one_instant_all_run(bench: Bench) -> None:
    """Each has a slot of its own, though none of them has started, whoever asked at the same
    time.
    """

    def ask(_: int) -> None:
        with bench.store.transaction() as connection:
            trigger(bench.store, connection, "plain")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(ask, range(8)))
    slots = sorted(claim.slot for claim in bench.claim("plain") if claim.slot)
    assert slots == [NOON + number * (MINUTE / 60_000_000) for number in range(1, 9)]
