"""PostgreSQL servers: one that several processes share and that stops with the last of them, and a
given one.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlsplit

from slotwise.embedded.binaries import Binaries, find_binaries, server_account
from slotwise.embedded.cluster import DURABLE, FLEETING, Cluster, StopMode
from slotwise.embedded.directories import (
    FileLock,
    make_directory,
    remove_directory,
    state_directory,
)
from slotwise.errors import DatabaseProblem, DatabaseUnreachable, InvalidSetting


class GivenPostgres:
    """A running server behind a DSN, used like an EmbeddedPostgres, never started nor stopped."""

    def __init__(self, dsn: str) -> None:
        """Take a DSN in URL form. Raises InvalidSetting for any other form."""
        scheme = urlsplit(dsn).scheme.partition("+")[0]
        if scheme not in ("postgres", "postgresql"):
            raise InvalidSetting(
                f"dsn={dsn!r}: expected a URL, postgresql://user@host:port/database"
            )
        self._url = urlsplit(dsn)._replace(scheme="postgresql")

    @property
    def dsn(self) -> str:
        """The DSN that was given, in libpq's spelling."""
        return self._url.geturl()

    def url(self, database: str) -> str:
        """The DSN of another database of this server."""
        return self._url._replace(path=f"/{quote(database, safe='')}").geturl()

    def start(self) -> Self:
        """Do nothing: if it does not run, connecting fails."""
        return self

    def stop(self) -> None:
        """Do nothing: it is not ours."""

    def restart(self, mode: str = "fast") -> None:
        """Raise DatabaseProblem: it is not ours to restart."""
        raise DatabaseProblem(
            f"{self._url.hostname}: cannot restart a server that was given ({mode})"
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


KEEPER = Path(__file__).with_name("postmaster.py")


class EmbeddedPostgres:
    """A server of a directory. The context manager starts or joins it; the last user to leave
    stops it.

    Users hold a shared lock on `use.lock`, which the kernel drops when they die. The process that
    gets the exclusive lock is the last one and stops the server; a keeper process waits for the
    same lock, in case all are killed. Joining, leaving and restarting are serialised by
    `start.lock`. Not for use by several threads at once.
    """

    def __init__(
        self,
        home: Path,
        *,
        binaries: Binaries | None = None,
        durable: bool = True,
        settings: Mapping[str, str] | None = None,
        temporary: bool = False,
    ) -> None:
        """Start nothing yet.

        `home` is made if missing; as root it must be reachable for the user `postgres` (or
        `nobody`). `durable=False` trades safety against power loss for speed. `settings` are
        PostgreSQL's own; those of the process that really starts the server count. `temporary`
        removes the home with the last user. Raises PostgresMissing.
        """
        self._binaries = binaries or find_binaries()
        self._account = server_account()
        self._home = home.absolute().resolve()
        self._temporary = temporary
        self._use: FileLock | None = None
        self._owner = 0
        defaults = DURABLE if durable else FLEETING
        self._cluster = Cluster(
            self._home,
            self._binaries,
            self._account,
            {**defaults, **(settings or {})},
            sync=durable,
        )

    @property
    def dsn(self) -> str:
        """postgresql://postgres:PASSWORD@127.0.0.1:PORT/postgres, as libpq reads it.

        It stays the same after a restart, and after a crash unless another process has taken the
        port.
        """
        return self.url("postgres")

    def url(self, database: str) -> str:
        """The DSN of another database of this server."""
        cluster = self._cluster
        self._require_use()
        server = f"postgres:{cluster.password}@127.0.0.1:{cluster.port}"
        return f"postgresql://{server}/{quote(database, safe='')}"

    @property
    def bindir(self) -> Path:
        """The directory of initdb, postgres, pg_ctl and mostly psql."""
        return self._binaries.bindir

    @property
    def data(self) -> Path:
        """PostgreSQL's data directory."""
        return self._cluster.data

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self._cluster.log

    def start(self) -> Self:
        """Start or join the server; called again, bring back one that crashed. Raises
        DatabaseUnreachable.
        """
        while not self._join():  # Race: the last user removed the home meanwhile
            pass
        return self

    def stop(self) -> None:
        """Leave it; the last user stops the server before this returns. In a forked child, do
        nothing.
        """
        use = self._use
        self._use = None
        if use is None or self._owner != os.getpid():
            return
        if use.is_current():
            with FileLock(self._home / "start.lock"):
                self._leave(use)
        use.close()

    def restart(self, mode: StopMode = "fast") -> None:
        """Restart it for all its users, on the same port; `immediate` is a crash with recovery."""
        self._require_use()
        with FileLock(self._home / "start.lock"):
            self._cluster.stop(mode)
            self._cluster.ensure_running()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _require_use(self) -> None:
        if self._use is None:
            raise DatabaseUnreachable(
                f"{self._home}: this server is not started; use it in a with block"
            )

    def _join(self) -> bool:
        try:
            make_directory(self._home)
            with FileLock(self._home / "start.lock") as start:
                use = self._use or FileLock(self._home / "use.lock")
                use.share()  # waits while a keeper or the last user stops the server
                if start.is_current() and use.is_current():
                    self._use = use
                    self._owner = os.getpid()
                    self._run()
                    return True
        except FileNotFoundError:
            if self._home.exists():
                raise
            return False
        use.close()
        self._use = None
        return False

    def _run(self) -> None:
        try:
            self._cluster.ensure_running()
            self._watch()
        except BaseException:
            self._use, use = None, self._use
            if use is not None:
                use.close()
            raise

    def _leave(self, use: FileLock) -> None:
        if not use.try_exclude():
            # at once beside other users; Race: where the keeper was faster, once it has stopped
            # the server
            use.share()
            return
        self._cluster.stop()
        if self._temporary:
            remove_directory(self._home)

    def _watch(self) -> None:
        """Start a keeper, which ends at once if there is one already.

        Without one (a frozen program has no interpreter) the last user to leave still stops the
        server.
        """
        account = self._account
        switch = (
            (str(account.uid), str(account.gid)) if account.switched else ("-", "-")
        )
        lifetime = "temporary" if self._temporary else "durable"
        pg_ctl = self._binaries.program("pg_ctl")
        with contextlib.suppress(OSError):
            subprocess.run(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    KEEPER,
                    self._home,
                    pg_ctl,
                    *switch,
                    lifetime,
                ],
                cwd="/",
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )


def shared_server(
    name: str,
    *,
    dsn: str | None = None,
    durable: bool = True,
    settings: Mapping[str, str] | None = None,
) -> EmbeddedPostgres | GivenPostgres:
    """Return the server of this name, which all processes of this user share, or the one of `dsn`,
    if given.

    Its data are kept in /var/lib/slotwise/NAME/pgMAJOR (root) or
    $XDG_STATE_HOME/slotwise/NAME/pgMAJOR, which is below ~/.local/state by default. Returned
    unstarted: use it in a `with` block. Raises InvalidSetting, PostgresMissing,
    DatabaseUnreachable.
    """
    if dsn is not None:
        return GivenPostgres(dsn)
    binaries = find_binaries()
    home = state_directory() / name / f"pg{binaries.major}"
    return EmbeddedPostgres(
        home, binaries=binaries, durable=durable, settings=settings
    )
