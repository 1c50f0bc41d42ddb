"""Operations about single slots: trigger, skip the next, cancel, retry, delete. Each against
whoever else is at it.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import pytest
import sqlalchemy as sa
from tests.kit.patience import PATIENCE
from tests.kit.records import (
    Aborted,
    AttemptOutcome,
    Cancelled,
    Failed,
    HandedBack,
    Snoozed,
    Succeeded,
)
from tests.kit.store import Badge, SettlementHooks, WorkerRegistry
from tests.store.bench import LEASE, Bench, a_job, at
from tests.store.waiting import run_into_lock

from slotwise import ConfigurationError, Cron, UnknownTask
from slotwise.inspect import RECURRING
from slotwise.operations import Operations


@pytest.fixture
def operations(bench: Bench) -> Operations:
    return bench.client.operations.by("ada")


def failed(bench: Bench, name: str = "plain") -> None:
    """Its first slot ended as failed."""
    bench.tick()
    bench.settle(bench.claim_one(name), Failed("boom", final=True))


# -- trigger --------------------------------------------------------------------------------------


#: What a run beside the schedule leaves as it is.
PLAN = (
    "version",
    "picked",
    "picked_by",
    "slot",
    "next_slot",
    "execution_time",
    "watermark",
    "attempt",
    "state",
)


def plan_of(bench: Bench) -> list[object]:
    return [getattr(bench.row("plain"), name) for name in PLAN]


def told(bench: Bench) -> tuple[datetime | None, datetime | None, int]:
    row = bench.row("plain")
    return row.last_success, row.last_failure, row.consecutive_failures


def test_a_trigger_leaves_the_schedule_alone(
    bench: Bench, operations: Operations
) -> None:
    """It runs beside; its slot is the time of the request. The job's statistics count it."""
    failed(bench)
    before = plan_of(bench)
    bench.tick(0.5)
    slot = operations.trigger("plain", note="please")
    claim = bench.claim_one("plain")
    assert (slot, claim.slot, claim.row.origin) == (at(1.5), at(1.5), "trigger")
    bench.tick(0.1)
    bench.settle(claim)
    assert (plan_of(bench), told(bench)) == (before, (at(1.6), at(1), 0))
    (operation,) = bench.inspect.audit("plain")
    assert (operation.operation, operation.slot, operation.note) == (
        "trigger",
        slot,
        "please",
    )


def test_a_trigger_may_wait_for_what_runs(
    bench: Bench, operations: Operations
) -> None:
    """The end of that run starts the first trigger, and the end of each trigger the next one."""
    bench.tick()
    claim = bench.claim_one("plain")
    slots = [operations.trigger("plain", overlap="queue") for _ in range(2)]
    assert bench.claim("plain") == []
    bench.settle(claim)
    first = bench.claim_one("plain")
    assert (first.slot, first.row.attempt) == (slots[0], 1)
    assert bench.claim("plain") == []
    bench.settle(first)
    second = bench.claim_one("plain")
    assert second.slot == slots[1]
    assert sorted(entry["outcome"] for entry in bench.slots("plain")) == [
        "running",
        "succeeded",
        "succeeded",
    ]


def test_a_trigger_may_give_way(bench: Bench, operations: Operations) -> None:
    """It is skipped while something of the job runs, and the ledger says so; else it runs."""
    bench.tick()
    claim = bench.claim_one("plain")
    slot = operations.trigger("plain", overlap="skip")
    assert bench.claim("plain") == []
    entry = bench.slots("plain")[-1]
    assert (entry["slot"], entry["outcome"], entry["reason"]) == (
        slot,
        "skipped",
        "overlap",
    )
    assert entry["origin"] == "trigger"
    bench.settle(claim)
    slot = operations.trigger("plain", overlap="skip")
    assert bench.claim_one("plain").slot == slot


