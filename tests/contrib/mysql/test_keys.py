"""Keys of MariaDB are compared by code points: nothing is folded, padded or cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from slotwise import Cancel, JobRegistry, Settings, TaskContext, task
from slotwise.contrib.mysql.ddl import LENGTHS
from slotwise.spi import Database, Identity
from slotwise.testing import ManualWorker

#: Ids that other collations take for the same.
IDS = ["a", "A", "á", "\u00e4", "a\u0308", "ß", "ss", "𝒳", "😀", "😁", "ａ"]


@task(name="mail")
def mail(ctx: TaskContext[int]) -> None: ...


@pytest.fixture
def registry(mysql_url: str) -> Iterator[JobRegistry]:
    registry = JobRegistry(tasks=[mail], database_url=mysql_url)
    yield registry
    registry.database.close()


def test_ids_that_differ_stay_apart(registry: JobRegistry) -> None:
    for number, id in enumerate(IDS):
        registry.client.schedule(mail, number, id=id)
    assert sorted(found.id for found in registry.client.list(mail)) == sorted(IDS)
    for number, id in enumerate(IDS):
        found = registry.client.get(mail, id)
        assert found is not None, id
        assert found.payload == str(number).encode(), id


def test_every_id_runs_whatever_the_character_set_of_the_database_is(
    mysql_url: str,
) -> None:
    """Databases of the test's server have latin1: a claim that sent ids in it found no rows."""
    ids = [*IDS, "заказ-1", "中文"]
    done: list[str] = []

    @task(name="отчёт")
    def report(ctx: TaskContext[int]) -> None:
        done.append(ctx.id)

    database = Database(Settings(database_url=mysql_url))
    with database.transaction() as connection:
        character_set = connection.scalar(sa.text("SELECT @@character_set_database"))
    assert character_set == "latin1"
    with ManualWorker([report], database) as worker:
        for number, id in enumerate(ids):
            worker.client.schedule(report, number, id=id)
        worker.run_due()
        assert worker.client.list(report) == []
    assert sorted(done) == sorted(ids)
    database.close()


def test_a_blank_at_the_end_counts(registry: JobRegistry) -> None:
    """Also in the tables, whatever the client refuses."""
    with registry.database.transaction() as connection:
        for key in ("a", "a ", "A", "a  "):
            connection.execute(
                sa.text("INSERT INTO scheduled_meta VALUES (:key, '')"), {"key": key}
            )
        mine = sa.text("SELECT count(*) FROM scheduled_meta WHERE `key` = :key")
        assert connection.scalar(mine, {"key": "a "}) == 1


def test_the_longest_keys_fit(registry: JobRegistry) -> None:
    """Four bytes for each character."""
    longest = "😀" * LENGTHS["task_instance"]
    registry.client.schedule(mail, 1, id=longest)
    (found,) = registry.client.list(mail)
    assert found.id == longest


def test_the_longest_worker_fits() -> None:
    """A worker whose name does not fit would quarantine each row that it claims."""
    assert len(str(Identity.new("w" * 100))) <= LENGTHS["worker"]
    assert len(str(Identity.new("w" * 100))) <= LENGTHS["picked_by"]


def test_a_long_reason_of_a_handler_fits(mysql_url: str) -> None:
    reason = "there is no invoice for this customer: " + "ä" * 200

    @task(name="cancelled", record="all")
    def cancelled(ctx: TaskContext[None]) -> None:
        raise Cancel(reason)

    database = Database(Settings(database_url=mysql_url))
    with ManualWorker([cancelled], database) as worker:
        worker.client.schedule(cancelled, None, id="1")
        assert [ended.outcome for ended in worker.run_due()] == ["cancelled"]
        (end,) = worker.client.history(cancelled, "1")
    assert (end.outcome, end.reason) == ("cancelled", reason)
    database.close()


def test_a_value_that_does_not_fit_is_an_error(mysql_url: str) -> None:
    """Whatever the server's own mode is."""
    database = Database(Settings(database_url=mysql_url))
    with (
        pytest.raises(sa.exc.DataError, match="too long"),
        database.transaction() as connection,
    ):
        connection.execute(
            sa.text("INSERT INTO scheduled_meta VALUES (:key, '')"), {"key": "k" * 251}
        )
    database.close()


@pytest.mark.parametrize("instant", ["1899-12-31 23:59:59", "9002-01-01 00:00:00"])
def test_an_instant_that_python_cannot_hold_is_stopped(
    mysql_url: str, instant: str
) -> None:
    database = Database(Settings(database_url=mysql_url))
    with (
        pytest.raises(sa.exc.DBAPIError, match="CONSTRAINT"),
        database.transaction() as connection,
    ):
        connection.execute(
            sa.text(
                "INSERT INTO scheduled_tasks "
                "(task_name, task_instance, execution_time, picked, version) "
                "VALUES ('a', 'b', :instant, 0, 1)"
            ),
            {"instant": instant},
        )
    database.close()
