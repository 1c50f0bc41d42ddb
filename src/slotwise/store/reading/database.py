"""What the database says about its state: sizes, dead rows, old snapshots, connections, and the
delay of a replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from slotwise.model.values import Value
from slotwise.store.reading.queries import ReadTransaction, reading
from slotwise.store.schema.rows import filled, utc
from slotwise.store.slots.store import Store

#: Holders of snapshots that are read, the oldest first.
_MOST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize(Value):
    """A table; see DatabaseInfo."""

    name: str
    bytes: int
    live: int
    dead: int
    vacuumed: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHolder(Value):
    """What holds an old snapshot, so that vacuum keeps rows that died since: a ``session``, a
    replication ``slot``, a ``standby`` or a ``prepared`` transaction.

    ``age`` counts the transactions since the snapshot. ``since`` is None if the server does not
    say it, or the role may not see it.
    """

    kind: str
    name: str
    age: int
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseInfo(Value):
    """The state of the database. SQLite has no snapshots, connections or dead rows.

    Each of ``tables`` has a ``name``, its ``bytes`` with indexes, how many rows the server
    estimates, ``live`` and ``dead`` ones, and when it was last ``vacuumed``.
    """

    tables: Sequence[TableSize] = ()
    snapshots: Sequence[SnapshotHolder] = ()
    connections: int | None = None
    max_connections: int | None = None
    #: How far a replica is behind; None of a primary. Without writes there, it grows.
    replica_delay: timedelta | None = None
    #: The age of the oldest snapshot of which the server says since when it is held.
    oldest_snapshot: timedelta | None = None


_TABLES = """
SELECT c.relname AS name, pg_catalog.pg_total_relation_size(c.oid) AS bytes,
       coalesce(s.n_live_tup, 0) AS live, coalesce(s.n_dead_tup, 0) AS dead,
       greatest(s.last_vacuum, s.last_autovacuum) AS vacuumed
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_stat_all_tables AS s ON s.relid = c.oid
WHERE c.relname IN :names AND c.relkind IN ('r', 'p') AND {here}
ORDER BY 2 DESC, 1"""
_SNAPSHOTS = """
SELECT * FROM (
SELECT 'session' AS kind,
       coalesce(application_name, '') || ' (' || coalesce(CAST(usename AS text), '') || ', pid '
       || CAST(pid AS text) || ')' AS name, xact_start AS since, pg_catalog.age(backend_xmin) AS age
FROM pg_catalog.pg_stat_activity
WHERE backend_xmin IS NOT NULL AND pid <> pg_catalog.pg_backend_pid()
    AND coalesce(backend_type, '') <> 'walsender'
UNION ALL
SELECT 'slot', slot_name, NULL, greatest(pg_catalog.age(xmin), pg_catalog.age(catalog_xmin))
FROM pg_catalog.pg_replication_slots WHERE coalesce(xmin, catalog_xmin) IS NOT NULL
UNION ALL
SELECT 'standby', coalesce(application_name, ''), backend_start, pg_catalog.age(backend_xmin)
FROM pg_catalog.pg_stat_replication WHERE backend_xmin IS NOT NULL
UNION ALL
SELECT 'prepared', gid, prepared, pg_catalog.age(transaction) FROM pg_catalog.pg_prepared_xacts
) AS holders ORDER BY age DESC, since LIMIT :most"""
_SERVER = """
SELECT pg_catalog.clock_timestamp() AS at,
       (SELECT CAST(pg_catalog.sum(numbackends) AS integer)
        FROM pg_catalog.pg_stat_database) AS used,
       CAST(pg_catalog.current_setting('max_connections') AS integer) AS most,
       CASE WHEN pg_catalog.pg_is_in_recovery()
            THEN pg_catalog.clock_timestamp() - pg_catalog.pg_last_xact_replay_timestamp()
       END AS delay"""


def database(store: Store) -> DatabaseInfo:
    """Return what the database says of its state."""
    if store.database.dialect_name != "postgresql":
        return DatabaseInfo()
    with reading(store) as at:
        (server,) = at.read(_SERVER, {})
        snapshots = _snapshots(at)
        now = utc(server["at"])
        ages = [now - one.since for one in snapshots if one.since is not None]
        return DatabaseInfo(
            tables=_tables(at),
            snapshots=snapshots,
            oldest_snapshot=max(ages, default=timedelta(0)),
            connections=server["used"],
            max_connections=server["most"],
            replica_delay=server["delay"],
        )


def _snapshots(at: ReadTransaction) -> list[SnapshotHolder]:
    rows = at.read(_SNAPSHOTS, {"most": _MOST})
    return [filled(SnapshotHolder, row, since=utc(row["since"])) for row in rows]


def _tables(at: ReadTransaction) -> list[TableSize]:
    schema = at.tables.schema
    names = [table.name for table in at.tables.metadata.tables.values()]
    here = "n.nspname = :schema" if schema else "pg_catalog.pg_table_is_visible(c.oid)"
    rows = at.read(_TABLES, {"names": names, "schema": schema}, here=here)
    return [filled(TableSize, row, vacuumed=utc(row["vacuumed"])) for row in rows]