@pytest.mark.parametrize("rule", ["queue", "skip"])
def test_a_locked_row_is_not_a_running_one(pg_bench: Bench, rule: Any) -> None:
    """A deploy locks the plan row for a moment. Nothing runs, so the trigger starts.

    Before the operation, which waits for the lock; or after it, when a worker claims.
    """
    bench, operations = pg_bench, pg_bench.client.operations
    tasks = bench.tables.tasks
    mine = [tasks.c.task_name == "plain", tasks.c.task_instance == RECURRING]
    plan = sa.select(tasks.c.version).where(*mine).with_for_update()
    with ThreadPoolExecutor(1) as pool:
        with bench.database.main.begin() as deploy:
            deploy.execute(plan)
            requested = run_into_lock(
                bench, pool, lambda: operations.trigger("plain", overlap=rule)
            )
        slot = requested.result(PATIENCE)
    with bench.database.main.begin() as deploy:
        deploy.execute(plan)
        assert bench.claim_one("plain").slot == slot


def test_a_queued_trigger_waits_for_what_ran_at_the_order(
    bench: Bench, operations: Operations
) -> None:
    """A slot that starts later does not keep it from starting."""
    bench.tick()
    first = bench.claim_one("plain")
    slot = operations.trigger("plain", overlap="queue")
    bench.tick()
    bench.settle(first, HandedBack())
    claimed = {claim.slot for claim in bench.claim("plain")}
    assert claimed == {at(2), slot}


@pytest.mark.parametrize("end", ["cancelled", "lost", "retried", "handed back"])
def test_a_queued_trigger_starts_however_the_one_before_it_ends(
    bench: Bench, operations: Operations, end: str
) -> None:
    """It waits for one attempt, not for a retry. A hand-back is no start, so the trigger waits
    on.
    """
    first, second = (operations.trigger("retried", overlap="queue") for _ in range(2))
    if end == "cancelled":
        operations.cancel("retried", first)
    else:
        claim = bench.claim_one("retried")
        assert claim.slot == first
        if end == "lost":
            bench.clock.tick(2 * LEASE)
            bench.take_over(claim)
        else:
            bench.settle(claim, Failed("boom") if end == "retried" else HandedBack())
    claimed = [
        claim.slot for claim in bench.claim("retried") if claim.row.origin == "trigger"
    ]
    assert (
        claimed
        == {
            "cancelled": [second],
            "lost": [first, second],
            "retried": [second],
            "handed back": [first],
        }[end]
    )


def test_a_queued_trigger_goes_with_its_job(
    bench: Bench, operations: Operations
) -> None:
    """Deleting the job ends the trigger that starts and the one that waits."""
    for _ in range(2):
        operations.trigger("plain", overlap="queue")
    operations.delete("plain")
    assert [entry["outcome"] for entry in bench.slots("plain")] == [
        "cancelled",
        "cancelled",
    ]


@pytest.mark.parametrize(
    ("broken", "label"), [("document", "succeeded"), ("decision", "postponed")]
)
def test_a_row_that_cannot_be_read_or_settled_starts_a_queued_trigger(
    bench: Bench,
    operations: Operations,
    monkeypatch: pytest.MonkeyPatch,
    broken: str,
    label: str,
) -> None:
    """A row that cannot be settled is postponed; the trigger that waited for it starts."""
    first, second = (operations.trigger("plain", overlap="queue") for _ in range(2))
    claim = bench.claim_one("plain")
    assert claim.slot == first
    with monkeypatch.context() as patch:
        if broken == "document":
            bench.change(
                "plain",
                claim.row.task_instance,
                pending={"catch_up_until": "the day after"},
            )
        else:
            patch.delattr("slotwise.store.slots.settlement_writer.removed")
        (settlement,) = bench.store.settlements.settle([(claim, Succeeded())])
    assert settlement.transition is not None
    assert settlement.transition.label == label
    assert bench.claim_one("plain").slot == second


def test_a_queued_trigger_starts_after_a_pause(
    bench: Bench, operations: Operations
) -> None:
    """The job was paused and resumed while the slot ran that it waits for."""
    bench.tick()
    claim = bench.claim_one("plain")
    slot = operations.trigger("plain", overlap="queue")
    operations.pause("plain")
    operations.resume("plain")
    bench.settle(claim)
    assert bench.claim_one("plain").slot == slot


