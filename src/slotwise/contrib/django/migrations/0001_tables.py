"""slotwise's own upgrade, as a migration: its revisions and its version table are the history, here and in the CLI."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

from slotwise import migrate
from slotwise.contrib.django.project import InMemory, alias, database_address, place
from slotwise.settings.settings import Settings
from slotwise.store.connect.database import Database


def _tables(schema_editor: Any, *, up: bool) -> None:
    """Create or upgrade the tables, on a connection of slotwise's own and in its own transaction."""
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
            change = migrate.apply if up else migrate.revert
            change(connection, prefix=settings.table_prefix, schema=settings.schema)
    finally:
        database.close()


def upgrade(apps: Any, schema_editor: Any) -> None:
    """As ``slotwise db upgrade``: nothing to do if that was run before."""
    _tables(schema_editor, up=True)


def downgrade(apps: Any, schema_editor: Any) -> None:
    """Drop the tables; all data is lost."""
    _tables(schema_editor, up=False)


def _page(name: str, plural: str) -> migrations.CreateModel:
    return migrations.CreateModel(
        name=name,
        fields=[("name", models.CharField(max_length=100, primary_key=True, serialize=False))],
        options={
            "verbose_name_plural": plural,
            "managed": False,
            "default_permissions": ("view",),
            "base_manager_name": "objects",
        },
    )


class Migration(migrations.Migration):
    """Creates the tables. The models are the admin's pages, without tables of their own."""

    initial = True
    atomic = False  # slotwise's upgrade has a transaction, and an advisory lock, of its own
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        _page("Job", "jobs"),
        _page("Task", "tasks"),
        _page("Worker", "workers"),
        migrations.RunPython(upgrade, downgrade),
    ]
