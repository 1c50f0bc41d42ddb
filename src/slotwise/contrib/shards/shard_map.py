"""Which shard a key belongs to: a map of 1,024 parts, which every process must agree on."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slotwise import ConfigurationError

#: A key falls into one of so many parts.
PARTS: Final = 1024
_RANGE: Final = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")


def part_of(key: str) -> int:
    """Return the part of a key: the first 8 bytes of its SHA-256, modulo 1,024.

    Raises ConfigurationError for a key that is no string: 7 and "7" would be two keys.
    """
    if not isinstance(key, str):
        raise ConfigurationError(
            f"shard_key is {key!r:.60}, of type {type(key).__name__}; a key is a string: "
            f"write shard_key=str(…)"
        )
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % PARTS


@dataclass(frozen=True, slots=True)
class ShardMap:
    """The shard of each part, by name."""

    owners: tuple[str, ...]

    @classmethod
    def equal(cls, names: Sequence[str]) -> ShardMap:
        """Give each of these shards the same number of parts, in their order."""
        return cls(tuple(names[part * len(names) // PARTS] for part in range(PARTS)))

    @classmethod
    def read(cls, given: Mapping[str, object], names: Sequence[str]) -> ShardMap:
        """Read ``{"eu": "0-511", "us": "512-1023"}``; several ranges are ``"0-9,20-29"``.

        Raises ConfigurationError for an unknown shard, and for a part without or with two owners.
        """
        owners: dict[int, str] = {}
        for name, text in given.items():
            if name not in names:
                raise ConfigurationError(
                    f"shards.map: there is no shard {name!r:.60}; known are {', '.join(names)}"
                )
            for part in _parts(name, text):
                if part in owners:
                    raise ConfigurationError(
                        f"shards.map: part {part} belongs to {owners[part]} and to {name}; "
                        "remove it from one of them"
                    )
                owners[part] = name
        missing = [part for part in range(PARTS) if part not in owners]
        if missing:
            raise ConfigurationError(
                f"shards.map: {len(missing)} parts have no shard, the first is {missing[0]}; "
                f"the ranges together must be 0-{PARTS - 1}"
            )
        return cls(tuple(owners[part] for part in range(PARTS)))

    def shard_of(self, key: str) -> str:
        """Return the name of the key's shard. Raises ConfigurationError for a key that is no
        string.
        """
        return self.owners[part_of(key)]

    @property
    def names(self) -> list[str]:
        """The shards that have parts, in the order of their first one."""
        return list(dict.fromkeys(self.owners))

    @property
    def ranges(self) -> dict[str, str]:
        """The parts of each shard, as ``read`` takes them."""
        found: dict[str, list[str]] = {}
        first = 0
        for part in range(1, PARTS + 1):
            if part < PARTS and self.owners[part] == self.owners[first]:
                continue
            text = str(first) if part - first == 1 else f"{first}-{part - 1}"
            found.setdefault(self.owners[first], []).append(text)
            first = part
        return {name: ",".join(texts) for name, texts in found.items()}

    def fingerprint(self, default: str) -> str:
        """Return a short hash of this map and the default shard, which each database keeps."""
        text = json.dumps([default, self.ranges], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parts(name: str, text: object) -> Iterator[int]:
    """Yield the parts of ``"0-9,20-29"``."""
    for one in str(text).split(","):
        found = _RANGE.fullmatch(one.strip())
        low = int(found[1]) if found else PARTS
        high = int(found[2] or low) if found else PARTS
        if not low <= high < PARTS:
            raise ConfigurationError(
                f"shards.map: {name} is {text!r:.60}; write ranges of 0 to {PARTS - 1}, "
                'such as "0-511" or "0-9,20-29"'
            )
        yield from range(low, high + 1)
