"""The pool of connections to either database."""

from __future__ import annotations

from sqlalchemy.pool import ConnectionPoolEntry, QueuePool


class ClosingPool(QueuePool):
    """A pool that closes the connections that are returned to it after ``dispose``: nothing else would."""

    _is_disposed = False

    def dispose(self) -> None:
        """Close the idle connections now, those in use when they are returned."""
        self._is_disposed = True
        super().dispose()

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        if was_disposed := self._is_disposed:
            record.close()  # a thread that waits for a connection gets the empty record, and connects anew
        super()._do_return_conn(record)
        if self._is_disposed and not was_disposed:  # Race: ``dispose`` emptied the pool just before
            super().dispose()
