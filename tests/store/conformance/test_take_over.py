"""Taking over from the dead: under the fence, without waiting, and never from somebody who
stirred.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tests.faults.bench import eventually
from tests.kit.records import Fence, HandedBack
from tests.kit.store import Settlement
from tests.store.bench import Bench, a_job, at, stale
from tests.store.conformance.test_concurrent_slots import begun, workers

from slotwise.spi import Claim, Database


def labels(settlements: list[Settlement]) -> dict[str, str | None]:
    return {
        settlement.claim.row.task_name: settlement.transition.label
        if settlement.transition
        else None
        for settlement in settlements
    }


def test_what_a_reaper_sees(bench: Bench) -> None:
    """All held rows of the tasks it knows, whoever holds them, and the database's time."""
    bench.tick()
    bench.claim("plain", holder="host:1:a")
    bench.claim("strict", holder="host:2:b")
    bench.tick(0.5)
    now, rows = bench.store.held.silent_rows(["plain", "strict", "delayed"])
    assert now == at(1.5)
    seen = {
        row.task_name: (
            row.picked_by,
            row.last_heartbeat,
            row.lease,
            row.slot,
            row.attempt,
        )
        for row in rows
    }
    assert seen == {
        "plain": ("host:1:a", at(1), timedelta(minutes=1), at(1), 1),
        "strict": ("host:2:b", at(1), timedelta(minutes=1), at(1), 1),
    }
    assert bench.store.held.silent_rows(["delayed"]) == (at(1.5), [])


def test_the_dead_let_go(bench: Bench) -> None:
    """rerun: the same slot, at once; the ledger counts the loss; the token rises."""
    bench.tick()
    claim = bench.claim_one("plain", "host:1:a")
    bench.tick(1.5)
    (taken,) = bench.take_over(claim)
    assert taken.claim.holder == "host:1:a"
    entry, row = bench.slot("plain"), bench.row("plain")
    assert (entry["outcome"], entry["reason"], entry["lost"], entry["finished"]) == (
        "lost",
        "rerun",
        1,
        None,
    )
    assert (row.picked, row.slot, row.attempt, row.lost_count) == (False, at(1), 1, 1)
    assert (row.version, row.execution_time) == (claim.token + 1, at(2.5))
    again = bench.claim_one("plain", "host:2:b")
    assert (again.slot, again.row.attempt) == (at(1), 2)
    bench.settle(again)
    entry = bench.slots("plain")[0]
    assert (entry["outcome"], entry["attempts"], entry["lost"]) == ("succeeded", 2, 1)
    # what came due since its last heartbeat is catch-up's
    assert bench.outcomes("plain") == [(1, "succeeded")]
    assert bench.claim_one("plain").slot == at(2)


def test_a_job_that_gives_up_and_had_started(bench: Bench) -> None:
    """At most one start: the slot ends as lost, the schedule goes on."""
    bench.tick()
    claim = bench.claim_one("strict")
    assert bench.store.held.mark_running(claim)
    bench.tick(1.2)
    bench.store.held.beat(claim.holder, [claim])
    bench.tick(2.3)
    assert labels(bench.take_over(claim)) == {"strict": "lost"}
    entry = bench.slots("strict")[0]
    assert (entry["outcome"], entry["reason"], entry["lost"]) == (
        "lost",
        "may_still_be_running",
        1,
    )
    assert entry["finished"] == at(4.5)
    # up to its last heartbeat, at(2.2), it was held: overlap's; what came after is catch-up's
    assert bench.outcomes("strict") == [(1, "lost"), (2, "skipped")]
    assert bench.row("strict").slot == at(3)
    assert bench.claim_one("strict").slot == at(4)
    assert bench.outcomes("strict") == [
        (1, "lost"),
        (2, "skipped"),
        (3, "skipped"),
        (4, "claimed"),
    ]


def test_a_job_that_gives_up_and_had_not_started(bench: Bench) -> None:
    """Lost while claimed: nothing is burnt, the slot has its one start still to come."""
    bench.tick()
    claim = bench.claim_one("strict", "host:1:a")
    bench.tick(1.5)
    assert labels(bench.take_over(claim)) == {"strict": "handed_back"}
    assert bench.slots("strict") == []
    assert not bench.store.held.mark_running(
        claim
    )  # whoever wakes up now must not start
    again = bench.claim_one("strict", "host:2:b")
    assert (again.slot, again.row.attempt) == (
        at(2),
        1,
    )  # the newest of those missed meanwhile
    assert bench.store.held.mark_running(again)


def test_a_mark_is_set_once(bench: Bench) -> None:
    """By key, token and outcome: a second mark starts nothing."""
    bench.tick()
    claim = bench.claim_one("strict")
    bench.tick(0.1)
    assert bench.store.held.mark_running(claim)
    entry = bench.slot("strict")
    assert (entry["outcome"], entry["started"]) == ("running", at(1.1))
    assert not bench.store.held.mark_running(claim)


