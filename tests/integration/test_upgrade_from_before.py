"""The tables are upgraded under workers of the release before, which are real processes."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from tests.integration import release_before
from tests.kit.patience import PATIENCE

import slotwise
from slotwise import JobRegistry, TaskContext, migrate, task

CREATE = """
import sys, sqlalchemy as sa
from slotwise import migrate
with sa.create_engine(sys.argv[1]).connect() as connection:
    print(*migrate.apply(connection))
"""


@task(name="mail")
def mail(ctx: TaskContext[None]) -> None: ...


INTERVAL = timedelta(milliseconds=200)
#: Of each job the first and the last slot that was decided, and how many were.
EACH_SLOT = """
SELECT task_name, min(first), max(last), sum(count)::bigint
FROM (SELECT task_name, slot, slot, 1 FROM scheduled_slots WHERE task_name <> 'mail'
      UNION ALL SELECT task_name, first_slot, last_slot, count FROM scheduled_gaps)
     AS s(task_name, first, last, count)
GROUP BY task_name"""
NOW = Path(slotwise.__file__).parents[1]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return release_before.unpack(tmp_path_factory.mktemp("before"))


@contextmanager
def worker(source: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    """A worker that ends at the end, by SIGTERM, with 0."""
    process = release_before.run(source, release_before.SCRIPT, url)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, output
    finally:
        process.kill()
        process.wait()


def until(what: Callable[[], Any], *processes: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        for process in processes:
            assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.05)


def test_workers_of_the_release_before_run_on(pg_empty_url: str, before: Path) -> None:
    """Before, during and after the upgrade, and when they are started anew after it. Each slot and
    each task runs once.
    """
    address = pg_empty_url.replace("postgresql://", "postgresql+psycopg://")
    made = release_before.run(before, CREATE, address)
    assert made.communicate(timeout=PATIENCE)[0].split() == [
        "sw0001",
        "sw0002",
        "sw0003",
    ]
    with psycopg.connect(pg_empty_url, autocommit=True) as sql:
        sql.execute(
            "CREATE TABLE runs (name text, id text, slot timestamptz, pid integer)"
        )

        def ran(process: subprocess.Popen[str], name: str) -> int:
            query = "SELECT count(*) FROM runs WHERE pid = %s AND name = %s"
            row = sql.execute(query, (process.pid, name)).fetchone()
            assert row is not None
            return int(row[0])

        def works(*processes: subprocess.Popen[str]) -> None:
            """Each of them, from now on, a slot of a job and of the one with give_up."""
            sql.execute("UPDATE runs SET pid = -pid WHERE pid > 0")
            until(
                lambda: all(
                    ran(one, "tick") and ran(one, "strict") for one in processes
                ),
                *processes,
            )

        registry, tasks = JobRegistry(tasks=[mail], database_url=pg_empty_url), 0
        with worker(before, pg_empty_url) as old:
            works(old)
            engine = sa.create_engine(address)
            with engine.connect() as connection:
                assert migrate.apply(connection) == [
                    "sw0004",
                    "sw0005",
                    "sw0006",
                    "sw0007",
                ]
                migrate.check(connection)
            engine.dispose()
            for _ in range(
                30
            ):  # the release before deletes their rows under the guard
                registry.client.schedule(mail, id=str(tasks))
                tasks += 1
            until(lambda: ran(old, "mail") == tasks, old)
            works(old)
            with (
                worker(before, pg_empty_url) as another,
                worker(NOW, pg_empty_url) as new,
            ):
                works(old, another, new)
        registry.database.close()
        doubled = (
            "SELECT name, slot FROM runs GROUP BY name, id, slot HAVING count(*) > 1"
        )
        assert sql.execute(doubled).fetchall() == []
        left = "SELECT count(*) FROM scheduled_tasks WHERE kind = 'task' OR picked"
        assert sql.execute(left).fetchall() == [(0,)]
        ended = "SELECT outcome FROM scheduled_slots UNION SELECT 'skipped' FROM scheduled_gaps"
        assert {row[0] for row in sql.execute(ended)} <= {"succeeded", "skipped"}
        # A busy machine takes longer than an interval: those slots are skipped, and no others.
        why = "SELECT reason FROM scheduled_slots UNION SELECT reason FROM scheduled_gaps"
        assert {row[0] for row in sql.execute(why)} <= {None, "overlap"}
        for name, first, last, count in sql.execute(EACH_SLOT).fetchall():
            assert (last - first) / INTERVAL + 1 == count, (
                f"slots of {name} are missing"
            )
