"""A lasting database that tests may empty."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import PurePath

import sqlalchemy as sa

from slotwise import ConfigurationError, Settings
from slotwise.embedded import EmbeddedPostgres, GivenPostgres, shared_server
from slotwise.operations import Schema
from slotwise.spi import Database, database_url, hide_password, tables
from slotwise.testing.foreign_rows import accept_rows, count_live_workers

#: What stands for an address: the PostgreSQL that the extra ``embedded`` brings.
EMBEDDED = "embedded"
#: A word in the name of each database that may be emptied.
WORD = "test"


@contextmanager
def disposable_database(url: str, **settings: object) -> Iterator[Database]:
    """Open a lasting database for one test, with the tables and without their rows.

    ``url``: an address whose database (or SQLite file) has ``test`` in its name, such as
    ``postgresql://localhost/shop_test``; it is created if it does not exist. ``"embedded"``: the
    PostgreSQL of the extra ``embedded``. Each process of pytest-xdist has its own database,
    ``shop_test_gw0``. The rows of all of slotwise's tables are deleted at the beginning, and not
    at the end, so that they can be looked at after a failure. Further keywords are settings.

    Raises ConfigurationError for another name, and if the database has live workers; and a
    DatabaseProblem.
    """
    with ExitStack() as stack:
        if url == EMBEDDED:
            url = _embedded().url("slotwise_test")
        address = _of_this_process(_checked(database_url(url)))
        if address.get_backend_name() == "postgresql":
            _create_database(address)
        shown = address.render_as_string(hide_password=False)
        database = Database(Settings(database_url=shown).replace(**settings))
        stack.callback(database.close)
        Schema(database.settings).upgrade()
        _empty(database)
        yield database


@cache
def _embedded() -> EmbeddedPostgres | GivenPostgres:
    """Return the server, which runs until the last process that uses it has ended."""
    return shared_server("kit", durable=False).start()


def _checked(address: sa.URL) -> sa.URL:
    """Return the address. Raise ConfigurationError unless its name says that it is for tests."""
    name = PurePath(address.database or "").name
    if WORD not in name.lower():
        raise ConfigurationError(
            f"{hide_password(str(address))}: a disposable database is emptied before each test, "
            f"and its name {name!r} does not have {WORD!r} in it; name it {name or 'shop'}_{WORD}"
        )
    return address


def _of_this_process(address: sa.URL) -> sa.URL:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if not worker:
        return address
    path = PurePath(address.database or "")
    return address.set(database=str(path.with_stem(f"{path.stem}_{worker}")))


def _create_database(address: sa.URL) -> None:
    """Create the database unless it exists. Race: another process may do so at the same time."""
    engine = sa.create_engine(address.set(database="postgres"), poolclass=sa.NullPool)
    wanted = sa.text("SELECT 1 FROM pg_catalog.pg_database WHERE datname = :name")
    name = engine.dialect.identifier_preparer.quote(address.database or "")
    try:
        with engine.connect().execution_options(
            isolation_level="AUTOCOMMIT"
        ) as server:
            if server.scalar(wanted, {"name": address.database}) is None:
                server.exec_driver_sql(f"CREATE DATABASE {name}".replace("%", "%%"))
    except sa.exc.ProgrammingError as error:
        if "already exists" not in str(error):
            raise ConfigurationError(
                f"{hide_password(str(address))}: the database does not exist and cannot be "
                f"created: {error.orig}; run: createdb {address.database}"
            ) from error
    except sa.exc.OperationalError:
        return  # no database postgres, or no right to it: the address itself is tried next
    finally:
        engine.dispose()


def _empty(database: Database) -> None:
    """Delete all rows but those about the tables themselves. Raise ConfigurationError for a
    database with live workers.
    """
    settings = database.settings
    if live := count_live_workers(settings):
        raise ConfigurationError(
            f"{hide_password(str(settings.database_url))} has {live} live workers, so it is not "
            "emptied; stop them, or give the tests their own database"
        )
    names = tables(settings.table_prefix, settings.schema)
    emptied = [
        table for table in names.metadata.tables.values() if table is not names.meta
    ]
    if database.dialect_name == "postgresql":
        with database.main.begin() as connection:
            quoted = ", ".join(
                connection.dialect.identifier_preparer.format_table(table)
                for table in emptied
            )
            connection.exec_driver_sql(f"TRUNCATE {quoted}".replace("%", "%%"))
    else:
        Schema(settings).downgrade()
        Schema(settings).upgrade()
    accept_rows(database)
