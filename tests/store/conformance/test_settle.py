"""The settlement: the fence, what each outcome writes on row and ledger, and that batches stand by
each other.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tests.kit.records import (
    FOREVER,
    Aborted,
    AttemptOutcome,
    Died,
    Failed,
    HandedBack,
    Succeeded,
)
from tests.kit.store import trigger
from tests.store.bench import LEASE, NOON, Bench, a_job, at, stale

from slotwise import Settings
from slotwise.spi import Database

OUTCOMES = [
    Succeeded(),
    Failed("boom"),
    Aborted("shutdown"),
    HandedBack("shutdown"),
    Died(),
]


# -- the fence ------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda one: one.name)
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
    bench: Bench, wrong: dict[str, Any], outcome: AttemptOutcome
) -> None:
    """Key, version and holder: with any of them wrong, zero rows, which is a normal answer:
    lost.
    """
    bench.tick()
    claim = bench.claim_one("plain", "host:1:a")
    before, ledger = bench.row("plain"), bench.slots("plain")
    bench.tick(5)
    assert bench.settle(stale(claim, **wrong), outcome) is None
    assert bench.row("plain") == before
    assert (bench.slots("plain"), bench.gaps("plain")) == (ledger, [])
    assert bench.settle(claim) is not None


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda one: one.name)
def test_settling_twice_changes_nothing(bench: Bench, outcome: AttemptOutcome) -> None:
    """A settlement ends the claim: the second one is refused."""
    bench.tick()
    claim = bench.claim_one("plain")
    assert bench.settle(claim, outcome) is not None
    before = (bench.row("plain"), bench.slots("plain"))
    assert bench.settle(claim, Failed("again")) is None
    assert (bench.row("plain"), bench.slots("plain")) == before


def test_a_zombie_cannot_settle_its_successors_claim(bench: Bench) -> None:
    """Taken over, claimed again, even by the same process: the token has risen."""
    bench.tick()
    zombie = bench.claim_one("plain", "host:1:a")
    bench.take_over(zombie)
    heir = bench.claim_one("plain", "host:1:a")
    assert heir.slot == zombie.slot
    assert bench.settle(zombie) is None
    assert bench.slot("plain")["outcome"] == "running"
    assert bench.settle(heir) is not None
    assert (bench.slot("plain")["outcome"], bench.slot("plain")["token"]) == (
        "succeeded",
        heir.token,
    )


def test_a_zombie_cannot_settle_a_reused_id(bench: Bench) -> None:
    """A one-time task that was deleted and scheduled again under its id has a token that was never
    seen before.
    """
    bench.client.schedule("mail", id="order-7")
    zombie = bench.claim_one("mail", "host:1:a")
    bench.delete("mail", "order-7")
    bench.tick(0.001)
    bench.client.schedule("mail", id="order-7")
    heir = bench.claim_one("mail", "host:1:a")
    assert heir.token > zombie.token
    assert heir.row.created_version != zombie.row.created_version
    assert bench.settle(zombie) is None
    assert bench.find("mail", "order-7") is not None
    assert bench.settle(heir) is not None
    assert bench.find("mail", "order-7") is None


def test_tokens_rise_over_delete_and_reuse_at_one_instant(bench: Bench) -> None:
    """Even where the clock stands still: the holder tells the two claims apart, and neither
    settles for the other.
    """
    bench.client.schedule("mail", id="order-7")
    zombie = bench.claim_one("mail", "host:1:a")
    bench.delete("mail", "order-7")
    bench.client.schedule("mail", id="order-7")
    heir = bench.claim_one("mail", "host:2:b")
    assert bench.settle(zombie) is None
    assert bench.settle(heir) is not None


# -- what each outcome writes ---------------------------------------------------------------------


def test_success(bench: Bench) -> None:
    """The ledger row is final, the plan row waits for the next slot, free."""
    bench.tick()
    claim = bench.claim_one("plain")
    bench.tick(0.5)
    transition = bench.settle(claim)
    assert transition is not None
    assert transition.label == "succeeded"
    entry = bench.slot("plain")
    assert (entry["outcome"], entry["finished"], entry["attempts"]) == (
        "succeeded",
        at(1.5),
        1,
    )
    assert (entry["token"], entry["worker"], entry["started"]) == (
        claim.token,
        claim.holder,
        at(1),
    )
    row = bench.row("plain")
    assert (row.picked, row.picked_by, row.last_heartbeat, row.lease) == (
        False,
        None,
        None,
        None,
    )
    assert (row.version, row.slot, row.next_slot, row.execution_time) == (
        claim.token + 1,
        at(2),
        at(3),
        at(2),
    )
    assert (
        row.watermark,
        row.last_success,
        row.consecutive_failures,
        row.attempt,
    ) == (
        at(1),
        at(1.5),
        0,
        0,
    )


def test_a_failure_without_retry(bench: Bench) -> None:
    """The ledger keeps the error; the schedule goes on."""
    bench.tick()
    bench.settle(bench.claim_one("plain"), Failed("Traceback …\nValueError: boom"))
    entry = bench.slot("plain")
    assert (entry["outcome"], entry["error"]) == (
        "failed",
        "Traceback …\nValueError: boom",
    )
    row = bench.row("plain")
    assert (row.slot, row.consecutive_failures, row.last_failure) == (at(2), 1, at(1))


def test_a_retry_stays_with_its_slot(bench: Bench) -> None:
    """Same slot, same ledger row, one attempt more; the ledger ends with how the last one
    ended.
    """
    bench.tick()
    first = bench.claim_one("retried")
    bench.settle(first, Failed("boom"))
    entry, row = bench.slot("retried"), bench.row("retried")
    assert (entry["outcome"], entry["reason"], entry["finished"]) == (
        "failed",
        "retry",
        None,
    )
    assert (row.slot, row.attempt, row.consecutive_failures) == (at(1), 1, 1)
    assert (
        at(1) + timedelta(seconds=1)
        <= row.execution_time
        <= at(1) + timedelta(seconds=2)
    )
    assert bench.claim("retried") == []
    bench.tick(0.1)
    second = bench.claim_one("retried")
    assert (second.slot, second.row.attempt) == (at(1), 2)
    assert second.token > first.token
    entry = bench.slot("retried")
    assert (entry["outcome"], entry["attempts"], entry["token"], entry["reason"]) == (
        "running",
        2,
        second.token,
        None,
    )
    bench.settle(second)
    entry = bench.slot("retried")
    assert (entry["outcome"], entry["attempts"], entry["error"]) == (
        "succeeded",
        2,
        None,
    )
    assert bench.row("retried").slot == at(2)


def test_a_retry_beyond_the_next_slot_is_not_made(bench: Bench) -> None:
    """The next slot is the next try."""
    bench.tick()
    claim = bench.claim_one("retried")
    bench.clock.set(at(2) - timedelta(milliseconds=1))
    bench.settle(claim, Failed("boom"))
    assert bench.slot("retried")["finished"] is not None
    assert bench.row("retried").slot == at(2)


def test_slots_that_came_due_while_held_are_skipped(bench: Bench) -> None:
    """overlap=skip: one is a ledger row, several are a gap; the row moves past them."""
    bench.tick()
    claim = bench.claim_one("plain")
    bench.tick(1)
    bench.settle(claim)
    assert bench.outcomes("plain") == [(1, "succeeded"), (2, "skipped")]
    assert bench.slots("plain")[1]["reason"] == "overlap"
    bench.tick(1)
    claim = bench.claim_one("plain")
    bench.tick(7.5)
    bench.settle(claim)
    assert bench.gaps("plain") == [(4, 10, 7, "overlap")]
    assert (bench.row("plain").slot, bench.row("plain").watermark) == (at(11), at(10))


def test_a_hand_back_leaves_no_trace(bench: Bench) -> None:
    """The slot never started: no ledger row, no attempt; it is due as before, for anybody."""
    bench.tick()
    before = bench.row("plain")
    claim = bench.claim_one("plain", "host:1:a")
    bench.settle(claim, HandedBack("shutdown"))
    assert bench.slots("plain") == []
    row = bench.row("plain")
    assert (row.slot, row.next_slot, row.execution_time, row.attempt) == (
        before.slot,
        before.next_slot,
        before.execution_time,
        0,
    )
    again = bench.claim_one("plain", "host:2:b")
    assert (again.slot, again.row.attempt) == (at(1), 1)
    assert bench.slot("plain")["attempts"] == 1


def test_a_hand_back_of_a_retry_keeps_its_history(bench: Bench) -> None:
    """What was attempted before stays in the ledger, with its time, and is not counted twice."""
    bench.tick()
    bench.settle(bench.claim_one("retried"), Failed("boom"))
    for _ in range(2):
        bench.tick(0.1)
        bench.settle(bench.claim_one("retried"), HandedBack("shutdown"))
        entry = bench.slot("retried")
        assert (entry["attempts"], entry["started"], entry["finished"]) == (
            1,
            at(1),
            None,
        )
    again = bench.claim_one("retried")
    entry = bench.slot("retried")
    assert (again.row.attempt, entry["attempts"], entry["started"]) == (2, 2, at(1.2))


def test_a_hand_back_after_a_restore_keeps_what_the_ledger_knows(bench: Bench) -> None:
    """The queue was restored alone, and its row counts from the beginning: the ledger does not."""
    bench.tick()
    bench.take_over(bench.claim_one("plain"))
    bench.change("plain", attempt=0, lost_count=0, execution_time=at(1))
    bench.tick(0.1)
    bench.settle(bench.claim_one("plain"), HandedBack("shutdown"))
    entry = bench.slot("plain")
    assert (entry["attempts"], entry["lost"], entry["started"], entry["finished"]) == (
        1,
        1,
        at(1),
        None,
    )
    bench.claim_one("plain")
    assert bench.slot("plain")["attempts"] == 2


@pytest.mark.parametrize(
    ("name", "outcome"),
    [("plain", "lost"), ("strict", "skipped")],
    ids=["begun", "claimed"],
)
def test_an_open_slot_of_a_gap_ends_with_it(
    bench: Bench, name: str, outcome: str
) -> None:
    """The queue was restored alone, to before a claim whose slot is now one of several missed
    ones.
    """
    bench.tick()
    bench.claim_one(name)
    bench.change(
        name,
        picked=False,
        picked_by=None,
        last_heartbeat=None,
        lease=None,
        attempt=0,
        watermark=None,
    )
    bench.tick(2)
    assert bench.claim_one(name).slot == at(3)
    entry = bench.slots(name)[0]
    assert (entry["slot"], entry["outcome"], entry["reason"]) == (
        at(1),
        outcome,
        "collapsed",
    )


def test_a_retry_counts_its_time_from_the_first_attempt_that_failed(
    bench: Bench,
) -> None:
    """Neither from the slot, nor from an attempt that was lost; and the next slot begins anew."""
    bench.tick(3)
    bench.settle(bench.claim_one("retried"), Aborted("shutdown"))
    assert bench.row("retried").trying_since is None
    bench.tick(0.1)
    for _ in range(2):
        claim = bench.claim_one("retried")
        bench.tick(0.1)
        bench.settle(claim, Failed("boom"))
        assert bench.row("retried").trying_since == at(3.1)
        bench.tick(0.1)
    bench.settle(bench.claim_one("retried"))
    assert (bench.row("retried").slot, bench.row("retried").trying_since) == (
        at(4),
        None,
    )


def test_an_aborted_attempt_is_counted(bench: Bench) -> None:
    """Each second start of a slot has its reason in the ledger."""
    bench.tick()
    bench.settle(bench.claim_one("plain"), Aborted("shutdown"))
    entry = bench.slot("plain")
    assert (
        entry["outcome"],
        entry["reason"],
        entry["aborted"],
        entry["finished"],
    ) == (
        "cancelled",
        "shutdown",
        1,
        None,
    )
    again = bench.claim_one("plain")
    assert (again.slot, again.row.attempt) == (at(1), 2)
    bench.settle(again)
    entry = bench.slot("plain")
    assert (entry["outcome"], entry["attempts"], entry["aborted"]) == (
        "succeeded",
        2,
        1,
    )


def test_a_fixed_delay_counts_from_the_settlement(bench: Bench) -> None:
    """In the database's time."""
    claim = bench.claim_one("delayed")
    bench.tick(7)
    bench.settle(claim)
    row = bench.row("delayed")
    assert (row.slot, row.next_slot, row.watermark) == (at(9), None, NOON)
    assert bench.gaps("delayed") == []


