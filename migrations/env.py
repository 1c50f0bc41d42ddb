"""Alembic's entry: `alembic upgrade head` in a checkout. `slotwise db upgrade` goes the same way without it."""

from __future__ import annotations

from alembic import context
from alembic.util import CommandError

from slotwise import migrate
from slotwise.errors import SlotwiseError


def _database_url() -> str | None:
    return context.get_x_argument(as_dictionary=True).get("url") or context.config.get_alembic_option(
        "sqlalchemy.url", None
    )


def _settings() -> migrate.Target:
    arguments = context.get_x_argument(as_dictionary=True)
    return migrate.Target.load(
        database_url=_database_url(),
        prefix=arguments.get("prefix"),
        schema=arguments.get("schema"),
        adopt=arguments.get("adopt", "").lower() in ("1", "true", "yes"),
    )


def run() -> None:
    target = _settings()
    if context.is_offline_mode():
        context.configure(dialect_name=target.dialect_name, literal_binds=True, **target.options())
        with context.begin_transaction():
            target.make_schema(context.execute)
            context.run_migrations()
        return
    given = context.config.attributes.get("connection")
    with target.connect(given) as connection:
        context.configure(connection=connection, **target.options())
        with context.begin_transaction():
            target.prepare(connection)
            context.run_migrations()


try:
    run()
except SlotwiseError as error:
    raise CommandError(str(error)) from None  # which alembic tells in one line
