"""Settings: one frozen value that determines how a worker behaves.

Sources, each outranking the one before: the defaults below, a TOML or YAML file, the environment,
keywords.

- The file is the `config` argument, else `SLOTWISE_CONFIG`, else `./slotwise.toml` or
  `./slotwise.yaml` where one exists; keys stand at the top level, or in `[tool.slotwise]` of a
  `pyproject.toml`.
- In the environment a setting is `SLOTWISE_` and its name (`SLOTWISE_POLL_INTERVAL`); an empty
  variable counts as absent. `DATABASE_URL` is used if `SLOTWISE_DATABASE_URL` is not set.
- `poll-interval`, `pollInterval` and `poll_interval` are the same key everywhere.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import socket
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    TypedDict,
    get_args,
    get_type_hints,
)
from urllib.parse import quote, urlencode

from slotwise.errors import InvalidSetting
from slotwise.model.error_text import hide_password
from slotwise.settings.readers import (
    Reader,
    choice,
    duration,
    identifier,
    names,
    optional,
    pairs,
    patterns,
    printable,
    secret,
    spell,
    switch,
    whole,
)

Duration: TypeAlias = timedelta | str


class SettingsKeywords(TypedDict, total=False):
    """The settings as keywords of JobRegistry; None is the default."""

    database_url: str | None
    schema: str | None
    table_prefix: str | None
    poll_interval: Duration | None
    heartbeat_interval: Duration | None
    missed_heartbeats_limit: int | None
    shutdown_grace: Duration | None
    threads: int | None
    processes: int | None
    reaper_interval: Duration | None
    recovery_rate: int | None
    revision: str | None
    worker_name: str | None
    tags: Iterable[str] | None
    only: Iterable[str] | None
    schedules: Mapping[str, str] | str | None
    pooler: bool | None
    pool_size: int | None
    wake_up: bool | None
    wake_up_url: str | None
    retention: Duration | None
    failure_retention: Duration | None
    redact: Iterable[str] | str | None
    app: str | None
    log_format: Literal["human", "json"] | None
    log_level: str | None
    process_hook: bool | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings:
    """How a worker behaves; validated when it is created.

    Raises `InvalidSetting`, one line with the setting, its value, the range and the remedy.
    Durations may be given as `timedelta`, `"10s"` or `"PT10S"`.
    """

    database_url: Annotated[str | None, secret] = None
    """Where the tables are: any spelling of a PostgreSQL or SQLite address, or a libpq keyword string."""

    schema: Annotated[str | None, identifier(63)] = None
    """PostgreSQL schema of the tables; None takes the first one on the connection's search path."""

    table_prefix: Annotated[str, identifier(32)] = "scheduled_"
    """The prefix of every table name."""

    poll_interval: Annotated[
        timedelta, duration("1us", "1d", "a zero interval would spin")
    ] = timedelta(seconds=10)
    """Longest pause between two polls for due rows; a known due time or a job with shorter intervals shortens it."""

    heartbeat_interval: Annotated[
        timedelta, duration("20ms", "1h", "each is one statement")
    ] = timedelta(seconds=10)
    """How often held claims are renewed."""

    missed_heartbeats_limit: Annotated[
        int, whole(3, 1000, "fewer would take live claims away at the first hiccup")
    ] = 6
    """A claim is good for this many heartbeat intervals."""

    shutdown_grace: Annotated[timedelta, duration("0s", "7d", "zero does not wait")] = (
        timedelta(seconds=30)
    )
    """How long running handlers may finish after a stop before they are cancelled; zero is allowed."""

    threads: Annotated[
        int | None, whole(1, 10_000, "it is how many jobs run at a time")
    ] = None
    """Capacity of a worker process; None is the number of jobs and tasks, from 10 to 500."""

    processes: Annotated[int, whole(1, 1000, "one is enough for most")] = 1
    """Worker processes that one command starts."""

    reaper_interval: Annotated[
        timedelta | None, duration("20ms", "1h", "each look is one statement")
    ] = None
    """How often claims of other workers are checked; None is the heartbeat interval."""

    recovery_rate: Annotated[
        int | None, whole(1, 1_000_000, "it is how many late slots start in a second")
    ] = None
    """How many missed or late slots may start per second in the whole cluster; None: no limit."""

    revision: Annotated[str | None, printable(100)] = None
    """Deploy id: a number, version or time that grows; a lower one never changes what a higher one has planned."""

    worker_name: Annotated[str | None, printable(100)] = None
    """The worker's name; None is the host name."""

    tags: Annotated[frozenset[str], names(100, blanks=False)] = frozenset()
    """Tags that this worker offers to jobs that require them with `runs_on`."""

    only: Annotated[frozenset[str], names(100)] = frozenset()
    """Names of the jobs that this worker runs; empty is all."""

    schedules: Annotated[frozenset[tuple[str, str]], pairs(100)] = frozenset()
    """Schedules that replace those in the code: names of jobs and text forms."""

    pooler: Annotated[bool, switch] = False
    """Whether a transaction pooler is in between: deadlines are then set per transaction, not per connection."""

    pool_size: Annotated[int, whole(1, 100, "4 are enough for most")] = 4
    """Connections that stay open for polls, settlements and clients; at a peak there are four more."""

    wake_up: Annotated[bool, switch] = True
    """Whether to notify workers when a task is scheduled, and to listen; if off, due rows are found by polls alone."""

    wake_up_url: Annotated[str | None, secret] = None
    """Address for listening that bypasses a pooler, to the same database; None is ``database_url``."""

    retention: Annotated[timedelta, duration("0s", "36500d", "zero keeps everything")] = (
        timedelta(days=90)
    )
    """How long the ledger keeps slots that succeeded or were skipped; zero keeps them for ever."""

    failure_retention: Annotated[
        timedelta, duration("0s", "36500d", "zero keeps everything")
    ] = timedelta(days=365)
    """The same for slots that ended as failed, dead, lost or cancelled."""

    redact: Annotated[frozenset[str], patterns] = frozenset()
    """Regular expressions of what else is hidden in stored errors and in the log's tracebacks."""

    app: Annotated[str | None, printable(500)] = None
    """Where the registry is: `package.module` or `package.module:attribute`."""

    log_format: Annotated[str, choice("human", "json")] = "human"
    """`human`, or `json` for one object per line."""

    log_level: Annotated[str, choice("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")] = (
        "INFO"
    )
    """The least severe log record that is written."""

    process_hook: Annotated[bool, switch] = True
    """Drain on SIGTERM and SIGINT; turn it off if the host application handles signals."""

    def __post_init__(self) -> None:
        for name, read in READERS.items():
            object.__setattr__(self, name, read(name, getattr(self, name)))
        if self.reaper_interval is not None and self.reaper_interval > self.lease:
            raise InvalidSetting(
                "reaper_interval must be at most the lease (heartbeat_interval × "
                "missed_heartbeats_limit = "
                f"{spell(self.lease)}), but was {spell(self.reaper_interval)}; leave it out"
            )

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={hide_password(repr(value))}' for name, value in self._changed())})"

    @classmethod
    def load(
        cls,
        *,
        config: Path | None = None,
        environ: Mapping[str, str] | None = None,
        **keywords: object,
    ) -> Settings:
        """Return the settings of all sources, without keywords of None. Raises `InvalidSetting`,
        with the source.
        """
        environ = os.environ if environ is None else environ
        given = {key: value for key, value in keywords.items() if value is not None}
        chosen = (
            from_file(config, environ) | from_environment(environ) | layer(given.items())
        )
        return cls(
            **{name: READERS[name](label, value) for name, (label, value) in chosen.items()}
        )

    def replace(self, **changes: object) -> Settings:
        """The same settings with some replaced; validated like new ones. None sets None."""
        chosen: dict[str, Any] = {
            name: value for name, (_, value) in layer(changes.items()).items()
        }
        return dataclasses.replace(self, **chosen)

    def told(self) -> dict[str, object]:
        """The settings that differ from the defaults, as data that another process can read."""
        return {
            name: spell(value)
            if isinstance(value, timedelta)
            else sorted(value)
            if isinstance(value, frozenset)
            else value
            for name, value in self._changed()
        }

    def _changed(self) -> Iterator[tuple[str, object]]:
        values = ((each, getattr(self, each.name)) for each in dataclasses.fields(self))
        return ((each.name, value) for each, value in values if value != each.default)

    @property
    def worker(self) -> str:
        """The worker's name; default: the host's."""
        return self.worker_name or socket.gethostname()

    @property
    def lease(self) -> timedelta:
        """How long a claim is valid without a heartbeat."""
        return self.heartbeat_interval * self.missed_heartbeats_limit

    @property
    def statement_timeout(self) -> timedelta:
        """A third of the lease: a hanging statement leaves time for two more before claims are
        lost.
        """
        return self.lease / 3

    @property
    def lock_timeout(self) -> timedelta:
        """Below the heartbeat interval, so that a settlement waiting for a row cannot cost a
        lease.
        """
        return min(self.heartbeat_interval / 2, timedelta(seconds=5))

    @property
    def connect_timeout(self) -> timedelta:
        """About one heartbeat, in whole seconds as libpq requires (psycopg rounds 1 s up to 2
        s).
        """
        return timedelta(
            seconds=max(1, math.ceil(min(self.heartbeat_interval.total_seconds(), 10)))
        )

    @property
    def tcp_user_timeout(self) -> timedelta:
        """How long sent data may stay unacknowledged before a connection counts as broken; at
        least a second.
        """
        return min(
            max(self.heartbeat_interval, timedelta(seconds=1)), timedelta(seconds=10)
        )

    @staticmethod
    def check(name: str, value: object, place: str) -> None:
        """Check a value of the setting ``name``; of a name that is no setting, accept any.

        Raises InvalidSetting, which names ``place`` as where the value was written.
        """
        if (read := READERS.get(name)) is not None:
            read(place, value)


