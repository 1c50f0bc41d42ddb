"""A real worker, before 100,000 rows of one name that nobody can run: another task starts within a
second.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from tests.kit.events import SettledDead

from slotwise import Every, JobContext, JobRegistry, job, task
from slotwise.cli import task_listings
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.store.reading import health as cluster_health
from slotwise.store.reading import task_counts
from slotwise.testing import ManualClock, ManualWorker

FLOOD = 100_000
#: What a role with INSERT on the queue can write into a row, beside its key: columns and values.
FLOODS = {
    "version": "version = 4611686018427387903",
    "attempt": "attempt = 2147483647",
    "data": "task_data = 'no JSON'",
    "priority": "priority = 32767; version = 4611686018427387903",
    "lost": "lost_count = 2147483647; version = 4611686018427387903",
    "document": """kind = 'plan'; pending = '{"catch_up_until": "the day after"}'""",
    "number": "lost_count = 1; pending = ('{\"a\": ' || repeat('9', 5000) || '}')::json",
    "schedule": "kind = 'plan'; schedule = 'EVERY|' || i",
    "held": "picked = true; version = 4611686018427387903",
}


def flood(url: str, name: str, written: str) -> None:
    """Insert the rows, due for an hour."""
    columns = {
        "execution_time": "now() - interval '1 hour'",
        "picked": "false",
        "version": "1",
        "created_version": "1",
    }
    columns |= dict(part.split(" = ", 1) for part in written.split("; "))
    with psycopg.connect(url) as sql:
        sql.execute(
            f"INSERT INTO scheduled_tasks (task_name, task_instance, {', '.join(columns)}) "
            f"SELECT '{name}', i::text, {', '.join(columns.values())} FROM "
            f"generate_series(1, {FLOOD}) AS i"
        )


class Ends:
    """When the handler of ``ping`` started."""

    def __init__(self) -> None:
        self._starts: Counter[str] = Counter()
        self._changed = threading.Condition()

    def note(self, ctx: JobContext) -> None:
        with self._changed:
            self._starts[ctx.name] += 1
            self._changed.notify_all()

    def wait(self, name: str, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._starts[name] >= count, 60), (
                self._starts
            )


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._file,)


def test_nothing_that_is_stored_is_imported_or_called(
    pg_url: str, tmp_path: Path
) -> None:
    """A payload is data, whatever it looks like; a name that no worker has registered waits."""
    file, seen = tmp_path / "called", list[object]()
    pickled = pickle.dumps(Bomb(file))
    payloads = [
        pickled,
        b"slotwise/pickle/1\n" + pickled,
        b"!!python/object/apply:os.system [touch]",
        b"[" * 200_000,
        b'{"__cls__": "os:system", "py/reduce": [{"py/function": "os.system"}, '
        b'{"py/tuple": ["true"]}]}',
    ]
    names = [
        "os:system",
        "builtins.eval",
        "__import__",
        "slotwise.cli.entry:main",
        "mail.__class__",
        "jobs:mail",
    ]
    into = (
        "INSERT INTO scheduled_tasks (task_name, task_instance, task_data, "
        "execution_time, picked, version) "
        "VALUES (%s, %s, %s, '2020-01-01', false, 1)"
    )
    with psycopg.connect(pg_url) as sql:
        sql.cursor().executemany(
            into, [("mail", str(number), data) for number, data in enumerate(payloads)]
        )
        sql.cursor().executemany(into, [(name, "1", b"1") for name in names])
    with ManualWorker(
        [task(name="mail")(lambda ctx: seen.append(ctx.data))],
        pg_url,
        foreign_rows=True,
    ) as worker:
        worker.run_due()
    with psycopg.connect(pg_url) as sql:
        states = dict(
            sql.execute(
                "SELECT task_name || task_instance, state FROM scheduled_tasks"
            ).fetchall()
        )
    assert {name for name, state in states.items() if state is None} >= {
        f"{name}1" for name in names
    }
    assert [type(data) for data in seen] == [dict]
    assert not file.exists()


def _ping(registry: JobRegistry, ends: Ends, count: int) -> float:
    """Return the seconds from the call to the end of this run, on a machine as busy as it is."""
    began = time.monotonic()
    registry.client.schedule("ping")
    ends.wait("ping", count)
    return time.monotonic() - began


@pytest.mark.parametrize(
    "kind",
    [
        one if one == "version" else pytest.param(one, marks=pytest.mark.extended)
        for one in FLOODS
    ],
)
def test_a_flood_that_nobody_can_run(
    pg_url: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Bad rows are set aside by the batch, after those of other names, and a log line counts
    them.
    """
    ends = Ends()

    @job(name="tick", schedule=Every("1d"))
    def tick(ctx: JobContext) -> None:
        """Returns."""

    both = [task(name="mail")(ends.note), task(name="ping")(ends.note)]
    caplog.set_level(logging.WARNING)
    registry = JobRegistry(
        jobs=[tick], tasks=both, database_url=pg_url, process_hook=False
    )
    is_slots = FLOODS[kind].startswith("kind")
    registry.start()
    try:
        before = [_ping(registry, ends, count) for count in range(1, 4)]
        flood(pg_url, "tick" if is_slots else "mail", FLOODS[kind])
        took = [_ping(registry, ends, count) for count in range(4, 9)]
        with psycopg.connect(pg_url) as sql:
            left = sql.execute(
                "SELECT count(*) FROM scheduled_tasks WHERE last_error IS NULL"
            ).fetchone()
        print(kind, *(f"{one:.3f} s" for one in (*before, *took)), "left:", left)
        assert max(took) <= 1 + 4 * max(before), (before, took)
        told = [
            record
            for record in caplog.records
            if record.name.startswith(("slotwise.store", "slotwise.events"))
        ]
        assert len(told) <= 10, Counter(record.msg for record in told)
    finally:
        registry.stop()


