"""One-time tasks as rows of a COPY in its binary format: nothing is escaped, and the server parses
no strings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from struct import Struct

from slotwise.model.records import Wanted, to_micros
from slotwise.model.vocabulary import Kind

#: The columns that are written, in this order.
COPIED = (
    "kind",
    "task_name",
    "task_instance",
    "task_data",
    "execution_time",
    "slot",
    "picked",
    "version",
    "created_version",
    "priority",
)
#: Rows in one write: the server is busy with them while the next ones are encoded.
BLOCK = 500

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_TASK_KIND = Kind.TASK.encode()
_NULL = b"\xff\xff\xff\xff"
#: The format counts its instants from here.
_EPOCH = to_micros(datetime(2000, 1, 1, tzinfo=UTC))

_length = Struct(">i").pack
_head = Struct(">hi").pack
#: Each with its length before it: two instants, a flag, two versions, a priority.
_tail = Struct(">iq iq i? iq iq ih").pack


def blocks(
    name: str, wanted: Sequence[Wanted], now: datetime, encoding: str
) -> Iterator[bytes]:
    """The rows as they are written ``now``, in a client encoding that Python knows by this
    name.
    """
    created = to_micros(now)
    written = name.encode(encoding)
    head = _head(len(COPIED), len(_TASK_KIND)) + _TASK_KIND
    head += _length(len(written)) + written
    usual: Wanted | None = None
    tail = b""
    yield _HEADER
    for first in range(0, len(wanted), BLOCK):
        parts: list[bytes] = []
        for row in wanted[first : first + BLOCK]:
            if (
                usual is None
                or row.when is not usual.when
                or row.priority != usual.priority
            ):
                usual = row
                due = to_micros(row.when.at or now + row.when.delay) - _EPOCH
                tail = _tail(
                    8, due, 8, due, 1, False, 8, created, 8, created, 2, row.priority
                )
            id = row.instance.encode(encoding)
            parts += (head, _length(len(id)), id)
            if row.data is None:
                parts += (_NULL, tail)
            else:
                parts += (_length(len(row.data)), row.data, tail)
        yield b"".join(parts)
    yield _TRAILER
