"""slotwise as a contender: its tables, its worker command, its client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import sqlalchemy as sa

from slotwise import Context, Every, JobRegistry, job, task
from tools.bench.app import TASK, OnLost, job_name
from tools.bench.crew import Command
from tools.bench.inside import Declared, database_url, define, migrate
from tools.bench.run import Contender, Send

DAY = 86_400.0

# What client.schedule writes, for many.
_TASKS = """
INSERT INTO scheduled_tasks
    (task_name, task_instance, task_data, execution_time, picked, version, created_version, slot, priority)
SELECT %(name)s, (%(first)s + i)::text, convert_to('"' || repeat('x', %(size)s - 2) || '"', 'UTF8'), due, false,
       born, born, due, %(priority)s + 10 * (i %% %(priorities)s)
FROM generate_series(0, %(count)s - 1) AS i,
     LATERAL (SELECT statement_timestamp() + %(after)s + i * interval '1 microsecond') AS t(due),
     LATERAL (SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS v(born)"""

# What planning writes, for many jobs. Their slots are due, or were due some intervals ago.
_JOBS = """
INSERT INTO scheduled_tasks
    (task_name, task_instance, kind, execution_time, picked, version, created_version, slot, next_slot, schedule, plan)
SELECT 'bench-' || lpad(i::text, 6, '0'), 'recurring', 'plan', due, false, born, born, due, due + %(interval)s,
       %(schedule)s, %(plan)s
FROM generate_series(1, %(count)s) AS i,
     LATERAL (SELECT date_trunc(%(unit)s, statement_timestamp(), 'UTC') - %(missed)s * %(interval)s) AS t(due),
     LATERAL (SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS v(born)"""

_NO_TASKS = "SELECT NOT EXISTS (SELECT FROM scheduled_tasks) /* bench:watch */"
_NO_OPEN_SLOTS = """
SELECT NOT EXISTS (SELECT FROM scheduled_tasks WHERE picked)
       AND NOT EXISTS (SELECT FROM scheduled_slots WHERE finished IS NULL) /* bench:watch */"""


class Slotwise(Contender):
    """One-time tasks, run by ``slotwise worker``."""

    family = "slotwise"

    def __init__(
        self,
        name: str = "slotwise",
        *,
        is_async: bool = False,
        size: int = 2,
        on_lost: OnLost = "rerun",
        has_ids: bool = True,
        **settings: str,
    ) -> None:
        """``settings`` are the worker's; others have their defaults. ``size`` is that of a
        payload, in bytes.

        ``has_ids``: tasks are sent with their numbers as ids, otherwise as data.
        """
        self.name = name
        self._size = size
        self._on_lost = on_lost
        self._has_ids = has_ids
        self._is_async = is_async
        self._settings = settings

    def prepare(self, url: str) -> None:
        engine = sa.create_engine(database_url(url), poolclass=sa.NullPool)
        with engine.connect() as connection:
            migrate.apply(connection)
        engine.dispose()

    def empty(self, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "TRUNCATE scheduled_tasks, scheduled_slots, scheduled_gaps, scheduled_workers"
            )

    def fill(self, url: str, count: int) -> None:
        fill_tasks(url, count, size=self._size)

    def command(self, url: str) -> Command:
        return self._worker(
            url,
            kind="tasks",
            is_async=self._is_async,
            on_lost=self._on_lost,
            is_data=not self._has_ids,
        )

    def is_done(self, connection: Any) -> bool:
        return bool(connection.execute(_NO_TASKS).fetchone()[0])

    @contextmanager
    def sender(self, url: str) -> Iterator[Send]:
        registry = registry_for(url)
        try:
            if self._has_ids:
                yield lambda number: registry.client.schedule(TASK, id=str(number))
            else:
                yield lambda number: registry.client.schedule(TASK, number)
        finally:
            registry.database.close()

    def plan(self, url: str, due: Sequence[datetime]) -> Command:
        """Plan a job for each instant of the first two seconds, each every two seconds."""
        places = [
            instant for instant in due if instant < due[0] + timedelta(seconds=2)
        ]
        return self._worker(
            url,
            kind="slots",
            schedules=[(2.0, instant.timestamp()) for instant in places],
        )

    def _worker(self, url: str, **options: object) -> Command:
        settings = {
            f"SLOTWISE_{name.upper()}": value for name, value in self._settings.items()
        }
        arguments = [
            "-m",
            "slotwise",
            "worker",
            "--app",
            "tools.bench.app:make_registry",
            "--log-level",
            "WARNING",
        ]
        return Command(
            arguments=arguments,
            environment={
                **settings,
                "SLOTWISE_DATABASE_URL": url,
                "BENCH_OPTIONS": json.dumps(options),
            },
        )


class SlotwiseTraced(Slotwise):
    """One-time tasks of a registry that OpenTelemetry instruments; there is no SDK in the
    worker.
    """

    def command(self, url: str) -> Command:
        return self._worker(url, kind="tasks", is_async=self._is_async, is_traced=True)


class SlotwiseFlood(Slotwise):
    """One-time tasks whose handlers take ``takes`` milliseconds, and another task beside them."""

    def __init__(self, name: str, *, takes: int, **settings: Any) -> None:
        super().__init__(name, **settings)
        self._takes = takes

    def command(self, url: str) -> Command:
        return self._worker(url, kind="flood", takes=self._takes)


class SlotwiseJobs(Slotwise):
    """Recurring jobs: a ledger row for each slot, the next slot computed at each end.

    ``missed``: how many newer slots of each job are due, too.
    """

    interval = timedelta(days=1)
    unit = "day"

    def __init__(
        self, name: str = "slotwise", *, missed: int = 0, **settings: Any
    ) -> None:
        super().__init__(name, **settings)
        self._missed = missed

    def fill(self, url: str, count: int) -> None:
        self._count = count
        declared = define(job(name=TASK, schedule=Every(self.interval))(nothing))
        plan = Declared(
            fingerprint=declared.fingerprint, deployed=datetime.now(UTC)
        ).document()
        values = {
            "count": count,
            "schedule": str(declared.schedule),
            "missed": self._missed,
            "plan": json.dumps(plan),
        }
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                _JOBS, {**values, "interval": self.interval, "unit": self.unit}
            )

    def command(self, url: str) -> Command:
        return self._worker(
            url,
            kind="jobs",
            schedules=[(self.interval.total_seconds(), 0.0)],
            times=self._count,
        )

    def is_done(self, connection: Any) -> bool:
        return bool(connection.execute(_NO_OPEN_SLOTS).fetchone()[0])


class SlotwiseSeconds(SlotwiseJobs):
    """Jobs that are due each second."""

    interval = timedelta(seconds=1)
    unit = "second"


def fill_tasks(
    url: str,
    count: int,
    *,
    name: str = TASK,
    first: int = 1,
    after: timedelta = timedelta(minutes=-1),
    priorities: int = 1,
    size: int = 2,
) -> None:
    """Add ``count`` rows of a task, with ids from ``first``, due ``after`` now, spread over so
    many priorities.

    ``size`` is that of a payload, in bytes.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            _TASKS,
            {
                "name": name,
                "count": count,
                "first": first,
                "after": after,
                "priorities": priorities,
                "priority": 50 if priorities == 1 else 30,
                "size": size,
            },
        )


def nothing(ctx: Context) -> None:
    """A handler that never runs."""


def registry_for(url: str) -> JobRegistry:
    """Return a registry with the benchmark's task, for its client and its store; it runs
    nothing.
    """
    return JobRegistry(
        tasks=[task(name=TASK)(nothing)], database_url=url, process_hook=False
    )


def today() -> datetime:
    """Return the slot that ``_JOBS`` makes due."""
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


__all__ = [
    "DAY",
    "Slotwise",
    "SlotwiseFlood",
    "SlotwiseJobs",
    "SlotwiseSeconds",
    "SlotwiseTraced",
    "fill_tasks",
    "job_name",
    "registry_for",
    "today",
]
