"""Commands that wait for a lock which somebody else's open transaction has, on PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import sqlalchemy as sa
from tests.kit.patience import PATIENCE
from tests.store.bench import Bench

WAITING = sa.text(
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND "
    "datname = current_database()"
)


def wait_until_blocked(bench: Bench, command: Future[Any] | None = None) -> None:
    """Until a transaction in this database waits for a lock. Raises if the command ends before."""
    deadline = time.monotonic() + PATIENCE
    with bench.database.main.connect().execution_options(
        isolation_level="AUTOCOMMIT"
    ) as look:
        while time.monotonic() < deadline:
            assert command is None or not command.done(), command.result()
            if look.scalar(WAITING):
                return
    raise AssertionError("no transaction waits for a lock")


def run_into_lock(
    bench: Bench, pool: ThreadPoolExecutor, command: Callable[[], Any]
) -> Future[Any]:
    """Start the command, and return when it waits for a lock."""
    started = pool.submit(command)
    wait_until_blocked(bench, started)
    return started
