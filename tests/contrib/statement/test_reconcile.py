"""The arithmetic of a statement, by a table."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from slotwise.contrib.statement import statement
from slotwise.contrib.statement.formats import as_csv, as_page
from slotwise.contrib.statement.reconcile import (
    Books,
    JobStatement,
    Pruned,
    Statement,
    added_up,
    pruned_in,
    reconcile,
)
from slotwise.inspect import (
    RECURRING,
    Inspection,
    OutcomeCount,
    ScheduleSpan,
    SlotInfo,
)

START = datetime(2026, 11, 1, tzinfo=UTC)
END = START + timedelta(hours=10)
LONG = timedelta(days=900)


def at(hours: float) -> datetime:
    return START + timedelta(hours=hours)


def span(
    since: float = -99,
    until: float = 99,
    text: str = "EVERY|1h",
    *,
    first: bool = False,
) -> ScheduleSpan:
    return ScheduleSpan(
        job="j",
        id=RECURRING,
        since=at(since),
        until=at(until),
        schedule=text,
        is_first=first,
    )


def ran(
    hours: float,
    outcome: str = "succeeded",
    *,
    after: float = 0,
    origin: str = "schedule",
    reason: str | None = None,
) -> SlotInfo:
    return SlotInfo(
        slot=at(hours),
        outcome=outcome,
        origin=origin,
        reason=reason,
        started=at(hours + after),
    )


def gap(first: float, last: float, count: int, reason: str) -> SlotInfo:
    return SlotInfo(
        slot=at(first), last=at(last), count=count, outcome="skipped", reason=reason
    )


def books(*entries: SlotInfo, spans: tuple[ScheduleSpan, ...] = (span(),)) -> Books:
    return Books(job="j", id=RECURRING, spans=spans, entries=entries, undecided=None)


def stated(known: Books, pruned: Pruned | None = None) -> JobStatement:
    return reconcile(known, START, END, Counter() if pruned is None else pruned)


def test_each_slot_is_one_of_these() -> None:
    found = stated(
        books(
            ran(0),
            ran(1, after=0.5),
            ran(2, origin="catch_up"),
            ran(3, "failed"),
            ran(4, "skipped", reason="overlap"),
            gap(5, 7, 3, "maintenance"),
            ran(6, origin="backfill"),
            ran(8, "running"),
            ran(0.25, origin="trigger"),
        )
    )
    assert (found.expected, found.ran, found.late, found.open) == (10, 2, 2, 1)
    assert found.failed == {"failed": 1}
    assert found.skipped == {"maintenance": 2, "overlap": 1}
    assert (found.beside, found.unexplained) == (1, 1)
    assert found.first_unexplained == (at(9),)
    assert not found.balances


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        pytest.param((span(),), 10, id="one text"),
        pytest.param((span(until=5), span(5, text="EVERY|2h")), 8, id="a deploy"),
        pytest.param((span(3, first=True),), 6, id="planned in the month"),
        pytest.param((span(until=4),), 5, id="deleted in the month"),
        pytest.param(
            (span(3.2, 3.7, first=True), span(3.7, text="-")),
            0,
            id="disabled before its first slot",
        ),
        pytest.param((span(text="-"),), 0, id="disabled"),
        pytest.param((span(text="MOON|full"),), 1, id="unreadable"),
        pytest.param((span(text="FIXED_DELAY|3600s"),), 1, id="fixed delay"),
    ],
)
def test_every_text_that_the_job_had(
    spans: tuple[ScheduleSpan, ...], expected: int
) -> None:
    assert stated(books(ran(4), spans=spans)).expected == expected


def test_a_clock_that_was_set_back_before_a_change() -> None:
    """The slot of 3:30 was decided by the former text; the new one owes nothing before it."""
    former = span(until=2.75, text="EVERY|30m")
    entries = [ran(hours / 2) for hours in range(6)]
    later = [ran(hours) for hours in range(4, 10)]
    found = stated(books(*entries, ran(3.5), *later, spans=(former, span(since=2.75))))
    assert (found.expected, found.ran, found.beside) == (12, 12, 1)
    assert found.balances


def test_a_gap_beyond_the_month() -> None:
    found = stated(books(gap(-5, 3, 9, "paused"), gap(4, 20, 17, "late")))
    assert found.skipped == {"late": 6, "paused": 4}
    assert found.balances


def test_what_is_yet_to_be_decided() -> None:
    one = Books(job="j", id="1", spans=(span(),), entries=(), undecided=at(7))
    found = stated(one)
    assert (found.open, found.unexplained) == (3, 7)


def gone(
    hour: float, outcome: str, count: int, reason: str | None = None
) -> OutcomeCount:
    return OutcomeCount(
        job="j", hour=at(hour), outcome=outcome, reason=reason, count=0, pruned=count
    )


def test_pruned_slots_are_in_the_counts() -> None:
    """By the hour, whatever workers have counted of it; skipped ones explain those beside, too."""
    counts = [gone(hour, "succeeded", 1) for hour in (0, 1, 4, 5, 6)]
    counts += [gone(2, "failed", 1), gone(3, "skipped", 2, "late")]
    pruned = pruned_in([*counts, gone(9, "skipped", 0, "late")])
    left = [ran(9), ran(8, "failed")]
    found = stated(books(*left), pruned)
    assert not +pruned
    assert (found.ran, found.failed, found.skipped) == (6, {"failed": 2}, {"late": 2})
    assert (found.pruned, found.unexplained, found.first_unexplained) == (8, 0, ())
    assert found.balances


def test_what_was_pruned_explains_its_hour_alone() -> None:
    """The oldest slots of that; the others are named, as many as are unexplained."""
    half = (span(text="EVERY|30m"),)
    pruned = pruned_in([gone(hour, "succeeded", 2) for hour in range(9)])
    pruned.update(pruned_in([gone(9, "succeeded", 1)]))
    pruned[at(3), "ran"] -= 1
    pruned[at(4), "ran"] += 5
    found = stated(books(spans=half), pruned)
    assert (found.expected, found.ran, found.unexplained) == (20, 18, 2)
    assert found.first_unexplained == (at(3.5), at(9.5))


class Tables:
    """The reads of a statement, from lists: one job with two instances, of which one slot was not
    pruned. A ``late`` one goes after the second read of the ledger.
    """

    def __init__(self, by_hour: int, late: SlotInfo | None = None) -> None:
        self.by_hour = by_hour
        self.late = late
        self.reads = 0

    def schedule_spans(self, *_: object, job: str | None) -> list[ScheduleSpan]:
        return [replace(span(), id=id) for id in ("a", "b", RECURRING)]

    def windows(self, *_: object) -> list[object]:
        return []

    def slots(self, *_: object, **__: object) -> list[SlotInfo]:
        self.reads += 1
        more = [self.late] if self.late and self.reads <= 2 else []
        return [replace(ran(1), id="b"), *more]

    def job(self, *_: object, **__: object) -> None:
        return None

    def outcome_counts(self, *_: object, **__: object) -> list[OutcomeCount]:
        counts = [gone(hour, "succeeded", self.by_hour) for hour in range(10)]
        if self.late and self.reads >= 2:
            counts.append(gone(2, "succeeded", 1))
        return counts


@pytest.mark.parametrize(
    ("by_hour", "unexplained"), [(3, [0, 0, 0]), (2, [0, 0, 9]), (0, [10, 10, 9])]
)
def test_the_counts_of_a_job_are_for_all_its_rows(
    by_hour: int, unexplained: list[int]
) -> None:
    """Each slot that they have explains one slot of one row: the job's own row, then the
    instances.
    """
    tables = cast(Inspection, Tables(by_hour))
    found = statement(tables, START, END, now=END)
    assert sorted(one.id for one in found.jobs) == ["a", "b", RECURRING]
    rows = sorted(found.jobs, key=lambda one: (one.id != RECURRING, one.id))
    assert [one.unexplained for one in rows] == unexplained
    assert found.total.ran == 30 - sum(unexplained)


def test_what_is_pruned_between_two_reads_counts_once() -> None:
    """It explains no other slot of its hour."""
    tables = Tables(2, late=replace(ran(2), id=RECURRING))
    found = statement(cast(Inspection, tables), START, END, now=END)
    assert (found.total.ran, found.total.unexplained) == (22, 8)
    assert tables.reads == 3


def test_formats() -> None:
    """Names are text in each of them."""
    found = stated(books(ran(1), ran(2, "failed")))
    name = "=<b>job</b>"
    odd = type(found)(
        job=name, id=RECURRING, expected=found.expected, failed={"dead": 2}
    )
    whole = Statement(
        start=START, end=END, jobs=(found, odd), total=added_up([found, odd])
    )
    text = as_csv(whole)
    assert f"'{name},recurring,failed,dead,2\n" in text
    assert "total,,expected,,20\n" in text
    page = as_page(whole, "November")
    assert "<b>job</b>" not in page
    assert "&lt;b&gt;job" in page
    assert "8 slots are not explained" in page
    assert whole.as_json()["total"]["expected"] == 20  # type: ignore[index]
