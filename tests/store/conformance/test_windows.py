"""Expected and actual slots of all jobs in a window, and counts by hour."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from tests.store.bench import NOON, Bench, at

from slotwise.inspect import RECURRING, SlotWindow

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def window(
    bench: Bench, start: datetime, end: datetime, job: str = "plain"
) -> SlotWindow:
    (found,) = [
        one
        for one in bench.inspect.windows(start, end)
        if (one.job, one.id) == (job, RECURRING)
    ]
    return found


def run(bench: Bench, name: str = "plain") -> None:
    bench.settle(bench.claim_one(name))


def test_expected_and_actual_slots(bench: Bench) -> None:
    """The schedule's own, and what the ledger has of them; what is in neither is missing."""
    bench.tick(1)
    run(bench)
    found = window(bench, at(0), at(5))
    assert found.expected == (at(1), at(2), at(3), at(4))
    assert [(line.slot, line.outcome, line.last) for line in found.actual] == [
        (at(1), "succeeded", None)
    ]
    assert found.missing == [at(2), at(3), at(4)]
    assert found.complete


def test_a_gap_is_not_missing(bench: Bench) -> None:
    """Slots that one run stands for are accounted for, also where the window cuts their range."""
    bench.tick(1)
    run(bench)
    bench.tick(9)
    run(bench)
    whole = window(bench, at(0), at(11))
    assert whole.missing == []
    assert [(line.slot, line.last, line.count) for line in whole.actual] == [
        (at(1), None, 1),
        (at(2), at(9), 8),
        (at(10), None, 1),
    ]
    assert window(bench, at(4), at(6)).missing == []


def test_nothing_is_expected_before_the_job_was_planned(bench: Bench) -> None:
    """Nor of a schedule whose slots depend on the end of the run before."""
    assert window(bench, NOON - HOUR, at(2)).expected == (at(1),)
    found = [
        one for one in bench.inspect.windows(at(0), at(9)) if "DELAY" in one.schedule
    ]
    assert [one.expected for one in found] == [()] * len(found)


def test_pages_by_job(bench: Bench) -> None:
    """Also where a page ends between two instances of a job."""
    bench.client.schedule_recurring("plain", "customer-7", "EVERY|1m")
    every = bench.inspect.windows(at(0), at(2))
    assert [one.job for one in every] == sorted(one.job for one in every)
    size = [(one.job, one.id) for one in every].index(("plain", "customer-7")) + 1
    first = bench.inspect.windows(at(0), at(2), limit=size)
    rest = bench.inspect.windows(at(0), at(2), after=(first[-1].job, first[-1].id))
    assert [*first, *rest] == every


def test_a_window_with_too_many_slots(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Says that it is not complete."""
    bench.tick(1)
    run(bench)
    monkeypatch.setattr("slotwise.store.reading.windows.MOST_SLOTS", 3)
    found = window(bench, at(0), at(9))
    assert (len(found.expected), found.complete) == (3, False)
    monkeypatch.setattr("slotwise.store.reading.windows.MOST_SLOTS", 30)
    monkeypatch.setattr("slotwise.store.reading.windows.MOST_LINES", 0)
    assert not window(bench, at(0), at(9)).complete
