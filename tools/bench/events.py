"""Events from publish to handled, on a database of its own that is empty.

    DATABASE_URL=postgresql://… python tools/bench/events.py --events 5000 --handlers 5 --keys 500
    … --retained 1000000     publish beside so many events in retention
    … --blocked              one of the keys has a dead event and many behind it

One worker in this process, one publisher, ten events in each transaction. Beside them, in the same
process, as many one-time tasks as events, ten in each transaction.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Callable

import sqlalchemy as sa

from slotwise import JobRegistry, TaskContext, task
from slotwise.contrib.events import Events
from slotwise.operations import Schema

PER_TRANSACTION = 10
RETAINED = sa.text(
    "INSERT INTO scheduled_events (name, key, data, published, fanned_out, handlers) "
    "SELECT 'paid', n::text, '{}', now(), now(), 1 FROM generate_series(1, :rows) AS n"
)
BLOCKED = sa.text(
    "INSERT INTO scheduled_tasks (task_name, task_instance, kind, execution_time, slot, picked, "
    "version, created_version, state, order_key) "
    "SELECT 'handler-0', 'b' || n, 'task', '9000-01-01Z', now(), false, n, n, "
    "CASE n WHEN 1 THEN 'dead' ELSE 'blocked' END, 'blocked' FROM generate_series(1, 10000) AS n"
)


class Run:
    """One measurement."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.events = Events()
        self.latencies: list[float] = []
        self._lock = threading.Lock()
        for number in range(given.handlers):
            self.events.on("paid", name=f"handler-{number}")(self._handler())
        url = os.environ["DATABASE_URL"]
        plain = task(name="plain")(self._handler())
        self.registry = self.events.attach(
            JobRegistry(
                tasks=[*self.events.tasks, plain], database_url=url, threads=10
            )
        )
        self.plain = plain
        Schema(self.registry.settings).upgrade()
        address = sa.make_url(url).set(drivername="postgresql+psycopg")
        self.engine = sa.create_engine(address)

    def _handler(self) -> Callable[[TaskContext[float]], None]:
        def handle(ctx: TaskContext[float]) -> None:
            with self._lock:
                self.latencies.append(time.time() - ctx.data)

        return handle

    def fill(self) -> None:
        with self.engine.begin() as connection:
            if self.given.retained:
                connection.execute(RETAINED, {"rows": self.given.retained})
            if self.given.blocked:
                connection.execute(BLOCKED)

    def publish(self, connection: sa.Connection, number: int) -> None:
        key = number % self.given.keys
        self.events.publish(connection, "paid", time.time(), key=key)

    def schedule(self, connection: sa.Connection, number: int) -> None:
        self.registry.client.schedule(
            self.plain, time.time(), id=f"{number}", connection=connection
        )

    def write(self, one: Callable[[sa.Connection, int], None]) -> float:
        """Write all events or tasks; return the seconds that it took."""
        began = time.monotonic()
        for start in range(0, self.given.events, PER_TRANSACTION):
            with self.engine.begin() as connection:
                for number in range(start, start + PER_TRANSACTION):
                    one(connection, number)
        return time.monotonic() - began

    def measure(self) -> None:
        self.fill()
        with self.registry:
            time.sleep(1)
            self.run("tasks", self.schedule, 1)
            self.run("events", self.publish, self.given.handlers)

    def run(
        self, what: str, one: Callable[[sa.Connection, int], None], handlers: int
    ) -> None:
        """Measure from the first one that is written to the last one that is handled."""
        self.latencies.clear()
        wanted = self.given.events * handlers
        began = time.monotonic()
        took = self.write(one)
        while len(self.latencies) < wanted and time.monotonic() < began + 600:
            time.sleep(0.02)
        total = time.monotonic() - began
        found = statistics.quantiles(self.latencies, n=100)
        print(
            f"{what:6} written {self.given.events / took:.0f}/s, handled "
            f"{len(self.latencies)} of {wanted}, {self.given.events / total:.0f}/s, latency "
            f"p50 {found[49] * 1000:.0f} ms, p99 {found[98] * 1000:.0f} ms"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000)
    parser.add_argument("--handlers", type=int, default=1)
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--retained", type=int, default=0)
    parser.add_argument("--blocked", action="store_true")
    Run(parser.parse_args()).measure()


if __name__ == "__main__":
    main()
