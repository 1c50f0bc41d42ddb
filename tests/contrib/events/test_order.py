"""The rules of order as a table, without a database."""

from __future__ import annotations

import pytest

from slotwise.contrib.events.order import (
    First,
    Lane,
    LaneState,
    OnFailure,
    Subscription,
    Waiting,
    appended,
    is_passed,
    subscribers,
    to_promote,
)
from slotwise.contrib.events.repair import stuck_keys

NOW = 1_000


def sub(handler: str, event: str = "paid") -> Subscription:
    return Subscription(handler=handler, event=event)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([], []),
        ([sub("a")], ["a"]),
        ([sub("a"), sub("b")], ["a", "b"]),
        ([sub("a", "placed")], []),
    ],
)
def test_who_gets_an_event(known: list[Subscription], expected: list[str]) -> None:
    found = subscribers(Waiting(id=5, name="paid"), known)
    assert [one.handler for one in found] == expected


def rows(
    events: list[tuple[int, str | None]], lanes: dict[Lane, LaneState]
) -> list[tuple[str, int, int, bool]]:
    waiting = [Waiting(id=id, name="paid", key=key) for id, key in events]
    found = appended(waiting, [sub("a"), sub("b")], lanes, NOW)
    return [
        (one.handler, one.event.id, one.position, one.is_blocked)
        for one in found
        if one.handler == "a"
    ]


def test_rows_are_in_the_order_of_numbers_whatever_the_order_of_the_look() -> None:
    assert rows([(3, "x"), (1, "x"), (2, "y")], {}) == [
        ("a", 1, 1000, False),
        ("a", 2, 1000, False),
        ("a", 3, 1001, True),
    ]


def test_a_lane_that_is_taken_blocks() -> None:
    taken = {Lane("a", "x"): LaneState(last=5, is_taken=True)}
    assert rows([(1, "x")], taken) == [("a", 1, 1000, True)]


def test_dead_rows_that_are_passed_leave_the_lane_free_but_keep_their_positions() -> (
    None
):
    passed = {Lane("a", "x"): LaneState(last=5000, is_taken=False)}
    assert rows([(1, "x"), (2, "x")], passed) == [
        ("a", 1, 5001, False),
        ("a", 2, 5002, True),
    ]


def test_a_clock_that_was_set_back_changes_no_order() -> None:
    later = {Lane("a", "x"): LaneState(last=9_000, is_taken=True)}
    assert rows([(1, "x")], later) == [("a", 1, 9_001, True)]


def test_events_without_a_key_wait_for_none() -> None:
    assert [row[3] for row in rows([(1, None), (2, None)], {})] == [False, False]


def test_lanes_of_two_handlers_are_two() -> None:
    taken = {Lane("b", "x"): LaneState(last=5, is_taken=True)}
    assert rows([(1, "x")], taken) == [("a", 1, 1000, False)]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], None),
        ([("a", "1", "blocked", 7)], "1"),
        ([("a", "1", None, 7)], None),
        ([("a", "1", "dead", 7)], None),
        ([("a", "1", "paused", 7)], None),
        # under a former name a row stands before
        ([("a", "2", "blocked", 8), ("old", "1", None, 7)], None),
        ([("a", "2", "blocked", 8), ("old", "1", "blocked", 7)], "1"),
    ],
)
def test_who_is_next(
    found: list[tuple[str, str, str | None, int]], expected: str | None
) -> None:
    chosen = to_promote(First(*one) for one in found)
    assert (chosen.id if chosen else None) == expected


@pytest.mark.parametrize(
    ("state", "on_failure", "expected"),
    [
        ("dead", "block", False),
        ("dead", "continue", True),
        ("blocked", "continue", False),
        (None, "continue", False),
    ],
)
def test_what_later_ones_may_pass(
    state: str | None, on_failure: OnFailure, expected: bool
) -> None:
    assert is_passed(state, on_failure) is expected


@pytest.mark.parametrize(
    ("found", "on_failure", "expected"),
    [
        ([("x", None), ("x", "blocked"), ("y", "blocked")], "block", {"y"}),
        ([("x", "dead"), ("x", "blocked"), ("y", None)], "block", set()),
        ([("x", "dead"), ("x", "blocked"), ("y", None)], "continue", {"x"}),
        ([("x", "dead"), ("x", None), ("x", "blocked")], "continue", set()),
        # the page ended within the dead ones
        ([("x", "dead"), ("x", "dead")], "continue", {"x"}),
        ([], "block", set()),
    ],
)
def test_which_lanes_of_a_page_may_be_stuck(
    found: list[tuple[str, str | None]], on_failure: OnFailure, expected: set[str]
) -> None:
    assert stuck_keys(found, on_failure) == expected
