"""What goes wrong with a lock."""

from __future__ import annotations

from slotwise import SlotwiseError


class LockNotAcquired(SlotwiseError):
    """The lock is held by another process, or by another lease of this one."""


class LockUnavailable(LockNotAcquired):
    """The provider did not answer, so the lock was not acquired or not confirmed."""


class LockLost(SlotwiseError):
    """The lease has ended before its holder released it: another process may hold the lock."""
