"""What a lock promises, on each provider."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from datetime import timedelta

import pytest
from tests.contrib.locks.servers import eventually

from slotwise.locks import Lease, Lock, LockLost, LockNotAcquired, LockProvider, counts

HOUR = timedelta(hours=1)


def make(provider: LockProvider, name: str, at_most_for: str = "1h", **options: object) -> Lock:
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
    """A holder that neither releases nor renews loses the lock after at_most_for, and learns it."""
    lost: list[LockLost] = []
    dead = make(provider, name, "300ms", on_lost=lambda lease, error: lost.append(error)).acquire()
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


def test_at_least_for_outlasts_a_short_block(provider: LockProvider, name: str) -> None:
    """After a short block, the lock stays taken until at_least_for has passed since its acquisition."""
    with make(provider, name, at_least_for="400ms") as lease:
        pass
    with pytest.raises(LockNotAcquired):
        make(provider, name).acquire()
    with make(provider, name).acquire(wait="20s") as later:
        # Tokens are the provider's microseconds, so its own clock is the judge.
        assert later.token - lease.token >= 400_000


def test_at_least_for_does_not_prolong_a_long_block(provider: LockProvider, name: str) -> None:
    """A block that took longer than at_least_for releases at once."""
    with make(provider, name, at_least_for="1ms"):
        threading.Event().wait(0.01)
    make(provider, name).acquire().release()


def test_extend_moves_the_end(provider: LockProvider, name: str) -> None:
    """An extension counts from now; the lock is then held beyond its first end."""
    with make(provider, name, "500ms") as lease:
        lease.extend("1h")
        assert lease.left > timedelta(minutes=59)
        with pytest.raises(LockNotAcquired):
            make(provider, name).acquire(wait="800ms")
        lease.assert_held()


def test_keep_alive_renews(provider: LockProvider, name: str) -> None:
    """A block may run many times longer than at_most_for."""
    with make(provider, name, "600ms", keep_alive=True) as lease:
        with pytest.raises(LockNotAcquired):
            make(provider, name).acquire(wait="1500ms")
        lease.assert_held()
    assert counts(provider).renewed >= 2
    assert counts(provider).lost == 0


def test_a_release_ends_renewals(provider: LockProvider, name: str) -> None:
    """The lock is free right after a block with keep_alive, and stays so: no late renewal takes it back."""
    for _ in range(10):
        make(provider, name, "60ms", keep_alive=True).acquire(wait="5s").release()
    make(provider, name).acquire(wait="1s").release()
    assert [thread.name for thread in threading.enumerate() if thread.name == f"slotwise-lock-{name}"] == []


def test_a_lost_lock_is_told(provider: LockProvider, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """If the provider has another holder, a renewal finds it: a log line, a count, the callback, and an exception."""
    lost: list[Lease] = []
    lock = make(provider, name, "400ms", keep_alive=True, on_lost=lambda lease, error: lost.append(lease))
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


def test_a_failing_callback_is_logged(provider: LockProvider, name: str, caplog: pytest.LogCaptureFixture) -> None:
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
    eventually(lambda: provider.acquire(name, "host:1:ab", HOUR) is not None, "the lock is free")
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


# -- the decorator -----------------------------------------------------------------------------------------------


def test_decorated_function_is_skipped_while_the_lock_is_held(
    provider: LockProvider, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It runs with its arguments under the lock; elsewhere the call returns None, with a log line."""
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


# -- awaited -----------------------------------------------------------------------------------------------------


def test_awaited_forms(provider: LockProvider, name: str) -> None:
    """``async with``, the decorator of a coroutine function, and the methods of a lease, without blocking the loop."""
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


def test_cancelled_acquisition_leaves_no_lock(locks_url: str, provider: LockProvider, name: str) -> None:
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
        self.extend, self.is_held, self.release = provider.extend, provider.is_held, provider.release

    def acquire(self, name: str, holder: str, at_most_for: timedelta) -> object:
        grant = self._provider.acquire(name, holder, at_most_for)
        self.acquired.set()
        assert self.may_return.wait(20)
        return grant
