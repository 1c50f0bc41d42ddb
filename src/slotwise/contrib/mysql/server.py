"""What a server of MariaDB or MySQL says about itself, and which ones are refused at the start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import Connection

from slotwise import DatabaseProblem

OLDEST_MARIADB = (10, 6)
OLDEST_MYSQL = (8, 4)
#: How often a proxy is asked whether it sends reads elsewhere than writes.
PROBES = 20

_VARIABLES = (
    "SHOW VARIABLES WHERE Variable_name IN ('version', 'version_comment', 'log_bin', "
    "'binlog_format', 'default_storage_engine')"
)


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


def refuse_unsuitable(connection: Connection) -> None:
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
