"""The demo's jobs. Each logs its starts and ends to a file, as evidence independent of the
ledger.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sysconfig
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path

import sqlalchemy as sa

from slotwise import DistributedJob, Every, JobContext, JobRegistry, Retry
from slotwise.demo.evidence import HandlerLog
from slotwise.spi import database_url

#: Where the demo keeps its files; the stage sets it for the workers.
HOME = "DEMO_HOME"

log = HandlerLog(Path(os.environ.get(HOME, ".")) / "handlers.log")

digests = sa.Table(
    "demo_digests",
    sa.MetaData(),
    sa.Column("path", sa.Text, primary_key=True),
    sa.Column("lines", sa.Integer, nullable=False),
    sa.Column("sha256", sa.Text, nullable=False),
)


class Tick(DistributedJob):
    """Each second, on whichever worker is free."""

    name = "tick"
    schedule = Every("1s")

    def execute(self, ctx: JobContext) -> None:
        with log.attempt(ctx):
            pass


class Flaky(DistributedJob):
    """Fails twice, then succeeds: three attempts of one slot."""

    name = "flaky"
    schedule = Every("6s")
    retry = Retry.exponential(max_attempts=4, initial=timedelta(milliseconds=200))

    def execute(self, ctx: JobContext) -> None:
        with log.attempt(ctx):
            if ctx.attempt <= 2:
                raise ConnectionError(
                    f"the mail server is busy (attempt {ctx.attempt})"
                )


class Report(DistributedJob):
    """Takes four seconds, so that its worker can be killed meanwhile; stops when it is
    cancelled.
    """

    name = "report"
    schedule = Every("8s")

    def execute(self, ctx: JobContext) -> None:
        with log.attempt(ctx):
            for _ in range(40):
                ctx.wait("100ms")
                ctx.check()


class Probe(DistributedJob):
    """An ``async def`` handler, on the worker's event loop."""

    name = "probe"
    schedule = Every("2s")

    async def execute(self, ctx: JobContext) -> None:
        with log.attempt(ctx):
            await asyncio.sleep(0.3)


class Payout(DistributedJob):
    """A payment: at most one start per slot, whatever happens to its worker."""

    name = "payout"
    schedule = Every("3s")
    on_lost = "give_up"

    def execute(self, ctx: JobContext) -> None:
        with log.attempt(ctx):
            ctx.wait("500ms")


class Digest(DistributedJob):
    """Digests the source of this Python's standard library, a batch per slot; work and settlement
    commit together.
    """

    name = "digest"
    schedule = Every("2s")
    batch = 40

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def execute(self, ctx: JobContext) -> None:
        with log.attempt(ctx), self._engine.begin() as connection:
            ctx.guard(connection)
            known = set(connection.scalars(sa.select(digests.c.path)))
            rows = [_digest(path) for path in islice(_new_files(known), self.batch)]
            if rows:
                connection.execute(digests.insert(), rows)
            ctx.complete_in(connection)


def _new_files(known: set[str]) -> Iterator[Path]:
    library = Path(sysconfig.get_paths()["stdlib"])
    return (path for path in sorted(library.rglob("*.py")) if str(path) not in known)


def _digest(path: Path) -> dict[str, object]:
    content = path.read_bytes()
    return {
        "path": str(path),
        "lines": content.count(b"\n"),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def make_registry() -> JobRegistry:
    """Return the registry, with the application's own engine for the job that needs one."""
    engine = sa.create_engine(
        database_url(os.environ.get("DATABASE_URL") or "sqlite://"),
        poolclass=sa.NullPool,
    )
    return JobRegistry(
        jobs=[Tick(), Flaky(), Report(), Probe(), Payout(), Digest(engine)]
    )


registry = make_registry()
