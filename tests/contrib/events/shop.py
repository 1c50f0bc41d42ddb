"""A shop with handlers of its events, on one worker by hand whose clock the test moves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import sqlalchemy as sa

from slotwise import JobRegistry, Retry, TaskContext
from slotwise.contrib.events import Events, FannedOut
from slotwise.contrib.events.order import OnFailure
from slotwise.testing import ManualClock, ManualWorker

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ONE_RETRY = Retry.exponential(max_attempts=2, initial="30s", jitter="1us")


@dataclass(frozen=True)
class Paid:
    order: str
    step: int = 0


class Shop:
    """Handlers ``mail`` and ``index`` of order.paid; they fail for the steps in ``fails``."""

    def __init__(
        self,
        url: str,
        *names: str,
        on_failure: OnFailure = "block",
        clock: ManualClock | None = None,
        after_settle: Any = None,
        **options: Any,
    ) -> None:
        self.log: list[tuple[str, str, int]] = []
        self.fails: set[tuple[str, int]] = set()
        self.events = Events(**options)
        for name in names or ("mail", "index"):
            self.handle(name, on_failure=on_failure)
        self.registry = self.events.attach(
            JobRegistry(
                tasks=self.events.tasks, database_url=url, after_settle=after_settle
            )
        )
        self.worker = ManualWorker(self.registry, url, clock or ManualClock(NOON))
        self.events.use(self.worker.client)
        self.database = self.worker.store.database

    def handle(self, name: str, *events: str, **policies: Any) -> None:
        def handle(ctx: TaskContext[Paid]) -> None:
            self.log.append((name, ctx.data.order, ctx.data.step))
            if (name, ctx.data.step) in self.fails:
                raise OSError("the relay is down")

        policies = {"retry": ONE_RETRY, **policies}
        self.events.on(*(events or ("order.paid",)), name=name, **policies)(handle)

    @classmethod
    def sent(cls, url: str, clock: ManualClock) -> Shop:
        """A shop whose only handler, ``track``, is of order.sent."""
        return _Sent(url, "track", clock=clock)

    def __enter__(self) -> Self:
        self.worker.__enter__()
        self.events.register()
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.__exit__(None, None, None)
        self.registry.database.close()

    def publish(
        self, order: str | None, step: int = 0, event: str = "order.paid"
    ) -> int:
        """Publish an event in a transaction of its own."""
        with self.database.transaction() as connection:
            return self.put(connection, order, step, event)

    def put(
        self,
        connection: sa.Connection,
        order: str | None,
        step: int = 0,
        event: str = "order.paid",
    ) -> int:
        data = Paid(order or "", step)
        return self.events.publish(connection, event, data, key=order)

    def fan_out(self, **how: Any) -> FannedOut:
        return self.events.fan_out(**how)

    def run(self) -> list[tuple[str, str, int]]:
        """Give out and handle all that is due; return what the handlers saw."""
        before = len(self.log)
        while self.fan_out().events or self.worker.run_due():
            pass
        return self.log[before:]

    def seen(self, handler: str, order: str) -> list[int]:
        """The steps of an order that a handler saw, in order."""
        return [
            step for name, key, step in self.log if (name, key) == (handler, order)
        ]

    def rows(self, handler: str) -> list[tuple[str, str | None]]:
        """The rows of a handler: id and state, in the order of their positions."""
        tasks = self.worker.store.tables.tasks.c
        statement = sa.select(tasks.task_instance, tasks.state).where(
            tasks.task_name == handler
        )
        with self.database.transaction() as connection:
            found = connection.execute(statement.order_by(tasks.created_version))
            return [(id, state) for id, state in found]

    def execute(self, statement: str, **values: object) -> list[Any]:
        with self.database.transaction() as connection:
            found = connection.execute(sa.text(statement), values)
            return list(found) if found.returns_rows else []


class _Sent(Shop):
    def handle(self, name: str, *events: str, **policies: Any) -> None:
        super().handle(name, "order.sent", **policies)
