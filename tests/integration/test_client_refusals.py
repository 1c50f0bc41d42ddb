"""Calls of a client on a database that cannot do them: one line with the cure, of our own kind."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import make_url
from tests.connections import Open, backend
from tests.integration.test_database import kill

from slotwise import (
    Client,
    Every,
    JobContext,
    JobRegistry,
    SlotwiseError,
    job,
    task,
)
from slotwise.inspect import Inspection


@task(name="send")
def send(ctx: JobContext) -> None:
    """Returns."""


@job(name="hourly", schedule=Every("1h"))
def hourly(ctx: JobContext) -> None:
    """Returns."""


CALLS: dict[str, Callable[[Client], Any]] = {
    "schedule": lambda client: client.schedule(send, id="1"),
    "schedule_many": lambda client: client.schedule_many(send, [1, 2]),
    "copy": lambda client: client.schedule_many(send, [1, 2], copy=True),
    "cancel": lambda client: client.cancel(send, "1"),
    "get": lambda client: client.get(send, "1"),
    "list": lambda client: client.list(),
    "recurring": lambda client: client.schedule_recurring(hourly, "1", Every("1h")),
    "aio": lambda client: asyncio.run(client.aio.get(send, "1")),
    "audit": lambda client: Inspection(client._make_store).audit(),
    "paused": lambda client: Inspection(client._make_store).all_paused(),
}


@contextmanager
def client_of(url: Any) -> Iterator[Client]:
    registry = JobRegistry(jobs=[hourly], tasks=[send], database_url=str(url))
    with closing(registry.database):
        yield registry.client


def told(call: Callable[[Client], Any], client: Client) -> str:
    """What it raises, which is one line."""
    with pytest.raises(SlotwiseError) as caught:
        call(client)
    assert "\n" not in str(caught.value)
    assert "SELECT" not in str(caught.value).upper().split("'")[0]
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_no_server_and_no_such_database(
    pg_url: str, call: Callable[[Client], Any]
) -> None:
    """Each call says where it looked, what the server or the network said, and what mends it."""
    with client_of(
        make_url(pg_url).set(port=1).render_as_string(hide_password=False)
    ) as client:
        assert re.match(
            "DatabaseUnreachable: .*port 1.*refused.*start the server",
            told(call, client),
        )
    with client_of(
        make_url(pg_url).set(database="missing").render_as_string(hide_password=False)
    ) as client:
        assert re.match(
            "DatabaseRefused: .*'missing'.*createdb missing", told(call, client)
        )


def test_a_row_that_somebody_else_holds(pg_url: str) -> None:
    """It is waited for as long as lock_timeout says; then the line says what to do."""
    with client_of(pg_url) as client, client_of(pg_url) as other:
        hurried = JobRegistry(
            tasks=[send], database_url=pg_url, heartbeat_interval="500ms"
        ).client
        with other._make_store().transaction() as connection:
            other.schedule(send, id="1", connection=connection)
            words = told(lambda client: client.schedule(send, id="1"), hurried)
        assert (
            "another transaction holds what this one needs; end that one, or try again"
            in words
        )
        assert client.get(send, "1") is not None
        hurried._make_store().database.close()


def test_a_server_that_was_restarted_a_moment_ago(pg_url: str, database: Open) -> None:
    """A connection that the server has closed while it rested is nobody's error, however short the
    rest was.
    """
    operator = database()
    with client_of(pg_url) as client:
        for call in CALLS.values():
            with client._make_store().transaction() as connection:
                gone = backend(connection)
            kill(operator, gone)
            call(client)


def test_the_callers_transaction_keeps_its_own_errors(pg_url: str) -> None:
    """There the driver's errors are the caller's, who may look for them; only missing tables are
    ours to say.
    """
    engine = sa.create_engine(make_url(pg_url).set(drivername="postgresql+psycopg"))
    with client_of(pg_url) as client, closing(engine.connect()) as connection:
        connection.exec_driver_sql("SET TRANSACTION READ ONLY")
        with pytest.raises(sa.exc.DBAPIError):
            client.schedule(send, id="1", connection=connection)
    engine.dispose()
