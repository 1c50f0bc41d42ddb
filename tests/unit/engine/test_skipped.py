"""What is told of slots that will not run."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.kit.records import Failed

from slotwise import CatchUp, Every, Overlap, job
from slotwise.spi import SlotsSkipped
from slotwise.testing import ManualWorker

START = datetime(2026, 1, 1, tzinfo=UTC)


def told(worker: ManualWorker) -> list[tuple[float, float, int, str]]:
    """First and last, in minutes; how many; why."""
    minute = timedelta(minutes=1)
    return [
        (
            (event.first - START) / minute,
            (event.last - START) / minute,
            event.count,
            event.reason,
        )
        for event in worker.events
        if isinstance(event, SlotsSkipped) and event.job == "ticks"
    ]


def ticks(**policies: Any) -> ManualWorker:
    return ManualWorker([job(name="ticks", schedule=Every("1m"), **policies)(print)])


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        pytest.param({}, [(1, 8, 8, "collapsed")], id="latest"),
        pytest.param(
            {"catch_up": CatchUp.first()}, [(2, 9, 8, "collapsed")], id="first"
        ),
        pytest.param(
            {"catch_up": CatchUp.none(grace="10s")},
            [(1, 9, 9, "late")],
            id="none, and nothing starts",
        ),
        pytest.param(
            {"catch_up": CatchUp.all(max=2, window="5m")},
            [(1, 4, 4, "late"), (5, 7, 3, "collapsed")],
            id="two ranges",
        ),
    ],
)
def test_missed_slots_are_told_with_the_claim(
    policies: dict[str, Any], expected: list[Any]
) -> None:
    """One event for each range, once; also where nothing starts."""
    with ticks(**policies) as worker:
        worker.tick("9m30s")
        worker.run_due()
        assert told(worker) == expected


def test_slots_that_came_due_during_a_run_are_told_at_its_end() -> None:
    """One event for the range, whatever the run came to."""
    with ticks(overlap=Overlap.skip()) as worker:
        worker.tick("1m")
        (claim,) = worker.poll()
        assert worker.begin(claim)
        worker.tick("50s")
        worker.beat()
        worker.tick("50s")
        worker.beat()
        worker.tick("50s")
        worker.finish(claim, Failed("boom"))
        worker.settle()
        assert told(worker) == [(2, 3, 2, "overlap")]


def test_an_instance_is_named() -> None:
    """Of many instances of one job, each tells of its own slots; what is logged of them is one
    line.
    """
    with ticks(catch_up=CatchUp.latest()) as worker:
        worker.client.schedule_recurring("ticks", "customer-17", "EVERY|1m")
        worker.tick("2m30s")
        worker.run_due()
        loud = [
            event.facts()
            for event in worker.events
            if "skipped" in event.name and event.level >= logging.INFO
        ]
        first = START + timedelta(minutes=1)
        told = {
            "jobs": 2,
            "first": first,
            "last": first,
            "count": 2,
            "reasons": ["collapsed"],
        }
        assert loud == [{"worker": loud[0]["worker"], **told}]
        found = [
            event.facts() for event in worker.events if isinstance(event, SlotsSkipped)
        ]
        assert sorted(facts["id"] for facts in found) == ["customer-17", "recurring"]