def test_a_detached_row_goes_when_its_slot_is_final(bench: Bench) -> None:
    """And comes again when it is not."""
    with bench.store.transaction() as connection:
        instance = trigger(bench.store, connection, "retried").task_instance
    bench.settle(bench.claim_one("retried"), Failed("boom"))
    assert bench.row("retried", instance).attempt == 1
    bench.tick(0.1)
    bench.settle(bench.claim_one("retried"))
    assert bench.find("retried", instance) is None
    entry = bench.slot("retried")
    assert (entry["outcome"], entry["origin"], entry["attempts"]) == (
        "succeeded",
        "trigger",
        2,
    )


def test_a_task_that_succeeded_is_gone(bench: Bench) -> None:
    """No trace in the queue."""
    bench.client.schedule("mail", id="1")
    bench.settle(bench.claim_one("mail"))
    assert bench.find("mail", "1") is None


def test_a_task_that_failed_for_good_stays(bench: Bench) -> None:
    """Dead, parked where no clean-up takes it for overdue, with the due time that it had."""
    bench.client.schedule("mail", id="1")
    bench.settle(bench.claim_one("mail"), Failed("unreadable", final=True))
    row = bench.row("mail", "1")
    assert (row.state, row.execution_time, row.picked) == ("dead", FOREVER, False)
    bench.clock.set(FOREVER + timedelta(days=1))
    assert bench.claim("mail") == []


