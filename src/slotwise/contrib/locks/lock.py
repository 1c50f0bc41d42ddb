"""``Lock``: acquire a lock for a block or a function, at once or with a deadline."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import wraps
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar, overload

from slotwise import ConfigurationError, InvalidSetting
from slotwise.contrib.locks.errors import LockNotAcquired, LockUnavailable
from slotwise.contrib.locks.lease import (
    ENTERED,
    SHORTEST,
    Lease,
    OnLost,
    Terms,
    in_thread,
)
from slotwise.contrib.locks.provider import LockProvider, named_duration, record_of
from slotwise.spi import Identity, elapsed, format_duration

P = ParamSpec("P")
R = TypeVar("R")
AsyncFunction: TypeAlias = Callable[P, Coroutine[Any, Any, R]]

logger = logging.getLogger("slotwise.locks")

#: The width of the column in ShedLock's table.
LONGEST_NAME: Final = 64
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0


class Lock:
    """A lock that at most one process of a fleet holds, for a limited time.

    ``name`` has at most 64 characters. ``at_most_for`` is the lease: the lock ends by itself that
    long after its acquisition or its last extension, even if its holder still runs.
    ``at_least_for`` keeps the lock after a short block, so that a process whose clock is behind
    does not run the same tick again; it is at most ``at_most_for``. ``keep_alive`` renews the
    lease while the block runs. ``on_lost(lease, error)`` is called once when a lease ends before
    its block does. All times are measured by the provider's clock.

    A lock is a context manager and a decorator, both sync and async. It may be shared by threads
    and tasks. It is not re-entrant. Raises InvalidSetting.
    """

    def __init__(
        self,
        name: str,
        *,
        at_most_for: timedelta | str,
        provider: LockProvider,
        at_least_for: timedelta | str = timedelta(0),
        keep_alive: bool = False,
        on_lost: OnLost | None = None,
    ) -> None:
        self.name = _checked_name(name)
        at_most = named_duration(f"lock {name}: at_most_for", at_most_for)
        at_least = named_duration(f"lock {name}: at_least_for", at_least_for)
        if at_most < SHORTEST:
            raise InvalidSetting(
                f"lock {name}: at_most_for={at_most_for!r} is too short; write at least 1ms"
            )
        if at_least > at_most:
            raise InvalidSetting(
                f"lock {name}: at_least_for={at_least_for!r} is longer than "
                f"at_most_for={at_most_for!r}; shorten it"
            )
        if not isinstance(provider, LockProvider):
            raise InvalidSetting(
                f"lock {name}: provider={provider!r:.60} is not a LockProvider; "
                "pass e.g. SQLLocks(url)"
            )
        if not isinstance(keep_alive, bool):
            raise InvalidSetting(
                f"lock {name}: keep_alive={keep_alive!r:.60} is not a bool; write True or False"
            )
        if on_lost is not None and not callable(on_lost):
            raise InvalidSetting(
                f"lock {name}: on_lost={on_lost!r:.60} cannot be called; pass a "
                "function of the lease and the error"
            )
        self.provider = provider
        self._terms = Terms(
            at_most_for=at_most,
            at_least_for=at_least,
            keep_alive=keep_alive,
            on_lost=on_lost,
        )

    def __repr__(self) -> str:
        return (
            f"Lock({self.name!r}, at_most_for={format_duration(self._terms.at_most_for)!r}, "
            f"provider={self.provider!r})"
        )

    # -- acquiring --------------------------------------------------------------------------------

    def acquire(self, wait: timedelta | str | None = None) -> Lease:
        """Acquire the lock and return its lease. With ``wait``, try again until it is free or the
        time is over.

        Raise LockNotAcquired if it is held, and LockUnavailable if the provider does not answer.
        """
        patience = _Patience(self.name, wait)
        while True:
            try:
                return self._try()
            except LockNotAcquired as error:
                pause = patience.pause(error)
            time.sleep(pause)

    async def _acquire(self, wait: timedelta | str | None = None) -> Lease:
        patience = _Patience(self.name, wait)
        while True:
            try:
                return await in_thread(self._try, Lease.release)
            except LockNotAcquired as error:
                pause = patience.pause(error)
            await asyncio.sleep(pause)

    def _try(self) -> Lease:
        record = record_of(self.provider)
        sent = elapsed()
        with record.answering():
            grant = self.provider.acquire(
                self.name, str(Identity.new()), self._terms.at_most_for
            )
        if grant is None:
            record.count("refused")
            raise LockNotAcquired(f"lock {self.name} is held by {self._holder()}")
        record.count("acquired")
        lease = Lease(self.provider, grant, self._terms, sent)
        if lease.lost:
            lease.release()
            raise LockUnavailable(
                f"lock {self.name}: the answer took longer than at_most_for"
            )
        return lease

    def _holder(self) -> str:
        lease = record_of(self.provider).leases.get(self.name)
        if lease is not None and lease.is_mine:
            return "this process already, and is not re-entrant"
        return "another process" + (
            ", or kept by at_least_for" if self._terms.at_least_for else ""
        )

    @property
    def aio(self) -> AwaitedLock:
        """``acquire``, awaited."""
        return AwaitedLock(self)

    # -- the lease of the current block -----------------------------------------------------------

    @property
    def lease(self) -> Lease:
        """The lease of the block or function that runs. Raise LockNotAcquired outside of them."""
        for lease in reversed(ENTERED.get()):
            if lease.terms is self._terms:
                return lease
        raise LockNotAcquired(f"lock {self.name} is not held here; enter it first")

    @property
    def token(self) -> int:
        """The fencing token of the current lease."""
        return self.lease.token

    def extend(self, at_most_for: timedelta | str | None = None) -> None:
        """Extend the current lease; see ``Lease.extend``."""
        self.lease.extend(at_most_for)

    def assert_held(self) -> None:
        """Check the current lease; see ``Lease.assert_held``."""
        self.lease.assert_held()

    # -- blocks and functions ---------------------------------------------------------------------

    def __enter__(self) -> Lease:
        """Acquire the lock without waiting; to wait, enter ``acquire(wait=…)``. Raise
        LockNotAcquired.
        """
        return self.acquire().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.lease.__exit__(kind, error, trace)

    async def __aenter__(self) -> Lease:
        return await (await self._acquire()).__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.lease.__aexit__(kind, error, trace)

    @overload
    def __call__(
        self,
        function: AsyncFunction[P, R],
        *,
        wait: timedelta | str | None = None,
    ) -> AsyncFunction[P, R | None]: ...

    @overload
    def __call__(
        self, function: Callable[P, R], *, wait: timedelta | str | None = None
    ) -> Callable[P, R | None]: ...

    @overload
    def __call__(self, *, wait: timedelta | str | None = None) -> Decorator: ...

    def __call__(
        self,
        function: Callable[..., Any] | None = None,
        *,
        wait: timedelta | str | None = None,
    ) -> Callable[..., object]:
        """Decorate a function: ``@lock`` skips a call while the lock is held elsewhere, and
        returns None.

        ``@lock(wait="10s")`` waits up to that long, then raises LockNotAcquired. Both raise
        LockUnavailable if the provider does not answer. Raise ConfigurationError for a class, for
        what cannot be called, and for a generator function, whose body would run later.
        """
        if function is None:
            return Decorator(self, wait)
        kinds = self._kinds_of(function)
        if any(inspect.iscoroutinefunction(kind) for kind in kinds):

            @wraps(function)
            async def awaited(*args: object, **kwargs: object) -> Any:
                try:
                    lease = await self._acquire(wait)
                except LockNotAcquired as error:
                    return self._skip(function, wait, error)
                async with lease:
                    return await function(*args, **kwargs)

            return awaited

        @wraps(function)
        def called(*args: object, **kwargs: object) -> Any:
            try:
                lease = self.acquire(wait)
            except LockNotAcquired as error:
                return self._skip(function, wait, error)
            with lease:
                return function(*args, **kwargs)

        return called

    def _kinds_of(
        self, function: Callable[..., Any]
    ) -> tuple[Callable[..., Any], ...]:
        """Return what tells the kind of a function: itself, and the ``__call__`` of its class."""
        if inspect.isclass(function) or not callable(function):
            raise ConfigurationError(
                f"lock {self.name}: {function!r:.60} is not a function; decorate a function"
            )
        kinds = (function, type(function).__call__)
        if any(map(inspect.isgeneratorfunction, kinds)) or any(
            map(inspect.isasyncgenfunction, kinds)
        ):
            raise ConfigurationError(
                f"lock {self.name}: {_named(function)} is a generator; lock inside of it"
            )
        return kinds

    def _skip(
        self, function: Callable[..., object], wait: object, error: LockNotAcquired
    ) -> None:
        if wait is not None or isinstance(error, LockUnavailable):
            raise error
        logger.info(
            "skipping %s: lock %s is held elsewhere", _named(function), self.name
        )


class Decorator:
    """``@lock(…)``: decorates one function."""

    def __init__(self, lock: Lock, wait: timedelta | str | None) -> None:
        self._lock = lock
        self._wait = wait

    @overload
    def __call__(
        self, function: AsyncFunction[P, R]
    ) -> AsyncFunction[P, R | None]: ...

    @overload
    def __call__(self, function: Callable[P, R]) -> Callable[P, R | None]: ...

    def __call__(self, function: Callable[..., object]) -> Callable[..., object]:
        return self._lock(function, wait=self._wait)


class AwaitedLock:
    """The methods of a lock, awaited."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    async def acquire(self, wait: timedelta | str | None = None) -> Lease:
        """Await ``Lock.acquire``; enter the lease with ``async with``, or release it with
        ``lease.aio.release()``.
        """
        return await self._lock._acquire(wait)


class _Patience:
    """The pauses between attempts, longer each time, with jitter, up to the deadline."""

    def __init__(self, name: str, wait: timedelta | str | None) -> None:
        self._end = (
            None
            if wait is None
            else elapsed() + named_duration(f"lock {name}: wait", wait).total_seconds()
        )
        self._step = _FIRST_PAUSE

    def pause(self, error: LockNotAcquired) -> float:
        """Return the seconds before the next attempt. Raise the error of the last one if there
        is none.
        """
        left = 0.0 if self._end is None else self._end - elapsed()
        if left <= 0:
            raise error
        step = self._step
        self._step = min(self._step * 2, _LONGEST_PAUSE)
        return min(left, step * random.uniform(0.5, 1.0))


def _named(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def _checked_name(name: str) -> str:
    if (
        not isinstance(name, str)
        or not name.strip()
        or len(name) > LONGEST_NAME
        or not name.isprintable()
    ):
        raise InvalidSetting(
            f"lock {name!r:.80}: a name has 1 to {LONGEST_NAME} printable characters; change it"
        )
    return name
