"""What a handler leaves behind comes with its success, whole or not at all; and what the ledger
keeps of tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from tests.kit.payloads import RESULT_LIMIT
from tests.kit.records import FOREVER
from tests.store.bench import NOON, Bench, at

from slotwise import (
    Cancel,
    ConfigurationError,
    Every,
    InvalidPayload,
    Item,
    Retry,
    Snooze,
    job,
    task,
)
from slotwise.spi import Database, define, elapsed
from slotwise.testing import ManualClock, ManualWorker

Handler = Callable[[Any], Any]


class Office:
    """A worker whose task ``first`` is the handler given; what is left in the queue, and in the
    ledger.
    """

    def __init__(self, database: Database, handler: Handler, **declared: Any) -> None:
        self.ran: list[tuple[str, Any]] = []
        first = task(name="first", **{"retry": Retry(max_attempts=2), **declared})(
            handler
        )
        later = [
            task(name=name)(lambda ctx: self.ran.append((ctx.name, ctx.data)))
            for name in ("then", "join")
        ]
        self.worker = ManualWorker(
            [first, *later, job(name="tick", schedule=Every("1h"))(handler)],
            database,
            ManualClock(NOON),
        )
        self.client = self.worker.client
        self.bench = Bench(
            database, self.worker.store.definitions.values(), self.worker.clock
        )

    def run(self, data: Any = None) -> None:
        self.client.schedule("first", data, id="1")
        self.worker.run_due()

    def ids(self, name: str) -> list[str]:
        return [line.id for line in self.client.list(name)]


def test_a_success_brings_what_follows(database: Database) -> None:
    """In the transaction of its settlement: until then nobody sees it, then all of it is due."""
    seen: list[list[str]] = []

    def handler(ctx: Any) -> None:
        assert ctx.then("then", {"n": 1}, id="a") == "a"
        ctx.then("then", {"n": 2}, id="b", delay="5m", priority=90)
        seen.append(office.ids("then"))

    office = Office(database, handler)
    office.client.schedule("first", id="1")
    (claim,) = office.worker.poll()
    assert claim.key.task_instance == "1"
    office.worker.run_due()
    assert seen == [[]]
    assert office.ran == [("then", {"n": 1})]
    row = office.bench.row("then", "b")
    assert (row.execution_time, row.priority) == (at(5), 90)


@pytest.mark.parametrize(
    "end",
    [ValueError("boom"), Snooze("1h"), Cancel("enough")],
    ids=["failed", "snoozed", "cancelled"],
)
def test_no_success_brings_nothing(database: Database, end: Exception) -> None:
    """What a failed attempt wanted to follow is forgotten; the next attempt says it anew."""

    def handler(ctx: Any) -> None:
        ctx.then("then", id="a")
        raise end

    office = Office(database, handler)
    office.run()
    assert office.ids("then") == []


def test_a_lost_claim_brings_nothing(database: Database) -> None:
    """The settlement is refused, and all that would come with it."""

    def handler(ctx: Any) -> None:
        ctx.then("then", id="a")
        office.bench.change("first", "1", picked_by="host:2:b")

    office = Office(database, handler)
    office.run()
    assert office.ids("then") == []


def test_a_task_in_its_own_place(database: Database) -> None:
    """A chain under one id: each link is another task with its own data, key and attempts."""
    links: list[tuple[int, int, str]] = []

    def handler(ctx: Any) -> None:
        links.append((ctx.data, ctx.attempt, ctx.idempotency_key))
        if ctx.data < 3:
            ctx.then("first", ctx.data + 1, id=ctx.id, delay="1m")

    office = Office(database, handler)
    office.client.schedule("first", 1, id="1")
    for _ in range(3):
        office.worker.tick("1m")
        office.worker.run_due()
    assert [link[:2] for link in links] == [(1, 1), (2, 1), (3, 1)]
    assert len({key for _, _, key in links}) == 3
    assert office.ids("first") == []


def test_a_job_may_fan_out(database: Database) -> None:
    """A slot's success brings its tasks, too."""

    def handler(ctx: Any) -> None:
        for number in range(3):
            ctx.then("then", number)

    office = Office(database, handler)
    office.worker.plan()
    office.worker.tick("1h")
    office.worker.run_due()
    assert sorted(office.ran) == [("then", 0), ("then", 1), ("then", 2)]


