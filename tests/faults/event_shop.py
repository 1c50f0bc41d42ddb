"""The application of the proof of events: one handler writes a line at each start, the other has
its effect in the same transaction as its success.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import sqlalchemy as sa

from slotwise import JobRegistry, Retry, TaskContext
from slotwise.contrib.events import Events

ENGINE = sa.create_engine(
    sa.make_url(os.environ.get("CAST_URL", "postgresql://")).set(
        drivername="postgresql+psycopg"
    ),
    pool_size=4,
)
SLOW = float(os.environ.get("CAST_SLOW", "0"))
LINE = sa.text("INSERT INTO lines (handler, key, step) VALUES (:handler, :key, :step)")
SOON = Retry.exponential(max_attempts=1_000, initial="100ms", max_wait="1s")

events = Events()


@dataclass(frozen=True)
class Moved:
    key: int
    step: int


def write(connection: sa.Connection, handler: str, data: Moved) -> None:
    connection.execute(LINE, {"handler": handler, "key": data.key, "step": data.step})


@events.on("moved", name="plain", retry=SOON, max_lost=1_000)
def plain(ctx: TaskContext[Moved]) -> None:
    with ENGINE.begin() as connection:
        write(connection, "plain", ctx.data)
    time.sleep(SLOW)


@events.on("moved", name="exact", retry=SOON, max_lost=1_000)
def exact(ctx: TaskContext[Moved]) -> None:
    with ENGINE.begin() as connection:
        write(connection, "exact", ctx.data)
        time.sleep(SLOW)
        ctx.complete_in(connection)


registry = events.attach(JobRegistry(tasks=events.tasks))
