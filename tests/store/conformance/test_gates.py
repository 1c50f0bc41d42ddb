"""Every start passes the gates of one list: what each answer does to a row, and what a refused
start gives back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import ClassVar

import pytest
import sqlalchemy as sa
from tests.kit.records import HandedBack
from tests.kit.store import START, Answer, Gate, Later, gates
from tests.store.bench import MINUTE, Bench, a_job, a_task, at
from tests.store.hearing import hearing

from slotwise import Overlap, Skip
from slotwise.operations import Operations
from slotwise.spi import Database, Definition, Key, Row


class Closed(Gate):
    """Gives every new start of these tasks one answer; ``asked`` has the rows of each question."""

    names = frozenset({"plain", "mail", "paced"})
    answer: Answer = START
    asked: ClassVar[list[list[Row]]]

    def concerns(self, row: Row, now: datetime) -> bool:
        return row.task_name in self.names and row.attempt == 1

    def admit(
        self, rows: Sequence[Row], now: datetime, transaction: sa.Connection
    ) -> list[Answer]:
        self.asked.append(list(rows))
        return [self.answer] * len(rows)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> type[Closed]:
    """A gate behind all others."""

    class Last(Closed):
        asked: ClassVar[list[list[Row]]] = []

    monkeypatch.setattr(gates, "ORDER", (*gates.ORDER, Last))
    return Last


MakeBench = Callable[..., Bench]


@pytest.fixture
def make(database: Database, closed: type[Closed]) -> Iterator[MakeBench]:
    with ExitStack() as stack:

        def build(*definitions: Definition, rate: int | None = None) -> Bench:
            limited = (
                Database(database.settings.replace(recovery_rate=rate))
                if rate
                else database
            )
            if rate:
                stack.callback(limited.close)
            found = Bench(
                limited,
                definitions
                or [
                    a_job("plain"),
                    a_task("mail"),
                    a_task("paced", rate_limit="2/1h"),
                ],
            )
            return found.planned()

        yield build


def test_a_slot_that_may_start_later_goes_back(
    make: MakeBench, closed: type[Closed]
) -> None:
    """Nothing of it is in the ledger, no attempt is counted, and it starts at that time."""
    bench, closed.answer = make(), Later(at(1.5))
    bench.tick()
    assert bench.claim("plain") == []
    assert bench.slots("plain") == []
    assert (bench.row("plain").execution_time, bench.row("plain").attempt) == (
        at(1.5),
        0,
    )
    closed.answer = START
    bench.tick(0.5)
    claim = bench.claim_one("plain")
    assert (claim.slot, claim.row.attempt) == (at(1), 1)


def test_a_slot_that_is_skipped_is_in_the_ledger(
    make: MakeBench, closed: type[Closed]
) -> None:
    """The job waits for the next one."""
    bench, closed.answer = make(), Skip("closed")
    bench.tick()
    assert bench.claim("plain") == []
    assert (bench.slot("plain")["outcome"], bench.slot("plain")["reason"]) == (
        "skipped",
        "closed",
    )
    assert (bench.slot("plain")["attempts"], bench.slot("plain")["started"]) == (
        0,
        None,
    )
    assert bench.row("plain").slot == at(2)


def test_a_skipped_catch_up_leaves_what_it_stood_for_out(
    make: MakeBench, closed: type[Closed]
) -> None:
    """The older slots are collapsed as they would have been."""
    bench, closed.answer = make(), Skip("closed")
    bench.tick(3.5)
    assert bench.claim("plain") == []
    assert bench.outcomes("plain") == [(3, "skipped")]
    assert bench.gaps("plain") == [(1, 2, 2, "collapsed")]
    assert bench.row("plain").slot == at(4)


@pytest.mark.parametrize(
    "answer",
    [Later(at(2)), Later(at(2), "closed"), Skip("closed")],
    ids=["later", "later with a reason", "skip"],
)
def test_a_slot_with_a_row_of_its_own(
    make: MakeBench, closed: type[Closed], answer: Answer
) -> None:
    """Its plan row has moved on; the ledger keeps the slot, with the reason of the gate."""
    bench = make(a_job("plain", overlap=Overlap.allow(2)))
    bench.tick()
    claim = bench.claim_one("plain")
    assert claim.row.is_detached
    bench.settle(claim, HandedBack("queued"))
    closed.answer = answer
    assert bench.claim("plain") == []
    found = bench.slot("plain")
    if isinstance(answer, Later):
        assert (found["outcome"], found["reason"], found["finished"]) == (
            "claimed",
            answer.reason,
            None,
        )
        closed.answer = START
        bench.tick()
        assert claim.slot in [one.slot for one in bench.claim("plain")]
    else:
        assert (found["outcome"], found["reason"], found["finished"]) == (
            "skipped",
            "closed",
            at(1),
        )
        assert bench.find(*claim.key) is None


def test_a_task_that_may_start_later_goes_back_as_it_was(
    make: MakeBench, closed: type[Closed]
) -> None:
    """Columns that a claim does not read keep their values."""
    bench, closed.answer = make(), Later(at(1))
    bench.client.schedule("paced", id="1", delay="0s")
    bench.change("paced", "1", last_error="boom", consecutive_failures=2)
    assert bench.claim("paced") == []
    row = bench.row("paced", "1")
    assert (row.execution_time, row.attempt, row.picked, row.consecutive_failures) == (
        at(1),
        0,
        False,
        2,
    )
    closed.answer = START
    bench.tick()
    assert len(bench.claim("paced")) == 1


def test_a_task_that_is_skipped_goes(make: MakeBench, closed: type[Closed]) -> None:
    """It has no ledger row, and no handler ran."""
    bench, closed.answer = make(), Skip("closed")
    bench.client.schedule("paced", id="1", delay="0s")
    assert bench.claim("paced") == []
    assert bench.find("paced", "1") is None


def test_a_start_that_is_refused_gives_its_window_back(
    make: MakeBench, closed: type[Closed]
) -> None:
    """Two starts an hour: one that a later gate refuses is none of them."""
    bench, closed.answer = make(), Later(at(0))
    for number in range(3):
        bench.client.schedule("paced", id=str(number), delay="0s")
    for _ in range(3):
        assert bench.claim("paced") == []
    closed.answer = START
    assert len(bench.claim("paced")) == 2


def test_a_start_that_is_refused_gives_its_token_back(
    make: MakeBench, closed: type[Closed]
) -> None:
    """One late start a second; one that a later gate refuses takes no token."""
    bench, closed.answer = make(rate=1), Later(at(10))
    bench.tick(10)
    for _ in range(3):
        assert bench.claim("plain") == []
        bench.change("plain", execution_time=at(10))
    closed.answer = START
    assert len(bench.claim("plain")) == 1


def test_a_start_that_the_ledger_refuses_gives_its_token_back(make: MakeBench) -> None:
    """Another claim has the slot, and has begun it once: a job that gives up starts no slot
    twice.
    """
    bench = make(a_job("strict", on_lost="give_up"), a_job("plain"), rate=1)
    bench.tick(10)
    slots = bench.tables.slots
    with bench.store.transaction() as connection:
        started = {"outcome": "claimed", "attempts": 1, "token": 1, "worker": "gone"}
        connection.execute(
            slots.insert().values(
                task_name="strict", task_instance="recurring", slot=at(10), **started
            )
        )
    assert bench.claim("strict") == []
    assert len(bench.claim("plain")) == 1


def test_each_gate_is_asked_once_for_a_batch(
    make: MakeBench, closed: type[Closed]
) -> None:
    """Whatever the number of rows, places are counted by one statement."""
    jobs = [a_job(f"beside-{number}", overlap=Overlap.allow(2)) for number in range(3)]
    bench = make(*jobs, *(a_job(name) for name in ("plain", "mail", "paced")))
    bench.tick()
    with hearing(bench.database) as sent:
        assert len(bench.claim()) == 6
    assert (
        sum(
            "count(*)" in statement and "plan_instance IN" in statement
            for statement, _ in sent
        )
        == 1
    )
    assert [sorted(row.task_name for row in rows) for rows in closed.asked] == [
        ["mail", "paced", "plain"]
    ]


def test_a_place_is_counted_per_instance_of_a_job(make: MakeBench) -> None:
    """The slots of one fill none of another's places."""
    bench = make(
        a_job("one", overlap=Overlap.allow(1)), a_job("two", overlap=Overlap.allow(1))
    )
    bench.tick()
    assert len(bench.claim("one")) == 1
    bench.tick()
    assert [claim.row.task_name for claim in bench.claim("one", "two")] == ["two"]


