"""A job that receives its dependencies through its constructor.

    python examples/constructor_injection.py

prints

    to ops@example.com: 3 orders are open
"""

from __future__ import annotations

import threading

from _database import database_url, make_tables

from slotwise import DistributedJob, Every, JobContext, JobRegistry


class Orders:
    """A stand-in for a repository of your application."""

    def count_open(self) -> int:
        return 3


class Mailer:
    """A stand-in for a service of your application."""

    def __init__(self) -> None:
        self.sent = threading.Event()

    def send(self, to: str, text: str) -> None:
        print(f"to {to}: {text}")
        self.sent.set()


class OpenOrdersReport(DistributedJob):
    name = "example-open-orders"
    schedule = Every("1s")

    def __init__(self, orders: Orders, mailer: Mailer, *, to: str) -> None:
        self._orders = orders  # super().__init__() is not needed
        self._mailer = mailer
        self._to = to

    def execute(self, ctx: JobContext) -> None:
        self._mailer.send(self._to, f"{self._orders.count_open()} orders are open")


if __name__ == "__main__":
    mailer = Mailer()
    report = OpenOrdersReport(Orders(), mailer, to="ops@example.com")
    registry = JobRegistry(
        jobs=[report], database_url=database_url(), poll_interval="1s"
    )
    make_tables(registry)
    with registry:
        assert mailer.sent.wait(timeout=30), "no slot has run"
