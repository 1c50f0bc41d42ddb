"""The live workers, as the database knows them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.clock import host_now
from slotwise.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Badge:
    """What a worker says of itself; ``worker`` is host, pid and boot id, and stands in ``picked_by``.

    ``refused``: the jobs whose schedules stayed as a newer deploy has planned them.
    """

    worker: str
    host: str
    pid: int
    boot_id: str
    version: str
    capacity: int
    tags: Sequence[str]
    tasks: Sequence[str]
    lease: timedelta
    started: datetime
    revision: str | None
    refused: Sequence[str]


class Roster:
    """One row per live process; renewed with each heartbeat, on the heartbeats' connection."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._workers = store.tables.workers

    def sign_in(self, badge: Badge, state: str) -> float:
        """Insert or renew the worker's row; the skew of this host's clock against the database's, in seconds."""
        with self._store.database.heart.begin() as connection:
            before = host_now()
            now = self._store.dialect.now(connection)
            skew = (before + (host_now() - before) / 2 - now).total_seconds()
            values = {
                "worker": badge.worker, "host": badge.host, "pid": badge.pid, "boot_id": badge.boot_id,
                "version": badge.version, "capacity": badge.capacity, "tags": json.dumps(sorted(badge.tags)),
                "tasks": json.dumps(sorted(badge.tasks)), "lease": badge.lease, "started": badge.started,
                "revision": badge.revision, "refused": json.dumps(sorted(badge.refused)),
                "state": state, "last_seen": now, "skew": skew,
            }  # fmt: skip
            statement = self._store.dialect.insert(self._workers).values(**values)
            renewed = {name: statement.excluded[name] for name in ("state", "last_seen", "skew", "capacity")}
            connection.execute(statement.on_conflict_do_update(index_elements=[self._workers.c.worker], set_=renewed))
        return skew

    def sign_out(self, worker: str) -> None:
        """The worker has ended in order."""
        with self._store.database.heart.begin() as connection:
            connection.execute(self._workers.delete().where(self._workers.c.worker == worker))

    def sweep(self, older_than: timedelta) -> int:
        """Forget workers that were last seen longer ago than ``older_than``."""
        with self._store.database.heart.begin() as connection:
            limit = self._store.dialect.now(connection) - older_than
            return connection.execute(self._workers.delete().where(self._workers.c.last_seen < limit)).rowcount

    def live(self) -> list[sa.RowMapping]:
        """All workers' rows, the newest first."""
        with self._store.transaction() as connection:
            return list(
                connection.execute(sa.select(self._workers).order_by(self._workers.c.started.desc())).mappings()
            )
