"""Sources of settings: a file, the environment, keywords; and the validators that read each value."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from slotwise.errors import ConfigurationError, InvalidSetting
from slotwise.model.durations import format_duration, parse_duration
from slotwise.model.error_text import hide_password
from slotwise.model.records import is_whole

Reader: TypeAlias = Callable[[str, Any], Any]  # (label of the source, value) -> value; raises InvalidSetting

_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]*")
_WORDS_FOR_TRUE = frozenset({"1", "true", "yes", "on"})
_WORDS_FOR_FALSE = frozenset({"0", "false", "no", "off"})


def spell(value: object) -> str:
    """Return a value as it appears in a message."""
    return format_duration(value) if isinstance(value, timedelta) else hide_password(repr(value))


def _wrong(label: str, need: str, value: object, cure: str) -> InvalidSetting:
    return InvalidSetting(f"{label} must be {need}, but was {spell(value)}; {cure}")


def optional(read: Reader) -> Reader:
    """Return a reader that also accepts None."""
    return lambda label, value: None if value is None else read(label, value)


def duration(least: str, most: str, why: str) -> Reader:
    """Read a duration between two bounds, both included."""
    low, high = parse_duration(least), parse_duration(most)
    form = "write for example 10s, 500ms or PT10S"

    def read(label: str, value: object) -> timedelta:
        try:
            span = parse_duration(value)
        except (ConfigurationError, ValueError, TypeError):
            raise _wrong(label, "a duration", value, form) from None
        if not low <= span <= high:
            bounds = f"positive and at most {most}" if least == "1us" else f"from {least} to {most}"
            raise _wrong(label, f"{bounds} ({why})", span, form)
        return span

    return read


def whole(least: int, most: int, why: str) -> Reader:
    """Read a whole number between two bounds, both included; also as a decimal string."""

    def read(label: str, value: object) -> int:
        number = value
        if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,18}\s*", value):
            number = int(value)
        if not is_whole(number, least, most):
            raise _wrong(label, f"a whole number from {least} to {most}", value, why)
        return number

    return read


def switch(label: str, value: object) -> bool:
    """Read true or false, or a common word for them."""
    word = str(value).strip().lower() if isinstance(value, str | bool) or value in (0, 1) else ""
    if word not in _WORDS_FOR_TRUE | _WORDS_FOR_FALSE:
        raise _wrong(label, "true or false", value, "write true or false")
    return word in _WORDS_FOR_TRUE


def choice(*words: str) -> Reader:
    """Read one of these words, in any case."""
    by_fold = {word.casefold(): word for word in words}

    def read(label: str, value: object) -> str:
        word = by_fold.get(value.strip().casefold()) if isinstance(value, str) else None
        if word is None:
            raise _wrong(label, f"one of {', '.join(words)}", value, "write one of them")
        return word

    return read


def secret(label: str, value: object) -> str:
    """Read a string that is not blank, and never show it in a message."""
    if not isinstance(value, str) or not value.strip():
        kind = "blank" if isinstance(value, str) else f"of type {type(value).__name__}"
        raise InvalidSetting(
            f"{label} must be a database address, but was {kind}; write postgresql://user@host/database"
        )
    return value.strip()


def identifier(longest: int) -> Reader:
    """Read a name that PostgreSQL accepts without quotes and without folding."""

    def read(label: str, value: object) -> str:
        if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value) or len(value) > longest:
            need = f"a lower-case name of at most {longest} characters"
            raise _wrong(label, need, value, f"it must match [a-z_][a-z0-9_]{{0,{longest - 1}}}")
        if value.startswith("pg_") or value == "information_schema":
            raise _wrong(label, "a name that is not PostgreSQL's own", value, "choose another name")
        return value

    return read


def name(longest: int) -> Reader:
    """Read a printable string that is not blank."""

    def read(label: str, value: object) -> str:
        text = value.strip() if isinstance(value, str) else ""
        if not text or not text.isprintable() or len(text) > longest:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)  # TOML's or YAML's
            cure = f'write "{value}"' if is_number else "leave it out for the default"
            raise _wrong(label, f"a printable string of 1 to {longest} characters", value, cure)
        return text

    return read


def names(longest: int, blanks: bool = True) -> Reader:
    """Read a set of names, with or without blanks in them; a string is split at commas."""
    one = name(longest)

    def read(label: str, value: object) -> frozenset[str]:
        if isinstance(value, str):
            value = [part for part in value.split(",") if part.strip()]
        if not isinstance(value, Iterable) or isinstance(value, bytes | dict):
            raise _wrong(label, "a list of names", value, "separate them with commas")
        found = frozenset(one(label, item) for item in value)
        for word in sorted(found):
            if not blanks and word.split() != [word]:
                raise _wrong(label, "words without blanks", word, "separate them with commas")
        return found

    return read


def pairs(longest: int) -> Reader:
    """Read names with strings: a table, or lines such as ``name = text``."""
    one, form = name(longest), "write a table, or lines such as: nightly-report = 0 3 * * *"

    def read(label: str, value: Any) -> frozenset[tuple[str, str]]:
        given = value
        if isinstance(value, str):  # a line without an equals sign gives a list of one, which is refused below
            given = [[part.strip() for part in line.split("=", 1)] for line in value.splitlines() if line.strip()]
        try:
            found = {key: text.strip() for key, text in (given.items() if isinstance(given, Mapping) else given)}
        except (AttributeError, TypeError, ValueError):
            raise _wrong(label, "names with strings", value, form) from None
        if not all(found.values()):
            raise _wrong(label, "names with strings", value, form)
        return frozenset((one(label, key), text) for key, text in found.items())

    return read


def patterns(label: str, value: object) -> frozenset[str]:
    """Read regular expressions: a list, or one in each line of a string."""
    given = value.splitlines() if isinstance(value, str) else value
    if not isinstance(given, Iterable) or isinstance(given, bytes | Mapping):
        raise _wrong(label, "a list of regular expressions", value, "write one in each line")
    found = frozenset(one for one in given if not isinstance(one, str) or one.strip())
    for one in found:
        try:
            re.compile(one)
        except (re.error, TypeError) as error:
            raise _wrong(label, "a list of regular expressions", one, f"correct it: {error}") from None
    return found


#: The reader, and with it the range, of every setting. Names in PostgreSQL have at most 63 bytes; tables and indexes
#: need up to 31 of them after the prefix.
READERS: Final[Mapping[str, Reader]] = {
    "database_url": optional(secret),
    "schema": optional(identifier(63)),
    "table_prefix": identifier(32),
    "poll_interval": duration("1us", "1d", "a zero interval would spin"),
    "heartbeat_interval": duration("20ms", "1h", "each heartbeat is one statement"),
    "missed_heartbeats_limit": whole(3, 1000, "fewer would take live claims away at the first hiccup"),
    "shutdown_grace": duration("0s", "7d", "zero does not wait"),
    "threads": optional(whole(1, 10_000, "it is how many jobs run at a time")),
    "processes": whole(1, 1000, "one is enough for most"),
    "reaper_interval": optional(duration("20ms", "1h", "each look is one statement")),
    "recovery_rate": optional(whole(1, 1_000_000, "it is how many late slots start in a second")),
    "revision": optional(name(100)),
    "worker_name": optional(name(100)),
    "tags": names(100, blanks=False),
    "only": names(100),
    "schedules": pairs(100),
    "pooler": switch,
    "pool_size": whole(1, 100, "4 are enough for most"),
    "wake_up": switch,
    "wake_up_url": optional(secret),
    "retention": duration("0s", "36500d", "zero keeps everything"),
    "failure_retention": duration("0s", "36500d", "zero keeps everything"),
    "redact": patterns,
    "app": optional(name(500)),
    "log_format": choice("human", "json"),
    "log_level": choice("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
    "process_hook": switch,
}


Layer: TypeAlias = dict[str, tuple[str, object]]

PREFIX = "SLOTWISE_"
DEFAULT_FILES = ("slotwise.toml", "slotwise.yaml")
_YAML = (".yaml", ".yml")

#: Variables that begin like settings and are none: they are read before there are settings, belong to the quick start's
#: database, to the test suite or to the worker's own children, or tell a command for which slot it runs.
OTHERS_VARIABLES = frozenset(
    f"SLOTWISE_{name}"
    for name in (
        "CONFIG", "APP_DIR", "AUTHOR", "BOOT", "PG_BINDIR", "TEST_DSN", "JOB", "SLOT", "ATTEMPT", "TOKEN", "KEY",
        "HTTP", "ALIVE_FILE", "STUCK_AFTER", "METRICS_MAX_NAMES",
    )
)  # fmt: skip


def from_file(config: Path | None, environ: Mapping[str, str]) -> Layer:
    """Return the settings of the file; empty if none was named and no default file exists."""
    named = config or environ.get("SLOTWISE_CONFIG")
    there = [Path(named)] if named else [path for path in map(Path, DEFAULT_FILES) if path.is_file()]
    if not there:
        return {}
    if len(there) > 1:
        raise InvalidSetting(f"{' and '.join(DEFAULT_FILES)} are both there; keep one, or name it with --config")
    (path,) = there
    return layer(_table(path).items(), lambda key: f"{path.name}: {key}", lambda name: name.replace("_", "-"))


def place(name: str, value: object) -> str | None:
    """Return the variable, or else the file, that sets this value; None if neither does."""
    for found in (from_environment(os.environ), from_file(None, os.environ)):
        if name in found:
            label, given = found[name]
            return label if READERS[name](label, given) == value else None
    return None


def from_environment(environ: Mapping[str, str]) -> Layer:
    """Return the settings of the environment; `DATABASE_URL` where `SLOTWISE_DATABASE_URL` is not set."""
    ours = (
        (variable.removeprefix(PREFIX), text)
        for variable, text in environ.items()
        if variable.startswith(PREFIX) and variable not in OTHERS_VARIABLES and text.strip()
    )
    found = layer(ours, lambda key: PREFIX + key, lambda name: PREFIX + name.upper())
    if environ.get("DATABASE_URL", "").strip():
        found.setdefault("database_url", ("DATABASE_URL", environ["DATABASE_URL"]))
    return found


def layer(
    pairs: Iterable[tuple[str, object]], label: Callable[[str], str] = str, spell: Callable[[str], str] = str
) -> Layer:
    """Return the settings of these pairs; ``label`` and ``spell`` give a key's and a setting's name in messages."""
    by_fold = {_fold(name): name for name in READERS}
    found: Layer = {}
    for key, value in _translated(pairs, label):
        name = by_fold.get(_fold(key)) or OTHER_NAMES.get(_fold(key))
        if name is None:
            near = difflib.get_close_matches(_fold(key), by_fold, n=1, cutoff=0.5)
            cure = f"did you mean {spell(by_fold[near[0]])}?" if near else f"known are {', '.join(by_fold.values())}"
            raise InvalidSetting(f"{label(key)} is not a setting; {cure}")
        if name in found:
            raise InvalidSetting(f"{label(key)} is the same setting as {found[name][0]}; keep one of them")
        found[name] = (label(key), value)
    return found


def _table(path: Path) -> Mapping[str, object]:
    content = document(path, "settings file", "correct --config or SLOTWISE_CONFIG")
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise InvalidSetting(f"{path}: settings are names with values; write for example poll-interval: 10s")
    if path.name != "pyproject.toml":
        return content
    tool = content.get("tool")
    table = tool.get("slotwise") if isinstance(tool, dict) else None
    if not isinstance(table, dict):
        raise InvalidSetting(f"{path}: there is no table [tool.slotwise]; add it, or name another file")
    return table


def document(path: Path, what: str, cure: str) -> object:
    """Return the content of a TOML or YAML file; an empty one is ``{}``.

    ``what`` names the file in messages, and ``cure`` ends that of a missing one. Raise InvalidSetting with the line.
    """
    import tomllib  # late: most processes have no such file

    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidSetting(f"{path}: there is no such {what}; {cure}") from None
    except OSError as error:
        raise InvalidSetting(f"{path}: the {what} cannot be read: {error.strerror}; check its permissions") from None
    except UnicodeDecodeError as error:
        raise InvalidSetting(f"{path}: byte {error.start} is not UTF-8; save the {what} as UTF-8") from None
    if path.suffix in _YAML:
        return _yaml(path, text)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        is_twice = re.search("overwrite|twice|mutate", str(error)) is not None
        raise _unread(path, text, "TOML", None if at is None else int(at[1]), is_twice=is_twice) from None


def _unread(path: Path, text: str, form: str, line: int | None, *, is_twice: bool = False) -> InvalidSetting:
    """The error for a line, counted from 1; None is the last one. Its value is not shown: it may be a password."""
    lines = text.splitlines() or [""]
    number = min(line or len(lines), len(lines))
    why = "has a name that is there twice; keep one of them" if is_twice else f"is not {form}; correct this line"
    return InvalidSetting(f"{path}:{number}: {re.split('[=:]', lines[number - 1])[0].strip()!r:.60} {why}")


def _yaml(path: Path, text: str) -> object:
    try:
        import yaml
    except ImportError:
        raise InvalidSetting(f"{path}: this needs PyYAML; run: pip install 'slotwise[yaml]', or write TOML") from None
    try:
        content, tree = yaml.safe_load(text), yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        mark = getattr(error, "problem_mark", None)
        raise _unread(path, text, "YAML", None if mark is None else mark.line + 1) from None
    for names in _names(tree):  # the YAML reader silently uses the last of several
        if twice := {name for name in names if names.count(name) > 1}:
            raise InvalidSetting(f"{path}: {min(twice)} is there twice; keep one of them")
    return {} if content is None else content


def _names(tree: Any) -> Iterator[list[str]]:
    """Yield the names of each table of a YAML tree. An alias may lead back to where it stands."""
    found, waiting = set(), [tree]
    while waiting:
        node = waiting.pop()
        if id(node) in found or not isinstance(getattr(node, "value", None), list):
            continue
        found.add(id(node))
        if pairs := [pair for pair in node.value if isinstance(pair, tuple)]:
            yield [str(key.value) for key, _ in pairs]
        waiting += [part for one in node.value for part in (one if isinstance(one, tuple) else (one,))]


def _fold(key: str) -> str:
    return key.replace("-", "").replace("_", "").casefold()


# Keys that configurations of db-scheduler use, as settings of ours; each in any spelling, as all keys. ``jobs-config``
# is a table with the address of the scheduler's own pool; in the environment its keys are variables, such as
# ``SLOTWISE_JOBS_CONFIG_USERNAME``.

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
_FORM = "write jdbc-url, username, password and maximum-pool-size"


def _translated(pairs: Iterable[tuple[str, object]], label: Callable[[str], str]) -> Iterator[tuple[str, object]]:
    """Yield the pairs, with the keys of ``jobs-config`` as one address. Raises InvalidSetting with the cure."""
    pool: dict[str, str] = {}
    name = ""
    for key, value in pairs:
        folded = _fold(key)
        if folded in ABSENT:
            raise InvalidSetting(f"{label(key)} is not a setting: {ABSENT[folded]}")
        if not folded.startswith(_POOL):
            yield key, value
            continue
        if folded == _POOL and not isinstance(value, Mapping):
            raise InvalidSetting(f"{label(key)} must be a table, but was of type {type(value).__name__}; {_FORM}")
        name = name or (key if folded == _POOL else "JOBS_CONFIG")
        parts = (
            ((f"{key}-{part}", text) for part, text in value.items()) if isinstance(value, Mapping) else [(key, value)]
        )
        for full, text in parts:
            part = _fold(full).removeprefix(_POOL)
            if f"{_POOL}{part}" in OTHER_NAMES:
                yield full, text
            elif part not in _KEYS:
                raise InvalidSetting(f"{label(full)} is not a setting of {label(name)}; {_FORM}")
            elif not isinstance(text, str):
                raise InvalidSetting(f"{label(full)} must be a string, but was of type {type(text).__name__}; {_FORM}")
            else:
                pool[_KEYS[part]] = text
    if pool:
        yield name, _address(pool, label(name))


def _address(pool: Mapping[str, str], label: str) -> str:
    address = pool.get("jdbc-url", "")
    kind, found, rest = address.partition("://")
    if not address:
        raise InvalidSetting(f"{label} has no jdbc-url; {_ADDRESS}")
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
