"""Mistakes are refused at construction, in one line with the value and the remedy."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
import sqlalchemy as sa
from tests.contrib.locks.servers import RedisServer, eventually

from slotwise import ConfigurationError, InvalidSetting
from slotwise.contrib.advisory.gate import AdvisoryGate
from slotwise.locks import Lock, LockNotAcquired, LockUnavailable, RedisLocks, SQLLocks
from slotwise.spi import database_url

FILE = "sqlite:///locks.db"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": ""}, "1 to 64 printable"),
        ({"name": "x" * 65}, "1 to 64 printable"),
        ({"name": "a\nb"}, "1 to 64 printable"),
        ({"at_most_for": "0s"}, "at least 1ms"),
        ({"at_most_for": 5}, "no unit"),
        ({"at_least_for": "2h"}, "longer than at_most_for"),
        ({"keep_alive": "yes"}, "keep_alive='yes' is not a bool; write True or False"),
        ({"on_lost": "x"}, "on_lost='x' cannot be called; pass a function"),
        ({"provider": "postgresql://host/db"}, "not a LockProvider"),
    ],
    ids=str,
)
def test_a_lock_refuses(options: dict[str, object], words: str) -> None:
    """Names that ShedLock's column does not hold, impossible durations, and a provider that is
    none.
    """
    given: dict[str, object] = {
        "name": "a",
        "at_most_for": "1h",
        "provider": SQLLocks(FILE),
        **options,
    }
    with pytest.raises(InvalidSetting, match=re.escape(words)) as caught:
        Lock(given.pop("name"), **given)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_generator_is_refused() -> None:
    """The lock would be released before its body runs."""

    def numbers() -> Iterator[int]:
        yield 1

    with pytest.raises(ConfigurationError, match="generator"):
        Lock("a", at_most_for="1h", provider=SQLLocks(FILE))(numbers)


@pytest.mark.parametrize("value", [3, dict, {}, "report"], ids=str)
def test_what_is_no_function_is_refused(value: Any) -> None:
    """A class makes an object, which works after the lock was released."""
    with pytest.raises(
        ConfigurationError, match=r"lock a: .* is not a function; decorate a function"
    ) as caught:
        Lock("a", at_most_for="1h", provider=SQLLocks(FILE))(value)
    assert "\n" not in str(caught.value)


def test_an_object_that_is_called(tmp_path: Path) -> None:
    """Its lock is held until its ``__call__`` has ended, sync or async; a generator is refused, as
    a function is.
    """
    with closing(SQLLocks(f"sqlite:///{tmp_path / 'locks.db'}")) as provider:
        provider.create_table()
        lock = Lock("a", at_most_for="1h", provider=provider)

        class Waits:
            async def __call__(self) -> int:
                await asyncio.sleep(0)
                lock.assert_held()
                return lock.token

        class Works:
            def __call__(self) -> int:
                lock.assert_held()
                return lock.token

        class Yields:
            def __call__(self) -> Iterator[int]:
                yield 1

        assert asyncio.run(lock(Waits())())  # type: ignore[arg-type, var-annotated]
        assert lock(Works())()
        with lock:
            assert lock(Works())() is None
            assert asyncio.run(lock(Waits())()) is None  # type: ignore[arg-type, var-annotated]
        with pytest.raises(
            ConfigurationError, match=r"Yields.* is a generator; lock inside of it"
        ):
            lock(Yields())


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        (FILE, {"table": "shed-lock"}, "not a plain name"),
        (FILE, {"table": "a; DROP TABLE b"}, "not a plain name"),
        (FILE, {"table": "a.b.c"}, "not a plain name"),
        (FILE, {"table": ""}, "not a plain name"),
        (FILE, {"timeout": "1ms"}, "at least 10ms"),
        ("sqlite://", {}, "a database file"),
        ("sqlite:///:memory:", {}, "a database file"),
        ("mongodb://host/db", {}, "not supported"),
    ],
    ids=str,
)
def test_sql_refuses(url: str, options: dict[str, str], words: str) -> None:
    """Table names that nobody writes without quotes, and databases that processes cannot share."""
    with pytest.raises(InvalidSetting, match=re.escape(words)) as caught:
        SQLLocks(url, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://host/0?retries=3", "unknown option 'retries'"),
        ("redis://host/0?socket_timeout=3", "unknown option 'socket_timeout'"),
        ("redis://host/0?db", "not the address"),
        ("redis://host/zero", "'zero' is not a number"),
        (
            "redis://host:port/0",
            "redis://host:port/0: the port is not a number up to 65535; write redis",
        ),
        ("redis://host/0#x", "not the address"),
        ("http://host/0", "not the address"),
        ("", "not the address"),
        (None, "not the address"),
        ("redis://me:secret@host/zero", "not a number"),
    ],
)
def test_redis_refuses(url: str, words: str) -> None:
    """An option that the client would ignore, and a database that it would replace by 0."""
    with pytest.raises(InvalidSetting, match=re.escape(words)) as caught:
        RedisLocks(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://host?db=zero", "'db'"),
        ("redis://me:secret@host?protocol=9", "protocol"),
        ("redis://host/0?ssl_cert_reqs=required", "ssl_cert_reqs"),
        ("rediss://host/0?ssl_cert_reqs=perhaps", "perhaps"),
    ],
)
def test_redis_values_of_options_are_checked(url: str, words: str) -> None:
    """The client's own check of a value is one line of ours; no acquisition is the first to
    find it.
    """
    with pytest.raises(InvalidSetting, match=words) as caught:
        RedisLocks(url)
    assert re.fullmatch(
        r"rediss?://\S+: .+; write redis://user:password@host:6379/0",
        str(caught.value),
    )
    assert "secret" not in str(caught.value)


@pytest.mark.extended
def test_a_redis_cluster_is_refused(short_path: Path) -> None:
    """A key of another node is no outage: the message says that the address is a cluster's, and
    the cure.
    """
    with ExitStack() as stack:
        nodes = [stack.enter_context(cluster_node(short_path / name)) for name in "ab"]
        clients = [stack.enter_context(redis.Redis(port=port)) for port, _ in nodes]
        for client, (first, last) in zip(
            clients, ((0, 8191), (8192, 16_383)), strict=True
        ):
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        clients[1].execute_command("CLUSTER", "SET-CONFIG-EPOCH", 2)
        clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", *nodes[1])
        eventually(
            lambda: "ok" in str(clients[0].execute_command("CLUSTER", "INFO"))[:40],
            "the cluster is up",
        )
        provider = RedisLocks(f"redis://127.0.0.1:{nodes[0][0]}")
        acquired, refused = 0, list[str]()
        for number in range(12):
            try:
                with Lock(f"lock-{number}", at_most_for="1h", provider=provider):
                    acquired += 1
            except ConfigurationError as error:
                refused.append(str(error))
        assert acquired + len(refused) == 12
        assert refused
        assert all(
            line.endswith("; name a server that is no cluster") for line in refused
        )
        provider.close()


@contextmanager
def cluster_node(folder: Path) -> Iterator[tuple[int, int]]:
    """A node: its port for clients, and its port for other nodes."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, bus = one.getsockname()[1], other.getsockname()[1]
    folder.mkdir()
    options = [
        "--port",
        str(port),
        "--cluster-port",
        str(bus),
        "--cluster-enabled",
        "yes",
        "--save",
        "",
    ]
    process = subprocess.Popen(
        ["redis-server", *options], cwd=folder, stdout=subprocess.DEVNULL
    )
    try:
        with redis.Redis(port=port) as client:
            eventually(lambda: answers(client), "the node answers")
        yield port, bus
    finally:
        process.kill()
        process.wait()


