"""A process that takes a lock, as a program: ``holder.py SIDE URL NAME AT_MOST_SECONDS COMMAND
…``.

SIDE is ``slotwise``, ``keeping`` (slotwise with keep_alive) or ``shedlock``. Commands:

``hold``          acquire, print ``held TOKEN``, and ``over …`` after a line on the standard input
``loop N LOG``    acquire N times as fast as possible; write each block's beginning and end to the
log ``storm LOG``     acquire again and again, whatever happens; append process and token to the
log all processes share

The log is the judge: its times are of the system's monotonic clock, which all processes share.
What is appended to a file stands in the order in which it was written.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tests.contrib.locks.shedlock import ShedLockRedis, ShedLockSQL

if TYPE_CHECKING:
    from slotwise.locks import Lease, LockLost, LockProvider


def provider_of(url: str, timeout: str = "5s") -> LockProvider:
    from slotwise.locks import (
        RedisLocks,
        SQLLocks,
    )  # here: ShedLock's process does without slotwise

    is_redis = url.startswith(("redis", "unix"))
    return (
        RedisLocks(url, timeout=timeout)
        if is_redis
        else SQLLocks(url, timeout=timeout)
    )


def shedlock_of(url: str, name: str) -> ShedLockSQL | ShedLockRedis:
    return (
        ShedLockRedis(url, name)
        if url.startswith(("redis", "unix"))
        else ShedLockSQL(url, name)
    )


def hold(side: str, url: str, name: str, at_most: timedelta) -> None:
    if side == "shedlock":
        theirs = shedlock_of(url, name)
        say("held 0" if theirs.lock(at_most) else "refused")
        sys.stdin.readline()
        say(f"over released={theirs.unlock()}")
        return
    from slotwise.locks import Lock, LockLost

    told: list[str] = []

    def on_lost(lease: Lease, error: LockLost) -> None:
        told.append(str(error))
        say(f"lost {error}")

    keeping = side == "keeping"
    lock = Lock(
        name,
        at_most_for=at_most,
        provider=provider_of(url, "500ms"),
        keep_alive=keeping,
        on_lost=on_lost,
    )
    with lock as lease:
        say(f"held {lease.token}")
        sys.stdin.readline()
        try:
            lease.assert_held()
        except LockLost as error:
            say(f"refused to write: {error}")
        else:
            say("may write")
    say(f"over lost={len(told)}")


def loop(
    side: str, url: str, name: str, at_most: timedelta, count: int, log: Path
) -> None:
    attempt = (
        theirs(url, name, at_most) if side == "shedlock" else ours(url, name, at_most)
    )
    with log.open("w") as file:

        def note(token: int) -> None:
            began = time.monotonic_ns()
            time.sleep(0.003)  # a block that others could overlap
            print(began, time.monotonic_ns(), token, file=file)

        done = 0
        say("ready")
        sys.stdin.readline()
        while done < count:
            if attempt(note):
                done += 1


def storm(url: str, name: str, at_most: timedelta, log: Path) -> None:
    from slotwise.locks import Lock, LockLost, LockNotAcquired

    lock = Lock(
        name, at_most_for=at_most, provider=provider_of(url, "500ms"), keep_alive=True
    )
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    while True:
        try:
            with lock as lease:
                for _ in range(5):
                    lease.assert_held()
                    os.write(file, f"{os.getpid()} {lease.token}\n".encode())
                    time.sleep(0.01)
        except (LockNotAcquired, LockLost):
            time.sleep(0.01)


def ours(
    url: str, name: str, at_most: timedelta
) -> Callable[[Callable[[int], None]], bool]:
    from slotwise.locks import Lock, LockNotAcquired

    lock = Lock(name, at_most_for=at_most, provider=provider_of(url))

    def attempt(note: Callable[[int], None]) -> bool:
        try:
            with lock as lease:
                note(lease.token)
        except LockNotAcquired:
            return False
        return True

    return attempt


def theirs(
    url: str, name: str, at_most: timedelta
) -> Callable[[Callable[[int], None]], bool]:
    lock = shedlock_of(url, name)

    def attempt(note: Callable[[int], None]) -> bool:
        if not lock.lock(at_most):
            return False
        note(0)
        lock.unlock()
        return True

    return attempt


def say(line: str) -> None:
    print(line, flush=True)


def main(
    side: str, url: str, name: str, seconds: str, command: str, *rest: str
) -> None:
    at_most = timedelta(seconds=float(seconds))
    if command == "hold":
        hold(side, url, name, at_most)
    elif command == "storm":
        storm(url, name, at_most, Path(rest[0]))
    else:
        loop(side, url, name, at_most, int(rest[0]), Path(rest[1]))


if __name__ == "__main__":
    main(*sys.argv[1:])
