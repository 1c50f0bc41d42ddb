"""One row that nobody can read or decide costs only itself: at the claim, at the settlement, at
the take-over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DataError, IntegrityError, OperationalError
from tests.kit.connections import is_about_a_row
from tests.kit.decisions import claim, ending
from tests.kit.payloads import PAYLOAD_LIMIT
from tests.kit.ports import by_key
from tests.kit.records import Duration, Failed, HandedBack, Instant, Snoozed, Succeeded
from tests.store.bench import MINUTE, NOON, Bench, at, claim_due

from slotwise.inspect import RECURRING
from slotwise.spi import Claim
from slotwise.store.dialects.postgresql import statements

#: Beyond what Python can hold, as each database writes it.
INSTANTS = {
    "postgresql": {
        "-infinity": "'-infinity'",
        "infinity": "'infinity'",
        "BC": "'0044-03-15 12:00Z BC'",
        "year 20000": "'20000-01-01Z'",
    },
    "sqlite": {
        "-infinity": str(-(2**63)),
        "infinity": str(2**63 - 1),
        "BC": str(-(10**17)),
        "year 20000": str(6 * 10**17),
    },
    "mysql": {
        "-infinity": "'0000-00-00 00:00:00'",
        "infinity": "'9999-12-31 23:59:59.999999'",
        "BC": "'-0044-03-15 12:00:00'",
        "year 20000": "'20000-01-01 00:00:00'",
    },
}
#: What drivers raise for a value that a table refuses: PyMySQL has no class for a check.
REFUSALS = (IntegrityError, DataError, OperationalError)
#: What data is cast to.
BLOBS = {"postgresql": "bytea", "mysql": "binary"}


def write(
    bench: Bench, name: str, column: str, what: str, instance: str = RECURRING
) -> None:
    """As an operator, or another program, writes it."""
    with bench.store.transaction() as connection:
        done = connection.exec_driver_sql(
            f"UPDATE scheduled_tasks SET {column} = {what} WHERE task_name = "
            f"'{name}' AND task_instance = '{instance}'"
        )
        assert done.rowcount == 1


def stands(bench: Bench, name: str, instance: str = RECURRING) -> Any:
    """What people see of it."""
    tasks = bench.tables.tasks
    with bench.store.transaction() as connection:
        columns = [
            tasks.c[name]
            for name in ("state", "execution_time", "picked", "last_error", "version")
        ]
        return connection.execute(
            sa.select(*columns).where(
                tasks.c.task_name == name, tasks.c.task_instance == instance
            )
        ).one()


#: A document in the column ``pending`` that no release has written.
BAD_DOCUMENT = """'{"catch_up_until": "the day after"}'"""
#: A document that the driver cannot decode: Python reads no number of so many digits.
LONG_NUMBER = f"""'{{"a": {"9" * 5000}}}'"""


@pytest.mark.extended
@pytest.mark.parametrize("what", ["-infinity", "infinity", "BC", "year 20000"])
def test_no_table_takes_an_instant_that_nobody_can_read(
    bench: Bench, what: str
) -> None:
    """Not in any column: a worker that reads such a value would read none of its batch."""
    bad = sa.literal_column(INSTANTS[bench.database.dialect_name][what])
    tried = 0
    for table in bench.tables.metadata.sorted_tables:
        for column in table.columns:
            if isinstance(column.type, Instant):
                _refused(bench, table, **{column.name: bad})
                tried += 1
    assert tried > 30


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("tasks", "version"),
        ("tasks", "created_version"),
        ("slots", "token"),
        ("attempts", "token"),
    ],
)
def test_no_table_takes_a_version_that_cannot_rise(
    bench: Bench, table: str, column: str
) -> None:
    """Each claim and settlement raises it."""
    _refused(bench, getattr(bench.tables, table), **{column: 2**62})


def _refused(bench: Bench, table: sa.Table, **bad: Any) -> None:
    """A row is taken as it should be, and not with this value."""
    row = {column.name: _sample(column) for column in table.columns}
    with bench.store.database.main.connect() as connection:
        connection.execute(table.insert().values(**row))
        connection.rollback()
        with pytest.raises(REFUSALS) as caught:
            connection.execute(table.insert().values(**row | bad))
        assert is_about_a_row(caught.value)
        connection.rollback()


def _sample(column: sa.Column[Any]) -> Any:
    kinds: tuple[tuple[Any, Any], ...] = (
        (Instant, NOON),
        (Duration, MINUTE),
        (sa.JSON, {}),
        (sa.Boolean, False),
        (sa.Text, "x"),
        (sa.LargeBinary, b"x"),
    )
    return next((value for kind, value in kinds if isinstance(column.type, kind)), 77)


def test_a_plan_row_that_nobody_can_read_is_postponed(bench: Bench) -> None:
    """It comes up again each minute and says what is wrong: a job does not end by a mistake. The
    others run.
    """
    bench.tick()
    write(bench, "plain", "pending", BAD_DOCUMENT)
    bench.client.schedule("mail", id="1")
    found, claims = claim_due(
        bench.store, "host:1:a", 100, lease=MINUTE, names=["mail", "plain", "retried"]
    )
    assert (found, {claim.row.task_name for claim in claims}) == (
        3,
        {"mail", "retried"},
    )
    row = stands(bench, "plain")
    assert (row.state, row.picked, row.execution_time) == (None, False, at(2))
    assert row.last_error == "unreadable: Invalid isoformat string: 'the day after'"
    assert bench.slots("plain") == []
    health = bench.inspect.health(timedelta(minutes=1))
    (told,) = health.unreadable
    assert (health.overdue, told.task, told.rows, told.dead, told.since) == (
        0,
        "plain",
        1,
        False,
        at(1),
    )
    (line,) = [line for line in bench.inspect.jobs() if line.job == "plain"]
    assert (line.state, line.reason, told.error) == (
        "unreadable",
        told.error,
        row.last_error[len("unreadable: ") :],
    )
    write(bench, "plain", "pending", "NULL")
    bench.tick(1.5)
    assert len(bench.claim("plain")) == 1


def test_a_flawed_row_is_claimed_and_refused(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """What a writer can insert makes no claim fail: others start, flawed rows are dead, one line
    counts them.
    """
    blob = BLOBS.get(bench.database.dialect_name, "blob")
    flaws = {
        "version": (str(2**62 - 1), "its version cannot rise further"),
        "attempt": (str(2**31 - 1), "its attempts cannot be counted"),
        "task_data": (
            f"CAST('{'x' * (PAYLOAD_LIMIT + 65)}' AS {blob})",
            "payload too large: 1048641 bytes, at most",
        ),
    }
    for column, (value, _) in flaws.items():
        bench.client.schedule("mail", id=column)
        write(bench, "mail", column, value, column)
    bench.client.schedule("mail", id="good")
    assert [claim.row.task_instance for claim in bench.claim("mail")] == ["good"]
    for column, (_, flaw) in flaws.items():
        row = stands(bench, "mail", column)
        assert (
            row.state,
            row.picked,
            row.last_error.startswith(f"unreadable: {flaw}"),
        ) == ("dead", False, True)
    assert (
        bench.row("mail", "task_data").attempt,
        bench.row("mail", "version").version < 2**62,
    ) == (0, True)
    assert [
        record.args[:2] for record in caplog.records if isinstance(record.args, tuple)
    ] == [("mail", 3)]


def test_a_number_that_python_does_not_read(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """In a document of a row, it stops neither claims nor heartbeats, reapers, deploys, operations
    or explanations.
    """
    bench.tick()
    held = bench.claim_one("strict")
    write(bench, "strict", "pending", LONG_NUMBER)
    write(bench, "plain", "pending", LONG_NUMBER)
    write(bench, "delayed", "plan", LONG_NUMBER)
    assert [claim.row.task_name for claim in bench.claim("plain", "retried")] == [
        "retried"
    ]
    assert stands(bench, "plain").last_error.startswith("unreadable: ")
    assert (
        len(bench.store.held.held_by(held.holder))
        == len(bench.store.held.silent_rows(["strict", "retried"])[1])
        == 2
    )
    assert bench.store.held.beat(held.holder, [held]) == set()
    assert {line.job: line.state for line in bench.inspect.jobs()}[
        "delayed"
    ] == "unreadable"
    assert bench.plan(revision="9")["plain"].change == "kept"
    bench.client.operations.pause("plain")
    assert stands(bench, "plain").state == "paused"
    assert bench.inspect.explain("plain", at(1)) is not None
    assert bench.settle(held) is not None


def test_a_reaper_reads_some_thousands_of_rows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those with the oldest heartbeats: what nobody renews is among them, however many others are
    held.
    """
    monkeypatch.setattr(by_key, "MOST_HELD", 2)
    monkeypatch.setitem(statements.PARTS, "most_held", "2")
    bench.tick()
    claims = bench.claim("plain", "retried", "strict")
    bench.tick(0.1)
    bench.store.held.beat("host:1:a", claims[1:2])
    few = bench.beside().store
    assert {
        row.key for row in few.held.silent_rows(["plain", "retried", "strict"])[1]
    } == {
        claims[0].key,
        claims[2].key,
    }


