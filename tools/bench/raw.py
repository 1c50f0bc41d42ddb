"""The raw limit: bare psycopg and two statements per batch, nothing else. Run as a program, it is
a worker.

No retries, no heartbeats, no threads, no handlers but the note in the journal: no library that
makes the same commits can be faster.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from tools.bench.crew import Command
from tools.bench.journal import Journal
from tools.bench.run import Contender, Send, micros, python

# The twelve columns of db-scheduler, and the one index that a queue needs.
_TABLES = """
CREATE TABLE IF NOT EXISTS raw_tasks (
    task_name text, task_instance text, task_data bytea, execution_time timestamptz NOT NULL, picked boolean NOT NULL,
    picked_by text, last_success timestamptz, last_failure timestamptz, consecutive_failures int,
    last_heartbeat timestamptz, version bigint NOT NULL, priority smallint, PRIMARY KEY (task_name, task_instance));
CREATE INDEX IF NOT EXISTS raw_tasks_due ON raw_tasks (execution_time) WHERE NOT picked;
CREATE TABLE IF NOT EXISTS raw_slots (
    task_name text, task_instance text, slot timestamptz, outcome text NOT NULL, token bigint, worker text,
    started timestamptz, finished timestamptz, PRIMARY KEY (task_name, task_instance, slot))"""

_FILL = """
INSERT INTO raw_tasks (task_name, task_instance, task_data, execution_time, picked, version, priority)
SELECT 'bench', i::text, '{}', statement_timestamp() - interval '1 minute' + i * interval '1 microsecond', false, 1, 50
FROM generate_series(1, %s) AS i"""

_CLAIM = """\
UPDATE raw_tasks SET picked = true, picked_by = %(me)s, last_heartbeat = statement_timestamp(), version = version + 1
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM raw_tasks WHERE NOT picked AND execution_time <= statement_timestamp()
    ORDER BY execution_time LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
RETURNING task_name, task_instance, task_data, execution_time, version"""

_COMPLETE = """
DELETE FROM raw_tasks AS t
USING unnest(%(names)s::text[], %(instances)s::text[], %(versions)s::bigint[]) AS i(task_name, task_instance, version)
WHERE t.task_name = i.task_name AND t.task_instance = i.task_instance AND t.version = i.version"""

_CLAIM_SLOTS = f"""
WITH due AS ({_CLAIM}), ledger AS (
    INSERT INTO raw_slots (task_name, task_instance, slot, outcome, token, worker, started)
    SELECT task_name, task_instance, execution_time, 'running', version, %(me)s, statement_timestamp() FROM due)
SELECT * FROM due"""

_COMPLETE_SLOTS = """
WITH done AS (
    UPDATE raw_tasks AS t
    SET picked = false, picked_by = NULL, last_heartbeat = NULL, version = t.version + 1,
        execution_time = i.slot + interval '1 day', last_success = statement_timestamp(), consecutive_failures = 0
    FROM unnest(%(names)s::text[], %(instances)s::text[], %(slots)s::timestamptz[], %(versions)s::bigint[])
         AS i(task_name, task_instance, slot, version)
    WHERE t.task_name = i.task_name AND t.task_instance = i.task_instance AND t.version = i.version
    RETURNING t.task_name, t.task_instance, i.slot, i.version)
UPDATE raw_slots AS s SET outcome = 'succeeded', finished = statement_timestamp()
FROM done AS d
WHERE s.task_name = d.task_name AND s.task_instance = d.task_instance AND s.slot = d.slot AND s.token = d.version"""

_DONE = """
SELECT NOT EXISTS (SELECT FROM raw_tasks WHERE picked) AND NOT EXISTS (SELECT FROM raw_slots WHERE finished IS NULL)"""
_NEXT = "SELECT min(execution_time) - statement_timestamp() FROM raw_tasks WHERE NOT picked"
_SEND = """
WITH sent AS (
    INSERT INTO raw_tasks (task_name, task_instance, task_data, execution_time, picked, version, priority)
    VALUES ('bench', %s, '{}', statement_timestamp(), false, 1, 50))
