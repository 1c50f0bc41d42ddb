"""What integration tests can ask for besides."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.connections import Open
from tests.integration.hearing import OTHERS, Heard

from slotwise import Settings
from slotwise.spi import Database


@pytest.fixture(autouse=True)
def others() -> None:
    """What tests before have left is not this one's."""
    OTHERS.clear()
    OTHERS.update(threading.enumerate())


@pytest.fixture
def database(pg_empty_url: str) -> Iterator[Open]:
    """Opens databases with given settings, by default on a fresh PostgreSQL one, and closes
    them all.
    """
    opened: list[Database] = []

    def open_(address: str = pg_empty_url, **settings: Any) -> Database:
        keywords = {
            name: settings.pop(name)
            for name in ("pool_size", "overflow")
            if name in settings
        }
        opened.append(
            Database(
                Settings.load(environ={}, database_url=address, **settings), **keywords
            )
        )
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


@pytest.fixture(params=["postgresql", "sqlite"])
def url(request: pytest.FixtureRequest) -> str:
    """A fresh database of each kind, with the tables."""
    found: str = request.getfixturevalue(
        {"postgresql": "pg_url", "sqlite": "sqlite_url"}[request.param]
    )
    return found


@pytest.fixture
def heard() -> Heard:
    """A listener for the registry under test."""
    return Heard()
