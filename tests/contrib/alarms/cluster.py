"""A cluster of one worker by hand, and alarms that look at it, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from slotwise import Cron, JobContext, JobRegistry, TaskContext, job, task
from slotwise.contrib.alarms import Alarms, Call, Message
from slotwise.testing import ManualClock, ManualWorker

#: Of a worker by hand there is no sign-in.
NOT_ALIVE = ("no_worker", "unroutable")
HOUR = timedelta(hours=1)
#: A Thursday.
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Cluster:
    """Jobs that fail as told, and the messages that alarms send."""

    def __init__(self, url: str, **options: Any) -> None:
        self.fails: set[str] = set()
        self.clock = ManualClock(NOON)
        self.messages: list[Message] = []

        @job(name="hourly", schedule="0 * * * *")
        def hourly(ctx: JobContext) -> None:
            if "hourly" in self.fails:
                raise OSError("no space left")

        @job(name="weekly", schedule=Cron("0 2 * * 1", tz="UTC"))
        def weekly(ctx: JobContext) -> None:
            if "weekly" in self.fails:
                raise OSError("no space left")

        @task(name="mail", retry=None)
        def mail(ctx: TaskContext[str]) -> None:
            raise ValueError("relay refused")

        self.mail = mail
        self.registry = JobRegistry(
            jobs=[hourly, weekly], tasks=[mail], clock=self.clock, database_url=url
        )
        self.worker = ManualWorker(self.registry, url, self.clock)
        self.worker.plan()
        self.options = {"targets": [Call(self.messages.append, name="me")], **options}
        self.alarms = Alarms(self.registry, **self.options)

    @property
    def told(self) -> list[tuple[str, str, str]]:
        """Event, kind and name of each message so far."""
        return [(one.event, one.kind, one.name) for one in self.messages]

    def another(self, **options: Any) -> Alarms:
        """A second watcher of the same tables."""
        return Alarms(self.registry, **{**self.options, **options})

    def pass_hours(self, count: int, *, works: bool = True) -> None:
        """Let hours pass, with a round after each; ``works``: the worker runs what is due."""
        for _ in range(count):
            self.worker.tick(HOUR)
            if works:
                self.worker.run_due()
            self.alarms.run_once()


@contextmanager
def cluster(url: str, **options: Any) -> Iterator[Cluster]:
    found = Cluster(url, **options)
    try:
        yield found
    finally:
        found.worker.close()
        found.registry.database.close()