SELECT pg_notify('raw_tasks', '')"""


class Raw(Contender):
    """Tasks, claimed and completed ``batch`` at a time."""

    family = "raw"

    def __init__(
        self, batch: int, mode: str = "drain", name: str | None = None
    ) -> None:
        self.name = name or f"raw-{batch}"
        self._batch = batch
        self._mode = mode

    def prepare(self, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(_TABLES)

    def empty(self, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("TRUNCATE raw_tasks, raw_slots")

    def fill(self, url: str, count: int) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(_FILL, (count,))

    def command(self, url: str) -> Command:
        return python("tools.bench.raw", url=url, mode=self._mode, batch=self._batch)

    def is_done(self, connection: Any) -> bool:
        return bool(connection.execute(_DONE).fetchone()[0])

    def listening(self, url: str) -> Command:
        return python("tools.bench.raw", url=url, mode="listen", batch=self._batch)

    @contextmanager
    def sender(self, url: str) -> Iterator[Send]:
        with psycopg.connect(url, autocommit=True) as connection:
            yield lambda number: connection.execute(_SEND, (str(number),))

    def plan(self, url: str, due: Sequence[datetime]) -> Command:
        rows = [
            ("bench", str(micros(instant)), b"{}", instant, False, 1, 50)
            for instant in due
        ]
        with (
            psycopg.connect(url, autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.executemany(
                "INSERT INTO raw_tasks (task_name, task_instance, task_data, "
                "execution_time, picked, version, priority)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s)",
                rows,
            )
        return python("tools.bench.raw", url=url, mode="timer", batch=self._batch)


class Loop:
    """The worker: one connection, prepared statements, autocommit."""

    def __init__(self, url: str, batch: int, journal: Journal, *, slots: bool) -> None:
        self._connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        self._batch = batch
        self._note = journal.note
        self._me = f"raw-{os.getpid()}"
        self._claim, self._complete = (
            (_CLAIM_SLOTS, _COMPLETE_SLOTS) if slots else (_CLAIM, _COMPLETE)
        )
        self.is_stopped = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self.is_stopped = True

    def run_batch(self) -> int:
        """Claim, note and complete a batch. Return its size."""
        rows = self._connection.execute(
            self._claim, {"me": self._me, "limit": self._batch}
        ).fetchall()
        if not rows:
            return 0
        for row in rows:
            self._note(int(row[1]))
        arrays = {
            "names": [row[0] for row in rows],
            "instances": [row[1] for row in rows],
        }
        arrays |= {
            "slots": [row[3] for row in rows],
            "versions": [row[4] for row in rows],
        }
        self._connection.execute(self._complete, arrays)
        return len(rows)

    def drain(self) -> None:
        """Run batches until stopped; an empty one may mean that other workers hold the due
        rows.
        """
        while not self.is_stopped:
            if not self.run_batch():
                time.sleep(0.001)

    def listen(self) -> None:
        """Run batches, and sleep until a notification comes."""
        self._connection.execute("LISTEN raw_tasks")
        while not self.is_stopped:
            while self.run_batch():
                continue
            for _ in self._connection.notifies(timeout=1.0, stop_after=1):
                continue

    def timer(self) -> None:
        """Run batches, and sleep until the next row is due."""
        while not self.is_stopped:
            while self.run_batch():
                continue
            row = self._connection.execute(_NEXT).fetchone()
            left: timedelta | None = row[0] if row else None
            time.sleep(
                1.0 if left is None else min(max(left.total_seconds(), 0.0), 1.0)
            )


def main() -> None:
    """Run the loop that BENCH_OPTIONS names, until SIGTERM."""
    options = json.loads(os.environ["BENCH_OPTIONS"])
    journal = Journal(Path(os.environ["BENCH_JOURNAL"]))
    loop = Loop(
        options["url"], options["batch"], journal, slots=options["mode"] == "slots"
    )
    modes: dict[str, Callable[[], None]] = {
        "drain": loop.drain,
        "slots": loop.drain,
        "listen": loop.listen,
        "timer": loop.timer,
    }
    modes[options["mode"]]()


if __name__ == "__main__":
    main()