def test_two_runs_that_end_at_once_start_a_queued_trigger(pg_bench: Bench) -> None:
    """Race: each transaction sees the other run as going on. The trigger's row lets them take
    turns.
    """
    bench, operations = pg_bench, pg_bench.client.operations
    for _ in range(2):
        operations.trigger("plain")
    claims = bench.claim("plain")
    slot = operations.trigger("plain", overlap="queue")
    other, ended = bench.beside(), []
    with ThreadPoolExecutor(1) as pool:

        def meanwhile(rows: Any, tx: sa.Connection) -> None:
            ended.append(run_into_lock(bench, pool, lambda: other.settle(claims[1])))

        bench.store.settlements.hooks = SettlementHooks({"plain": meanwhile})
        bench.settle(claims[0])
        assert ended[0].result(PATIENCE) is not None
    assert bench.claim_one("plain").slot == slot


def test_of_two_triggers_that_wait_for_each_other_one_starts(
    bench: Bench, operations: Operations
) -> None:
    """Whoever claims at once: the plan row's lock lets the operations take turns."""
    for _ in range(8):
        operations.trigger("plain", overlap="queue")

    def work(number: int) -> int:
        return len(bench.claim("plain", holder=f"host:{number}:x", limit=2))

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(work, range(4))) <= 1
    bench.clock.tick(timedelta(seconds=1))
    assert len(bench.claim("plain")) <= 1
    assert sum(entry["outcome"] == "running" for entry in bench.slots("plain")) == 1


def test_a_strict_job_minds_others_too(bench: Bench, operations: Operations) -> None:
    """Its mark is still to come."""
    operations.trigger("strict", overlap="queue")
    claim = bench.claim_one("strict")
    assert bench.slot("strict")["outcome"] == "claimed"
    assert bench.store.held.mark_running(claim)


@pytest.mark.parametrize(
    ("outcomes", "failures"),
    [
        pytest.param(
            [Failed("a", final=True), Failed("b", final=True)], 3, id="failures"
        ),
        pytest.param([Failed("a", final=True), Succeeded()], 0, id="a success last"),
        pytest.param([Succeeded(), Failed("b", final=True)], 1, id="a failure last"),
        pytest.param([Cancelled("enough"), Cancelled("enough")], 1, id="called off"),
    ],
)
def test_runs_that_end_together_are_counted_in_their_order(
    bench: Bench, operations: Operations, outcomes: list[AttemptOutcome], failures: int
) -> None:
    """One write for all of them; one failure of the schedule went before."""
    failed(bench)
    claims = []
    for _ in outcomes:
        operations.trigger("plain")
        bench.tick(0.1)
        claims += bench.claim("plain")
    bench.store.settlements.settle(
        list(zip(reversed(claims), reversed(outcomes), strict=True))
    )
    assert told(bench)[2] == failures


def test_a_trigger_is_counted_while_another_worker_holds_the_job(
    bench: Bench, operations: Operations
) -> None:
    """The holder keeps its claim: version, slot and due time stay; and what it settles then begins
    from that.
    """
    failed(bench)
    operations.trigger("plain")
    triggered = bench.claim_one("plain")
    bench.tick()
    held = bench.claim_one("plain", "host:2:b")
    before = plan_of(bench)
    bench.settle(triggered, Failed("boom", final=True))
    assert (plan_of(bench), told(bench)) == (before, (None, at(2), 2))
    assert bench.settle(held, Failed("boom", final=True)) is not None
    assert told(bench) == (None, at(2), 3)


def test_a_reaper_does_not_wait_to_count(bench: Bench, operations: Operations) -> None:
    """A job whose row somebody has locked is left out; the slot has ended all the same."""
    if bench.store.dialect.name == "sqlite":
        pytest.skip("one writer at a time: there is nobody to wait for")
    tasks = bench.tables.tasks
    mine = [tasks.c.task_name == "strict", tasks.c.task_instance == RECURRING]
    operations.trigger("strict")
    claim = bench.claim_one("strict")
    assert bench.store.held.mark_running(claim)
    bench.tick(2)
    with bench.store.transaction() as other:
        other.execute(sa.select(tasks.c.version).where(*mine).with_for_update())
        began = monotonic()
        (settlement,) = bench.take_over(claim)
        assert (
            monotonic() - began < bench.database.settings.lock_timeout.total_seconds()
        )
    assert settlement.transition is not None
    assert (bench.slot("strict")["outcome"], bench.row("strict").last_failure) == (
        "lost",
        None,
    )


# -- skip the next --------------------------------------------------------------------------------


