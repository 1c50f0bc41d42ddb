"""Rows as PostgreSQL's COPY takes them in its binary format: nothing is escaped, and the server parses no texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from struct import Struct

from slotwise.model.records import Wanted
from slotwise.store.schema.column_types import to_micros

#: The columns that are written, in this order.
COPIED = (
    "task_name", "task_instance", "task_data", "execution_time", "slot", "picked", "version", "first_version",
    "priority",
)  # fmt: skip
#: Rows in one write: the server is busy with them while the next ones are put into form.
BLOCK = 500

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
#: Its instants are counted from here.
_EPOCH = to_micros(datetime(2000, 1, 1, tzinfo=UTC))

_length = Struct(">i").pack
_head = Struct(">hi").pack
#: Each with its length before it: two instants, a flag, two versions, a priority.
_tail = Struct(">iq iq i? iq iq ih").pack


def blocks(name: str, wanted: Sequence[Wanted], now: datetime, encoding: str) -> Iterator[bytes]:
    """The rows as they are written ``now``, in a client encoding that Python knows by this name."""
    born, written = to_micros(now), name.encode(encoding)
    head = _head(len(COPIED), len(written)) + written
    usual, rank, tail = wanted[0].when, wanted[0].priority, _tail_of(wanted[0], now, born)
    yield _HEADER
    for first in range(0, len(wanted), BLOCK):
        parts: list[bytes] = []
        for row in wanted[first : first + BLOCK]:
            instance, data, when, priority, _ = row
            if when is not usual or priority != rank:
                usual, rank, tail = when, priority, _tail_of(row, now, born)
            id = instance.encode(encoding)
            if data is None:
                parts += (head, _length(len(id)), id, _NULL, tail)
            else:
                parts += (head, _length(len(id)), id, _length(len(data)), data, tail)
        yield b"".join(parts)
    yield _TRAILER


def _tail_of(row: Wanted, now: datetime, born: int) -> bytes:
    due = to_micros(row.when.at or now + row.when.delay) - _EPOCH
    return _tail(8, due, 8, due, 1, False, 8, born, 8, born, 2, row.priority)