def test_a_flood_of_data_that_does_not_fit_is_one_line(pg_url: str) -> None:
    """Each dead task has its event; of a name one is loud in a minute, and counts the others."""
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    with ManualWorker([task(name="mail")(lambda ctx: None)], pg_url, clock) as worker:
        heard = []
        for count in (50, 49, 1):
            worker.client.schedule_many("mail", range(count))
            with psycopg.connect(pg_url) as sql:
                sql.execute(
                    "UPDATE scheduled_tasks SET task_data = 'no JSON' WHERE state IS NULL"
                )
            heard += [
                event for event in worker.run_due() if isinstance(event, SettledDead)
            ]
            worker.tick("40s")
    assert len(heard) == 100
    loud = [event for event in heard if event.level >= logging.WARNING]
    assert [getattr(event, "rows", None) for event in loud] == [1, 99]


#: A worker that ends when all rows are dead, and prints its peak of memory in KiB.
GLUTTON = """
import sys, time
from slotwise import JobRegistry, task
@task(name="mail")
def mail(ctx): ...
registry = JobRegistry(tasks=[mail], database_url=sys.argv[1], process_hook=False)
with registry:
    while registry.client.list("mail", state="waiting", limit=1) or registry.client.list("mail", state="running"):
        time.sleep(0.1)
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
"""


