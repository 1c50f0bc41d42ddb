"""Pages that were read a moment ago: visitors who look at the same page share one read."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

Found = TypeVar("Found")

#: How long a read is shared, in seconds, and how many are kept.
FRESH: Final = 2.0
MOST: Final = 100


class Recent(Generic[Found]):
    """Reads by key. Safe to share between threads: of several that ask at once, one reads."""

    def __init__(self, fresh: float = FRESH) -> None:
        self._fresh = fresh
        self._turn = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry[Found]] = OrderedDict()

    def get(self, key: Hashable, read: Callable[[], Found]) -> Found:
        """Return what was read for this key a moment ago; else read it. Raises what ``read``
        raises.
        """
        with self._turn:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            if len(self._entries) > MOST:
                self._entries.popitem(last=False)
        with entry.turn:
            if not entry.found or time.monotonic() - entry.at > self._fresh:
                entry.found = [read()]
                entry.at = time.monotonic()
            return entry.found[0]

    def clear(self) -> None:
        """Forget all, because something was changed."""
        with self._turn:
            self._entries.clear()


class _Entry(Generic[Found]):
    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.at = 0.0
        self.found: list[Found] = []
