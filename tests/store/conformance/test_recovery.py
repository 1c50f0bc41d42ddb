"""The day after a restore of all tables: nobody of before gets in, and what may have run does not
run again.
"""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from tests.kit.records import Failed, Succeeded, to_micros
from tests.store.bench import Bench, at

from slotwise.operations import Operations


@pytest.fixture
def operations(bench: Bench) -> Operations:
    return bench.client.operations


def installation(bench: Bench) -> str:
    meta = bench.tables.meta
    with bench.store.transaction() as connection:
        return str(
            connection.scalar(
                sa.select(meta.c.value).where(meta.c.key == "installation_id")
            )
        )


@pytest.mark.parametrize("name", ["plain", "strict"])
def test_a_new_epoch_ends_all_claims(
    bench: Bench, operations: Operations, name: str
) -> None:
    """Their holders are refused, and a reaper takes over; the slot is settled as after any
    death.
    """
    before = installation(bench)
    bench.tick()
    claim = bench.claim_one(name)
    epoch = operations.new_epoch()
    assert (epoch.claims, epoch.installation) == (1, installation(bench))
    assert installation(bench) != before
    assert bench.settle(claim, Succeeded()) is None
    assert bench.store.held.beat(claim.holder, [claim]) == {claim.fence}
    row = bench.row(name)
    assert row.version > max(claim.token, to_micros(at(1)))
    bench.tick()
    (settled,) = bench.take_over(claim)
    assert settled.transition is not None
    assert settled.transition.label == ("lost" if name == "plain" else "handed_back")
    assert bench.claim_one(name).token > row.version


def test_a_slot_that_ran_at_the_dump_can_be_cancelled(
    bench: Bench, operations: Operations
) -> None:
    """It has begun, so it is not settled; cancelled before anything resumes, it does not start
    again.
    """
    bench.tick()
    claim = bench.claim_one("plain")
    operations.new_epoch()
    operations.settle_until(at(1))
    assert [one.outcome for one in bench.inspect.slots("plain")] == ["running"]
    operations.cancel("plain", at(1))
    bench.take_over(claim)
    assert bench.outcomes("plain")[0] == (1, "cancelled")
    bench.tick()
    assert [one.slot for one in bench.claim("plain")] == [at(2)]


def test_tokens_rise_above_all_of_before(bench: Bench, operations: Operations) -> None:
    """Of rows, too, that nobody holds: whatever was given out in the time that is lost."""
    bench.tick(60)
    operations.new_epoch()
    assert bench.row("plain").version >= to_micros(at(60))


def test_slots_up_to_now_are_settled(bench: Bench, operations: Operations) -> None:
    """They are skipped, as one gap; a retry that waits is cancelled; what is to come comes."""
    bench.tick()
    bench.settle(bench.claim_one("retried"), Failed("boom"))
    bench.tick(4)
    found = {
        one.job: (one.slots, one.next_slot) for one in operations.settle_until(at(5))
    }
    assert found == {
        "plain": (5, at(6)),
        "strict": (5, at(6)),
        "retried": (5, at(6)),
        "delayed": (1, at(7)),
    }
    assert bench.claim() == []
    assert bench.gaps("plain") == [(1, 5, 5, "settled")]
    entry = bench.slots("retried")[0]
    assert (entry["outcome"], entry["reason"]) == ("cancelled", "settled")
    assert bench.gaps("retried") == [
        (2, 5, 4, "settled")
    ]  # its first slot has a row of its own
    bench.tick()
    assert bench.claim_one("plain").slot == at(6)


def test_slots_after_one_that_ran_at_the_dump_are_settled(
    bench: Bench, operations: Operations
) -> None:
    """That one has begun and runs again; those that came due in the time that is lost do not."""
    bench.tick()
    claim = bench.claim_one("plain")
    bench.tick(4)
    operations.new_epoch()
    found = {
        one.job: (one.slots, one.next_slot) for one in operations.settle_until(at(5))
    }
    assert found["plain"] == (4, at(6))
    assert bench.gaps("plain") == [(2, 5, 4, "settled")]
    bench.take_over(claim)
    bench.settle(bench.claim_one("plain"), Succeeded())
    assert bench.outcomes("plain") == [(1, "succeeded")]
    bench.tick()
    assert bench.claim_one("plain").slot == at(6)
    assert bench.gaps("plain") == [(2, 5, 4, "settled")]


def test_settled_up_to_an_instant(bench: Bench, operations: Operations) -> None:
    """Slots after it are the job's catch-up's."""
    bench.tick(5)
    operations.settle_until(at(3))
    assert bench.claim_one("plain").slot == at(5)
    assert bench.gaps("plain") == [(1, 3, 3, "settled")]


def test_what_is_paused_sleeps_on(bench: Bench, operations: Operations) -> None:
    """Its slots are settled all the same."""
    operations.pause("plain")
    bench.tick(5)
    operations.settle_until(at(5))
    assert bench.row("plain").state == "paused"
    (resumed,) = operations.resume("plain")
    assert (resumed.skipped, resumed.next_slot) == (0, at(6))
    assert bench.row("plain").execution_time == at(6)


def test_both_can_be_rehearsed(bench: Bench, operations: Operations) -> None:
    """And leave nothing behind."""
    before = installation(bench), bench.row("plain")
    bench.tick(5)
    assert operations.new_epoch(dry_run=True).claims == 0
    assert len(operations.settle_until(at(5), dry_run=True)) == 4
    assert (installation(bench), bench.row("plain")) == before
