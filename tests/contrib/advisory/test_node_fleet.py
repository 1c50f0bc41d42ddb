"""Beside a real Node fleet under the guideline: node-cron, pg, one Client per process, on the same
database.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.databases import Databases
from tests.integration.shell import Shell
from tests.kit.patience import PATIENCE
from tests.kit.programs import program

NODE = Path(__file__).with_name("node")

#: The independent log: written by the handlers on connections of their own, within the time that
#: they hold their key.
TABLE = """
    CREATE TABLE runs (
        id bigserial PRIMARY KEY, job text, who text, fired timestamptz, slot timestamptz,
        began timestamptz NOT NULL, ended timestamptz
    )"""

JOBS = """
import json, os, time
import psycopg
from slotwise import JobRegistry
from slotwise.contrib.advisory import bind_cron_jobs
from slotwise.contrib.advisory.gate import AdvisoryGate

TAKES = json.loads(os.environ["TAKES"])
url = os.environ["DATABASE_URL"]

def run(ctx):
    with psycopg.connect(url, autocommit=True) as log:
        (id,) = log.execute(
            "INSERT INTO runs (job, who, slot, began) VALUES (%s, %s, %s, clock_timestamp()) RETURNING id",
            (ctx.name, f"slotwise:{os.getpid()}", ctx.slot),
        ).fetchone()
        time.sleep(TAKES[ctx.name] / 1000)
        log.execute("UPDATE runs SET ended = clock_timestamp() WHERE id = %s", (id,))

