"""Callers' transactions that touch instances of renamed tasks, beside each other. On PostgreSQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from threading import Barrier

import pytest
from sqlalchemy.exc import DBAPIError
from tests.store.bench import Bench
from tests.store.waiting import wait_until_blocked

from slotwise import Every, RecurringItem, TaskContext, task
from slotwise.spi import Database
from slotwise.testing import ManualClock, ManualWorker

HOURLY = Every("1h")


def nothing(ctx: TaskContext) -> None:
    """No test runs it."""


OLD = [task(name=name)(nothing) for name in ("a", "b")]
NEW = [task(name=f"{name}-new", aliases=(name,))(nothing) for name in ("a", "b")]


class Releases:
    """Clients of the release before and after the rename."""

    def __init__(self, database: Database) -> None:
        clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
        self.old = ManualWorker(OLD, database, clock)
        self.new = ManualWorker(NEW, database, clock)
        self.bench = Bench(database)

    def rows(self) -> list[tuple[str, str]]:
        names = [name for one in ("a", "b") for name in (one, f"{one}-new")]
        lines = [self.new.inspect.instances(name) for name in names]
        return [(line.job, str(line.id)) for some in lines for line in some]


@pytest.fixture
def releases(pg_database: Database) -> Releases:
    return Releases(pg_database)


MOVED = [(f"{name}-new", id) for name in "ab" for id in "xy"]


def test_two_callers_in_opposite_order(releases: Releases) -> None:
    """Each has an instance of one task in an open transaction, and goes on to the other: neither
    waits for the other.
    """
    for one in NEW:  # else each waits for the other's first latch of a new name
        releases.new.client.schedule_recurring(one, "z", HOURLY)
        releases.new.client.unschedule_recurring(one, "z")
    for one in OLD:
        for id in "xy":
            releases.old.client.schedule_recurring(one, id, HOURLY)
    put = releases.new.client.schedule_recurring
    store = releases.new.store
    with store.transaction() as first, store.transaction() as second:
        put(NEW[0], "x", HOURLY, connection=first)
        put(NEW[1], "y", HOURLY, connection=second)
        put(NEW[1], "x", HOURLY, connection=first)
        put(NEW[0], "y", HOURLY, connection=second)
    assert releases.rows() == MOVED


def test_two_callers_move_one_instance(releases: Releases) -> None:
    """The second waits for the first one's commit, and then changes the row that has moved."""
    releases.old.client.schedule_recurring(OLD[0], "x", HOURLY)
    put = releases.new.client.schedule_recurring
    with ThreadPoolExecutor(1) as pool:
        with releases.new.store.transaction() as first:
            put(NEW[0], "x", HOURLY, connection=first)
            second = pool.submit(put, NEW[0], "x", Every("2h"))
            wait_until_blocked(releases.bench, second)
        second.result(30)
    assert releases.rows() == [("a-new", "x")]


def test_one_is_made_while_the_former_one_moves(releases: Releases) -> None:
    """A caller has inserted the instance under the new name, and one of the old release inserts it
    under the former name meanwhile: whoever looks next deletes the latter.
    """
    put = releases.new.client.schedule_recurring
    put(NEW[0], "z", HOURLY)
    with ThreadPoolExecutor(1) as pool:
        with releases.new.store.transaction() as first:
            put(NEW[0], "x", HOURLY, connection=first)
            releases.old.client.schedule_recurring(OLD[0], "x", HOURLY)
            second = pool.submit(put, NEW[0], "x", Every("2h"))
            wait_until_blocked(releases.bench, second)
        second.result(30)
    assert releases.rows() == [("a-new", "x"), ("a-new", "z")]


def test_a_synchronisation_beside_a_caller(releases: Releases) -> None:
    """The caller holds one instance of the scope; the synchronisation waits for its commit."""
    old, new = releases.old.client, releases.new.client
    old.sync_schedules(OLD[0], items("x", "y"), scope="crm")
    with ThreadPoolExecutor(1) as pool:
        with releases.new.store.transaction() as first:
            new.schedule_recurring(NEW[0], "y", HOURLY, connection=first)
            second = pool.submit(
                new.sync_schedules, NEW[0], items("x", "y"), scope="crm"
            )
            wait_until_blocked(releases.bench, second)
            new.schedule_recurring(NEW[0], "z", HOURLY, connection=first)
        second.result(30)
    assert releases.rows() == [("a-new", id) for id in "xyz"]
    assert new.sync_schedules(NEW[0], items("x", "y"), scope="crm").unchanged == 2


def test_two_callers_use_two_names_first(releases: Releases) -> None:
    """In opposite order: PostgreSQL ends one, of which nothing stays. It succeeds when it is
    repeated, and later transactions do not wait for each other.
    """
    both_have_one = Barrier(2, timeout=60)

    def use(id: str, *order: int, waits: bool = True) -> str:
        try:
            with releases.old.store.transaction() as own:
                for place in order:
                    put = releases.old.client.schedule_recurring
                    put(OLD[place], id, HOURLY, connection=own)
                    if waits and place == order[0]:
                        both_have_one.wait()
        except DBAPIError as error:
            return str(error)
        return "done"

    with ThreadPoolExecutor(2) as pool:
        x, y = pool.submit(use, "x", 0, 1), pool.submit(use, "y", 1, 0)
        ended = {"x": x.result(60), "y": y.result(60)}
    (lost,) = [id for id, how in ended.items() if how != "done"]
    assert "deadlock detected" in ended[lost]
    (kept,) = ended.keys() - {lost}
    assert releases.rows() == [("a", kept), ("b", kept)]
    assert use(lost, 1, 0, waits=False) == "done"
    assert releases.rows() == [(name, id) for name in "ab" for id in "xy"]


def items(*ids: str) -> list[RecurringItem[None]]:
    return [RecurringItem(id, "EVERY|1h") for id in ids]
