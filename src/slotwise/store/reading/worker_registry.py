"""The rows of live workers: each worker writes its own, and people read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from datetime import datetime, timedelta

import sqlalchemy as sa

from slotwise.model.clock import host_now
from slotwise.model.vocabulary import WorkerState
from slotwise.store.schema.tables import Columns
from slotwise.store.slots.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Badge:
    """What a worker reports about itself; ``worker`` is host, pid and boot id, as in
    ``picked_by``.

    ``refused``: jobs that a newer deploy has planned. ``passed_over``: tasks that it does not
    claim for lack of tags.
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
    passed_over: Mapping[str, Sequence[str]]


class WorkerRegistry:
    """One row per live process; renewed with each heartbeat, on the heartbeats' connection."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._workers = store.tables.workers

    def sign_in(
        self, badge: Badge, state: str, skew: float | None = None
    ) -> tuple[float, int]:
        """Insert the worker's row, or renew it with the ``skew`` that the last call returned.

        Return the host's clock drift in seconds, and the number of live workers with the same
        tasks and tags.
        """
        if skew is not None:
            before = host_now()
            with self._transaction() as connection:
                found = self._renew(connection, badge, state, skew)
            if found is not None:
                now, peers, has_silent = found
                if has_silent:
                    self._mark_gone(badge)
                return _skew(before, now), peers
        with self._transaction() as connection:
            before = host_now()
            now = self._store.dialect.now(connection)
            skew = _skew(before, now)
            # Race: the reply to the first time may have been lost; then the row is there.
            row = _columns(badge) | {"state": state, "last_seen": now, "skew": skew}
            self._store.dialect.insert_new(connection, self._workers, row)
        return skew, 1

    def _transaction(self) -> AbstractContextManager[sa.Connection]:
        return self._store.database.heart.begin()

    def _renew(
        self, connection: sa.Connection, badge: Badge, state: str, skew: float
    ) -> tuple[datetime, int, bool] | None:
        """Renew the row in one statement: an idle worker does little else.

        Return the database's time, the number of peers, and whether a worker is to be marked as
        gone.
        """
        mine = self._workers
        dialect = self._store.dialect
        renewal = mine.update().where(mine.c.worker == badge.worker)
        renewal = renewal.values(
            state=state,
            last_seen=dialect.ago(connection),
            skew=skew,
            capacity=badge.capacity,
        )
        others = self._workers.alias("others").c
        peers = sa.select(sa.func.count()).where(
            others.tasks == mine.c.tasks,
            others.tags == mine.c.tags,
            others.state.in_((WorkerState.RUNNING, WorkerState.SLOW)),
            others.last_seen > dialect.ago(connection, badge.lease),
        )
        silent = sa.exists().where(*self._silent(connection, others, badge))
        read = dialect.reading(
            renewal, mine.c.last_seen, peers.scalar_subquery(), silent
        )
        found = next(iter(read(connection)), None)
        return None if found is None else (found[0], found[1], found[2])

    def _mark_gone(self, badge: Badge) -> None:
        """Write ``gone`` to the rows of silent workers. One that stirs writes its own state again.

        Race: two workers that were both frozen mark each other. A separate transaction holds no
        row that the other one waits for.
        """
        workers = self._workers
        with self._transaction() as connection:
            silent = sa.select(workers.c.worker).where(
                *self._silent(connection, workers.c, badge)
            )
            locked = self._store.dialect.locked(connection, silent)
            connection.execute(
                workers.update().where(locked).values(state=WorkerState.GONE)
            )

    def _silent(
        self, connection: sa.Connection, workers: Columns, badge: Badge
    ) -> list[sa.ColumnElement[bool]]:
        """Whether a worker was not seen within its lease. Those with a longer lease are left to
        others like them.
        """
        ago = self._store.dialect.ago(connection, badge.lease)
        return [
            workers.last_seen < ago,
            workers.lease <= badge.lease,
            workers.state != WorkerState.GONE,
        ]

    def sign_out(self, worker: str) -> None:
        with self._transaction() as connection:
            connection.execute(
                self._workers.delete().where(self._workers.c.worker == worker)
            )

    def sweep(self, older_than: timedelta) -> int:
        """Delete the rows of workers that were last seen longer ago than ``older_than``; return
        how many.
        """
        limit = self._store.now() - older_than
        self._store.history.gone(limit)
        with self._transaction() as connection:
            return connection.execute(
                self._workers.delete().where(self._workers.c.last_seen < limit)
            ).rowcount


def _columns(badge: Badge) -> dict[str, object]:
    """Return the columns of a worker's row, with lists as JSON."""
    found: dict[str, object] = {
        field.name: getattr(badge, field.name) for field in fields(badge)
    }
    for name in ("tags", "tasks", "refused"):
        found[name] = json.dumps(sorted(getattr(badge, name)))
    found["passed_over"] = json.dumps(badge.passed_over, sort_keys=True)
    return found


def _skew(before: datetime, now: datetime) -> float:
    """Return the minimum offset of this host's clock: the database read ``now`` some time after
    ``before``.
    """
    return max(before - now, min(host_now() - now, timedelta(0))).total_seconds()
