"""Alembic's entry: `alembic upgrade head` in a checkout. `slotwise db upgrade` goes the same way
without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from alembic import context
from alembic.util import CommandError
from sqlalchemy import Connection

from slotwise import migrate
from slotwise.errors import SlotwiseError
from slotwise.migrate.target import dialect_of_address
from slotwise.settings.settings import Settings
from slotwise.store.connect.database import Database


def _database_url() -> str | None:
    return context.get_x_argument(as_dictionary=True).get(
        "url"
    ) or context.config.get_alembic_option("sqlalchemy.url", None)


def _settings() -> Settings:
    """Arguments first, then the environment and slotwise.toml."""
    arguments = context.get_x_argument(as_dictionary=True)
    given: dict[str, Any] = {
        "database_url": _database_url(),
        "table_prefix": arguments.get("prefix"),
        "schema": arguments.get("schema"),
    }
    return Settings.load(**{name: value for name, value in given.items() if value})


@contextmanager
def _connected(settings: Settings, given: Connection | None) -> Iterator[Connection]:
    """The connection that alembic was given, else one of our own."""
    if given is not None:
        yield given
        return
    database = Database(settings)
    try:
        database.verify(new=True)
        with database.migrations().connect() as connection:
            yield connection
    finally:
        database.close()


def run() -> None:
    settings = _settings()
    adopt = context.get_x_argument(as_dictionary=True).get("adopt", "").lower() in (
        "1",
        "true",
        "yes",
    )
    target = migrate.Target(
        prefix=settings.table_prefix, schema=settings.schema, adopt=adopt
    )
    if context.is_offline_mode():
        named = dialect_of_address(settings.database_url)
        context.configure(dialect_name=named, literal_binds=True, **target.options())
        with context.begin_transaction():
            target.make_schema(context.execute)
            context.run_migrations()
        return
    given = context.config.attributes.get("connection")
    with _connected(settings, given) as connection:
        context.configure(connection=connection, **target.options())
        with context.begin_transaction():
            target.prepare(connection)
            context.run_migrations()


try:
    run()
except SlotwiseError as error:
    # alembic prints it in one line, and has no option of that name
    raise CommandError(str(error).replace("--database-url", "-x url=URL")) from None
