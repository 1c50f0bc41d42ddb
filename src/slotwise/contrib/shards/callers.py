"""Which shard the connection of a caller leads to.

A database says it by its installation id. Where shards are schemas of one database, the search
path of the connection says it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import sqlalchemy as sa

from slotwise import Client, ConfigurationError
from slotwise.contrib.shards.shard import Shard

_SCHEMA = "SELECT pg_catalog.current_schema()"


class Executes(Protocol):
    """A connection of SQLAlchemy or psycopg, or a session."""

    def execute(self, statement: object, /) -> object: ...


class Found(Protocol):
    """What it returns."""

    def fetchone(self) -> Sequence[object] | None: ...


def shard_of_connection(
    connection: object, shards: Sequence[Shard], client: Callable[[str], Client]
) -> str:
    """Return the name of the shard. Raises ConfigurationError if the connection leads to none of
    them, or if that is unknown.
    """
    unknown = []
    schema = None
    if any(shard.schema is not None for shard in shards):
        schema = _current_schema(connection)
    for shard in shards:
        if shard.schema != schema and shard.schema is not None:
            continue
        leads = client(shard.name).leads_here(connection, f"shard {shard.name}")
        if leads:
            return shard.name
        if leads is None:
            unknown.append(shard.name)
    if unknown:
        raise ConfigurationError(
            f"whether the connection leads to {' or '.join(unknown)} is unknown while that "
            "database does not answer; name the shard: shard=…"
        )
    where = "" if schema is None else f" (its first schema is {schema})"
    raise ConfigurationError(
        f"the connection{where} leads to none of the shards; pass one to the database of a "
        "shard, or none"
    )


def _current_schema(connection: object) -> str | None:
    """Return the first schema of the connection's search path."""
    statement: object = _SCHEMA
    if hasattr(connection, "ensure_connection"):  # of Django
        with connection.cursor() as cursor:  # type: ignore[attr-defined]
            cursor.execute(_SCHEMA)
            return str(cursor.fetchone()[0])
    if not type(connection).__module__.startswith("psycopg"):
        statement = sa.text(_SCHEMA)
    executing: Executes = connection  # type: ignore[assignment]
    found: Found = executing.execute(statement)  # type: ignore[assignment]
    row = found.fetchone()
    return None if row is None else str(row[0])
