"""Lock keys: which service owns which keys, and where they are used.

Uses are found in text files of any language, and in ``CRON_JOBS``.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeGuard

from slotwise import ConfigurationError
from slotwise.spi import read_document

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
        """Return the range of a service. Raise ConfigurationError for one that has none, with the
        next free start.
        """
        if service in self._by_service:
            return self._by_service[service]
        near = get_close_matches(service, self._by_service, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        free = max((one.end for one in self.ranges), default=0) + 1
        raise ConfigurationError(
            f"{service} has no lock keys; {hint}a new service may start at {free}"
        )

    def owner(self, key: int) -> KeyRange | None:
        """Return the first range that has the key."""
        return next((one for one in self.ranges if key in one), None)

    def collisions(self) -> Iterator[str]:
        """Yield a line for each pair of services that have keys in common."""
        for place, one in enumerate(self.ranges):
            for other in self.ranges[place + 1 :]:
                if other.start > one.end:
                    break
                common = KeyRange(
                    start=other.start, end=min(one.end, other.end), service=""
                )
                yield (
                    f"{one.service} ({one}) collides with {other.service} ({other}): "
                    f"both have {common}; shrink or move one of them"
                )

    def gaps(self) -> Iterator[KeyRange]:
        """Yield the keys between services that none of them has."""
        reached = 0
        for one, other in pairwise(self.ranges):
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
        raise ConfigurationError(
            f"{service} has used all its keys, {mine}; give it a larger size or another start"
        )


def read_lock_keys(path: str | Path) -> LockKeys:
    """Read a registry file; collisions are no error here. Raise ConfigurationError with every line
    that is wrong.

    The file is TOML: ``size = 50``, and under ``[services]`` for each name its first key, or a
    table with ``start`` and ``size``.
    """
    content = read_document(
        Path(path), "registry of lock keys", "name it: --registry FILE"
    )
    if not isinstance(content, Mapping):
        raise ConfigurationError(f"{path}: expected tables; write size and [services]")
    problems: list[str] = [
        f"{name}: unknown; write size and [services]"
        for name in content.keys() - {"size", "services"}
    ]
    size = content.get("size", DEFAULT_SIZE)
    if not _is_count(size):
        problems.append(
            f"size = {size!r}: not a number of keys; write e.g. size = {DEFAULT_SIZE}"
        )
    services = content.get("services", {})
    if not isinstance(services, Mapping):
        problems.append("services: not a table; write [services]")
        services = {}
    ranges = [
        found
        for service, value in services.items()
        if (
            found := _range(
                service, value, size if _is_count(size) else DEFAULT_SIZE, problems
            )
        )
        is not None
    ]
    if problems:
        raise ConfigurationError(
            "\n".join(f"{path}: {problem}" for problem in problems)
        )
    return LockKeys(ranges)


def _range(
    service: str, value: object, size: int, problems: list[str]
) -> KeyRange | None:
    table = value if isinstance(value, Mapping) else {"start": value}
    start = table.get("start")
    own_size = table.get("size", size)
    if unknown := sorted(table.keys() - {"start", "size"}):
        problems.append(
            f"services.{service}.{unknown[0]}: unknown; write start and size"
        )
    elif not _is_count(start):
        problems.append(
            f"services.{service}: start {start!r} is not a key; write a whole number from 1"
        )
    elif not _is_count(own_size):
        problems.append(
            f"services.{service}: size {own_size!r} is not a number of keys; write "
            "a whole number from 1"
        )
    elif start + own_size - 1 > LARGEST_KEY:
        problems.append(
            f"services.{service}: its last key is above {LARGEST_KEY}, the largest of PostgreSQL"
        )
    else:
        return KeyRange(start=start, end=start + own_size - 1, service=service)
    return None


def _is_count(value: object) -> TypeGuard[int]:
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and 1 <= value <= LARGEST_KEY
    )


#: A whole number as languages write it: ``1_302``, ``1301L``, ``0x51c``, ``"1301"``.
_DIGITS: Final = r"-?[0-9][0-9_]*|0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+"
_NUMBER: Final = rf"""["']?({_DIGITS})[lLnN]?(?![\w.])"""
#: ``"tokenCleanup": {"schedule": "…", "lockKey": 5101}``, also over several lines.
_JOB: Final = re.compile(
    rf"""["']([\w.-]+)["']\s*:\s*\{{[^{{}}]*?["']?lockKey["']?\s*:\s*{_NUMBER}"""
)
#: ``lock_key=5001``, ``lockKey = 5001L``, ``"lockKey": 5101``, ``TOKEN_LOCK_KEY: int = 5001``.
_NAMED: Final = re.compile(
    r"""(?:\b|_|(?<=[a-z0-9])(?=LockKey))(?i:lock_?key)["']?\s*(?::\s*[A-Za-z]\w*\s*)?[:=]\s*"""
    + _NUMBER
)
#: ``pg_try_advisory_lock(5001)``, ``pg_advisory_xact_lock(5001::bigint)``.
_SQL: Final = re.compile(
    rf"pg_(?:try_)?advisory_(?:xact_)?lock(?:_shared)?\s*\(\s*{_NUMBER}(?:::\w+)?\s*\)",
    re.IGNORECASE,
)
#: ``dcron.schedule('0 * * * * *', 5001, job)``.
_SCHEDULED: Final = re.compile(
    rf"""schedule\w*\s*\(\s*(?:"[^"\n]*"|'[^'\n]*'|`[^`\n]*`)\s*,\s*{_NUMBER}\s*,"""
)
#: Quotes of a JSON text within a string, or within XML.
_QUOTE: Final = re.compile(r"""\\+(?=["'])|&quot;""")
#: Larger files are data, and a file with a NUL in its beginning is no text.
_LARGEST_FILE: Final = 1024 * 1024
_BEGINNING: Final = 8192
#: Directories with copies of sources, or with those of others.
_SKIPPED: Final = frozenset(
    {"__pycache__", "build", "dist", "node_modules", "target", "vendor", "venv"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUse:
    """A key in a file or in the environment."""

    key: int
    #: File and line, or ``CRON_JOBS``.
    place: str
    service: str | None
    #: The name of the job; None where a source file does not show it.
    job: str | None

    @property
    def owner(self) -> tuple[str | None, str]:
        """What uses the key: the same job may stand in the files of several environments."""
        return (self.service, self.job) if self.job is not None else (None, self.place)

    def __str__(self) -> str:
        return f"{self.job} ({self.place})" if self.job is not None else self.place


@dataclass(frozen=True, slots=True)
class Search:
    """What was found in files: the uses, how many files were read, and which ones were not."""

    uses: list[KeyUse]
    read: int
    skipped: list[str]


def find_uses(paths: Iterable[str], lock_keys: LockKeys) -> Search:
    """Search files and directories, each ``PATH`` or ``SERVICE=PATH``. Raise
    ConfigurationError.
    """
    found: list[KeyUse] = []
    read = 0
    skipped = []
    for argument in paths:
        service, path = _split(argument)
        if service is not None:
            lock_keys.of(service)
        if not path.exists():
            raise ConfigurationError(
                f"{path} does not exist; write PATH or SERVICE=PATH"
            )
        for file in sorted(_files(path)) if path.is_dir() else [path]:
            text = _text(file)
            if text is None:
                skipped.append(str(file))
                continue
            read += 1
            found += uses_in(text, str(file), service)
    return Search(found, read, skipped)


def uses_in(
    text: str, place: str, service: str | None = None, *, is_file: bool = True
) -> list[KeyUse]:
    """Return the uses in a text. A job that is called ``service.job`` belongs to that service."""
    text = _QUOTE.sub(lambda found: '"' if found[0] == "&quot;" else "", text)
    found = []
    spans = []
    for match in _JOB.finditer(text):
        prefix, _, job = match[1].rpartition(".")
        spans.append(match.span())
        where = f"{place}:{_line(text, match.start(2))}" if is_file else place
        use = KeyUse(
            key=_key(match[2]), place=where, service=prefix or service, job=job
        )
        found.append(use)
    for match in _without_jobs(text, spans):
        where = f"{place}:{_line(text, match.start(1))}" if is_file else place
        found.append(
            KeyUse(key=_key(match[1]), place=where, service=service, job=None)
        )
    return found


def _without_jobs(
    text: str, spans: Sequence[tuple[int, int]]
) -> Iterator[re.Match[str]]:
    """Yield the keys outside the jobs; of calls with one key, which lock and unlock it, the
    first.
    """
    for match in _NAMED.finditer(text):
        if not any(start <= match.start() < end for start, end in spans):
            yield match
    called = set()
    for pattern in (_SQL, _SCHEDULED):
        for match in pattern.finditer(text):
            if match[1] not in called:
                called.add(match[1])
                yield match


def _key(text: str) -> int:
    digits = text.replace("_", "")
    return int(digits) if digits.lstrip("-").isdecimal() else int(digits, 0)


def problems(lock_keys: LockKeys, uses: Sequence[KeyUse]) -> Iterator[str]:
    """Yield a line for each key that is out of range, used twice, or not the same in all
    environments.
    """
    for use in uses:
        yield from _out_of_range(lock_keys, use)
    yield from _used_twice(uses)
    yield from _several_keys(uses)


def _used_twice(uses: Sequence[KeyUse]) -> Iterator[str]:
    by_key = defaultdict(list)
    for use in uses:
        by_key[use.key].append(use)
    for key, found in sorted(by_key.items()):
        owners = {use.owner: use for use in reversed(found)}
        if len(owners) > 1:
            where = ", ".join(str(use) for use in reversed(owners.values()))
            yield f"key {key} is used {len(owners)} times: {where}; take a free key for each job"


def _several_keys(uses: Sequence[KeyUse]) -> Iterator[str]:
    by_job = defaultdict(list)
    for use in uses:
        if use.job is not None:
            by_job[use.owner].append(use)
    for found in by_job.values():
        keys = {use.key: use for use in reversed(found)}
        if len(keys) > 1:
            where = ", ".join(
                f"{key} ({use.place})" for key, use in reversed(keys.items())
            )
            yield f"{found[0].job} has the keys {where}; write the same key in all environments"


def unused(keys: KeyRange, used: set[int]) -> list[KeyRange]:
    """Return the keys of a range that are not used, below the highest that is."""
    gaps = []
    first_free = keys.start
    for key in sorted(key for key in used if key in keys):
        if key > first_free:
            gaps.append(KeyRange(start=first_free, end=key - 1, service=keys.service))
        first_free = key + 1
    return gaps


def _out_of_range(lock_keys: LockKeys, use: KeyUse) -> Iterator[str]:
    if use.service is None:
        if lock_keys.owner(use.key) is None:
            yield f"{use}: key {use.key} belongs to no service; take one of the registry"
        return
    try:
        mine = lock_keys.of(use.service)
    except ConfigurationError as error:
        yield f"{use}: {error}"
        return
    if use.key not in mine:
        owner = lock_keys.owner(use.key)
        whose = f", it is {owner.service}'s" if owner else ""
        yield (
            f"{use}: key {use.key} is out of the range of {use.service}, "
            f"{mine}{whose}; take a key of its own range"
        )


def _split(argument: str) -> tuple[str | None, Path]:
    service, equals, path = argument.partition("=")
    return (
        (service, Path(path))
        if equals and not Path(argument).exists()
        else (None, Path(argument))
    )


def _files(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if name not in _SKIPPED and not name.startswith(".")
        ]
        yield from (Path(root) / name for name in files)


def _text(file: Path) -> str | None:
    """Return a file's text; None if it is no regular file, is too large, or is binary. Raise
    ConfigurationError.
    """
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST_FILE:
            return None
        content = file.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{file}: {error.strerror}; make it readable, or name other paths"
        ) from None
    return (
        None
        if b"\0" in content[:_BEGINNING]
        else content.decode("utf-8", errors="replace")
    )


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1