def answers(client: redis.Redis) -> bool:
    with suppress(redis.ConnectionError):
        return bool(client.ping())
    return False


def test_parts_of_a_key() -> None:
    """The parts of ShedLock's key are strings that people can read."""
    with pytest.raises(InvalidSetting, match="environment"):
        RedisLocks("redis://host", environment="")


def test_missing_table(pg_empty_url: str) -> None:
    """Without the table, the first use says how to create it; then it works."""
    provider = SQLLocks(pg_empty_url)
    lock = Lock("a", at_most_for="1h", provider=provider)
    with pytest.raises(
        ConfigurationError, match=r"shedlock does not exist.*create_table"
    ):
        lock.acquire()
    provider.create_table()
    provider.create_table()
    lock.acquire().release()
    provider.close()


def test_missing_file_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """So for SQLite; and the log does not call it an outage of the server."""
    with pytest.raises(ConfigurationError, match="shedlock does not exist"):
        Lock(
            "a", at_most_for="1h", provider=SQLLocks(f"sqlite:///{tmp_path}/a.db")
        ).acquire()
    (record,) = caplog.records
    assert "cannot be used; no lock is acquired until it can: " in record.getMessage()
    assert "table shedlock does not exist" in record.getMessage()
    assert "does not answer" not in record.getMessage()


