"""The server process of a data directory, and the keeper that stops it once its last user is gone.

The keeper is a process of its own, since the last user may have been killed. It leaves the session
of the process that started it, sleeps in flock until no process shares `use.lock`, stops the
server and ends. It only waits, and so takes a few megabytes: this file is started by path and
replaces slotwise's packages by empty ones, since their import would load SQLAlchemy and the
engine. What it imports needs the standard library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

PAUSE = 0.05


class Postmaster:
    """Reads postmaster.pid, and trusts it only if the kernel confirms that this process serves the
    directory.
    """

    def __init__(self, data: Path) -> None:
        """Change nothing."""
        self._data = data
        self._file = data / "postmaster.pid"

    def is_alive(self) -> bool:
        """Return whether a server runs here.

        The command line of a zombie is empty; that of another process with the pid of a dead
        server names another directory.
        """
        lines = self._lines()
        return bool(lines) and os.fsencode(self._data) in _command_line(int(lines[0]))

    def is_ready(self, patience: float) -> bool:
        """Return whether it accepts connections; wait up to `patience` seconds for a server that
        is starting.
        """
        deadline = time.monotonic() + patience
        while self.is_alive() and time.monotonic() < deadline:
            if self._lines()[7:8] == ["ready"]:
                return True
            time.sleep(PAUSE)
        return False

    def forget_dead(self) -> None:
        """Remove a postmaster.pid that names a zombie or another process: PostgreSQL would take it
        for a server.

        Not while a process is attached to the dead server's shared memory: it may still write.
        """
        lines = self._lines()
        if (
            lines
            and not self.is_alive()
            and _exists(int(lines[0]))
            and not _attached(lines[6:7])
        ):
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
    shown = subprocess.run(
        ["ps", "-ww", "-o", "command=", "-p", str(pid)],
        capture_output=True,
        check=False,
    )
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
        rows = [
            row.split() for row in Path("/proc/sysvipc/shm").read_text().splitlines()
        ]
    except OSError:
        return False
    segment = shared_memory[0].split()[-1:] if shared_memory else []
    return any(row[1:2] == segment and int(row[6]) > 0 for row in rows if segment)


# -- the keeper -----------------------------------------------------------------------------------


def keep(home: Path, pg_ctl: str, uid: str, gid: str, lifetime: str) -> None:
    """Become the only keeper of this home, or end at once.

    `uid` and `gid` are those of the server's account, or `-` for our own; a `temporary` home goes
    with its server.
    """
    from slotwise.embedded.directories import FileLock, remove_directory

    keeper = FileLock(home / "keeper.lock")
    if not keeper.try_exclude():
        return
    use = FileLock(home / "use.lock")
    # the locks go with the child; the process that started us need neither wait for it nor reap it
    if os.fork():
        os._exit(0)
    os.setsid()
    use.exclude()
    if use.is_current():
        _stop(home, pg_ctl, [] if uid == "-" else [int(uid), int(gid)])
        if lifetime == "temporary":
            remove_directory(home)
    keeper.close()  # before `use`: the next user must see that it needs a new keeper


def _stop(home: Path, pg_ctl: str, switch: list[int]) -> None:
    """Stop the server if it is one: pg_ctl would signal any process that has the pid of a dead
    server.
    """
    if Postmaster(home / "data").is_alive():
        subprocess.run(
            [pg_ctl, "-D", home / "data", "-w", "-m", "fast", "stop"],
            user=switch[0] if switch else None,
            group=switch[1] if switch else None,
            extra_groups=[] if switch else None,
            cwd="/",
            check=False,
        )


def main() -> None:
    """Call `keep` with the program's arguments."""
    here = Path(__file__).parent
    for name, folder in (("slotwise", here.parent), ("slotwise.embedded", here)):
        package = sys.modules[name] = ModuleType(name)
        package.__path__ = [str(folder)]
    keep(Path(sys.argv[1]), *sys.argv[2:])


if __name__ == "__main__":
    main()
