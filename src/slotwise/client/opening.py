"""Open the tables without a worker: from settings, from an address, or for an application."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from slotwise import migrate
from slotwise.jobs.definition import Definition
from slotwise.settings.settings import Settings
from slotwise.store.connect.database import Database
from slotwise.store.slots.store import Store


class Application(Protocol):
    """What a JobRegistry has: settings, and the jobs and tasks that are registered."""

    @property
    def settings(self) -> Settings: ...
    @property
    def definitions(self) -> Mapping[str, Definition]: ...


@contextmanager
def open_store(
    where: Settings | str | None = None, application: Application | None = None
) -> Iterator[Store]:
    """Connect, check the tables, and close the connections at the end.

    ``where`` is the settings, or the database's address; without it the settings are the
    application's, else those of environment and settings file. The store knows the
    application's jobs and tasks. Raises DatabaseProblem, SchemaMissing or SchemaMismatch.
    """
    if where is None:
        settings = Settings.load() if application is None else application.settings
    else:
        settings = (
            Settings.load(database_url=where) if isinstance(where, str) else where
        )
    database = Database(settings)
    try:
        database.verify()
        with database.main.connect() as connection:
            migrate.check(
                connection, prefix=settings.table_prefix, schema=settings.schema
            )
        yield Store(database, {} if application is None else application.definitions)
    finally:
        database.close()
