"""guard and complete_in with whatever an application opens its transactions with, waiting or
awaiting.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.kit.records import Succeeded
from tests.store.bench import Bench
from tests.store.conformance.test_guard import KINDS, LEVELS, User, claimed, pg_user

from slotwise import ClaimLost, ConfigurationError

__all__ = ["pg_user"]

EFFECT = "INSERT INTO effects VALUES ('done')"


class Door:
    """One way into the user's database: a transaction that has its snapshot, and what is done
    in it.
    """

    def __init__(
        self, connection: Any, execute: Callable[[str], Any], ending: Any
    ) -> None:
        self.connection, self._execute, self._ending = connection, execute, ending

    async def do(self, text: str) -> None:
        await _settled(self._execute(text))

    async def commit(self) -> None:
        await _settled(self._ending.commit())

    async def rollback(self) -> None:
        await _settled(self._ending.rollback())


async def _settled(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def address(user: User) -> sa.URL:
    return sa.make_url(str(user.bench.database.settings.database_url)).set(
        drivername="postgresql+psycopg"
    )


@asynccontextmanager
async def connection(user: User, level: str) -> AsyncIterator[Door]:
    with user.engine.connect().execution_options(isolation_level=level) as own:
        yield Door(own, lambda text: own.execute(sa.text(text)), own)


@asynccontextmanager
async def session(user: User, level: str) -> AsyncIterator[Door]:
    with Session(user.engine.execution_options(isolation_level=level)) as own:
        yield Door(own, lambda text: own.execute(sa.text(text)), own)


@asynccontextmanager
async def async_connection(user: User, level: str) -> AsyncIterator[Door]:
    engine = create_async_engine(
        address(user), isolation_level=level, poolclass=sa.NullPool
    )
    async with engine.connect() as own:
        yield Door(own, lambda text: own.execute(sa.text(text)), own)


@asynccontextmanager
async def async_session(user: User, level: str) -> AsyncIterator[Door]:
    engine = create_async_engine(
        address(user), isolation_level=level, poolclass=sa.NullPool
    )
    async with AsyncSession(engine) as own:
        yield Door(own, lambda text: own.execute(sa.text(text)), own)


@asynccontextmanager
async def psycopg_connection(user: User, level: str) -> AsyncIterator[Door]:
    with psycopg.connect(
        address(user).set(drivername="postgresql").render_as_string(False)
    ) as own:
        own.isolation_level = psycopg.IsolationLevel[level.replace(" ", "_")]
        yield Door(own, lambda text: own.execute(text), own)  # type: ignore[arg-type]


@asynccontextmanager
async def psycopg_async(user: User, level: str) -> AsyncIterator[Door]:
    url = address(user).set(drivername="postgresql").render_as_string(False)
    async with await psycopg.AsyncConnection.connect(url) as own:
        await own.set_isolation_level(psycopg.IsolationLevel[level.replace(" ", "_")])
        yield Door(own, lambda text: own.execute(text), own)  # type: ignore[arg-type]


Open = Callable[[User, str], AbstractAsyncContextManager[Door]]
DOORS: list[Open] = [
    connection,
    session,
    async_connection,
    async_session,
    psycopg_connection,
    psycopg_async,
]
FIRST: list[Open] = [connection, async_session, psycopg_async]
doors = pytest.mark.parametrize(
    "door",
    [
        pytest.param(
            door, id=door.__name__, marks=[] if door in FIRST else pytest.mark.extended
        )
        for door in DOORS
    ],
)
levels = pytest.mark.parametrize("level", LEVELS)
verbs = pytest.mark.parametrize("verb", ["guard", "complete_in"])


@pytest.mark.extended
@doors
@levels
@verbs
@pytest.mark.parametrize("kind", KINDS)
def test_work_commits_after_a_heartbeat(
    pg_user: User, door: Open, level: str, verb: str, kind: str
) -> None:
    """A heartbeat between snapshot and guard, and one under the guard, do no harm."""
    user, claim = pg_user, claimed(pg_user, kind)

    async def work() -> None:
        async with door(user, level) as own:
            await own.do("SELECT count(*) FROM effects")
            _beat(user.bench, claim)
            await _settled(getattr(user.fence, verb)(claim, own.connection))
            await own.do(EFFECT)
            _beat(user.bench, claim)
            await own.commit()

    asyncio.run(work())
    transition = user.bench.settle(claim, Succeeded(promised=verb == "complete_in"))
    assert transition is not None
    assert (transition.label, user.effects) == ("succeeded", 1)


@verbs
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("isolation", ["SERIALIZABLE", "AUTOCOMMIT"])
def test_an_async_connection_to_sqlite(
    sqlite_bench: Bench, verb: str, kind: str, isolation: str
) -> None:
    """aiosqlite's is awaited as any other; one that commits each statement by itself is refused in
    one line.
    """
    pytest.importorskip("aiosqlite")
    user = User(sqlite_bench)
    claim = claimed(user, kind)
    engine = create_async_engine(
        sa.make_url(str(sqlite_bench.database.settings.database_url)).set(
            drivername="sqlite+aiosqlite"
        ),
        isolation_level=isolation,
    )

    async def work() -> None:
        async with engine.begin() as own:
            await getattr(user.fence, verb)(claim, own)
            await own.execute(sa.text(EFFECT))

    async def close() -> None:
        await engine.dispose()

    if isolation == "AUTOCOMMIT":
        with pytest.raises(
            ConfigurationError, match="commits every statement by itself"
        ):
            asyncio.run(work())
        assert user.effects == 0
    else:
        asyncio.run(work())
        transition = sqlite_bench.settle(
            claim, Succeeded(promised=verb == "complete_in")
        )
        assert transition is not None
        assert (transition.label, user.effects) == ("succeeded", 1)
    asyncio.run(close())
    user.engine.dispose()


def _beat(bench: Bench, claim: Any) -> None:
    bench.tick(0.2)
    assert bench.store.held.beat(claim.holder, [claim]) == set()


@pytest.mark.extended
@doors
@levels
@verbs
def test_a_take_over_is_seen(pg_user: User, door: Open, level: str, verb: str) -> None:
    """Between the snapshot and the guard somebody else got the slot: nothing of this transaction
    stays.
    """
    user, claim = pg_user, claimed(pg_user)

    async def work() -> None:
        async with door(user, level) as own:
            await own.do(EFFECT)
            user.bench.take_over(claim)
            user.bench.claim_one("plain", "host:2:b")
            with pytest.raises(ClaimLost):
                await _settled(getattr(user.fence, verb)(claim, own.connection))
            await own.rollback()

    asyncio.run(work())
    assert user.effects == 0


@doors
def test_work_and_success_are_rolled_back_together(pg_user: User, door: Open) -> None:
    """The promise was not kept: the attempt failed."""
    user, claim = pg_user, claimed(pg_user)

    async def work() -> None:
        async with door(user, "READ COMMITTED") as own:
            await _settled(user.fence.complete_in(claim, own.connection))
            await own.do(EFFECT)
            await own.rollback()

    asyncio.run(work())
    transition = user.bench.settle(claim, Succeeded(promised=True))
    assert transition is not None
    assert (transition.label, user.effects) == ("failed", 0)


def test_autocommit_of_psycopg_is_refused_outside_of_a_transaction(
    pg_user: User,
) -> None:
    """Within ``with connection.transaction()`` it is a transaction like any other."""
    claim = claimed(pg_user)
    url = address(pg_user).set(drivername="postgresql").render_as_string(False)
    with psycopg.connect(url, autocommit=True) as own:
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            pg_user.fence.guard(claim, own)
        with own.transaction():
            pg_user.fence.complete_in(claim, own)
            own.execute(EFFECT)
    assert pg_user.bench.slot("plain")["outcome"] == "succeeded"


def test_psycopg_in_a_database_without_the_tables(
    pg_user: User, pg_empty_url: str
) -> None:
    """It is told as with SQLAlchemy's connections."""
    claim = claimed(pg_user)
    url = (
        sa.make_url(pg_empty_url).set(drivername="postgresql").render_as_string(False)
    )
    with (
        psycopg.connect(url) as own,
        pytest.raises(ConfigurationError, match="does not reach scheduled_meta"),
    ):
        pg_user.fence.guard(claim, own)