def test_who_holds_the_lock(tmp_path: Path) -> None:
    """A second acquisition is told that this process is in its own way. Another provider stands
    for another process.
    """
    url = f"sqlite:///{tmp_path}/a.db"
    provider, other = SQLLocks(url), SQLLocks(url)
    provider.create_table()
    lock, theirs = (
        Lock("a", at_most_for="1h", provider=one) for one in (provider, other)
    )
    with (
        lock,
        pytest.raises(
            LockNotAcquired,
            match="lock a is held by this process already, and is not re-entrant",
        ),
    ):
        lock.acquire()
    with (
        theirs,
        pytest.raises(LockNotAcquired, match=r"lock a is held by another process$"),
    ):
        lock.acquire()
    kept = Lock("a", at_most_for="1h", at_least_for="1h", provider=provider)
    kept.acquire().release()
    with pytest.raises(
        LockNotAcquired,
        match="lock a is held by another process, or kept by at_least_for",
    ):
        kept.acquire()
    provider.close()
    other.close()


def test_extend_by_nothing(tmp_path: Path) -> None:
    """It would end the lock without a release; the lease stays as it was."""
    provider = SQLLocks(f"sqlite:///{tmp_path}/a.db")
    provider.create_table()
    with Lock("a", at_most_for="1h", provider=provider) as lease:
        with pytest.raises(
            InvalidSetting, match=r"extend\('0s'\) is too short; write at least 1ms"
        ):
            lease.extend("0s")
        lease.assert_held()
    provider.close()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            "name text PRIMARY KEY, lock_until timestamp, locked_at timestamp",
            "has no column locked_by",
        ),
        (
            "name text PRIMARY KEY, lock_until timestamptz, locked_at timestamp, locked_by text",
            "column lock_until of table shedlock is timestamp with time zone: "
            "ShedLock writes UTC without a zone; "
            'run ALTER TABLE "shedlock" ALTER COLUMN lock_until TYPE timestamp '
            "USING lock_until AT TIME ZONE 'UTC'$",
        ),
    ],
)
def test_another_table(pg_empty_url: str, columns: str, words: str) -> None:
    """A table that ShedLock's statements would misread is refused."""
    with psycopg.connect(pg_empty_url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE shedlock ({columns})")
    provider = SQLLocks(pg_empty_url)
    with pytest.raises(ConfigurationError, match=words):
        Lock("a", at_most_for="1h", provider=provider).acquire()
    provider.close()


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
@pytest.mark.parametrize(
    ("table", "quoted"),
    [("user", '"user"'), ("Order", '"order"'), ("app.TABLE", 'app."table"')],
)
def test_a_keyword_as_a_table(
    kind: str, table: str, quoted: str, pg_empty_url: str, tmp_path: Path
) -> None:
    """Names are quoted as the server would read them, so a keyword works; a statement with quotes
    finds the table.
    """
    if kind == "sqlite":
        url, quoted = f"sqlite:///{tmp_path}/a.db", quoted.replace("app.", "main.")
        table = table.replace("app.", "main.")
    else:
        url = pg_empty_url
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA app")
    provider = SQLLocks(url, table=table)
    with pytest.raises(ConfigurationError, match="does not exist"):
        Lock("a", at_most_for="1h", provider=provider).acquire()
    provider.create_table()
    with Lock("a", at_most_for="1h", provider=provider) as lease:
        lease.extend()
        lease.assert_held()
        engine = sa.create_engine(database_url(url))
        with engine.connect() as theirs:
            assert (
                theirs.exec_driver_sql(f"SELECT locked_by FROM {quoted}").scalar()
                == lease.holder
            )
        engine.dispose()
    provider.close()


def test_table_in_a_schema(pg_empty_url: str) -> None:
    """A table may have a schema, and its columns whole seconds only; tokens rise strictly
    nevertheless.
    """
    with psycopg.connect(pg_empty_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA app")
        connection.execute(
            "CREATE TABLE app.locks (name varchar(64) PRIMARY KEY, lock_until "
            "timestamp(0) NOT NULL, "
            "locked_at timestamp(0) NOT NULL, locked_by varchar(255) NOT NULL)"
        )
    provider = SQLLocks(pg_empty_url, table="app.locks")
    lock, tokens = Lock("a", at_most_for="1h", provider=provider), []
    for _ in range(3):
        with lock.acquire(wait="20s") as lease:
            tokens.append(lease.token)
    assert tokens == sorted(set(tokens))
    provider.close()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            "schema",
            r'schema "nowhere" does not exist.*; create it first: CREATE SCHEMA "nowhere"',
        ),
        (
            "database",
            r'database "nowhere" does not exist; create the database, or correct its name',
        ),
        ("option", r"invalid connection option .*; correct the options"),
        (
            "directory",
            r"unable to open database file; create the directory \S+/nowhere",
        ),
    ],
)
def test_a_table_that_cannot_be_created(
    kind: str, words: str, pg_empty_url: str, tmp_path: Path
) -> None:
    """One line with the address and the cure, whatever the driver raises."""
    address = database_url(pg_empty_url)
    url = {
        "database": address.set(database="nowhere").render_as_string(
            hide_password=False
        ),
        "option": address.update_query_dict({"nowhere": "1"}).render_as_string(
            hide_password=False
        ),
        "directory": f"sqlite:///{tmp_path}/nowhere/a.db",
    }.get(kind, pg_empty_url)
    provider = SQLLocks(
        url, table="nowhere.shedlock" if kind == "schema" else "shedlock"
    )
    with pytest.raises(ConfigurationError, match=words) as caught:
        provider.create_table()
    assert "\n" not in str(caught.value)
    provider.close()


