"""What a lock promises, on each provider."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from contextlib import suppress
from datetime import timedelta

import psycopg
import pytest
from tests.contrib.locks.servers import eventually

from slotwise.locks import (
    Grant,
    Lease,
    Lock,
    LockLost,
    LockNotAcquired,
    LockProvider,
    LockUnavailable,
    SQLLocks,
    counts,
)

HOUR = timedelta(hours=1)


def make(
    provider: LockProvider, name: str, at_most_for: str = "1h", **options: object
) -> Lock:
    return Lock(name, at_most_for=at_most_for, provider=provider, **options)  # type: ignore[arg-type]


def test_one_holder_at_a_time(provider: LockProvider, name: str) -> None:
    """While a block runs, no other lock of this name is acquired; afterwards it is."""
    with make(provider, name) as lease:
        assert not lease.lost
        with pytest.raises(LockNotAcquired, match=name):
            make(provider, name).acquire()
    with make(provider, name):
        pass
    assert (counts(provider).acquired, counts(provider).refused) == (2, 1)


def test_names_are_apart(provider: LockProvider, name: str) -> None:
    """Locks of other names are other locks."""
    with make(provider, name), make(provider, name[:-1] + "!"):
        pass


def test_token_rises_with_each_acquisition(provider: LockProvider, name: str) -> None:
    """No token repeats, and each is higher than the last one."""
    lock, tokens = make(provider, name), []
    for _ in range(20):
        with lock.acquire(wait="5s") as lease:
            tokens.append(lease.token)
            assert lock.token == lease.token
    assert tokens == sorted(set(tokens))


def test_an_expired_lock_is_free(provider: LockProvider, name: str) -> None:
    """A holder that neither releases nor renews loses the lock after at_most_for, and learns
    it.
    """
    lost: list[LockLost] = []
    dead = make(
        provider, name, "500ms", on_lost=lambda lease, error: lost.append(error)
    ).acquire()
    with make(provider, name).acquire(wait="20s") as lease:
        assert lease.token > dead.token
        eventually(lambda: bool(lost), "the callback was called")
        assert dead.lost
        with pytest.raises(LockLost, match="run out"):
            dead.assert_held()
        with pytest.raises(LockLost):
            dead.extend()
        dead.release()
        lease.assert_held()  # the release of the lost lease has not touched it
    assert len(lost) == 1
    assert counts(provider).lost == 1


def test_at_least_for_outlasts_a_short_block(
    provider: LockProvider, name: str
) -> None:
    """After a short block, the lock stays taken until at_least_for has passed since its
    acquisition.
    """
    with make(provider, name, at_least_for="400ms") as lease:
        pass
    with pytest.raises(LockNotAcquired):
        make(provider, name).acquire()
    with make(provider, name).acquire(wait="20s") as later:
        # Tokens are the provider's microseconds, so its own clock is the judge.
        assert later.token - lease.token >= 400_000


def test_at_least_for_does_not_prolong_a_long_block(
    provider: LockProvider, name: str
) -> None:
    """A block that took longer than at_least_for releases at once."""
    with make(provider, name, at_least_for="1ms"):
        threading.Event().wait(0.01)
    make(provider, name).acquire().release()


def test_extend_moves_the_end(provider: LockProvider, name: str) -> None:
    """An extension counts from now; the lock is then held beyond its first end."""
    with make(provider, name, "800ms") as lease:
        lease.extend("1h")
        assert lease.left > timedelta(minutes=59)
        with pytest.raises(LockNotAcquired):
            make(provider, name).acquire(wait="1s")
        lease.assert_held()


def test_keep_alive_renews(provider: LockProvider, name: str) -> None:
    """A block may run many times longer than at_most_for."""
    with make(provider, name, "1s", keep_alive=True) as lease:
        eventually(lambda: counts(provider).renewed >= 4, "it renews")
        with pytest.raises(LockNotAcquired):
            make(provider, name).acquire()
        lease.assert_held()
    assert counts(provider).lost == 0


def test_a_release_ends_renewals(provider: LockProvider, name: str) -> None:
    """The lock is free right after a block with keep_alive, and stays so: no late renewal takes it
    back.
    """
    for _ in range(5):
        make(provider, name, "1s", keep_alive=True).acquire(wait="20s").release()
    make(provider, name).acquire(wait="20s").release()
    threads = f"slotwise-lock-{name}"
    eventually(
        lambda: all(thread.name != threads for thread in threading.enumerate()),
        "its threads end",
    )


def test_a_lost_lock_is_told(
    provider: LockProvider, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If the provider has another holder, a renewal finds it: a log line, a count, the callback,
    and an exception.
    """
    lost: list[Lease] = []
    lock = make(
        provider,
        name,
        "2s",
        keep_alive=True,
        on_lost=lambda lease, error: lost.append(lease),
    )
    with caplog.at_level(logging.WARNING, "slotwise.locks"), lock as lease:
        steal(provider, lease)
        with make(provider, name).acquire(wait="5s"):
            eventually(lambda: bool(lost), "the callback was called")
            assert lost == [lease]
            with pytest.raises(LockLost, match=name):
                lock.assert_held()
    assert counts(provider).lost == 1
    assert f"lock {name} is lost" in caplog.text


