"""Which rows a walk takes next, by tables: pure."""

from __future__ import annotations

import pytest

from slotwise import ConfigurationError
from slotwise.contrib.batches.keys import key_text, read_key
from slotwise.contrib.batches.walk import Halving, Places, Walk


def places(*keys: int | None) -> Places:
    found = [(key,) for key in keys]
    return Places(found, found)


@pytest.mark.parametrize(
    ("bad", "size"), [(1, 50), (50, 50), (25, 50), (26, 50), (1, 1), (2, 2), (7, 13)]
)
def test_halving_finds_the_row_that_fails(bad: int, size: int) -> None:
    """In about twice the logarithm of the size, and all others are processed meanwhile."""
    halving = Halving(size)
    todo = [*range(1, size + 1)]
    done, looks = [], 0
    while todo:
        looks += 1
        batch = todo[: halving.limit]
        if bad not in batch:
            halving.succeeded(len(batch))
            done += batch
            todo = todo[len(batch) :]
        elif halving.failed(len(batch)):
            assert batch == [bad]
            todo.remove(bad)
    assert done == [one for one in range(1, size + 1) if one != bad]
    assert looks <= 2 * size.bit_length() + 3


def test_a_cursor_advances_with_what_is_committed_alone() -> None:
    walk = Walk(size=2, by_cursor=True)
    assert walk.next_rows().after is None
    assert walk.failed(places(1, 2)) is None
    assert (walk.next_rows().after, walk.next_rows().limit) == (None, 1)
    walk.succeeded(places(1))
    assert walk.failed(places(2)) == places(2).first
    assert walk.next_rows() == type(walk.next_rows())(2, (2,), ((2,),))


def test_a_row_that_is_tried_again_moves_no_cursor() -> None:
    walk = Walk(size=2, by_cursor=True, after=(9,))
    walk.again.append((3,))
    wanted = walk.next_again()
    assert wanted is not None
    assert wanted.only == (3,)
    assert walk.place_after(places(3)) == (9,)
    walk.succeeded(places(3))
    assert (walk.after, walk.done, walk.next_again()) == ((9,), 1, None)


def test_rows_at_which_an_attempt_was_lost_are_taken_one_by_one() -> None:
    walk = Walk(size=4, by_cursor=True, wary=2)
    assert walk.next_rows().limit == 1
    walk.succeeded(places(1))
    assert walk.next_rows().limit == 1
    assert walk.failed(places(2)) == places(2).first
    assert (walk.next_rows().limit, walk.next_rows().after) == (4, (2,))


@pytest.mark.parametrize(
    ("by_cursor", "rows", "words"),
    [
        (True, Places([(1,)], [(None, 1)]), "has NULL in a column"),
        (False, places(None), "has NULL in a column"),
        (False, places(4, 4), "two rows have the key 4"),
    ],
)
def test_rows_that_a_walk_would_lose_are_refused(
    by_cursor: bool, rows: Places, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Walk(size=9, by_cursor=by_cursor).check(rows)


def test_keys_come_back_with_their_types() -> None:
    from datetime import UTC, date, datetime
    from decimal import Decimal
    from uuid import UUID

    for key in [
        (17,),
        ("ø",),
        (UUID(int=1), Decimal("1.50")),
        (date(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC), "x"),
    ]:
        assert read_key(key_text(key)) == key
    assert key_text((17,)) == "17"
    with pytest.raises(ConfigurationError, match="has 202 characters, at most 200"):
        key_text(("x" * 200,))
    with pytest.raises(ConfigurationError, match="is a bytes"):
        key_text((b"x",))
