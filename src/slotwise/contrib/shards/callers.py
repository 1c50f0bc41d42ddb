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
        raise UnknownShard(
            f"whether the connection leads to {' or '.join(unknown)} is unknown while that "
            "database does not answer; try again when it does, or leave connection out"
        )
    where = "" if schema is None else f" (its first schema is {schema})"
    raise ConfigurationError(
        f"the connection{where} leads to none of the shards; pass one to the database of a "
        "shard, or none"
    )


def check_connection(
    connection: object,
    shard: Shard,
    shards: Sequence[Shard],
    client: Callable[[str], Client],
) -> None:
    """Raise ConfigurationError unless the connection leads to this shard, also while its database
    does not answer: a task must not be written elsewhere.
    """
    others = [one for one in shards if one is not shard]
    try:
        # the named one first: another one may be slow to say that it is down
        found = shard_of_connection(connection, [shard, *others], client)
    except UnknownShard:
        raise ConfigurationError(
            f"shard={shard.name!r}: whether the connection leads there is unknown while that "
            "database does not answer; try again when it does, or leave connection out"
        ) from None
    if found != shard.name:
        raise ConfigurationError(
            f"shard={shard.name!r}, but the connection leads to shard {found}; pass a "
            f"connection to the database of {shard.name}, or leave shard out"
        )


class UnknownShard(ConfigurationError):
    """Where a connection leads is unknown, as a database does not answer."""


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
