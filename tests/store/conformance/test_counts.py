"""Hourly counts: each slot that has ended is counted once, whoever counts it, and also when it is
pruned.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa
from tests.kit.patience import PATIENCE
from tests.kit.records import Failed, Outcome
from tests.kit.store import Pruner
from tests.store.bench import NOON, Bench, at

from slotwise.store.slots.counts import SLOT, Counts, Ended, by_hour, hour_of

HOUR = timedelta(hours=1)


def recount(bench: Bench) -> None:
    while Counts(bench.store).recount_closed():
        pass


def counted(
    bench: Bench, name: str = "plain"
) -> dict[tuple[datetime, str, str | None], int]:
    found = bench.inspect.outcome_counts(
        NOON - 9000 * HOUR, NOON + 9000 * HOUR, job=name
    )
    return {(one.hour, one.outcome, one.reason): one.count for one in found}


def one_hour(bench: Bench) -> None:
    """A success, a failure, and a range of skipped slots up to a success, in two hours."""
    bench.tick(1)
    bench.settle(bench.claim_one("plain"))
    bench.tick(1)
    bench.settle(bench.claim_one("plain"), Failed("boom"))
    bench.tick(61)
    bench.settle(bench.claim_one("plain"))


EXPECTED = {
    (at(0), "failed", None): 1,
    (at(0), "succeeded", None): 1,
    (at(0), "skipped", "collapsed"): 57,
    (at(60), "skipped", "collapsed"): 3,
    (at(60), "succeeded", None): 1,
}


def ended(hour: datetime, outcome: str = "succeeded", name: str = "plain") -> Ended:
    return Ended(name, hour, SLOT, outcome, "")


def test_an_hour_that_has_closed_is_recounted(bench: Bench) -> None:
    """Slots and ranges of skipped ones, each in its hour; a second walk finds nothing to do."""
    one_hour(bench)
    assert counted(bench) == {}
    bench.clock.set(at(181))
    recount(bench)
    assert counted(bench) == {key: n for key, n in EXPECTED.items() if key[0] == at(0)}
    bench.clock.set(at(241))
    recount(bench)
    assert counted(bench) == EXPECTED
    assert not Counts(bench.store).recount_closed()


def test_what_workers_add_counts_once(bench: Bench) -> None:
    """To a young hour it is added. When that closes it is recounted, and later additions to it
    recount it again: whatever a worker has added twice, or never.
    """
    one_hour(bench)
    Counts(bench.store).add({ended(at(0)): 2, ended(at(60)): 1})
    Counts(bench.store).add({ended(at(0)): 1})
    assert counted(bench) == {
        (at(0), "succeeded", None): 3,
        (at(60), "succeeded", None): 1,
    }
    bench.clock.set(at(241))
    recount(bench)
    assert counted(bench) == EXPECTED
    Counts(bench.store).add({ended(at(0)): 5})
    assert counted(bench) == EXPECTED


def test_the_parts_of_a_window(bench: Bench) -> None:
    """Each hour is in the part in which it begins; other names, and hours outside, in none."""
    counts = Counts(bench.store)
    hours = [NOON + n * HOUR for n in range(-1, 9)]
    counts.add({ended(hour): 2 for hour in hours})
    counts.add({ended(NOON + 3 * HOUR, "failed"): 5, ended(NOON, name="other"): 7})
    found = bench.inspect.outcome_parts(["plain"], NOON, NOON + 8 * HOUR, 4)
    assert [(one.part, one.outcome, one.count) for one in found] == [
        (0, "succeeded", 4),
        (1, "failed", 5),
        (1, "succeeded", 4),
        (2, "succeeded", 4),
        (3, "succeeded", 4),
    ]
    uneven = bench.inspect.outcome_parts(["other"], NOON - HOUR / 3, NOON + HOUR, 4)
    assert [(one.job, one.part, one.count) for one in uneven] == [("other", 1, 7)]
    assert bench.inspect.outcome_parts([], NOON, NOON + HOUR, 4) == []


def test_many_names_in_small_steps(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk continues where the last transaction stopped, also of instances; nothing is added to
    an hour of a walk that is under way.
    """
    monkeypatch.setattr("slotwise.store.slots.counts.RECOUNTS", 1)
    one_hour(bench)
    for instance in ("customer", "other"):
        slot = {"task_name": "plain", "task_instance": instance, "slot": at(7)}
        with bench.store.transaction() as connection:
            connection.execute(
                bench.store.tables.slots.insert().values(
                    **slot, outcome="dead", finished=at(8)
                )
            )
    bench.clock.set(at(241))
    counts = Counts(bench.store)
    steps = 0
    while counts.recount_closed():
        steps += 1
        counts.add({ended(at(0)): 1})
    assert steps > 5
    assert counted(bench) == EXPECTED | {(at(0), "dead", None): 2}


