"""The settings as keywords."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Literal, TypeAlias, TypedDict

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
    tz: str | None
    log_format: Literal["human", "json"] | None
    log_level: str | None
    process_hook: bool | None