def test_the_next_slot_is_skipped(bench: Bench, operations: Operations) -> None:
    """The ledger says so, and the row waits for the one after it."""
    assert operations.skip_next("plain") == at(1)
    entry = bench.slot("plain")
    assert (entry["slot"], entry["outcome"], entry["reason"]) == (
        at(1),
        "skipped",
        "operator",
    )
    bench.tick()
    assert bench.claim("plain") == []
    bench.tick()
    assert bench.claim_one("plain").slot == at(2)


def test_of_a_slot_that_runs_the_following_one_is_skipped(
    bench: Bench, operations: Operations
) -> None:
    """What has begun goes on; neither version, slot nor due time of the held row change."""
    bench.tick()
    claim = bench.claim_one("plain")
    assert [operations.skip_next("plain"), operations.skip_next("plain")] == [
        at(2),
        at(3),
    ]
    row = bench.row("plain")
    assert (row.version, row.slot, row.execution_time) == (claim.token, at(1), at(1))
    assert bench.settle(claim) is not None
    assert bench.row("plain").slot == at(4)
    assert bench.outcomes("plain") == [
        (1, "succeeded"),
        (2, "skipped"),
        (3, "skipped"),
    ]


def test_a_slot_that_is_handed_back_before_one_that_is_skipped_does_not_vanish(
    bench: Bench, operations: Operations
) -> None:
    """Though the ledger knows a newer one: what has not begun is missed, and written down; that
    one stays skipped.
    """
    bench.tick()
    claim = bench.claim_one("plain")
    operations.skip_next("plain")
    bench.settle(claim, HandedBack())
    bench.tick(5)
    assert bench.claim_one("plain").slot == at(6)
    assert bench.gaps("plain") == [(3, 5, 3, "collapsed")]
    assert bench.outcomes("plain") == [(1, "skipped"), (2, "skipped"), (6, "running")]


def test_two_operators_do_not_skip_two_slots(
    bench: Bench, operations: Operations
) -> None:
    """Who says which slot he means is told that it is not the next one any more."""
    operations.skip_next("plain", at(1))
    with pytest.raises(
        ConfigurationError, match="the next slot of job 'plain' is 2026-01-01T12:02:00"
    ):
        operations.skip_next("plain", at(1))
    assert bench.outcomes("plain") == [(1, "skipped")]


def test_a_paused_job_sleeps_on_when_a_slot_is_skipped(
    bench: Bench, operations: Operations
) -> None:
    """And wakes for the one after it."""
    operations.pause("plain")
    operations.skip_next("plain")
    assert bench.row("plain").state == "paused"
    operations.resume("plain")
    row = bench.row("plain")
    assert (row.state, row.slot, row.execution_time) == (None, at(2), at(2))


def test_a_disabled_job_has_no_next_slot(bench: Bench, operations: Operations) -> None:
    """One line, and no operation."""
    with pytest.raises(ConfigurationError, match="no next slot"):
        operations.skip_next("off")
    assert list(bench.inspect.audit()) == []


# -- cancel ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "ended", "reason"),
    [
        pytest.param(
            Succeeded(), "succeeded", None, id="it came to a good end all the same"
        ),
        pytest.param(Aborted("operator"), "cancelled", "operator", id="it listened"),
        pytest.param(
            Aborted("shutdown"), "cancelled", "operator", id="a shutdown came first"
        ),
        pytest.param(
            Snoozed(timedelta(hours=1)),
            "cancelled",
            "operator",
            id="it wanted to go on later",
        ),
        pytest.param(Failed("boom"), "failed", None, id="it broke"),
        pytest.param(HandedBack(), "cancelled", "operator", id="it had not started"),
        pytest.param(
            Cancelled("done"), "cancelled", "done", id="it called itself off"
        ),
    ],
)
def test_a_cancelled_slot_ends(
    bench: Bench,
    operations: Operations,
    outcome: AttemptOutcome,
    ended: str,
    reason: str | None,
) -> None:
    """With this attempt, whatever becomes of it: no retry, no rerun; the schedule goes on."""
    bench.tick()
    claim = bench.claim_one("retried")
    assert operations.cancel("retried") == [at(1)]
    held = bench.row("retried")
    assert (held.version, held.cancel_requested) == (claim.token, at(1))
    bench.settle(claim, outcome)
    entry = bench.slot("retried")
    assert (entry["outcome"], entry["reason"], entry["finished"]) == (
        ended,
        reason,
        at(1),
    )
    row = bench.row("retried")
    assert (row.slot, row.cancel_requested, row.attempt) == (at(2), None, 0)


