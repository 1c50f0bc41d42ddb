"""Wake-ups: word to every worker that a row waits, over LISTEN/NOTIFY. Without them polls find everything, later.

A word is the name of a task: who runs that looks for due rows. ``LOOK`` is for everybody; ``ORDERS`` also for those
who hold rows, in which an operator may have written something.

Races:

- A word is sent after the commit of what it speaks of, by a statement of its own: who hears it sees the row. (In the
  same transaction it would hold a lock of the whole server while the commit is flushed.) A process that ends in
  between says nothing: polls find the row. A caller's commit nobody here sees: there the statement itself says it.
  Or it goes along with what it speaks of, to be read by the server after the commit (``let_words_go_along``).
- Two words within ``PAUSE``: the second is sent at the end of it, so it too comes after its commit. None is dropped.
- A word while a worker looks: it may have looked too early, so it looks again (``Service.wake``).
- A word while a worker does not listen (yet, or any more): it looks once as soon as it does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from slotwise.model.clock import elapsed
from slotwise.store.connect.database_errors import describe

logger = logging.getLogger(__name__)

LOOK = "*"
ORDERS = ""

#: A process sends no two notifications within this time.
PAUSE = timedelta(milliseconds=5)

#: A channel, and what is said there.
Along: TypeAlias = tuple[str, list[str]]


def channel_of(table_prefix: str) -> str:
    """Schemas of one database share it: a word too many costs a look."""
    return f"{table_prefix}wake"


class WakeUps:
    """What this process has to tell, sent at most once in ``pause``. Safe between threads; never raises."""

    def __init__(self, send: Callable[[Sequence[str]], None], pause: timedelta = PAUSE) -> None:
        self._send = send
        self._pause = pause.total_seconds()
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._owed: dict[str, None] = {}
        self._timer: threading.Timer | None = None  # runs, for what is owed
        self._free_at = 0.0

    def tell(self, *words: str, within: timedelta = timedelta(0)) -> None:
        """Wake those whom these words concern, now or in a moment. Call it after the commit.

        ``within``: who says more soon may let them gather for so long.
        """
        with self._lock:
            self._owed.update(dict.fromkeys(words))
            if not self._owed or self._timer is not None:
                return
            wait = max(self._free_at - elapsed(), within.total_seconds())
            self._timer = self._set_timer(wait) if wait > 0 else None
            if self._timer is not None:
                return
        self.flush()

    def takes_turn(self) -> bool:
        """Whether nothing is owed, and a word may be sent at this moment: then the caller sends one, now or never."""
        with self._lock:
            now = elapsed()
            if self._timer is not None or self._owed or now < self._free_at:
                return False
            self._free_at = now + self._pause
            return True

    def _set_timer(self, wait: float) -> threading.Timer | None:
        """Not a daemon: a script that ends right after scheduling a task still says so."""
        timer = threading.Timer(wait, self.flush)
        timer.name = "slotwise-wake-ups"
        try:
            timer.start()
        except RuntimeError:  # the interpreter ends, or has no more threads
            return None
        return timer

    def flush(self) -> None:
        """Send what is owed, and wait for what another thread sends."""
        with self._lock:
            words, self._owed, timer, self._timer = list(self._owed), {}, self._timer, None
            self._free_at = elapsed() + self._pause if words else self._free_at
        if timer is not None:
            timer.cancel()
        with self._sending:
            if not words:
                return
            try:
                self._send(words)
            except Exception as error:
                logger.debug("nobody was woken, polls will find what is due: %s", describe(error))


class Hearing:
    """A connection that listens, and nothing else. For one thread."""

    def __init__(self, connection: Any, channel: str) -> None:
        """Takes over the connection of psycopg; raises what LISTEN raises."""
        self._connection = connection
        try:
            connection.autocommit = True
            quoted = channel.replace('"', '""')
            connection.execute(f'LISTEN "{quoted}"')
        except BaseException:
            connection.close()
            raise

    def fileno(self) -> int:
        """What becomes readable when there is something to hear, or the link is known to be cut."""
        found: int = self._connection.fileno()
        return found

    def words(self) -> list[str]:
        """What was said, without waiting. Raises when the connection has ended."""
        return [notify.payload for notify in self._connection.notifies(timeout=0)]

    def close(self) -> None:
        """Hear nothing more."""
        self._connection.close()
