"""Settings in the words of db-scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import quote, urlencode

from slotwise import InvalidSetting


def in_our_words(
    pairs: Iterable[tuple[str, object]], label: Callable[[str], str]
) -> Iterator[tuple[str, str, object]]:
    """Yield each key with the setting that it means, itself if it is none of db-scheduler's, and
    its value.

    ``label`` gives a key's name in messages. Raise InvalidSetting for a key without a counterpart.
    """
    for key, value in _with_address(pairs, label):
        folded = _fold(key)
        if folded in ABSENT:
            raise InvalidSetting(f"{label(key)} is not a setting: {ABSENT[folded]}")
        yield key, OTHER_NAMES.get(folded, key), value


def _fold(key: str) -> str:
    return key.replace("-", "").replace("_", "").casefold()


#: Keys of db-scheduler's configurations, with the setting that each means.
OTHER_NAMES: Final = {
    "pollinginterval": "poll_interval",
    "shutdownmaxwait": "shutdown_grace",
    "jobsconfig": "database_url",
    "jobsconfigmaximumpoolsize": "pool_size",
}
#: Those without a counterpart, and what to do instead.
ABSENT: Final = {
    "deleteunresolvedafter": "slotwise never deletes rows of tasks that it does not know; "
    "remove it, find such rows with `slotwise health`, and delete a job with `slotwise delete`",
}

#: The table with the address of its pool; in the environment each of its keys is a variable.
_POOL = "jobsconfig"
_SIZE = "maximumpoolsize"
_PARTS: Final = {
    "jdbcurl": "jdbc-url",
    "url": "jdbc-url",
    "username": "user",
    "user": "user",
    "password": "password",
}
_FORM = "write jdbc-url, username, password and maximum-pool-size"


def _with_address(
    pairs: Iterable[tuple[str, object]], label: Callable[[str], str]
) -> Iterator[tuple[str, object]]:
    """Yield the pairs, with the keys of ``jobs-config`` as one address."""
    pool: dict[str, str] = {}
    table = "JOBS_CONFIG"
    for key, value in pairs:
        members = {key: value}
        if _fold(key) == _POOL and isinstance(value, Mapping):
            table = key
            members = {f"{key}-{part}": each for part, each in value.items()}
        for name, each in members.items():
            part = _fold(name).removeprefix(_POOL)
            if part == _fold(name) or part == _SIZE:
                yield name, each
            else:
                pool[_part(part, label(name), label(table))] = _text(
                    part, label(name), each
                )
    if pool:
        yield table, _address(pool, label(table))


def _part(part: str, label: str, table: str) -> str:
    if part and part not in _PARTS:
        raise InvalidSetting(f"{label} is not a setting of {table}; {_FORM}")
    return _PARTS.get(part, "")


def _text(part: str, label: str, value: object) -> str:
    if not part or not isinstance(value, str):
        wanted = "a string" if part else "a table"
        raise InvalidSetting(
            f"{label} must be {wanted}, but was of type {type(value).__name__}; {_FORM}"
        )
    return value


def _address(pool: Mapping[str, str], label: str) -> str:
    address = pool.get("jdbc-url")
    if not address:
        raise InvalidSetting(
            f"{label} has no jdbc-url; write jdbc:postgresql://host:5432/database"
        )
    login = {key: text for key, text in pool.items() if key != "jdbc-url"}
    if not login:
        return address
    return (
        f"{address}{'&' if '?' in address else '?'}{urlencode(login, quote_via=quote)}"
    )