def test_a_table_on_a_server_that_is_down() -> None:
    """It is an outage, as for an acquisition."""
    with pytest.raises(LockUnavailable, match=r"127\.0\.0\.1:1/none") as caught:
        SQLLocks("postgresql://127.0.0.1:1/none").create_table()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("name varchar(64), locked_by varchar(255)", r"ADD PRIMARY KEY \(name\)"),
        (
            "name varchar(64) PRIMARY KEY, locked_by varchar(5)",
            "widen locked_by of table shedlock",
        ),
        (
            "name varchar(2) PRIMARY KEY, locked_by varchar(255)",
            "widen name of table shedlock",
        ),
    ],
)
def test_a_table_that_refuses_the_lock(
    columns: str, words: str, pg_empty_url: str
) -> None:
    """It is no outage: a wait ends at once."""
    with psycopg.connect(pg_empty_url, autocommit=True) as connection:
        connection.execute(
            f"CREATE TABLE shedlock(lock_until timestamp, locked_at timestamp, {columns})"
        )
    provider = SQLLocks(pg_empty_url)
    with pytest.raises(ConfigurationError, match=words) as caught:
        Lock("cleanup", at_most_for="1h", provider=provider).acquire(wait="1m")
    assert "\n" not in str(caught.value)
    provider.close()


