"""Jobs each second for outages: every policy of catch-up with handlers that take nothing, 0.4 s or
3 s.
"""

from __future__ import annotations

import time

from tests.faults.cast.witness import LOG

from slotwise import CatchUp, DistributedJob, Every, JobContext

GRACE = "1s"
POLICIES = {
    "all": CatchUp.all(),
    "latest": CatchUp.latest(),
    "first": CatchUp.first(),
    "none": CatchUp.none(grace=GRACE),
}
#: How many milliseconds the handlers take.
TOOK = (0, 400, 3000)


def _kind(policy: str, took: int) -> type[DistributedJob]:
    """A job that listens to nobody."""

    class Cut(DistributedJob):
        name = f"cut-{policy}-{took}"
        schedule = Every("1s")
        catch_up = POLICIES[policy]

        def execute(self, ctx: JobContext) -> None:
            with LOG.attempt(ctx):
                time.sleep(took / 1000)

    return Cut


#: By their names: the policy, and how long the handlers take.
KINDS = {
    kind.name: (kind, policy)
    for policy in POLICIES
    for took in TOOK
    for kind in [_kind(policy, took)]
}
globals().update({name: kind for name, (kind, _) in KINDS.items()})
