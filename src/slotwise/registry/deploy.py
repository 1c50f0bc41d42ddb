"""What starting a worker of an application would change, without starting it."""

from __future__ import annotations

from slotwise import migrate
from slotwise.client.opening import Application, open_store
from slotwise.settings.settings import Settings
from slotwise.store.connect.database import Database
from slotwise.store.planning.deploy_preview import DeployChange, compare
from slotwise.store.planning.revision import Revision
from slotwise.store.slots.store import Store


def preview(application: Application) -> list[DeployChange]:
    """Compare the application's jobs with their rows. Raises what ``open_store`` does."""
    with open_store(application=application) as store:
        return _compared(store, application)


def preview_of_first(application: Application) -> list[DeployChange]:
    """Compare with empty tables in memory, as an upgrade will create them."""
    database = Database(Settings(database_url="sqlite://"))
    try:
        with database.migrations().connect() as connection:
            migrate.apply(connection)
        return _compared(Store(database, {}), application)
    finally:
        database.close()


def _compared(store: Store, application: Application) -> list[DeployChange]:
    ours = Revision(text=application.settings.revision, started=store.now())
    return compare(store.database, application.definitions, ours)