def test_fan_out_and_fan_in(database: Database) -> None:
    """The task that joins is blocked until the last of those it waits for has succeeded; each
    counts once.
    """

    def handler(ctx: Any) -> None:
        if ctx.data == "all":
            ctx.then("join", "joined", id="j", countdown=3)
            for number in range(3):
                ctx.then("first", number, id=str(10 + number))
        else:
            if ctx.data == 2 and ctx.attempt == 1:
                ctx.count_down("join", "j")
                raise ValueError("counts only when it succeeds")
            ctx.count_down("join", "j")

    office = Office(
        database,
        handler,
        retry=Retry.exponential(max_attempts=3, initial="1m", max_wait="1m"),
    )
    office.run("all")
    line = office.client.get("join", "j")
    assert line is not None
    assert (line.state, office.ran) == ("blocked", [])
    assert office.bench.row("join", "j").execution_time == FOREVER
    office.worker.tick("5m")
    office.worker.run_due()
    assert office.ran == [("join", "joined")]


def test_who_arrives_twice_counts_once(database: Database) -> None:
    """However often a handler says so; those of two attempts that succeed count twice."""

    def handler(ctx: Any) -> None:
        ctx.count_down("join", "j")
        ctx.count_down("join", "j")

    office = Office(database, handler)
    office.client.schedule("join", id="j", countdown=2)
    office.run()
    line = office.client.get("join", "j")
    assert line is not None
    assert line.state == "blocked"
    office.run()
    assert office.ran == [("join", None)]


def test_a_blocked_task_can_be_looked_at_moved_and_cancelled(bench: Bench) -> None:
    """It is one that waits, only for others than the clock."""
    bench.client.schedule("mail", id="1", countdown=1, delay="1m")
    assert [line.id for line in bench.client.list(state="blocked")] == ["1"]
    assert bench.client.reschedule("mail", "1", delay="1h").status == "scheduled"
    line = bench.client.get("mail", "1")
    assert line is not None
    assert (line.state, line.due) == ("blocked", at(60))
    bench.tick(120)
    assert bench.claim("mail") == []
    assert bench.client.cancel("mail", "1").status == "cancelled"


@pytest.mark.parametrize("if_exists", ["keep", "replace", "reschedule"])
def test_an_id_that_is_taken(database: Database, if_exists: Any) -> None:
    """Nobody can be told any more: it is as the handler said."""

    def handler(ctx: Any) -> None:
        ctx.then("then", "new", id="a", delay="1m", if_exists=if_exists)

    office = Office(database, handler)
    office.client.schedule("then", "old", id="a", delay="1h")
    office.run()
    line = office.client.get("then", "a")
    assert line is not None
    assert (line.data, line.due) == {
        "keep": ("old", at(60)),
        "replace": ("new", at(1)),
        "reschedule": ("old", at(1)),
    }[if_exists]


FIRST_THEN_SECOND = {
    "keep": ("first", 1),
    "replace": ("second", 2),
    "reschedule": ("first", 2),
}


@pytest.mark.parametrize("blocked", [False, True], ids=["", "blocked"])
@pytest.mark.parametrize("before", ["keep", "replace", "reschedule"])
@pytest.mark.parametrize("choice", FIRST_THEN_SECOND)
def test_two_of_one_id(
    database: Database, before: Any, choice: Any, blocked: bool
) -> None:
    """In the order in which the handler said them, however each looks at what exists: the second
    finds the first.
    """

    def handler(ctx: Any) -> None:
        ctx.then(
            "then",
            "first",
            id="a",
            delay="1m",
            if_exists=before,
            countdown=int(blocked),
        )
        ctx.then("then", "second", id="a", delay="2m", if_exists=choice)

    office = Office(database, handler)
    office.run()
    line = office.client.get("then", "a")
    assert line is not None
    data, minutes = FIRST_THEN_SECOND[choice]
    assert (line.data, line.due) == (data, at(minutes))


