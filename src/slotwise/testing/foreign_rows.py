"""Keeps a worker of the test kit from a database that is in use: it would write slots of a fake clock there."""

from __future__ import annotations

import time
from typing import Final

import sqlalchemy as sa

from slotwise.errors import ConfigurationError
from slotwise.model.error_text import hide_password
from slotwise.store.connect.database import Database
from slotwise.store.connect.database_errors import lacks_tables
from slotwise.store.slots.store import Store

#: Rows with older tokens were made before this process loaded the kit. A minute's difference of clocks is allowed.
_BEGUN: Final = time.time_ns() // 1000 - 60_000_000
#: Addresses and installations that this process found without foreign rows: what is there now was made by its tests.
#: Databases that are copies of one template have one installation id.
_ours: set[tuple[str, object]] = set()


def refuse_foreign_rows(database: Database) -> None:
    """Raise ConfigurationError if the database has live workers, or rows that were made before this process.

    Tables that are missing are none of its business.
    """
    store, where = Store(database, {}), hide_password(str(database.settings.database_url))
    tasks, slots, workers, meta = (getattr(store.tables, name) for name in ("tasks", "slots", "workers", "meta"))
    try:
        with store.transaction() as connection:
            installation = connection.scalar(sa.select(meta.c.value).where(meta.c.key == "installation_id"))
            if (where, installation) in _ours:
                return
            now = store.dialect.now(connection)
            alive = connection.execute(sa.select(workers.c.worker, workers.c.last_seen, workers.c.lease)).all()
            live = [worker for worker, seen, lease in alive if seen + lease >= now]
            version = sa.func.coalesce(tasks.c.created_version, 0)
            rows = connection.scalar(sa.select(sa.func.count()).where(version < _BEGUN)) or 0
            ended = connection.scalar(sa.select(sa.func.count()).where(sa.func.coalesce(slots.c.token, 0) < _BEGUN))
    except Exception as error:
        if lacks_tables(error):
            return
        raise
    if live or rows or ended:
        found = [f"{len(live)} live workers"] * bool(live) + [f"{rows} jobs and tasks"] * bool(rows)
        found += [f"{ended} slots in its history"] * bool(ended)
        raise ConfigurationError(
            f"{where} has {', '.join(found)} that this test has not made; name a database of the tests, "
            "or pass foreign_rows=True"
        )
    if installation is not None:
        _ours.add((where, installation))
