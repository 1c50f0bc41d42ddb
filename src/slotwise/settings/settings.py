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
import math
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_type_hints

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
from slotwise.settings.sources import from_environment, from_file, layer


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings:
    """How a worker behaves; validated when it is created.

    Raises `InvalidSetting`, one line with the setting, its value, the range and the remedy.
    Durations may be given as `timedelta`, `"10s"` or `"PT10S"`.
    """

    database_url: Annotated[str | None, secret] = None
    """Where the tables are: any spelling of a PostgreSQL or SQLite address, or a libpq keyword
    string.
    """

    schema: Annotated[str | None, identifier(63)] = None
    """PostgreSQL schema of the tables; None takes the first one on the connection's search
    path.
    """

    table_prefix: Annotated[str, identifier(32)] = "scheduled_"
    """The prefix of every table name."""

    poll_interval: Annotated[
        timedelta, duration("1us", "1d", "a zero interval would spin")
    ] = timedelta(seconds=10)
    """Longest pause between two polls for due rows; a known due time or a job with shorter
    intervals shortens it.
    """

    heartbeat_interval: Annotated[
        timedelta, duration("20ms", "1h", "each is one statement")
    ] = timedelta(seconds=10)
    """How often held claims are renewed."""

    missed_heartbeats_limit: Annotated[
        int, whole(3, 1000, "fewer would take live claims away at the first hiccup")
    ] = 6
    """A claim is good for this many heartbeat intervals."""

    shutdown_grace: Annotated[
        timedelta, duration("0s", "7d", "zero does not wait")
    ] = timedelta(seconds=30)
    """How long running handlers may finish after a stop before they are cancelled; zero is
    allowed.
    """

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
    """How many missed or late slots may start per second in the whole cluster; None: no
    limit.
    """

    revision: Annotated[str | None, printable(100)] = None
    """Deploy id: a number, version or time that grows; a lower one never changes what a
    higher one has planned.
    """

    worker_name: Annotated[str | None, printable(100)] = None
    """The worker's name; None is the host name."""

    tags: Annotated[frozenset[str], names(100, blanks=False)] = frozenset()
    """Tags that this worker offers to jobs that require them with `runs_on`."""

    only: Annotated[frozenset[str], names(100)] = frozenset()
    """Names of the jobs that this worker runs; empty is all."""

    schedules: Annotated[frozenset[tuple[str, str]], pairs(100)] = frozenset()
    """Schedules that replace those in the code: names of jobs and text forms."""

    pooler: Annotated[bool, switch] = False
    """Whether a transaction pooler is in between: deadlines are then set per transaction,
    not per connection.
    """

    pool_size: Annotated[int, whole(1, 100, "4 are enough for most")] = 4
    """Connections that stay open for polls, settlements and clients; at a peak there are
    four more.
    """

    wake_up: Annotated[bool, switch] = True
    """Whether to notify workers when a task is scheduled, and to listen; if off, due rows
    are found by polls alone.
    """

    wake_up_url: Annotated[str | None, secret] = None
    """Address for listening that bypasses a pooler, to the same database; None is
    ``database_url``.
    """

    retention: Annotated[
        timedelta, duration("0s", "36500d", "zero keeps everything")
    ] = timedelta(days=90)
    """How long the ledger keeps slots that succeeded or were skipped; zero keeps them for
    ever.
    """

    failure_retention: Annotated[
        timedelta, duration("0s", "36500d", "zero keeps everything")
    ] = timedelta(days=365)
    """The same for slots that ended as failed, dead, lost or cancelled."""

    redact: Annotated[frozenset[str], patterns] = frozenset()
    """Regular expressions of what else is hidden in stored errors and in the log's
    tracebacks.
    """

    app: Annotated[str | None, printable(500)] = None
    """Where the registry is: `package.module` or `package.module:attribute`."""

    tz: Annotated[str | None, printable(100)] = None
    """The time zone in which commands show times; none: that of each job."""

    log_format: Annotated[str, choice("human", "json")] = "human"
    """`human`, or `json` for one object per line."""

    log_level: Annotated[
        str, choice("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    ] = "INFO"
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
        shown = (
            f"{name}={hide_password(repr(value))}" for name, value in self._changed()
        )
        return f"Settings({', '.join(shown)})"

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
            from_file(config, environ)
            | from_environment(environ)
            | layer(given.items())
        )
        return cls(
            **{
                name: READERS[name](label, value)
                for name, (label, value) in chosen.items()
            }
        )

    def replace(self, **changes: object) -> Settings:
        """The same settings with some replaced; validated like new ones. None sets None."""
        chosen: dict[str, Any] = {
            name: value for name, (_, value) in layer(changes.items()).items()
        }
        return dataclasses.replace(self, **chosen)

    def told(self) -> dict[str, object]:
        """The settings that differ from the defaults, as data that another process can read."""
        return {name: _told(value) for name, value in self._changed()}

    def _changed(self) -> Iterator[tuple[str, object]]:
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if value != each.default:
                yield each.name, value

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
        seconds = math.ceil(min(self.heartbeat_interval.total_seconds(), 10))
        return timedelta(seconds=max(1, seconds))

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


def _told(value: object) -> object:
    if isinstance(value, timedelta):
        return spell(value)
    return sorted(value) if isinstance(value, frozenset) else value


def _reader(hint: Any) -> Reader:
    """Return the reader of an annotation; None is read as None where the type has it."""
    read: Reader = hint.__metadata__[0]
    return optional(read) if type(None) in get_args(hint.__origin__) else read


#: The reader of each setting.
READERS: Final[Mapping[str, Reader]] = {
    name: _reader(hint)
    for name, hint in get_type_hints(Settings, include_extras=True).items()
}


def place(name: str, value: object) -> str | None:
    """Return the variable, or else the file, that sets this value; None if neither does."""
    for found in (from_environment(os.environ), from_file(None, os.environ)):
        if name in found:
            label, given = found[name]
            return label if READERS[name](label, given) == value else None
    return None
