"""Workers that die or freeze while they hold a key, and sessions that break: judged by a log of
its own.

Beside them runs another program as the guideline has it: it tries the key, works, writes the log,
and unlocks.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest
from tests.faults.proxy import Proxy
from tests.integration.shell import Process, Shell, wait_until

from slotwise.embedded import EmbeddedPostgres

KEY = 5101
TABLE = (
    "CREATE TABLE runs (id bigserial PRIMARY KEY, who text, began timestamptz, ended "
    "timestamptz, why text)"
)
JOBS = """
import os, time
import psycopg
from slotwise import Every, JobRegistry, job
from slotwise.contrib.advisory.gate import AdvisoryGate

@job(name="cleanup", schedule=Every("1s"))
def cleanup(ctx):
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as log:
        (id,) = log.execute(
            "INSERT INTO runs (who, began) VALUES (%s, clock_timestamp()) RETURNING id", (os.environ["WHO"],)
        ).fetchone()
        print("began", flush=True)
        while not (ctx.cancelled or ctx.lost or os.path.exists("go")):
            time.sleep(0.02)
        log.execute("UPDATE runs SET ended = clock_timestamp(), why = %s WHERE id = %s", (ctx.cancel_reason, id))

gate = AdvisoryGate(os.environ["KEYS_URL"], {"cleanup": 5101}, check_every="200ms", timeout="2s")
registry = JobRegistry(jobs=[cleanup], before_start=[gate])
"""


@pytest.fixture
def url(pg_url: str) -> str:
    """A database with our tables, and the log."""
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute(TABLE)
    return pg_url


@pytest.fixture
def shell(tmp_path: Path, url: str) -> Iterator[Shell]:
    """An application with one job under a key; leases of 0.9 s."""
    made = Shell(tmp_path, url)
    made.environment |= {
        "SLOTWISE_APP": "jobs:registry",
        "SLOTWISE_MISSED_HEARTBEATS_LIMIT": "3",
        "KEYS_URL": url,
    }
    made.write("jobs.py", JOBS)
    yield made
    made.close()


class Other:
    """The other program, on a thread and a session of its own. A context manager."""

    def __init__(self, url: str, keys_url: str | None = None) -> None:
        self.refused, self.ran = 0, 0
        self._url, self._keys_url = url, keys_url or url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._drive, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _drive(self) -> None:
        with (
            psycopg.connect(self._keys_url, autocommit=True) as keys,
            psycopg.connect(self._url, autocommit=True) as log,
        ):
            while not self._over.wait(0.02):
                if keys.execute(
                    "SELECT pg_try_advisory_lock(%s)", (KEY,)
                ).fetchone() != (True,):
                    self.refused += 1
                    continue
                log.execute(
                    "INSERT INTO runs (who, began) VALUES ('other', clock_timestamp())"
                )
                self._over.wait(0.05)
                log.execute(
                    "UPDATE runs SET ended = clock_timestamp() WHERE who = "
                    "'other' AND ended IS NULL"
                )
                keys.execute("SELECT pg_advisory_unlock(%s)", (KEY,))
                self.ran += 1

    def is_refused(self) -> None:
        """Wait until it was refused ten more times; it runs nothing meanwhile."""
        before, ran = self.refused, self.ran
        wait_until(lambda: self.refused >= before + 10, "the other program is refused")
        assert self.ran == ran

    def runs(self) -> None:
        before = self.ran
        wait_until(lambda: self.ran > before, "the other program runs")


def rows(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement).fetchall()


def overlaps(url: str) -> list[Any]:
    """Pairs of runs that were under way at the same time."""
    return rows(
        url,
        "SELECT a.who, b.who, a.began, a.ended, b.began FROM runs a JOIN runs b ON a.id <> b.id"
        " AND a.began <= b.began AND b.began < coalesce(a.ended, 'infinity')",
    )


def ledger(url: str) -> list[tuple[str, str | None, int]]:
    return rows(
        url, "SELECT outcome, reason, attempts FROM scheduled_slots ORDER BY slot"
    )


def unaccounted(url: str) -> list[Any]:
    """Slots between the first and the newest that neither the ledger nor a gap has."""
    return rows(
        url,
        "SELECT s FROM (SELECT generate_series(min(slot), max(slot), '1s') s FROM "
        "scheduled_slots) AS due"
        " WHERE NOT EXISTS (SELECT FROM scheduled_slots WHERE slot = s)"
        " AND NOT EXISTS (SELECT FROM scheduled_gaps WHERE s BETWEEN first_slot AND last_slot)",
    )


@contextmanager
def at_work(shell: Shell, who: str, **environment: str) -> Iterator[Process]:
    """A worker whose handler has begun."""
    worker = shell.worker(WHO=who, **environment)
    worker.wait_for_output("began")
    yield worker


@pytest.mark.extended
def test_a_killed_worker_frees_its_key(shell: Shell, url: str) -> None:
    """The other program follows at once, another worker takes the slot over, and no two of them
    overlap.
    """
    with at_work(shell, "a") as first, Other(url) as other:
        other.is_refused()
        ((killed,),) = rows(url, "SELECT clock_timestamp()")
        os.kill(first.pid, signal.SIGKILL)
        other.runs()
    with psycopg.connect(url, autocommit=True) as log:
        log.execute("UPDATE runs SET ended = %s WHERE who = 'a'", (killed,))
    (shell.directory / "go").touch()
    with at_work(shell, "b") as second:
        second.wait_for("settled", outcome="succeeded")
        assert second.stop() == 0
    assert overlaps(url) == []
    assert ledger(url)[0] == ("succeeded", None, 2), (
        "the slot of the killed worker, as its second attempt"
    )
    assert unaccounted(url) == []


@pytest.mark.extended
def test_a_frozen_worker_keeps_its_key(shell: Shell, url: str) -> None:
    """While it sleeps, its claim is lost but not its key: neither another worker nor the other
    program runs.
    """
    with at_work(shell, "a") as first, Other(url) as other:
        first.signal(signal.SIGSTOP)
        second = shell.worker(WHO="b")
        second.wait_until_seen("settled", 2, outcome="skipped", reason="lock_held")
        other.is_refused()
        assert rows(url, "SELECT who FROM runs") == [("a",)]
        first.signal(signal.SIGCONT)
        other.runs()
        (shell.directory / "go").touch()
        assert (first.stop(), second.stop()) == (0, 0)
    assert overlaps(url) == []
    assert unaccounted(url) == []


@pytest.mark.extended
@pytest.mark.parametrize(
    "fault", ["cut", pytest.param("restart", marks=pytest.mark.extended)]
)
def test_a_broken_session_stops_the_handler(
    shell: Shell, url: str, pg_empty_url: str, open_path: Path, fault: str
) -> None:
    """The handler learns soon that its key is gone. No slot runs without a key, and each is in the
    ledger.
    """
    with ExitStack() as stack:
        server = None
        if fault == "restart":
            server = stack.enter_context(
                EmbeddedPostgres(open_path / "keys", temporary=True)
            )
        proxy = stack.enter_context(Proxy(server.dsn if server else pg_empty_url))
        keys = server.dsn if server else proxy.url
        with at_work(shell, "a", KEYS_URL=keys) as worker:
            ((broken,),) = rows(url, "SELECT clock_timestamp()")
            server.stop() if server else proxy.cut()
            worker.wait_until_seen("settled", 2, outcome="failed")
            assert (
                len(
                    rows(
                        url,
                        "SELECT id FROM runs WHERE began > now() - interval '1 hour'",
                    )
                )
                == 1
            )
            ((why, took),) = rows(
                url,
                f"SELECT why, extract(epoch FROM ended - '{broken}')::float FROM runs",
            )
            assert why == "lock_lost"
            assert took < 5
            server.start() if server else proxy.heal()
            (shell.directory / "go").touch()
            worker.wait_for("settled", outcome="succeeded")
            with Other(
                url, server.dsn if server else pg_empty_url
            ) as other:  # it may have another port by now
                other.runs()
            assert worker.stop() == 0
    assert overlaps(url) == []
    assert unaccounted(url) == []
