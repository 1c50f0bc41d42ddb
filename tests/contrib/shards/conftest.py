"""Databases that are shards: clones of one template, each with an installation id of its own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest
from tests.databases import Databases

from slotwise.contrib.shards import Shards

#: Makes shards of these names, each a database of its own; the first one is the default.
MakeShards = Callable[..., Shards]


def own_installation(url: str) -> None:
    """Give a clone its own id, as an installation has it."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "UPDATE scheduled_meta SET value = %s WHERE key = 'installation_id'",
            [str(uuid.uuid4())],
        )


@pytest.fixture
def make_shards(databases: Databases) -> Iterator[MakeShards]:
    with ExitStack() as stack:

        def make(*names: str) -> Shards:
            urls = {}
            for name in names:
                urls[name] = stack.enter_context(databases.provisioned())
                own_installation(urls[name])
            return Shards(urls, default=names[0])

        yield make
