"""One migration for each revision of the tables. Each applies all revisions that are missing."""

from __future__ import annotations

from collections.abc import Callable

from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from slotwise import Settings
from slotwise.contrib.django.project import InMemory, alias, database_address, place
from slotwise.operations import Schema


def _change_tables(
    schema_editor: BaseDatabaseSchemaEditor, change: Callable[[Schema], object]
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
    change(Schema(Settings.load(database_url=address, **place())))


def upgrade(apps: object, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """As ``slotwise db upgrade``: nothing to do if that was run before."""
    _change_tables(schema_editor, Schema.upgrade)


def downgrade_to(revision: str) -> Callable[[object, BaseDatabaseSchemaEditor], None]:
    """Return what takes the tables down to this revision; to "base", all data is lost."""
    return lambda apps, schema_editor: _change_tables(
        schema_editor, lambda tables: tables.downgrade(revision)
    )
