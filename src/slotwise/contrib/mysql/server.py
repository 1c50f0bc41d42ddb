"""What a server of MariaDB or MySQL says about itself, and which ones are refused at the start."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from slotwise import DatabaseProblem, Settings
from slotwise.spi import tables

OLDEST_MARIADB = (10, 6)
OLDEST_MYSQL = (8, 4)
#: How often a row is written and then read, to meet a proxy that sends reads elsewhere.
PROBES = 20

_ENGINES = sa.text(
    "SELECT table_name, engine FROM information_schema.tables "
    "WHERE table_schema = coalesce(:schema, database()) AND table_name IN :names "
    "AND engine <> 'InnoDB' ORDER BY table_name"
).bindparams(sa.bindparam("names", expanding=True))
_WHO = "SELECT @@server_id, @@read_only"

#: Executes a statement, and returns the first row of its answer.
Ask = Callable[[str], "Sequence[object] | None"]

_VARIABLES = (
    "SHOW VARIABLES WHERE Variable_name IN ('version', 'version_comment', 'log_bin', "
    "'binlog_format', 'default_storage_engine')"
)


#: No such table yet, and what this account may not do.
_NO_RIGHTS = (1142, 1143, 1146)


class Switchable(Protocol):
    """A driver's connection."""

    def autocommit(self, value: bool) -> None: ...


class Server(NamedTuple):
    """The product and its version."""

    is_mariadb: bool
    version: tuple[int, ...]

    @property
    def title(self) -> str:
        product = "MariaDB" if self.is_mariadb else "MySQL"
        return f"{product} {'.'.join(map(str, self.version))}"

    @property
    def collation(self) -> str:
        """The collation that compares code points, and keeps blanks at the end apart."""
        return "utf8mb4_nopad_bin" if self.is_mariadb else "utf8mb4_0900_bin"


def server_of(version: str) -> Server:
    """Read the version that a server reports, as ``5.5.5-10.11.14-MariaDB-0+deb12u2``."""
    is_mariadb = "mariadb" in version.lower()
    if is_mariadb:
        version = version.removeprefix("5.5.5-")
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    parts = numbers[0].split(".") if numbers else []
    return Server(is_mariadb, tuple(map(int, parts)))


def refuse_unsuitable(connection: Connection, settings: Settings) -> None:
    """Raise DatabaseProblem, in one line with the cure, for a server that loses races or data."""
    found = variables(connection, _VARIABLES)
    server = server_of(found["version"])
    _refuse_old(server)
    if found.get("log_bin") == "ON" and found["binlog_format"] == "STATEMENT":
        raise DatabaseProblem(
            "the server logs statements (binlog_format = STATEMENT), which READ COMMITTED "
            "does not allow; set binlog_format = ROW"
        )
    if found["default_storage_engine"].lower() in ("myisam", "aria", "memory"):
        raise DatabaseProblem(
            f"the default storage engine is {found['default_storage_engine']}, which has no "
            "transactions; set default_storage_engine = InnoDB"
        )
    ours = tables(settings.table_prefix, settings.schema, "mysql")
    names = [table.name for table in ours.metadata.sorted_tables]
    given = {"names": names, "schema": settings.schema}
    wrong = connection.execute(_ENGINES, given).first()
    if wrong is not None:
        name, engine = wrong
        raise DatabaseProblem(
            f"the table {name} is in the engine {engine}, which has no transactions; run: "
            f"ALTER TABLE {name} ENGINE = InnoDB"
        )


def refuse_splitting(connection: Connection, settings: Settings) -> None:
    """Raise DatabaseProblem if a proxy sends reads elsewhere than writes, outside a transaction.
    Where this account may not write the table, nothing is asked.
    """
    receipts = tables(settings.table_prefix, settings.schema, "mysql").receipts
    quoted = connection.dialect.identifier_preparer.format_table(receipts)
    connection.rollback()
    driver: Switchable = connection.connection.driver_connection  # type: ignore[assignment]
    cursor = connection.connection.cursor()

    def ask(statement: str) -> Sequence[object] | None:
        cursor.execute(statement)
        found: Sequence[object] | None = cursor.fetchone()
        return found

    driver.autocommit(True)
    try:
        probe(ask, quoted)
    except connection.dialect.loaded_dbapi.Error as error:
        if _number(error) not in _NO_RIGHTS:
            raise DBAPIError.instance(
                None, None, error, connection.dialect.loaded_dbapi.Error
            ) from error
    finally:
        cursor.close()
        driver.autocommit(False)


def probe(ask: Ask, receipts: str) -> None:
    """Write a row, and read it and who answers, some times."""
    first = ask(_WHO)
    for _ in range(PROBES):
        name = uuid4().hex
        ask(
            f"INSERT INTO {receipts} VALUES "
            f"('{name}', NULL, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))"
        )
        found = ask(f"SELECT receipt FROM {receipts} WHERE receipt = '{name}'")
        who = ask(_WHO)
        ask(f"DELETE FROM {receipts} WHERE receipt = '{name}'")
        if found is None or who != first:
            raise DatabaseProblem(
                "a proxy sends the reads of one connection to another server than its writes; "
                "switch that off for slotwise's account, or connect to the primary itself"
            )


def _number(error: Exception) -> object:
    """Return the server's number of an error of the driver."""
    return error.args[0] if error.args else None


def _refuse_old(server: Server) -> None:
    oldest = OLDEST_MARIADB if server.is_mariadb else OLDEST_MYSQL
    if server.version < oldest:
        needed = ".".join(map(str, oldest))
        raise DatabaseProblem(
            f"{server.title} is too old, slotwise needs {needed}, because claims skip locked "
            "rows; upgrade the server"
        )


def variables(connection: Connection, statement: str) -> Mapping[str, str]:
    """Return the variables that a SHOW statement lists."""
    rows = connection.exec_driver_sql(statement).all()
    return {str(name): str(value) for name, value in rows}
