"""Which shard the tables are, where an application has several databases: they say it."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from slotwise import Client
from slotwise.spi import Joinable

#: The row of ``scheduled_meta`` in which workers of a shard keep its name.
KEY: Final = "shard_name"


def shard_of(client: Client) -> str | None:
    """Return the name of the shard; None where there is one database. Raises DatabaseProblem."""
    return client.within(lambda own: _name(client, own))


def _name(client: Client, own: Joinable) -> str | None:
    meta = client.dialect.tables.meta
    row = own.execute(sa.select(meta.c.value).where(meta.c.key == KEY)).fetchone()
    return None if row is None else str(row[0])
