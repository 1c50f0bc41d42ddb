"""Reads of the whole cluster, which cost much where there is much: kept, and renewed in the
background while somebody looks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

from slotwise import DatabaseProblem, DatabaseUnreachable, SlotwiseError
from slotwise.spi import error_summary

logger = logging.getLogger("slotwise.dashboard")

Found = TypeVar("Found")

#: After so many seconds a read is renewed; after 20 times the time that it took, if that is
#: longer, so that the database spends a twentieth of one processor on it, at most.
FRESH: Final = 5.0
_SHARE: Final = 20
_LEAST_OFTEN: Final = 25.0
#: What is older than this is not shown: the visitor waits for a new read.
OLDEST: Final = 30.0


@dataclass(frozen=True, slots=True)
class Kept(Generic[Found]):
    """What was read, ``at`` the database's time."""

    value: Found
    at: datetime


class Renewed:
    """Reads by key. Safe to share between threads: of several that ask at once, one reads."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._entries: dict[Hashable, _Entry] = {}

    def get(
        self, key: Hashable, read: Callable[[], Found], now: datetime
    ) -> Kept[Found]:
        """Return what was read for this key in the last ``OLDEST`` seconds, and renew it on another
        thread if it is no longer fresh; without it, read.

        ``now`` is the database's time. Raises what ``read`` raises.
        """
        with self._turn:
            entry = self._entries.setdefault(key, _Entry())
        found = entry.found
        if found is None or found.age > OLDEST:
            found = entry.read_in_turn(read)
        elif found.age > entry.fresh and entry.turn.acquire(blocking=False):
            _renew(entry, key, read)
        return Kept(found.value, found.at(now))  # type: ignore[arg-type]

    def clear(self) -> None:
        """Forget all, because something was changed."""
        with self._turn:
            self._entries.clear()


class _Read:
    """One read, and when it began."""

    def __init__(self, value: object, began: float) -> None:
        self.value = value
        self._began = began
        self._at: datetime | None = None

    @property
    def age(self) -> float:
        """How many seconds ago the read began."""
        return time.monotonic() - self._began

    def at(self, now: datetime) -> datetime:
        """Return when it began by the clock of the database: the same at each call."""
        if self._at is None:
            self._at = now - timedelta(seconds=self.age)
        return self._at


@dataclass(frozen=True, slots=True)
class _Failed:
    """Why the last read failed: asked again at once, it would take as long and fail again."""

    error: DatabaseProblem
    at: float

    @property
    def age(self) -> float:
        return time.monotonic() - self.at


class _Entry:
    def __init__(self) -> None:
        #: Who holds it reads.
        self.turn = threading.Lock()
        self.found: _Read | None = None
        self.fresh = FRESH
        self._failed: _Failed | None = None

    def read_in_turn(self, read: Callable[[], object]) -> _Read:
        """Read, unless another thread has done so in the meantime."""
        with self.turn:
            if self.found is not None and self.found.age <= OLDEST:
                return self.found
            if self._failed is not None and self._failed.age <= FRESH:
                raise self._failed.error
            return self.read(read)

    def read(self, read: Callable[[], object]) -> _Read:
        """Read, and keep what was found. The caller has the turn."""
        began = time.monotonic()
        try:
            self.found = found = _Read(read(), began)
        except DatabaseUnreachable:  # it may be back at any moment
            raise
        except DatabaseProblem as error:
            self._failed = _Failed(error, time.monotonic())
            raise
        self.fresh = min(max(FRESH, _SHARE * found.age), _LEAST_OFTEN)
        return found


def _renew(entry: _Entry, key: Hashable, read: Callable[[], object]) -> None:
    """Read on another thread; the caller has taken the turn of the entry, which it gives back."""

    def run() -> None:
        try:
            entry.read(read)
        except SlotwiseError as error:  # visitors see it once what is kept is too old
            reason = error_summary(str(error))
            logger.warning("the dashboard could not renew %r: %s", key, reason)
        except Exception:
            logger.exception("the dashboard could not renew %r", key)
        finally:
            entry.turn.release()

    threading.Thread(target=run, name="slotwise-dashboard", daemon=True).start()
