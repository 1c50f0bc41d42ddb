"""Keep tests away from databases that others use."""

from __future__ import annotations

import time
from typing import Final

import sqlalchemy as sa

from slotwise import ConfigurationError, Settings
from slotwise.inspect import Inspection
from slotwise.spi import Database, hide_password, tables

#: Rows with older tokens were made before this process loaded the kit. A minute's difference of
#: clocks is allowed.
_BEGUN: Final = time.time_ns() // 1000 - 60_000_000
#: Addresses and installations that this process found without foreign rows: what is there now was
#: made by its tests. Databases that are copies of one template have one installation id.
_ours: set[tuple[str, object]] = set()


def refuse_foreign_rows(database: Database) -> None:
    """Raise ConfigurationError if the database has live workers, or rows that were made before
    this process. Missing tables are accepted.
    """
    settings = database.settings
    where = hide_password(str(settings.database_url))
    names = tables(settings.table_prefix, settings.schema)
    meta = names.meta
    with database.main.connect() as connection:
        if not sa.inspect(connection).has_table(meta.name, settings.schema):
            return
        installation = _installation(connection, meta)
        if (where, installation) in _ours:
            return
        rows = _older(connection, names.tasks, names.tasks.c.created_version)
        ended = _older(connection, names.slots, names.slots.c.token)
    counts = {
        "live workers": count_live_workers(settings),
        "jobs and tasks": rows,
        "slots in its history": ended,
    }
    found = [f"{count} {what}" for what, count in counts.items() if count]
    if found:
        raise ConfigurationError(
            f"{where} has {', '.join(found)} that this test has not made; name a "
            "database of the tests, or pass foreign_rows=True"
        )
    if installation is not None:
        _ours.add((where, installation))


def accept_rows(database: Database) -> None:
    """Let tests of this process use the database, which they have emptied."""
    settings = database.settings
    meta = tables(settings.table_prefix, settings.schema).meta
    with database.main.connect() as connection:
        installation = _installation(connection, meta)
    _ours.add((hide_password(str(settings.database_url)), installation))


def count_live_workers(settings: Settings) -> int:
    """Return how many workers are alive in the database."""
    with Inspection.open(settings) as inspect:
        return sum(worker.live for worker in inspect.workers())


def _installation(connection: sa.Connection, meta: sa.Table) -> object:
    wanted = sa.select(meta.c.value).where(meta.c.key == "installation_id")
    return connection.scalar(wanted)


def _older(connection: sa.Connection, table: sa.Table, token: sa.Column[int]) -> int:
    """Count the rows whose token is older than this process."""
    is_older = sa.func.coalesce(token, 0) < _BEGUN
    wanted = sa.select(sa.func.count()).select_from(table).where(is_older)
    return connection.scalar(wanted) or 0
