"""Where the examples keep their tables: in DATABASE_URL, else in a SQLite file that is new for each run."""

from __future__ import annotations

import os
import tempfile
from functools import lru_cache
from pathlib import Path

import sqlalchemy as sa

from slotwise import JobRegistry, migrate


@lru_cache(maxsize=1)
def database_url() -> str:
    """The same address for all parts of one example."""
    return os.environ.get("DATABASE_URL") or f"sqlite:///{Path(tempfile.mkdtemp(), 'slotwise.db')}"


def make_tables(registry: JobRegistry) -> None:
    """What `slotwise db upgrade` does; it finds nothing to do the second time."""
    settings = registry.settings
    with registry.database.migrations().connect() as connection:
        migrate.apply(connection, prefix=settings.table_prefix, schema=settings.schema)


def application_engine() -> sa.Engine:
    """The application's own pool, on the same database; slotwise has one of its own beside it."""
    url = sa.make_url(database_url())
    return sa.create_engine(url.set(drivername="postgresql+psycopg") if "postgres" in url.drivername else url)
