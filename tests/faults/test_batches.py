"""The example of the founding talk on real workers that are killed, frozen and replaced: each
proposal has one card in the end, and nothing had to be mended by hand.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
import sqlalchemy as sa
from tests.faults.batch_shop import AttachCards
from tests.faults.bench import LEASE, ROOT, SETTINGS, loaded

from slotwise import Client, Item

TABLES = """
    CREATE TABLE proposals (id bigint PRIMARY KEY, status text NOT NULL);
    CREATE INDEX ON proposals (id) WHERE status = 'eligible';
    CREATE TABLE cards (proposal_id bigint NOT NULL, token bigint NOT NULL);
"""
FILL = "INSERT INTO proposals SELECT n, 'eligible' FROM generate_series(1, :rows) AS n"
LEFT = "SELECT count(*) FROM scheduled_tasks"
DEAD = "SELECT count(*) FROM scheduled_tasks WHERE state = 'dead'"
VERDICT = """
    SELECT count(*) AS proposals,
           count(*) FILTER (WHERE cards = 1) AS with_one_card,
           count(*) FILTER (WHERE status = 'done') AS done
    FROM proposals
    LEFT JOIN (SELECT proposal_id AS id, count(*) AS cards FROM cards GROUP BY 1) AS c
        USING (id)
