"""What processes cost: CPU time and memory, as the kernel counts them (Linux; elsewhere nothing is known)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """CPU seconds, user and system; ``reaped`` are those of children that have ended."""

    parent: int
    own: float
    reaped: float


def usage_of(pid: int) -> Usage | None:
    """What getrusage says inside that process; None where there is no /proc, or no such process."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    tick = os.sysconf("SC_CLK_TCK")
    user, system, reaped_user, reaped_system = (int(field) / tick for field in fields[11:15])
    return Usage(parent=int(fields[1]), own=user + system, reaped=reaped_user + reaped_system)


def cpu_of(pids: Iterator[int] | list[int]) -> float | None:
    """CPU seconds of these processes together; None if one of them cannot be asked."""
    found = [usage_of(pid) for pid in pids]
    return None if not found or None in found else sum(one.own for one in found if one)


def cpu_of_family(head: int) -> float | None:
    """CPU seconds of a process, its living children, and those that have ended: none is lost between two looks."""
    top = usage_of(head)
    if top is None:
        return None
    children = (usage_of(int(path.name)) for path in _PROC.iterdir() if path.name.isdigit())
    return top.own + top.reaped + sum(one.own for one in children if one and one.parent == head)


def memory_of(pid: int, peak: bool = False) -> float | None:
    """Resident memory in MiB, now or at its highest."""
    with suppress(OSError):
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == ("VmHWM" if peak else "VmRSS"):
                return int(value.split()[0]) * 1024 / _MIB
    return None
