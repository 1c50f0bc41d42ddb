"""Holders that die or freeze, networks that are cut, servers that restart: each holder learns its
loss.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
import redis
from tests.contrib.locks.conftest import close
from tests.contrib.locks.holder import provider_of
from tests.contrib.locks.servers import Holder, RedisServer, eventually
from tests.contrib.locks.shedlock import TABLE
from tests.faults.proxy import Proxy

from slotwise.embedded import EmbeddedPostgres
from slotwise.locks import (
    Lock,
    LockLost,
    LockNotAcquired,
    LockProvider,
    LockUnavailable,
    SQLLocks,
    counts,
)


@pytest.mark.extended
def test_a_killed_holder_is_followed(
    locks_url: str, provider: LockProvider, name: str
) -> None:
    """After kill -9 during a block with renewals, the lock is free after at_most_for, and not
    before.
    """
    lock = Lock(name, at_most_for="1h", provider=provider)
    with Holder("keeping", locks_url, name, 2.0) as holder:
        token = holder.token()
        with pytest.raises(LockNotAcquired):
            lock.acquire()
        holder.kill()
        with lock.acquire(wait="20s") as lease:
            assert lease.token - token >= 2_000_000  # in the provider's microseconds


def test_a_paused_holder_learns_its_loss(
    locks_url: str, provider: LockProvider, name: str
) -> None:
    """A process that slept through its lease is told when it wakes, and a resource that compares
    tokens rejects it.
    """
    with Holder("keeping", locks_url, name, 2.0) as holder:
        token = holder.token()
        holder.pause()
        with Lock(name, at_most_for="1h", provider=provider).acquire(
            wait="20s"
        ) as lease:
            assert lease.token > token
            holder.resume()
            assert holder.line().startswith(f"lost lock {name} is lost")
            holder.go_on()
            assert holder.line().startswith("refused to write: ")
            assert holder.line() == "over lost=1"
            lease.assert_held()


# -- all of it, by one log ------------------------------------------------------------------------


class Storm:
    """Processes that take turns with one lock. ``rows``: process and token of each write, in the
    order of the log.
    """

    def __init__(self, url: str, name: str, log: Path) -> None:
        log.touch()
        self._make = lambda: Holder("slotwise", url, name, 3.0, "storm", str(log))
        self._log = log
        self.crew = [self._make() for _ in range(4)]

    def rows(self) -> list[tuple[int, int]]:
        lines = self._log.read_text().splitlines()
        return [(int(process), int(token)) for process, token in map(str.split, lines)]

    def newest(self) -> int:
        return max((token for _, token in self.rows()), default=0)

    def goes_on(self) -> None:
        """Wait until others have held the lock: three acquisitions after the newest one."""
        before = self.newest()
        eventually(
            lambda: len({token for _, token in self.rows() if token > before}) >= 3,
            "the lock goes on",
            100,
        )

    def holder(self) -> Holder:
        """The process that wrote last."""
        self.goes_on()
        last = self.rows()[-1][0]
        return next(one for one in self.crew if one.process.pid == last)

    def replace(self, killed: Holder) -> None:
        killed.__exit__(None, None, None)
        self.crew[self.crew.index(killed)] = self._make()

    def close(self) -> None:
        for one in self.crew:
            one.__exit__(None, None, None)


@pytest.mark.extended
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["postgresql", "redis"])
def test_a_storm_of_faults(
    kind: str, short_path: Path, open_path: Path, name: str
) -> None:
    """Holders killed and paused, connections cut, the server restarted: no two of them are in the
    block at once.

    A log that is no server's judges. Only a process that slept through its lease may write late,
    and only once: it had checked before it fell asleep. Its token is lower, so a resource that
    compares tokens rejects that write.
    """
    with ExitStack() as stack:
        server: EmbeddedPostgres | RedisServer
        if kind == "redis":
            server = stack.enter_context(RedisServer(short_path, is_durable=True))
            url, cut = server.url, cut_redis
        else:
            server = stack.enter_context(
                EmbeddedPostgres(open_path / "pg", temporary=True)
            )
            url, cut = server.dsn, cut_postgresql
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(TABLE)
        storm = Storm(url, name, short_path / "log")
        stack.callback(storm.close)

        killed = storm.holder()
        killed.kill()
        storm.replace(killed)
        storm.goes_on()
        for _ in range(3):
            cut(url)
            storm.goes_on()
        paused = storm.holder()
        paused.pause()
        storm.goes_on()  # the others wait for the end of its lease, if it held the lock
        time.sleep(4)  # longer than its lease
        paused.resume()
        storm.goes_on()
        if isinstance(server, RedisServer):
            server.stop()
            down = storm.newest()
            time.sleep(1)
            assert storm.newest() == down, "nothing is acquired without an answer"
            server.start()
        else:
            server.restart(
                "immediate"
            )  # after stop and start it may have another port
        storm.goes_on()

        highest, late = 0, []
        for process, token in storm.rows():
            if token < highest:
                late.append(process)
            highest = max(highest, token)
        assert late in ([], [paused.process.pid])
        tokens = [token for _, token in storm.rows()]
        assert len(set(tokens)) >= 20


def cut_redis(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def cut_postgresql(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )


# -- the network ----------------------------------------------------------------------------------


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


def test_cut_connections_are_replaced(
    proxy: Proxy, distant: SQLLocks, name: str
) -> None:
    """If the network kills all connections, the holder renews on new ones, and keeps its lock."""
    with Lock(name, at_most_for="30s", provider=distant) as lease:
        proxy.cut()
        proxy.heal()
        lease.extend()
        lease.assert_held()
    Lock(name, at_most_for="30s", provider=distant).acquire().release()
    assert counts(distant).lost == 0


@pytest.mark.extended
def test_a_stalled_network_ends_the_lease(
    proxy: Proxy,
    distant: SQLLocks,
    shedlock_url: str,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While no answer comes: renewals fail and are counted, the holder learns the loss in time,
    nothing is acquired.
    """
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


