"""Jobs as classes: what users write, for the type checkers. Both must be silent about all of
it.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, assert_type

from slotwise import (
    CatchUp,
    Cron,
    Daily,
    DistributedJob,
    Every,
    JobContext,
    OneTimeTask,
    Overlap,
    Retry,
    Schedule,
    TaskContext,
)


class Synchronous(DistributedJob):
    name = "synchronous"
    schedule = Cron("0 2 * * *", tz="Europe/Vienna")

    def execute(self, ctx: JobContext) -> None:
        assert_type(ctx.slot, datetime)
        assert_type(ctx.interval_start, datetime | None)
        assert_type(ctx.interval_end, datetime)
        day: date = ctx.slot.date()
        print(
            day,
            ctx.interval_end - ctx.slot,
            ctx.attempt + 1,
            ctx.token,
            ctx.idempotency_key,
        )
        if not ctx.wait("100ms"):
            ctx.check()


class Asynchronous(DistributedJob):
    name = "asynchronous"
    schedule = Daily("02:00", "14:00", tz="Europe/Vienna")

    async def execute(self, ctx: JobContext) -> int:
        return ctx.missed_count


class WithPolicies(DistributedJob):
    name = "with-policies"
    schedule = Every("15m")
    catch_up = CatchUp.latest()
    overlap = Overlap.skip()
    on_lost = "rerun"
    max_lost = 5
    retry = Retry.exponential(max_attempts=4)

    def execute(self, ctx: JobContext) -> str:
        return "done"


class AtMostOnce(DistributedJob):
    name = "at-most-once"
    schedule = "*/5 * * * *"
    on_lost = "give_up"

    def execute(self, ctx: JobContext) -> None: ...


class Mailer:
    def send(self, text: str) -> None: ...


class Injected(DistributedJob):
    """Attributes set on the instance, objects of the application's own; no super().__init__()."""

    def __init__(self, mailer: Mailer, place: str, schedule: Schedule) -> None:
        self._mailer = mailer
        self.name = f"report-{place}"
        self.schedule = schedule

    def execute(self, ctx: JobContext) -> None:
        self._mailer.send(f"{self.name} for {ctx.slot:%d %B}")


class WithProperty(DistributedJob):
    """Works; but no checker lets a read-only property stand in for a declared attribute without a
    word.
    """

    schedule = Every("1h")

    def __init__(self, place: str) -> None:
        self._place = place

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"report-{self._place}"

    def execute(self, ctx: JobContext) -> None: ...


class Task(OneTimeTask[Any]):
    name = "task"
    retry = Retry(max_attempts=2)

    def execute(self, ctx: TaskContext[Any]) -> None:
        print(ctx.data["to"])


class AsynchronousTask(OneTimeTask):
    name = "asynchronous-task"

    async def execute(self, ctx: TaskContext) -> None:
        assert_type(ctx.data, None)
