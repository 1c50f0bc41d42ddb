"""How many of a task run at a time in the whole cluster; and that a flood of one task keeps no
other waiting.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tests.kit.records import Failed
from tests.kit.store import gates
from tests.store.bench import LEASE, NOON, Bench, a_job, a_task, at

from slotwise import Every, InvalidJob, Retry, job, task
from slotwise.spi import Claim, Database, define
from slotwise.testing import ManualClock, ManualWorker


@pytest.fixture(autouse=True)
def count_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims here come one after the other: none leaves a task out that was found full before."""
    monkeypatch.setattr(gates, "FULL_PAUSE", timedelta(0))


@pytest.fixture
def limited(database: Database) -> Bench:
    """Of ``few`` two may run at a time; ``mail`` is as any other; a hundred of each are due."""
    bench = Bench(
        database, [a_task("few", concurrency=2), a_task("mail"), a_job("plain")]
    ).planned()
    bench.client.schedule_many("few", range(100))
    bench.client.schedule_many("mail", range(100))
    return bench


RETRY = Retry.exponential(max_attempts=9, initial="1s", jitter="0s")


def claimed(bench: Bench, holder: str, limit: int = 50) -> list[Claim]:
    return bench.store.claims.claim_tasks(holder, limit, lease=LEASE, names=["few"])


def test_no_more_are_claimed_than_may_run(limited: Bench) -> None:
    """Whoever claims, counted over the whole cluster from the live claims."""
    first = claimed(limited, "host:1:a", 1)
    second = claimed(limited, "host:2:b")
    assert (len(first), len(second)) == (1, 1)
    assert claimed(limited, "host:3:c") == []
    limited.settle(first[0])
    assert len(claimed(limited, "host:3:c")) == 1


def test_a_failed_attempt_makes_room(limited: Bench) -> None:
    """While it waits for its retry, others may run."""
    one, _ = claimed(limited, "host:1:a")
    limited.settle(one, Failed("boom"))
    assert len(claimed(limited, "host:2:b")) == 1


def test_the_dead_count_until_they_are_taken_over(limited: Bench) -> None:
    """They may still be running; then their place is free, and they are claimed within the limit
    themselves.
    """
    claims = claimed(limited, "host:1:a")
    limited.tick(10)
    assert claimed(limited, "host:2:b") == []
    limited.take_over(*claims)
    again = limited.store.claims.claim_slots(
        "host:2:b", 50, lease=LEASE, names=["few"], lost=1
    )[1]
    assert [claim.row.lost_count for claim in again] == [1]
    assert len(claimed(limited, "host:2:b")) == 1
    assert claimed(limited, "host:3:c") == []


def test_other_tasks_are_claimed_as_ever(limited: Bench) -> None:
    """In the one statement that knows no limits."""
    assert (
        len(
            limited.store.claims.claim_tasks(
                "host:1:a", 50, lease=LEASE, names=["mail"]
            )
        )
        == 50
    )


def test_who_counts_keeps_others_from_counting(pg_database: Database) -> None:
    """Else two that count at once would both take the last place; the other does not wait, and
    looks again.
    """
    bench = Bench(pg_database, [a_task("few", concurrency=1)])
    bench.client.schedule_many("few", range(3))
    for _ in range(2):  # the row of its turns is new, and then there
        with pg_database.main.begin() as connection:
            assert bench.store.dialect.alone(connection, "few")
            assert claimed(bench, "host:2:b") == []
    assert len(claimed(bench, "host:2:b")) == 1


@pytest.fixture
def paced(database: Database) -> Bench:
    """Of ``few`` ten may start in a minute; twenty-five are due."""
    bench = Bench(database, [a_task("few", rate_limit="10/m")])
    bench.client.schedule_many("few", range(25))
    return bench


def test_no_more_start_within_any_window_than_may(paced: Bench) -> None:
    """Whoever claims, and whatever became of the earlier ones; a place comes back when its window
    is over.
    """
    assert len(claimed(paced, "host:1:a", 4)) == 4
    paced.tick(0.5)  # minutes
    second = claimed(paced, "host:2:b")
    assert len(second) == 6
    for claim in second:
        paced.settle(claim)
    assert claimed(paced, "host:3:c") == []
    paced.tick(0.49)
    assert claimed(paced, "host:3:c") == []
    paced.tick(0.02)  # a place comes back at most a hundredth of the window late
    assert len(claimed(paced, "host:3:c")) == 4
    assert claimed(paced, "host:1:a") == []
    paced.tick(0.5)
    assert len(claimed(paced, "host:1:a")) == 6


def test_each_attempt_is_a_start(paced: Bench) -> None:
    """A retry calls whatever is behind the limit again."""
    claims = claimed(paced, "host:1:a")
    for claim in claims:
        paced.settle(claim, Failed("boom"))
    paced.tick(0.9)
    assert claimed(paced, "host:1:a") == []