def test_a_cancel_request_ends_with_the_claim(bench: Bench) -> None:
    """Commands on a held row write columns of their own; the settlement clears what is done
    with.
    """
    bench.tick()
    claim = bench.claim_one("plain")
    bench.change("plain", cancel_requested=at(1))
    bench.settle(claim)
    assert bench.row("plain").cancel_requested is None


# -- batches --------------------------------------------------------------------------------------


def test_a_batch_settles_each_under_its_own_fence(bench: Bench) -> None:
    """Success, failure, hand-back, a stale one, jobs and tasks: each gets its own answer, in the
    order asked.
    """
    for number in range(4):
        bench.client.schedule("mail", id=f"{number}")
    bench.tick()
    claims = {
        (claim.row.task_name, claim.row.task_instance): claim
        for claim in bench.claim()
    }
    mails = [claims["mail", f"{number}"] for number in range(4)]
    endings: list[Any] = [
        (mails[3], Succeeded()),
        (claims["strict", "recurring"], HandedBack("suspect")),
        (stale(mails[1], version=1), Succeeded()),
        (claims["plain", "recurring"], Failed("boom")),
        (mails[0], Failed("bad", final=True)),
        (claims["delayed", "recurring"], Succeeded()),
        (mails[2], Failed("retry me")),
    ]
    labels = [
        done.transition.label if done.transition else None
        for done in bench.store.settlements.settle(endings)
    ]
    assert labels == [
        "succeeded",
        "handed_back",
        None,
        "failed",
        "dead",
        "succeeded",
        "failed",
    ]
    left = {instance: bench.find("mail", instance) for instance in "0123"}
    states = {
        instance: row and (row.state, row.picked, row.attempt)
        for instance, row in left.items()
    }
    assert states == {
        "0": ("dead", False, 1),
        "1": (None, True, 1),
        "2": (None, False, 1),
        "3": None,
    }
    assert bench.slots("strict") == []
    assert bench.outcomes("plain") == [(1, "failed")]


