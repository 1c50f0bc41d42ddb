"""Operations on many one-time tasks: what they change, count and write to the audit."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from slotwise import Client, ConfigurationError, JobContext, Retry, Settings, task
from slotwise.inspect import Inspection, TaskFilter
from slotwise.operations import Operations
from slotwise.spi import Database
from slotwise.testing import ManualWorker

FUTURE = datetime(2100, 1, 1, tzinfo=UTC)


@task(name="mail", retry=Retry.exponential(max_attempts=1))
def mail(ctx: JobContext) -> None:
    """Fails, and is not tried again."""
    raise RuntimeError(f"relay refused {ctx.id}")


def states(url: str) -> dict[str, str]:
    with Inspection.open(url) as inspect:
        return {one.id: one.state for one in inspect.tasks("mail")}


@pytest.fixture
def many(url: str) -> str:
    """Tasks of two kinds of ids; more than one statement changes."""
    with Client.open(url) as client:
        client.schedule_many("mail", [{"to": "ada"}] * 1_200)
        for number in range(3):
            client.schedule("mail", {"to": "bob"}, id=f"order-{number}", at=FUTURE)
    return url


def test_deletion_by_a_filter(many: str) -> None:
    """A dry run counts and changes nothing; then only what the filter matches is gone."""
    with Operations.open(many, author="eve") as operations:
        orders = TaskFilter(begins="order-")
        assert operations.delete_tasks("mail", where=orders, dry_run=True) == 3
        assert len(states(many)) == 100  # a page
        assert operations.delete_tasks("mail", where=TaskFilter(until=FUTURE)) == 1_200
        assert set(states(many)) == {"order-0", "order-1", "order-2"}
        assert operations.delete_tasks("mail", where=TaskFilter(id="order-1")) == 1
        assert operations.cancel_tasks("mail", state="waiting") == 2
    with Inspection.open(many) as inspect:
        audit = [
            (one.operation, one.author, one.arguments) for one in inspect.audit("mail")
        ]
    until = {"until": FUTURE.isoformat()}
    assert [one[0] for one in audit] == [
        "cancel_tasks",
        "delete_tasks",
        "delete_tasks",
    ]
    assert {one[1] for one in audit} == {"eve"}
    assert audit[0][2] == {"rows": 2, "state": "waiting"}
    assert audit[1][2] == {"rows": 1, "where": {"id": "order-1"}}
    assert audit[2][2]["rows"] == 1_200
    assert set(audit[2][2]["where"]) == set(until)


def test_an_operation_stops_at_its_limit(many: str) -> None:
    """A page continues with the next call, until the result is below the limit. No row beyond the
    limit is changed, also where one statement could change more.
    """
    with Operations.open(many) as operations:
        seen = list[int]()
        assert operations.delete_tasks("mail", limit=2, dry_run=True) == 2
        first = operations.delete_tasks("mail", limit=1_000, progress=seen.append)
        assert first == 1_000
        assert seen == [1_000]
        assert operations.delete_tasks("mail", limit=1) == 1
        assert operations.cancel_tasks("mail", limit=2) == 2
        assert operations.delete_tasks("mail", limit=1_000) == 200
        assert operations.delete_tasks("mail", limit=1_000) == 0


def test_dead_tasks_are_retried() -> None:
    """Those whose error has a text; the others stay dead."""
    with ManualWorker([mail]) as worker:
        client, operations = worker.client, worker.client.operations
        for to in ("ada", "bob"):
            client.schedule("mail", {"to": to}, id=to)
        worker.run_due()
        where = TaskFilter(error="REFUSED ADA")
        dead = {one.id for one in client.inspect.tasks("mail", state="dead")}
        assert dead == {"ada", "bob"}
        assert [one.id for one in client.inspect.tasks("mail", where=where)] == ["ada"]
        assert operations.retry_tasks("mail", where=where, dry_run=True) == 1
        assert operations.retry_tasks("mail", where=where) == 1
        (ada, bob) = client.list("mail")
        assert (ada.state, ada.attempt) == ("waiting", 0)
        assert bob.state == "dead"


def test_what_runs_is_asked_to_stop() -> None:
    """It stays until its handler ends; a deletion leaves it alone."""
    with ManualWorker([mail]) as worker:
        client, operations = worker.client, worker.client.operations
        client.schedule("mail", {"to": "ada"}, id="runs")
        (claim,) = worker.poll()
        client.schedule("mail", {"to": "bob"}, id="waits", at=FUTURE)
        assert operations.delete_tasks("mail", dry_run=True) == 1
        assert operations.cancel_tasks("mail", dry_run=True) == 2
        assert operations.cancel_tasks("mail") == 2
        (left,) = client.inspect.tasks("mail")
        assert (left.id, left.state) == (claim.key.task_instance, "running")
        assert left.cancel_requested is not None
        assert operations.cancel_tasks("mail", state="running") == 0


def test_of_what_is_dead_or_runs_only_so_many_are_changed() -> None:
    with ManualWorker([mail], threads=3) as worker:
        operations = worker.client.operations
        for number in range(3):
            worker.client.schedule("mail", id=str(number))
        worker.poll()
        assert operations.cancel_tasks("mail", state="running", limit=1) == 1
        assert operations.cancel_tasks("mail", state="running") == 2
    with ManualWorker([mail]) as worker:
        operations = worker.client.operations
        for number in range(3):
            worker.client.schedule("mail", id=str(number))
        worker.run_due()
        assert operations.retry_tasks("mail", limit=2) == 2
        assert operations.retry_tasks("mail") == 1


def test_a_retry_passes_over_what_is_dead_again(
    many: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that fail again at once do not keep it from the others, nor from its end."""
    monkeypatch.setattr("slotwise.store.operations.task_operations._STATEMENTS", 1)

    database = Database(Settings(database_url=many))

    def die() -> None:
        with database.main.begin() as connection:
            connection.execute(
                sa.text("UPDATE scheduled_tasks SET state = 'dead' WHERE NOT picked")
            )

    die()
    rounds = list[int]()

    def again(rows: int) -> None:
        rounds.append(rows)
        assert len(rounds) < 9
        die()

    with Operations.open(many) as operations:
        assert operations.retry_tasks("mail", progress=again) == 1_203
    database.close()


def test_mistakes_are_refused(url: str) -> None:
    """In one line, before anything is changed."""
    with Operations.open(url) as operations:
        with pytest.raises(ConfigurationError, match="expected waiting, running"):
            operations.cancel_tasks("mail", state="asleep")
        with pytest.raises(ConfigurationError, match="are cancelled instead"):
            operations.delete_tasks("mail", state="running")
        with pytest.raises(ConfigurationError, match="expected 1 or more"):
            operations.retry_tasks("mail", limit=0)
