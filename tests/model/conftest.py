"""A database for many examples: tables are made once, and emptied for each."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator

import pytest
from tests.model.cluster import CHANCE

import slotwise.contrib.mysql.dialect  # noqa: F401 - its receipts are unique: before the ids below
from slotwise import Settings
from slotwise.operations import Schema
from slotwise.spi import Database
from slotwise.testing.manual_worker import IN_MEMORY


@pytest.fixture(autouse=True)
def the_same_ids_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of triggers and workers come from ``CHANCE``, which each cluster sets back.

    The pause after a second loss depends on a row's id, and so does the order of rows that are due
    at the same instant. With other ids, an example that has failed may pass when it is played
    again.
    """
    monkeypatch.setattr(
        uuid, "uuid4", lambda: uuid.UUID(int=CHANCE.getrandbits(128), version=4)
    )
    monkeypatch.setattr(
        secrets, "token_hex", lambda size: CHANCE.randbytes(size).hex()
    )


@pytest.fixture(scope="module")
def plain() -> Iterator[Database]:
    found = Database(Settings(database_url=IN_MEMORY))
    Schema.create_in(found)
    yield found
    found.close()


@pytest.fixture
def plain_postgresql(pg_url: str) -> Iterator[Database]:
    found = Database(Settings(database_url=pg_url))
    yield found
    found.close()


@pytest.fixture
def plain_mariadb(mysql_url: str) -> Iterator[Database]:
    found = Database(Settings(database_url=mysql_url))
    yield found
    found.close()
