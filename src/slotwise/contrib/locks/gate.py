"""The gate of a ShedLock fleet: while a slot runs, the worker holds the job's lock, as the Java
programs do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import timedelta

from slotwise import Context, InvalidSetting, Skip
from slotwise.contrib.advisory.gate import LOCK_HELD, LOCK_LOST, check_names
from slotwise.contrib.locks.errors import LockLost, LockNotAcquired, LockUnavailable
from slotwise.contrib.locks.lease import Lease
from slotwise.contrib.locks.lock import Lock
from slotwise.contrib.locks.provider import Grant, LockProvider, record_of


class LockGate:
    """A ``before_start`` hook that holds a lock while a slot of a job runs, so that ShedLock jobs
    move one by one.

    ``names`` has the name of the lock for each job that needs one. If another program holds the
    lock, the slot ends as skipped with the reason ``lock_held``. The lease is renewed; if it is
    lost, the handler is asked to stop with the reason ``lock_lost``. If the provider does not
    answer, the attempt fails. Raises InvalidSetting.
    """

    def __init__(
        self,
        provider: LockProvider,
        names: Mapping[str, str],
        *,
        at_most_for: timedelta | str,
        at_least_for: timedelta | str = timedelta(0),
    ) -> None:
        if not isinstance(names, Mapping):
            raise InvalidSetting(
                f'LockGate: {names!r:.60} has no locks; write {{"job": "lock"}}'
            )
        self._provider = provider
        self._names = dict(names)
        self._at_most_for = at_most_for
        self._at_least_for = at_least_for
        for name in self._names.values():
            self._lock(name, None)

    def verify(self) -> None:
        """Check that the provider can be used as it is.

        Raise ConfigurationError, for example without the table of the locks, and LockUnavailable
        without an answer.
        """
        with record_of(self._provider).answering():
            self._provider.is_held(Grant(name="", holder="", token=0, locked_at=0))

    def verify_at_start(self, names: Collection[str]) -> None:
        """Raise ConfigurationError for a job that is not among these names, and what makes the
        provider unusable.

        An outage is logged; while it lasts, no slot that needs a lock starts.
        """
        check_names("LockGate", self._names, names)
        with suppress(LockUnavailable):
            self.verify()

    def __call__(self, ctx: Context) -> AbstractContextManager[object] | None:
        """Acquire the lock of the context's job. Raise Skip if another program holds it."""
        if ctx.name not in self._names:
            return None
        try:
            return self._lock(self._names[ctx.name], ctx).acquire()
        except LockUnavailable:
            raise
        except LockNotAcquired as error:
            raise Skip(LOCK_HELD, f"{error}.".replace("lock", "Lock", 1)) from None

    def _lock(self, name: str, ctx: Context | None) -> Lock:
        def on_lost(lease: Lease, error: LockLost) -> None:
            if ctx is not None:
                ctx.cancel(LOCK_LOST)

        return Lock(
            name,
            at_most_for=self._at_most_for,
            at_least_for=self._at_least_for,
            provider=self._provider,
            keep_alive=True,
            on_lost=on_lost,
        )
