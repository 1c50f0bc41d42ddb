"""One data directory of PostgreSQL: made, started, stopped. `server` decides which process does so
when.
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from slotwise.embedded.binaries import Account, Binaries
from slotwise.embedded.postmaster import Postmaster
from slotwise.errors import DatabaseUnreachable

StopMode = Literal["fast", "immediate"]

DURABLE = {"max_connections": "200", "timezone": "UTC", "log_timezone": "UTC"}
# Loses data with the machine, never with the process: synchronous_commit=off would, and gains
# nothing beside these.
FLEETING = DURABLE | {"fsync": "off", "full_page_writes": "off"}
ONLY_LOOPBACK = {"listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
PATIENCE = "120"  # seconds pg_ctl waits: recovery after a crash takes its time
ATTEMPTS = 20
RECLAIMS = 5
PAUSE = 0.2  # seconds
PASSING = (
    "in use",
    "already exists",
    "TCP/IP sockets",
)  # PostgreSQL's messages about temporary obstacles


class Cluster:
    """A home with data, log, port and password. It takes no lock: the caller holds one."""

    def __init__(
        self,
        home: Path,
        binaries: Binaries,
        account: Account,
        settings: Mapping[str, str],
        *,
        sync: bool,
    ) -> None:
        """Change nothing yet. With `sync=False`, initdb does not flush to disk."""
        self.home = home
        self.data = home / "data"
        self.log = home / "log"
        self._binaries = binaries
        self._account = account
        self._settings = settings
        self._sync = sync
        self._postmaster = Postmaster(self.data)

    @property
    def port(self) -> int:
        """The port on which it listens, or did last."""
        return int((self.home / "port").read_text())

    @property
    def password(self) -> str:
        """The superuser's password; only our account and the server's may read it."""
        return (self.home / "password").read_text().strip()

    def ensure_running(self) -> None:
        """Make and start it where it does not run, also after a crash. Raises
        DatabaseUnreachable.
        """
        if not self.data.exists():
            self._make()
        if not self._postmaster.is_ready(float(PATIENCE)):
            self._start()

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop it if it runs: `fast` with a checkpoint, `immediate` like a crash."""
        if self._postmaster.is_alive():
            self._pg_ctl("stop", "-m", mode)

    def _make(self) -> None:
        """Run initdb under a temporary name, so that an interrupted one is never taken for a
        database.
        """
        draft = self.home / "data.new"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        self._account.own(draft, 0o700)
        password = self._write("password", secrets.token_urlsafe(18))
        self._write("log", "")
        options = [
            "--username=postgres",
            "--encoding=UTF8",
            "--locale=C",
            "--no-instructions",
        ]
        options += [
            "--auth=scram-sha-256",
            f"--pwfile={password}",
            *self._cheap_passwords(),
        ]
        made = self._account.run(
            [
                self._binaries.program("initdb"),
                "-D",
                draft,
                *options,
                *([] if self._sync else ["--no-sync"]),
            ]
        )
        if made.returncode:
            why = (made.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise DatabaseUnreachable(
                f"{self.home}: initdb failed as user {self._account.name}: {why}"
            )
        draft.rename(self.data)

    def _cheap_passwords(self) -> list[str]:
        # A random password needs no stretching; without it a connection takes 1.7 ms, not 4.0
        # (measured).
        return ["--set=scram_iterations=1"] if self._binaries.major >= 16 else []

    def _start(self) -> None:
        """Start it, in several attempts: the port may be taken, and orphans of a killed server
        need time to end.
        """
        for _ in range(ATTEMPTS):
            self._postmaster.forget_dead()
            port = self._choose_port()
            self._write("port", str(port))
            logged = self.log.stat().st_size
            if self._pg_ctl("start", "-l", self.log, "-o", self._options(port)):
                return
            last_words = self._last_words(logged)
            if not any(sign in last_words for sign in PASSING):
                break
            time.sleep(PAUSE)
        raise DatabaseUnreachable(
            f"{self.data}: PostgreSQL does not start: {last_words}; see {self.log}"
        )

    def _options(self, port: int) -> str:
        settings = {**self._settings, **ONLY_LOOPBACK, "port": str(port)}
        return " ".join(
            f"-c {shlex.quote(f'{name}={value}')}" for name, value in settings.items()
        )

    def _choose_port(self) -> int:
        """Return the last port, so that DSNs stay valid after a crash; another one if it is
        taken.
        """
        for _ in range(RECLAIMS if (self.home / "port").exists() else 0):
            with contextlib.suppress(OSError, ValueError):
                return _free_port(self.port)
            time.sleep(PAUSE)  # a killed server is gone a moment before its port is
        return _free_port(0)

    def _pg_ctl(self, action: str, *options: str | Path) -> bool:
        command = [
            self._binaries.program("pg_ctl"),
            "-D",
            self.data,
            "-w",
            "-t",
            PATIENCE,
            *options,
            action,
        ]
        return self._account.run(command, silent=True).returncode == 0

    def _last_words(self, logged: int) -> str:
        lines = self.log.read_bytes()[logged:].decode(errors="replace").splitlines()
        return next(
            (line for line in reversed(lines) if "FATAL" in line),
            lines[-1] if lines else "no message",
        )

    def _write(self, name: str, text: str) -> Path:
        path = self.home / name
        path.touch(0o600)
        self._account.own(path, 0o600)
        path.write_text(text)
        return path


def _free_port(wanted: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as PostgreSQL does
        probe.bind(("127.0.0.1", wanted))
        return int(probe.getsockname()[1])
