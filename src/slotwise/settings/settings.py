"""Settings: one frozen value that determines how a worker behaves.

Sources, each outranking the one before: the defaults below, a TOML or YAML file, the environment, keywords.

- The file is the `config` argument, else `SLOTWISE_CONFIG`, else `./slotwise.toml` or `./slotwise.yaml` where one
  exists; keys stand at the top level, or in `[tool.slotwise]` of a `pyproject.toml`.
- In the environment a setting is `SLOTWISE_` and its name (`SLOTWISE_POLL_INTERVAL`); an empty variable
  counts as absent. `DATABASE_URL` is used if `SLOTWISE_DATABASE_URL` is not set.
- `poll-interval`, `pollInterval` and `poll_interval` are the same key everywhere.
"""

from __future__ import annotations

import dataclasses
import math
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

from slotwise.errors import InvalidSetting
from slotwise.model.error_text import hide_password
from slotwise.settings import sources as sources
from slotwise.settings.sources import READERS, spell

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

    database_url: str | None = None
    """Where the tables are: any spelling of a PostgreSQL or SQLite address, or a libpq keyword string."""

    schema: str | None = None
    """PostgreSQL schema of the tables; None takes the first one on the connection's search path."""

    table_prefix: str = "scheduled_"
    """The prefix of every table name."""

    poll_interval: timedelta = timedelta(seconds=10)
    """Longest pause between two looks for due rows; a known due time or a job with shorter intervals shortens it."""

    heartbeat_interval: timedelta = timedelta(seconds=10)
    """How often held claims are renewed."""

    missed_heartbeats_limit: int = 6
    """A claim is good for this many heartbeat intervals."""

    shutdown_grace: timedelta = timedelta(seconds=30)
    """How long running handlers may finish after a stop before they are cancelled; zero is allowed."""

    threads: int | None = None
    """Capacity of a worker process; None is the number of jobs and tasks, from 10 to 500."""

    processes: int = 1
    """Worker processes that one command starts."""

    reaper_interval: timedelta | None = None
    """How often claims of other workers are checked; None is the heartbeat interval."""

    recovery_rate: int | None = None
    """How many missed or late slots may start per second in the whole cluster; None: no limit."""

    revision: str | None = None
    """Deploy id: a number, version or time that grows; a lower one never changes what a higher one has planned."""

    worker_name: str | None = None
    """The worker's name; None is the host name."""

    tags: frozenset[str] = frozenset()
    """Tags that this worker offers to jobs that require them with `runs_on`."""

    only: frozenset[str] = frozenset()
    """Names of the jobs that this worker runs; empty is all."""

    schedules: frozenset[tuple[str, str]] = frozenset()
    """Schedules that replace those in the code: names of jobs and text forms."""

    pooler: bool = False
    """Whether a transaction pooler is in between: deadlines are then set per transaction, not per connection."""

    pool_size: int = 4
    """Connections that stay open for polls, settlements and clients; at a peak there are four more."""

    wake_up: bool = True
    """Whether to notify workers when a task is scheduled, and to listen; if off, due rows are found by polls alone."""

    wake_up_url: str | None = None
    """Address for listening that bypasses a pooler, to the same database; None is ``database_url``."""

    retention: timedelta = timedelta(days=90)
    """How long the ledger keeps slots that succeeded or were skipped; zero keeps them for ever."""

    failure_retention: timedelta = timedelta(days=365)
    """The same for slots that ended as failed, dead, lost or cancelled."""

    redact: frozenset[str] = frozenset()
    """Regular expressions of what else is hidden in stored errors and in the log's tracebacks."""

    app: str | None = None
    """Where the registry is: `package.module` or `package.module:attribute`."""

    log_format: str = "human"
    """`human`, or `json` for one object per line."""

    log_level: str = "INFO"
    """The least severe log record that is written."""

    process_hook: bool = True
    """Drain on SIGTERM and SIGINT; turn it off if the host application handles signals."""

    def __post_init__(self) -> None:
        for name, read in READERS.items():
            object.__setattr__(self, name, read(name, getattr(self, name)))
        if self.reaper_interval is not None and self.reaper_interval > self.lease:
            raise InvalidSetting(
                f"reaper_interval must be at most the lease (heartbeat_interval × missed_heartbeats_limit = "
                f"{spell(self.lease)}), but was {spell(self.reaper_interval)}; leave it out"
            )

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{each.name}={hide_password(repr(getattr(self, each.name)))}"
            for each in dataclasses.fields(self)
            if getattr(self, each.name) != each.default
        )
        return f"Settings({shown})"

    @classmethod
    def load(
        cls, *, config: Path | None = None, environ: Mapping[str, str] | None = None, **keywords: object
    ) -> Settings:
        """Settings from all sources; a keyword that is None is ignored.

        Raises `InvalidSetting`, which names the source of the value, for a wrong value, an unknown key or a
        file that cannot be read.
        """
        environ = os.environ if environ is None else environ
        given = {key: value for key, value in keywords.items() if value is not None}
        chosen = sources.from_file(config, environ) | sources.from_environment(environ) | sources.layer(given.items())
        return cls(**{name: READERS[name](label, value) for name, (label, value) in chosen.items()})

    def replace(self, **changes: object) -> Settings:
        """The same settings with some replaced; validated like new ones. None sets None."""
        chosen = sources.layer(changes.items())
        values: dict[str, Any] = {name: value for name, (_, value) in chosen.items()}
        return dataclasses.replace(self, **values)

    def told(self) -> dict[str, object]:
        """The settings that differ from the defaults, as data that another process can read."""
        found = {}
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if value != each.default:
                found[each.name] = spell(value) if isinstance(value, timedelta) else value
        return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in found.items()}

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
        """A third of the lease: a hanging statement leaves time for two more before claims are lost."""
        return self.lease / 3

    @property
    def lock_timeout(self) -> timedelta:
        """Below the heartbeat interval, so that a settlement waiting for a row cannot cost a lease."""
        return min(self.heartbeat_interval / 2, timedelta(seconds=5))

    @property
    def connect_timeout(self) -> timedelta:
        """About one heartbeat, in whole seconds as libpq requires (psycopg rounds 1 s up to 2 s)."""
        return timedelta(seconds=max(1, math.ceil(min(self.heartbeat_interval.total_seconds(), 10))))

    @property
    def tcp_user_timeout(self) -> timedelta:
        """How long sent data may stay unacknowledged before a connection counts as broken; at least a second."""
        return min(max(self.heartbeat_interval, timedelta(seconds=1)), timedelta(seconds=10))

    @property
    def idle_in_transaction_timeout(self) -> timedelta:
        """The lease: the locks of a frozen worker end when its claims do."""
        return self.lease