def test_a_claim_that_is_rolled_back_leaves_no_start(paced: Bench) -> None:
    """Both are one transaction; so are the limit and the claims that it counts."""
    store = paced.store

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("gone before the commit")

    store.gates.admit = fail  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        claimed(paced, "host:1:a")
    del store.gates.admit  # type: ignore[method-assign]
    assert len(claimed(paced, "host:1:a")) == 10


def test_a_start_outlives_whoever_made_it(paced: Bench) -> None:
    """It stands in the database: a worker that starts anew finds it; another limit is held by the
    same starts.
    """
    assert len(claimed(paced, "host:1:a")) == 10
    deployed = Bench(
        paced.database, [a_task("few", rate_limit="12/30s")], clock=paced.clock
    )
    assert len(claimed(deployed, "host:2:b")) == 2
    deployed.tick(0.51)
    assert len(claimed(deployed, "host:2:b")) == 12


def test_a_clock_that_is_put_back_blocks_nobody_for_long(paced: Bench) -> None:
    """Starts that lie in the future by more than the window count no more."""
    paced.client.schedule_many("few", range(25), at=at(-600))
    assert len(claimed(paced, "host:1:a")) == 10
    earlier = Bench(
        paced.database, [a_task("few", rate_limit="10/m")], ManualClock(at(-60))
    )
    assert len(claimed(earlier, "host:1:a")) == 10
    assert claimed(earlier, "host:1:a") == []


def test_only_the_starts_of_one_window_are_kept(paced: Bench) -> None:
    """However long the task has been running."""
    starts = paced.tables.starts
    for _ in range(30):
        claimed(paced, "host:1:a", 1)
        paced.tick(0.2)
    with paced.store.transaction() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(starts)) <= 6


def test_both_limits_hold(database: Database) -> None:
    """The lower one."""
    bench = Bench(database, [a_task("few", concurrency=2, rate_limit="3/m")])
    bench.client.schedule_many("few", range(9))
    one, two = claimed(bench, "host:1:a")
    bench.settle(one)
    bench.settle(two)
    assert len(claimed(bench, "host:1:a")) == 1


def test_rows_of_every_kind_count(database: Database) -> None:
    """Those of recurring instances, and those that were lost before."""
    bench = Bench(database, [a_task("few", rate_limit="2/m")])
    bench.client.schedule_recurring("few", "often", Every("1m"))
    bench.client.schedule("few", id="once")
    bench.tick(1)
    found, (slot,), _ = bench.store.claims.claim_slots(
        "host:1:a", 50, lease=LEASE, names=["few"]
    )
    assert (found, slot.row.task_instance) == (1, "often")
    assert len(claimed(bench, "host:1:a")) == 1
    bench.client.schedule("few", id="again")
    assert claimed(bench, "host:1:a") == []


def test_one_batch_has_tasks_with_limits_and_without(limited: Bench) -> None:
    """Of each task with a limit as many rows as may start, the most urgent first, and the rest of
    the batch of others.
    """
    limited.client.schedule("few", id="urgent", priority=90)
    claims = limited.store.claims.claim_tasks(
        "host:1:a", 50, lease=LEASE, names=["few", "mail"]
    )
    few = [claim.row.task_instance for claim in claims if claim.row.task_name == "few"]
    assert (few[0], len(few)) == ("urgent", 2)
    assert len(claims) >= 49  # a dialect may take a row too many, which goes back


def test_what_finds_no_place_goes_back_as_it_was(database: Database) -> None:
    """A retry of a recurring instance, too, though the claim has entered it into the ledger."""
    bench = Bench(database, [a_task("few", concurrency=1, retry=RETRY)])
    bench.client.schedule_recurring("few", "often", Every("1m"))
    bench.tick(1)
    (slot,) = bench.store.claims.claim_slots(
        "host:1:a", 9, lease=LEASE, names=["few"]
    ).claims
    bench.settle(slot, Failed("boom"))
    before = bench.row("few", "often"), bench.slot("few")
    bench.client.schedule("few", id="once")
    assert len(claimed(bench, "host:1:a")) == 1
    bench.tick(0.5)
    found = bench.store.claims.claim_slots("host:1:a", 9, lease=LEASE, names=["few"])
    assert (found.found, found.claims) == (1, [])
    after = bench.row("few", "often"), bench.slot("few")
    assert after[0].execution_time == before[0].execution_time
    assert (after[0].attempt, after[0].picked) == (1, False)
    for name in ("attempts", "started", "finished", "lost", "aborted"):
        assert after[1][name] == before[1][name], name


def test_a_slot_that_does_not_start_takes_no_place_in_the_window(
    database: Database,
) -> None:
    """The ledger has it already: another claim has begun it, and it starts only once."""
    bench = Bench(database, [a_task("few", rate_limit="1/h", on_lost="give_up")])
    bench.client.schedule_recurring("few", "often", Every("1m"))
    bench.tick(1)
    with bench.store.transaction() as connection:
        started = {"outcome": "claimed", "attempts": 1, "token": 1, "worker": "gone"}
        connection.execute(
            bench.tables.slots.insert().values(
                task_name="few", task_instance="often", slot=at(1), **started
            )
        )
    assert (
        bench.store.claims.claim_slots(
            "host:1:a", 9, lease=LEASE, names=["few"]
        ).claims
        == []
    )
    bench.client.schedule("few", id="once")
    assert len(claimed(bench, "host:1:a")) == 1