def test_pruned_slots_stay_counted(bench: Bench) -> None:
    """Counted and pruned are moved in the transaction that deletes; a recount leaves them."""
    one_hour(bench)
    bench.clock.set(at(241))
    pruner = Pruner(bench.store, keep=HOUR, failure_retention=HOUR)
    assert sum(page.slots for page in pruner.pages()) == 2
    table = bench.store.tables.counts
    with bench.store.transaction() as connection:
        pruned = sa.select(sa.func.sum(table.c.pruned), sa.func.sum(table.c.count))
        assert tuple(connection.execute(pruned).one()) == (2, 61)
    assert counted(bench) == EXPECTED
    Counts(bench.store).add({ended(at(0)): 1})
    assert counted(bench) == EXPECTED


def test_pruned_ranges_stay_counted(bench: Bench) -> None:
    """All but the newest gap go; before the first walk, too, whose recount comes after."""
    for minute in (10, 130, 260):
        bench.clock.set(at(minute))
        bench.settle(bench.claim_one("plain"))
    bench.clock.set(at(1000))
    pruner = Pruner(bench.store, keep=HOUR, failure_retention=HOUR)
    pages = list(pruner.pages())
    assert sum(page.gaps for page in pages) == 2
    assert sum(counted(bench).values()) == 260
    assert counted(bench)[at(60), "skipped", "collapsed"] == 60


def test_results_of_tasks_are_not_slots(bench: Bench) -> None:
    """A task that keeps a record has a ledger row, which is no slot of a schedule."""
    slot = {"task_name": "mail", "task_instance": "1", "slot": at(0), "origin": "task"}
    with bench.store.transaction() as connection:
        connection.execute(
            bench.store.tables.slots.insert().values(
                **slot, outcome="succeeded", finished=at(0)
            )
        )
    bench.clock.set(at(1000))
    assert sum(
        page.slots
        for page in Pruner(bench.store, keep=HOUR, failure_retention=HOUR).pages()
    )
    assert counted(bench, "mail") == {}


def test_another_programs_note_begins_anew(bench: Bench) -> None:
    one_hour(bench)
    bench.clock.set(at(241))
    recount(bench)
    meta = bench.store.tables.meta
    with bench.store.transaction() as connection:
        connection.execute(
            meta.update().where(meta.c.key == "counted").values(value="[1]")
        )
    recount(bench)
    assert counted(bench) == EXPECTED


def test_old_counts_go(bench: Bench) -> None:
    """Thirteen months are kept."""
    Counts(bench.store).add({ended(NOON - 401 * 24 * HOUR): 1, ended(NOON): 1})
    list(Pruner(bench.store, keep=HOUR, failure_retention=HOUR).pages())
    assert set(counted(bench)) == {(NOON, "succeeded", None)}


def test_one_writes_after_the_other(pg_bench: Bench) -> None:
    """Race: a worker adds what another transaction is just recounting. It waits, and then finds
    the hour closed.
    """
    one_hour(pg_bench)
    pg_bench.clock.set(at(241))
    counts = Counts(pg_bench.store)
    adding = threading.Thread(target=counts.add, args=({ended(at(0)): 1},))
    with pg_bench.store.transaction() as connection:
        counts.lock(connection)
        adding.start()
        adding.join(0.3)
        assert adding.is_alive()
    adding.join(PATIENCE)
    recount(pg_bench)
    assert counted(pg_bench) == EXPECTED


def test_a_range_of_centuries_takes_no_time() -> None:
    """Few slots in a long time, and a slot a second in a year."""
    days = timedelta(days=400_000)
    assert sum(n for _, n in by_hour("a", NOON, NOON + days, 3, "late")) == 3
    year = timedelta(days=365)
    many = dict(by_hour("a", NOON, NOON + year, 365 * 86_400 + 1, "late"))
    assert len(many) == 365 * 24 + 1
    assert set(many.values()) == {3600, 1}


def test_a_range_is_divided_as_its_slots_lie() -> None:
    """Exactly, where they are at equal distances."""
    for _ in range(200):
        first = NOON + timedelta(seconds=random.randrange(9000))
        step = timedelta(seconds=random.randrange(1, 20_000))
        count = random.randrange(1, 60)
        last = first + (count - 1) * step
        true = Counter(hour_of(first + n * step) for n in range(count))
        found = {one.hour: n for one, n in by_hour("a", first, last, count, "late")}
        assert found == true
        assert {
            one.outcome for one, _ in by_hour("a", first, last, count, "late")
        } == {Outcome.SKIPPED}