def test_a_lost_reply_leaves_one_lock(
    proxy: Proxy, distant: SQLLocks, name: str
) -> None:
    """If the connection breaks after the server has carried out an acquisition, its repetition
    finds its own lock.
    """
    Lock(name, at_most_for="1h", provider=distant).acquire().release()
    proxy.lose_statement(b'INSERT INTO "shedlock"', forward=True)
    with Lock(name, at_most_for="1h", provider=distant) as lease:
        lease.assert_held()
    assert counts(distant).unavailable == 0


# -- the servers ----------------------------------------------------------------------------------


@pytest.mark.extended
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


@pytest.mark.parametrize(
    "is_durable", [True, False], ids=["append-only file", "memory"]
)
def test_redis_restarts(short_path: Path, name: str, is_durable: bool) -> None:
    """With an append-only file, a lock survives; without one, its holder learns at the next
    renewal that it is gone.
    """
    with RedisServer(short_path, is_durable=is_durable) as server:
        provider = provider_of(server.url)
        lost: list[LockLost] = []
        lock = Lock(
            name,
            at_most_for="1h",
            provider=provider,
            on_lost=lambda lease, error: lost.append(error),
        )
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
        assert later.token > lease.token, (
            "also where the counter was lost with the server"
        )
        later.release()
        close(provider)


def test_redis_freezes(short_path: Path, name: str) -> None:
    """While the server is frozen, nothing is acquired, and the holder learns its loss though its
    renewal hangs.
    """
    with RedisServer(short_path) as server:
        provider = provider_of(server.url, "5s")
        lost: list[LockLost] = []
        lock = Lock(
            name,
            at_most_for="600ms",
            provider=provider,
            keep_alive=True,
            on_lost=lambda lease, error: lost.append(error),
        )
        with lock as lease:
            server.freeze()
            eventually(lambda: bool(lost), "the loss was told", 4)
            assert lease.lost
            server.thaw()
        assert counts(provider).lost == 1
        close(provider)