def test_what_follows_is_checked_where_it_is_said(database: Database) -> None:
    """A mistake is an error in the handler, not in the settlement of everybody."""
    told: list[type[Exception]] = []

    def handler(ctx: Any) -> None:
        for call in (
            lambda: ctx.then("then", {1}),
            lambda: ctx.then("then", countdown=-1),
            lambda: ctx.count_down("join", ""),
        ):
            try:
                call()
            except (InvalidPayload, ConfigurationError) as error:
                told.append(type(error))

    office = Office(database, handler)
    office.run()
    assert told == [InvalidPayload, ConfigurationError, ConfigurationError]


def test_both_ways_to_commit_together_exclude_each_other(database: Database) -> None:
    """complete_in commits before the settlement, what follows with it: one of them would be lost
    with the worker.
    """
    told: list[str] = []

    def handler(ctx: Any) -> None:
        ctx.then("then", id="a")
        with (
            database.main.begin() as connection,
            pytest.raises(ConfigurationError) as refused,
        ):
            ctx.complete_in(connection)
        told.append(str(refused.value))

    office = Office(database, handler)
    office.run()
    assert "with complete_in use: ctx.client.schedule(…, connection=…)" in told[0]
    assert office.ran == [("then", None)]


# -- history and results --------------------------------------------------------------------------


def failing(ctx: Any) -> str:
    if ctx.data == "fail":
        raise ValueError("boom")
    return "done"


@pytest.mark.parametrize(
    ("declared", "kept"),
    [
        ({}, []),
        ({"record": "failures"}, ["failed"]),
        ({"record": "all"}, ["failed", "succeeded"]),
        ({"result_retention": "1h"}, ["succeeded"]),
    ],
    ids=["none", "failures", "all", "results only"],
)
def test_what_the_ledger_keeps(
    database: Database, declared: dict[str, Any], kept: list[str]
) -> None:
    """As the task chose, with attempts, worker and error."""
    office = Office(database, failing, **{"retry": Retry(max_attempts=1), **declared})
    office.client.schedule("first", "fail", id="bad")
    office.client.schedule("first", "fine", id="good")
    office.worker.run_due()
    ends = [
        *office.client.history("first", "bad"),
        *office.client.history("first", "good"),
    ]
    assert [end.outcome for end in ends] == kept
    for end in ends:
        assert (end.attempts, end.worker, end.finished, end.started) == (
            1,
            office.worker.name,
            at(0),
            at(0),
        )
        assert (end.error is not None) == (end.outcome == "failed")
    line = office.client.get("first", "bad")
    assert line is not None
    assert line.state == "dead"


@pytest.mark.parametrize("history", ["none", "failures", "all"])
def test_a_task_that_is_called_off_leaves_what_its_history_keeps(
    database: Database, history: str
) -> None:
    """Nothing else stays of it: by its handler, or by an operator while it runs."""

    def handler(ctx: Any) -> None:
        if ctx.data == "itself":
            raise Cancel("enough")
        office.client.cancel("first", ctx.id)
        raise ValueError("boom")

    office = Office(database, handler, record=history)
    office.client.schedule_many(
        "first", [Item("itself", id="a"), Item("asked", id="b")]
    )
    ended = office.worker.run_due()
    assert [(one.outcome, one.reason) for one in ended] == [
        ("cancelled", "enough"),
        ("cancelled", "operator"),
    ]
    ends = [end for id in "ab" for end in office.client.history("first", id)]
    kept = (
        [("cancelled", "enough"), ("cancelled", "operator")]
        if history != "none"
        else []
    )
    assert [(end.outcome, end.reason) for end in ends] == kept
    assert office.ids("first") == []


