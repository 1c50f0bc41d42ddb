"""An `async def` job inside an asyncio application, with a session that is opened once for all
runs.

    python examples/async_job.py

prints

    opened the session
    fetched https://example.com/1
    fetched https://example.com/2
    closed the session
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from _database import database_url, make_tables

from slotwise import DistributedJob, Every, JobContext, JobRegistry


class Session:
    """A stand-in for an HTTP client, a connection pool, or a model in memory."""

    def __init__(self) -> None:
        self.pages = 0
        self.done = asyncio.Event()

    async def fetch(self) -> str:
        await asyncio.sleep(0.01)
        self.pages += 1
        if self.pages == 2:
            self.done.set()
        return f"https://example.com/{self.pages}"


@asynccontextmanager
async def lifespan() -> AsyncIterator[Session]:
    """Open the session in the loop that runs the handlers; close it after the last of them."""
    print("opened the session")
    yield Session()
    print("closed the session")


class Fetch(DistributedJob):
    name = "example-fetch"
    schedule = Every("1s")

    async def execute(self, ctx: JobContext) -> None:
        session: Session = ctx.state
        if not session.done.is_set():
            print("fetched", await session.fetch())


async def main() -> None:
    registry = JobRegistry(
        jobs=[Fetch()],
        lifespan=lifespan,
        database_url=database_url(),
        poll_interval="1s",
    )
    make_tables(registry)
    async with registry:  # handlers run on this loop; signals are left alone
        assert registry.worker is not None
        await asyncio.wait_for(registry.worker.state.done.wait(), timeout=30)


if __name__ == "__main__":
    asyncio.run(main())
