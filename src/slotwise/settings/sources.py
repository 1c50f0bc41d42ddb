"""Where settings come from: files, the environment, keywords; in any spelling, and in the words of
db-scheduler.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote, urlencode

from slotwise.errors import InvalidSetting
from slotwise.model.error_text import hide_password
from slotwise.settings.documents import read_document
from slotwise.settings.keywords import SettingsKeywords

#: Settings by name, each with the label of its source in messages.
Layer: TypeAlias = dict[str, tuple[str, object]]

PREFIX = "SLOTWISE_"
DEFAULT_FILES = ("slotwise.toml", "slotwise.yaml")

#: Variables that begin like settings and are none: they are read before there are settings, belong
#: to the quick start's database, to the test suite or to the worker's own children, or tell a
#: command for which slot it runs.
OTHERS_VARIABLES = frozenset(
    PREFIX + name
    for name in (
        "CONFIG",
        "APP_DIR",
        "AUTHOR",
        "BOOT",
        "PG_BINDIR",
        "TEST_DSN",
        "JOB",
        "SLOT",
        "ATTEMPT",
        "TOKEN",
        "KEY",
        "HTTP",
        "ALIVE_FILE",
        "STUCK_AFTER",
        "METRICS_MAX_NAMES",
    )
)


def from_file(config: Path | None, environ: Mapping[str, str]) -> Layer:
    """Return the settings of the file; empty if none was named and no default file exists."""
    named = config or environ.get("SLOTWISE_CONFIG")
    there = (
        [Path(named)]
        if named
        else [Path(one) for one in DEFAULT_FILES if Path(one).is_file()]
    )
    if not there:
        return {}
    if len(there) > 1:
        raise InvalidSetting(
            f"{' and '.join(DEFAULT_FILES)} are both there; keep one, or name it with --config"
        )
    (path,) = there
    return layer(
        _table(path, is_named=bool(named)).items(),
        lambda key: f"{path.name}: {key}",
        lambda name: name.replace("_", "-"),
    )


def _table(path: Path, *, is_named: bool) -> Mapping[str, object]:
    content = read_document(
        path, "settings file", "correct --config or SLOTWISE_CONFIG", is_named=is_named
    )
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise InvalidSetting(
            f"{path}: settings are names with values; write for example poll-interval: 10s"
        )
    if path.name != "pyproject.toml":
        return content
    tool = content.get("tool")
    table = tool.get("slotwise") if isinstance(tool, dict) else None
    if not isinstance(table, dict):
        raise InvalidSetting(
            f"{path}: there is no table [tool.slotwise]; add it, or name another file"
        )
    return table


def from_environment(environ: Mapping[str, str]) -> Layer:
    """Return the settings of the environment; `DATABASE_URL` where `SLOTWISE_DATABASE_URL` is not
    set.
    """
    ours = (
        (variable.removeprefix(PREFIX), text)
        for variable, text in environ.items()
        if variable.startswith(PREFIX)
        and variable not in OTHERS_VARIABLES
        and text.strip()
    )
    found = layer(ours, lambda key: PREFIX + key, lambda name: PREFIX + name.upper())
    if environ.get("DATABASE_URL", "").strip():
        found.setdefault("database_url", ("DATABASE_URL", environ["DATABASE_URL"]))
    return found


def _fold(key: str) -> str:
    return key.replace("-", "").replace("_", "").casefold()


_NAMES: Final = {_fold(name): name for name in SettingsKeywords.__annotations__}


def layer(
    pairs: Iterable[tuple[str, object]],
    label: Callable[[str], str] = str,
    spell: Callable[[str], str] = str,
) -> Layer:
    """Return the settings of these pairs; ``label`` and ``spell`` give a key's and a setting's
    name in messages.
    """
    found: Layer = {}
    for key, value in _with_address(pairs, label):
        folded = _fold(key)
        if folded in ABSENT:
            raise InvalidSetting(f"{label(key)} is not a setting: {ABSENT[folded]}")
        name = _NAMES.get(folded) or OTHER_NAMES.get(folded)
        if name is None:
            near = difflib.get_close_matches(folded, _NAMES, n=1, cutoff=0.5)
            cure = (
                f"did you mean {spell(_NAMES[near[0]])}?"
                if near
                else f"known are {_KNOWN}"
            )
            raise InvalidSetting(f"{_shown(label(key))} is not a setting; {cure}")
        if name in found:
            raise InvalidSetting(
                f"{label(key)} is the same setting as {found[name][0]}; keep one of them"
            )
        found[name] = (label(key), value)
    return found


_KNOWN = ", ".join(_NAMES.values())


def _shown(key: str) -> str:
    """Return a key for a message: it may be an address that lost its name."""
    return f"{hide_password(key):.100}"


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
    return f"{address}{'&' if '?' in address else '?'}{urlencode(login, quote_via=quote)}"
