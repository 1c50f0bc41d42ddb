"""The server process of a data directory, from its postmaster.pid, confirmed by the kernel."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

PAUSE = 0.05


class Postmaster:
    """Reads postmaster.pid, and trusts it only if that process really serves this directory."""

    def __init__(self, data: Path) -> None:
        """Change nothing."""
        self._data = data
        self._file = data / "postmaster.pid"

    def is_alive(self) -> bool:
        """Return whether a server runs here.

        The command line of a zombie is empty; that of another process with the pid of a dead server names another
        directory.
        """
        lines = self._lines()
        return bool(lines) and os.fsencode(self._data) in _command_line(int(lines[0]))

    def is_ready(self, patience: float) -> bool:
        """Return whether it accepts connections; wait up to `patience` seconds for a server that is starting."""
        deadline = time.monotonic() + patience
        while self.is_alive() and time.monotonic() < deadline:
            if self._lines()[7:8] == ["ready"]:
                return True
            time.sleep(PAUSE)
        return False

    def forget_dead(self) -> None:
        """Remove a postmaster.pid that names a zombie or another process: PostgreSQL would take it for a server.

        Not while a process is attached to the dead server's shared memory: it may still write.
        """
        lines = self._lines()
        if lines and not self.is_alive() and _exists(int(lines[0])) and not _attached(lines[6:7]):
            self._file.unlink(missing_ok=True)

    def _lines(self) -> list[str]:
        try:
            lines = [line.strip() for line in self._file.read_text().splitlines()]
        except FileNotFoundError:
            return []
        return lines if lines and lines[0].isdigit() else []


def _command_line(pid: int) -> bytes:
    if Path("/proc/self").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return b""
    shown = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, check=False)
    return shown.stdout


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _attached(shared_memory: list[str]) -> bool:
    """Return whether the segment (`key id`) has users; false where the system is not Linux."""
    try:
        rows = [row.split() for row in Path("/proc/sysvipc/shm").read_text().splitlines()]
    except OSError:
        return False
    segment = shared_memory[0].split()[-1:] if shared_memory else []
    return any(row[1:2] == segment and int(row[6]) > 0 for row in rows if segment)
