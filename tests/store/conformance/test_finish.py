"""The short way of what is most common: one-time tasks that succeeded, all of a batch in one
statement, or none.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.store.bench import NOON, Bench, at, stale

from slotwise.spi import Claim


def held(bench: Bench, count: int = 3) -> list[Claim]:
    for number in range(count):
        bench.client.schedule("mail", id=f"{number}")
    return bench.claim("mail")


def test_all_of_them_are_gone(bench: Bench) -> None:
    """As after a settlement of each."""
    claims = held(bench)
    assert bench.store.settlements.finish(claims)
    assert [bench.find("mail", f"{number}") for number in range(3)] == [None] * 3


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"key": "other"}, id="another key"),
        pytest.param({"version": 1}, id="a later version"),
        pytest.param({"version": -1}, id="an earlier version"),
        pytest.param({"holder": "host:1:b"}, id="another boot"),
    ],
)
def test_one_outside_its_fence_keeps_all(bench: Bench, wrong: dict[str, Any]) -> None:
    """Key, version and holder; the settlement then says which of them is lost."""
    claims = held(bench)
    before = [bench.row("mail", f"{number}") for number in range(3)]
    bad = stale(claims[1], **wrong)
    assert (
        not bench.store.settlements.finish([bad])
        if "holder" in wrong
        else not bench.store.settlements.finish([claims[0], bad])
    )
    assert [bench.row("mail", f"{number}") for number in range(3)] == before


@pytest.mark.parametrize(
    "asked",
    [{"state": "paused"}, {"wanted_due": NOON}, {"cancel_requested": NOON}],
    ids=lambda columns: next(iter(columns)),
)
def test_whatever_was_asked_of_a_held_row_is_for_the_settlement(
    bench: Bench, asked: dict[str, Any]
) -> None:
    """A command wrote a column of its own meanwhile: that is decided with everything at hand."""
    claims = held(bench)
    bench.change("mail", "1", **asked)
    assert not bench.store.settlements.finish(claims)
    assert all(bench.row("mail", f"{number}") is not None for number in range(3))


def test_the_highest_priority_goes_first(bench: Bench) -> None:
    """And then the oldest; a row without a priority has that of the middle."""
    for number, priority in enumerate((10, 90, 50, 90)):
        bench.client.schedule(
            "mail", id=f"{number}", at=at(number / 10 - 1), priority=priority
        )
    bench.client.schedule("mail", id="4", at=at(-5))
    bench.change("mail", "4", priority=None)
    assert [claim.row.task_instance for claim in bench.claim("mail", limit=2)] == [
        "1",
        "3",
    ]
    assert [claim.row.task_instance for claim in bench.claim("mail")] == ["4", "2", "0"]