#: The reader of each setting.
READERS: Final[Mapping[str, Reader]] = {
    name: optional(hint.__metadata__[0])
    if type(None) in get_args(hint.__origin__)
    else hint.__metadata__[0]
    for name, hint in get_type_hints(Settings, include_extras=True).items()
}


Layer: TypeAlias = dict[str, tuple[str, object]]

#: The largest settings file, in bytes.
LARGEST_FILE = 1_048_576
PREFIX = "SLOTWISE_"
DEFAULT_FILES = ("slotwise.toml", "slotwise.yaml")
_YAML = (".yaml", ".yml")

#: Variables that begin like settings and are none: they are read before there are settings, belong
#: to the quick start's database, to the test suite or to the worker's own children, or tell a
#: command for which slot it runs.
OTHERS_VARIABLES = frozenset(
    f"SLOTWISE_{name}"
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
        else [path for path in map(Path, DEFAULT_FILES) if path.is_file()]
    )
    if not there:
        return {}
    if len(there) > 1:
        raise InvalidSetting(
            f"{' and '.join(DEFAULT_FILES)} are both there; keep one, or name it with --config"
        )
    (path,) = there
    if (
        not named
        and hasattr(os, "geteuid")
        and (owner := path.stat().st_uid) not in (0, os.geteuid())
    ):
        raise InvalidSetting(
            f"{path} in this directory belongs to another account (uid {owner}), "
            "which could choose what runs; "
            "name it with --config if you trust it, or go to another directory"
        )
    return layer(
        _table(path).items(),
        lambda key: f"{path.name}: {key}",
        lambda name: name.replace("_", "-"),
    )


