"""A worker that was not started, on SQLite, under a clock that stands still."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tests.kit.connections import WakeUps
from tests.kit.loops import Holding
from tests.kit.records import AttemptOutcome, Succeeded
from tests.store.bench import claim_due
from tests.unit.engine.parts import NOON, Gate

from slotwise import Every, JobContext, JobRegistry, job, task
from slotwise.spi import Event, Worker
from slotwise.testing import ManualClock


@job(name="plain", schedule=Every("1m"))
def plain(ctx: JobContext) -> None:
    """Returns."""


@job(name="strict", schedule=Every("1m"), on_lost="give_up")
def strict(ctx: JobContext) -> None:
    """Starts at most once per slot."""


@task(name="mail")
def mail(ctx: JobContext) -> None:
    """Returns."""


class Bench:
    """A worker called by hand: what it holds, what it said, what stands in its tables."""

    def __init__(self, url: str, *subjects: object, **settings: Any) -> None:
        self.clock = ManualClock(NOON)
        self.events: list[Event] = []
        everything = subjects or (plain, strict, mail)
        self.registry = JobRegistry(
            jobs=[one for one in everything if hasattr(one, "schedule")],
            tasks=[one for one in everything if not hasattr(one, "schedule")],
            listeners=[self.events.append],
            clock=self.clock,
            database_url=url,
            **settings,
        )
        #: What it would say to workers elsewhere; SQLite has no way to them.
        self.words: list[str] = []
        self.registry.database.wake_ups = WakeUps(self.words_said)
        self.worker: Worker = self.registry.make_worker()
        self.worker.sign_in.plan()
        self.events.clear()

    def words_said(self, words: Sequence[str]) -> None:
        self.words += words

    def close(self) -> None:
        self.worker.runner.close()
        self.registry.database.close()

    def hold(self, count: int = 1, name: str = "mail") -> list[Holding]:
        """Claims of one-time tasks, or of a job's slot, whose handlers nobody starts."""
        if name == "mail":
            for _ in range(count):
                self.registry.client.schedule(name)
        else:
            self.clock.tick(timedelta(minutes=1))
        sent = self.worker.clock.elapsed()
        worker = self.worker
        _, claims = claim_due(
            worker.store, worker.name, count, lease=worker.settings.lease, names=[name]
        )
        return self.worker.active_claims.add(claims, sent)

    def end(self, holding: Holding, outcome: AttemptOutcome | None = None) -> None:
        self.worker.settler.put(holding, outcome or Succeeded())

    def lose_reply(self, holding: Holding) -> None:
        """As if the claim had been committed, and its answer had not come back."""
        with suppress(ConnectionError), self.worker.active_claims.claiming():
            self.worker.active_claims.remove([holding.claim])
            raise ConnectionError

    def delay_reply(self, part: object, question: str, by: timedelta) -> None:
        """This part of the store answers the question as ever, and its reply takes that long to
        arrive.
        """
        answer = getattr(part, question)

        def delayed(*args: Any, **options: Any) -> Any:
            found = answer(*args, **options)
            self.clock.tick(by)
            return found

        setattr(part, question, delayed)

    def room_for_tasks(self) -> int:
        """How many one-time tasks a poll would claim now."""
        poller = self.worker.poller
        plan = poller.planner.plan(poller._memory, poller.situation())
        poller._memory = poller._memory._replace(rate=plan.memory.rate)
        return plan.tasks.limit if plan.tasks else 0

    def said(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def row(self, holding: Holding) -> Any:
        """The row as it stands now; None if it is gone."""
        tasks, key = self.worker.store.tables.tasks.c, holding.claim.key
        with self.worker.store.transaction() as connection:
            return connection.execute(
                sa.select(
                    tasks.picked,
                    tasks.version,
                    tasks.attempt,
                    tasks.slot,
                    tasks.execution_time,
                    tasks.state,
                ).where(
                    tasks.task_name == key.task_name,
                    tasks.task_instance == key.task_instance,
                )
            ).first()

    def outcome(self, holding: Holding) -> str | None:
        slots, key = self.worker.store.tables.slots.c, holding.claim.row.ledger_key
        assert key is not None
        with self.worker.store.transaction() as connection:
            return connection.scalar(
                sa.select(slots.outcome).where(
                    slots.task_name == key.task_name, slots.slot == key.slot
                )
            )


MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench(sqlite_url: str) -> Iterator[MakeBench]:
    """Benches over one database; closed in the end."""
    made: list[Bench] = []

    def make(*subjects: object, **settings: Any) -> Bench:
        made.append(Bench(sqlite_url, *subjects, **settings))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    return make_bench()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Opened in the end, whatever the test came to."""
    gate = Gate()
    yield gate
    gate.open()
