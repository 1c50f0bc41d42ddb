"""A lock while it is held: its remaining time, its renewal, and its loss."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Final, Generic, Self, TypeAlias, TypeVar

from slotwise import InvalidSetting
from slotwise.contrib.locks.errors import LockLost
from slotwise.contrib.locks.provider import (
    Grant,
    LockProvider,
    named_duration,
    record_of,
)
from slotwise.spi import elapsed, format_duration

logger = logging.getLogger("slotwise.locks")

#: Called once with the lease and the reason, on a thread of the lease or in the call that notices
#: the loss.
OnLost: TypeAlias = Callable[["Lease", LockLost], object]

#: What a call on a thread returns.
Result = TypeVar("Result")

#: The unit of ShedLock and of Redis.
SHORTEST: Final = timedelta(milliseconds=1)
#: The longest wait without a look at the clock: waiting threads do not notice that the host was
#: suspended.
_LOOK: Final = 1.0

#: The leases that were entered in this context, the innermost last.
ENTERED: ContextVar[tuple[Lease, ...]] = ContextVar("slotwise.locks", default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a lock promises each of its leases."""

    at_most_for: timedelta
    at_least_for: timedelta
    keep_alive: bool
    on_lost: OnLost | None


class Lease:
    """A lock that is held. A context manager, sync and async: it releases the lock at the end.

    ``Lock`` makes it. Its methods may be called from any thread.
    """

    def __init__(
        self, provider: LockProvider, grant: Grant, terms: Terms, sent: float
    ) -> None:
        """``sent`` is when the acquisition was sent, by ``elapsed``: before the provider read its
        own clock.
        """
        self._provider = provider
        self._record = record_of(provider)
        self._grant = grant
        #: The lock's; each lock has its own object.
        self.terms = terms
        self._pid = os.getpid()
        self._deadline = sent + terms.at_most_for.total_seconds()
        self._state = threading.Condition()
        self._lost: LockLost | None = None
        self._has_ended = False
        # Race: a renewal that reaches the provider after the release would prolong what
        # at_least_for has left of the lock. So calls that write take turns.
        self._calls = threading.Lock()
        self._record.leases[grant.name] = self
        if terms.keep_alive or terms.on_lost is not None:
            self._start(self._watch)
        if terms.keep_alive:
            self._start(self._renew)

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._grant.name

    @property
    def holder(self) -> str:
        """The string that names this lease in the provider: host, process, and digits of its
        own.
        """
        return self._grant.holder

    @property
    def token(self) -> int:
        """The fencing token: higher than that of each earlier lease that slotwise had on this
        lock.
        """
        return self._grant.token

    @property
    def lost(self) -> bool:
        """Whether the lease is known to be lost, or has run out by this host's monotonic clock.
        Asks no provider.
        """
        return self._lost is not None or self.left == timedelta(0)

    @property
    def left(self) -> timedelta:
        """The time for which the lock is held without a renewal; zero if it has run out."""
        return timedelta(seconds=max(self._deadline - elapsed(), 0))

    @property
    def is_mine(self) -> bool:
        """Whether this process holds the lock by this lease, as far as it knows. Asks no
        provider.
        """
        return not self._has_ended and not self.lost and self._pid == os.getpid()

    @property
    def aio(self) -> AwaitedLease:
        """The same methods, awaited."""
        return AwaitedLease(self)

    # -- what the holder calls --------------------------------------------------------------------

    def extend(self, at_most_for: timedelta | str | None = None) -> None:
        """Hold the lock for this long from now; default: the lock's ``at_most_for``.

        Raise LockLost if the lease has ended, LockUnavailable if the provider does not answer, and
        InvalidSetting for less than a millisecond.
        """
        span = (
            self.terms.at_most_for
            if at_most_for is None
            else named_duration(f"lock {self.name}: extend", at_most_for)
        )
        if span < SHORTEST:
            raise InvalidSetting(
                f"lock {self.name}: extend({at_most_for!r}) is too short; write at "
                "least 1ms, or call release()"
            )
        with self._calls:
            self._raise_if_over()
            sent = elapsed()
            with self._record.answering():
                held = self._provider.extend(self._grant, span)
            if held:
                with self._state:
                    self._deadline = sent + span.total_seconds()
                    self._state.notify_all()
        self._raise_if_over()
        if not held:
            raise self._lose(
                "the provider has another holder, or the lease had expired"
            )

    def assert_held(self) -> None:
        """Ask the provider whether this lease holds the lock. Raise LockLost or, without an
        answer, LockUnavailable.

        A process may be paused between this call and its next statement; only ``token`` protects
        against that.
        """
        self._raise_if_over()
        with self._record.answering():
            held = self._provider.is_held(self._grant)
        self._raise_if_over()
        if not held:
            raise self._lose(
                "the provider has another holder, or the lease had expired"
            )

    def release(self) -> None:
        """Release the lock; ``at_least_for`` may keep it for a while. A second call does nothing.

        If the provider does not answer, that is logged, and the lock ends by itself after
        ``at_most_for``.
        """
        with self._state:
            # A forked child has a copy of the lease; only the parent holds the lock.
            if self._has_ended or self._pid != os.getpid():
                return
            self._has_ended = True
            ran_out = self._lost is None and elapsed() >= self._deadline
            self._state.notify_all()
        try:
            with self._calls, self._record.answering():
                held = self._provider.release(self._grant, self.terms.at_least_for)
        except Exception as error:
            logger.warning(
                "lock %s was not released; it ends by itself: %s", self.name, error
            )
            held = True
        if ran_out:
            self._lose(
                f"its block ran longer than {format_duration(self.terms.at_most_for)}"
            )
        elif not held:
            self._lose("at its release, the provider had another holder")

    def __enter__(self) -> Self:
        ENTERED.set((*ENTERED.get(), self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()
        self.release()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()
        await in_thread(self.release)

    def _leave(self) -> None:
        ENTERED.set(tuple(lease for lease in ENTERED.get() if lease is not self))

    # -- its threads ------------------------------------------------------------------------------

    def _start(self, work: Callable[[], None]) -> None:
        threading.Thread(
            target=work, name=f"slotwise-lock-{self.name}", daemon=True
        ).start()

    def _watch(self) -> None:
        """Report the loss when the time is up, even while a renewal hangs."""
        with self._state:
            while not self._has_ended and self._lost is None:
                left = self._deadline - elapsed()
                if left <= 0:
                    break
                self._state.wait(min(left, _LOOK))
            is_over = self._has_ended or self._lost is not None
        if not is_over:
            self._lose("it has run out")

    def _renew(self) -> None:
        """Renew at a third of the time, earlier by a random part; after a failure sooner."""
        span = self.terms.at_most_for.total_seconds()
        pause = span / 3
        while self._sleeps(pause * random.uniform(0.7, 1.0)):
            try:
                self.extend()
            except Exception as error:
                if self._is_over():
                    return
                self._record.count("renewals_failed")
                logger.warning(
                    "lock %s was not renewed, %s left: %s",
                    self.name,
                    format_duration(
                        timedelta(seconds=round(self.left.total_seconds()))
                    ),
                    error,
                )
                pause = span / 15
            else:
                self._record.count("renewed")
                pause = span / 3

    def _sleeps(self, seconds: float) -> bool:
        """Wait. Return False as soon as the lease is over."""
        end = elapsed() + seconds
        with self._state:
            while (
                not (self._has_ended or self._lost) and (left := end - elapsed()) > 0
            ):
                self._state.wait(min(left, _LOOK))
            return not (self._has_ended or self._lost)

    # -- its end ----------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        with self._state:
            return self._has_ended or self._lost is not None

    def _raise_if_over(self) -> None:
        with self._state:
            ended = self._has_ended
            lost = self._lost
        if lost is not None:
            raise lost
        if ended:
            raise LockLost(f"lock {self.name}: it was released already")
        if self.left == timedelta(0):
            raise self._lose("it has run out")

    def _lose(self, reason: str) -> LockLost:
        """Note the loss once: log it, count it, call the callback. Return the error."""
        with self._state:
            if self._lost is not None:
                return self._lost
            self._lost = error = LockLost(f"lock {self.name} is lost: {reason}")
            self._state.notify_all()
        self._record.count("lost")
        logger.warning("%s (holder %s, token %s)", error, self.holder, self.token)
        if self.terms.on_lost is not None:
            try:
                self.terms.on_lost(self, error)
            except Exception:
                logger.exception("on_lost of lock %s failed", self.name)
        return error


class AwaitedLease:
    """The methods of a lease, awaited: each runs on a thread of its own."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    async def extend(self, at_most_for: timedelta | str | None = None) -> None:
        """Await ``Lease.extend``."""
        await in_thread(lambda: self._lease.extend(at_most_for))

    async def assert_held(self) -> None:
        """Await ``Lease.assert_held``."""
        await in_thread(self._lease.assert_held)

    async def release(self) -> None:
        """Await ``Lease.release``."""
        await in_thread(self._lease.release)


async def in_thread(
    call: Callable[[], Result], undo: Callable[[Result], object] | None = None
) -> Result:
    """Run the call to its end. If the caller is cancelled meanwhile, pass the result to ``undo``,
    on a thread as well.

    Raise what the call raises.
    """
    run = _Call(call, undo, asyncio.get_running_loop())
    threading.Thread(target=run.run, name="slotwise-lock-call", daemon=True).start()
    try:
        await run.returned.wait()
    except asyncio.CancelledError:
        run.abandon()
        raise
    return run.result()


class _Call(Generic[Result]):
    def __init__(
        self,
        call: Callable[[], Result],
        undo: Callable[[Result], object] | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._call = call
        self._undo = undo
        self._loop = loop
        self._mutex = threading.Lock()
        self._is_abandoned = False
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self.returned = asyncio.Event()

    def run(self) -> None:
        try:
            result = self._call()
        except BaseException as error:
            self._error = error
        else:
            # Race: the caller is cancelled while the call returns. Either it finds the result and
            # undoes it, or it has left before, and the result is undone here.
            with self._mutex:
                self._results.append(result)
                is_abandoned = self._is_abandoned
            if is_abandoned:
                self._undo_it()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.returned.set)

    def abandon(self) -> None:
        with self._mutex:
            self._is_abandoned = True
            has_returned = bool(self._results)
        if has_returned:
            threading.Thread(
                target=self._undo_it, name="slotwise-lock-undo", daemon=True
            ).start()

    def _undo_it(self) -> None:
        if self._undo is not None:
            self._undo(self._results[0])

    def result(self) -> Result:
        if self._error is not None:
            raise self._error
        return self._results[0]
