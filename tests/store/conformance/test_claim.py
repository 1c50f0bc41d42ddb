"""The claim: which rows it takes, what it writes, and that a slot's ledger row comes with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from tests.kit.records import FOREVER, Failed, HandedBack, to_micros
from tests.kit.store import trigger
from tests.store.bench import LEASE, MINUTE, NOON, Bench, a_job, at, claim_due

from slotwise import Every
from slotwise.inspect import RECURRING
from slotwise.spi import Database
from slotwise.store.slots.tuning import FEW, MANY


def test_nothing_is_claimed_before_its_time(bench: Bench) -> None:
    """Due is what the one clock says."""
    bench.clock.set(at(1) - timedelta(microseconds=1))
    assert bench.claim("plain") == []
    bench.clock.set(at(1))
    assert [claim.slot for claim in bench.claim("plain")] == [at(1)]


def test_what_a_claim_is(bench: Bench) -> None:
    """Key, token, holder, the slot, and the lease that it stores."""
    before = bench.row("plain")
    bench.clock.set(at(1.5))
    claim = bench.claim_one("plain", "host:1:a", lease=LEASE)
    row = bench.row("plain")
    assert claim.row == row
    assert (claim.holder, claim.lease, claim.claimed_at) == (
        "host:1:a",
        LEASE,
        at(1.5),
    )
    assert (row.picked, row.picked_by, row.last_heartbeat, row.lease) == (
        True,
        "host:1:a",
        at(1.5),
        LEASE,
    )
    assert (row.version, row.attempt) == (to_micros(at(1.5)), 1)
    assert row.version > before.version
    assert (row.slot, row.next_slot, row.watermark, row.execution_time) == (
        at(1),
        at(2),
        at(1),
        at(1),
    )


@pytest.mark.parametrize(
    ("name", "outcome", "started"),
    [
        pytest.param("plain", "running", at(1.5), id="rerun: it may start at once"),
        pytest.param("strict", "claimed", None, id="give_up: not before its mark"),
        pytest.param("delayed", "running", at(1.5), id="fixed delay"),
    ],
)
def test_the_ledger_row_comes_with_the_claim(
    bench: Bench, name: str, outcome: str, started: Any
) -> None:
    """One transaction: whoever sees the claim sees its slot in the ledger."""
    bench.clock.set(at(1.5))
    claim = bench.claim_one(name)
    entry = bench.slot(name)
    assert (entry["slot"], entry["task_instance"], entry["outcome"]) == (
        claim.slot,
        RECURRING,
        outcome,
    )
    assert (entry["origin"], entry["attempts"], entry["collapsed"]) == (
        "schedule",
        1,
        0,
    )
    assert (entry["token"], entry["worker"], entry["started"]) == (
        claim.token,
        claim.holder,
        started,
    )
    assert (entry["finished"], entry["reason"]) == (None, None)


def test_a_held_row_is_claimed_by_nobody(bench: Bench) -> None:
    """Neither by another worker, nor by its holder again; however late it is."""
    bench.tick()
    bench.claim_one("plain", "host:1:a")
    bench.tick(1000)
    assert bench.claim("plain", holder="host:2:b") == []
    assert bench.claim("plain", holder="host:1:a") == []


@pytest.mark.parametrize("state", ["paused", "dead", "something of a newer release"])
def test_a_row_with_a_state_is_not_claimed(bench: Bench, state: str) -> None:
    """Active is null, and nothing else."""
    bench.change("plain", state=state)
    bench.tick()
    assert bench.claim("plain") == []


def test_an_unknown_task_is_not_ours(bench: Bench) -> None:
    """Claims go by the positive list: what is not on it is neither taken nor touched."""
    bench.insert("of-somebody-else", "1", task_data=b"\x80", execution_time=NOON)
    bench.insert(
        "of-somebody-else",
        "2",
        picked=True,
        picked_by="java",
        last_heartbeat=NOON,
        execution_time=NOON,
    )
    before = [bench.row("of-somebody-else", instance) for instance in ("1", "2")]
    bench.tick(1000)
    assert {claim.row.task_name for claim in bench.claim()} == {
        "plain",
        "strict",
        "delayed",
        "retried",
    }
    _, held = bench.store.held.silent_rows(sorted(bench.definitions))
    assert "of-somebody-else" not in {row.task_name for row in held}
    assert [
        bench.row("of-somebody-else", instance) for instance in ("1", "2")
    ] == before


def test_a_worker_may_run_only_some(bench: Bench) -> None:
    """Known, and not on the list of this claim: left for others."""
    bench.tick()
    assert [claim.row.task_name for claim in bench.claim("plain", "delayed")] == [
        "delayed",
        "plain",
    ]
    assert not bench.row("strict").picked


def test_the_oldest_go_first(bench: Bench) -> None:
    """Up to the limit, by due time."""
    for number in (3, 1, 2, 5, 4):
        bench.client.schedule("mail", id=f"{number}", at=at(number / 10))
    bench.tick()
    assert [claim.row.task_instance for claim in bench.claim("mail", limit=3)] == [
        "1",
        "2",
        "3",
    ]
    assert [claim.row.task_instance for claim in bench.claim("mail", limit=3)] == [
        "4",
        "5",
    ]
    assert bench.claim("mail", limit=3) == []


def test_a_one_time_task_has_no_ledger_row(bench: Bench) -> None:
    """It has no slot; what becomes of it is on its row."""
    bench.client.schedule("mail", {"to": "ada"}, id="1")
    claim = bench.claim_one("mail")
    assert (claim.slot, claim.row.attempt, claim.row.task_data) == (
        None,
        1,
        b'{"to":"ada"}',
    )
    assert bench.slots("mail") == []


@pytest.mark.parametrize(
    ("minutes", "slot", "outcomes", "gaps"),
    [
        pytest.param(
            2, 2, [(1, "skipped"), (2, "running")], [], id="one missed: a ledger row"
        ),
        pytest.param(
            3.9,
            3,
            [(3, "running")],
            [(1, 2, 2, "collapsed")],
            id="several missed: a gap",
        ),
        pytest.param(
            100_000,
            100_000,
            [(100_000, "running")],
            [(1, 99_999, 99_999, "collapsed")],
            id="70 days",
        ),
    ],
)
def test_missed_slots_are_written_down_with_the_claim(
    bench: Bench, minutes: float, slot: float, outcomes: list[Any], gaps: list[Any]
) -> None:
    """catch_up=latest: the newest runs, the others are in the ledger or in one gap, in the same
    transaction.
    """
    bench.clock.set(at(minutes))
    claim = bench.claim_one("plain")
    assert claim.slot == at(slot)
    assert bench.outcomes("plain") == outcomes
    assert bench.gaps("plain") == gaps
    row = bench.row("plain")
    assert claim.row == row
    assert (row.slot, row.next_slot, row.watermark) == (
        at(slot),
        at(slot + 1),
        at(slot),
    )
    entry = bench.slots("plain")[-1]
    assert (entry["origin"], entry["collapsed"]) == ("catch_up", int(slot) - 1)
    assert (entry["token"], entry["worker"]) == (claim.token, claim.holder)


def test_a_skipped_slot_says_why(bench: Bench) -> None:
    """Every slot that does not run has a reason."""
    bench.tick(2)
    bench.claim_one("plain")
    skipped = bench.slots("plain")[0]
    assert (skipped["reason"], skipped["token"], skipped["attempts"]) == (
        "collapsed",
        None,
        0,
    )
    assert skipped["finished"] == at(2)


def test_strict_jobs_catch_up_too(bench: Bench) -> None:
    """With their mark still to come."""
    bench.tick(5)
    assert bench.claim_one("strict").slot == at(5)
    assert bench.outcomes("strict") == [(5, "claimed")]
    assert bench.gaps("strict") == [(1, 4, 4, "collapsed")]


def test_a_fixed_delay_has_missed_nothing(bench: Bench) -> None:
    """One slot ahead and no more."""
    bench.tick(1000)
    assert bench.claim_one("delayed").slot == NOON
    assert bench.gaps("delayed") == []


def test_a_conflict_never_stops_the_batch(bench: Bench) -> None:
    """A slot that the ledger has already is passed by its row; all the others of the batch
    start.
    """
    bench.tick()
    ran = bench.claim_one("plain")
    bench.settle(ran)
    bench.change(  # as if the queue alone had been restored from before the run
        "plain",
        slot=at(1),
        next_slot=at(2),
        watermark=None,
        execution_time=at(1),
        picked=False,
        attempt=0,
    )
    found, claims = claim_due(
        bench.store, "host:2:b", 100, lease=LEASE, names=["plain", "strict", "retried"]
    )
    assert found == 3
    assert {claim.row.task_name for claim in claims} == {"strict", "retried"}
    assert bench.outcomes("plain") == [(1, "succeeded")]
    row = bench.row("plain")
    assert (row.slot, row.next_slot, row.watermark, row.picked, row.attempt) == (
        at(2),
        at(3),
        at(1),
        False,
        0,
    )


@pytest.mark.parametrize(
    "next_slot", [at(1), at(2), None], ids=["late", "on time", "no next slot"]
)
@pytest.mark.parametrize("name", ["plain", "strict"])
def test_a_row_that_cannot_be_read_is_put_off(
    bench: Bench, name: str, next_slot: Any
) -> None:
    """What a newer release wrote into one row is left to those who can read it; nothing is burnt,
    all others start.
    """
    bench.change(name, schedule="MOON|full", next_slot=next_slot)
    bench.tick()
    found, claims = claim_due(
        bench.store, "host:1:a", 100, lease=LEASE, names=["retried", name]
    )
    assert (found, [claim.row.task_name for claim in claims]) == (1, ["retried"])
    row = bench.row(name)
    assert (row.picked, row.slot, row.next_slot, row.attempt) == (
        False,
        at(1),
        next_slot,
        0,
    )
    assert (row.schedule, row.execution_time) == ("MOON|full", at(1))
    assert bench.slots(name) == []


def test_a_retry_that_cannot_be_read_keeps_its_history(bench: Bench) -> None:
    """The attempts before are not forgotten, and this one is not counted."""
    bench.tick()
    bench.settle(bench.claim_one("retried"), Failed("boom"))
    bench.change("retried", schedule="MOON|full")
    bench.tick(0.1)
    assert bench.claim("retried") == []
    assert bench.row("retried").attempt == 1
    entry = bench.slot("retried")
    assert (entry["attempts"], entry["finished"]) == (1, None)


def test_a_trigger_is_a_slot_of_its_own(bench: Bench) -> None:
    """A detached row: claimed and in the ledger like any other, without moving the plan row or its
    watermark.
    """
    bench.tick(0.5)
    before = bench.row("plain")
    with bench.store.transaction() as connection:
        instance = trigger(bench.store, connection, "plain").task_instance
    claim = bench.claim_one("plain")
    assert (claim.row.task_instance, claim.slot) == (instance, at(0.5))
    entry = bench.slot("plain")
    assert (entry["task_instance"], entry["slot"], entry["origin"]) == (
        RECURRING,
        at(0.5),
        "trigger",
    )
    assert bench.row("plain") == before
    bench.settle(claim)
    assert bench.find("plain", instance) is None
    assert bench.slot("plain")["outcome"] == "succeeded"


def test_triggers_of_one_instant_are_different_slots(bench: Bench) -> None:
    """The slot of a trigger is moved on by a microsecond while it is taken; that of NOON is the
    schedule's.
    """
    claims = []
    for _ in range(3):
        with bench.store.transaction() as connection:
            trigger(bench.store, connection, "plain")
        claims += bench.claim("plain")
    assert [claim.slot for claim in claims] == [
        NOON + number * timedelta(microseconds=1) for number in range(1, 4)
    ]


def test_tokens_rise_with_every_claim(bench: Bench) -> None:
    """Also of slots that were handed back, retried or failed: a token is never seen twice."""
    tokens = []
    for number in count(1):
        bench.clock.set(at(number))
        claim = bench.claim_one("plain", f"host:{number}:x")
        tokens.append(claim.token)
        bench.settle(claim, Failed("boom"))
        if number == 5:
            break
    assert tokens == sorted(set(tokens))


def test_a_tasks_token_is_the_time_or_one_more(bench: Bench) -> None:
    """Microseconds of the claim, so that a backup of the queue brings none back; and more than all
    that the row had.
    """
    bench.client.schedule("mail", id="1")
    bench.tick()
    first = bench.claim_one("mail")
    bench.settle(first, HandedBack("queued"))
    second = bench.claim_one("mail")  # at the same instant
    assert first.token == to_micros(at(1)) < second.token
    bench.settle(second, HandedBack("queued"))
    bench.clock.set(at(-60))
    assert bench.row("mail", "1").version > second.token
    bench.change("mail", "1", execution_time=at(-61))
    assert bench.claim_one("mail").token > second.token


#: Names without rows: of more than ``MANY`` the first slots of all are read before the names are
#: sent.
FEW_OR_MANY = pytest.mark.parametrize(
    "others", [0, MANY], ids=["few names", "many names"]
)


def next_due(
    bench: Bench, names: Iterable[str], others: int, **options: Any
) -> timedelta | None:
    return bench.store.due.next_due(
        [*names, *(f"other-{number}" for number in range(others))], **options
    )


@FEW_OR_MANY
@pytest.mark.parametrize(
    ("minutes", "expected"),
    [
        (0, timedelta(0)),
        (0.75, timedelta(minutes=-0.75)),
        (-10, timedelta(minutes=10)),
    ],
)
def test_next_due_is_the_earliest(
    bench: Bench, minutes: float, expected: timedelta, others: int
) -> None:
    """How long a poller may sleep; zero or less: not at all."""
    bench.clock.set(at(minutes))
    assert next_due(bench, bench.definitions, others) == expected


@FEW_OR_MANY
def test_next_due_looks_at_what_could_be_claimed(bench: Bench, others: int) -> None:
    """Not at held, paused, or unknown rows; a disabled job is parked, far away."""
    assert next_due(bench, ["plain"], others) == MINUTE
    assert next_due(bench, ["off"], others) == FOREVER - NOON
    bench.change("strict", state="paused")
    assert next_due(bench, ["strict"], others) is None
    bench.tick()
    bench.claim_one("plain")
    assert next_due(bench, ["plain"], others) is None
    assert next_due(bench, ["nobody"], others) is None


@FEW_OR_MANY
def test_next_due_is_that_of_a_task_before_the_first_slot(
    bench: Bench, others: int
) -> None:
    bench.client.schedule("mail", delay="10s")
    names = list(bench.definitions)
    assert next_due(bench, names, others, tasks=()) == timedelta(0)
    bench.clock.set(at(-1))
    bench.change("delayed", execution_time=at(0))
    assert next_due(bench, names, others, tasks=()) == MINUTE
    bench.client.schedule("mail", delay="10s")
    assert next_due(bench, names, others) == timedelta(seconds=10)
    assert next_due(bench, [], 0, tasks=["mail"]) == timedelta(seconds=10)


@FEW_OR_MANY
def test_slots_of_others_do_not_hide_the_next_due(bench: Bench, others: int) -> None:
    """However many are due before it, also of dead holders."""
    for number in range(FEW + 1):
        bench.client.schedule_recurring("plain", f"{number}", "EVERY|1m")
        bench.client.schedule_recurring("retried", f"{number}", "EVERY|1m")
        bench.change("plain", f"{number}", execution_time=at(-2))
        bench.change("retried", f"{number}", execution_time=at(-2), lost_count=1)
    assert next_due(bench, ["strict"], others) == MINUTE


def test_workers_that_claim_at_once_share_the_rows(bench: Bench) -> None:
    """Each row goes to exactly one of them; nobody waits for somebody else's."""
    rows = 300
    for number in range(rows):
        bench.client.schedule("mail", id=f"{number}")

    def work(holder: str) -> list[str]:
        mine: list[str] = []
        while claims := bench.claim("mail", holder=holder, limit=7):
            mine += [claim.row.task_instance for claim in claims]
        return mine

    with ThreadPoolExecutor(4) as threads:
        shares = list(threads.map(work, [f"host:{number}:x" for number in range(4)]))
    taken = Counter(instance for share in shares for instance in share)
    # A short batch is not an empty one: a worker may have stopped early, so the rest is looked for
    # once more.
    taken.update(claim.row.task_instance for claim in bench.claim("mail", limit=500))
    assert (len(taken), set(taken.values())) == (rows, {1})