def test_a_large_batch(bench: Bench) -> None:
    """As many as one statement takes."""
    for number in range(500):
        bench.client.schedule("mail", id=f"{number}")
    claims = bench.claim("mail", limit=500)
    done = bench.store.settlements.settle([(claim, Succeeded()) for claim in claims])
    assert len(claims) == 500
    assert all(settlement.transition for settlement in done)
    with bench.store.transaction() as connection:
        tasks = bench.tables.tasks
        left = connection.scalar(
            sa.select(sa.func.count()).where(tasks.c.task_name == "mail")
        )
    assert left == 0


def test_the_same_ending_twice_in_a_batch(bench: Bench) -> None:
    """A handler that ends while its worker gives up on it: one of the two counts, the other
    changes nothing.
    """
    bench.tick()
    claim = bench.claim_one("plain")
    bench.store.settlements.settle(
        [(claim, Aborted("shutdown")), (claim, Succeeded())]
    )
    row = bench.row("plain")
    assert (row.picked, row.version) == (False, claim.token + 1)


def test_data_that_no_database_takes_stands_alone(pg_bench: Bench) -> None:
    """A batch that meets a bad outcome is halved until it stands alone; the others settle, and it
    fails for good.
    """
    bench = pg_bench
    for number in range(9):
        bench.client.schedule("mail", id=f"{number}")
    claims = bench.claim("mail")
    endings: list[Any] = [(claim, Succeeded()) for claim in claims]
    endings[4] = (claims[4], Failed("NUL: \x00"))
    done = bench.store.settlements.settle(endings)
    assert [settlement.claim for settlement in done] == claims
    assert all(settlement.transition for settlement in done)
    assert [bench.find("mail", f"{number}") is None for number in range(9)] == [
        number != 4 for number in range(9)
    ]
    assert (bench.row("mail", "4").state, bench.row("mail", "4").picked) == (
        "dead",
        False,
    )