def test_a_task_that_is_driven_again_has_two_ends(database: Database) -> None:
    """The failure stays in the history when it has succeeded."""
    office = Office(database, failing, retry=Retry(max_attempts=1), record="all")
    office.run("fail")
    office.worker.tick("1m")
    office.bench.change("first", "1", task_data=b'"fine"')
    assert [one.id for one in office.client.retry("first")] == ["1"]
    office.worker.run_due()
    assert [end.outcome for end in office.client.history("first", "1")] == [
        "succeeded",
        "failed",
    ]


@dataclass
class Sum:
    total: int


async def returns(ctx: Any) -> Any:
    return ctx.data


@pytest.mark.parametrize(
    ("handler", "result"),
    [
        (lambda ctx: {"n": [1]}, {"n": [1]}),
        (lambda ctx: None, None),
        (lambda ctx: Sum(7), {"total": 7}),
        (returns, [1, 2]),
    ],
    ids=["plain", "none", "dataclass", "async"],
)
def test_a_result_can_be_fetched_for_a_while(
    database: Database, handler: Handler, result: Any
) -> None:
    """As plain values, until its time is over."""
    office = Office(database, handler, result_retention="1h")
    assert office.client.result("first", "1") is None
    office.run([1, 2])
    end = office.client.result("first", "1")
    assert end is not None
    assert (end.result, end.expires) == (result, at(60))
    office.worker.tick(timedelta(minutes=61))
    assert office.client.result("first", "1") is None


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("x" * RESULT_LIMIT, "it has 65538 bytes, at most 65536 are allowed"),
        (object(), "of type object, which JSON cannot express"),
        ({1: {2}}, "it cannot be written as JSON"),
    ],
    ids=["too large", "no JSON", "a set"],
)
def test_a_result_that_cannot_be_kept(
    database: Database, result: Any, words: str
) -> None:
    """The task has succeeded all the same: to do its work again would not mend it."""
    office = Office(database, lambda ctx: result, result_retention="1h")
    office.run()
    end = office.client.result("first", "1")
    assert end is not None
    assert end.result is None
    assert words in (end.error or "")
    assert office.ids("first") == []


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        (
            task(name="t", record="some")(failing),
            'record is \'some\'; expected "none", "failures" or "all"',
        ),
        (
            task(name="t", result_retention="0s")(failing),
            "result_retention is '0s'; expected more than zero",
        ),
        (
            job(name="t", schedule=Every("1h"), record="all")(failing),
            "this is for one-time tasks; remove it",
        ),
    ],
    ids=["word", "zero", "job"],
)
def test_a_history_that_cannot_be_kept(subject: Any, words: str) -> None:
    """Is refused at registration."""
    with pytest.raises(ConfigurationError) as refused:
        define(subject)
    assert words in str(refused.value)


def test_an_id_that_another_transaction_holds(
    pg_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot be skipped, as it is not there yet: the settlement that wants it waits shortly,
    the others not at all.

    Once that transaction has ended, the follow-up is written.
    """
    office = Office(
        pg_database, lambda ctx: ctx.then("then", id=ctx.data) if ctx.data else None
    )
    for number, wants in enumerate([None, "held", "free", None]):
        office.client.schedule("first", wants, id=str(number))
    claims = office.worker.poll()
    for claim in claims:
        office.worker.run(claim)
    tasks = office.bench.tables.tasks
    row = {
        "task_name": "then",
        "task_instance": "held",
        "picked": False,
        "version": 1,
        "execution_time": NOON,
    }
    with pg_database.main.begin() as foreign:
        foreign.execute(tasks.insert().values(**row))
        began = elapsed()
        office.worker.settle()
        took = elapsed() - began
        assert {claim.row.task_instance for claim in office.worker.held} == {"1"}
        assert took < 8, (
            f"the others waited for {took:.1f} s"
        )  # twice the lock timeout of 5 s, without a short wait
        assert office.ids("then") == ["free"]
        foreign.rollback()
    office.worker.tick("2s")
    office.worker.settle()
    assert (list(office.worker.held), sorted(office.ids("then"))) == (
        [],
        ["free", "held"],
    )