def test_workers_that_plan_at_once_make_one_row(bench: Bench) -> None:
    """Any number of workers may start together."""
    job = a_job("fresh", Every("1m"))
    benches = [bench.beside(job) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        changes = list(
            threads.map(lambda one: one.plan("fresh")["fresh"].change, benches)
        )
    assert sorted(changes) == ["added", "kept", "kept", "kept"]


@pytest.mark.parametrize(("lost", "taken"), [(0, []), (1, ["2"]), (2, ["2", "4"])])
def test_of_rows_that_were_lost_before_only_so_many(
    bench: Bench, lost: int, taken: list[str]
) -> None:
    """They go first, the oldest before the others, and within the limit."""
    for number in range(5):
        bench.client.schedule("mail", id=f"{number}", at=at(number / 10))
    for instance in ("2", "4"):
        bench.change("mail", instance, lost_count=1)
    bench.tick()
    _, claims = claim_due(
        bench.store, "host:1:a", 3, lease=LEASE, names=["mail"], lost=lost
    )
    found = [claim.row.task_instance for claim in claims]
    assert sorted(found) == sorted([*taken, "0", "1", "3"][:3])


@FEW_OR_MANY
@pytest.mark.parametrize(
    ("lost", "taken"), [(0, []), (1, ["plain"]), (2, ["plain", "retried"])]
)
def test_of_slots_that_were_lost_before_only_so_many(
    bench: Bench, lost: int, taken: list[str], others: int
) -> None:
    """A slot that may take its worker down is claimed as a lost one only, never among the fresh
    ones; in both forms of the claim, by priority and, among many names of one priority, by age.
    """
    bench.tick()
    for minutes, name in enumerate(("plain", "retried")):
        bench.change(name, lost_count=1, execution_time=at(minutes / 10))
    names = [*bench.definitions, *(f"other-{number}" for number in range(others))]
    _, claims, _ = bench.store.claims.claim_slots(
        "host:1:a", 10, lease=LEASE, names=names, lost=lost
    )
    assert sorted(claim.row.task_name for claim in claims) == sorted(
        [*taken, "delayed", "strict"]
    )


@FEW_OR_MANY
@pytest.mark.parametrize(("name", "id"), [("mail", "1"), ("plain", RECURRING)])
def test_next_due_can_leave_them_out(
    bench: Bench, name: str, id: str, others: int
) -> None:
    """Whoever may not take a row that was lost before need not wake up for it."""
    bench.client.schedule("mail", id="1")
    bench.client.schedule("mail", id="2", delay="1m")
    bench.client.schedule_recurring("plain", "2", "EVERY|1m")
    bench.change(name, id, lost_count=1, execution_time=at(0))
    assert next_due(bench, [name], others) == timedelta(0)
    assert next_due(bench, [name], others, lost=0) == MINUTE


@pytest.mark.parametrize("priority", [50, 90])
def test_among_many_names_a_higher_priority_still_goes_first(
    database: Database, priority: int
) -> None:
    """Who knows of many looks first at what is due, and sorts by priority only where there is more
    than one.
    """
    jobs = [a_job("first"), a_job("second"), a_job("third", priority=priority)]
    bench = Bench(database, jobs).planned()
    bench.tick()
    for minutes, found in enumerate(jobs):
        bench.change(found.name, execution_time=at(minutes / 10))
    names = [*bench.definitions, *(f"other-{number}" for number in range(MANY))]
    order = [
        claim.row.task_name for _ in range(3) for claim in bench.claim(*names, limit=1)
    ]
    assert order == (
        ["first", "second", "third"]
        if priority == 50
        else ["third", "first", "second"]
    )
