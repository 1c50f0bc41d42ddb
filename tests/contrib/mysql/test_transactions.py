"""Transactions of ours on MariaDB that the server ends: what is done again, and what an error
says.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError
from tests.kit.connections import is_about_a_row
from tests.kit.patience import PATIENCE
from tests.store.conftest import opened

from slotwise import BulkResult, Client, Item
from slotwise.contrib.mysql.dialect import MySQL
from slotwise.spi import Database, DatabaseClock, Key, Tables


@pytest.fixture
def database(mysql_url: str) -> Iterator[Database]:
    with opened(mysql_url) as database:
        yield database


def wait_for_a_waiter(own: sa.Connection) -> None:
    """Wait until a transaction waits for a lock of this one. The server renews what it shows only
    if nobody has looked for a tenth of a second.
    """
    until = time.monotonic() + PATIENCE
    waiters = sa.text("SELECT count(*) FROM information_schema.innodb_lock_waits")
    while not own.scalar(waiters):
        assert time.monotonic() < until
        time.sleep(0.15)


def lock(own: sa.Connection, id: str) -> None:
    row = "SELECT 1 FROM scheduled_tasks WHERE task_name = 'mail' AND task_instance = :id"
    own.execute(sa.text(f"{row} FOR UPDATE"), {"id": id})


def replace(client: Client, connection: sa.Connection | None = None) -> BulkResult:
    items = [Item(None, id=id) for id in ("a", "b")]
    return client.schedule_many(
        "mail", items, if_exists="replace", connection=connection
    )


def make_dear(own: sa.Connection) -> None:
    """Of two transactions in a deadlock, the server ends the one that has changed fewer rows."""
    many = "INSERT INTO scheduled_meta SELECT concat('k', seq), 'v' FROM seq_1_to_200"
    own.execute(sa.text(many))


@pytest.fixture
def client(mysql_url: str, database: Database) -> Iterator[Client]:
    """A client, and two tasks."""
    with Client.open(mysql_url) as client:
        for id in ("a", "b"):
            client.schedule("mail", None, id=id)
        yield client


def test_a_call_of_ours_that_ended_a_deadlock_is_done_again(
    database: Database, client: Client
) -> None:
    with database.main.connect() as own, ThreadPoolExecutor(1) as pool:
        make_dear(own)
        lock(own, "b")
        found = pool.submit(replace, client)
        wait_for_a_waiter(own)
        lock(own, "a")
        own.rollback()
        assert found.result(PATIENCE).total == 2


def test_a_callers_transaction_that_ended_a_deadlock_is_not(
    mysql_url: str, database: Database, client: Client
) -> None:
    """All of it is gone, and the error says so."""
    engine = sa.create_engine(sa.make_url(mysql_url).set(drivername="mysql+pymysql"))

    def retry() -> None:
        with engine.begin() as theirs:
            replace(client, theirs)

    with database.main.connect() as own, ThreadPoolExecutor(1) as pool:
        make_dear(own)
        lock(own, "b")
        found = pool.submit(retry)
        wait_for_a_waiter(own)
        lock(own, "a")
        own.rollback()
        with pytest.raises(OperationalError) as caught:
            found.result(PATIENCE)
    assert "whole transaction" in "".join(caught.value.__notes__)
    engine.dispose()


def die_in_a_hurry(database: Database) -> None:
    dialect = MySQL(Tables(database="mysql"), DatabaseClock())
    with database.main.begin() as own:
        dialect.hurry(own, timedelta(seconds=1))
        number = own.scalar(sa.text("SELECT connection_id()"))
        with database.main.begin() as other:
            other.exec_driver_sql(f"KILL {number}")
        own.execute(sa.text("SELECT 1"))


def test_a_session_that_ends_in_a_hurry_says_so(database: Database) -> None:
    """The error is that of the connection, which passes, and not one of its end."""
    with pytest.raises(DBAPIError) as caught:
        die_in_a_hurry(database)
    assert caught.value.connection_invalidated


def test_rows_are_locked_in_the_order_of_keys(
    database: Database, client: Client
) -> None:
    """Whatever order they are given in: others wait for them in that order, too."""
    dialect = MySQL(Tables(database="mysql"), DatabaseClock())

    def hold() -> None:
        with database.main.begin() as own:
            dialect.lock(own, [Key("mail", "b"), Key("mail", "a")], wait=True)

    with database.main.connect() as own, ThreadPoolExecutor(1) as pool:
        lock(own, "a")
        found = pool.submit(hold)
        wait_for_a_waiter(own)
        lock(own, "b")
        own.rollback()
        found.result(PATIENCE)


@pytest.mark.parametrize(
    "value",
    ["version = 4611686018427387904", "pending = 'no json'", "slot = 'yesterday'"],
)
def test_a_refused_value_is_about_its_row(
    value: str, database: Database, client: Client
) -> None:
    """So that the others of its batch are written."""
    with database.main.connect() as own, pytest.raises(DBAPIError) as caught:
        own.exec_driver_sql(f"UPDATE scheduled_tasks SET {value}")
    assert is_about_a_row(caught.value)