def place(name: str, value: object) -> str | None:
    """Return the variable, or else the file, that sets this value; None if neither does."""
    for found in (from_environment(os.environ), from_file(None, os.environ)):
        if name in found:
            label, given = found[name]
            return label if READERS[name](label, given) == value else None
    return None


def from_environment(environ: Mapping[str, str]) -> Layer:
    """Return the settings of the environment; `DATABASE_URL` where `SLOTWISE_DATABASE_URL` is not
    set.
    """
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
    pairs: Iterable[tuple[str, object]],
    label: Callable[[str], str] = str,
    spell: Callable[[str], str] = str,
) -> Layer:
    """Return the settings of these pairs; ``label`` and ``spell`` give a key's and a setting's
    name in messages.
    """
    by_fold = {_fold(name): name for name in READERS}
    found: Layer = {}
    for key, value in _translated(pairs, label):
        name = by_fold.get(_fold(key)) or OTHER_NAMES.get(_fold(key))
        if name is None:
            near = difflib.get_close_matches(_fold(key), by_fold, n=1, cutoff=0.5)
            cure = (
                f"did you mean {spell(by_fold[near[0]])}?"
                if near
                else f"known are {', '.join(by_fold.values())}"
            )
            raise InvalidSetting(f"{label(key)} is not a setting; {cure}")
        if name in found:
            raise InvalidSetting(
                f"{label(key)} is the same setting as {found[name][0]}; keep one of them"
            )
        found[name] = (label(key), value)
    return found


def _table(path: Path) -> Mapping[str, object]:
    content = read_document(path, "settings file", "correct --config or SLOTWISE_CONFIG")
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


