"""COPY: rows in its binary format, and a COPY that is sent to its end and not waited for.

In the binary format nothing is escaped, and the server parses no texts.

The driver says the end and waits for the answer at once. Between both the server goes on by itself and writes these
rows while the next ones are gathered: nothing that the caller does meanwhile, however long it takes, keeps a
transaction open or runs into a deadline.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from struct import Struct
from typing import Any

import sqlalchemy as sa

from slotwise.model.records import Wanted
from slotwise.model.vocabulary import Kind
from slotwise.store.connect.dsn import psycopg
from slotwise.store.schema.column_types import to_micros

#: The columns that are written, in this order.
COPIED = (
    "kind", "task_name", "task_instance", "task_data", "execution_time", "slot", "picked", "version", "created_version",
    "priority",
)  # fmt: skip
#: Rows in one write: the server is busy with them while the next ones are put into form.
BLOCK = 500

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_KIND = Kind.TASK.encode()
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
    head = _head(len(COPIED), len(_KIND)) + _KIND + _length(len(written)) + written
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


#: How long calling it off may take, in seconds.
TO_CANCEL = 5.0


def copy_ahead(
    connection: sa.Connection, statement: str, blocks: Callable[[str], Iterable[bytes]]
) -> Callable[[], None]:
    """As ``copy_into``, on a connection of our own, in autocommit; what is returned waits, and raises what the server
    has found wrong.
    """
    driver: Any = connection.connection.driver_connection
    with ExitStack() as stack:
        cursor = stack.enter_context(driver.cursor())
        writer = _Writer(cursor)
        copy = stack.enter_context(cursor.copy(statement, writer=writer))
        for block in blocks("utf-8"):
            copy.write(block)
        writer.end()
        return stack.pop_all().close


class _Writer:
    """In the place of the driver's own: the end is told apart from the wait for the answer."""

    def __init__(self, cursor: Any) -> None:
        self._driver = cursor.connection
        self._connection = cursor.connection.pgconn
        self._usual = psycopg().copy.LibpqWriter(cursor)
        self.write = self._usual.write
        self._has_ended = False

    def end(self) -> None:
        """That was all."""
        while self._connection.put_copy_end() == 0:
            self._wait(selectors.EVENT_WRITE)
        self._has_ended = True
        while self._connection.flush():
            self._wait(selectors.EVENT_READ | selectors.EVENT_WRITE)
            self._connection.consume_input()

    def finish(self, error: BaseException | None = None) -> None:
        """Wait for the answer. Somebody interrupts this: it is called off, so that the connection goes on living."""
        if not self._has_ended:
            self._usual.finish(error)
            return
        try:
            results = self._answer()
        except Exception:
            raise
        except BaseException:
            self._driver.cancel_safe(timeout=TO_CANCEL)
            self._answer()
            raise
        failed = next((one for one in results if one.status != psycopg().pq.ExecStatus.COMMAND_OK), None)
        if failed is not None:
            raise psycopg().errors.error_from_result(failed, encoding=self._driver.info.encoding)

    def _answer(self) -> list[Any]:
        while self._connection.is_busy():
            self._wait(selectors.EVENT_READ)
            self._connection.consume_input()
        return list(iter(self._connection.get_result, None))

    def _wait(self, events: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection.socket, events)
            selector.select()
