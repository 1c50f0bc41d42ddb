"""The registry of lock keys: which service owns which keys."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeGuard

from slotwise.errors import ConfigurationError

#: The keys of a service that names no size of its own.
DEFAULT_SIZE: Final = 50
#: The largest key of ``pg_try_advisory_lock(bigint)``.
LARGEST_KEY: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class KeyRange:
    """The keys of a service; ``end`` is the last one."""

    start: int
    end: int
    service: str

    def __contains__(self, key: int) -> bool:
        return self.start <= key <= self.end

    def __str__(self) -> str:
        return f"{self.start}–{self.end}"


class LockKeys:
    """A registry of lock keys: ranges by service."""

    def __init__(self, ranges: Collection[KeyRange]) -> None:
        #: In the order of their keys.
        self.ranges = tuple(sorted(ranges))
        self._by_service = {one.service: one for one in self.ranges}

    def of(self, service: str) -> KeyRange:
        """Return the range of a service. Raise ConfigurationError for one that has none, with the next free start."""
        if service in self._by_service:
            return self._by_service[service]
        near = get_close_matches(service, self._by_service, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        free = max((one.end for one in self.ranges), default=0) + 1
        raise ConfigurationError(f"{service} has no lock keys; {hint}a new service may start at {free}")

    def owner(self, key: int) -> KeyRange | None:
        """Return the first range that has the key."""
        return next((one for one in self.ranges if key in one), None)

    def collisions(self) -> Iterator[str]:
        """Yield a line for each pair of services that have keys in common."""
        for place, one in enumerate(self.ranges):
            for other in self.ranges[place + 1 :]:
                if other.start > one.end:
                    break
                common = KeyRange(start=other.start, end=min(one.end, other.end), service="")
                yield (
                    f"{one.service} ({one}) collides with {other.service} ({other}): "
                    f"both have {common}; shrink or move one of them"
                )

    def gaps(self) -> Iterator[KeyRange]:
        """Yield the keys between services that none of them has."""
        reached = 0
        for one, other in pairwise((KeyRange(start=0, end=0, service=""), *self.ranges)):
            reached = max(reached, one.end)
            if other.start > reached + 1:
                yield KeyRange(start=reached + 1, end=other.start - 1, service="")

    def next(self, service: str, used: Collection[int]) -> int:
        """Return the lowest key of a service that is not used and that no other service has.

        Raise ConfigurationError if there is none.
        """
        mine = self.of(service)
        others = [one for one in self.ranges if one is not mine]
        for key in range(mine.start, mine.end + 1):
            if key not in used and not any(key in other for other in others):
                return key
        raise ConfigurationError(f"{service} has used all its keys, {mine}; give it a larger size or another start")


def read_lock_keys(path: str | Path) -> LockKeys:
    """Read a registry file; collisions are no error here. Raise ConfigurationError with every line that is wrong.

    The file is TOML: ``size = 50``, and under ``[services]`` for each name its first key, or a table with ``start`` and
    ``size``.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; name the file with the registry of lock keys") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from None
    problems: list[str] = [
        f"{name}: unknown; write size and [services]" for name in content.keys() - {"size", "services"}
    ]
    size = content.get("size", DEFAULT_SIZE)
    if not _is_count(size):
        problems.append(f"size = {size!r}: not a number of keys; write e.g. size = {DEFAULT_SIZE}")
    services = content.get("services", {})
    if not isinstance(services, Mapping):
        problems.append("services: not a table; write [services]")
        services = {}
    ranges = [
        found
        for service, value in services.items()
        if (found := _range(service, value, size if _is_count(size) else DEFAULT_SIZE, problems)) is not None
    ]
    if problems:
        raise ConfigurationError("\n".join(f"{path}: {problem}" for problem in problems))
    return LockKeys(ranges)


def _range(service: str, value: object, size: int, problems: list[str]) -> KeyRange | None:
    table = value if isinstance(value, Mapping) else {"start": value}
    start, own_size = table.get("start"), table.get("size", size)
    if unknown := sorted(table.keys() - {"start", "size"}):
        problems.append(f"services.{service}.{unknown[0]}: unknown; write start and size")
    elif not _is_count(start):
        problems.append(f"services.{service}: start {start!r} is not a key; write a whole number from 1")
    elif not _is_count(own_size):
        problems.append(f"services.{service}: size {own_size!r} is not a number of keys; write a whole number from 1")
    elif start + own_size - 1 > LARGEST_KEY:
        problems.append(f"services.{service}: its last key is above {LARGEST_KEY}, the largest of PostgreSQL")
    else:
        return KeyRange(start=start, end=start + own_size - 1, service=service)
    return None


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST_KEY