@pytest.mark.parametrize(
    "limit",
    [{"concurrency": 50}, {"rate_limit": "50/h"}],
    ids=["concurrency", "rate_limit"],
)
def test_many_that_claim_at_once(pg_database: Database, limit: dict[str, Any]) -> None:
    """However their transactions meet: never one more than may, and none is forgotten."""
    bench = Bench(pg_database, [a_task("few", **limit)])
    bench.client.schedule_many("few", range(200))

    def claim_all(holder: str) -> int:
        return sum(len(claimed(bench, holder, 7)) for _ in range(25))

    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(claim_all, [f"host:{number}:a" for number in range(4)]))
    assert sum(taken) + len(claimed(bench, "host:9:z")) == 50


class Floor:
    """A worker with room for ten, a task of which two may run, and one without a limit; handlers
    that go on.
    """

    def __init__(
        self, database: Database, tasks: Iterable[Any], **settings: Any
    ) -> None:
        self.worker = ManualWorker(tasks, database, ManualClock(NOON), **settings)
        self.client = self.worker.client

    def names(self, claims: Iterable[Claim]) -> list[str]:
        return sorted(claim.row.task_name for claim in claims)


def nothing(ctx: Any) -> None:
    """Returns."""


def test_a_worker_keeps_to_the_limit_and_fills_the_rest(database: Database) -> None:
    """Its other threads run what may run."""
    floor = Floor(
        database,
        [task(name="few", concurrency=2)(nothing), task(name="many")(nothing)],
        threads=10,
    )
    floor.client.schedule_many("few", range(20))
    floor.client.schedule_many("many", range(20))
    names = floor.names(floor.worker.poll())
    assert names.count("few") <= 2
    assert names.count("many") >= 8
    for _ in range(20):
        floor.worker.run_due()
    assert floor.client.list() == []


def test_a_task_with_a_limit_may_take_the_last_place(database: Database) -> None:
    """Whose turn comes after it finds no room, and that is no error."""
    floor = Floor(
        database,
        [task(name="few", concurrency=2)(nothing), task(name="many")(nothing)],
        threads=10,
    )
    floor.client.schedule_many("few", range(3))
    floor.client.schedule_many("many", range(3))
    taken = []
    for _ in range(4):
        taken += floor.names(floor.worker.poll(1))
        floor.worker.tick("2s")  # marks of the queues are good for a second
    assert taken == ["few", "many", "few", "many"]


def test_a_flood_of_one_task(database: Database) -> None:
    """Among 2,000 older rows of another task, a row is claimed with the next claim but one,
    whatever their names.
    """
    floor = Floor(
        database,
        [task(name=name)(nothing) for name in ("aaa", "flood", "rare", "zzz")],
        threads=10,
    )
    floor.client.schedule_many("flood", range(2_000), at=at(-60))
    floor.client.schedule("rare", id="1", at=at(-1))
    floor.client.schedule("zzz", id="1", at=at(-1))
    claimed: list[str] = []
    for _ in range(2):
        for claim in floor.worker.poll(limit=3):
            claimed.append(claim.row.task_name)
            floor.worker.run(claim)
        floor.worker.settle()
    assert {"rare", "zzz", "flood"} <= set(claimed)


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        (
            task(name="t", concurrency=0)(nothing),
            "concurrency is 0; expected a whole number, 1 or more",
        ),
        (
            task(name="t", concurrency="2")(nothing),
            "concurrency is '2', expected int or None; write a whole number",
        ),
        (
            task(name="t", rate_limit="100")(nothing),
            "rate_limit: '100' is not a rate; write a count and a period",
        ),
        (task(name="t", rate_limit="0/m")(nothing), "rate_limit: '0/m' is not a rate"),
        (
            task(name="t", rate_limit="5/fortnight")(nothing),
            "rate_limit: '5/fortnight' is not a rate; write a count and a period",
        ),
        (
            task(name="t", rate_limit="5/10ms")(nothing),
            "the period must be from 100ms to 366d",
        ),
        (
            task(name="t", rate_limit=5)(nothing),
            'rate_limit is 5, expected str or None; write "100/m"',
        ),
        (task(name="t", max_rate="5/s")(nothing), "did you mean rate_limit?"),
        (
            job(name="t", schedule=Every("1h"), concurrency=1)(nothing),
            "overlap or min_interval limit its starts",
        ),
    ],
    ids=[
        "zero",
        "text",
        "no time",
        "none",
        "no unit",
        "too short",
        "a number",
        "another word",
        "job",
    ],
)
def test_a_limit_that_cannot_be(subject: Any, words: str) -> None:
    """Is refused at registration."""
    with pytest.raises(InvalidJob) as refused:
        define(subject)
    assert words in str(refused.value)