def test_a_task_that_gives_up_and_had_not_started(bench: Bench) -> None:
    """Lost while claimed: nothing is burnt, and a mark that arrives late starts nothing."""
    bench.client.schedule("once", id="1")
    claim = bench.claim_one("once", "host:1:a")
    bench.tick(1.5)
    assert labels(bench.take_over(claim)) == {"once": "handed_back"}
    assert not bench.store.held.mark_running(claim)
    again = bench.claim_one("once", "host:2:b")
    assert (again.row.attempt, again.row.lost_count) == (1, 0)
    assert bench.store.held.mark_running(again)


def test_a_task_that_gives_up_and_had_started(bench: Bench) -> None:
    """At most one start: it ends dead."""
    bench.client.schedule("once", id="1")
    claim = bench.claim_one("once")
    assert bench.store.held.mark_running(claim)
    assert not bench.store.held.mark_running(claim)
    bench.tick(2)
    assert labels(bench.take_over(claim)) == {"once": "dead"}
    assert (bench.row("once", "1").state, bench.claim("once")) == ("dead", [])


def test_a_mark_belongs_to_its_claim(bench: Bench) -> None:
    """A task that went back with its mark, as it could not start after all, has its one start
    still to come.
    """
    bench.client.schedule("once", id="1")
    for holder in ("host:1:a", "host:2:b"):
        claim = bench.claim_one("once", holder)
        assert bench.store.held.mark_running(claim)
        bench.settle(claim, HandedBack("suspect"))
    unmarked = bench.claim_one("once")
    bench.tick(2)
    assert labels(bench.take_over(unmarked)) == {"once": "handed_back"}


def test_marks_that_come_together_go_together(bench: Bench) -> None:
    """Those that wait while a statement is under way are in the next one; each learns of its
    own.
    """
    for number in range(4):
        bench.client.schedule("once", id=str(number))
    claims, sent = bench.claim("once"), list[int]()
    bench.settle(claims[2], HandedBack("shutdown"))
    marks, mark = bench.store.held._task_marks, bench.store.dialect.mark_tasks

    def told(connection: sa.Connection, some: Sequence[Claim]) -> set[Fence]:
        sent.append(len(some))
        return mark(connection, some)

    bench.store.dialect.mark_tasks = told  # type: ignore[method-assign]
    with ThreadPoolExecutor(4) as threads:
        with marks._turn:
            found = [threads.submit(marks.set, claim) for claim in claims]
            eventually(lambda: len(marks._waiting) == 4)
        assert [one.result() for one in found] == [True, True, False, True]
    assert sent == [4]


@pytest.mark.parametrize("name", ["strict", "once"])
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"key": "recurring@other"}, id="another key"),
        pytest.param({"version": 1}, id="a later token"),
        pytest.param({"version": -1}, id="an earlier token"),
        pytest.param({"holder": "host:1:b"}, id="another boot"),
    ],
)
def test_a_mark_outside_its_fence_starts_nothing(
    bench: Bench, wrong: dict[str, Any], name: str
) -> None:
    """Law 1: it names key, token and holder, each of which keeps out whoever holds something
    else.
    """
    bench.tick()
    bench.client.schedule("once", id="1")
    claim = bench.claim_one(name)
    before = bench.slots(name), bench.row(*claim.key)
    assert not bench.store.held.mark_running(stale(claim, **wrong))
    assert (bench.slots(name), bench.row(*claim.key)) == before
    assert bench.store.held.mark_running(claim)


def test_a_poison_slot_ends_dead(bench: Bench) -> None:
    """After max_lost losses the slot is dead, and the schedule goes on."""
    bench = bench.beside(a_job("plain", max_lost=2))
    bench.tick()
    bench.take_over(bench.claim_one("plain"))
    bench.take_over(bench.claim_one("plain"))
    entry = bench.slot("plain")
    assert (entry["outcome"], entry["reason"], entry["attempts"], entry["lost"]) == (
        "dead",
        "max_lost",
        2,
        2,
    )
    assert "lost 2 times" in entry["error"]
    assert bench.row("plain").slot == at(2)


def test_tasks_are_taken_over_too(bench: Bench) -> None:
    """rerun: once more; give_up: dead, with the reason."""
    bench.client.schedule("mail", id="1")
    bench.client.schedule("once", id="1")
    claims = {claim.key.task_name: claim for claim in bench.claim("mail", "once")}
    assert bench.store.held.mark_running(claims["once"])
    bench.take_over(*claims.values())
    assert (bench.row("mail", "1").state, bench.row("mail", "1").attempt) == (None, 1)
    assert bench.row("once", "1").state == "dead"
    assert bench.claim("mail", "once")[0].row.attempt == 2


