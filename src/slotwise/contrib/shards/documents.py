"""Shards in settings files: ``shards`` with addresses by name, or ``sharding`` with groups and
members.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slotwise import InvalidSetting
from slotwise.contrib.db_scheduler.settings_words import in_our_words
from slotwise.contrib.shards.shard import Shard
from slotwise.spi import read_document

_FILES: Final = ("slotwise.toml", "slotwise.yaml")
#: Keys of a member in the short form, with the attribute of a shard that each sets.
_MEMBER: Final = {
    "databaseurl": "database_url",
    "url": "database_url",
    "schema": "schema",
    "poolsize": "pool_size",
    "wakeupurl": "wake_up_url",
    "appurl": "app_url",
    "apppoolsize": "app_pool_size",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What a settings file says of shards."""

    shards: Sequence[Shard]
    default: str | None
    map: Mapping[str, object] | None


def read_shards(config: Path | None = None) -> Document | None:
    """Return the shards of a settings file; None if it has none, or if there is no file.

    The file is ``config``, else SLOTWISE_CONFIG, else slotwise.toml or slotwise.yaml here. Raises
    InvalidSetting, or ConfigurationError for a shard that cannot be.
    """
    named = config or os.environ.get("SLOTWISE_CONFIG")
    found = [Path(named)] if named else [Path(one) for one in _FILES]
    for path in found:
        if named or path.is_file():
            return _of_file(path, is_named=bool(named))
    return None


def _of_file(path: Path, *, is_named: bool) -> Document | None:
    content = read_document(
        path, "settings file", "correct --config or SLOTWISE_CONFIG", is_named=is_named
    )
    top = _table(content, str(path))
    if path.name == "pyproject.toml":
        tool = _table(top.get("tool", {}), "tool")
        top = _table(tool.get("slotwise", {}), "tool.slotwise")
    if "shards" in top and "sharding" in top:
        raise InvalidSetting(
            f"{path.name}: shards and sharding say the same; keep one of them"
        )
    if "shards" in top:
        return short_form(_table(top["shards"], "shards"))
    if "sharding" in top:
        return long_form(_table(top["sharding"], "sharding"))
    return None


def short_form(shards: Mapping[str, object]) -> Document:
    """Read ``default``, ``members`` (an address, or a table, by name) and ``map``."""
    members = _table(shards.get("members", {}), "shards.members")
    for key in shards:
        if key not in ("default", "members", "map"):
            raise InvalidSetting(
                f"shards.{key} is not known; there are default, members and map"
            )
    parts = shards.get("map")
    return Document(
        shards=[_member(name, each) for name, each in members.items()],
        default=_text(shards.get("default"), "shards.default"),
        map=None if parts is None else _table(parts, "shards.map"),
    )


def _member(name: str, given: object) -> Shard:
    place = f"shards.members.{name}"
    if isinstance(given, str):
        return Shard(name=name, database_url=given)
    known: dict[str, str | int] = {}
    for key, value in _table(given, place).items():
        attribute = _MEMBER.get(_fold(key))
        if attribute is None or not isinstance(value, str | int):
            raise InvalidSetting(
                f"{place}.{key} is not known; write url, schema, pool-size, wake-up-url, "
                "app-url and app-pool-size"
            )
        known[attribute] = value
    return _shard(name, known, place)


def long_form(sharding: Mapping[str, object]) -> Document:
    """Read ``groups[].members[].configs.{primary-config, jobs-config}``.

    A member is ``name``, else its group's name and its place: ``eu-1``. The first member of the
    first group is the default, unless ``default`` names another one.
    """
    shards = [
        shard
        for place, group in enumerate(_list(sharding, "groups", "sharding"), start=1)
        for shard in _group(_table(group, f"sharding.groups[{place}]"), place)
    ]
    default = _text(sharding.get("default"), "sharding.default")
    parts = sharding.get("map")
    return Document(
        shards=shards,
        default=default or (shards[0].name if shards else None),
        map=None if parts is None else _table(parts, "sharding.map"),
    )


def _group(group: Mapping[str, object], place: int) -> Iterator[Shard]:
    where = f"sharding.groups[{place}]"
    title = str(group.get("name", group.get("group", place)))
    for number, member in enumerate(_list(group, "members", where), start=1):
        spot = f"{where}.members[{number}]"
        table = _table(member, spot)
        name = str(table.get("name", f"{title}-{number}"))
        configs = {
            _fold(key): _table(each, f"{spot}.configs.{key}")
            for key, each in _table(
                table.get("configs", {}), f"{spot}.configs"
            ).items()
        }
        primary = configs.get("primaryconfig")
        jobs = configs.get("jobsconfig", primary)
        if jobs is None:
            raise InvalidSetting(
                f"{spot}.configs has neither jobs-config nor primary-config; write one"
            )
        known = _pool(jobs, f"{spot}.configs.jobs-config")
        if primary is not None:
            app = _pool(primary, f"{spot}.configs.primary-config")
            known["app_url"] = app["database_url"]
            known["app_pool_size"] = app.get("pool_size", 5)
        yield _shard(name, known, spot)


def _pool(config: Mapping[str, object], place: str) -> dict[str, str | int]:
    """Read a pool in db-scheduler's words: jdbc-url, username, password, maximum-pool-size."""
    found: dict[str, str | int] = {}
    rest = dict(config)
    if "schema" in rest:
        found["schema"] = str(rest.pop("schema"))
    for _, word, value in in_our_words([("jobs-config", rest)], lambda key: place):
        assert isinstance(value, str | int)
        found[word] = value
    return found


def _shard(name: str, known: Mapping[str, str | int], place: str) -> Shard:
    if "database_url" not in known:
        raise InvalidSetting(
            f"{place} has no url; write url = postgresql://user@host/database"
        )
    return Shard(
        name=name,
        database_url=str(known["database_url"]),
        schema=_optional(known.get("schema")),
        pool_size=_whole(known.get("pool_size"), f"{place}: pool size"),
        wake_up_url=_optional(known.get("wake_up_url")),
        app_url=_optional(known.get("app_url")),
        app_pool_size=_whole(known.get("app_pool_size"), f"{place}: pool size") or 5,
    )


def _fold(key: str) -> str:
    return key.replace("-", "").replace("_", "").casefold()


def _optional(value: object) -> str | None:
    return None if value is None else str(value)


def _whole(value: object, place: str) -> int | None:
    if value is None:
        return None
    if not str(value).isdecimal() or not 1 <= int(str(value)) <= 100:
        raise InvalidSetting(f"{place} is {value!r:.40}; write a number of 1 to 100")
    return int(str(value))


def _text(value: object, place: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidSetting(f"{place} is {value!r:.60}; write the name of a shard")
    return value


def _table(value: object, place: str) -> Mapping[str, object]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InvalidSetting(f"{place} must be a table of names and values")
    return value


def _list(table: Mapping[str, object], key: str, place: str) -> list[object]:
    found = table.get(key)
    if not isinstance(found, list) or not found:
        raise InvalidSetting(f"{place} has no {key}; write a list with at least one")
    return found
