"""The arithmetic of a statement, by a table."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from slotwise.contrib.statement import statement
from slotwise.contrib.statement.formats import as_csv, as_page
from slotwise.contrib.statement.reconcile import (
    Books,
    Statement,
    added_up,
    pruned,
    reconcile,
    with_pruned,
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


def test_each_slot_is_one_of_these() -> None:
    found = reconcile(
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
        ),
        START,
        END,
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
    assert reconcile(books(ran(4), spans=spans), START, END).expected == expected


def test_a_clock_that_was_set_back_before_a_change() -> None:
    """The slot of 3:30 was decided by the former text; the new one owes nothing before it."""
    former = span(until=2.75, text="EVERY|30m")
    entries = [ran(hours / 2) for hours in range(6)]
    later = [ran(hours) for hours in range(4, 10)]
    found = reconcile(
        books(*entries, ran(3.5), *later, spans=(former, span(since=2.75))), START, END
    )
    assert (found.expected, found.ran, found.beside) == (12, 12, 1)
    assert found.balances


def test_a_gap_beyond_the_month() -> None:
    found = reconcile(
        books(gap(-5, 3, 9, "paused"), gap(4, 20, 17, "late")), START, END
    )
    assert found.skipped == {"late": 6, "paused": 4}
    assert found.balances


def test_what_is_yet_to_be_decided() -> None:
    one = Books(job="j", id="1", spans=(span(),), entries=(), undecided=at(7))
    found = reconcile(one, START, END)
    assert (found.open, found.unexplained) == (3, 7)


def test_pruned_slots_are_in_the_counts() -> None:
    """As far as these have more than the ledger: its slots do not count twice."""
    left = [ran(9), ran(8, "failed")]
    found = reconcile(books(*left), START, END)
    counts = [
        OutcomeCount(job="j", hour=START, outcome=outcome, reason=reason, count=count)
        for outcome, reason, count in [
            ("succeeded", None, 6),
            ("failed", None, 2),
            ("skipped", "late", 2),
        ]
    ]
    missing = pruned(left, counts)
    found = with_pruned(found, missing)
    assert not +missing
    assert (found.ran, found.failed, found.skipped) == (6, {"failed": 2}, {"late": 2})
    assert (found.pruned, found.unexplained, found.first_unexplained) == (8, 0, ())
    assert found.balances


class Tables:
    """The reads of a statement, from lists: one job with two instances, of which all slots were
    pruned but one.
    """

    def __init__(self, counted: int) -> None:
        self.counted = counted

    def schedule_spans(self, *_: object, job: str | None) -> list[ScheduleSpan]:
        return [replace(span(), id=id) for id in ("a", "b", RECURRING)]

    def windows(self, *_: object) -> list[object]:
        return []

    def slots(self, *_: object, **__: object) -> list[SlotInfo]:
        return [replace(ran(1), id="b")]

    def job(self, *_: object, **__: object) -> None:
        return None

    def outcome_counts(self, *_: object, **__: object) -> list[OutcomeCount]:
        count = self.counted
        one = OutcomeCount(
            job="j", hour=START, outcome="succeeded", reason=None, count=count
        )
        return [one]


@pytest.mark.parametrize(
    ("counted", "unexplained"), [(30, [0, 0, 0]), (25, [0, 0, 5]), (1, [10, 10, 9])]
)
def test_the_counts_of_a_job_are_for_all_its_rows(
    counted: int, unexplained: list[int]
) -> None:
    """Each slot that they have explains one slot of one row: the job's own row, then the
    instances.
    """
    tables = cast(Inspection, Tables(counted))
    found = statement(tables, START, END, now=END)
    assert sorted(one.id for one in found.jobs) == ["a", "b", RECURRING]
    rows = sorted(found.jobs, key=lambda one: (one.id != RECURRING, one.id))
    assert [one.unexplained for one in rows] == unexplained
    assert found.total.ran == counted


def test_formats() -> None:
    """Names are text in each of them."""
    found = reconcile(books(ran(1), ran(2, "failed")), START, END)
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
