"""Comparisons of the schedules with the ledger, as every process sees them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from slotwise import Client
from slotwise.contrib.reconciliation import (
    Reconciler,
    Reconciliation,
    Unexplained,
    keep,
    kept,
)

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
FOUND = Reconciliation(
    since=NOON - timedelta(hours=12),
    at=NOON,
    jobs=7,
    count=21,
    unexplained=[Unexplained(job="night", id="recurring", slot=NOON)],
    complete=False,
)


@pytest.fixture
def client(pg_url: str) -> Iterator[Client]:
    with Client.open(pg_url) as made:
        yield made


def later(by: timedelta) -> Reconciliation:
    return Reconciliation(
        since=FOUND.since,
        at=NOON + by,
        jobs=8,
        count=0,
        unexplained=[],
        complete=True,
    )


def test_the_newest_is_kept(client: Client) -> None:
    assert kept(client) is None
    keep(client, FOUND)
    assert kept(client) == FOUND
    keep(client, later(timedelta(seconds=-1)))
    assert kept(client) == FOUND
    keep(client, later(timedelta(seconds=1)))
    assert kept(client) == later(timedelta(seconds=1))


def test_one_from_the_future_is_replaced(client: Client) -> None:
    """The clock of the database was set back."""
    keep(client, later(timedelta(days=100_000)))
    keep(client, FOUND)
    assert kept(client) == FOUND


def test_what_another_release_has_written_is_replaced(
    client: Client, pg_url: str
) -> None:
    with psycopg.connect(pg_url) as connection:
        connection.execute(
            "INSERT INTO scheduled_meta (key, value) VALUES ('reconciled', '[3]')"
        )
    assert kept(client) is None
    keep(client, FOUND)
    assert kept(client) == FOUND


def test_one_of_several_processes_compares(client: Client, pg_url: str) -> None:
    """The other one finds a result that is new enough; an old one is renewed."""

    def opened() -> AbstractContextManager[Client]:
        return Client.open(pg_url)

    one, other = Reconciler(opened), Reconciler(opened)
    assert (one.run_once(), other.run_once(), one.run_once()) == (True, False, False)
    first = kept(client)
    assert first is not None
    assert (first.jobs, first.count, first.complete) == (0, 0, True)
    assert first.since.astimezone(UTC).hour == 0
    assert Reconciler(opened, timedelta(0)).run_once()
    second = kept(client)
    assert second is not None
    assert second.at > first.at