def read_document(path: Path, what: str, cure: str) -> object:
    """Return the content of a TOML or YAML file; an empty one is ``{}``.

    ``what`` names the file in messages, and ``cure`` ends that of a missing one. Raise
    InvalidSetting with the line.
    """
    import tomllib  # late: most processes have no such file

    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST_FILE:
            raise InvalidSetting(
                f"{path}: a {what} is a regular file of at most {LARGEST_FILE} bytes; {cure}"
            )
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidSetting(f"{path}: there is no such {what}; {cure}") from None
    except OSError as error:
        raise InvalidSetting(
            f"{path}: the {what} cannot be read: {error.strerror}; check its path"
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidSetting(
            f"{path}: byte {error.start} is not UTF-8; save the {what} as UTF-8"
        ) from None
    if path.suffix in _YAML:
        return _yaml(path, text)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        is_twice = re.search("overwrite|twice|mutate", str(error)) is not None
        raise _unread(
            path, text, "TOML", None if at is None else int(at[1]), is_twice=is_twice
        ) from None


def _unread(
    path: Path, text: str, form: str, line: int | None, *, is_twice: bool = False
) -> InvalidSetting:
    """The error for a line, counted from 1; None is the last one. Its value is not shown: it may
    be a password.

    So a line that begins with no name is not quoted, as it may be a part of a value.
    """
    lines = text.splitlines() or [""]
    number = min(line or len(lines), len(lines))
    why = (
        "has a name that is there twice; keep one of them"
        if is_twice
        else f"is not {form}; correct this line"
    )
    found = re.match(r"\s*([A-Za-z][\w .-]{0,58}?)\s*[=:](?!//)", lines[number - 1])
    return InvalidSetting(
        f"{path}:{number}: {repr(found[1]) if found else 'this line'} {why}"
    )


def _yaml(path: Path, text: str) -> object:
    try:
        import yaml
    except ImportError:
        raise InvalidSetting(
            f"{path}: this needs PyYAML; run: pip install 'slotwise[yaml]', or write TOML"
        ) from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def compose_mapping_node(self, anchor: Any) -> Any:
            """Refuse a name that is there twice: yaml's own loader silently uses the last one."""
            node = super().compose_mapping_node(anchor)
            names = [str(key.value) for key, _ in node.value]
            if twice := {name for name in names if names.count(name) > 1}:
                raise InvalidSetting(
                    f"{path}: {min(twice)} is there twice; keep one of them"
                )
            return node

    try:
        content = Loader(text).get_single_data()
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        mark = getattr(error, "problem_mark", None)
        raise _unread(path, text, "YAML", None if mark is None else mark.line + 1) from None
    return {} if content is None else content


def _fold(key: str) -> str:
    return key.replace("-", "").replace("_", "").casefold()


# Keys that configurations of db-scheduler use, as settings of ours; each in any spelling, as all
# keys. ``jobs-config`` is a table with the address of the scheduler's own pool; in the environment
# its keys are variables, such as ``SLOTWISE_JOBS_CONFIG_USERNAME``.

#: Keys without ``-``, ``_`` and capitals, with the setting that each means.
OTHER_NAMES: Final = {
    "pollinginterval": "poll_interval",
    "shutdownmaxwait": "shutdown_grace",
    "jobsconfig": "database_url",
    "jobsconfigmaximumpoolsize": "pool_size",
}
#: Keys without a counterpart, and what to do instead.
ABSENT: Final = {
    "deleteunresolvedafter": "slotwise never deletes rows of tasks that it does not know; remove it, find "
    "such rows "
    "with `slotwise health`, and delete a job with `slotwise delete`",
}

_POOL = "jobsconfig"
_KEYS = {
    "jdbcurl": "jdbc-url",
    "url": "jdbc-url",
    "username": "username",
    "user": "username",
    "password": "password",
}
_LOGIN = {"user": "username", "password": "password"}
_FORM = "write jdbc-url, username, password and maximum-pool-size"


def _translated(
    pairs: Iterable[tuple[str, object]], label: Callable[[str], str]
) -> Iterator[tuple[str, object]]:
    """Yield the pairs, with the keys of ``jobs-config`` as one address. Raises InvalidSetting with
    the cure.
    """
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
            raise InvalidSetting(
                f"{label(key)} must be a table, but was of type {type(value).__name__}; {_FORM}"
            )
        name = name or (key if folded == _POOL else "JOBS_CONFIG")
        parts = (
            ((f"{key}-{part}", text) for part, text in value.items())
            if isinstance(value, Mapping)
            else [(key, value)]
        )
        for full, text in parts:
            part = _fold(full).removeprefix(_POOL)
            if f"{_POOL}{part}" in OTHER_NAMES:
                yield full, text
            elif part not in _KEYS:
                raise InvalidSetting(
                    f"{label(full)} is not a setting of {label(name)}; {_FORM}"
                )
            elif not isinstance(text, str):
                raise InvalidSetting(
                    f"{label(full)} must be a string, but was of type "
                    f"{type(text).__name__}; {_FORM}"
                )
            else:
                pool[_KEYS[part]] = text
    if pool:
        yield name, _address(pool, label(name))


def _address(pool: Mapping[str, str], label: str) -> str:
    if not (address := pool.get("jdbc-url")):
        raise InvalidSetting(
            f"{label} has no jdbc-url; write jdbc:postgresql://host:5432/database"
        )
    login = urlencode(
        {key: pool[name] for key, name in _LOGIN.items() if name in pool}, quote_via=quote
    )
    return f"{address}{'&' if '?' in address else '?'}{login}" if login else address
