"""Each attempt that did not succeed is kept, under the fence of its settlement; the ledger has the
one that did.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from tests.kit.records import (
    Aborted,
    Failed,
    FollowUps,
    HandedBack,
    Skipped,
    Snoozed,
    Succeeded,
)
from tests.kit.store import failed_attempts, failures
from tests.store.bench import Bench, a_job, a_task, at, stale
from tests.store.conformance.test_retention import prune

from slotwise.inspect import Failure
from slotwise.spi import Reason

SECOND = timedelta(seconds=1)


def kept(bench: Bench, name: str, *columns: str) -> list[tuple[Any, ...]]:
    """These columns of the attempts of a task, the oldest first."""
    table = bench.tables.attempts
    order = table.c.slot, table.c.token
    with bench.store.transaction() as connection:
        statement = sa.select(*(table.c[column] for column in columns)).where(
            table.c.task_name == name
        )
        return [tuple(row) for row in connection.execute(statement.order_by(*order))]


def add_up(bench: Bench, name: str) -> None:
    """Attempts and ledger rows name as many claims as the ledger counts."""
    for slot in bench.slots(name):
        found = kept(bench, name, "slot", "token", "number")
        tokens = {token for at, token, _ in found if at == slot["slot"]} | {
            slot["token"]
        }
        assert len(tokens) == slot["attempts"]
        numbers = [number for at, _, number in found if at == slot["slot"]]
        assert numbers == sorted(set(numbers))


def test_the_usual_case_writes_no_row(bench: Bench) -> None:
    """One attempt that succeeds, of a slot or of a task, also of one whose history is kept; and
    what never began.
    """
    bench.tick()
    bench.settle(bench.claim_one("plain"))
    bench.settle(bench.claim_one("strict"), HandedBack())
    bench.settle(bench.claim_one("strict"), Skipped("not today"))
    bench = bench.beside(a_task("mail", record="all"))
    bench.client.schedule("mail", id="1")
    bench.settle(bench.claim_one("mail"), Succeeded(follow_ups=FollowUps()))
    assert len(bench.slots("mail")) == 1
    assert [kept(bench, name, "number") for name in ("plain", "strict", "mail")] == [
        [],
        [],
        [],
    ]


def test_a_failure_and_its_retry(bench: Bench) -> None:
    """Who had it, from when to when, and the whole traceback; the ledger has the attempt that
    succeeds then.
    """
    bench.tick()
    first = bench.claim_one("retried", "host:1:a")
    bench.tick(0.1)
    bench.settle(first, Failed("Traceback …\nValueError: boom"))
    bench.tick(0.1)
    bench.settle(bench.claim_one("retried", "host:2:b"))
    columns = (
        "number",
        "worker",
        "token",
        "claimed",
        "started",
        "ended",
        "outcome",
        "reason",
        "error",
    )
    assert kept(bench, "retried", *columns) == [
        (
            1,
            "host:1:a",
            first.token,
            at(1),
            at(1),
            at(1.1),
            "failed",
            "retry",
            "Traceback …\nValueError: boom",
        ),
    ]
    add_up(bench, "retried")


def test_a_failure_for_good_has_a_row(bench: Bench) -> None:
    """Also of the only attempt: the table lists all that has failed."""
    bench.tick()
    bench.settle(bench.claim_one("plain"), Failed("boom"))
    assert kept(bench, "plain", "number", "outcome", "error") == [
        (1, "failed", "boom")
    ]
    add_up(bench, "plain")


def test_a_timeout_says_so(bench: Bench) -> None:
    """As the reason of a failure."""
    bench.tick()
    bench.settle(
        bench.claim_one("plain"), Failed("timed out after 5s", reason=Reason.TIMEOUT)
    )
    assert kept(bench, "plain", "outcome", "reason", "error") == [
        ("failed", "timeout", "timed out after 5s")
    ]


def test_a_take_over_names_the_dead_and_its_last_heartbeat(bench: Bench) -> None:
    """The row of who had it, and since when it is silent."""
    bench.tick()
    claim = bench.claim_one("plain", "host:1:dead")
    bench.tick(0.5)
    bench.store.held.beat("host:1:dead", [claim])
    bench.tick(1.5)
    bench.take_over(claim)
    bench.tick(0.5)
    bench.settle(bench.claim_one("plain", "host:2:b"))
    columns = ("number", "worker", "claimed", "started", "ended", "outcome", "reason")
    assert kept(bench, "plain", *columns) == [
        (1, "host:1:dead", at(1), at(1), at(1.5), "lost", "rerun"),
    ]
    add_up(bench, "plain")


def test_a_holder_that_stirs_leaves_no_row(bench: Bench) -> None:
    """Neither does a settlement outside its fence: the row is written with what it tells of, or
    not at all.
    """
    bench.tick()
    claim = bench.claim_one("plain", "host:1:a")
    silent = bench.row("plain")
    bench.tick(0.5)
    bench.store.held.beat("host:1:a", [claim])
    assert bench.store.settlements.take_over([silent]) == []
    for wrong in (stale(claim, version=1), stale(claim, holder="host:3:c")):
        assert bench.settle(wrong, Failed("boom")) is None
    assert kept(bench, "plain", "number") == []


def test_a_poison_slot(bench: Bench) -> None:
    """Each death has a row; the last one is lost as well, and the slot dead."""
    bench = bench.beside(a_job("plain", max_lost=2))
    bench.tick()
    for _ in range(2):
        claim = bench.claim_one("plain")
        bench.tick(2)
        bench.take_over(claim)
        bench.tick(1)
    assert bench.slots("plain")[0]["outcome"] == "dead"
    assert kept(bench, "plain", "number", "outcome", "reason") == [
        (1, "lost", "rerun"),
        (2, "lost", "max_lost"),
    ]
    add_up(bench, "plain")


def test_an_attempt_that_a_shutdown_stopped(bench: Bench) -> None:
    """Handed back after its handler began: aborted, and it counts; a snooze is one, too."""
    bench.tick()
    bench.settle(bench.claim_one("plain", "host:1:a"), Aborted(Reason.SHUTDOWN))
    bench.settle(bench.claim_one("plain", "host:2:b"), Snoozed(SECOND))
    bench.tick(0.1)
    bench.settle(bench.claim_one("plain", "host:3:c"))
    assert kept(bench, "plain", "number", "worker", "outcome", "reason") == [
        (1, "host:1:a", "aborted", "shutdown"),
        (2, "host:2:b", "snoozed", "snoozed"),
    ]
    add_up(bench, "plain")


def test_a_job_that_gives_up(bench: Bench) -> None:
    """Started is when the mark was set."""
    bench.tick()
    claim = bench.claim_one("strict")
    bench.tick(0.1)
    assert bench.store.held.mark_running(claim)
    bench.tick(2)
    bench.take_over(claim)
    columns = ("number", "claimed", "started", "ended", "outcome", "reason")
    assert kept(bench, "strict", *columns) == [
        (1, at(1), at(1.1), at(1), "lost", "may_still_be_running")
    ]
    add_up(bench, "strict")


def test_a_slot_that_is_retried_by_hand_keeps_what_was_before(bench: Bench) -> None:
    """The ledger row is written anew; the attempts stay."""
    bench.tick()
    bench.settle(bench.claim_one("plain"), Failed("boom"))
    bench.client.operations.retry("plain", at(1))
    (again,) = [claim for claim in bench.claim("plain") if claim.slot == at(1)]
    bench.settle(again)
    assert kept(bench, "plain", "number", "outcome") == [(1, "failed")]
    add_up(bench, "plain")


def test_a_task_keeps_attempts_where_its_record_says_so(bench: Bench) -> None:
    """Under its first due time; without a record none."""
    for record, expected in (("none", []), ("failures", [(1, "failed"), (2, "lost")])):
        bench = bench.beside(a_task("mail", record=record))
        bench.client.schedule("mail", id="1")
        bench.settle(bench.claim_one("mail"), Failed("boom"))
        bench.tick()
        claim = bench.claim_one("mail", "host:1:dead")
        bench.tick(2)
        bench.take_over(claim)
        bench.tick()
        assert bench.store.settlements.finish(
            [bench.claim_one("mail")]
        )  # the usual end, which looks at nothing
        assert kept(bench, "mail", "number", "outcome") == expected
    ((claimed, ended),) = [
        row[1:]
        for row in kept(bench, "mail", "outcome", "claimed", "ended")
        if row[0] == "lost"
    ]
    assert claimed == ended == claim.claimed_at


def test_a_dead_task(bench: Bench) -> None:
    """Its last attempt failed, whatever the task is then."""
    bench = bench.beside(a_task("mail", record="failures"))
    bench.client.schedule("mail", id="1")
    bench.settle(bench.claim_one("mail"), Failed("boom", final=True))
    assert kept(
        bench, "mail", "task_instance", "slot", "number", "outcome", "error"
    ) == [("1", at(0), 1, "failed", "boom")]
    add_up(bench, "mail")


def test_a_claim_that_a_restored_queue_has_forgotten(bench: Bench) -> None:
    """Its attempt is lost, and stays named when the slot starts again."""
    before = bench.backup()
    bench.tick()
    bench.claim_one("plain", "host:1:gone")
    bench.restore(before)
    bench.settle(bench.claim_one("plain", "host:2:b"))
    assert kept(bench, "plain", "number", "worker", "outcome") == [
        (1, "host:1:gone", "lost")
    ]


def test_an_attempt_that_a_restored_queue_holds_again_keeps_its_end(
    bench: Bench,
) -> None:
    """The backup is from while it ran. Its claim is lost now, but its traceback stays."""
    bench.tick()
    claim = bench.claim_one("retried")
    backup = bench.backup()
    bench.settle(claim, Failed("boom"))
    bench.restore(backup)
    bench.take_over(claim)
    assert kept(bench, "retried", "number", "outcome", "error") == [
        (1, "failed", "boom")
    ]


def test_attempts_go_with_their_slot(bench: Bench) -> None:
    """Also if they are young enough for failures: the slot succeeded."""
    bench.tick()
    bench.settle(bench.claim_one("retried"), Failed("boom"))
    bench.tick(0.1)
    bench.settle(bench.claim_one("retried"))
    bench.tick()
    bench.settle(bench.claim_one("retried"), Failed("boom", final=True))
    bench.clock.set(at(50))
    prune(bench)
    assert len(kept(bench, "retried", "number")) == 2
    bench.clock.set(at(100))
    prune(bench)
    assert kept(bench, "retried", "slot") == [(at(2),)]


def test_attempts_of_a_task_that_left_no_slot_go_by_their_age(bench: Bench) -> None:
    """As failures do."""
    bench = bench.beside(a_task("mail", record="failures"))
    bench.client.schedule("mail", id="1")
    bench.settle(bench.claim_one("mail"), Failed("boom"))
    bench.tick()
    bench.settle(bench.claim_one("mail"))
    bench.clock.set(at(100))
    prune(bench)
    assert kept(bench, "mail", "number") == [(1,)]
    bench.clock.set(at(200))
    prune(bench)
    assert kept(bench, "mail", "number") == []


def test_failed_attempts_of_all_jobs_are_listed(bench: Bench) -> None:
    """The newest first, also of what succeeded since; a one-time task has no slot, whether its row
    is left or not.
    """
    bench = bench.beside(a_task("mail", record="failures"))
    bench.tick()
    bench.settle(bench.claim_one("retried"), Failed("boom"))
    bench.client.schedule("mail", id="1")
    bench.tick(0.1)
    bench.settle(bench.claim_one("mail"), Failed("no mail"))
    bench.settle(bench.claim_one("retried"))
    listed = [
        (one.name, one.id, one.slot, one.attempts, one.error) for one in failed(bench)
    ]
    assert listed == [
        ("mail", "1", None, 1, "no mail"),
        ("retried", "recurring", at(1), 1, "boom"),
    ]
    bench.delete("mail", "1")
    assert [one.slot for one in failed(bench, name="mail")] == [None]
    bench.tick(10)
    assert failed(bench, since=5) == []


def test_a_dead_task_is_listed_once(bench: Bench) -> None:
    """Its row is dead, and the ledger has its end; a slot of a job that failed is listed beside
    it.
    """
    bench = bench.beside(a_task("mail", record="failures"))
    bench.client.schedule("mail", id="1")
    bench.tick()
    bench.settle(bench.claim_one("mail"), Failed("no mail", final=True))
    bench.settle(bench.claim_one("plain"), Failed("boom"))
    listed = failures(bench.store, at(0), limit=10)
    assert sorted((one.name, one.outcome) for one in listed) == [
        ("mail", "dead"),
        ("plain", "failed"),
    ]


def failed(
    bench: Bench, *, since: float = 0, name: str | None = None
) -> list[Failure]:
    return failed_attempts(bench.store, at(since), name=name, limit=10)
