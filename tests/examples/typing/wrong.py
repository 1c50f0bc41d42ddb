"""What users write by mistake: each line with a mark is an error for both checkers, and no other line is."""

from __future__ import annotations

from slotwise import DistributedJob, Every, JobContext, JobRegistry, job


class WrongSchedule(DistributedJob):
    name = "wrong-schedule"
    schedule = 120  # wrong

    def execute(self, ctx: JobContext) -> None: ...


class WrongName(DistributedJob):
    name = 7  # wrong
    schedule = Every("1m")

    def execute(self, ctx: JobContext) -> None: ...


class WrongPolicy(DistributedJob):
    name = "wrong-policy"
    schedule = Every("1m")
    on_lost = "ignore"  # wrong

    def execute(self, ctx: JobContext) -> None: ...


class WrongHandler(DistributedJob):
    name = "wrong-handler"
    schedule = Every("1m")

    def execute(self) -> None: ...  # wrong


class NoHandler(DistributedJob):
    name = "no-handler"
    schedule = Every("1m")


NoHandler()  # wrong


@job(name="no-schedule")  # wrong
def no_schedule(ctx: JobContext) -> None: ...


JobRegistry(jobs=7)  # wrong
