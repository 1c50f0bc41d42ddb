"""Where lock keys are used: in source files of any language, in ``.env`` files, and in ``CRON_JOBS``."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slotwise.contrib.advisory.lock_keys import KeyRange, LockKeys
from slotwise.errors import ConfigurationError

#: ``"tokenCleanup": {"schedule": "…", "lockKey": 5101}``, also over several lines.
_JOB: Final = re.compile(r"""["']([\w.-]+)["']\s*:\s*\{[^{}]*?["']?lockKey["']?\s*:\s*(-?\d+)""")
#: ``lock_key=5001``, ``lockKey = 5001L``, ``"lockKey": 5101``.
_KEY: Final = re.compile(r"""\block_?key["']?\s*[:=]\s*(-?\d[\d_]*)""", re.IGNORECASE)
_SUFFIXES: Final = frozenset({
    ".cjs", ".env", ".java", ".js", ".json", ".jsx", ".kt", ".mjs", ".properties", ".py", ".scala", ".sh", ".toml",
    ".ts", ".tsx", ".yaml", ".yml",
})  # fmt: skip
#: Directories with copies of sources, or with those of others.
_SKIPPED: Final = frozenset({"__pycache__", "build", "dist", "node_modules", "target", "vendor", "venv"})


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


def find_uses(paths: Iterable[str], lock_keys: LockKeys) -> list[KeyUse]:
    """Return the uses in files and directories, each ``PATH`` or ``SERVICE=PATH``. Raise ConfigurationError."""
    found: list[KeyUse] = []
    for argument in paths:
        service, path = _split(argument)
        if service is not None:
            lock_keys.of(service)
        if not path.exists():
            raise ConfigurationError(f"{path} does not exist; write PATH or SERVICE=PATH")
        for file in [path] if path.is_file() else sorted(_files(path)):
            found += uses_in(file.read_text(encoding="utf-8", errors="replace"), str(file), service)
    return found


def uses_in(text: str, place: str, service: str | None = None, *, is_file: bool = True) -> list[KeyUse]:
    """Return the uses in a text. A job that is called ``service.job`` belongs to that service."""
    found, spans = [], []
    for match in _JOB.finditer(text):
        prefix, _, job = match[1].rpartition(".")
        where = f"{place}:{_line(text, match.start(2))}" if is_file else place
        found.append(KeyUse(key=int(match[2]), place=where, service=prefix or service, job=job))
        spans.append(match.span())
    for match in _KEY.finditer(text):
        if not any(start <= match.start() < end for start, end in spans):
            where = f"{place}:{_line(text, match.start(1))}" if is_file else place
            found.append(KeyUse(key=int(match[1]), place=where, service=service, job=None))
    return found


def problems(lock_keys: LockKeys, uses: Sequence[KeyUse]) -> Iterator[str]:
    """Yield a line for each key that is out of range, used twice, or not the same in all environments."""
    for use in uses:
        yield from _out_of_range(lock_keys, use)
    by_key, by_job = defaultdict(list), defaultdict(list)
    for use in uses:
        by_key[use.key].append(use)
        if use.job is not None:
            by_job[use.owner].append(use)
    for key, found in sorted(by_key.items()):
        owners = {use.owner: use for use in reversed(found)}
        if len(owners) > 1:
            where = ", ".join(str(use) for use in reversed(owners.values()))
            yield f"key {key} is used {len(owners)} times: {where}; take a free key for each job"
    for found in by_job.values():
        keys = {use.key: use for use in reversed(found)}
        if len(keys) > 1:
            where = ", ".join(f"{key} ({use.place})" for key, use in reversed(keys.items()))
            yield f"{found[0].job} has the keys {where}; write the same key in all environments"


def unused(keys: KeyRange, used: set[int]) -> list[KeyRange]:
    """Return the keys of a range that are not used, below the highest that is."""
    gaps, begin = [], keys.start
    for key in sorted(key for key in used if key in keys):
        if key > begin:
            gaps.append(KeyRange(start=begin, end=key - 1, service=keys.service))
        begin = key + 1
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
        yield f"{use}: key {use.key} is out of the range of {use.service}, {mine}{whose}; take a key of its own range"


def _split(argument: str) -> tuple[str | None, Path]:
    service, equals, path = argument.partition("=")
    return (service, Path(path)) if equals and not Path(argument).exists() else (None, Path(argument))


def _files(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED and not name.startswith(".")]
        for name in files:
            if Path(name).suffix in _SUFFIXES or name.startswith(".env"):
                yield Path(root) / name


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1
