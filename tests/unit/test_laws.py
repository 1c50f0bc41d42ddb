"""The laws that the tables show are trusted after they have failed: each finds the tables that
break it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.kit.laws import (
    Breach,
    Ledger,
    none_double,
    none_invented,
    none_missing,
    nothing_left,
    rows_and_ledger,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DUE = [NOON + timedelta(minutes=minute) for minute in range(1, 8)]
HOLDER = "host:1:boot"


def row(slot: int, **values: Any) -> dict[str, Any]:
    """The plan row of the job, held for a slot."""
    standard = {
        "task_name": "job",
        "task_instance": "recurring",
        "schedule": "every 1m",
        "kind": "plan",
        "plan_instance": None,
        "origin": None,
        "slot": DUE[slot],
        "execution_time": DUE[slot],
        "picked": True,
        "picked_by": HOLDER,
        "version": 7,
        "state": None,
    }
    return {**standard, **values}


def entry(slot: int, **values: Any) -> tuple[tuple[str, datetime], dict[str, Any]]:
    standard = {
        "origin": "schedule",
        "outcome": "succeeded",
        "token": 7,
        "worker": HOLDER,
        "finished": DUE[slot],
        "attempts": 1,
    }
    return ("job", DUE[slot]), {**standard, **values}


def gap(first: int, last: int, count: int) -> dict[str, Any]:
    return {"first_slot": DUE[first], "last_slot": DUE[last], "count": count}


def open_entry(
    slot: int, **values: Any
) -> tuple[tuple[str, datetime], dict[str, Any]]:
    return entry(slot, outcome="running", finished=None, **values)


def attempts(
    slot: int, *numbers: int
) -> dict[tuple[str, datetime], list[dict[str, Any]]]:
    """Rows of attempts of a slot; the token of each is its number."""
    return {
        ("job", DUE[slot]): [{"number": number, "token": number} for number in numbers]
    }


def ledger(
    rows: list[Any], entries: list[Any], gaps: list[Any], attempts: Any = None
) -> Ledger:
    return Ledger(rows, dict(entries), {"job": gaps}, attempts or {})


def good(**changed: Any) -> Ledger:
    """Slots 0 and 1 ran, 2 to 4 are a gap, 5 runs in a row of its own, 6 is held by the plan
    row.
    """
    standard: dict[str, Any] = {
        "rows": [
            row(6),
            row(
                5,
                task_instance="recurring@5",
                kind="detached",
                plan_instance="recurring",
            ),
        ],
        "entries": [entry(0), entry(1), open_entry(5), open_entry(6)],
        "gaps": [gap(2, 4, 3)],
    }
    return ledger(**{**standard, **changed})


def done(**changed: Any) -> Ledger:
    """The same when all has ended; the plan row waits for what is to come."""
    later = NOON + timedelta(hours=1)
    waits = {**row(6, picked=False), "slot": later, "execution_time": later}
    return good(
        **{
            "rows": [waits],
            "entries": [entry(0), entry(1), entry(5), entry(6)],
            **changed,
        }
    )


def accounted(found: Ledger) -> Iterator[Breach]:
    yield from none_missing("job", DUE, found)
    yield from none_invented("job", DUE, found)
    yield from none_double("job", DUE, found)


def left(found: Ledger) -> Iterator[Breach]:
    return nothing_left(found, NOON + timedelta(minutes=30))


def test_good_tables_break_no_law() -> None:
    """While slots run, and when all has ended."""
    assert [
        *rows_and_ledger(good()),
        *accounted(good()),
        *rows_and_ledger(done()),
        *left(done()),
    ] == []


BROKEN: dict[str, tuple[str, Callable[[], Iterator[Breach]]]] = {
    "a slot in two rows": (
        "one row",
        lambda: rows_and_ledger(good(rows=[row(5), row(5), row(6)])),
    ),
    "a claim that the ledger does not have": (
        "one claim",
        lambda: rows_and_ledger(good(rows=[row(4), *good().rows])),
    ),
    "another token": (
        "one claim",
        lambda: rows_and_ledger(good(rows=[*good().rows[1:], row(6, version=8)])),
    ),
    "another holder": (
        "one claim",
        lambda: rows_and_ledger(good(rows=[*good().rows[1:], row(6, picked_by="x")])),
    ),
    "a row that waits for what has ended": (
        "none done waits",
        lambda: rows_and_ledger(good(rows=[*good().rows, row(1, picked=False)])),
    ),
    "an attempt without a row": (
        "attempts add up",
        lambda: rows_and_ledger(
            good(entries=[entry(0, attempts=3)], rows=[], attempts=attempts(0, 1))
        ),
    ),
    "a row of an attempt that never was": (
        "attempts add up",
        lambda: rows_and_ledger(
            good(entries=[entry(0, attempts=1)], rows=[], attempts=attempts(0, 1, 2))
        ),
    ),
    "the same attempt twice": (
        "attempts add up",
        lambda: rows_and_ledger(
            good(entries=[entry(0, attempts=2)], rows=[], attempts=attempts(0, 2, 2))
        ),
    ),
    "an open slot in no row": (
        "none forgotten",
        lambda: rows_and_ledger(good(rows=[row(6)])),
    ),
    "a slot in no place": (
        "every slot",
        lambda: none_missing("job", DUE, good(gaps=[gap(2, 3, 2)])),
    ),
    "a slot that was never due": (
        "every slot",
        lambda: none_invented("job", DUE[1:], good()),
    ),
    "two gaps overlap": (
        "every slot",
        lambda: none_double("job", DUE, good(gaps=[gap(2, 4, 3), gap(4, 4, 1)])),
    ),
    "a gap counts wrong": (
        "every slot",
        lambda: none_double("job", DUE, good(gaps=[gap(2, 4, 4)])),
    ),
    "a gap over what ran": (
        "every slot",
        lambda: none_double("job", DUE, good(gaps=[gap(1, 4, 4)])),
    ),
    "a row is still held": ("nothing stays held", lambda: left(good())),
    "a row is still due": (
        "nothing stays due",
        lambda: left(good(rows=[row(6, picked=False)])),
    ),
    "a slot is still open": (
        "none forgotten",
        lambda: left(done(entries=[open_entry(6)])),
    ),
}


@pytest.mark.parametrize(("law", "look"), BROKEN.values(), ids=BROKEN)
def test_a_broken_law_is_found(law: str, look: Callable[[], Iterator[Breach]]) -> None:
    """And named."""
    assert law in {breach.law for breach in look()}
