"""The identity of a worker: host, pid and a boot id, in one string for ``picked_by``; and its
release.
"""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

_LONGEST_HOST = 40


@dataclass(frozen=True, slots=True)
class Identity:
    """The name of a process in the cluster. Each start has a new boot id, even under a reused
    pid.
    """

    host: str
    pid: int
    boot_id: str

    @classmethod
    def new(cls, name: str | None = None) -> Identity:
        host = (name or socket.gethostname() or "unknown")[:_LONGEST_HOST].replace(
            ":", "_"
        )
        return cls(host, os.getpid(), secrets.token_hex(6))

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.boot_id}"


def own_version() -> str:
    """Return the installed version of slotwise."""
    try:
        return version("slotwise")
    except (
        PackageNotFoundError
    ):  # pragma: no cover - a source tree that was never installed
        return "unknown"
