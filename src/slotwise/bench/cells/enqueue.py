"""How fast tasks are enqueued, and for how much CPU: what the client offers, beside bare psycopg."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import sqlalchemy as sa

from slotwise.asked import Item
from slotwise.bench.app import TASK
from slotwise.bench.journal import RanWrong
from slotwise.bench.raw import Raw
from slotwise.bench.readings import Reading
from slotwise.bench.run import Cell, Run
from slotwise.bench.slotwise_contender import Slotwise, registry_for
from slotwise.clock import elapsed
from slotwise.store.dsn import database_url, psycopg

ROWS = 100_000
CHUNK, COPY_CHUNK = 1_000, 10_000

_COLUMNS = "task_name, task_instance, task_data, execution_time, picked, version, priority"
_UNNEST = f"""
INSERT INTO raw_tasks ({_COLUMNS})
SELECT 'bench', i, '{{}}', statement_timestamp(), false, 1, 50 FROM unnest(%s::text[]) AS i ON CONFLICT DO NOTHING"""

#: Enqueues tasks 1 to the count.
Enqueue: TypeAlias = Callable[[str, int], None]


def _raw_unnest(url: str, count: int) -> None:
    with psycopg().connect(url, autocommit=True) as connection:
        for first in range(1, count + 1, CHUNK):
            names = [str(number) for number in range(first, min(first + CHUNK, count + 1))]
            connection.execute(_UNNEST, (names,))


def _raw_copy(url: str, count: int, *, chunk: int = CHUNK) -> None:
    now = "now"
    with psycopg().connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        for first in range(1, count + 1, chunk):
            with cursor.copy(f"COPY raw_tasks ({_COLUMNS}) FROM STDIN") as copy:
                for number in range(first, min(first + chunk, count + 1)):
                    copy.write_row(("bench", str(number), b"{}", now, False, 1, 50))


def _one_by_one(url: str, count: int) -> None:
    registry = registry_for(url)
    try:
        for number in range(1, count + 1):
            registry.client.schedule(TASK, {}, id=str(number))
    finally:
        registry.database.close()


def _in_one_transaction(url: str, count: int) -> None:
    """``client.schedule`` in the caller's transaction, committed every 1,000 rows."""
    registry, engine = registry_for(url), sa.create_engine(database_url(url))
    try:
        for first in range(1, count + 1, CHUNK):
            with engine.begin() as connection:
                for number in range(first, min(first + CHUNK, count + 1)):
                    registry.client.schedule(TASK, {}, id=str(number), connection=connection)
    finally:
        registry.database.close()
        engine.dispose()


def _many(url: str, count: int, *, copy: bool = False) -> None:
    """``client.schedule_many``, with an id of ours for each; in chunks of a thousand, or ten thousand by COPY."""
    registry = registry_for(url)
    try:
        items: Iterator[Item[Any]] = (Item({}, id=str(number)) for number in range(1, count + 1))
        registry.client.schedule_many(TASK, items, copy=copy)
    finally:
        registry.database.close()


#: Name, where the rows go, how, and which share of the rows (each statement of its own takes its time).
WAYS: tuple[tuple[str, str, Enqueue, float], ...] = (
    ("raw-unnest-1000", "raw", _raw_unnest, 1.0),
    ("raw-copy-1000", "raw", _raw_copy, 1.0),
    ("raw-copy-10000", "raw", partial(_raw_copy, chunk=COPY_CHUNK), 1.0),
    ("slotwise-many-unnest", "slotwise", _many, 1.0),
    ("slotwise-many-copy", "slotwise", partial(_many, copy=True), 1.0),
    ("slotwise-schedule", "slotwise", _one_by_one, 0.02),
    ("slotwise-schedule-1000-per-commit", "slotwise", _in_one_transaction, 0.04),
)


def _enqueue(run: Run) -> Iterator[Reading]:
    owners: dict[str, Any] = {"raw": Raw(500), "slotwise": Slotwise()}
    for number in range(1, run.rounds + 1):
        for name, family, way, share in WAYS:
            yield _timed(run, owners[family], name, way, run.scaled(round(ROWS * share), 20), number)


def _timed(run: Run, owner: Any, name: str, way: Enqueue, count: int, number: int) -> Reading:
    url, table = run.prepared(owner), f"{'scheduled' if owner.family == 'slotwise' else 'raw'}_tasks"
    run.server.settle(owner.family)
    server, client, began = run.server.cpu(), time.process_time(), elapsed()
    way(url, count)
    figures = {"rate": count / (elapsed() - began), "client_us": (time.process_time() - client) * 1e6 / count}
    if server is not None and (spent := run.server.cpu()) is not None:
        figures["server_us"] = (spent - server) * 1e6 / count
    with run.server.connect(owner.family) as connection:
        found = connection.execute(f"SELECT count(DISTINCT task_instance) FROM {table}").fetchone()[0]
    if found != count:
        raise RanWrong(f"enqueue, {name}: {found} rows of {count} are there; this run proves nothing")
    return Reading(cell="enqueue", contender=name, round=number, figures=figures, checked=count)


ENQUEUE = Cell(name="enqueue", title="enqueueing many tasks, one client", measure=_enqueue)
