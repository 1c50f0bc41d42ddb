"""Callers' connections to MariaDB: what is refused, and what is left after an error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta

import pymysql
import pytest
import sqlalchemy as sa
from pymysql.constants import CLIENT
from sqlalchemy.ext.asyncio import create_async_engine
from tests.mariadb import MariaDBServer

from slotwise import ConfigurationError, JobRegistry, Settings, TaskContext, task
from slotwise.contrib.mysql.dialect import MySQL
from slotwise.spi import Database, DatabaseClock, Tables


@task(name="mail")
def mail(ctx: TaskContext[int]) -> None: ...


@pytest.fixture
def registry(mysql_url: str) -> Iterator[JobRegistry]:
    registry = JobRegistry(tasks=[mail], database_url=mysql_url)
    yield registry
    registry.database.close()


def opened(
    server: MariaDBServer, url: str, flags: int = CLIENT.FOUND_ROWS, **options: object
) -> pymysql.connections.Connection:
    address = sa.make_url(url)
    return pymysql.connect(
        host="127.0.0.1",
        port=server.port,
        user="root",
        database=address.database,
        client_flag=flags,
        **options,
    )


def count(registry: JobRegistry) -> int:
    return len(registry.client.list(mail))


def test_a_driver_that_counts_changed_rows_is_refused(
    registry: JobRegistry, mariadb: MariaDBServer, mysql_url: str
) -> None:
    with (
        opened(mariadb, mysql_url, flags=0) as connection,
        pytest.raises(ConfigurationError, match=r"CLIENT\.FOUND_ROWS"),
    ):
        registry.client.schedule(mail, 1, connection=connection)


def test_an_engine_that_counts_changed_rows_is_refused(
    registry: JobRegistry, mysql_url: str
) -> None:
    engine = sa.create_engine(
        mysql_url.replace("mysql:", "mysql+pymysql:"), connect_args={"client_flag": 0}
    )
    with (
        engine.begin() as connection,
        pytest.raises(ConfigurationError, match=r"CLIENT\.FOUND_ROWS"),
    ):
        registry.client.schedule(mail, 1, connection=connection)
    engine.dispose()


@pytest.mark.parametrize("counts_found", [True, False])
def test_a_driver_that_hides_its_flags_is_asked(
    registry: JobRegistry, mysql_url: str, counts_found: bool
) -> None:
    """By an UPDATE that changes nothing."""
    engine = create_async_engine(
        mysql_url.replace("mysql:", "mysql+asyncmy:"),
        connect_args={"client_flag": CLIENT.FOUND_ROWS * counts_found},
    )

    async def schedule() -> None:
        try:
            async with engine.begin() as connection:
                await registry.client.aio.schedule(mail, 1, connection=connection)
        finally:
            await engine.dispose()

    if counts_found:
        asyncio.run(schedule())
        assert count(registry) == 1
    else:
        with pytest.raises(ConfigurationError, match=r"CLIENT\.FOUND_ROWS"):
            asyncio.run(schedule())
    with registry.database.transaction() as connection:
        receipts = "SELECT count(*) FROM scheduled_receipts"
        assert connection.scalar(sa.text(receipts)) == 0


def test_a_connection_that_commits_by_itself_is_refused(
    registry: JobRegistry, mariadb: MariaDBServer, mysql_url: str
) -> None:
    with opened(mariadb, mysql_url, autocommit=True) as connection:
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            registry.client.schedule(mail, 1, connection=connection)
        connection.begin()
        registry.client.schedule(mail, 1, connection=connection)
        connection.rollback()
    assert count(registry) == 0


def test_a_connection_to_another_installation_is_refused(
    registry: JobRegistry,
    mariadb: MariaDBServer,
    mysql_url: str,
    mysql_empty_url: str,
) -> None:
    from tests.databases import provision

    provision(mysql_empty_url)
    for url, is_ours in ((mysql_url, True), (mysql_empty_url, False)):
        with opened(mariadb, url) as connection:
            if is_ours:
                registry.client.schedule(mail, 1, connection=connection)
                continue
            with pytest.raises(ConfigurationError, match="leads to installation"):
                registry.client.schedule(mail, 1, connection=connection)


def test_a_rollback_of_the_caller_takes_the_task_with_it(
    registry: JobRegistry, mariadb: MariaDBServer, mysql_url: str
) -> None:
    with opened(mariadb, mysql_url) as connection:
        registry.client.schedule(mail, 1, connection=connection)
        connection.rollback()
        assert count(registry) == 0
        registry.client.schedule(mail, 1, connection=connection)
        connection.commit()
    assert count(registry) == 1


def notes_of(error: BaseException) -> str:
    return " ".join(getattr(error, "__notes__", ()))


def test_after_a_lock_timeout_the_callers_transaction_is_open(
    registry: JobRegistry, mariadb: MariaDBServer, mysql_url: str
) -> None:
    """Nothing of it is repeated."""
    with (
        opened(mariadb, mysql_url) as holder,
        opened(mariadb, mysql_url, autocommit=False) as waiting,
    ):
        registry.client.schedule(mail, 1, id="same", connection=holder)
        with waiting.cursor() as cursor:
            cursor.execute("SET innodb_lock_wait_timeout = 1")
        registry.client.schedule(mail, 1, id="other", connection=waiting)
        with pytest.raises(sa.exc.OperationalError, match="Lock wait") as met:
            registry.client.schedule(mail, 1, id="same", connection=waiting)
        assert "still open" in notes_of(met.value)
        holder.rollback()
        waiting.commit()
    assert [found.id for found in registry.client.list(mail)] == ["other"]


def test_after_a_deadlock_the_callers_transaction_is_gone(
    registry: JobRegistry, mariadb: MariaDBServer, mysql_url: str
) -> None:
    met: list[BaseException] = []
    with (
        opened(mariadb, mysql_url) as one,
        opened(mariadb, mysql_url) as two,
    ):
        registry.client.schedule(mail, 1, id="a", connection=one)
        registry.client.schedule(mail, 1, id="b", connection=two)

        def wait(connection: pymysql.connections.Connection, id: str) -> None:
            try:
                registry.client.schedule(mail, 1, id=id, connection=connection)
            except sa.exc.OperationalError as error:
                met.append(error)
            connection.rollback()

        threads = [
            threading.Thread(target=wait, args=(one, "b")),
            threading.Thread(target=wait, args=(two, "a")),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(met) == 1
    assert "rolled back your whole transaction" in notes_of(met[0])
    assert count(registry) == 0


def test_an_idle_holder_of_a_guard_is_bounded_until_it_completes(
    mysql_url: str,
) -> None:
    """The bound is one of the session, and is set back."""
    database = Database(Settings(database_url=mysql_url))
    dialect = MySQL(Tables(), DatabaseClock())
    limit = sa.text("SELECT @@idle_transaction_timeout")
    with database.migrations().begin() as connection:
        before = connection.scalar(limit)
        for seconds in (30, 20):
            dialect.bound_idle(connection, timedelta(seconds=seconds))
            assert connection.scalar(limit) == seconds
        dialect.end_guard(connection)
        assert connection.scalar(limit) == before
    database.close()


def test_the_server_ends_a_frozen_holder_of_a_guard(mysql_url: str) -> None:
    database = Database(Settings(database_url=mysql_url))
    dialect = MySQL(Tables(), DatabaseClock())
    with database.migrations().connect() as connection:
        dialect.bound_idle(connection, timedelta(seconds=1))
        lock = sa.text("SELECT value FROM scheduled_meta FOR UPDATE")
        connection.execute(lock)
        with database.transaction() as other:  # waits for up to five seconds
            other.execute(lock)
        with pytest.raises(sa.exc.OperationalError):
            connection.execute(lock)
    database.close()
