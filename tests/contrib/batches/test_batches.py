"""Batches on each kind of connection: every row once, each batch in its own transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from tests.contrib.batches.shop import ELIGIBLE, Card, Proposal, Shop, make_cards

from slotwise import JobContext
from slotwise.contrib.batches import batches

UPDATE = "UPDATE proposals SET status = 'done' WHERE id = ANY(%s)"
INSERT = "INSERT INTO cards (proposal_id) SELECT unnest(%s::int[])"


def by_session(shop: Shop) -> Callable[[JobContext], object]:
    def execute(ctx: JobContext) -> None:
        for batch in batches(ctx, ELIGIBLE, shop.sessions, size=4):
            with batch as proposals:
                make_cards(batch.session, [*proposals])

    return execute


def by_engine(shop: Shop) -> Callable[[JobContext], object]:
    def execute(ctx: JobContext) -> None:
        wanted = sa.select(Proposal.id, Proposal.region).where(
            Proposal.status == "eligible"
        )
        for batch in batches(ctx, wanted, shop.engine, size=4):
            with batch as rows:
                ids = [row.id for row in rows]
                batch.connection.execute(
                    sa.insert(Card), [{"proposal_id": id} for id in ids]
                )
                change = sa.update(Proposal).where(Proposal.id.in_(ids))
                batch.connection.execute(change.values(status="done"))

    return execute


def by_psycopg(shop: Shop) -> Callable[[JobContext], object]:
    def execute(ctx: JobContext) -> None:
        wanted = "SELECT id, status FROM proposals WHERE status = %(status)s"
        for batch in batches(
            ctx,
            wanted,
            lambda: psycopg.connect(shop.url),
            key="id",
            size=4,
            values={"status": "eligible"},
        ):
            with batch as rows:
                ids = [row["id"] for row in rows]
                batch.connection.execute(INSERT, [ids])
                batch.connection.execute(UPDATE, [ids])

    return execute


def by_async_session(shop: Shop) -> Callable[[JobContext], object]:
    async def execute(ctx: JobContext) -> None:
        engine = create_async_engine(shop.engine.url)
        async for batch in batches(ctx, ELIGIBLE, async_sessionmaker(engine), size=4):
            async with batch as proposals:
                batch.session.add_all(Card(proposal_id=one.id) for one in proposals)
                for one in proposals:
                    one.status = "done"
        await engine.dispose()

    return execute


def by_async_engine(shop: Shop) -> Callable[[JobContext], object]:
    async def execute(ctx: JobContext) -> None:
        engine = create_async_engine(shop.engine.url)
        async for batch in batches(ctx, ELIGIBLE, engine, size=4):
            async with batch as rows:
                ids = [row.id for row in rows]
                cards = [{"proposal_id": id} for id in ids]
                await batch.connection.execute(sa.insert(Card), cards)
                change = sa.update(Proposal).where(Proposal.id.in_(ids))
                await batch.connection.execute(change.values(status="done"))
        await engine.dispose()

    return execute


def by_async_psycopg(shop: Shop) -> Callable[[JobContext], object]:
    @asynccontextmanager
    async def connect() -> AsyncIterator[psycopg.AsyncConnection]:
        async with await psycopg.AsyncConnection.connect(shop.url) as connection:
            yield connection

    async def execute(ctx: JobContext) -> None:
        wanted = "SELECT id FROM proposals WHERE status = 'eligible'"
        async for batch in batches(ctx, wanted, connect, key="id", size=4):
            async with batch as rows:
                ids = [row["id"] for row in rows]
                await batch.connection.execute(INSERT, [ids])
                await batch.connection.execute(UPDATE, [ids])

    return execute


KINDS = [
    by_session,
    by_engine,
    by_psycopg,
    by_async_session,
    by_async_engine,
    by_async_psycopg,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_row_is_processed_once(
    shop: Shop, kind: Callable[[Shop], Callable[[JobContext], object]]
) -> None:
    """In order, and then the slot succeeds."""
    shop.add(11)
    (ended,) = shop.run(kind(shop))
    assert ended.outcome == "succeeded", ended
    assert shop.carded() == [*range(1, 12)]
    assert shop.statuses() == {"done": [*range(1, 12)]}


def cursor_by_async_psycopg(shop: Shop) -> Callable[[JobContext], object]:
    @asynccontextmanager
    async def connect() -> AsyncIterator[psycopg.AsyncConnection]:
        async with await psycopg.AsyncConnection.connect(shop.url) as connection:
            yield connection

    async def execute(ctx: JobContext) -> None:
        wanted, order = "SELECT id, created_at FROM proposals", ["-created_at", "id"]
        found = batches(
            ctx,
            wanted,
            connect,
            key="id",
            order=order,
            size=4,
            cursor=True,
            total=True,
        )
        async for batch in found:
            async with batch as rows:
                ids = [row["id"] for row in rows]
                await batch.connection.execute(INSERT, [ids])
        assert (found.done, found.is_complete) == (11, True)

    return execute


def cursor_by_async_session(shop: Shop) -> Callable[[JobContext], object]:
    async def execute(ctx: JobContext) -> None:
        engine = create_async_engine(shop.engine.url)
        make = async_sessionmaker(engine)
        order = Proposal.created_at.desc()
        found = batches(
            ctx, sa.select(Proposal), make, order=order, size=4, cursor=True
        )
        async for batch in found:
            async with batch as proposals:
                batch.session.add_all(Card(proposal_id=one.id) for one in proposals)
        await engine.dispose()

    return execute


@pytest.mark.parametrize(
    "kind",
    [cursor_by_async_psycopg, cursor_by_async_session],
    ids=lambda kind: kind.__name__,
)
def test_a_cursor_is_awaited(
    shop: Shop, kind: Callable[[Shop], Callable[[JobContext], object]]
) -> None:
    shop.add(11)
    (ended,) = shop.run(kind(shop))
    assert ended.outcome == "succeeded", ended
    assert sorted(shop.carded()) == [*range(1, 12)]
