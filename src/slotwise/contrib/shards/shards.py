"""All shards of an application, with the default one and the map of keys."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from slotwise import ConfigurationError
from slotwise.contrib.shards.documents import read_shards
from slotwise.contrib.shards.shard import Shard
from slotwise.contrib.shards.shard_map import ShardMap


class Shards:
    """The shards of an application: databases, or schemas, by name.

    ``shards`` are Shard objects, or addresses by name. Jobs live on the ``default``, which may be
    left out if there is but one shard. ``map`` says which shard a key belongs to, as
    ``{"eu": "0-511", "us": "512-1023"}``; without it each shard has the same number of parts, in
    their order. Raises ConfigurationError or InvalidSetting; opens no connection.
    """

    def __init__(
        self,
        shards: Iterable[Shard] | Mapping[str, str],
        *,
        default: str | None = None,
        map: Mapping[str, object] | None = None,
    ) -> None:
        if isinstance(shards, Mapping):
            shards = [
                Shard(name=name, database_url=url) for name, url in shards.items()
            ]
        found = list(shards)
        _refuse_doubles(found)
        self._shards = {shard.name: shard for shard in found}
        self.default = self._default(default)
        names = list(self._shards)
        self.map = ShardMap.equal(names) if map is None else ShardMap.read(map, names)
        self.fingerprint = self.map.fingerprint(self.default)
        self._turn = threading.Lock()
        self._installations: dict[str, str] = {}

    @classmethod
    def load(cls, config: Path | None = None) -> Shards | None:
        """Return the shards of the settings file; None if it has none. Raises InvalidSetting or
        ConfigurationError.
        """
        found = read_shards(config)
        if found is None:
            return None
        return cls(found.shards, default=found.default, map=found.map)

    def __getitem__(self, name: str) -> Shard:
        if name not in self._shards:
            raise ConfigurationError(
                f"there is no shard {name!r:.80}; known are {self._known}"
            )
        return self._shards[name]

    def __iter__(self) -> Iterator[Shard]:
        return iter(self._shards.values())

    def __len__(self) -> int:
        return len(self._shards)

    def chosen(self, names: Iterable[str]) -> list[Shard]:
        """Return the shards of these names, without names all; raises ConfigurationError."""
        found = dict.fromkeys(names)
        return [self[name] for name in found] if found else list(self)

    def note(self, name: str, installation: str | None) -> None:
        """Remember the installation that a shard leads to. Raises ConfigurationError if another
        shard leads to the same one.
        """
        if installation is None:
            return
        with self._turn:
            others = self._installations.items()
            same = [
                one for one, found in others if found == installation and one != name
            ]
            if same:
                raise ConfigurationError(
                    f"shards {same[0]} and {name} have the same installation id "
                    f"{installation}: they are one database, or one is a copy; correct the "
                    f"address, or for a copy: slotwise db new-epoch --shard {name}"
                )
            self._installations[name] = installation

    def _default(self, given: str | None) -> str:
        if given is None and len(self._shards) == 1:
            return next(iter(self._shards))
        if given is None:
            raise ConfigurationError(
                f"which of {self._known} is the default shard, where jobs live? "
                'write default = "NAME" under [shards], or Shards(…, default="NAME")'
            )
        return self[given].name

    @property
    def _known(self) -> str:
        names = list(self._shards)
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        return ", ".join(names[:20]) + more


def _refuse_doubles(shards: list[Shard]) -> None:
    """Raise ConfigurationError without shards, for a name twice, and for one place twice."""
    if not shards:
        raise ConfigurationError(
            'there are no shards; write [shards.members] with NAME = "postgresql://…"'
        )
    names = Counter(shard.name for shard in shards)
    if double := sorted(name for name, count in names.items() if count > 1):
        raise ConfigurationError(
            f"{double[0]!r} is the name of {names[double[0]]} shards; each has its own"
        )
    places: dict[tuple[str, str | None], str] = {}
    for shard in shards:
        place = shard.database_url, shard.schema
        if place in places:
            raise ConfigurationError(
                f"shards {places[place]!r} and {shard.name!r} are the same database: "
                f"{shard.address}; give each its own database, or its own schema"
            )
        places[place] = shard.name
