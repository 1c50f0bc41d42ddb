"""What tests of connections share: opening databases with settings, and asking the server about a
connection.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import Connection, Engine, make_url

from slotwise.spi import Database

Open = Callable[..., Database]

#: Short enough for a test to wait for the deadlines that follow from it.
HEARTBEAT = timedelta(milliseconds=200)


def with_query(address: str, **query: str) -> str:
    """The address with some of libpq's options."""
    return (
        make_url(address)
        .update_query_dict(query)
        .render_as_string(hide_password=False)
    )


def show(connection: Connection, name: str) -> str:
    return str(connection.exec_driver_sql(f"SHOW {name}").scalar_one())


def backend(connection: Connection) -> int:
    return int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())


def conninfo(connection: Connection) -> dict[str, str]:
    """What libpq was told."""
    raw = connection.connection.dbapi_connection
    assert raw is not None
    return dict(raw.info.get_parameters())


def engines(database: Database) -> dict[str, Engine]:
    return {"main": database.main, "heart": database.heart}
