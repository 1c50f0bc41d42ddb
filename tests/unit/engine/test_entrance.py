"""What a worker says of its jobs before it claims anything."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.unit.engine.conftest import MakeBench

from slotwise import Disabled, Every, FixedDelay, JobContext, job


@pytest.mark.parametrize(
    ("schedule", "poll_interval", "warns"),
    [
        (Every("1s"), "10s", True),
        (Every("10s"), "10s", False),
        (FixedDelay("1s"), "10s", False),
        (Disabled(), "10s", False),
    ],
    ids=["slots between two looks", "none", "a fixed delay", "disabled"],
)
def test_slots_between_two_looks_are_warned_about(
    make_bench: MakeBench, caplog: pytest.LogCaptureFixture, schedule: Any, poll_interval: str, warns: bool
) -> None:
    """They would count as missed."""

    @job(name="often", schedule=schedule)
    def often(ctx: JobContext) -> None:
        """Returns."""

    bench = make_bench(often, poll_interval=poll_interval)
    with caplog.at_level(logging.WARNING, logger="slotwise.engine.sign_in"):
        bench.worker.entrance.enter()
    said = [record.getMessage() for record in caplog.records if "poll_interval" in record.getMessage()]
    words = "poll_interval=10s is longer than the time between two slots of often"
    assert [words in one for one in said] == [True] * warns