def test_a_slot_of_a_dead_holder_is_cancelled_too(
    bench: Bench, operations: Operations
) -> None:
    """The operation outlives whoever was to obey it."""
    bench.tick()
    claim = bench.claim_one("plain")
    operations.cancel("plain")
    bench.tick()
    bench.take_over(claim)
    entry = bench.slots("plain")[0]
    assert (entry["outcome"], entry["reason"]) == ("cancelled", "operator")


def test_a_slot_that_waits_for_its_retry_is_cancelled(
    bench: Bench, operations: Operations
) -> None:
    """A worker takes it at once, sees the operation, and ends it without a start; the attempt is
    not counted, nor noted.
    """
    bench.tick()
    bench.settle(bench.claim_one("retried"), Failed("boom"))
    bench.tick(0.01)
    assert operations.cancel("retried", at(1)) == [at(1)]
    claim = bench.claim_one("retried")
    assert claim.row.cancel_requested == at(1.01)
    bench.settle(claim, HandedBack("operator"))
    entry = bench.slot("retried")
    assert (entry["outcome"], entry["reason"], entry["attempts"]) == (
        "cancelled",
        "operator",
        1,
    )
    assert entry["started"] == at(1)


def test_a_waiting_trigger_is_called_off(bench: Bench, operations: Operations) -> None:
    """It is written down, and its row goes."""
    slot = operations.trigger("plain")
    assert operations.cancel("plain", slot) == [slot]
    assert bench.claim("plain") == []
    entry = bench.slot("plain")
    assert (entry["slot"], entry["outcome"], entry["reason"], entry["origin"]) == (
        slot,
        "cancelled",
        "operator",
        "trigger",
    )


def test_only_what_runs_is_cancelled(bench: Bench, operations: Operations) -> None:
    """Nothing runs: nothing to do. A slot that has ended, or not begun, is refused in one line."""
    assert operations.cancel("plain") == []
    with pytest.raises(ConfigurationError, match="skip-next plain"):
        operations.cancel("plain", at(1))
    failed(bench)
    with pytest.raises(ConfigurationError, match="does not run: failed"):
        operations.cancel("plain", at(1))


# -- retry ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["failed", "dead", "cancelled"])
def test_a_slot_that_ended_badly_runs_once_more(
    bench: Bench, operations: Operations, how: str
) -> None:
    """As the same slot, its attempts counted on, while the schedule goes on beside."""
    failed(bench)
    with bench.store.transaction() as connection:
        connection.execute(bench.tables.slots.update().values(outcome=how))
    before = plan_of(bench)
    operations.retry("plain", at(1))
    claim = bench.claim_one("plain")
    assert (claim.slot, claim.row.attempt, claim.row.origin) == (at(1), 2, "retry")
    assert bench.slot("plain")["outcome"] == "running"
    bench.settle(claim)
    entry = bench.slot("plain")
    assert (entry["outcome"], entry["attempts"], entry["origin"]) == (
        "succeeded",
        2,
        "schedule",
    )
    assert (plan_of(bench), told(bench)) == (before, (at(1), at(1), 0))


def test_operators_who_retry_at_once_make_one_attempt(
    bench: Bench, operations: Operations
) -> None:
    """The second is told that the slot has not ended."""
    failed(bench)

    def ask(_: int) -> str:
        try:
            operations.retry("plain", at(1))
        except ConfigurationError as error:
            return str(error)
        return "done"

    with ThreadPoolExecutor(4) as threads:
        answers = sorted(threads.map(ask, range(4)))
    assert answers[0] == "done"
    assert all("has not ended: failed" in answer for answer in answers[1:])
    assert len(bench.claim("plain")) == 1


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        pytest.param(
            "succeeded", "is succeeded, which is not tried again", id="succeeded"
        ),
        pytest.param("skipped", "slotwise backfill plain", id="skipped"),
    ],
)
def test_what_is_not_tried_again(
    bench: Bench, operations: Operations, outcome: str, words: str
) -> None:
    """One line with the cure."""
    failed(bench)
    with bench.store.transaction() as connection:
        connection.execute(bench.tables.slots.update().values(outcome=outcome))
    with pytest.raises(ConfigurationError, match=words):
        operations.retry("plain", at(1))
    with pytest.raises(ConfigurationError, match="not in the ledger"):
        operations.retry("plain", at(-7))
    with pytest.raises(
        ConfigurationError,
        match="is yet to come; for a run at once: slotwise trigger plain",
    ):
        operations.retry("plain", at(7000))


