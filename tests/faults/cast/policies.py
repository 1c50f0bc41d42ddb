"""Jobs each second or two, one for each policy."""

from __future__ import annotations

import time

from tests.faults.cast.witness import LOG, attempt

from slotwise import CatchUp, DistributedJob, Every, JobContext, Overlap

#: The tag of the one worker that runs the jobs by rank, one at a time.
NARROW = "narrow"


class ConcurrentSlots(DistributedJob):
    """Listens to nobody; every third slot finds no place."""

    name = "abreast"
    schedule = Every("1s")
    overlap = Overlap.allow(max=2)

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            time.sleep(2.5)


class Replaced(DistributedJob):
    """Each slot would run for a minute."""

    name = "replaced"
    schedule = Every("2s")
    overlap = Overlap.cancel_previous()

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            ctx.wait("60s")
            ctx.check()


class Queued(DistributedJob):
    """The first slot takes so long that three come due meanwhile."""

    name = "queued"
    schedule = Every("1s")
    overlap = Overlap.queue(max=2)

    def execute(self, ctx: JobContext) -> None:
        with attempt(ctx) as is_first:
            if is_first:
                time.sleep(3.5)


class QueuedAll(Queued):
    name = "queued-all"
    overlap = Overlap.queue_all()


class Apart(DistributedJob):
    """Due each second, and not let start so soon."""

    name = "apart"
    schedule = Every("1s")
    min_interval = "1700ms"

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            pass


class Spread(DistributedJob):
    name = "spread"
    schedule = Every("2s")
    spread = "1500ms"

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            pass


class InTime(DistributedJob):
    """Would run every slot of an outage, were they not too late by then."""

    name = "in-time"
    schedule = Every("1s")
    catch_up = CatchUp.all()
    start_within = "1500ms"

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            pass


class Paced(DistributedJob):
    name = "paced"
    schedule = Every("1s")
    catch_up = CatchUp.all(pace="400ms")

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            pass


class Isolated(DistributedJob):
    """The first slot listens to nobody."""

    name = "isolated"
    schedule = Every("2s")
    isolation = "process"

    def execute(self, ctx: JobContext) -> None:
        with attempt(ctx) as is_first:
            if is_first:
                time.sleep(60)


class Rank90(DistributedJob):
    """Due together with two others, on a worker that runs one at a time."""

    name = "rank-90"
    schedule = Every("2s")
    priority = 90
    runs_on = (NARROW,)

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            time.sleep(0.05)


class Rank50(Rank90):
    name = "rank-50"
    priority = 50


class Rank10(Rank90):
    name = "rank-10"
    priority = 10


class Nowhere(Rank90):
    """Asks for what no worker offers."""

    name = "nowhere"
    runs_on = ("elsewhere",)


class Flood(DistributedJob):
    """One of many that were missed in one outage."""

    name = "flood"
    schedule = Every("1h")

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            pass


class Oldest(Flood):
    """Of what was missed, the first runs."""

    name = "oldest"
    catch_up = CatchUp.first()


class Capped(Flood):
    """Of what was missed, at most one runs."""

    name = "capped"
    catch_up = CatchUp.all(max=1)


class NeverLate(Flood):
    """Of what was missed, nothing runs."""

    name = "never-late"
    catch_up = CatchUp.none(grace="500ms")
