"""ShedLock's side: the statements, scripts and keys of its release 7.9.0, in its order, without
slotwise.

From ``PostgresSqlServerTimeStatementsSource``, ``SqlConfiguration`` (its default names),
``StorageBasedLockProvider``, ``InternalRedisLockProvider`` and ``NamedSqlTranslator`` of that
release.
"""

from __future__ import annotations

import os
import re
import uuid
from datetime import timedelta

INSERT = (
    "INSERT INTO shedlock(name, lock_until, locked_at, locked_by) VALUES(:name, "
    "timezone('utc', CURRENT_TIMESTAMP) + make_interval(secs => :lockAtMostForInterval), "
    "timezone('utc', CURRENT_TIMESTAMP), :lockedBy) ON CONFLICT (name) DO UPDATE SET lock_until = "
    "timezone('utc', CURRENT_TIMESTAMP) + make_interval(secs => "
    ":lockAtMostForInterval), locked_at = "
    "timezone('utc', CURRENT_TIMESTAMP), locked_by = :lockedBy WHERE "
    "shedlock.name = :name AND shedlock.lock_until <= "
    "timezone('utc', CURRENT_TIMESTAMP)"
)
UPDATE = (
    "UPDATE shedlock SET lock_until = "
    "timezone('utc', CURRENT_TIMESTAMP) + make_interval(secs => "
    ":lockAtMostForInterval), locked_at = "
    "timezone('utc', CURRENT_TIMESTAMP), locked_by = :lockedBy WHERE "
    "shedlock.name = :name AND shedlock.lock_until <= "
    "timezone('utc', CURRENT_TIMESTAMP)"
)
UNLOCK = (
    "UPDATE shedlock SET lock_until = CASE WHEN locked_at + make_interval(secs => "
    ":lockAtLeastForInterval) > "
    "timezone('utc', CURRENT_TIMESTAMP) THEN locked_at + make_interval(secs => "
    ":lockAtLeastForInterval) ELSE "
    "timezone('utc', CURRENT_TIMESTAMP) END WHERE name = :name AND locked_by = :lockedBy"
)
EXTEND = (
    "UPDATE shedlock SET lock_until = "
    "timezone('utc', CURRENT_TIMESTAMP) + make_interval(secs => "
    ":lockAtMostForInterval) WHERE name = :name AND "
    "locked_by = :lockedBy AND lock_until > timezone('utc', CURRENT_TIMESTAMP)"
)
TABLE = """\
CREATE TABLE shedlock(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL,
    locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name));"""

DELETE_SCRIPT = """
        if redis.call("get",KEYS[1]) == ARGV[1] then
            return redis.call("del",KEYS[1])
        else
            return 0
        end
        """
UPDATE_SCRIPT = """
        if redis.call('get', KEYS[1]) == ARGV[1] then
           return redis.call('pexpire', KEYS[1], ARGV[2])
        else
           return 0
        end
        """


class ShedLockSQL:
    """``JdbcTemplateLockProvider`` with ``usingDbTime()``, for one lock."""

    def __init__(self, url: str, name: str) -> None:
        import psycopg  # here: each process loads one of both

        self._connection = psycopg.connect(url, autocommit=True)
        self._name = name
        self._locked_by = f"java-{os.getpid()}"
        self._has_created = False

    def lock(self, at_most: timedelta, at_least: timedelta = timedelta(0)) -> bool:
        values = self._values(at_most, at_least)
        if not self._has_created:
            self._has_created = True
            if self._run(INSERT, values):
                return True
        return self._run(UPDATE, values)

    def unlock(self, at_least: timedelta = timedelta(0)) -> bool:
        return self._run(UNLOCK, self._values(timedelta(0), at_least))

    def extend(self, at_most: timedelta) -> bool:
        return self._run(EXTEND, self._values(at_most, timedelta(0)))

    def close(self) -> None:
        self._connection.close()

    def _values(self, at_most: timedelta, at_least: timedelta) -> dict[str, object]:
        return {
            "name": self._name,
            "lockedBy": self._locked_by,
            "lockAtMostForInterval": at_most.total_seconds(),
            "lockAtLeastForInterval": at_least.total_seconds(),
        }

    def _run(self, statement: str, values: dict[str, object]) -> bool:
        translated = re.sub(r"(?<!:):(\w+)", r"%(\1)s", statement)
        return self._connection.execute(translated, values).rowcount > 0


class ShedLockRedis:
    """``RedisLockProvider`` with ``safeUpdate``, for one lock in the environment ``default``."""

    def __init__(self, url: str, name: str) -> None:
        import redis

        self._client = redis.Redis.from_url(url)
        self._key = f"job-lock:default:{name}"
        self._value = ""

    def lock(self, at_most: timedelta, at_least: timedelta = timedelta(0)) -> bool:
        del at_least
        value = f"ADDED:2026-01-31T02:00:00.000Z@java:{uuid.uuid4()}"
        if not self._client.set(self._key, value, nx=True, px=milliseconds(at_most)):
            return False
        self._value = value
        return True

    def unlock(self, at_least: timedelta = timedelta(0)) -> bool:
        if at_least:
            return self.extend(at_least)
        return self._client.eval(DELETE_SCRIPT, 1, self._key, self._value) == 1

    def extend(self, at_most: timedelta) -> bool:
        return (
            self._client.eval(
                UPDATE_SCRIPT, 1, self._key, self._value, str(milliseconds(at_most))
            )
            == 1
        )

    def close(self) -> None:
        self._client.close()


def milliseconds(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)