def test_a_skipped_slot_to_come_is_not_tried_again(
    bench: Bench, operations: Operations
) -> None:
    """A backfill does not run it either."""
    slot = operations.skip_next("plain")
    assert slot > bench.store.now()
    with pytest.raises(
        ConfigurationError,
        match=r"is skipped, .*; for another run: slotwise trigger plain",
    ):
        operations.retry("plain", slot)


def test_what_waits_for_a_backfill_is_not_tried_again(
    bench: Bench, operations: Operations
) -> None:
    """It has ended as failed, and will not stay so."""
    failed(bench)
    bench.tick()
    operations.backfill("plain", at(1), at(1), failed=True)
    with pytest.raises(
        ConfigurationError,
        match=r"has not ended: failed, and waits to run again \(backfill\)",
    ):
        operations.retry("plain", at(1))


def test_a_slot_of_a_job_that_gives_up_starts_once(
    bench: Bench, operations: Operations
) -> None:
    """Whoever knows the job refuses; whoever does not, is refused by the claim, and the slot stays
    as it ended.
    """
    bench.tick()
    claim = bench.claim_one("strict")
    assert bench.store.held.mark_running(claim)
    bench.settle(claim, Failed("boom"))
    with pytest.raises(ConfigurationError, match="start once"):
        operations.retry("strict", at(1))
    unknowing = Bench(bench.database, [], bench.clock).client.operations
    for again in (
        lambda: unknowing.retry("strict", at(1)),
        lambda: unknowing.backfill("strict", at(1), at(1), failed=True),
    ):
        bench.tick(0.25)
        again()
        assert bench.claim("strict") == []
        entry = bench.slot("strict")
        ended = (
            entry["outcome"],
            entry["reason"],
            entry["attempts"],
            entry["finished"],
        )
        assert ended == ("failed", "give_up", 1, at(1))
        assert bench.find("strict", f"{RECURRING}@{at(1).isoformat()}") is None


# -- delete ---------------------------------------------------------------------------------------


def test_a_deleted_job_leaves_its_history(
    bench: Bench, operations: Operations
) -> None:
    """All its rows go; what had come and had not begun is written down, and no slot of it ever
    starts again.
    """
    failed(bench)
    bench.tick(3)
    slot = operations.trigger("plain")
    assert operations.delete("plain") == 2
    assert bench.find("plain") is None
    assert bench.gaps("plain") == [(2, 4, 3, "deleted")]
    assert bench.slots("plain")[-1]["reason"] == "deleted"
    assert bench.slots("plain")[-1]["slot"] == slot
    bench.clock.set(at(1.5))
    bench.plan("plain")
    assert bench.row("plain").slot == at(5)


def test_a_pending_retry_ends_with_its_job(
    bench: Bench, operations: Operations
) -> None:
    """Nothing vanishes."""
    bench.tick()
    bench.settle(bench.claim_one("retried"), Failed("boom"))
    operations.delete("retried")
    entry = bench.slot("retried")
    assert (entry["outcome"], entry["reason"], entry["finished"]) == (
        "cancelled",
        "deleted",
        at(1),
    )


@pytest.mark.parametrize("minutes", [0, 3])
def test_a_job_that_nobody_can_read_is_deleted(
    bench: Bench, operations: Operations, minutes: int
) -> None:
    """The slot that waits is skipped if it has come; of others nothing is known."""
    bench.tick(minutes)
    bench.change("plain", schedule="MOON|full")
    assert operations.delete("plain") == 1
    assert bench.find("plain") is None
    assert bench.outcomes("plain") == [(1, "skipped")] * bool(minutes)