@pytest.mark.parametrize("stir", ["beat", "settle", "claimed again"])
def test_a_row_that_stirred_is_left(bench: Bench, stir: str) -> None:
    """Between the look and the take-over the holder came back: it keeps what it has."""
    bench.tick()
    claim = bench.claim_one("plain", "host:1:a")
    silent = bench.row("plain")
    bench.tick(0.1)
    match stir:
        case "beat":
            bench.store.held.beat("host:1:a", [claim])
        case "settle":
            bench.settle(claim)
        case "claimed again":
            bench.take_over(claim)
            bench.claim_one("plain", "host:1:a")
    before = (bench.row("plain"), bench.slots("plain"))
    assert bench.store.settlements.take_over([silent]) == []
    assert (bench.row("plain"), bench.slots("plain")) == before


def test_several_reapers_take_each_once(bench: Bench) -> None:
    """SKIP LOCKED and the fence: one of them acts on a row."""
    for number in range(60):
        bench.client.schedule("mail", id=f"{number}")
    claims = bench.claim("mail")
    silent = [claim.row for claim in claims]
    with ThreadPoolExecutor(4) as threads:
        takings = list(
            threads.map(
                lambda batch: bench.store.settlements.take_over(batch), [silent] * 4
            )
        )
    taken = [settlement.claim.key for taking in takings for settlement in taking]
    assert sorted(taken) == sorted(claim.key for claim in claims)


def test_what_the_ledger_calls_succeeded_is_settled_as_success(bench: Bench) -> None:
    """complete_in had committed before its holder died: done, and not run again."""
    bench.tick()
    claim = bench.claim_one("plain")
    _write_success(bench, claim)
    assert labels(bench.take_over(claim)) == {"plain": "succeeded"}
    assert bench.outcomes("plain") == [(1, "succeeded")]
    assert (bench.row("plain").slot, bench.row("plain").picked) == (at(2), False)


def _write_success(bench: Bench, claim: Claim) -> None:
    slots = bench.tables.slots
    with bench.store.transaction() as connection:
        done = (
            slots.update()
            .where(slots.c.token == claim.token)
            .values(outcome="succeeded", finished=at(1))
        )
        assert connection.execute(done).rowcount == 1


@pytest.mark.parametrize("lock", ["queue", "ledger"])
def test_a_locked_row_is_skipped_not_waited_for(pg_bench: Bench, lock: str) -> None:
    """A user's guard, or an operator, has the row: this reaper leaves it and takes the others."""
    bench = pg_bench
    bench.tick()
    claims = bench.claim("plain", "strict", "retried")
    table = bench.tables.tasks if lock == "queue" else bench.tables.slots
    with bench.database.main.begin() as connection:
        mine = sa.select(table.c.task_name).where(table.c.task_name == "plain")
        assert connection.execute(mine.with_for_update(read=True)).one()
        taken = bench.take_over(*claims)
        assert set(labels(taken)) == {"strict", "retried"}
    assert bench.row("plain").picked
    assert set(
        labels(
            bench.take_over(
                *[claim for claim in claims if claim.row.task_name == "plain"]
            )
        )
    ) == {"plain"}


def test_a_ledger_row_that_is_missing_keeps_nobody_immortal(bench: Bench) -> None:
    """Not returned is not "locked": a row without a ledger row (pruned, or another program's) is
    taken all the same.
    """
    bench.tick()
    claim = bench.claim_one("plain")
    slots = bench.tables.slots
    with bench.store.transaction() as connection:
        connection.execute(slots.delete())
    assert labels(bench.take_over(claim)) == {"plain": "lost"}
    assert not bench.row("plain").picked


def test_a_row_that_was_locked_for_longer_than_its_lease(
    pg_database: Database,
) -> None:
    """Neither heartbeat nor reaper gets through; who of them comes first after that is chance. A
    live claim is not taken for it, and a dead one is, a little later.
    """
    with workers(pg_database, 2) as (one, two):
        one.tick("1s")
        begun(one)
        row = sa.text("SELECT FROM scheduled_tasks FOR UPDATE")
        with pg_database.main.begin() as somebody:
            somebody.execute(row)
            for _ in range(12):
                one.tick("10s")
                assert (one.beat(), two.reap()) == ([], [])
        one.tick("1s")
        assert (two.reap(), one.beat(), two.reap()) == ([], [], [])
        with pg_database.main.begin() as somebody:
            somebody.execute(row)
            for _ in range(12):
                one.tick("10s")
                assert two.reap() == []
        looks = list[list[str]]()
        while not looks or not looks[-1]:
            one.tick("10s")
            looks.append([event.outcome for event in two.reap()])
        assert 2 <= len(looks) <= 5
        assert looks[-1] == ["lost"]
