"""MariaDB for tests: a server of this test process, and databases with the tables of slotwise that
are emptied after each test.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.databases import _fast_directory, provision
from tests.kit.patience import PATIENCE

if TYPE_CHECKING:
    from pymysql.connections import Connection
    from pymysql.cursors import Cursor

_SERVER = "mariadbd"
#: The server ends with its parent, whose end of the pipe closes when it dies.
_GUARDED = '"$@" & server=$!; read -r _; kill -9 $server; wait $server'


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if found is None:
        if os.environ.get("ALL_TESTS_MUST_RUN"):
            pytest.fail(f"{name} is missing: apt-get install mariadb-server")
        pytest.skip(f"{name} is missing: apt-get install mariadb-server")
    return found


def driver_error() -> type[Exception]:
    """The error of the driver, imported late: only these tests need it."""
    import pymysql

    return pymysql.Error


class MariaDBServer:
    """A private server on the loopback interface, with a user ``root`` without a password."""

    def __init__(
        self, home: Path, options: Sequence[str] = (), *, durable: bool = False
    ) -> None:
        self.home = home
        self.port = _free_port()
        flush = ["--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync"]
        self._options = [*(() if durable else flush), *options]
        self._process: subprocess.Popen[bytes] | None = None
        self._account = "mysql" if os.geteuid() == 0 else None

    def __enter__(self) -> MariaDBServer:
        self.home.mkdir(parents=True, exist_ok=True)
        self.give(self.home)
        self._install()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def pid(self) -> int:
        """The process of the server itself."""
        return int((self.home / "pid").read_text())

    def url(self, database: str) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str | None = None) -> Connection:
        """A connection in autocommit."""
        import pymysql  # late: only these tests need it

        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            database=database,
            autocommit=True,
        )

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        command = [
            *("sh", "-c", _GUARDED, "sh", _program(_SERVER), "--no-defaults"),
            f"--datadir={self.home / 'data'}",
            f"--socket={self.home / 's'}",
            # A server that starts deletes the temporary tables of others there.
            f"--tmpdir={self.home / 'data'}",
            f"--pid-file={self.home / 'pid'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-log-bin",
            "--skip-name-resolve",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=32M",
            "--performance-schema=OFF",
            *self._options,
        ]
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                user=self._account,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill it as a power failure would."""
        if self._process is None:
            return
        with suppress(OSError):
            self._process.communicate()
        self._process = None

    def wait(self) -> None:
        """Wait until it accepts connections."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self.connect().close()
                return
            except driver_error():
                assert self._process is not None
                is_over = self._process.poll() is not None or time.monotonic() > end
                if is_over:
                    raise AssertionError((self.home / "log").read_text()) from None
                time.sleep(0.05)

    def _install(self) -> None:
        data = self.home / "data"
        if data.exists():
            return
        command = [
            *(_program("mariadb-install-db"), "--no-defaults", "--skip-test-db"),
            "--auth-root-authentication-method=normal",
            f"--datadir={data}",
        ]
        subprocess.run(command, check=True, capture_output=True, user=self._account)

    def give(self, path: Path) -> None:
        if self._account is not None:
            shutil.chown(path, self._account, self._account)
        path.chmod(0o755 if path.is_dir() else 0o644)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class MariaDBDatabases:
    """Makes databases, and lends those with tables to one test after the other."""

    def __init__(self, server: MariaDBServer) -> None:
        self._server = server
        self._numbers = itertools.count(1)
        self._idle: list[str] = []
        #: What the tables of a database looked like when they were new.
        self._shapes: dict[str, dict[str, object]] = {}
        self._rows: dict[str, list[tuple[object, ...]]] = {}

    @contextmanager
    def empty(self) -> Iterator[str]:
        """A database with nothing in it."""
        name = self._new()
        try:
            yield self._server.url(name)
        finally:
            self._drop(name)

    @contextmanager
    def provisioned(self) -> Iterator[str]:
        """A database with the tables of slotwise, as after the first upgrade."""
        if self._idle:
            name = self._idle.pop()
        else:
            name = self._new()
            provision(self._server.url(name))
            self._remember(name)
        try:
            yield self._server.url(name)
        finally:
            self._take_back(name)

    def _new(self) -> str:
        name = f"slotwise_{next(self._numbers)}"
        with self._server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        return name

    def _drop(self, name: str) -> None:
        with (
            suppress(driver_error()),
            self._server.connect() as connection,
            connection.cursor() as cursor,
        ):
            _disconnect_others(cursor, name)
            cursor.execute(f"DROP DATABASE IF EXISTS {name}")

    def _remember(self, name: str) -> None:
        with self._server.connect(name) as connection, connection.cursor() as cursor:
            self._shapes[name] = _shape(cursor, name)
            cursor.execute("SELECT * FROM scheduled_meta")
            self._rows[name] = list(cursor.fetchall())

    def _take_back(self, name: str) -> None:
        """Empty its tables; drop it if the test has changed them."""
        try:
            self._empty(name)
        except (driver_error(), AssertionError):
            self._drop(name)
        else:
            self._idle.append(name)

    def _empty(self, name: str) -> None:
        with self._server.connect(name) as connection, connection.cursor() as cursor:
            _disconnect_others(cursor, name)
            known = self._shapes[name]
            found = _shape(cursor, name)
            for table in found.keys() - known.keys():
                cursor.execute(f"DROP TABLE {table}")  # the test's own
            assert {table: found.get(table) for table in known} == known
            for table in sorted(known.keys() - {"scheduled_alembic_version"}):
                cursor.execute(f"DELETE FROM {table}")
            cursor.executemany(
                "INSERT INTO scheduled_meta VALUES (%s, %s)", self._rows[name]
            )
            cursor.execute("ALTER TABLE scheduled_controls AUTO_INCREMENT = 1")
            self._shapes[name] = _shape(cursor, name)


def _shape(cursor: Cursor, name: str) -> dict[str, object]:
    """By the names of its tables, what an ALTER TABLE changes."""
    cursor.execute(
        "SELECT table_name, create_time FROM information_schema.tables "
        "WHERE table_schema = %s ORDER BY table_name",
        (name,),
    )
    return {str(table): created for table, created in cursor.fetchall()}


def _disconnect_others(cursor: Cursor, name: str) -> None:
    """A test may leave connections with locks behind."""
    cursor.execute(
        "SELECT id FROM information_schema.processlist "
        "WHERE db = %s AND id <> connection_id()",
        (name,),
    )
    for (number,) in cursor.fetchall():
        with suppress(driver_error()):
            cursor.execute(f"KILL {number}")


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDBServer]:
    """The server of this test process. Never restart it in a test: start your own."""
    home = Path(tempfile.mkdtemp(dir=_fast_directory(), prefix="slotwise-mariadb-"))
    with MariaDBServer(home) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_databases(mariadb: MariaDBServer) -> MariaDBDatabases:
    return MariaDBDatabases(mariadb)


@pytest.fixture
def mysql_empty_url(mariadb_databases: MariaDBDatabases) -> Iterator[str]:
    """A fresh, empty database of MariaDB."""
    with mariadb_databases.empty() as url:
        yield url


@pytest.fixture
def mysql_url(mariadb_databases: MariaDBDatabases) -> Iterator[str]:
    """A database of MariaDB with the tables of slotwise."""
    with mariadb_databases.provisioned() as url:
        yield url
