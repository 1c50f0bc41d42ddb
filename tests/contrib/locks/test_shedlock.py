"""Java and Python exclude each other: ShedLock's own statements and scripts run in another
process, both ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from tests.contrib.locks.conftest import close
from tests.contrib.locks.holder import provider_of, shedlock_of
from tests.contrib.locks.servers import Holder, RedisServer, eventually
from tests.contrib.locks.shedlock import ShedLockRedis, ShedLockSQL

from slotwise.locks import Lock, LockLost, LockNotAcquired, LockProvider

ZERO, HOUR = timedelta(0), timedelta(hours=1)


@pytest.fixture(params=["postgresql", "redis"])
def shared_url(request: pytest.FixtureRequest) -> str:
    """A place that ShedLock knows."""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        return server.url
    return str(request.getfixturevalue("shedlock_url"))


@pytest.fixture
def ours(shared_url: str) -> Iterator[LockProvider]:
    provider = provider_of(shared_url)
    yield provider
    close(provider)


@pytest.fixture
def theirs(shared_url: str, name: str) -> Iterator[ShedLockSQL | ShedLockRedis]:
    lock = shedlock_of(shared_url, name)
    yield lock
    lock.close()


def test_our_lock_keeps_java_out(
    shared_url: str, ours: LockProvider, name: str
) -> None:
    """ShedLock, in another process, is refused while our block runs, and gets the lock after
    it.
    """
    with (
        Lock(name, at_most_for="1h", provider=ours),
        Holder("shedlock", shared_url, name, 3600) as java,
    ):
        assert java.line() == "refused"
    with Holder("shedlock", shared_url, name, 3600) as java:
        assert java.token() == 0


def test_java_keeps_us_out(shared_url: str, ours: LockProvider, name: str) -> None:
    """We are refused while ShedLock's process holds the lock, and get it after its release."""
    lock = Lock(name, at_most_for="1h", provider=ours)
    with Holder("shedlock", shared_url, name, 3600) as java:
        java.token()
        with pytest.raises(LockNotAcquired):
            lock.acquire()
        java.go_on()
        assert java.line() == "over released=True"
        with lock:
            pass


@pytest.mark.extended
def test_a_killed_java_process_is_followed(
    shared_url: str, ours: LockProvider, name: str
) -> None:
    """After kill -9, the lock is free when ShedLock's lockAtMostFor has passed, not before."""
    lock = Lock(name, at_most_for="1h", provider=ours)
    with Holder("shedlock", shared_url, name, 1.0) as java:
        java.token()
        java.kill()
        with pytest.raises(LockNotAcquired):
            lock.acquire()
        lock.acquire(wait="20s").release()


@pytest.mark.extended
def test_java_follows_our_killed_process(
    shared_url: str, theirs: ShedLockSQL | ShedLockRedis, name: str
) -> None:
    """After kill -9 of our holder, ShedLock gets the lock when at_most_for has passed, not
    before.
    """
    with Holder("slotwise", shared_url, name, 1.0) as holder:
        holder.token()
        holder.kill()
        assert not theirs.lock(HOUR)
        eventually(lambda: theirs.lock(HOUR), "ShedLock has the lock")


def test_java_cannot_release_ours(
    ours: LockProvider, theirs: ShedLockSQL | ShedLockRedis, name: str
) -> None:
    """A ShedLock holder whose lock has expired neither frees nor extends the lock that we took
    since.
    """
    assert theirs.lock(timedelta(milliseconds=100))
    with Lock(name, at_most_for="1h", provider=ours).acquire(wait="20s") as lease:
        assert not theirs.unlock()
        assert not theirs.extend(HOUR)
        lease.assert_held()


def test_we_cannot_release_java_s(
    ours: LockProvider, theirs: ShedLockSQL | ShedLockRedis, name: str
) -> None:
    """A holder of ours whose lease has expired neither frees nor extends the lock that ShedLock
    took since.
    """
    lease = Lock(name, at_most_for="400ms", provider=ours).acquire()
    eventually(lambda: theirs.lock(HOUR), "ShedLock has the lock")
    with pytest.raises(LockLost):
        lease.extend()
    lease.release()
    assert not theirs.lock(HOUR)
    assert theirs.unlock()


def test_at_least_for_of_each_binds_the_other(
    ours: LockProvider, theirs: ShedLockSQL | ShedLockRedis, name: str
) -> None:
    """A short run keeps the other side out until lockAtLeastFor has passed."""
    lock = Lock(name, at_most_for="1h", at_least_for="300ms", provider=ours)
    with lock:
        pass
    assert not theirs.lock(HOUR)
    eventually(lambda: theirs.lock(HOUR), "ShedLock has the lock")
    theirs.unlock(timedelta(milliseconds=300))
    with pytest.raises(LockNotAcquired):
        lock.acquire()
    lock.acquire(wait="20s")


@pytest.mark.extended
@pytest.mark.parametrize(
    "total",
    [60, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def test_contended_acquisitions_never_overlap(
    locks_url: str, name: str, tmp_path: Path, total: int
) -> None:
    """Processes of both sides fight for one lock: no two blocks overlap, and our tokens rise in
    the blocks' order.
    """
    sides = (
        ("slotwise",) * 3
        if locks_url.startswith("sqlite")
        else ("slotwise", "slotwise", "shedlock", "shedlock")
    )
    logs = [tmp_path / f"log-{number}" for number in range(len(sides))]
    crew = [
        Holder(side, locks_url, name, 60, "loop", str(total // len(sides)), str(log))
        for side, log in zip(sides, logs, strict=True)
    ]
    for holder in crew:
        assert holder.line() == "ready"
    for holder in crew:
        holder.go_on()
    for holder in crew:
        with holder:
            assert holder.process.wait(500) == 0
    judge(logs, total // len(sides) * len(sides))


def judge(logs: list[Path], total: int) -> None:
    """The logs hold so many blocks, none of which begins before the one before has ended."""
    blocks = sorted(
        tuple(map(int, line.split()))
        for log in logs
        for line in log.read_text().splitlines()
    )
    assert len(blocks) == total
    overlapping = [
        (one, other) for one, other in pairwise(blocks) if other[0] < one[1]
    ]
    assert overlapping == []
    tokens = [token for _, _, token in blocks if token]
    assert tokens == sorted(set(tokens))
    turns = sum(one != other for one, other in pairwise(owners(logs)))
    assert turns >= 2, "the processes took turns"


def owners(logs: list[Path]) -> list[int]:
    """Whose block was it, in the order of the blocks."""
    begun = [
        (int(line.split()[0]), number)
        for number, log in enumerate(logs)
        for line in log.read_text().splitlines()
    ]
    return [number for _, number in sorted(begun)]
