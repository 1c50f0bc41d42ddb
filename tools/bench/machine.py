"""The machine: what it is, how busy it was, and what CPU time and memory processes took."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools.bench.server import Server

_PACKAGES = ("psycopg", "SQLAlchemy")
_WRITES = 100


def describe(server: Server, peers: Mapping[str, str]) -> dict[str, str]:
    """Return the machine, versions, PostgreSQL's settings, and the load of the machine. ``peers``
    are further lines.
    """
    found = {
        "date": datetime.now(UTC).isoformat(" ", "minutes").removesuffix("+00:00")
        + " UTC",
        "cpu": f"{os.cpu_count()} × {_processor()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "slotwise": version("slotwise"),
        **{name: _installed(name) for name in _PACKAGES},
        **peers,
        "postgresql": server.facts["server_version"],
        "server": "on another host, or unknown"
        if server.cpu() is None
        else "on this host, over loopback",
        **{
            name: value
            for name, value in server.facts.items()
            if name != "server_version"
        },
    }
    if server.home is not None:
        found["fdatasync"] = f"{_flush_time(server.home) * 1e3:.2f} ms"
    return found


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "?"


def _flush_time(folder: Path) -> float:
    """Return the median time, in seconds, to write and flush 8 KiB: no commit is faster."""
    flush = getattr(os, "fdatasync", os.fsync)
    path = folder / "flush-test"
    block = b"\0" * 8192
    spans = []
    with path.open("wb", buffering=0) as file:
        for _ in range(_WRITES):
            began = perf_counter()
            file.write(block)
            flush(file.fileno())
            spans.append(perf_counter() - began)
    path.unlink()
    return median(spans)


# -- what processes cost --------------------------------------------------------------------------


_PROC = Path("/proc")
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """CPU seconds, user and system; ``reaped`` are those of children that have ended."""

    parent: int
    own: float
    reaped: float


def usage_of(pid: int) -> Usage | None:
    """Return what getrusage would return in that process; None without /proc, or without that
    process.
    """
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    tick = os.sysconf("SC_CLK_TCK")
    user, system, reaped_user, reaped_system = (
        int(field) / tick for field in fields[11:15]
    )
    return Usage(
        parent=int(fields[1]), own=user + system, reaped=reaped_user + reaped_system
    )


def cpu_of(pids: Iterator[int] | list[int]) -> float | None:
    """Return the CPU seconds of these processes together; None if one of them is unknown."""
    found = [usage_of(pid) for pid in pids]
    return None if not found or None in found else sum(one.own for one in found if one)


def cpu_of_family(head: int) -> float | None:
    """Return the CPU seconds of a process and its children, also of those that have ended."""
    top = usage_of(head)
    if top is None:
        return None
    children = (
        usage_of(int(path.name)) for path in _PROC.iterdir() if path.name.isdigit()
    )
    return (
        top.own
        + top.reaped
        + sum(one.own for one in children if one and one.parent == head)
    )


def memory_of(pid: int, peak: bool = False) -> float | None:
    """Return the resident memory in MiB, now or at its peak."""
    with suppress(OSError):
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == ("VmHWM" if peak else "VmRSS"):
                return int(value.split()[0]) * 1024 / _MIB
    return None
