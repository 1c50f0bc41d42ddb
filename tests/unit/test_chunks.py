"""Many items as chunks of rows: their borders, and what is said of an item that cannot be one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from tests.kit.payloads import UNTYPED
from tests.kit.records import When

from slotwise import ConfigurationError, InvalidPayload, InvalidSetting, Item
from slotwise.client.bulk import BYTES, Chunk, chunks
from slotwise.store.connect.caller_transaction import copy_into


def cut(items: Iterable[Any], size: int = 10) -> Iterator[Chunk]:
    return chunks(items, "mail", UNTYPED, When(None), 50, size)


async def asynchronous() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("items", "sizes"),
    [
        ([], []),
        ([1] * 10, [10]),
        ([1] * 11, [10, 1]),
        (range(25), [10, 10, 5]),
        ([Item(0, id=id) for id in "abcab"], [3, 2]),
        ([Item(0, id="a")] * 3, [1, 1, 1]),
        (["x" * 1_000_000] * 11, [5, 5, 1]),
    ],
    ids=[
        "nothing",
        "full",
        "one more",
        "a range",
        "an id again",
        "an id again and again",
        "many bytes",
    ],
)
def test_where_a_chunk_ends(items: Iterable[Any], sizes: list[int]) -> None:
    """At its number of rows, before an id that it has, and as soon as it has many bytes."""
    found = list(cut(items))
    assert [len(chunk.rows) for chunk in found] == sizes
    assert [chunk.first for chunk in found] == [
        sum(sizes[:place]) for place in range(len(sizes))
    ]
    assert all(
        sum(len(row.data or b"") for row in chunk.rows) < BYTES + 1_048_576
        for chunk in found
    )


def test_items_are_taken_as_they_come() -> None:
    """No item of the next chunk before this one is written."""
    taken: list[int] = []
    stream = cut((taken.append(number) for number in range(5)), 2)
    assert len(next(stream).rows) == len(taken) == 2


ITSELF: list[Any] = []
ITSELF.append(ITSELF)


@pytest.mark.parametrize(
    ("item", "kind", "words"),
    [
        (
            Item(1, id=" "),
            ConfigurationError,
            "items[2] (id ' '): schedule('mail', id=' '): an id cannot be blank",
        ),
        (
            Item(1, id=7),
            ConfigurationError,
            "items[2]: schedule('mail', id=7): an id is a string",
        ),  # type: ignore[arg-type]
        (
            Item(1, id="x", delay="5"),
            InvalidSetting,
            "items[2] (id 'x'): schedule('mail', delay='5'): ",
        ),
        (
            Item(1, id="x", delay="5s", at=datetime(2026, 1, 1, tzinfo=UTC)),
            ConfigurationError,
            "items[2] (id 'x'): schedule('mail'): both at and delay",
        ),
        (
            Item(1, priority=40_000),
            ConfigurationError,
            "items[2]: schedule_many('mail', priority=40000)",
        ),
        (
            {1, 2},
            InvalidPayload,
            "items[2]: the data for task 'mail' cannot be written as JSON",
        ),
        (
            ITSELF,
            InvalidPayload,
            "items[2]: the data for task 'mail' cannot be written as JSON",
        ),
        (
            Item("x" * 2_000_000, id="big"),
            InvalidPayload,
            "items[2] (id 'big'): the data for task 'mail' has 2000002",
        ),
    ],
    ids=[
        "blank id",
        "no text",
        "no unit",
        "two times",
        "priority",
        "no JSON",
        "endless",
        "too large",
    ],
)
def test_what_is_wrong_with_an_item(
    item: Any, kind: type[Exception], words: str
) -> None:
    """Is said in one line, with its place among all and its id."""
    with pytest.raises(kind) as refused:
        list(cut([1, 2, item], 2))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (None, "schedule_many('mail', items=None): expected a list or"),
        (Item(1), "expected a list or"),
        ("abc", "items='abc'): expected a list or"),
        ({"a": 1}, "expected a list or"),
        (
            asynchronous(),
            "cannot be awaited here; collect first: [one async for one in items]",
        ),
    ],
    ids=["none", "an item", "a text", "a dict", "an async generator"],
)
def test_what_are_no_items(items: Any, words: str) -> None:
    """Is said at once, in one line, with the cure."""
    with pytest.raises(ConfigurationError) as refused:
        list(cut(items))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_driver_without_copy_of_psycopg() -> None:
    """Such as asyncpg, below SQLAlchemy: said with the cure."""
    connection = SimpleNamespace(
        connection=SimpleNamespace(driver_connection=object())
    )
    with pytest.raises(
        ConfigurationError,
        match="COPY needs a connection of psycopg, this is object; drop copy=True",
    ):
        copy_into(connection, "COPY", lambda encoding: [])
