"""Histories of deploys and workers. They stop nothing: an entry that cannot be written, for lack of
a right or of space, is counted, and logged at most once an hour.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from slotwise.model.records import Key
from slotwise.store.connect.database_errors import describe_error
from slotwise.store.dialects.port import Transaction
from slotwise.store.slots.tuning import NAMES_KEPT

if TYPE_CHECKING:
    from slotwise.store.slots.store import Store

logger = logging.getLogger(__name__)

#: How a worker has ended: by itself, or silently.
LEFT = "left"
GONE = "gone"


class History:
    """Writes what a deploy has changed, and the lives of workers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._deploys = store.tables.deploys
        self._lives = store.tables.worker_history
        self._workers = store.tables.workers

    @contextmanager
    def _spared(self, what: str) -> Iterator[None]:
        """Log an error of the database in place of raising it."""
        try:
            yield
        except SQLAlchemyError as error:
            why = describe_error(error)
            title = f"the history of {what}"
            if lost := self._store.warnings.count(title, why):
                logger.warning("%s lacks entries (%d): %s", title, lost, why)

    def deployed(
        self,
        at: Transaction,
        schedules: Mapping[Key, tuple[str | None, str]],
        worker: str,
        revision: str | None = None,
    ) -> None:
        """Write how this transaction changes schedules, from and to; under a savepoint, so that
        the plan stays.
        """
        changes = [
            {
                **key._asdict(),
                "at": at.now,
                "former": former,
                "schedule": schedule,
                "revision": revision,
                "worker": worker,
            }
            for key, (former, schedule) in schedules.items()
        ]
        if changes:
            with self._spared("deploys"), at.connection.begin_nested():
                at.dialect.insert_missing(at.connection, self._deploys, changes)

    def signed_in(self, life: Mapping[str, object], tasks: Sequence[str]) -> None:
        """Write a worker that has signed in. The names of very many tasks are left out."""
        names = json.dumps(sorted(tasks)) if len(tasks) <= NAMES_KEPT else None
        row = {**life, "tasks": names}
        with self._spared("workers"), self._store.database.heart.begin() as connection:
            self._store.dialect.insert_new(connection, self._lives, row)

    def draining(self, worker: str, reason: str, since: timedelta) -> None:
        """Write that a worker has begun to drain, so long ago, and why."""
        with self._spared("workers"), self._store.database.heart.begin() as connection:
            drained = self._store.dialect.now(connection) - since
            mine = self._lives.update().where(self._lives.c.worker == worker)
            connection.execute(mine.values(drained=drained, reason=reason))

    def left(self, worker: str) -> None:
        """Write that a worker has signed out."""
        with self._spared("workers"), self._store.database.heart.begin() as connection:
            now = self._store.dialect.now(connection)
            mine = self._lives.update().where(self._lives.c.worker == worker)
            connection.execute(mine.values(ended=now, outcome=LEFT))

    def gone(self, before: datetime) -> None:
        """Write the end of workers that were last seen ``before`` this instant, whose rows are
        deleted next.
        """
        mine = self._workers.c.worker == self._lives.c.worker
        last_seen = sa.select(self._workers.c.last_seen).where(mine)
        silent = sa.exists().where(mine, self._workers.c.last_seen < before)
        open_lives = self._lives.update().where(self._lives.c.ended.is_(None), silent)
        end = {"ended": last_seen.scalar_subquery(), "outcome": GONE}
        with self._spared("workers"), self._store.database.heart.begin() as connection:
            connection.execute(open_lives.values(**end))