@pytest.mark.extended
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="memory is measured on Linux"
)
def test_payloads_of_100_mb_do_not_fill_the_memory(pg_url: str) -> None:
    """No claim, heartbeat or settlement reads one; ``TESTS_BIG_ROWS=1000`` is the long form."""
    rows = int(os.environ.get("TESTS_BIG_ROWS", "20"))
    with psycopg.connect(pg_url) as sql:
        sql.execute(
            "INSERT INTO scheduled_tasks (task_name, task_instance, task_data, "
            "execution_time, picked, version)"
            " VALUES ('mail', '0', convert_to(repeat('x', 100000000), 'UTF8'), now(), false, 1)"
        )
        sql.execute(
            "INSERT INTO scheduled_tasks (task_name, task_instance, task_data, "
            "execution_time, picked, version)"
            " SELECT task_name, i::text, task_data, execution_time, picked, version"
            " FROM scheduled_tasks, generate_series(1, %s) AS i",
            (rows - 1,),
        )
    done = subprocess.run(
        [sys.executable, "-c", GLUTTON, pg_url],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    peak = int(done.stdout) / 1024
    with psycopg.connect(pg_url) as sql:
        why = (
            "SELECT count(*) FROM scheduled_tasks WHERE state = 'dead' AND last_error "
            "LIKE '%payload too large: 1%'"
        )
        assert sql.execute(why).fetchone() == (rows,), done.stderr
    print(f"{rows} rows of 100 MB: a peak of {peak:.0f} MiB")
    assert peak < 150


def test_names_without_end_are_cut(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Listings by name read some of them, and say so; what concerns live workers is complete."""
    for module in (task_counts, cluster_health, task_listings):
        monkeypatch.setattr(module, "MOST_NAMES", 20)
    monkeypatch.setenv("DATABASE_URL", pg_url)
    with psycopg.connect(pg_url) as sql:
        sql.execute(
            "INSERT INTO scheduled_tasks (task_name, task_instance, "
            "execution_time, picked, version)"
            " SELECT 'a' || i, '1', now() - interval '1 hour', false, 1 FROM "
            "generate_series(1, 99) AS i"
        )
    assert status(["tasks", "--json"]) == exits.OK
    told = capsys.readouterr()
    assert (len(json.loads(told.out)), "at most 20 names are counted" in told.err) == (
        20,
        True,
    )
    assert status(["health", "--json"]) == exits.FAILED
    assert json.loads(capsys.readouterr().out)["overdue"] == 99
    with psycopg.connect(pg_url) as sql:
        sql.execute(
            "INSERT INTO scheduled_workers (worker, host, pid, boot_id, tasks, "
            "version, capacity, state, started,"
            " last_seen, lease) VALUES ('w', 'h', 1, 'b', '[\"zoo\"]', '1', 1, "
            "'running', now(), now(), '1 hour')"
        )
        sql.execute(
            "INSERT INTO scheduled_tasks (task_name, task_instance, "
            "execution_time, picked, version)"
            " VALUES ('zoo', '1', now() - interval '1 hour', false, 1)"
        )
    assert status(["health", "--json"]) == exits.FAILED
    health = json.loads(capsys.readouterr().out)
    assert (health["overdue"], health["orphans"], len(health["orphan_tasks"])) == (
        1,
        99,
        20,
    )


def test_a_listing_survives_a_row_from_no_year(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """When it was scheduled is unknown; all else is told, of the other rows, too."""
    monkeypatch.setenv("DATABASE_URL", pg_url)
    with psycopg.connect(pg_url) as sql:
        sql.execute(
            "INSERT INTO scheduled_tasks (task_name, task_instance, "
            "execution_time, picked, version, created_version)"
            " VALUES ('mail', 'bad', now(), false, 1, 253402300800000000), "
            "('mail', 'good', now(), false, 1, 1)"
        )
    for line in ("tasks list", "tasks list mail bad", "explain mail --id bad"):
        assert status(line.split()) == exits.OK, capsys.readouterr().err
        assert "bad" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    ["x", "[]", "1", '{"first": 1, "last": 2}', '{"first": "2026-01-01"}', "[" * 9000],
)
def test_the_audit_survives_a_row_of_another_program(
    pg_url: str,
    arguments: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No row can be removed from the audit: one that cannot be read is shown as it is."""
    monkeypatch.setenv("DATABASE_URL", pg_url)

    @job(name="hourly", schedule=Every("1h"))
    def hourly(ctx: JobContext) -> None:
        """Returns."""

    with ManualWorker([hourly], pg_url) as worker, psycopg.connect(pg_url) as sql:
        worker.tick("1h")
        worker.run_due()
        sql.execute(
            "INSERT INTO scheduled_controls (at, author, command, task_name, arguments) "
            "VALUES (now(), 'x', 'pause', 'hourly', %s)",
            (arguments,),
        )
        sql.commit()
        (slot, *_) = worker.inspect.slots("hourly")
        moment = slot.slot.isoformat()
        for command in (
            ["audit"],
            ["audit", "hourly"],
            ["audit", "--json"],
            ["explain", "hourly"],
            ["explain", "hourly", moment],
        ):
            assert status(command) == exits.OK, (command, capsys.readouterr().err)
        assert status(["audit"]) == exits.OK
        assert "unreadable" in capsys.readouterr().out
