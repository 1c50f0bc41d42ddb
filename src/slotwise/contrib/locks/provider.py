"""What a lock needs from a database or a server: four calls. And what is counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal, Protocol, TypeAlias, runtime_checkable
from weakref import WeakKeyDictionary, WeakValueDictionary

from slotwise import ConfigurationError, InvalidSetting, SlotwiseError
from slotwise.contrib.locks.errors import LockUnavailable
from slotwise.spi import parse_duration

logger = logging.getLogger("slotwise.locks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One acquisition of a lock."""

    name: str
    #: A string that no other acquisition has ever used.
    holder: str
    #: Higher than the tokens of all earlier acquisitions of this lock.
    token: int
    #: The provider's time of the acquisition, in microseconds since 1970.
    locked_at: int


@runtime_checkable
class LockProvider(Protocol):
    """Where locks are kept. All times are the provider's: it adds the durations to its own clock.

    The methods are called from several threads. Each is one atomic step in the provider. A method
    that gets no answer raises; any exception means that the caller does not hold the lock for
    certain. A call may be repeated after a lost reply, with the same arguments.
    """

    def acquire(self, name: str, holder: str, at_most_for: timedelta) -> Grant | None:
        """Take the lock if it is free, has expired, or has this holder already. Return None if
        another one has it.
        """

    def extend(self, grant: Grant, at_most_for: timedelta) -> bool:
        """Set the end to now plus this duration, if the grant's holder has the lock and it has not
        expired.
        """

    def is_held(self, grant: Grant) -> bool:
        """Return whether the grant's holder has the lock and it has not expired."""

    def release(self, grant: Grant, at_least_for: timedelta) -> bool:
        """End the lock now, or this long after its acquisition if that is later. Return False if
        it has another holder.

        Never touch the lock of another holder.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class LockCounts:
    """What the locks of one provider did in this process."""

    acquired: int = 0
    #: Attempts that found another holder.
    refused: int = 0
    #: Calls that the provider did not answer.
    unavailable: int = 0
    #: Periods without an answer; each is logged once.
    outages: int = 0
    renewed: int = 0
    renewals_failed: int = 0
    lost: int = 0


Count: TypeAlias = Literal[
    "acquired",
    "refused",
    "unavailable",
    "outages",
    "renewed",
    "renewals_failed",
    "lost",
]


class Leased(Protocol):
    """A lease, as messages need it."""

    @property
    def is_mine(self) -> bool:
        """Whether this process holds the lock by it."""


class Record:
    """The counts of a provider, and whether it is down."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._mutex = threading.Lock()
        self._counts = LockCounts()
        self._is_down = False
        #: The latest lease on each lock, for messages.
        self.leases: WeakValueDictionary[str, Leased] = WeakValueDictionary()

    @property
    def counts(self) -> LockCounts:
        return self._counts

    def count(self, what: Count) -> None:
        with self._mutex:
            self._add(what)

    def _add(self, what: Count) -> None:
        self._counts = replace(self._counts, **{what: getattr(self._counts, what) + 1})

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count an exception of the provider as no answer, log the first of an outage, and raise
        LockUnavailable.
        """
        try:
            yield
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            self._note_failure(reason, refused=isinstance(error, ConfigurationError))
            if isinstance(error, SlotwiseError):
                raise
            raise LockUnavailable(
                f"{self._provider}: {reason}; start the server, or correct the address"
            ) from error
        self._note_answer()

    def _note_failure(self, reason: str, *, refused: bool) -> None:
        """``refused``: the provider answers, and cannot be used as it is, e.g. without its
        table.
        """
        with self._mutex:
            self._add("unavailable")
            was_down = self._is_down
            self._is_down = True
            if not was_down:
                self._add("outages")
        if not was_down:
            what = (
                "cannot be used; no lock is acquired until it can"
                if refused
                else ("does not answer; no lock is acquired until it does")
            )
            logger.warning("%s %s: %s", self._provider, what, reason)

    def _note_answer(self) -> None:
        if self._is_down:
            with self._mutex:
                was_down = self._is_down
                self._is_down = False
            if was_down:
                logger.info("%s answers again", self._provider)


def named_duration(place: str, value: object) -> timedelta:
    """Return the duration. Raise InvalidSetting that begins with the place, e.g. ``lock a:
    wait``.
    """
    try:
        return parse_duration(value)
    except InvalidSetting as error:
        raise InvalidSetting(f"{place}: {error}") from None


_RECORDS: WeakKeyDictionary[object, Record] = WeakKeyDictionary()
_RECORDS_MUTEX = threading.Lock()


def record_of(provider: object) -> Record:
    """Return the record of a provider or a gate; all locks that share the provider share it."""
    with _RECORDS_MUTEX:
        if provider not in _RECORDS:
            _RECORDS[provider] = Record(str(provider))
        return _RECORDS[provider]


def counts(provider: object) -> LockCounts:
    """Return what the locks of this provider, or the keys of this ``AdvisoryGate``, did in this
    process so far.
    """
    return record_of(provider).counts