def test_redis_refuses_a_lock(redis_server: RedisServer) -> None:
    """A key of another type and a database that the server lacks are no outages: a wait ends at
    once.
    """
    with redis.Redis.from_url(redis_server.url) as client:
        client.rpush("job-lock:default:listed", "a")
    provider, other = (
        RedisLocks(redis_server.url),
        RedisLocks(f"{redis_server.url}?db=999"),
    )
    with pytest.raises(
        ConfigurationError,
        match=r"WRONGTYPE.*'job-lock:default:listed' or its token is not a string",
    ):
        Lock("listed", at_most_for="1h", provider=provider).acquire(wait="1m")
    with pytest.raises(
        ConfigurationError, match="out of range; choose a database that the server has"
    ):
        Lock("listed", at_most_for="1h", provider=other).acquire(wait="1m")
    provider.close()
    other.close()


@pytest.mark.parametrize("protocol", ["", "?protocol=2", "?protocol=3"])
def test_redis_without_its_password(redis_server: RedisServer, protocol: str) -> None:
    """No outage: a wait ends at once, with the cure, whatever greets the server."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.config_set("requirepass", "secret")
        with closing(RedisLocks(redis_server.url + protocol)) as provider:
            try:
                with pytest.raises(
                    ConfigurationError,
                    match=r"; write user and password into the address$",
                ) as caught:
                    Lock("a", at_most_for="1h", provider=provider).acquire(wait="5s")
            finally:
                client.config_set("requirepass", "")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", [None, "", " ", 5])
def test_no_address(url: Any) -> None:
    """A constructor reads neither the environment nor a file, so the cure names neither."""
    with pytest.raises(
        InvalidSetting, match=rf"^SQLLocks\({url!r}\): pass a database URL"
    ):
        SQLLocks(url)
    with pytest.raises(
        InvalidSetting, match=rf"^AdvisoryGate\({url!r}\): pass a database URL"
    ):
        AdvisoryGate(url, {})


def test_a_duration_is_named(tmp_path: Path) -> None:
    """The error has the argument, and the lock if there is one."""
    url = f"sqlite:///{tmp_path}/a.db"
    provider = SQLLocks(url)
    provider.create_table()
    lock = Lock("a", at_most_for="1h", provider=provider)
    with lock as lease:
        calls: dict[str, Callable[[], object]] = {
            "lock a: at_most_for": lambda: Lock(
                "a", at_most_for="soon", provider=provider
            ),
            "lock a: at_least_for": lambda: Lock(
                "a", at_most_for="1h", at_least_for="soon", provider=provider
            ),
            "lock a: wait": lambda: lock.acquire("soon"),
            "lock a: extend": lambda: lease.extend("soon"),
            "SQLLocks: timeout": lambda: SQLLocks(url, timeout="soon"),
            "RedisLocks: timeout": lambda: RedisLocks("redis://host", timeout="soon"),
            "AdvisoryGate: timeout": lambda: AdvisoryGate(
                "postgresql://host/a", {}, timeout="soon"
            ),
            "AdvisoryGate: check_every": lambda: AdvisoryGate(
                "postgresql://host/a", {}, check_every="soon"
            ),
            "AdvisoryGate: hold_at_least": lambda: AdvisoryGate(
                "postgresql://host/a", {}, hold_at_least="soon"
            ),
        }
        for place, call in calls.items():
            with pytest.raises(InvalidSetting, match=f"^{place}: .*soon"):
                call()
    provider.close()


def test_empty_strings_for_redis() -> None:
    """The error shows an empty address, and says that a part of the key is empty."""
    with pytest.raises(
        InvalidSetting, match=r"^'' is not the address of a Redis server"
    ):
        RedisLocks("")
    with pytest.raises(
        InvalidSetting, match=r"^RedisLocks: environment must not be empty"
    ):
        RedisLocks("redis://host", environment="")
