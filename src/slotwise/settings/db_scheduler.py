"""Keys that configurations of db-scheduler use, as settings of ours; each in any spelling, as all keys.

``polling-interval`` and ``shutdown-max-wait`` have other names here. ``jobs-config`` is a table with the address of the
scheduler's own pool; in the environment its keys are variables, such as ``SLOTWISE_JOBS_CONFIG_USERNAME``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import quote

from slotwise.errors import InvalidSetting
from slotwise.model.error_text import hide_password

#: Keys without ``-``, ``_`` and capitals, with the setting that each means.
OTHER_NAMES: Final = {
    "pollinginterval": "poll_interval",
    "shutdownmaxwait": "shutdown_grace",
    "jobsconfig": "database_url",
    "jobsconfigmaximumpoolsize": "pool_size",
}
#: Keys without a counterpart, and what to do instead.
ABSENT: Final = {
    "deleteunresolvedafter": "slotwise never deletes rows of tasks that it does not know; remove it, find such rows "
    "with `slotwise health`, and delete a job with `slotwise delete`",
}

_POOL = "jobsconfig"
_KEYS = {"jdbcurl": "jdbc-url", "url": "jdbc-url", "username": "username", "user": "username", "password": "password"}
_ADDRESS = "write jdbc:postgresql://host:5432/database"
_OTHER_DATABASE = re.compile(r"jdbc:(?P<name>(?!postgres|sqlite)\w+):")
_FORM = "write jdbc-url, username, password and maximum-pool-size"


def translated(
    pairs: Iterable[tuple[str, object]], fold: Callable[[str], str], label: Callable[[str], str]
) -> Iterator[tuple[str, object]]:
    """Yield the pairs, with the keys of ``jobs-config`` as one address. Raises InvalidSetting with the cure."""
    pool: dict[str, str] = {}
    name = ""
    for key, value in pairs:
        folded = fold(key)
        if folded in ABSENT:
            raise InvalidSetting(f"{label(key)} is not a setting: {ABSENT[folded]}")
        if not folded.startswith(_POOL):
            yield key, value
        elif folded == _POOL:
            if not isinstance(value, Mapping):
                raise InvalidSetting(f"{label(key)} must be a table, but was of type {type(value).__name__}; {_FORM}")
            name = key
            for inner, text in value.items():
                yield from _of_pool(pool, key, f"{key}-{inner}", text, fold, label)
        else:
            name = name or "JOBS_CONFIG"
            yield from _of_pool(pool, name, key, value, fold, label)
    if pool:
        yield name, _address(pool, label(name))


def _of_pool(
    pool: dict[str, str], name: str, key: str, value: object, fold: Callable[[str], str], label: Callable[[str], str]
) -> Iterator[tuple[str, object]]:
    """Keep a part of the address, and yield the pool's size."""
    part = fold(key).removeprefix(_POOL)
    if f"{_POOL}{part}" in OTHER_NAMES:
        yield key, value
    elif part not in _KEYS:
        raise InvalidSetting(f"{label(key)} is not a setting of {label(name)}; {_FORM}")
    elif not isinstance(value, str):
        raise InvalidSetting(f"{label(key)} must be a string, but was of type {type(value).__name__}; {_FORM}")
    else:
        pool[_KEYS[part]] = value


def _address(pool: Mapping[str, str], label: str) -> str:
    address = pool.get("jdbc-url", "")
    kind, found, rest = address.partition("://")
    if not address:
        raise InvalidSetting(f"{label} has no jdbc-url; {_ADDRESS}")
    other = _OTHER_DATABASE.match(address)
    if other:
        raise InvalidSetting(f"{label}: {other['name']} databases are not supported; {_ADDRESS}")
    if not found:
        raise InvalidSetting(f"{label}: {hide_password(repr(address))} is no address; {_ADDRESS}")
    if "username" not in pool:
        if "password" in pool:
            raise InvalidSetting(f"{label} has a password and no username; add username")
        return address
    if "@" in rest.partition("/")[0]:
        raise InvalidSetting(
            f"{label}: {hide_password(address)} cannot be combined with username; write jdbc:postgresql://host/database"
        )
    login = quote(pool["username"], safe="")
    if "password" in pool:
        login += f":{quote(pool['password'], safe='')}"
    return f"{kind}://{login}@{rest}"