"""


@dataclass
class Cluster:
    """Worker processes of the application, as a person starts and stops them."""

    application: ClassVar[str] = "tests.faults.batch_shop"
    url: str
    directory: Path
    environment: dict[str, str]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    started: int = 0

    def start(self) -> None:
        self.started += 1
        settings = {
            f"SLOTWISE_{name.upper()}": text for name, text in SETTINGS.items()
        }
        command = ["worker", "--app", self.application, "--threads", "4"]
        where = {"DATABASE_URL": self.url, "CAST_URL": self.url}
        with (self.directory / f"worker-{self.started}.log").open("wb") as log:
            self.workers.append(
                subprocess.Popen(
                    [sys.executable, "-m", "slotwise", *command],
                    cwd=ROOT,
                    env={**os.environ, **settings, **self.environment, **where},
                    stdout=log,
                    stderr=log,
                )
            )

    def end(self, worker: subprocess.Popen[bytes], number: int) -> None:
        worker.send_signal(number)
        worker.send_signal(signal.SIGCONT)
        worker.wait(60)
        self.workers.remove(worker)

    def replace_all(self) -> None:
        """A deploy: the workers drain while their successors start."""
        former = [*self.workers]
        for worker in former:
            self.start()
            worker.send_signal(signal.SIGTERM)
        for worker in former:
            self.end(worker, signal.SIGCONT)


@contextmanager
def cluster(
    url: str, directory: Path, *, kind: type[Cluster] = Cluster, **environment: str
) -> Iterator[Cluster]:
    found = kind(url, directory, environment)
    try:
        yield found
    finally:
        for worker in found.workers:
            worker.kill()
            worker.wait()


def prove(
    url: str,
    directory: Path,
    *,
    rows: int,
    workers: int = 4,
    seconds: float | None = None,
    **environment: str,
) -> dict[str, float]:
    """Let four tasks on some workers work on the rows through some trouble; judge by the rows."""
    engine = sa.create_engine(
        sa.make_url(url).set(drivername="postgresql+psycopg"),
        isolation_level="AUTOCOMMIT",
    )
    with (
        engine.connect() as connection,
        cluster(url, directory, **environment) as shop,
    ):
        connection.execute(sa.text(TABLES))
        connection.execute(sa.text(FILL), {"rows": rows})
        connection.execute(sa.text("ANALYZE"))
        with Client.open(url) as client:
            client.schedule_many(
                AttachCards, [Item(None, id=f"part-{number}") for number in range(4)]
            )
        began = time.monotonic()
        for _ in range(workers):
            shop.start()
        trouble = Trouble(connection, rows, seconds)
        while connection.execute(sa.text(LEFT)).scalar_one():
            assert connection.execute(sa.text(DEAD)).scalar_one() == 0
            if trouble.is_due():
                trouble.befall(shop)
            time.sleep(0.05)
        took = time.monotonic() - began
        verdict = connection.execute(sa.text(VERDICT)).one()._asdict()
    engine.dispose()
    assert verdict == dict.fromkeys(("proposals", "with_one_card", "done"), rows)
    return {"rows": rows, "seconds": round(took, 1), **trouble.counts}


DONE = "SELECT count(*) FROM cards"


@dataclass
class Trouble:
    """What befalls the workers: a kill, a deploy, a freeze, then kills; each after ``seconds``, or
    when the next quarter of ``rows`` is done.
    """

    connection: sa.Connection
    rows: int
    seconds: float | None
    last: float = field(default_factory=time.monotonic)
    counts: dict[str, int] = field(
        default_factory=lambda: {"freezes": 0, "deploys": 0, "kills": 0}
    )

    def is_due(self) -> bool:
        if self.seconds is not None:
            return time.monotonic() >= self.last + self.seconds
        done = self.connection.execute(sa.text(DONE)).scalar_one()
        return done * 4 >= self.rows * (sum(self.counts.values()) + 1)

    def befall(self, shop: Cluster) -> None:
        if not self.counts["kills"]:
            self.kill(shop)
        elif not self.counts["deploys"]:
            shop.replace_all()
            self.counts["deploys"] += 1
        elif not self.counts["freezes"]:
            frozen = shop.workers[0]
            frozen.send_signal(signal.SIGSTOP)
            time.sleep(loaded(2 * LEASE).total_seconds())
            frozen.send_signal(signal.SIGCONT)
            self.counts["freezes"] += 1
        else:
            self.kill(shop)
        self.last = time.monotonic()

    def kill(self, shop: Cluster) -> None:
        shop.end(shop.workers[0], signal.SIGKILL)
        shop.start()
        self.counts["kills"] += 1


def test_each_proposal_has_one_card(pg_url: str, tmp_path: Path) -> None:
    """Through a kill, a deploy and a freeze, while the batches are slow."""
    found = prove(
        pg_url, tmp_path, workers=2, rows=2_000, CAST_SIZE="10", CAST_SLOW="0.05"
    )
    assert min(found[one] for one in ("kills", "deploys", "freezes")) == 1, found


ASIDE = "SELECT row_key, state, tries, error FROM scheduled_set_aside"
DEATHS = 4  # in a batch, in a batch that was noted, and twice alone


@pytest.mark.extended
def test_a_row_that_ends_the_process_is_set_aside(pg_url: str, tmp_path: Path) -> None:
    """Like a crash of a C library: no error tells which row it was. It takes as long as four
    workers need to start.
    """
    engine = sa.create_engine(
        sa.make_url(pg_url).set(drivername="postgresql+psycopg"),
        isolation_level="AUTOCOMMIT",
    )
    environment = {"CAST_SIZE": "8", "CAST_DEADLY": "13"}
    with (
        engine.connect() as connection,
        cluster(pg_url, tmp_path, **environment) as shop,
    ):
        connection.execute(sa.text(TABLES))
        connection.execute(sa.text(FILL), {"rows": 30})
        with Client.open(pg_url) as client:
            client.schedule(AttachCards, id="part-1")
        shop.start()
        while connection.execute(sa.text(LEFT)).scalar_one():
            if shop.workers[0].poll() is not None:
                shop.workers.clear()
                assert shop.started <= DEATHS
                shop.start()
            time.sleep(0.05)
        (aside,) = connection.execute(sa.text(ASIDE)).all()
        verdict = connection.execute(sa.text(VERDICT)).one()._asdict()
    engine.dispose()
    assert (aside.row_key, aside.state, aside.tries) == ("13", "set_aside", 2)
    assert "process ended while it processed this row" in aside.error
    assert verdict == {"proposals": 30, "with_one_card": 29, "done": 29}


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_each_of_a_million_proposals_has_one_card(pg_url: str, tmp_path: Path) -> None:
    """With a kill each ten seconds."""
    faulthandler.cancel_dump_traceback_later()  # it would end the process after ten minutes
    found = prove(
        pg_url,
        tmp_path,
        rows=1_000_000,
        seconds=10.0,
        CAST_SIZE="500",
        CAST_SLOW="0.05",
    )
    print(found)
    assert found["kills"] >= 3
