"""What the core asks the lodger for MariaDB and MySQL about callers' connections and errors."""

from __future__ import annotations

from typing import Protocol

import sqlalchemy as sa

from slotwise.model.plugged_in import plugged_in
from slotwise.settings.settings import Settings
from slotwise.store.connect.dsn import MYSQL


class MySQLCallers(Protocol):
    """The module of the lodger that knows the drivers."""

    def executor(self, driver: object) -> sa.Connection:
        """Return SQLAlchemy's connection over one of PyMySQL or mysqlclient."""

    def is_in_transaction(self, driver: object) -> bool:
        """Whether a transaction is open on a driver's connection."""

    def is_without_transaction(self, driver: object) -> bool:
        """Whether the driver is in no transaction after a statement."""

    def code_of(self, number: int) -> str | None:
        """Return PostgreSQL's code of an error."""

    def left_by(self, number: int) -> str | None:
        """Return what an error leaves of a caller's transaction, if that is special."""

    def refuse(self, connection: object, settings: Settings, where: str) -> None:
        """Raise ConfigurationError for a connection on which a fence would misfire."""


def mysql_callers() -> MySQLCallers:
    found: MySQLCallers = plugged_in("slotwise.callers", MYSQL)
    return found


def is_mysql(dialect: sa.Dialect) -> bool:
    """Whether a dialect is SQLAlchemy's for MariaDB or MySQL."""
    return dialect.name in (MYSQL, "mariadb")


def is_of_mysql(driver: object) -> bool:
    """Whether this is a connection of PyMySQL or mysqlclient."""
    return type(driver).__module__.partition(".")[0] in ("pymysql", "MySQLdb")
