"""Galera: all workers of a cluster write to one node.

Each worker notes the name of its node in a row of ``meta``. One that sees a live worker on another
node for longer than two leases claims nothing until that has ended, and says why.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from slotwise import Settings
from slotwise.contrib.mysql.galera import node_of
from slotwise.spi import Database, Tables, database_url, tables

if TYPE_CHECKING:
    from slotwise.contrib.mysql.dialect import MySQL

logger = logging.getLogger(__name__)

#: How often a worker looks in a lease, and for how many leases it lets two nodes pass: a change of
#: the writer takes no longer.
LOOKS = 4
PATIENCE = 2
_PREFIX = "galera node of "


class WorkerNode(NamedTuple):
    """The node that a live worker uses; ``refusal``: why it claims nothing."""

    worker: str
    node: str
    refusal: str | None = None


class _View:
    """What a worker of this process has seen."""

    def __init__(self) -> None:
        self.looked: float | None = None
        self.refusal: str | None = None
        #: Since when another node is used, too.
        self.since: float | None = None
        #: When this worker has used which node.
        self.used: dict[str, float] = {}

    def judge(
        self, mine: WorkerNode, noted: Iterable[WorkerNode], now: float, lease: float
    ) -> None:
        """Decide whether this worker claims nothing: by what live workers have noted, and by its
        own connections.
        """
        # Old connections may stay for a lease, and are forgotten before two are over.
        elsewhere = self._elsewhere(mine, noted, now - lease / 2)
        if elsewhere is None:
            self.since = None
        elif self.since is None:
            self.since = now
        refusal = None
        if elsewhere and self._lasts(now, lease):
            refusal = _refusal(mine, elsewhere)
        self._tell(mine.node, refusal)

    def _lasts(self, now: float, lease: float) -> bool:
        return self.since is not None and now - self.since > PATIENCE * lease

    def _elsewhere(
        self, mine: WorkerNode, noted: Iterable[WorkerNode], since: float
    ) -> WorkerNode | None:
        """Return a worker that uses another node; this one, if some of its connections do."""
        self.used = {node: at for node, at in self.used.items() if at >= since}
        others = [one for one in noted if one.worker != mine.worker]
        others += [WorkerNode(mine.worker, node) for node in self.used]
        return next((one for one in others if one.node != mine.node), None)

    def _tell(self, node: str, refusal: str | None) -> None:
        """Log a refusal when it begins and when it ends."""
        before, self.refusal = self.refusal, refusal
        if refusal is not None and before is None:
            logger.warning("%s", refusal)
        elif before is not None and refusal is None:
            logger.warning("all workers use the node %s: claims continue", node)


class WriterNodes:
    """Which nodes the workers of these tables use. One process may have several workers."""

    def __init__(self, dialect: MySQL) -> None:
        self._dialect = dialect
        self._views: dict[str, _View] = {}

    def may_write(
        self, connection: sa.Connection, worker: str, lease: timedelta
    ) -> bool:
        """Return whether this worker may claim on this connection; note its node now and then, in
        the transaction of the claim.
        """
        node = node_of(connection)
        if node is None:
            return True
        view = self._views.setdefault(worker, _View())
        now = self._dialect.clock.elapsed()
        is_new = node not in view.used
        view.used[node] = now
        pause = lease.total_seconds() / LOOKS
        if is_new or view.looked is None or now - view.looked >= pause:
            self._look(connection, WorkerNode(worker, node), view, now, lease)
        return view.refusal is None

    def _look(
        self,
        connection: sa.Connection,
        mine: WorkerNode,
        view: _View,
        now: float,
        lease: timedelta,
    ) -> None:
        found = list(self._read(connection, lease))
        view.judge(mine, found, now, lease.total_seconds())
        if view.looked is None:
            self._forget_dead(connection)
        view.looked = now
        wanted = mine._replace(refusal=view.refusal)
        if wanted not in found:
            self._note(connection, wanted)

    def _read(
        self, connection: sa.Connection, lease: timedelta
    ) -> Iterator[WorkerNode]:
        """Yield what live workers have noted."""
        since = self._dialect.ago(connection, lease)
        return _noted(connection, self._dialect.tables, since)

    def _note(self, connection: sa.Connection, mine: WorkerNode) -> None:
        row = {
            "key": _PREFIX + mine.worker,
            "value": json.dumps([mine.node, mine.refusal]),
        }
        meta = self._dialect.tables.meta
        self._dialect.upsert(
            connection, meta, row, lambda new: {"value": new["value"]}
        )

    def _forget_dead(self, connection: sa.Connection) -> None:
        """Delete the notes of workers that have no row any more."""
        meta, workers = self._dialect.tables.meta, self._dialect.tables.workers.c
        theirs = meta.c.key == sa.func.concat(_PREFIX, workers.worker)
        is_known = sa.exists().where(theirs)
        gone = meta.delete().where(meta.c.key.like(f"{_PREFIX}%"), ~is_known)
        connection.execute(gone)


def _refusal(mine: WorkerNode, other: WorkerNode) -> str:
    told = f"worker {other.worker} uses the node {other.node}"
    if other.worker == mine.worker:
        told = f"some of its connections lead to the node {other.node}"
    return (
        f"worker {mine.worker} claims nothing: it uses the node {mine.node} of a Galera cluster, "
        f"and {told}; let all workers and clients use one node"
    )


def _noted(
    connection: sa.Connection, ours: Tables, since: sa.ColumnElement[datetime]
) -> Iterator[WorkerNode]:
    workers, meta = ours.workers.c, ours.meta.c
    mine = meta.key == sa.func.concat(_PREFIX, workers.worker)
    query = sa.select(workers.worker, meta.value).where(
        mine, workers.last_seen > since
    )
    for worker, value in connection.execute(query.order_by(workers.worker)):
        node, refusal = json.loads(value)
        yield WorkerNode(worker, node, refusal)


def worker_nodes(settings: Settings) -> list[WorkerNode]:
    """Return the nodes that live workers use; none where the database is no cluster."""
    if database_url(settings.database_url).get_backend_name() != "mysql":
        return []
    database = Database(settings)
    try:
        with database.in_words(), database.transaction() as connection:
            if node_of(connection) is None:
                return []
            ours = tables(settings.table_prefix, settings.schema, "mysql")
            lease = settings.lease.total_seconds()
            span = sa.text(f"INTERVAL {lease:.6f} SECOND")
            since = sa.func.date_sub(
                sa.func.utc_timestamp(6), span, type_=ours.workers.c.last_seen.type
            )
            return list(_noted(connection, ours, since))
    finally:
        database.close()
