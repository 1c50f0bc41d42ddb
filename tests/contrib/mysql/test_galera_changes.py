"""The writer of a Galera cluster changes under load: nothing runs twice, nothing is forgotten.

Old connections stay on the old node for a lease, and a guarded transaction is open across each
change. The handlers' own log judges.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.contrib.mysql.changing_app import registry
from tests.kit import processes
from tests.kit.galera import GaleraCluster, wait_for
from tests.kit.laws import Ledger, rows_and_ledger
from tests.kit.switch import Switch

from slotwise import Client, DatabaseProblem
from slotwise.demo.evidence import HandlerLog, gather
from slotwise.demo.verdict import judge
from slotwise.spi import tables

ROOT = Path(__file__).resolve().parents[3]
LEASE = 4.0
SETTINGS = {
    "SLOTWISE_HEARTBEAT_INTERVAL": "1s",
    "SLOTWISE_MISSED_HEARTBEATS_LIMIT": "4",
    "SLOTWISE_POLL_INTERVAL": "300ms",
    "SLOTWISE_SHUTDOWN_GRACE": "5s",
    "SLOTWISE_THREADS": "16",
}
COMPLETES = ["open", *(f"tick-{number}" for number in range(4))]


@contextmanager
def workers(url: str, log: Path, directory: Path, count: int) -> Iterator[None]:
    """Real processes; their logs are in the directory."""
    environment = {
        **os.environ,
        **SETTINGS,
        "CHANGES_LOG": str(log),
        "CHANGES_URL": url,
    }
    environment |= {"PYTHONPATH": str(ROOT), "SLOTWISE_DATABASE_URL": url}
    words = ["-m", "slotwise", "worker", "--app", "tests.contrib.mysql.changing_app"]
    started = []
    for number in range(count):
        with (directory / f"worker{number}").open("wb") as out:
            own = {**environment, "SLOTWISE_WORKER_NAME": f"worker-{number}"}
            started.append(
                processes.start(
                    *words, directory=ROOT, environment=own, stderr=out.fileno()
                )
            )
    try:
        yield
        for one in started:
            one.send_signal(signal.SIGTERM)
        for one in started:
            assert one.wait() == 0
    finally:
        for one in started:
            one.kill()
            assert one.stdout is not None
            one.stdout.close()


@pytest.mark.parametrize(
    "changes",
    [1, pytest.param(10, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_the_laws_hold_while_the_writer_changes(
    changes: int, galera: GaleraCluster, galera_urls: list[str], tmp_path: Path
) -> None:
    name = galera_urls[0].rpartition("/")[2]
    log = HandlerLog(tmp_path / "log")
    own = sa.create_engine(
        sa.make_url(galera_urls[0]).set(drivername="mysql+pymysql"),
        isolation_level="READ COMMITTED",
        connect_args={"init_command": "SET SESSION wsrep_sync_wait = 7"},
    )
    with own.begin() as connection:
        connection.execute(
            sa.text(
                "CREATE TABLE effects (id bigint AUTO_INCREMENT PRIMARY KEY, name varchar(250))"
            )
        )
    with Switch(galera.nodes[0].port) as switch:
        url = f"mysql://root@127.0.0.1:{switch.port}/{name}"
        with workers(url, log.path, tmp_path, 2), Client.open(url) as client:
            number = 0
            for change in range(changes):
                wait_for_work(log)
                wait_for(lambda: is_open(log))
                switch.target = galera.nodes[(change + 1) % 3].port
                end = time.monotonic() + LEASE
                while time.monotonic() < end:
                    put(client, str(number))
                    number += 1
                    time.sleep(0.05)
                switch.close_old()
            wait_for_work(log)
            wait_for(lambda: not waiting(own))
    expect_laws(own, log, number, tmp_path)
    own.dispose()


def put(client: Client, id: str) -> None:
    """Schedule a task, as a caller does who must: a connection may just have been closed."""
    while True:
        with suppress(DatabaseProblem):
            client.schedule("mail", None, id=id)
            return


def wait_for_work(log: HandlerLog) -> None:
    """Wait until handlers have started and ended."""
    begun = len(log.read())
    wait_for(lambda: len(log.read()) > begun + 20)


def is_open(log: HandlerLog) -> bool:
    """Whether a handler holds its guarded transaction open, as its log says."""
    lines = [line for line in log.read() if line.job == "open"]
    return bool(lines) and lines[-1].mark == "start"


def waiting(own: sa.Engine) -> int:
    with own.begin() as connection:
        found = "SELECT count(*) FROM scheduled_tasks WHERE task_name = 'mail'"
        count: int = connection.execute(sa.text(found)).scalar_one()
        return count


def expect_laws(own: sa.Engine, log: HandlerLog, mails: int, directory: Path) -> None:
    names = tables("scheduled_", None, "mysql")
    with own.begin() as connection:
        evidence = gather(
            connection,
            registry.jobs,
            log,
            names=names,
            completes=COMPLETES,
        )
        ledger = Ledger.read(connection, names)
        counts = "SELECT name, count(*) FROM effects GROUP BY name"
        effects = dict(connection.execute(sa.text(counts)).all())
    told = sorted(directory.glob("worker*"))
    story = "\n".join(path.read_text()[-3000:] for path in told)
    verdict = judge(evidence)
    assert verdict.clean, f"{verdict}\n{story}"
    assert list(rows_and_ledger(ledger)) == [], story
    assert [one for one, count in effects.items() if count != 1] == []
    done = [one for one in effects if one.startswith("mail/")]
    assert len(done) == mails
    starts = [
        (line.instance, line.slot)
        for line in log.read()
        if line.job == "strict" and line.mark == "start"
    ]
    assert len(starts) == len(set(starts))
    print(verdict, len(effects), "effects", Counter(line.note for line in log.read()))
