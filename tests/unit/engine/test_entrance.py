"""What a worker derives from its jobs before it claims anything."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.unit.engine.conftest import MakeBench

from slotwise import Disabled, Every, FixedDelay, JobContext, job


@pytest.mark.parametrize(
    ("schedule", "seconds"),
    [
        (Every("2s"), 2),
        (Every("100ms"), 1),
        (Every("10s"), 10),
        (Every("1m"), 10),
        (FixedDelay("1s"), 10),
        (Disabled(), 10),
    ],
    ids=["shorter", "very short", "equal", "longer", "a fixed delay", "disabled"],
)
def test_no_slot_comes_due_between_two_polls(
    make_bench: MakeBench, schedule: Any, seconds: int
) -> None:
    """The first of two would count as missed. The shortest interval of its jobs bounds the poll
    interval.
    """

    @job(name="often", schedule=schedule)
    def often(ctx: JobContext) -> None:
        """Returns."""

    @job(name="rare", schedule=Every("1d"))
    def rare(ctx: JobContext) -> None:
        """Returns."""

    worker = make_bench(often, rare, poll_interval="10s").worker
    assert worker.store.poll == timedelta(seconds=seconds)
    assert worker.poller.planner.terms.poll_interval == timedelta(seconds=seconds)
