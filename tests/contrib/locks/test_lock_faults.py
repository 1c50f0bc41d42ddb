"""Holders that die or freeze, networks that are cut, servers that restart: each holder learns its loss."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from tests.contrib.locks.conftest import close
from tests.contrib.locks.holder import provider_of
from tests.contrib.locks.servers import Holder, RedisServer, eventually
from tests.contrib.locks.shedlock import TABLE
from tests.faults.proxy import Proxy

from slotwise.embedded import EmbeddedPostgres
from slotwise.locks import Lock, LockLost, LockNotAcquired, LockProvider, LockUnavailable, SQLLocks, counts


def test_a_killed_holder_is_followed(locks_url: str, provider: LockProvider, name: str) -> None:
    """After kill -9 during a block with renewals, the lock is free after at_most_for, and not before."""
    lock = Lock(name, at_most_for="1h", provider=provider)
    with Holder("keeping", locks_url, name, 2.0) as holder:
        token = holder.token()
        with pytest.raises(LockNotAcquired):
            lock.acquire()
        holder.kill()
        with lock.acquire(wait="20s") as lease:
            assert lease.token - token >= 2_000_000  # in the provider's microseconds


def test_a_paused_holder_learns_its_loss(locks_url: str, provider: LockProvider, name: str) -> None:
    """A process that slept through its lease is told when it wakes, and a resource that compares tokens rejects it."""
    with Holder("keeping", locks_url, name, 2.0) as holder:
        token = holder.token()
        holder.pause()
        with Lock(name, at_most_for="1h", provider=provider).acquire(wait="20s") as lease:
            assert lease.token > token
            holder.resume()
            assert holder.line().startswith(f"lost lock {name} is lost")
            holder.go_on()
            assert holder.line().startswith("refused to write: ")
            assert holder.line() == "over lost=1"
            lease.assert_held()


# -- the network -------------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(shedlock_url: str) -> Iterator[Proxy]:
    """A network to PostgreSQL that can be cut."""
    with Proxy(shedlock_url) as found:
        yield found


@pytest.fixture
def distant(proxy: Proxy) -> Iterator[SQLLocks]:
    """Locks beyond that network."""
    provider = SQLLocks(proxy.url, timeout="300ms")
    yield provider
    close(provider)


def test_cut_connections_are_replaced(proxy: Proxy, distant: SQLLocks, name: str) -> None:
    """If the network kills all connections, the holder renews on new ones, and keeps its lock."""
    with Lock(name, at_most_for="30s", provider=distant) as lease:
        proxy.cut()
        proxy.heal()
        lease.extend()
        lease.assert_held()
    Lock(name, at_most_for="30s", provider=distant).acquire().release()
    assert counts(distant).lost == 0


def test_a_stalled_network_ends_the_lease(
    proxy: Proxy, distant: SQLLocks, shedlock_url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """While no answer comes: renewals fail and are counted, the holder learns the loss in time, nothing is acquired."""
    lost: list[timedelta] = []
    lock = Lock(
        name,
        at_most_for="2s",
        provider=distant,
        keep_alive=True,
        on_lost=lambda lease, error: lost.append(lease.left),
    )
    other = Lock(f"{name}-2", at_most_for="1h", provider=distant)
    with caplog.at_level(logging.INFO, "slotwise.locks"), lock as lease:
        lease.assert_held()  # its connection is open
        proxy.stall()
        for _ in range(2):
            with pytest.raises(LockUnavailable):
                other.acquire()
        near = SQLLocks(shedlock_url)
        Lock(name, at_most_for="1h", provider=near).acquire(wait="20s").release()
        close(near)
        # Its own clock started before the provider's: the holder has learned the loss first.
        assert lost == [timedelta(0)]
        with pytest.raises(LockLost):
            lease.assert_held()
        proxy.heal()
        other.acquire(wait="20s").release()
    found = counts(distant)
    assert found.renewals_failed >= 1
    assert found.unavailable >= 3
    assert (found.lost, found.outages) == (1, 1)
    said = [record.message for record in caplog.records]
    assert sum("does not answer" in line for line in said) == 1
    assert sum("answers again" in line for line in said) == 1


def test_a_lost_reply_leaves_one_lock(proxy: Proxy, distant: SQLLocks, name: str) -> None:
    """If the connection breaks after the server has carried out an acquisition, its repetition finds its own lock."""
    Lock(name, at_most_for="1h", provider=distant).acquire().release()
    proxy.lose_statement(b'INSERT INTO "shedlock"', forward=True)
    with Lock(name, at_most_for="1h", provider=distant) as lease:
        lease.assert_held()
    assert counts(distant).unavailable == 0


# -- the servers -------------------------------------------------------------------------------------------------


def test_postgresql_restarts(open_path: Path, name: str) -> None:
    """A lock survives a crash of the server; its holder renews, and others are refused."""
    with EmbeddedPostgres(open_path / "pg", temporary=True) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(TABLE)
        provider = SQLLocks(server.dsn)
        with Lock(name, at_most_for="1h", provider=provider) as lease:
            server.restart("immediate")
            with pytest.raises(LockNotAcquired) as caught:
                Lock(name, at_most_for="1h", provider=provider).acquire()
            assert not isinstance(caught.value, LockUnavailable)
            lease.extend()
            server.stop()
            with pytest.raises(LockUnavailable):
                Lock(f"{name}-2", at_most_for="1h", provider=provider).acquire()
        assert counts(provider).outages == 1
        server.start()
        close(provider)


@pytest.mark.parametrize("is_durable", [True, False], ids=["append-only file", "memory"])
def test_redis_restarts(short_path: Path, name: str, is_durable: bool) -> None:
    """With an append-only file, a lock survives; without one, its holder learns at the next renewal that it is gone."""
    with RedisServer(short_path, is_durable=is_durable) as server:
        provider = provider_of(server.url)
        lost: list[LockLost] = []
        lock = Lock(name, at_most_for="1h", provider=provider, on_lost=lambda lease, error: lost.append(error))
        with lock as lease:
            server.stop()
            with pytest.raises(LockUnavailable):
                lease.assert_held()
            server.start()
            if is_durable:
                lease.extend()
                with pytest.raises(LockNotAcquired):
                    lock.acquire()
            else:
                with pytest.raises(LockLost):
                    lease.extend()
        assert len(lost) == (0 if is_durable else 1)
        later = lock.acquire()
        assert later.token > lease.token, "also where the counter was lost with the server"
        later.release()
        close(provider)


def test_redis_freezes(short_path: Path, name: str) -> None:
    """While the server is frozen, nothing is acquired, and the holder learns its loss though its renewal hangs."""
    with RedisServer(short_path) as server:
        provider = provider_of(server.url, "5s")
        lost: list[LockLost] = []
        lock = Lock(
            name, at_most_for="600ms", provider=provider, keep_alive=True,
            on_lost=lambda lease, error: lost.append(error),
        )  # fmt: skip
        with lock as lease:
            server.freeze()
            eventually(lambda: bool(lost), "the loss was told", 4)
            assert lease.lost
            server.thaw()
        assert counts(provider).lost == 1
        close(provider)
