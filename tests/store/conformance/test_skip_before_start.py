"""A slot whose start is refused for good ends as skipped: nothing of it has run, and the job goes
on.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.kit.records import AttemptOutcome, Failed, Skipped, Succeeded
from tests.store.bench import Bench, a_job, a_task, at

from slotwise import Overlap, Retry


@pytest.mark.parametrize("name", ["plain", "strict"])
def test_the_slot_ends_and_burns_no_attempt(bench: Bench, name: str) -> None:
    """Neither is it a failure; also for a job that gives up, whose start was not marked yet."""
    bench.tick()
    bench.settle(bench.claim_one(name), Skipped("lock_held"))
    found = bench.slot(name)
    assert (
        found["outcome"],
        found["reason"],
        found["attempts"],
        found["started"],
    ) == (
        "skipped",
        "lock_held",
        0,
        None,
    )
    assert found["finished"] == at(1)
    row = bench.row(name)
    assert (row.slot, row.attempt, row.consecutive_failures, row.last_failure) == (
        at(2),
        0,
        0,
        None,
    )
    bench.tick()
    assert bench.claim_one(name).slot == at(2)


def test_a_retry_that_is_refused_keeps_the_attempts_before(bench: Bench) -> None:
    """The start that the ledger tells of is the one that was."""
    own = Bench(
        bench.database,
        [a_job("again", retry=Retry.exponential(max_attempts=3, initial="1s"))],
    ).planned()
    own.tick()
    own.settle(own.claim_one("again"), Failed("boom"))
    own.tick(0.2)
    own.settle(own.claim_one("again"), Skipped("lock_held"))
    found = own.slot("again")
    assert (found["outcome"], found["attempts"], found["started"]) == (
        "skipped",
        1,
        at(1),
    )


def test_a_slot_with_a_row_of_its_own_goes(bench: Bench) -> None:
    """Its place is free again."""
    own = Bench(bench.database, [a_job("beside", overlap=Overlap.allow(1))]).planned()
    own.tick()
    claim = own.claim_one("beside")
    own.settle(claim, Skipped("lock_held"))
    assert own.find(*claim.key) is None
    assert own.slot("beside")["outcome"] == "skipped"


def test_a_one_time_task_goes_and_its_history_says_why(bench: Bench) -> None:
    """It is not dead: no operator has to look at it."""
    own = Bench(bench.database, [a_task("mail", record="all")])
    own.client.schedule("mail", id="1", delay="0s")
    own.settle(own.claim_one("mail"), Skipped("lock_held"))
    assert own.find("mail", "1") is None
    assert (own.slot("mail")["outcome"], own.slot("mail")["reason"]) == (
        "skipped",
        "lock_held",
    )
    assert own.slot("mail")["attempts"] == 0


def test_a_slot_that_was_called_off_meanwhile_is_cancelled(bench: Bench) -> None:
    """The operation stands, and burns no attempt either."""
    bench.tick()
    claim = bench.claim_one("plain")
    bench.change("plain", cancel_requested=at(1), control=1)
    bench.settle(claim, Skipped("lock_held"))
    found = bench.slot("plain")
    assert (found["outcome"], found["reason"], found["attempts"]) == (
        "cancelled",
        "operator",
        0,
    )


def test_health_names_a_job_that_is_locked_out(bench: Bench) -> None:
    """Three slots in a row, the newest: not after a run, and not for another reason."""
    bench.planned()

    def run(outcome: AttemptOutcome) -> Mapping[str, str]:
        bench.tick(1)
        bench.settle(bench.claim_one("plain"), outcome)
        return bench.inspect.health().locked_out

    assert run(Skipped("lock_held")) == {}
    assert run(Skipped("lock_held")) == {}
    assert run(Skipped("lock_held")) == {"plain": "lock_held"}
    assert run(Succeeded()) == {}
    assert run(Skipped("lock_held")) == {}
    for _ in range(3):
        assert run(Skipped("maintenance")) == {}
