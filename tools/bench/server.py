"""The PostgreSQL server of a benchmark: a durable one of its own, or a given one, with databases
that are dropped.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from slotwise.embedded import Binaries, EmbeddedPostgres, GivenPostgres, find_binaries
from slotwise.embedded.directories import state_directory
from tools.bench.machine import cpu_of_family, usage_of

#: For the report: the settings that decide how fast a durable PostgreSQL is.
SETTINGS = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
    "autovacuum_naptime",
)
_GIB = 1 << 30

# Transaction control is counted apart, since each peer has its own way to begin and commit.
_CONTROL = r"^(begin|commit|rollback|set|savepoint|release)\M"
_STATEMENTS = """
SELECT calls, total_exec_time, rows, regexp_replace(query, '\\s+', ' ', 'g')
FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND query !~* %(control)s AND query !~ 'pg_stat_statements|bench:watch'
ORDER BY total_exec_time DESC LIMIT 12"""
_CALLS = """
SELECT coalesce(sum(calls) FILTER (WHERE query !~* %(control)s), 0), coalesce(sum(calls), 0)
FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND query !~ 'pg_stat_statements|bench:watch'"""

_SPENT = """
SELECT coalesce(sum(total_exec_time), 0) FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND query !~ 'pg_stat_statements'"""


class Server:
    """A context manager: it starts the server, and at the end removes everything that was made
    in it.
    """

    def __init__(self, dsn: str | None = None) -> None:
        self._stack = ExitStack()
        self._given = dsn
        self._token = f"slotwise_bench_{secrets.token_hex(3)}"
        #: The databases that it has made.
        self.made: set[str] = set()
        self._head: int | None = None
        self.home: Path | None = None
        self.counts_statements = False

    def __enter__(self) -> Self:
        self._server = self._make()
        self._stack.enter_context(self._server)
        self._stack.callback(self._drop_all)
        with self._connect(self._server.dsn) as connection:
            self._head = _head_of(connection)
            libraries = connection.execute("SHOW shared_preload_libraries").fetchone()
            self.counts_statements = "pg_stat_statements" in str(libraries)
            self.facts = _facts(connection)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _make(self) -> EmbeddedPostgres | GivenPostgres:
        if self._given is not None:
            return GivenPostgres(self._given)
        binaries = find_binaries()
        settings = {
            "shared_buffers": _shared_buffers(),
            "fsync": "on",
            "synchronous_commit": "on",
        }
        if _has_statements(binaries):
            settings["shared_preload_libraries"] = "pg_stat_statements"
        self.home = state_directory() / f"bench-{os.getpid()}"
        return EmbeddedPostgres(
            self.home, binaries=binaries, settings=settings, temporary=True
        )

    # -- databases --------------------------------------------------------------------------------

    @property
    def dsn(self) -> str:
        """The URL of the server; other processes may make databases of their own there."""
        return self._server.dsn

    def url(self, family: str) -> str:
        """Return the URL of the database of one family of contenders; the first call makes it."""
        name = f"{self._token}_{family}"
        if name not in self.made:
            self._execute(f'CREATE DATABASE "{name}"')
            self.made.add(name)
            if self.counts_statements:
                with self._connect(self._server.url(name)) as connection:
                    self.counts_statements = _try(
                        connection, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements"
                    )
        return self._server.url(name)

    @contextmanager
    def connect(self, family: str) -> Iterator[Any]:
        """Open a psycopg connection to it, in autocommit."""
        with self._connect(self.url(family)) as connection:
            yield connection

    def settle(self, family: str) -> None:
        """Vacuum, analyse and make a checkpoint after a fill, so that none of it falls into the
        measurement.
        """
        with self.connect(family) as connection:
            connection.execute("VACUUM (ANALYZE)")
            _try(connection, "CHECKPOINT")

    def _drop_all(self) -> None:
        for name in self.made:
            self._execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _execute(self, statement: str) -> None:
        with self._connect(self._server.dsn) as connection:
            connection.execute(statement)

    def _connect(self, url: str) -> Any:
        return psycopg.connect(url, autocommit=True, application_name="slotwise-bench")

    # -- what it costs ----------------------------------------------------------------------------

    def cpu(self) -> float | None:
        """Return the CPU seconds of all its processes so far; None for a server on another
        host.
        """
        return None if self._head is None else cpu_of_family(self._head)

    def forget_statements(self, family: str) -> None:
        """Start counting statements anew."""
        if self.counts_statements:
            with self.connect(family) as connection:
                connection.execute("SELECT pg_stat_statements_reset()")

    def statements(self, family: str) -> list[dict[str, object]]:
        """Return the statements that took the most time since ``forget_statements``, in
        milliseconds.
        """
        if not self.counts_statements:
            return []
        with self.connect(family) as connection:
            found = connection.execute(_STATEMENTS, {"control": _CONTROL}).fetchall()
        return [
            {
                "calls": row[0],
                "ms": round(row[1], 3),
                "rows": row[2],
                "query": row[3][:160],
            }
            for row in found
        ]

    def calls(self, family: str) -> tuple[int, int] | None:
        """Return how many statements ran since ``forget_statements``: without transaction control,
        and with it.
        """
        if not self.counts_statements:
            return None
        with self.connect(family) as connection:
            without, all_ = connection.execute(
                _CALLS, {"control": _CONTROL}
            ).fetchone()
        return int(without), int(all_)

    def milliseconds(self, family: str) -> float | None:
        """Return the total time of statements since ``forget_statements``, in milliseconds."""
        if not self.counts_statements:
            return None
        with self.connect(family) as connection:
            return float(connection.execute(_SPENT).fetchone()[0])


def _shared_buffers() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return "1GB" if memory >= 8 * _GIB else "128MB"


def _has_statements(binaries: Binaries) -> bool:
    """Return whether pg_stat_statements is installed; a server that cannot load it does not
    start.
    """
    root = binaries.bindir.parent
    folders = [root / "lib", root / "lib" / "postgresql"]
    return any(
        (folder / f"pg_stat_statements.{kind}").exists()
        for folder in folders
        for kind in ("so", "dylib")
    )


def _head_of(connection: Any) -> int | None:
    """Return the pid of the postmaster if the server runs on this host, where its backend is a
    process of that name.
    """
    backend = connection.info.backend_pid
    try:
        name = Path(f"/proc/{backend}/comm").read_text()
    except OSError:
        return None
    found = usage_of(backend)
    return found.parent if found and name.startswith("postgres") else None


def _facts(connection: Any) -> dict[str, str]:
    facts = {"server_version": str(connection.info.parameter_status("server_version"))}
    for name in SETTINGS:
        facts[name] = connection.execute(f"SHOW {name}").fetchone()[0]
    return facts


def _try(connection: Any, statement: str) -> bool:
    """Run a statement that only a superuser may run. Return whether it was allowed."""
    try:
        connection.execute(statement)
    except psycopg.Error:
        return False
    return True