def test_no_hand_brings_two_starts_nearer_than_min_interval(bench: Bench) -> None:
    """The settlement has moved the due time; it was moved back since."""
    own = Bench(bench.database, [a_job("apart", min_interval="90s")]).planned()
    own.tick()
    own.settle(own.claim_one("apart"))
    own.tick()
    own.change("apart", execution_time=at(2))
    assert own.claim("apart") == []
    assert own.row("apart").execution_time == at(2.5)
    own.tick(0.5)
    assert own.claim_one("apart").slot == at(2)


def test_a_slot_keeps_its_min_interval_from_what_an_operator_requests(
    bench: Bench,
) -> None:
    """The operation does not wait; the schedule's next slot does, and keeps its identity."""
    own = Bench(bench.database, [a_job("apart", min_interval="30s")]).planned()
    own.tick(0.9)
    Operations(lambda: own.store, author="test").trigger("apart")
    assert own.claim_one("apart").row.origin == "trigger"
    own.tick(0.1)
    assert own.claim("apart") == []
    assert own.row("apart").execution_time == at(1.4)
    own.tick(0.4)
    assert own.claim_one("apart").slot == at(1)


def test_a_start_in_the_future_hides_none_before_it(bench: Bench) -> None:
    """The clock was stepped back: such a start stops nothing, and one since then does."""
    own = Bench(bench.database, [a_job("apart", min_interval="30s")]).planned()
    own.tick(10)
    own.settle(own.claim_one("apart"))
    own.clock.set(at(5))
    own.change("apart", execution_time=at(5))
    Operations(lambda: own.store, author="test").trigger("apart")
    assert [claim.row.origin for claim in own.claim("apart")] == ["trigger"]
    assert own.row("apart").execution_time == at(5.5)
    own.tick(0.5)
    assert own.claim_one("apart").slot == at(11)