def steal(provider: LockProvider, lease: Lease) -> None:
    """An operator ends the lock behind its holder's back."""
    provider.release(lease._grant, timedelta(0))


def test_a_failing_callback_is_logged(
    provider: LockProvider, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception of on_lost reaches the log, and nothing else."""

    def fail(lease: Lease, error: LockLost) -> None:
        raise RuntimeError("no pager")

    with make(provider, name, on_lost=fail) as lease:
        steal(provider, lease)
        with pytest.raises(LockLost):
            lease.assert_held()
    assert "no pager" in caplog.text


def test_an_acquisition_may_be_repeated(provider: LockProvider, name: str) -> None:
    """After a lost reply, the same holder acquires its own lock again; another holder does not."""
    first = provider.acquire(name, "host:1:aa", HOUR)
    again = provider.acquire(name, "host:1:aa", HOUR)
    assert first is not None
    assert again is not None
    assert again.token > first.token
    assert provider.acquire(name, "host:1:ab", HOUR) is None
    assert provider.is_held(again)


def test_only_the_holder_writes(provider: LockProvider, name: str) -> None:
    """Extension, check and release of an earlier grant do not touch the lock of a later one."""
    first = provider.acquire(name, "host:1:aa", HOUR)
    assert first is not None
    assert provider.release(first, timedelta(0))
    assert not provider.is_held(first)
    assert not provider.extend(first, HOUR)
    eventually(
        lambda: provider.acquire(name, "host:1:ab", HOUR) is not None,
        "the lock is free",
    )
    assert not provider.extend(first, HOUR)
    assert not provider.release(first, timedelta(0))
    assert provider.acquire(name, "host:1:ac", HOUR) is None


def test_a_forked_child_does_not_release(provider: LockProvider, name: str) -> None:
    """A child has a copy of the lease, and leaves the lock to its parent."""
    with make(provider, name) as lease:
        child = os.fork()
        if not child:
            try:
                lease.release()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        lease.assert_held()


# -- the decorator --------------------------------------------------------------------------------


def test_decorated_function_is_skipped_while_the_lock_is_held(
    provider: LockProvider, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It runs with its arguments under the lock; elsewhere the call returns None, with a log
    line.
    """
    lock = make(provider, name)

    @lock
    def add(one: int, other: int) -> int:
        lock.assert_held()
        return one + other

    assert add(2, other=3) == 5
    with make(provider, name), caplog.at_level(logging.INFO, "slotwise.locks"):
        assert add(2, 3) is None
    assert f"lock {name} is held elsewhere" in caplog.text
    assert add(1, 1) == 2


def test_decorator_with_a_deadline_waits(provider: LockProvider, name: str) -> None:
    """With ``wait``, the call waits for the lock, and raises when the time is over."""

    @make(provider, name)(wait="20s")
    def run() -> str:
        return "ran"

    @make(provider, name)(wait="50ms")
    def hurry() -> str:
        return "ran"

    lease = make(provider, name).acquire()
    with pytest.raises(LockNotAcquired):
        hurry()
    timer = threading.Timer(0.1, lease.release)
    timer.start()
    assert run() == "ran"
    timer.join()


def test_an_exception_releases(provider: LockProvider, name: str) -> None:
    """A block that raises releases the lock, and its exception passes."""
    lock = make(provider, name)
    with pytest.raises(ZeroDivisionError), lock:
        _ = 1 / 0
    lock.acquire(wait="1s").release()
    with pytest.raises(LockNotAcquired, match="not held here"):
        _ = lock.token


# -- awaited --------------------------------------------------------------------------------------


def test_awaited_forms(provider: LockProvider, name: str) -> None:
    """``async with``, the decorator of a coroutine function, and the methods of a lease, without
    blocking the loop.
    """
    lock = make(provider, name)

    @lock
    async def run() -> int:
        return lock.token

    async def scene() -> None:
        async with lock as lease:
            assert await run() is None
            with pytest.raises(LockNotAcquired):
                await make(provider, name).aio.acquire(wait="30ms")
            await lease.aio.extend("2h")
            await lease.aio.assert_held()
            assert lease.left > HOUR
        second = await lock.aio.acquire(wait="5s")
        assert second.token > lease.token
        await second.aio.release()
        assert (await run() or 0) > second.token

    asyncio.run(scene())


def test_tasks_exclude_each_other(provider: LockProvider, name: str) -> None:
    """Of many tasks that share one lock object, one is inside at a time."""
    lock = make(provider, name)
    inside: list[int] = []

    async def work(number: int) -> None:
        async with await lock.aio.acquire(wait="30s") as lease:
            assert lock.lease is lease
            inside.append(number)
            await asyncio.sleep(0)
            assert inside.pop() == number
            assert not inside

    async def scene() -> None:
        await asyncio.gather(*map(work, range(6)))

    asyncio.run(scene())


def test_cancelled_acquisition_leaves_no_lock(
    locks_url: str, provider: LockProvider, name: str
) -> None:
    """A task that is cancelled while the provider answers does not hold the lock afterwards."""
    slow = Slow(provider)

    async def scene() -> None:
        task = asyncio.create_task(make(slow, name).aio.acquire())
        await asyncio.to_thread(slow.acquired.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        slow.may_return.set()

    asyncio.run(scene())
    make(provider, name).acquire(wait="10s").release()


class Slow:
    """A provider whose answer to an acquisition is on its way until a test lets it arrive."""

    def __init__(self, provider: LockProvider) -> None:
        self._provider = provider
        self.acquired, self.may_return = threading.Event(), threading.Event()
        self.extend = provider.extend
        self.is_held = provider.is_held
        self.release = provider.release

    def acquire(self, name: str, holder: str, at_most_for: timedelta) -> object:
        grant = self._provider.acquire(name, holder, at_most_for)
        self.acquired.set()
        assert self.may_return.wait(20)
        return grant


# -- races ----------------------------------------------------------------------------------------


class Delayed:
    """A provider that lets a test act while a renewal is on its way, and notes the order of the
    calls.
    """

    def __init__(self, provider: LockProvider) -> None:
        self._provider = provider
        self.calls: list[str] = []
        self.extending, self.may_extend = threading.Event(), threading.Event()
        self.acquire, self.is_held = provider.acquire, provider.is_held

    def extend(self, grant: Grant, at_most_for: timedelta) -> bool:
        self.extending.set()
        assert self.may_extend.wait(20)
        self.calls.append("extend")
        return self._provider.extend(grant, at_most_for)

    def release(self, grant: Grant, at_least_for: timedelta) -> bool:
        self.calls.append("release")
        return self._provider.release(grant, at_least_for)


def test_a_release_waits_for_a_renewal_on_its_way(
    provider: LockProvider, name: str
) -> None:
    """A renewal after the release would prolong what at_least_for has left of the lock."""
    slow = Delayed(provider)
    lease = make(slow, name, "10s", keep_alive=True).acquire()

    def renew() -> None:
        with suppress(LockLost):  # it was released meanwhile
            lease.extend()

    renewal = threading.Thread(target=renew)
    renewal.start()
    assert slow.extending.wait(20)
    release = threading.Thread(target=lease.release)
    release.start()
    release.join(0.2)
    assert slow.calls == []
    slow.may_extend.set()
    renewal.join()
    release.join()
    assert slow.calls == ["extend", "release"]


def test_a_late_answer_is_no_lock(provider: LockProvider, name: str) -> None:
    """An acquisition whose answer took longer than the lease fails, and leaves nothing behind."""
    late = Slow(provider)
    errors: list[BaseException] = []

    def acquire() -> None:
        try:
            make(late, name, "100ms").acquire()
        except LockUnavailable as error:
            errors.append(error)

    thread = threading.Thread(target=acquire)
    thread.start()
    assert late.acquired.wait(20)
    with make(provider, name).acquire(wait="20s") as lease:
        late.may_return.set()
        thread.join()
        assert len(errors) == 1
        lease.assert_held()


def test_roles_with_other_defaults(shedlock_url: str, name: str) -> None:
    """Under SERIALIZABLE and without synchronous_commit, our sessions read committed rows and
    commit durably.
    """
    with psycopg.connect(shedlock_url, autocommit=True) as connection:
        for setting in (
            "default_transaction_isolation = 'serializable'",
            "synchronous_commit = off",
        ):
            connection.execute(
                f"ALTER DATABASE {connection.info.dbname} SET {setting}"
            )
    provider = SQLLocks(shedlock_url)
    shown = [
        provider._for_attempts.run(f"SHOW {name}", {})[0][0][0]
        for name in ("transaction_isolation", "synchronous_commit")
    ]
    assert shown == ["read committed", "on"]
    done: list[int] = []

    def contend() -> None:
        for _ in range(10):
            with make(provider, name).acquire(wait="60s") as lease:
                done.append(lease.token)

    threads = [threading.Thread(target=contend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == sorted(set(done))
    assert len(done) == 40
    assert counts(provider).unavailable == 0
    provider.close()
