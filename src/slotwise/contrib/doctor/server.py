"""Conditions of a PostgreSQL server, by statements of our own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from slotwise.contrib.doctor.findings import Finding, Limits, Severity
from slotwise.inspect import DatabaseInfo
from slotwise.spi import Tables

#: Bytes of an entry and a page of a B-tree besides the values.
_ENTRY: Final = 24
_INDEXES: Final = """
SELECT c.relname::text AS name, pg_catalog.pg_relation_size(c.oid) AS bytes,
       greatest(c.reltuples, 0) AS entries, x.indisvalid AS valid,
       coalesce((SELECT pg_catalog.sum(s.avg_width) FROM pg_catalog.pg_attribute AS a
                 JOIN pg_catalog.pg_stats AS s ON s.schemaname = n.nspname
                     AND s.tablename = t.relname AND s.attname = a.attname
                 WHERE a.attrelid = t.oid AND a.attnum = ANY (x.indkey)), 32) AS width
FROM pg_catalog.pg_index AS x
JOIN pg_catalog.pg_class AS c ON c.oid = x.indexrelid
JOIN pg_catalog.pg_class AS t ON t.oid = x.indrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = t.relnamespace
WHERE t.relname = ANY (CAST(:tables AS text[])) AND {here}
ORDER BY c.relname"""
_AGE: Final = """
SELECT d.datname::text, pg_catalog.age(d.datfrozenxid)
FROM pg_catalog.pg_database AS d ORDER BY 2 DESC LIMIT 1"""
#: What a role or database sets for itself; slotwise's own connections override some of it.
_SETTINGS: Final = """
SELECT DISTINCT pg_catalog.unnest(s.setconfig)::text AS setting
FROM pg_catalog.pg_db_role_setting AS s
LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = s.setrole
LEFT JOIN pg_catalog.pg_database AS d ON d.oid = s.setdatabase
WHERE (s.setrole = 0::oid OR r.rolname = current_user)
  AND (s.setdatabase = 0::oid OR d.datname = pg_catalog.current_database())
ORDER BY 1"""
#: By parameter: what it costs, and from which value on.
_MINDED: Final = {
    "default_transaction_isolation": "a stricter isolation makes transactions of the application "
    "fail that lock what slotwise locks",
    "default_transaction_read_only": "nothing can be claimed or scheduled",
    "statement_timeout": "statements of the application that schedule or guard may be cut off",
    "idle_in_transaction_session_timeout": "a handler that holds a guard may lose its connection",
    "lock_timeout": "statements of the application that wait for a row may fail",
    "transaction_timeout": "a long transaction of the application loses its connection",
}
_USUAL: Final = ("0", "read committed", "off")


def indexes(
    connection: sa.Connection, tables: Tables, limits: Limits
) -> Iterator[Finding]:
    """Of indexes that are invalid, or larger than their entries need. Missing ones are a matter of
    the schema.
    """
    for row in _rows(connection, tables, _INDEXES):
        needed = float(row["entries"]) * (_ENTRY + float(row["width"])) + 8192
        if not row["valid"]:
            yield Finding(
                check="invalid_index",
                severity=Severity.ERROR,
                evidence=f"the index {row['name']} is invalid: its building was cut off",
                cure=f"REINDEX INDEX CONCURRENTLY {row['name']}",
            )
        elif (
            row["bytes"] >= limits.index_bytes and row["bytes"] > limits.bloat * needed
        ):
            yield Finding(
                check="bloated_index",
                severity=Severity.WARNING,
                evidence=f"the index {row['name']} has {row['bytes']:,} bytes; its "
                f"{row['entries']:,.0f} entries need about {needed:,.0f}",
                cure=f"REINDEX INDEX CONCURRENTLY {row['name']}; then find what starves vacuum",
            )


def _rows(connection: sa.Connection, tables: Tables, text: str) -> list[sa.RowMapping]:
    here = "pg_catalog.pg_table_is_visible(t.oid)"
    if tables.schema is not None:
        here = "n.nspname = CAST(:schema AS name)"
    names = [table.name for table in tables.metadata.tables.values()]
    given = {"tables": names, "schema": tables.schema}
    statement = sa.text(text.format(here=here))
    wanted = {
        name: value for name, value in given.items() if f":{name}" in statement.text
    }
    return list(connection.execute(statement, wanted).mappings())


def transaction_age(connection: sa.Connection, limits: Limits) -> Iterator[Finding]:
    name, age = connection.execute(sa.text(_AGE)).one()
    if age >= limits.transaction_age:
        yield Finding(
            check="transaction_age",
            severity=Severity.ERROR,
            evidence=f"the oldest transaction id of database {name} is {age:,} transactions old; "
            "at two billion the server stops accepting writes",
            cure=f"VACUUM (FREEZE) in {name}, and end what holds an old snapshot",
        )


def role_settings(connection: sa.Connection) -> Iterator[Finding]:
    """Of isolation and timeouts that role or database set for every session."""
    for setting in connection.scalars(sa.text(_SETTINGS)):
        name, _, value = setting.partition("=")
        if name in _MINDED and value not in _USUAL:
            yield Finding(
                check="role_settings",
                severity=Severity.NOTE
                if name != "default_transaction_read_only"
                else Severity.ERROR,
                evidence=f"role or database set {name} = {value}: {_MINDED[name]}",
                cure=f"ALTER ROLE … RESET {name}, or ALTER DATABASE … RESET {name}, unless it is "
                "meant",
            )


def starved_vacuum(found: DatabaseInfo, limits: Limits) -> Iterator[Finding]:
    for table in found.tables:
        if table.dead >= limits.dead_rows and table.dead > table.live:
            when = table.vacuumed.isoformat() if table.vacuumed else "never"
            yield Finding(
                check="starved_vacuum",
                severity=Severity.WARNING,
                evidence=f"{table.name} has {table.dead:,} dead rows and {table.live:,} live ones; "
                f"last vacuum: {when}",
                cure=f"VACUUM {table.name}; end what holds an old snapshot, and see that "
                "autovacuum is on",
            )


_ENDS: Final = {
    "session": "end it: SELECT pg_catalog.pg_terminate_backend(PID)",
    "slot": "drop it, if no replica uses it: SELECT pg_catalog.pg_drop_replication_slot('NAME')",
    "standby": "end the query on the standby, or set hot_standby_feedback = off there",
    "prepared": "COMMIT PREPARED or ROLLBACK PREPARED 'NAME'",
}


def old_snapshots(
    found: DatabaseInfo, now: datetime, limits: Limits
) -> Iterator[Finding]:
    for one in found.snapshots:
        is_old = one.since is not None and one.since <= now - limits.snapshot
        if is_old or one.age >= limits.snapshot_age:
            since = f" since {one.since.isoformat()}" if one.since else ""
            yield Finding(
                check="old_snapshot",
                severity=Severity.WARNING,
                evidence=f"{one.kind} {one.name} holds a snapshot{since}, over {one.age:,} "
                "transactions: vacuum keeps all rows that died since",
                cure=_ENDS.get(one.kind, "end it"),
            )
