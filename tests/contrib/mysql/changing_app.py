"""The application of the tests that change the writer of a cluster: each handler writes to a log of
its own, and leaves an effect in the transaction that ends its slot.

CHANGES_LOG names the log, CHANGES_URL the application's own way to the database.
"""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

import sqlalchemy as sa

from slotwise import Every, JobContext, JobRegistry, Retry, job, task
from slotwise.demo.evidence import HandlerLog

LOG = HandlerLog(Path(os.environ.get("CHANGES_LOG", os.devnull)))
RETRY = Retry.exponential(max_attempts=20, initial="200ms", max_wait="1s")


@cache
def engine() -> sa.Engine:
    """No pool: each transaction goes where the proxy leads now."""
    url = sa.make_url(os.environ["CHANGES_URL"]).set(drivername="mysql+pymysql")
    return sa.create_engine(url, poolclass=sa.NullPool)


def work(ctx: JobContext, seconds: float) -> None:
    """Keep a guarded transaction open for so long; write an effect with the end of the slot."""
    with LOG.attempt(ctx), engine().begin() as own:
        ctx.guard(own)
        key = f"{ctx.name}/{ctx.id}/{ctx.slot}"
        own.execute(sa.text("INSERT INTO effects (name) VALUES (:key)"), {"key": key})
        time.sleep(seconds)
        ctx.complete_in(own)


def effect_job(number: int) -> object:
    @job(name=f"tick-{number}", schedule=Every("1s"), retry=RETRY)
    def tick(ctx: JobContext) -> None:
        work(ctx, 0.01)

    return tick


@job(name="open", schedule=Every("1s"), retry=RETRY)
def stays_open(ctx: JobContext) -> None:
    """A guarded transaction is open nearly always."""
    work(ctx, 1.2)


@job(name="strict", schedule=Every("1s"), on_lost="give_up")
def strict(ctx: JobContext) -> None:
    """Starts at most once for each slot."""
    with LOG.attempt(ctx):
        time.sleep(0.05)


@task(name="mail", retry=RETRY, concurrency=3)
def mail(ctx: JobContext) -> None:
    work(ctx, 0.02)


registry = JobRegistry(
    jobs=[*(effect_job(number) for number in range(4)), stays_open, strict],
    tasks=[mail],
)
