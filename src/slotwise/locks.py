"""Locks with a lease that Python and Java share: in ShedLock's table, or under its keys in Redis.

>>> from slotwise.locks import Lock, SQLLocks
>>> locks = SQLLocks("sqlite:///locks.db")
>>> lock = Lock("daily-report", at_most_for="15m", at_least_for="5m", provider=locks)
>>> lock
Lock('daily-report', at_most_for='15m', provider=SQLLocks('sqlite+pysqlite:///locks.db'))
"""

from __future__ import annotations

from slotwise.contrib.locks.errors import LockLost, LockNotAcquired, LockUnavailable
from slotwise.contrib.locks.lease import Lease
from slotwise.contrib.locks.lock import Lock
from slotwise.contrib.locks.provider import (
    Grant,
    LockCounts,
    LockProvider,
    counts,
)
from slotwise.contrib.locks.redis import RedisLocks
from slotwise.contrib.locks.sql import SQLLocks

__all__ = [
    "Grant",
    "Lease",
    "Lock",
    "LockCounts",
    "LockLost",
    "LockNotAcquired",
    "LockProvider",
    "LockUnavailable",
    "RedisLocks",
    "SQLLocks",
    "counts",
]
