"""A FastAPI application: a request inserts an order and schedules its mail in one transaction.

    cd examples/fastapi_shop
    export DATABASE_URL=postgresql://me@localhost/mine
    slotwise db upgrade
    uvicorn main:app --workers 2
    curl -X POST 'http://localhost:8000/orders?email=ann@example.com'
    curl http://localhost:8000/orders

Each process of uvicorn runs a worker, and async handlers run on its loop.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import sqlalchemy as sa
from fastapi import Depends, FastAPI
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from slotwise import Every, JobContext, JobRegistry, TaskContext, job, task
from slotwise.contrib.fastapi import SlotwiseClient, health_router, slotwise_lifespan

engine = create_async_engine(
    sa.make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg")
)
orders = sa.Table(
    "orders",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("email", sa.String, nullable=False),
    sa.Column("is_mailed", sa.Boolean, nullable=False, default=False),
)


@task(name="send-mail")
async def send_mail(ctx: TaskContext[dict[str, int]]) -> None:
    """Mark the order in the transaction that completes the task: exactly once."""
    async with engine.begin() as connection:
        await connection.execute(
            sa.update(orders)
            .where(orders.c.id == ctx.data["order"])
            .values(is_mailed=True)
        )
        await ctx.complete_in(connection)


@job(name="forgotten-orders", schedule=Every("1h"))
async def forgotten_orders(ctx: JobContext) -> None:
    async with engine.connect() as connection:
        count = await connection.scalar(
            sa.select(sa.func.count()).where(~orders.c.is_mailed)
        )
    ctx.log.info("%s orders have no mail", count)


registry = JobRegistry(jobs=[forgotten_orders], tasks=[send_mail])


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The application's own lifespan."""
    async with engine.begin() as connection:
        await connection.execute(
            sa.text("SELECT pg_advisory_xact_lock(1)")
        )  # several processes start at once
        await connection.run_sync(orders.metadata.create_all)
    yield
    await engine.dispose()


app = FastAPI(lifespan=slotwise_lifespan(registry, lifespan=lifespan))
app.include_router(health_router())


async def transaction() -> AsyncIterator[AsyncConnection]:
    """The transaction of a request."""
    async with engine.begin() as connection:
        yield connection


Transaction = Annotated[AsyncConnection, Depends(transaction, scope="function")]


@app.post("/orders")
async def create(email: str, client: SlotwiseClient, connection: Transaction) -> int:
    id = (
        await connection.execute(
            sa.insert(orders).values(email=email).returning(orders.c.id)
        )
    ).scalar_one()
    await client.aio.schedule(send_mail, {"order": id}, connection=connection)
    return id


@app.get("/orders")
async def list_orders(connection: Transaction) -> list[dict[str, object]]:
    found = await connection.execute(sa.select(orders).order_by(orders.c.id))
    return [dict(row) for row in found.mappings()]
