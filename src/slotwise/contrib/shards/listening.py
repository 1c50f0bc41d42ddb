"""Schemas of one database share its connections: the pools, and one connection that listens.

A notification that is lost costs a poll interval, as everywhere. Races: a schema that begins to
listen while the connection breaks gets an error, and tries again; the thread that hears ends when
nobody listens any more, and the next one starts another.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from slotwise import DatabaseProblem, Settings
from slotwise.spi import Database

#: How long a schema waits until the thread that hears has added its channel, in seconds.
PATIENCE: Final = 20.0


class Line(Protocol):
    """The connection that listens."""

    def fileno(self) -> int: ...
    def add(self, channel: str) -> None: ...
    def by_channel(self) -> list[tuple[str, str]]: ...
    def close(self) -> None: ...


class Subscription:
    """What one schema hears, with the methods of a connection that listens for it alone."""

    def __init__(self, channel: str, leave: Callable[[Subscription], None]) -> None:
        self.channel = channel
        self._leave = leave
        self._words: deque[str] = deque()
        self._ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self._ours.setblocking(False)
        self._error: BaseException | None = None
        #: Set when the channel is added, or when that failed.
        self.settled = threading.Event()

    def put(self, word: str) -> None:
        self._words.append(word)
        self._ring()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self.settled.set()
        self._ring()

    def _ring(self) -> None:
        with suppress(OSError):  # full, or closed just now: it is awake anyway
            self._theirs.send(b"!")

    def fileno(self) -> int:
        """Return the descriptor that becomes readable for a notification, or at the end."""
        return self._ours.fileno()

    def words(self) -> list[str]:
        """Return the notifications so far; raises when the shared connection has ended."""
        with suppress(BlockingIOError):
            self._ours.recv(4096)
        self.raise_failure()
        return [self._words.popleft() for _ in range(len(self._words))]

    def raise_failure(self) -> None:
        """Raise why the shared connection has ended, if it has."""
        if self._error is not None:
            raise DatabaseProblem(
                f"the shared connection that listens has ended: {self._error}"
            ) from self._error

    def close(self) -> None:
        self._leave(self)
        self._ours.close()
        self._theirs.close()


class Switchboard:
    """One connection that listens for all schemas of a database, with a thread that distributes.

    The thread runs while there are subscriptions. It alone uses the connection.
    """

    def __init__(self, connect: Callable[[], Line]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._subscriptions: list[Subscription] = []
        self._asked: deque[Subscription] = deque()
        self._bell: socket.socket | None = None

    def subscribe(self, channel: str) -> Subscription:
        """Listen on a channel, from now on. Raises DatabaseProblem if that fails."""
        found = Subscription(channel, self._leave)
        with self._lock:
            self._subscriptions.append(found)
            self._asked.append(found)
            if self._bell is None:
                self._begin()
            else:
                self._bell.send(b"!")
        found.settled.wait(PATIENCE)
        try:
            found.raise_failure()
            if not found.settled.is_set():
                raise DatabaseProblem("the database does not answer to LISTEN")
        except BaseException:
            found.close()
            raise
        return found

    def _begin(self) -> None:
        bell, end = socket.socketpair()
        self._bell = bell
        thread = threading.Thread(
            target=self._run,
            args=(bell, end),
            name="slotwise-switchboard",
            daemon=True,
        )
        thread.start()

    def _leave(self, one: Subscription) -> None:
        with self._lock:
            if one in self._subscriptions:
                self._subscriptions.remove(one)
            if not self._subscriptions and self._bell is not None:
                self._bell.send(b"!")

    def _run(self, bell: socket.socket, end: socket.socket) -> None:
        """Distribute until nobody listens, or the connection ends, which ends all subscriptions."""
        line: Line | None = None
        try:
            line = self._connect()
            while self._goes_on(bell):
                self._add_asked(line)
                self._wait(line, end)
                self._distribute(line.by_channel())
        except Exception as error:
            self._end_all(bell, error)
        finally:
            if line is not None:
                with suppress(Exception):
                    line.close()
            bell.close()
            end.close()

    def _goes_on(self, bell: socket.socket) -> bool:
        """Whether somebody listens. Race: who comes later finds no bell, and begins anew."""
        with self._lock:
            if not self._subscriptions and self._bell is bell:
                self._bell = None
            return self._bell is bell

    def _add_asked(self, line: Line) -> None:
        while self._asked:
            one = self._asked.popleft()
            line.add(one.channel)
            one.settled.set()

    def _wait(self, line: Line, end: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(line, selectors.EVENT_READ)
            selector.register(end, selectors.EVENT_READ)
            ready = {key.fileobj for key, _ in selector.select()}
        if end in ready:
            end.recv(4096)

    def _distribute(self, found: list[tuple[str, str]]) -> None:
        with self._lock:
            listening = list(self._subscriptions)
        for channel, word in found:
            for one in listening:
                if one.channel == channel:
                    one.put(word)

    def _end_all(self, bell: socket.socket, error: BaseException) -> None:
        with self._lock:
            if self._bell is bell:
                self._bell = None
            ended = list(self._subscriptions)
            self._asked.clear()
        for one in ended:
            one.fail(error)


class SharedPlace:
    """The connections of one address, lent to all shards that are schemas of it."""

    def __init__(self, settings: Settings) -> None:
        self.lender = Database(settings)
        self.switchboard = Switchboard(self.lender.listen)

    def open(self, settings: Settings) -> Database:
        """Return a database of one schema, on these connections."""
        return SchemaDatabase(settings, self)


class SchemaDatabase(Database):
    """One schema, on the connections of a lender."""

    def __init__(self, settings: Settings, place: SharedPlace) -> None:
        super().__init__(settings, lender=place.lender)
        self._place = place

    def listen(self) -> Subscription:  # type: ignore[override]
        """Listen on the shared connection; raises DatabaseProblem if that fails."""
        return self._place.switchboard.subscribe(self.channel)
