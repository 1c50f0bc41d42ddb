"""The database of the examples: DATABASE_URL, or a new SQLite file for each run."""

from __future__ import annotations

import os
import tempfile
from functools import lru_cache
from pathlib import Path

import sqlalchemy as sa

from slotwise import JobRegistry, migrate


@lru_cache(maxsize=1)
def database_url() -> str:
    """Return the same address for all parts of one example."""
    return (
        os.environ.get("DATABASE_URL")
        or f"sqlite:///{Path(tempfile.mkdtemp(), 'slotwise.db')}"
    )


def make_tables(registry: JobRegistry) -> None:
    """Create the tables, as `slotwise db upgrade` does; a second call changes nothing."""
    settings = registry.settings
    with registry.database.migrations().connect() as connection:
        migrate.apply(connection, prefix=settings.table_prefix, schema=settings.schema)


def application_engine() -> sa.Engine:
    """The application's own pool on the same database; slotwise has another one."""
    url = sa.make_url(database_url())
    return sa.create_engine(
        url.set(drivername="postgresql+psycopg")
        if "postgres" in url.drivername
        else url
    )
