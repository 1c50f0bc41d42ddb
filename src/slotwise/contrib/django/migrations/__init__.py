"""One migration for each revision of the tables. Each applies all revisions that are missing."""

from __future__ import annotations

from collections.abc import Callable

from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from slotwise import Settings, migrate
from slotwise.contrib.django.project import InMemory, alias, database_address, place
from slotwise.store.connect.database import Database


def _tables(
    schema_editor: BaseDatabaseSchemaEditor, change: Callable[..., object], **to: str
) -> None:
    """Create, upgrade or take down the tables, on a connection of slotwise's own and in its own
    transaction.
    """
    if schema_editor.connection.alias != alias():
        return
    try:
        address = database_address(alias())
    except InMemory:
        return  # a test database: the system check warns
    settings = Settings.load(database_url=address, **place())
    database = Database(settings)
    try:
        database.verify(new=True)
        with database.migrations().connect() as connection:
            change(connection, prefix=settings.table_prefix, schema=settings.schema, **to)
    finally:
        database.close()


def upgrade(apps: object, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """As ``slotwise db upgrade``: nothing to do if that was run before."""
    _tables(schema_editor, migrate.apply)


def downgrade_to(revision: str) -> Callable[[object, BaseDatabaseSchemaEditor], None]:
    """Return what takes the tables down to this revision; to "base", all data is lost."""
    return lambda apps, schema_editor: _tables(
        schema_editor, migrate.revert, revision=revision
    )
