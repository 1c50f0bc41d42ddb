"""Where the handlers of these tests write, past slotwise: a log, lines between those of the
worker, a table.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from slotwise import JobContext
from slotwise.demo.evidence import HandlerLog

LOG = HandlerLog(Path(os.environ.get("CAST_LOG", os.devnull)))


def tell(event: str, **facts: Any) -> None:
    """A line of our own between those of the worker, in one write."""
    os.write(
        sys.stderr.fileno(), json.dumps({"event": event, **facts}).encode() + b"\n"
    )


def first_in_cluster(what: str) -> bool:
    """Whether nobody was here before, in any process of this test."""
    try:
        os.close(os.open(f"{LOG.path}.{what}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


@contextmanager
def attempt(ctx: JobContext) -> Iterator[bool]:
    """Around a handler's work, as the log's; gives whether nobody was here before.

    That is asked before the start is written down: whoever has read of it may freeze this process
    at once, and the next attempt would be the first.
    """
    is_first = first_in_cluster(ctx.name)
    with LOG.attempt(ctx):
        yield is_first


def wait_for_release(ctx: JobContext) -> None:
    """Until the test says ``release(job)``, listening to nobody."""
    while not Path(f"{LOG.path}.{ctx.name}.released").exists():
        time.sleep(0.02)


def wait_until_released(ctx: JobContext, number: int) -> None:
    """Until the test says ``release(job, up_to)`` with this number or a higher one, listening to
    nobody.
    """
    told = Path(f"{LOG.path}.{ctx.name}.released")
    while not told.exists() or int(told.read_text()) < number:
        time.sleep(0.02)


@cache
def engine() -> sa.Engine:
    """The application's own connections, past whatever stands between the worker and the
    database.
    """
    url = sa.make_url(os.environ["CAST_URL"]).set(drivername="postgresql+psycopg")
    return sa.create_engine(url, pool_size=2, pool_pre_ping=True)


def leave_effect(connection: sa.Connection, job: str, key: str, token: int) -> None:
    """The work: one row."""
    insert = sa.text(
        "insert into effects (job, key, token) values (:job, :key, :token)"
    )
    connection.execute(insert, {"job": job, "key": key, "token": token})
