"""Low watermarks: from where on a claim looks, and when it must look from the beginning."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from tests.kit.ports import FIRST, LAST, Range
from tests.kit.store import LOOK_BACK, MOST, SHARE, QueueCursors

from slotwise.spi import Claim, Row

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NAMES = ("mail", "post")


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def claim(
    name: str, seconds: float, priority: int | None = 50, due: datetime | None = None
) -> Claim:
    row = Row(
        task_name=name,
        task_instance="1",
        execution_time=due or at(seconds),
        version=1,
        priority=priority,
    )
    return Claim(row=row, holder="h", lease=timedelta(minutes=1), claimed_at=NOON)


def looked(
    *claims: Claim,
    limit: int | None = None,
    names: Sequence[str] = NAMES,
    marks: QueueCursors | None = None,
    took: float = 0,
) -> QueueCursors:
    """After a full look, at 0 s, that asked for so many."""
    marks = marks or QueueCursors()
    marks.looked(names, claims, len(claims) if limit is None else limit, 0.0, took)
    return marks


def since(
    marks: QueueCursors, *, full: bool = False
) -> dict[tuple[str, int], datetime | None]:
    """The marks of the queues that are known."""
    return {
        (one.task_name, one.first): one.since
        for one in marks.ranges(NAMES, full=full)
        if one.first == one.last
    }


def test_the_first_look_is_a_full_one() -> None:
    """Nothing is known yet."""
    assert not QueueCursors().are_good(0.0)
    assert QueueCursors().ranges(NAMES, full=True) == [
        Range("mail", FIRST, LAST),
        Range("post", FIRST, LAST),
    ]


def test_from_the_oldest_of_the_last_batch_on() -> None:
    """Not from its newest: what somebody had locked in between is met again."""
    marks = looked(claim("mail", 1), claim("mail", 2), claim("mail", 3))
    assert since(marks) == {("mail", -50): at(1)}
    marks.found([claim("mail", 2), claim("mail", 4)], 2)
    assert since(marks) == {("mail", -50): at(2)}


def test_an_older_row_lowers_it() -> None:
    """One that a full look has found behind the mark: there may be others."""
    marks = looked(claim("mail", 8), claim("mail", 9))
    assert since(looked(claim("mail", 3), claim("mail", 9), marks=marks)) == {
        ("mail", -50): at(3)
    }


def test_once_a_second_from_the_beginning() -> None:
    """Counted from before the last full look was sent."""
    marks = looked(claim("mail", 1))
    marks.found([claim("mail", 2)], 1)
    assert marks.are_good(LOOK_BACK - 0.01)
    assert not marks.are_good(LOOK_BACK)


def test_a_look_that_takes_long_comes_less_often() -> None:
    """It has millions of dead entries to walk through, and takes a tenth of the time."""
    marks = looked(claim("mail", 1), took=3.0)
    assert marks.are_good(3 * SHARE - 0.01)
    assert not marks.are_good(3 * SHARE)


def test_a_full_look_names_what_is_known_and_has_no_marks() -> None:
    """To find a queue again, which it knows, would lead through its dead entries."""
    marks = looked(claim("mail", 1))
    assert since(marks, full=True) == {("mail", -50): None}


@pytest.mark.parametrize("limit", [3, 10])
def test_what_does_not_fill_half_a_batch_ends_it(limit: int) -> None:
    """Only a full look may say that nothing is due."""
    assert not looked(claim("mail", 1), limit=limit).are_good(0.1)
    marks = looked(claim("mail", 1), claim("mail", 2))
    marks.found([claim("mail", 3)], limit)
    assert not marks.are_good(0.1)


def test_what_is_not_known_is_looked_through_from_the_beginning() -> None:
    """More urgent priorities, those in between, and other tasks."""
    marks = looked(claim("mail", 1, 90), claim("mail", 2, 10))
    assert marks.ranges(NAMES, full=False) == [
        Range("mail", FIRST, -91, None),
        Range("mail", -90, -90, at(1)),
        Range("mail", -89, -11, None),
        Range("mail", -10, -10, at(2)),
        Range("mail", -9, LAST, None),
        Range("post", FIRST, LAST, None),
    ]


def test_neighbouring_priorities_leave_nothing_between() -> None:
    """No empty range is asked for."""
    marks = looked(claim("mail", 1, 51), claim("mail", 2, None))
    assert [(one.first, one.last) for one in marks.ranges(("mail",), full=False)] == [
        (FIRST, -52),
        (-51, -51),
        (-50, -50),
        (-49, LAST),
    ]


def test_a_mark_that_a_full_look_did_not_come_by_is_dropped() -> None:
    """Rows behind it may be waiting there; those of what goes first have filled the batch."""
    marks = looked(claim("mail", 1, 90), claim("mail", 2), claim("post", 3), limit=6)
    assert since(looked(claim("mail", 5), claim("mail", 6), marks=marks)) == {
        ("mail", -90): at(1),
        ("mail", -50): at(5),
    }
    marks = looked(claim("mail", 1, 90), claim("mail", 2), claim("post", 3), limit=6)
    last = looked(
        claim("post", 5), claim("post", 6), names=("post", "mail"), marks=marks
    )
    assert since(last) == {("mail", -90): at(1), ("post", -50): at(5)}


def test_a_full_look_that_came_by_and_found_nothing_keeps_the_mark() -> None:
    """Dead entries lie there: that is what marks are for."""
    marks = looked(claim("mail", 1, 90), claim("mail", 2))
    assert since(looked(claim("mail", 7), claim("mail", 8), marks=marks)) == {
        ("mail", -90): at(1),
        ("mail", -50): at(7),
    }


def test_a_task_that_is_not_asked_for_loses_its_mark() -> None:
    """A full look of others says nothing of it."""
    marks = looked(claim("mail", 1), claim("post", 1))
    looked(claim("mail", 2), names=("mail",), limit=2, marks=marks)
    assert since(marks) == {("mail", -50): at(2)}


def test_too_many_queues_have_none() -> None:
    """To ask for each of them would cost more than it spares; it is tried again with what the next
    look finds.
    """
    marks = looked(*(claim("mail", 1, priority) for priority in range(MOST + 1)))
    assert not marks.are_good(0.1)
    assert marks.ranges(NAMES, full=True) == [
        Range("mail", FIRST, LAST),
        Range("post", FIRST, LAST),
    ]
    found = since(looked(claim("mail", 2, 3), claim("mail", 3, 2), marks=marks))
    assert found == {("mail", -3): at(2), ("mail", -2): at(3)}


def test_a_task_that_was_left_out_loses_its_cursors() -> None:
    """A row that went back before its cursor would not be found while the task is at its limit at
    each full look.
    """
    marks = looked(claim("mail", 1), claim("post", 2))
    marks.looked(NAMES, [claim("post", 3)], 1, 2.0, 2.0, left_out={"mail"})
    assert since(marks) == {("post", -50): at(3)}
