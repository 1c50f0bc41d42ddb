"""Many items as rows, a chunk at a time: checked, encoded, and bounded in number and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from slotwise.client.arguments import Item, fresh_ids, wanted
from slotwise.errors import ConfigurationError, SlotwiseError
from slotwise.model.records import Wanted, When
from slotwise.payload.payload import Payload

#: How much data goes into one statement, in bytes; what one task may have comes on top.
BYTES = 4 * 1_048_576


class Chunk(NamedTuple):
    """Rows with different ids, and where among all items they stand; ``named``: some have ids of their own."""

    first: int
    rows: list[Wanted]
    named: bool

    def place_of(self, taken: Iterable[str]) -> tuple[int, str] | None:
        """The first item with one of these ids."""
        ids = frozenset(taken)
        found = ((place, row.instance) for place, row in enumerate(self.rows, self.first) if row.instance in ids)
        return next(found, None)


def chunks(items: Iterable[Any], name: str, payload: Payload, usual: When, priority: int, size: int) -> Iterator[Chunk]:
    """Items are taken as they come, and no further than to the end of a chunk.

    A chunk ends before an id that it has already: the second one finds the first, wherever borders fall. Raises what
    ``schedule`` raises, naming the item.
    """
    ids, rows, seen = fresh_ids(), list[Wanted](), set[str]()
    first, held, named = 0, 0, False
    for place, item in enumerate(_taken_one_by_one(items, name)):
        try:
            row = wanted(item, name, payload, ids, usual, priority)
        except SlotwiseError as error:
            raise type(error)(f"{_place(place, item)}: {error}") from error
        if row.instance in seen:
            yield Chunk(first, rows, named)
            rows, seen, first, held = [], set(), place, 0
        rows.append(row)
        seen.add(row.instance)
        named = named or (isinstance(item, Item) and item.id is not None)
        held += 0 if row.data is None else len(row.data)
        if len(rows) >= size or held >= BYTES:
            yield Chunk(first, rows, named)
            rows, seen, first, held = [], set(), place + 1, 0
    if rows:
        yield Chunk(first, rows, named)


def _place(place: int, item: Any) -> str:
    own = item.id if isinstance(item, Item) else None
    return f"items[{place}]" + (f" (id {own!r:.60})" if isinstance(own, str) else "")


def _taken_one_by_one(items: Any, name: str) -> Iterator[Any]:
    where = f"schedule_many({name!r}, items={items!r:.60})"
    if hasattr(items, "__aiter__"):
        raise ConfigurationError(f"{where}: cannot be awaited here; collect first: [one async for one in items]")
    if isinstance(items, str | bytes | Mapping) or not hasattr(items, "__iter__"):
        raise ConfigurationError(f"{where}: expected a list, or what else gives data or Items one by one")
    return iter(items)
