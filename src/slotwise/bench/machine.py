"""Where and with what a run was made: the block that stands above its results."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from slotwise.bench.server import Server
from slotwise.clock import elapsed
from slotwise.identity import own_version

_PACKAGES = ("psycopg", "SQLAlchemy")
_WRITES = 100


def describe(server: Server, peers: Mapping[str, str]) -> dict[str, str]:
    """Machine, versions, PostgreSQL's settings, and how busy the machine was."""
    found = {
        "date": datetime.now(UTC).isoformat(" ", "minutes").removesuffix("+00:00") + " UTC",
        "cpu": f"{os.cpu_count()} × {_processor()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "slotwise": own_version(),
        **{name: _installed(name) for name in _PACKAGES},
        **peers,
        "postgresql": server.facts["server_version"],
        "server": "on another host, or unknown" if server.cpu() is None else "on this host, over loopback",
        **{name: value for name, value in server.facts.items() if name != "server_version"},
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
    """What a commit cannot be faster than: the median of writing 8 KiB and flushing them, in seconds."""
    flush = getattr(os, "fdatasync", os.fsync)
    path, block, spans = folder / "flush-test", b"\0" * 8192, []
    with path.open("wb", buffering=0) as file:
        for _ in range(_WRITES):
            began = elapsed()
            file.write(block)
            flush(file.fileno())
            spans.append(elapsed() - began)
    path.unlink()
    return median(spans)
