"""A COPY that is sent to its end and not waited for: the server writes these rows while the next ones are gathered.

The driver says the end and waits for the answer at once. Between both the server goes on by itself: nothing that the
caller does meanwhile, however long it takes, keeps a transaction open or runs into a deadline.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import sqlalchemy as sa

from slotwise.store.connect.dsn import psycopg

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
