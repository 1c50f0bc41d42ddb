"""Events through kills, a freeze and a deploy of the workers that give them out and handle them,
judged by what the handlers wrote: nothing is lost, the order of each key is kept, and no effect is
there twice that was committed with its success.
"""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.faults.bench import LEASE, loaded
from tests.faults.event_shop import Moved
from tests.faults.test_batches import Cluster, cluster

from slotwise import Client
from slotwise.contrib.events import Events

TABLE = """
    CREATE TABLE lines (id bigint GENERATED ALWAYS AS IDENTITY, handler text, key int, step int)
"""
LINES = "SELECT handler, key, step FROM lines ORDER BY id"
LEFT = """
    SELECT (SELECT count(*) FROM scheduled_tasks)
        + (SELECT count(*) FROM scheduled_events WHERE fanned_out IS NULL)
"""


class Shop(Cluster):
    """Workers of the application with the events."""

    application = "tests.faults.event_shop"


class Publishers:
    """Threads that publish the steps of their keys; a step is published once the one before is
    committed, over any connection.
    """

    def __init__(
        self, url: str, engine: sa.Engine, keys: int, steps: int, pause: float
    ) -> None:
        self._url, self._engine = url, engine
        self._keys, self._steps, self._pause = keys, steps, pause
        self.threads = [
            threading.Thread(target=self._publish, args=(part,)) for part in range(3)
        ]

    def _publish(self, part: int) -> None:
        events = Events()
        events.declare("moved", Moved)
        with Client.open(self._url) as client:
            events.use(client)
            for step in range(self._steps):
                for key in range(part, self._keys, 3):
                    with self._engine.begin() as connection:
                        events.publish(connection, "moved", Moved(key, step), key=key)
                    time.sleep(self._pause)

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self.threads:
            thread.start()
        try:
            yield
        finally:
            for thread in self.threads:
                thread.join(300)


def befall(shop: Cluster, turn: int) -> None:
    """A kill, a freeze, a deploy, and again."""
    match turn % 3:
        case 0:
            shop.end(shop.workers[0], signal.SIGKILL)
            shop.start()
        case 1:
            frozen = shop.workers[0]
            frozen.send_signal(signal.SIGSTOP)
            time.sleep(loaded(2 * LEASE).total_seconds())
            frozen.send_signal(signal.SIGCONT)
        case _:
            shop.replace_all()


def prove(
    url: str,
    directory: Path,
    *,
    keys: int,
    steps: int,
    pause: float,
    troubles: int,
    every: float,
    slow: str,
) -> dict[str, object]:
    """Publish and handle through trouble, and judge by the lines."""
    address = sa.make_url(url).set(drivername="postgresql+psycopg")
    engine = sa.create_engine(address, pool_size=5)
    with (
        engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection,
        cluster(url, directory, CAST_SLOW=slow, kind=Shop) as shop,
    ):
        connection.execute(sa.text(TABLE))
        for _ in range(2):
            shop.start()
        with Publishers(url, engine, keys, steps, pause).running():
            for turn in range(troubles):
                time.sleep(every)
                befall(shop, turn)
        limit = time.monotonic() + 300
        while connection.execute(sa.text(LEFT)).scalar_one():
            assert time.monotonic() < limit, "events are left"
            time.sleep(0.1)
        lines = [tuple(row) for row in connection.execute(sa.text(LINES))]
    engine.dispose()
    return judged(lines, keys, steps)


def judged(
    lines: list[tuple[str, int, int]], keys: int, steps: int
) -> dict[str, object]:
    seen: dict[tuple[str, int], list[int]] = {}
    for handler, key, step in lines:
        seen.setdefault((handler, key), []).append(step)
    wanted = list(range(steps))
    for handler, key in itertools.product(("plain", "exact"), range(keys)):
        found = seen.get((handler, key), [])
        if handler == "exact":
            assert found == wanted, (handler, key, found)
        # at least once: the first time of each step is in order
        assert list(dict.fromkeys(found)) == wanted, (handler, key, found)
    return {"lines": len(lines), "twice": len(lines) - 2 * keys * steps}


def test_nothing_is_lost_and_the_order_is_kept(pg_url: str, tmp_path: Path) -> None:
    """Through a kill, a freeze and a deploy."""
    prove(
        pg_url,
        tmp_path,
        keys=12,
        steps=15,
        pause=0.02,
        troubles=3,
        every=1.0,
        slow="0.01",
    )


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_through_many_kills(pg_url: str, tmp_path: Path) -> None:
    prove(
        pg_url,
        tmp_path,
        keys=60,
        steps=150,
        pause=0.01,
        troubles=30,
        every=2.0,
        slow="0.005",
    )
