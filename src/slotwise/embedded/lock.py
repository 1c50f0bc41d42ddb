"""A lock between processes that the kernel drops when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self


class FileLock:
    """flock on a file. As a context manager it is exclusive."""

    def __init__(self, path: Path) -> None:
        """Opens the file, making it if need be; takes no lock yet."""
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def share(self) -> None:
        """Hold it together with others; waits while somebody holds it alone."""
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def exclude(self) -> None:
        """Hold it alone; waits for everybody else."""
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def try_exclude(self) -> bool:
        """Hold it alone, if nobody else holds it at all. A refusal may cost the share that we had."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_current(self) -> bool:
        """Whether the path still leads to the file we locked; false if it was removed meanwhile."""
        try:
            return os.path.samestat(os.fstat(self._file), self.path.stat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Let go of it."""
        os.close(self._file)

    def __enter__(self) -> Self:
        self.exclude()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