def test_a_flawed_job_is_due_again(bench: Bench) -> None:
    """Its slot has left no trace in the ledger; the payload does not travel; once mended, the slot
    runs.
    """
    bench.tick()
    blob = BLOBS.get(bench.database.dialect_name, "blob")
    write(
        bench, "plain", "task_data", f"CAST('{'x' * (PAYLOAD_LIMIT + 65)}' AS {blob})"
    )
    assert bench.claim("plain") == []
    row = stands(bench, "plain")
    assert (row.state, row.picked, row.execution_time) == (None, False, at(2))
    assert bench.slots("plain") == []
    write(bench, "plain", "task_data", "NULL")
    bench.tick(1.5)
    assert len(bench.claim("plain")) == 1


def test_a_flood_costs_a_line_a_minute(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """However many rows, and claims, and however different their problems."""
    bench.client.schedule_many("mail", range(50))
    with bench.store.transaction() as connection:
        connection.exec_driver_sql(
            "UPDATE scheduled_tasks SET version = 4611686018427387903 WHERE task_name = 'mail'"
        )
    while (
        bench.store.claims.claim_tasks("host:1:a", 10, lease=MINUTE, names=["mail"])
        or bench.store.claims.refused
    ):
        assert bench.store.claims.refused == ["mail"] * 10
    assert [
        record.args[1] for record in caplog.records if isinstance(record.args, tuple)
    ] == [10]


def test_a_held_row_that_nobody_can_read(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A reaper takes it over once, under its fence; the next claim refuses it, and its document
    stays.
    """
    name = "plain"
    bench.tick()
    claim = bench.claim_one(name)
    write(bench, name, "pending", BAD_DOCUMENT, claim.row.task_instance)
    _, rows = bench.store.held.silent_rows([name])
    (done,) = bench.store.settlements.take_over(rows)
    assert (done.error, done.transition and done.transition.label) == (None, "lost")
    assert bench.store.held.silent_rows([name])[1] == []
    assert bench.claim(name) == []
    row = stands(bench, name, claim.row.task_instance)
    assert (row.picked, row.version > claim.token) == (False, True)
    assert row.last_error.startswith("unreadable: ")
    assert bench.settle(claim) is None
    assert len(caplog.records) == 1


def test_a_complaint_comes_once_an_hour(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A row that nobody can read comes up each minute; another complaint, or another row, is told
    at once.
    """
    write(bench, "plain", "pending", BAD_DOCUMENT)
    for _ in range(10):
        bench.tick()
        assert bench.claim("plain") == []
    assert len(caplog.records) == 1
    write(bench, "retried", "schedule", "'MOON|full'")
    bench.claim("plain", "retried")
    assert [
        record.args[0] for record in caplog.records if isinstance(record.args, tuple)
    ] == ["plain", "retried"]
    bench.tick(60)
    bench.claim("plain", "retried")
    assert len(caplog.records) == 4


Break = Callable[[pytest.MonkeyPatch, str], None]


def _break(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every decision about this task raises what no decision raises."""
    for module, verb in ((claim, "at_claim"), (ending, "at_finish")):
        whole = getattr(module, verb)

        def broken(row: Any, *rest: Any, whole: Any = whole, **options: Any) -> Any:
            if row.task_name == name:
                raise OverflowError("date value out of range")
            return whole(row, *rest, **options)

        monkeypatch.setattr(module, verb, broken)


def test_a_decision_that_fails_at_the_claim(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs its own row a minute, each time, and no other row anything."""
    _break("plain", monkeypatch)
    bench.tick(3)
    assert [claim.row.task_name for claim in bench.claim("plain", "retried")] == [
        "retried"
    ]
    assert stands(bench, "plain").last_error == "unreadable: date value out of range"
    assert (bench.slots("plain"), bench.row("plain").attempt) == ([], 0)
    monkeypatch.undo()
    bench.tick(2)
    assert bench.claim_one("plain").slot == at(5)


@pytest.mark.parametrize(
    "outcome", [Succeeded(), Failed("boom")], ids=lambda one: one.name
)
def test_a_decision_that_fails_at_the_settlement(
    bench: Bench, outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others settle; what its handler came to is in the ledger, the row is let go and comes up
    again.
    """
    bench.tick()
    claims = bench.claim("plain", "retried", "strict")
    _break("plain", monkeypatch)
    done = bench.store.settlements.settle([(claim, outcome) for claim in claims])
    assert all(one.transition for one in done)
    assert bench.slot("plain")["outcome"] == outcome.name
    row = stands(bench, "plain")
    assert (row.picked, row.execution_time, row.state) == (False, at(2), None)
    monkeypatch.undo()
    bench.tick(1.5)
    assert bench.claim_one("plain").slot == at(2)


def test_a_decision_that_fails_at_the_take_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are taken over; it is let go as well: nothing stays with the dead."""
    bench.tick()
    claims = bench.claim("plain", "retried", "strict")
    _break("plain", monkeypatch)
    assert len(bench.take_over(*claims)) == 3
    assert not any(stands(bench, claim.row.task_name).picked for claim in claims)
    monkeypatch.undo()
    bench.tick(2)
    assert bench.claim_one("plain").slot == at(3)
    outcomes = [
        (1, "lost"),
        (2, "skipped"),
        (3, "running"),
    ]  # no gap covers the slot that the ledger has decided
    assert (bench.outcomes("plain"), bench.gaps("plain")) == (outcomes, [])


def test_whoever_has_stirred_is_not_let_go(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a row that cannot be decided is taken only from the dead."""
    bench.tick()
    claim = bench.claim_one("plain")
    _break("plain", monkeypatch)
    bench.tick(0.1)
    bench.store.held.beat(claim.holder, [claim])
    stale = replace(claim.row, last_heartbeat=NOON)
    assert bench.store.settlements.take_over([stale]) == []
    assert bench.row("plain").picked


def test_what_a_handler_says_fails_alone(bench: Bench) -> None:
    """A snooze beyond the calendar is the handler's mistake: its slot fails, and the schedule goes
    on.
    """
    bench.tick()
    claims = bench.claim("plain", "retried")
    done = bench.store.settlements.settle(
        [(claim, Snoozed(timedelta(days=4_000_000))) for claim in claims]
    )
    assert [one.transition and one.transition.label for one in done] == [
        "failed",
        "failed",
    ]
    assert "snoozed" in bench.slot("plain")["error"]
    assert bench.row("plain").slot == at(2)


def test_a_task_that_cannot_be_settled_is_dead(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays, and says why; when somebody wished for its next attempt does not outlive it."""
    bench.client.schedule("mail", id="1")
    claim = bench.claim_one("mail")
    assert bench.client.reschedule("mail", "1", delay="1h").status == "running"
    _break("mail", monkeypatch)
    done = bench.settle(claim)
    assert done is not None
    assert (
        done.label,
        stands(bench, "mail", "1").state,
        bench.row("mail", "1").wanted_due,
    ) == ("dead", "dead", None)
    assert bench.settle(claim) is None


def test_looks_stop_at_nothing(bench: Bench) -> None:
    """A held row that nobody can read keeps no reaper from the others, and no heartbeat."""
    bench.tick()
    claims: list[Claim] = bench.claim("plain", "retried")
    write(bench, "plain", "pending", BAD_DOCUMENT)
    _, rows = bench.store.held.silent_rows(["plain", "retried"])
    assert len(rows) == len(bench.store.held.held_by("host:1:a")) == 2
    assert bench.store.held.beat("host:1:a", claims) == set()


@pytest.mark.parametrize("name", ["mail", "once"])
def test_what_waits_for_a_newer_worker(
    bench: Bench, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes up again soon, and the later the longer it has waited; no attempt is counted, and
    it is not dead.

    Health counts it; after a minute it is logged, once per task and minute.
    """
    for number in range(2):
        bench.client.schedule(name, id=str(number))
    for waited, pause in ((0, 1), (1, 1), (60, 30), (600, 60)):
        bench.clock.set(at(0) + timedelta(seconds=waited))
        claims = bench.claim(name)
        endings = [
            (claim, HandedBack("newer", "task_data has version 2")) for claim in claims
        ]
        settled = bench.store.settlements.settle(endings)
        assert [one.transition and one.transition.label for one in settled] == [
            "handed_back"
        ] * 2
        row = bench.row(name, "1")
        assert row.execution_time == bench.clock.now() + timedelta(seconds=pause)
        assert (row.picked, row.state, row.attempt, row.consecutive_failures) == (
            False,
            None,
            0,
            0,
        )
    (told,) = bench.inspect.health(timedelta(minutes=1)).unreadable
    assert (told.task, told.rows, told.newer, told.dead, told.since) == (
        name,
        2,
        True,
        False,
        at(0),
    )
    assert told.error == "task_data has version 2"
    said = [
        record.getMessage()
        for record in caplog.records
        if "newer worker" in record.getMessage()
    ]
    assert len(said) == 1


@pytest.mark.parametrize("name", ["plain", "strict"])
def test_a_slot_that_waits_for_a_newer_worker(bench: Bench, name: str) -> None:
    """It has left no trace in the ledger, and a newer worker runs it, late as it may be."""
    bench.tick()
    claim = bench.claim_one(name)
    assert name == "plain" or bench.store.held.mark_running(claim)
    bench.settle(claim, HandedBack("newer", "task_data has version 2"))
    assert (bench.row(name).slot, bench.row(name).attempt, bench.slots(name)) == (
        at(1),
        0,
        [],
    )
    assert bench.claim(name) == []
    bench.clock.tick(timedelta(seconds=1))
    newer = bench.claim_one(name)
    assert (newer.slot, newer.row.attempt) == (at(1), 1)


UNKNOWN = ["CRON|* * * * *|Mars/Olympus", "LUNAR|full", "EVERY|1m|of a newer release"]


@pytest.mark.parametrize("text", UNKNOWN)
@pytest.mark.parametrize(
    "late", [timedelta(0), timedelta(seconds=50)], ids=["on time", "late"]
)
def test_a_schedule_that_another_worker_may_know(
    bench: Bench, text: str, late: timedelta
) -> None:
    """Zone data or release of a host may be older than another's: it leaves the row as it is, and
    claims the others.
    """
    bench.tick()
    known, due = bench.row("plain").schedule, bench.row("plain").execution_time
    write(bench, "plain", "schedule", f"'{text}'")
    bench.clock.tick(late)
    taken = bench.claim("plain", "retried")
    assert [claim.row.task_name for claim in taken] == ["retried"]
    left = stands(bench, "plain")
    assert (left.execution_time, left.last_error) == (due, None)
    write(bench, "plain", "schedule", f"'{known}'")
    assert [claim.row.task_name for claim in bench.claim("plain")] == ["plain"]


@pytest.mark.parametrize("text", UNKNOWN)
def test_a_schedule_that_nobody_knows(bench: Bench, text: str) -> None:
    """After a minute it is quarantined, so that it costs little, and listed."""
    bench.tick()
    write(bench, "plain", "schedule", f"'{text}'")
    bench.tick(2)
    assert bench.claim("plain") == []
    row = stands(bench, "plain")
    assert row.last_error.startswith(("unreadable: ", "waits for a newer worker: "))
    assert row.execution_time == bench.clock.now() + timedelta(minutes=1)
