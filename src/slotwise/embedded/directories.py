"""Directories of embedded servers, and locks between the processes that use them."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from slotwise.errors import DatabaseUnreachable


def make_directory(path: Path) -> None:
    """Make a directory and its missing parents, closed to other accounts whatever the umask is.

    As root, the server's account can pass through. Permissions of existing directories do not
    change.
    """
    missing = [place for place in (path, *path.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(exist_ok=True)
        place.chmod(0o755 if os.geteuid() == 0 else 0o700)


def remove_directory(path: Path) -> None:
    """Remove an unused directory. It is renamed first, so that no process makes a new one
    inside it.
    """
    ruins = path.with_name(f"{path.name}.gone-{os.getpid()}")
    path.rename(ruins)
    shutil.rmtree(ruins, ignore_errors=True)


def state_directory() -> Path:
    """Return /var/lib/slotwise for root, else a directory below XDG_STATE_HOME or ~/.local/state,
    or at last /tmp.
    """
    places = list(_places())
    for place in places:
        try:
            make_directory(place)
        except OSError:
            continue
        if os.access(place, os.W_OK) and place.stat().st_uid == os.geteuid():
            return place
    tried = ", ".join(str(place) for place in places)
    raise DatabaseUnreachable(
        f"no directory for PostgreSQL's data, tried {tried}; set XDG_STATE_HOME"
    )


def _places() -> Iterator[Path]:
    if os.geteuid() == 0:
        yield Path("/var/lib/slotwise")
    else:
        yield Path(
            os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser(),
            "slotwise",
        )
    yield Path(tempfile.gettempdir(), f"slotwise-{os.geteuid()}")


class FileLock:
    """flock on a file, dropped by the kernel when its holder dies. As a context manager it is
    exclusive.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, or make it; take no lock yet."""
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def share(self) -> None:
        """Take the shared lock; wait while another process has the exclusive one."""
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def exclude(self) -> None:
        """Take the exclusive lock; wait for all other holders."""
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def try_exclude(self) -> bool:
        """Take the exclusive lock if there is no other holder. A failure may lose our shared
        lock.
        """
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_current(self) -> bool:
        """Return whether the path still names the locked file; false if it was removed
        meanwhile.
        """
        try:
            return os.path.samestat(os.fstat(self._file), self.path.stat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Release the lock and close the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        self.exclude()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
