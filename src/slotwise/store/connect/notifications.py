"""Notify the workers of a waiting row, over LISTEN/NOTIFY. Without notifications, polls find every
row, later.

A payload is the name of a task: workers that run it poll. ``LOOK`` is for all workers;
``OPERATIONS`` is also for workers that hold rows, in which an operator may have requested
something. Races:

- A notification is sent after the commit of its row, by a statement of its own or pipelined, so a
  worker that receives it sees the row. (In the same transaction it would hold a lock of the whole
  server while the commit is flushed.) In a caller's transaction the statement itself notifies,
  because the commit is not visible here.
- Two notifications within ``PAUSE``: the second is sent at its end, so after its commit as well.
  None is dropped.
- A notification during a poll, or before a worker listens: the worker polls once more.
- A timer fires as the database closes: none is sent after ``flush`` has returned, because the
  sender's lock is held.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

from slotwise.model.clock import elapsed
from slotwise.store.connect.database_errors import describe_error

if TYPE_CHECKING:
    from psycopg import Connection

logger = logging.getLogger(__name__)

LOOK = "*"
OPERATIONS = ""

#: A process sends no two notifications within this time.
PAUSE = timedelta(milliseconds=5)

#: A channel and the payloads for it.
Along: TypeAlias = tuple[str, list[str]]


def channel_of(table_prefix: str, schema: str | None = None) -> str:
    """Return the channel of these tables.

    A schema that the settings name has a channel of its own, with a hash of its name, since a
    channel has at most 63 bytes. Without a name, and in ``public``, it is the plain channel.
    """
    if schema in (None, "public"):
        return f"{table_prefix}wake"
    digest = hashlib.sha256(str(schema).encode()).hexdigest()
    return f"{table_prefix}wake_{digest[:16]}"


class WakeUps:
    """Send the notifications of this process, at most once in ``pause``. Safe between threads;
    never raises.
    """

    def __init__(
        self, send: Callable[[Sequence[str]], None], pause: timedelta = PAUSE
    ) -> None:
        self._send = send
        self._pause = pause.total_seconds()
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._owed: dict[str, None] = {}
        self._timer: threading.Timer | None = (
            None  # runs while notifications are pending
        )
        self._free_at = 0.0

    def tell(self, *words: str, within: timedelta = timedelta(0)) -> None:
        """Notify workers after the commit, now or together with what follows ``within`` this
        time.
        """
        with self._lock:
            self._owed.update(dict.fromkeys(words))
            if not self._owed or self._timer is not None:
                return
            wait = max(self._free_at - elapsed(), within.total_seconds())
            if wait > 0:
                timer = threading.Timer(
                    wait, self.flush
                )  # no daemon: a script that ends right away still notifies
                timer.name = "slotwise-wake-ups"
                with suppress(
                    RuntimeError
                ):  # the interpreter ends, or has no more threads: send it now
                    timer.start()
                    self._timer = timer
                    return
        self.flush()

    def takes_turn(self) -> bool:
        """Return whether nothing is pending and the caller may send a notification now, which it
        then must.
        """
        with self._lock:
            now = elapsed()
            if self._timer is not None or self._owed or now < self._free_at:
                return False
            self._free_at = now + self._pause
            return True

    def flush(self) -> None:
        """Send what is pending, and wait for what another thread sends. No thread of ours is left
        afterwards.
        """
        with self._sending:
            with self._lock:
                words = list(self._owed)
                self._owed = {}
                timer = self._timer
                self._timer = None
                self._free_at = elapsed() + self._pause if words else self._free_at
            if timer is not None:
                timer.cancel()
            if words:
                try:
                    self._send(words)
                except Exception as error:
                    logger.debug(
                        "no worker was notified, polls will find what is due: %s",
                        describe_error(error),
                    )
        # Race: the timer may have begun its own flush, which waits for this one. It finds nothing
        # to send.
        if timer is not None and timer is not threading.current_thread():
            timer.join()


class Hearing:
    """A connection that only listens. For one thread."""

    def __init__(self, connection: Connection, channel: str) -> None:
        """Take over a connection of psycopg; raise what LISTEN raises."""
        self._connection = connection
        try:
            connection.autocommit = True
            self.add(channel)
        except BaseException:
            connection.close()
            raise

    def add(self, channel: str) -> None:
        """Listen on this channel, too; raise what LISTEN raises."""
        quoted = channel.replace('"', '""')
        self._connection.execute(f'LISTEN "{quoted}"')

    def fileno(self) -> int:
        """Return the descriptor that becomes readable for a notification or a broken
        connection.
        """
        return self._connection.fileno()

    def words(self) -> list[str]:
        """Return the notifications so far, without waiting. Raise when the connection has
        ended.
        """
        return [word for _, word in self.by_channel()]

    def by_channel(self) -> list[tuple[str, str]]:
        """As ``words``, each with its channel."""
        found = self._connection.notifies(timeout=0)
        return [(notify.channel, notify.payload) for notify in found]

    def close(self) -> None:
        self._connection.close()
