"""One-time tasks: rows from outside, whatever is in them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tests.kit.records import FOREVER, to_micros
from tests.store.bench import Bench, at

from slotwise import Every, InstanceExists, JobContext, job, task
from slotwise.spi import Database
from slotwise.testing import ManualClock, ManualWorker


def test_a_row_is_born_with_the_time(bench: Bench) -> None:
    """Its first version is the database's time in microseconds, so that tokens rise over every
    reuse.
    """
    bench.tick(7)
    bench.client.schedule("mail", {"n": 1}, id="1", delay="90s", priority=90)
    row = bench.row("mail", "1")
    assert (row.version, row.created_version) == (to_micros(at(7)), to_micros(at(7)))
    assert (row.execution_time, row.slot, row.priority) == (at(8.5), at(8.5), 90)
    assert (row.task_data, row.picked, row.attempt, row.schedule) == (
        b'{"n":1}',
        False,
        0,
        None,
    )


def test_an_id_is_taken_once(bench: Bench) -> None:
    """Raised, or kept as it is; never overwritten."""
    bench.client.schedule("mail", 1, id="1")
    before = bench.row("mail", "1")
    with pytest.raises(InstanceExists, match="'1' is already scheduled"):
        bench.client.schedule("mail", 2, id="1", if_exists="raise")
    assert bench.client.schedule("mail", 2, id="1").status == "exists"
    assert bench.row("mail", "1") == before


def test_an_id_of_a_dead_task_is_taken(bench: Bench) -> None:
    """Nothing vanishes by being scheduled again."""
    from tests.kit.records import Failed

    bench.client.schedule("mail", id="1")
    bench.settle(bench.claim_one("mail"), Failed("boom", final=True))
    with pytest.raises(InstanceExists):
        bench.client.schedule("mail", id="1", if_exists="raise")
    assert bench.client.schedule("mail", id="1").status == "exists"


def test_a_row_joins_the_callers_transaction(bench: Bench) -> None:
    """It exists if and only if that commits."""
    with bench.database.main.connect() as connection:
        bench.client.schedule("mail", id="1", connection=connection)
        connection.rollback()
        bench.client.schedule("mail", id="2", connection=connection)
        connection.commit()
    assert bench.find("mail", "1") is None
    assert bench.find("mail", "2") is not None


def test_the_same_task_and_id_are_another_row_for_another_task(bench: Bench) -> None:
    """The key has two parts."""
    bench.client.schedule("mail", id="1")
    bench.client.schedule("once", id="1")
    assert len(bench.claim("mail", "once")) == 2


class Office:
    """A worker with a task and a job that write down what they were given."""

    def __init__(self, database: Database) -> None:
        self.given: list[Any] = []
        mail = task(name="mail")(lambda ctx: self.given.append(ctx.data))
        tick = job(name="tick", schedule=Every("1m"))(
            lambda ctx: self.given.append(ctx.slot)
        )
        self.worker = ManualWorker([mail, tick], database, ManualClock(at(0)))
        self.worker.plan()
        self.bench = Bench(database, [], self.worker.clock)

    def row(self, data: bytes | None, instance: str = "1") -> None:
        """A row of another program, or of another release of ours."""
        self.bench.insert("mail", instance, task_data=data)


@pytest.fixture
def office(database: Database) -> Office:
    return Office(database)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="broken off"),
        pytest.param(b"\xac\xed\x00\x05sr\x00\x0ejava.util.Date", id="java"),
        pytest.param(b"\x80\x04\x95\x0b\x00\x00\x00", id="pickle"),
        pytest.param(b'"\xff"', id="not utf-8"),
        pytest.param(b"[" * 100_000, id="depth 100,000"),
        pytest.param(b"\x00", id="NUL"),
    ],
)
def test_data_that_cannot_be_decoded(office: Office, data: bytes) -> None:
    """No further attempt can mend it: dead, with the reason and the data as it was; all others
    run.
    """
    office.row(data)
    office.bench.client.schedule("mail", {"fine": True}, id="2")
    office.worker.tick("1m")
    outcomes = {
        event.job: event.outcome
        for event in office.worker.run_due()
        if event.id != "1"
    }
    assert outcomes == {"mail": "succeeded", "tick": "succeeded"}
    assert sorted(office.given, key=str) == [at(1), {"fine": True}]
    row = office.bench.row("mail", "1")
    if row.is_foreign:  # PostgreSQL marks rows with Java's data as they are inserted
        assert data.startswith(b"\xac\xed")
        assert (row.state, row.picked, row.attempt) == ("foreign", False, 0)
        return
    assert (row.state, row.execution_time, row.task_data) == ("dead", FOREVER, data)
    assert (row.picked, row.attempt) == (False, 1)


@pytest.mark.parametrize(
    ("data", "given"),
    [
        pytest.param(None, None, id="none"),
        pytest.param(b"null", None, id="null"),
        pytest.param(b'{"a": [1, 2.5, "\xc3\xbc"]}', {"a": [1, 2.5, "ü"]}, id="json"),
        pytest.param(b"1e309", float("inf"), id="beyond a float"),
        pytest.param(b'"\\ud800"', "\ud800", id="a lone surrogate"),
        pytest.param(b'"\\u0000"', "\x00", id="NUL within a text"),
    ],
)
def test_data_that_can(office: Office, data: bytes | None, given: Any) -> None:
    """Whatever JSON can say, as it came out of it."""
    office.row(data)
    assert [event.outcome for event in office.worker.run_due()] == ["succeeded"]
    assert office.given == [given]


@pytest.mark.parametrize(
    "text", ["NUL: \x00", "surrogate: \ud800", "x" * 1_000_000, "ünïcödé 🕰"]
)
def test_an_error_that_cannot_be_stored_as_it_is(office: Office, text: str) -> None:
    """It is stored as it can be, and never keeps its slot, or a neighbour's, from being
    settled.
    """

    def fail(ctx: JobContext) -> None:
        raise ValueError(text)

    worker = ManualWorker(
        [
            job(name="bad", schedule=Every("1m"))(fail),
            job(name="good", schedule=Every("1m"))(lambda ctx: None),
        ],
        office.bench.database,
        office.worker.clock,
    )
    worker.plan()
    worker.tick("1m")
    assert sorted((event.job, event.outcome) for event in worker.run_due()) == [
        ("bad", "failed"),
        ("good", "succeeded"),
    ]
    error = office.bench.slot("bad")["error"]
    assert "ValueError" in error
    assert len(error) < 20_000


def test_a_payload_is_not_carried_around(office: Office) -> None:
    """It travels with the claim, and with nothing else; it is there again for the next attempt."""
    payload = b'"' + b"x" * 1_000_000 + b'"'
    office.row(payload)
    (claim,) = office.worker.poll()
    assert claim.row.task_data == payload
    _, held = office.worker.store.held.silent_rows(["mail"])
    assert [row.task_data for row in held] == [None]
    office.worker.crash()
    office.bench.tick(0.1)
    Bench(
        office.bench.database,
        office.worker.store.definitions.values(),
        office.bench.clock,
    ).take_over(claim)
    assert office.bench.row("mail", "1").task_data == payload


def test_a_row_with_nulls_where_another_program_may_leave_them(office: Office) -> None:
    """The columns of db-scheduler that may be null."""
    office.bench.insert(
        "mail",
        "1",
        priority=None,
        consecutive_failures=None,
        version=1,
        task_data=b"1",
    )
    assert [event.outcome for event in office.worker.run_due()] == ["succeeded"]


def test_a_dead_task_can_be_revived_by_sql(office: Office) -> None:
    """Its row has all that is needed."""
    office.row(b"{")
    office.worker.run_due()
    office.bench.change(
        "mail", "1", state=None, task_data=b"2", execution_time=at(0), attempt=0
    )
    office.worker.tick(timedelta(seconds=1))
    assert [event.outcome for event in office.worker.run_due()] == ["succeeded"]
    assert office.given == [2]


@dataclass
class Mail:
    to: str


def test_typed_data_that_is_not_what_the_task_takes(database: Database) -> None:
    """Dead at once, with the reason: no attempt of ten is made; what fits arrives as its type."""
    given: list[Mail] = []
    mail = task(name="mail", payload=Mail)(lambda ctx: given.append(ctx.data))
    worker = ManualWorker([mail], database, ManualClock(at(0)))
    bench = Bench(database, [], worker.clock)
    bench.insert("mail", "1", task_data=b'{"to": 7}')
    bench.insert("mail", "2", task_data=b'{"to": "ann"}')
    worker.run_due()
    assert given == [Mail("ann")]
    row = bench.row("mail", "1")
    assert (row.state, row.attempt, row.task_data) == ("dead", 1, b'{"to": 7}')
    with bench.store.transaction() as connection:
        said = connection.scalar(sa.select(bench.tables.tasks.c.last_error))
    assert said == "task_data does not fit the task's type: to: expected str, got 7"