@pytest.mark.parametrize("table", ["tasks", "slots"])
def test_a_locked_row_costs_a_batch_one_wait(pg_url: str, table: str) -> None:
    """Somebody's lock costs the settlement of that row, for as long as it lasts; the others wait
    for it once.
    """
    # lock_timeout is half a heartbeat interval
    database = Database(
        Settings(database_url=pg_url, heartbeat_interval=timedelta(seconds=1))
    )
    bench = Bench(database, [a_job(f"job-{number}") for number in range(40)]).planned()
    bench.tick()
    claims = bench.claim()
    found = getattr(bench.tables, table)
    waits: list[str] = []

    @sa.event.listens_for(database.main, "handle_error")
    def note(context: sa.engine.ExceptionContext) -> None:
        if "due to lock timeout" in str(context.original_exception):
            waits.append(str(context.statement))

    with database.main.begin() as connection:
        locked = (
            sa.select(found.c.slot)
            .where(found.c.task_name == "job-7")
            .with_for_update()
        )
        connection.execute(locked).one()
        done = bench.store.settlements.settle(
            [(claim, Succeeded()) for claim in claims]
        )
        assert len(waits) == 1
        ours = next(claim for claim in claims if claim.row.task_name == "job-7")
        (again,) = bench.store.settlements.settle([(ours, Succeeded())], wait=False)
        assert len(waits) == 1
    assert {one.claim.row.task_name for one in done if one.error is not None} == {
        "job-7"
    }
    assert all(one.transition for one in done if one.error is None)
    assert (again.transition, isinstance(again.error, TimeoutError)) == (None, True)
    assert bench.settle(ours) is not None
    database.close()


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda one: one.name)
def test_a_schedule_that_cannot_be_read_loses_no_outcome(
    bench: Bench, outcome: AttemptOutcome
) -> None:
    """A newer release re-planned the row while it was held: the outcome is written, the row is
    left for readers.
    """
    bench.tick()
    claims = bench.claim("plain", "strict")
    bench.change("plain", schedule="MOON|full")
    done = bench.store.settlements.settle([(claim, outcome) for claim in claims])
    assert all(settlement.transition for settlement in done)
    row = bench.row("plain")
    assert (row.picked, row.schedule) == (False, "MOON|full")
    assert row.version == claims[0].token + 1
    bench.change("plain", schedule="EVERY|1m")  # a worker that can read it
    bench.clock.set(at(10.5))
    again = bench.claim_one("plain")
    started_over = not isinstance(outcome, Succeeded | Failed)
    assert again.slot == (
        at(1) if started_over and not isinstance(outcome, HandedBack) else at(10)
    )
    assert bench.settle(again) is not None
    waited = started_over and not isinstance(
        outcome, HandedBack
    )  # and nobody took it: what came then was missed
    assert bench.row("plain").slot == at(2 if waited else 11)


def test_two_workers_settle_at_once(bench: Bench) -> None:
    """Each settles its own, in whatever order: sorted keys cannot deadlock."""
    from concurrent.futures import ThreadPoolExecutor

    for number in range(200):
        bench.client.schedule("mail", id=f"{number:03}")
    claims = bench.claim("mail", limit=200, lease=LEASE)
    shares = [claims[::2][::-1], claims[1::2], claims[::3], claims[::-1]]
    with ThreadPoolExecutor(4) as threads:
        done = list(
            threads.map(
                lambda share: bench.store.settlements.settle(
                    [(one, Succeeded()) for one in share]
                ),
                shares,
            )
        )
    settled = [
        settlement.claim.key
        for share in done
        for settlement in share
        if settlement.transition
    ]
    assert sorted(settled) == sorted(claim.key for claim in claims)


def test_a_claim_of_before_a_restore_does_not_end_the_attempt_after_it(
    bench: Bench,
) -> None:
    """The queue was restored alone: the ledger has a later attempt of the slot, under another
    token.
    """
    bench.tick()
    claim, backup = bench.claim_one("retried"), bench.backup()
    bench.settle(claim, Failed("boom"))
    bench.tick(0.5)
    later = bench.claim_one("retried", "host:2:b")
    assert later.slot == claim.slot
    bench.restore(backup)
    bench.settle(claim)
    entry = bench.slot("retried")
    assert (entry["outcome"], entry["reason"], entry["token"]) == (
        "lost",
        "orphaned",
        later.token,
    )