jobs = bind_cron_jobs({name: run for name in TAKES})
held = [job for job in jobs if job.name.startswith("held")]
others = [job for job in jobs if job not in held]
registry = JobRegistry(
    jobs=jobs, before_start=[AdvisoryGate(url, others), AdvisoryGate(url, held, hold_at_least="2s")], threads=20
)
"""


@dataclass(frozen=True)
class Run:
    job: str
    who: str
    #: Seconds between the tick and the start, by the database's clock; the tick is the multiple of
    #: five before.
    late: float
    tick: float

    @property
    def is_ours(self) -> bool:
        return self.who.startswith("slotwise")


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fleet's program with its packages, installed by npm. What cannot be installed fails the
    test.
    """
    npm = program("npm", "nodejs npm")
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "fleet.js"):
        shutil.copy(NODE / name, folder)
    done = subprocess.run(
        [
            npm,
            "install",
            "--no-audit",
            "--no-fund",
            "--no-package-lock",
            "--loglevel=error",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"npm install failed: {done.stderr[-2000:]}")
    return folder


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    """A database with our tables, and the independent log."""
    with (
        databases.provisioned() as address,
        psycopg.connect(address, autocommit=True) as connection,
    ):
        connection.execute(TABLE)
        yield address


def fleet(
    node: Path,
    url: str,
    jobs: dict[str, Any],
    takes: dict[str, int],
    seconds: float,
    skew: int = 0,
) -> Any:
    """Start one process of the fleet."""
    environment = {
        **os.environ,
        "DATABASE_URL": url,
        "CRON_JOBS": json.dumps(jobs),
        "TAKES": json.dumps(takes),
        "SECONDS": str(seconds),
        "SKEW_MS": str(skew),
    }
    process = subprocess.Popen(
        ["node", "fleet.js"],
        cwd=node,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def end(*processes: Any) -> None:
    for process in processes:
        told, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, told


def overlaps(url: str) -> list[Any]:
    """Pairs of runs of one job that were under way at the same time.

    The keys of a session are re-entrant: a Node process that takes longer than the interval
    overlaps with itself.
    """
    with psycopg.connect(url) as connection:
        return connection.execute(
            "SELECT a.job, a.who, b.who, a.began, a.ended, b.began FROM runs a "
            "JOIN runs b ON a.job = b.job"
            " AND a.id <> b.id AND a.began <= b.began AND b.began < coalesce(a.ended, 'infinity')"
            " WHERE a.who <> b.who OR a.who LIKE 'slotwise%'"
        ).fetchall()


def runs(url: str, period: int) -> list[Run]:
    statement = (
        "SELECT job, who, extract(epoch FROM began)::float, extract(epoch FROM "
        "coalesce(slot, fired))::float"
        " FROM runs WHERE ended IS NOT NULL ORDER BY began"
    )
    with psycopg.connect(url) as connection:
        found = connection.execute(statement).fetchall()
    ticks = [
        (job, who, began, round(fired / period - 0.3) * period)
        for job, who, began, fired in found
    ]
    return [
        Run(job=job, who=who, late=began - tick, tick=tick)
        for job, who, began, tick in ticks
    ]


def twice(found: list[Run]) -> list[list[Run]]:
    """Ticks that ran more than once."""
    by_tick: dict[tuple[str, float], list[Run]] = {}
    for run in found:
        by_tick.setdefault((run.job, run.tick), []).append(run)
    return [same for same in by_tick.values() if len(same) > 1]


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(16, marks=pytest.mark.extended),
        pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    ],
)
def test_two_worlds_side_by_side(
    node: Path,
    url: str,
    tmp_path: Path,
    seconds: int,
    record_property: Any,
    capsys: Any,
) -> None:
    """20 schedules on two Node processes and two workers: no two handlers of one key ever overlap.

    Of jobs that take longer than clocks and timers differ, no tick runs twice. Of short ones,
    those that do are counted; with ``hold_at_least``, none does after a run of ours.
    """
    period = 5
    names = [
        *(f"long{n}" for n in range(10)),
        *(f"short{n}" for n in range(5)),
        *(f"held{n}" for n in range(5)),
    ]
    jobs = {
        name: {"schedule": f"*/{period} * * * * *", "lockKey": 1300 + n}
        for n, name in enumerate(names)
    }
    takes = {name: 2_000 if name.startswith("long") else 5 for name in names}
    shell = Shell(tmp_path, url)
    shell.environment |= {
        "SLOTWISE_APP": "jobs:registry",
        "CRON_JOBS": json.dumps(jobs),
        "TAKES": json.dumps(takes),
        "SLOTWISE_THREADS": "20",
    }
    shell.write("jobs.py", JOBS)
    try:
        workers = [shell.worker() for _ in range(2)]
        for worker in workers:
            worker.wait_for("worker_start")
        processes = [fleet(node, url, jobs, takes, seconds) for _ in range(2)]
        end(*processes)
        assert [worker.stop() for worker in workers] == [0, 0]
    finally:
        shell.close()

    found = runs(url, period)
    assert overlaps(url) == []
    ours = [run for run in found if run.is_ours]
    theirs = [run for run in found if not run.is_ours]
    assert ours, "workers had their share"
    assert theirs, "Node had its share"
    assert twice(ours) == [], "between workers alone no tick runs twice"
    doubled = twice(found)
    latest = max(run.late for run in found)
    long = [same for same in doubled if same[0].job.startswith("long")]
    assert long == [] or latest >= 2, (
        f"no handler was {latest:.1f} s late, and a tick of a long job ran twice: {long}"
    )
    held = [
        same for same in doubled if same[0].job.startswith("held") and same[0].is_ours
    ]
    assert held == [] or latest >= 2, held
    short = sum(same[0].job.startswith(("short", "held")) for same in doubled)
    ticks = len({(run.job, run.tick) for run in found})
    told = (
        f"{len(ours)} runs by workers, {len(theirs)} by Node, {ticks} ticks; {short} "
        "ticks of short jobs ran twice"
    )
    record_property("fleet", told)
    with capsys.disabled():
        print(f" [{told}; the latest start was {latest:.2f} s after its tick]", end="")


@pytest.mark.extended
@pytest.mark.parametrize(("takes", "runs_twice"), [(5, True), (1_200, False)])
def test_the_bare_guideline(
    node: Path, url: str, takes: int, runs_twice: bool
) -> None:
    """Two Node processes alone, one with a clock that is 600 ms behind: a short job runs one tick
    twice.

    The first process has finished and unlocked when the second one's clock reaches the tick. A job
    that takes longer than the difference does not: the key is still held.
    """
    jobs = {"cleanup": {"schedule": "*/2 * * * * *", "lockKey": 5001}}
    processes = [
        fleet(node, url, jobs, {"cleanup": takes}, 7, skew) for skew in (0, -600)
    ]
    end(*processes)
    found = runs(url, 2)
    doubled = twice(found)
    assert overlaps(url) == []
    assert (
        bool(doubled) is runs_twice
        or max(run.late for run in found) >= takes / 1000 > 1
    ), doubled
    assert all(len({run.who for run in same}) == 2 for same in doubled)
