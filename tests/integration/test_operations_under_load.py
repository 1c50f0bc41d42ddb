"""Operations beside a cluster at work: no deadlock comes up, and the laws hold."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tests.kit.store import Store

from slotwise import ConfigurationError, Every, JobContext, JobRegistry, Overlap, job
from slotwise.spi import Database

pytestmark = pytest.mark.extended

JOBS, OPERATORS, SECONDS, ENOUGH = 20, 4, 8.0, 30

_runs: Counter[tuple[str, datetime]] = Counter()
_turn = threading.Lock()


def a_job(number: int) -> Any:
    policies = {"overlap": Overlap.allow(max=2)} if number % 3 == 0 else {}

    @job(
        name=f"busy-{number}",
        schedule=Every("1s"),
        on_lost="give_up" if number % 2 else "rerun",
        **policies,
    )
    def busy(ctx: JobContext) -> None:
        with _turn:
            _runs[ctx.name, ctx.slot] += 1
        ctx.wait(timedelta(seconds=random.random() / 2))
        ctx.check()

    return busy


def give_operations(registry: JobRegistry, until: float, seed: int) -> Counter[str]:
    """Whatever comes to an operator's mind; what cannot be done is said in one line, and nothing
    else may happen.

    A machine that is busy takes longer for as many.
    """
    dice, done = random.Random(seed), Counter[str]()
    operations = registry.client.operations.by(f"operator-{seed}")
    while time.monotonic() < until or done.total() < ENOUGH:
        name = f"busy-{dice.randrange(JOBS)}"
        now = datetime.now(UTC)
        requests = {
            "pause": lambda name=name: operations.pause(name),
            "resume": lambda name=name: operations.resume(
                name, replay=dice.random() < 0.3
            ),
            "trigger": lambda name=name: operations.trigger(
                name, overlap=dice.choice(["beside", "queue", "skip"])
            ),
            "skip_next": lambda name=name: operations.skip_next(name),
            "cancel": lambda name=name: operations.cancel(name),
            "backfill": lambda name=name, now=now: operations.backfill(
                name, now - timedelta(seconds=6), now, concurrency=2, failed=True
            ),
            "pause-all": lambda: (
                operations.pause_all(),
                time.sleep(0.1),
                operations.resume_all(),
            ),
        }
        word = dice.choices(list(requests), [3, 6, 4, 3, 2, 2, 1])[0]
        try:
            requests[word]()  # type: ignore[no-untyped-call]
            done[word] += 1
        except ConfigurationError:
            done["refused"] += 1
    return done


def test_operations_beside_a_cluster_at_work(pg_url: str) -> None:
    """Two workers, four operators: all operations are carried out, every slot is accounted for,
    none starts twice.
    """
    _runs.clear()
    settings: dict[str, Any] = {
        "database_url": pg_url,
        "heartbeat_interval": "2s",  # an operator waits half of it for a locked row
        "poll_interval": "300ms",
        "threads": 20,
        "process_hook": False,
    }
    registries = [
        JobRegistry(jobs=[a_job(number) for number in range(JOBS)], **settings)
        for _ in range(2)
    ]
    with registries[0], registries[1], ThreadPoolExecutor(OPERATORS) as operators:
        until = time.monotonic() + SECONDS
        done = sum(
            operators.map(
                lambda seed: give_operations(registries[seed % 2], until, seed),
                range(OPERATORS),
            ),
            Counter(),
        )
        operations = registries[0].client.operations
        operations.resume_all()
        for number in range(JOBS):
            operations.resume(f"busy-{number}")
    assert set(done) >= {"pause", "resume", "trigger", "skip_next", "backfill"}
    database = Database(registries[0].settings)
    store = Store(database, {})
    slots, tasks = store.tables.slots, store.tables.tasks
    with store.transaction() as connection:
        attempts = {
            (row.task_name, row.slot.astimezone(UTC)): row.attempts
            for row in connection.execute(
                sa.select(slots.c.task_name, slots.c.slot, slots.c.attempts)
            )
        }
        held = connection.scalar(sa.select(sa.func.count()).where(tasks.c.picked))
        stuck = connection.scalar(
            sa.select(sa.func.count()).where(
                tasks.c.state.is_not(None), tasks.c.state != "queued"
            )
        )
        running = connection.execute(
            sa.select(slots).where(slots.c.outcome == "running")
        ).all()
    database.close()
    assert (held, stuck, running) == (0, 0, [])
    assert {key for key in _runs if key not in attempts} == set()
    twice = {
        key
        for key, count in _runs.items()
        if count > 1 and int(key[0].rpartition("-")[2]) % 2
    }
    assert twice == set(), "a job that gives up has started a slot twice"
