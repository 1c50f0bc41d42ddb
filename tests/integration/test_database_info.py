"""What the database says of its own state."""

from __future__ import annotations

from datetime import datetime

import psycopg

from slotwise.inspect import Inspection


def test_the_state_of_the_database(pg_url: str) -> None:
    """Sizes of all tables, a session that keeps its snapshot, and connections."""
    with (
        Inspection.open(pg_url) as inspect,
        psycopg.connect(pg_url, application_name="a-report") as old,
    ):
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM scheduled_slots")
        found = inspect.database()
    assert found.replica_delay is None
    names = {table.name for table in found.tables}
    assert {"scheduled_tasks", "scheduled_slots", "scheduled_counts"} <= names
    assert all(table.bytes > 0 for table in found.tables)
    mine = [one for one in found.snapshots if one.name.startswith("a-report")]
    assert [one.kind for one in mine] == ["session"]
    assert isinstance(mine[0].since, datetime)
    assert found.connections is not None
    assert found.max_connections is not None
    assert 2 <= found.connections <= found.max_connections


def test_sqlite_has_none(sqlite_url: str) -> None:
    with Inspection.open(sqlite_url) as inspect:
        assert inspect.database().tables == ()