def test_a_job_that_runs_is_not_deleted(bench: Bench, operations: Operations) -> None:
    """One line that says where it runs."""
    bench.tick()
    bench.claim_one("plain")
    with pytest.raises(ConfigurationError, match="runs on 'host:1:a'"):
        operations.delete("plain")


def known_by_a_worker(bench: Bench, *tasks: str) -> None:
    badge: dict[str, Any] = {
        "host": "h",
        "pid": 1,
        "boot_id": "a",
        "version": "1",
        "capacity": 1,
        "tags": [],
    }
    badge |= {"revision": None, "refused": [], "passed_over": {}}
    lease = timedelta(minutes=1)
    one = Badge(worker="h:1:a", tasks=tasks, lease=lease, started=at(0), **badge)
    WorkerRegistry(bench.store).sign_in(one, "running")


def test_a_task_is_no_job(bench: Bench, operations: Operations) -> None:
    """The commands for tasks are named, also while no task of that name is scheduled."""
    with pytest.raises(
        UnknownTask,
        match=r"no job 'mail' in this database; .*; for tasks: slotwise tasks list mail",
    ):
        operations.skip_next("mail")
    bench.client.schedule("mail", id="1")
    with pytest.raises(
        ConfigurationError,
        match=r"'mail' is a one-time task; .* slotwise tasks list mail",
    ):
        operations.trigger("mail")


def test_a_job_that_a_live_worker_knows_is_not_deleted(
    bench: Bench, operations: Operations
) -> None:
    """It would be planned again at that worker's next start; unless one insists."""
    known_by_a_worker(bench, "plain")
    with pytest.raises(ConfigurationError, match="worker h:1:a registers"):
        operations.delete("plain")
    assert operations.delete("plain", force=True, dry_run=True) == 1
    bench.tick(2)
    assert operations.delete("plain") == 1


def test_orders_are_read_page_by_page(
    bench: Bench, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest first; those about all stand among those of each job."""
    monkeypatch.setattr("slotwise.store.reading.queries.PAGE", 2)
    for _ in range(3):
        operations.skip_next("plain")
    operations.pause_all()
    operations.skip_next("strict")
    assert [operation.operation for operation in bench.inspect.audit("plain")] == [
        "pause",
        *["skip_next"] * 3,
    ]
    assert len(list(bench.inspect.audit())) == 5
    assert len(list(bench.inspect.audit(limit=3))) == 3


@pytest.mark.parametrize("year", [1, 9999])
def test_no_slot_lies_beyond_what_schedules_know(bench: Bench, year: int) -> None:
    """An operation about one is refused in a line, whatever it was to do with it."""
    with pytest.raises(
        ConfigurationError, match="is not a slot: slots lie in the years 1900 to 8999"
    ):
        bench.client.operations.cancel("plain", datetime(year, 1, 1, tzinfo=UTC))


def test_errors_and_pauses_name_times_in_the_zone_of_the_job(bench: Bench) -> None:
    """With its offset, so that people recognise them, and can pass them to the next command."""
    vienna = bench.beside(
        a_job("vienna", Cron("0 9 * * *", tz="Europe/Vienna"))
    ).planned()
    operations, noon = (
        vienna.client.operations.by("ada"),
        r"2026-01-01T13:00:00\+01:00",
    )
    for refused in (operations.retry, operations.cancel):
        with pytest.raises(ConfigurationError, match=f"slot {noon} of job 'vienna'"):
            refused("vienna", at(0))
    with pytest.raises(ConfigurationError, match=f"not {noon}; nothing is skipped"):
        operations.skip_next("vienna", at(0))
    with pytest.raises(
        ConfigurationError, match=r"2026-01-02T13:00:00\+01:00 is yet to come"
    ):
        operations.backfill("vienna", at(24 * 60), at(24 * 60))
    operations.pause("vienna", note="why")
    found = vienna.inspect.job("vienna")
    assert found is not None
    assert re.fullmatch(f"paused by ada at {noon}: why", found.reason or "")
    operations.resume(
        "vienna"
    )  # the zone of all is that of the slots that are due next
    operations.pause_all()
    assert re.fullmatch(
        f"paused by ada at {noon}", vienna.inspect.health(LEASE).paused or ""
    )