def test_the_claim_enters_no_slot_that_a_gate_may_stop(
    make: MakeBench, closed: type[Closed]
) -> None:
    """What is not written need not be deleted: a slot of such a job is written once."""
    bench = make()
    bench.tick()
    with hearing(bench.database) as sent:
        (claim,) = bench.claim("plain")
    assert not [
        statement
        for statement, _ in sent
        if statement.startswith(("DELETE", "UPDATE scheduled_slots"))
    ]
    assert (bench.slot("plain")["token"], bench.slot("plain")["attempts"]) == (
        claim.token,
        1,
    )


def test_a_trigger_passes_no_gate_of_the_schedule(
    make: MakeBench, closed: type[Closed]
) -> None:
    """An operation is no slot of the schedule."""
    bench = make(a_job("beside", overlap=Overlap.allow(1)))
    bench.tick()
    (slot,) = bench.claim("beside")
    trigger = Operations(lambda: bench.store, author="test").trigger("beside")
    (claim,) = bench.claim("beside")
    assert (slot.row.origin, claim.row.origin) == ("schedule", "trigger")
    assert trigger
    assert Key("beside", claim.row.task_instance) == claim.key
    assert slot.slot == at(1)
    assert claim.row.execution_time == NOON_AND_ONE


NOON_AND_ONE = at(0) + MINUTE
