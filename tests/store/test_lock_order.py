"""Whoever waits for several rows takes them in the order of their keys, so that no two can wait
for each other.

Somebody keeps the first row by key locked. What runs into it waits there, and has none of the
others yet: so each of them can still be locked. Rows lie in the table from the last to the first,
no index may be used, and outcomes are given from the last to the first: without its sort, a
statement has the others before it comes to the one that is locked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from tests.kit.records import Failed, Follow, FollowUps, Succeeded, Wanted, When
from tests.store.bench import Bench, a_job, a_task
from tests.store.waiting import run_into_lock

from slotwise import Calendar, Daily, Disabled, Every, Item, Settings
from slotwise.operations import Calendars
from slotwise.spi import Database, Key

#: In the order of their code points, which is not that of any language.
IDS = ("B", "a", "b")
#: So that the order of the statement is all that counts.
PLAIN = (
    "enable_indexscan",
    "enable_indexonlyscan",
    "enable_bitmapscan",
    "enable_hashjoin",
    "enable_mergejoin",
)


@pytest.fixture
def bench(pg_url: str) -> Iterator[Bench]:
    """A job with instances and a task, whose ids the database sorts as a language does."""
    database = Database(Settings(database_url=pg_url, wake_up=False))
    with database.main.begin() as connection:
        name = connection.scalar(sa.text("SELECT current_database()"))
        for setting in PLAIN:
            connection.exec_driver_sql(f"ALTER DATABASE {name} SET {setting} = off")
        if connection.scalar(
            sa.text("SELECT true FROM pg_collation WHERE collname = 'en-x-icu'")
        ):
            # A trigger that names a column keeps its type.
            connection.exec_driver_sql(
                "DROP TRIGGER IF EXISTS scheduled_mark_foreign ON scheduled_tasks"
            )
            for column in ("task_name", "task_instance"):
                connection.exec_driver_sql(
                    f"ALTER TABLE scheduled_tasks ALTER COLUMN {column} TYPE text "
                    'COLLATE "en-x-icu"'
                )
    database.close()
    database = Database(Settings(database_url=pg_url, wake_up=False))
    yield Bench(
        database,
        [a_job("feed", Disabled()), a_job("shut", Disabled()), a_task("mail")],
    ).planned()
    database.close()


def feeds(bench: Bench) -> Bench:
    for id in reversed(IDS):
        bench.client.schedule_recurring("feed", id, Every("1m"))
    bench.tick()
    return bench


def mails(bench: Bench) -> Bench:
    for id in reversed(IDS):
        bench.client.schedule("mail", id=id)
    return bench


def _settle_slots(bench: Bench) -> Callable[[], Any]:
    claims = sorted(
        feeds(bench).claim("feed"), key=lambda claim: claim.key, reverse=True
    )
    return lambda: bench.store.settlements.settle(
        [(claim, Failed("oops")) for claim in claims]
    )


def _settle_tasks(bench: Bench) -> Callable[[], Any]:
    claims = sorted(
        mails(bench).claim("mail"), key=lambda claim: claim.key, reverse=True
    )
    return lambda: bench.store.settlements.settle(
        [(claim, Failed("oops")) for claim in claims]
    )


def _finish(bench: Bench) -> Callable[[], Any]:
    claims = sorted(
        mails(bench).claim("mail"), key=lambda claim: claim.key, reverse=True
    )
    return lambda: bench.store.settlements.finish(claims)


def _follow_up(bench: Bench) -> Callable[[], Any]:
    """The row that is held is the last by key, those that its follow-ups replace are the
    others.
    """
    (claim,) = (
        claim
        for claim in mails(bench).claim("mail")
        if claim.key.task_instance == IDS[-1]
    )
    follows = [
        Follow("mail", Wanted(id, None, When(None), 50), "replace")
        for id in reversed(IDS[:-1])
    ]
    return lambda: bench.store.settlements.settle(
        [(claim, Succeeded(follow_ups=FollowUps(follows)))]
    )


def _count_down(bench: Bench) -> Callable[[], Any]:
    (claim,) = (
        claim
        for claim in mails(bench).claim("mail")
        if claim.key.task_instance == IDS[-1]
    )
    arrivals = [Key("mail", id) for id in reversed(IDS[:-1])]
    return lambda: bench.store.settlements.settle(
        [(claim, Succeeded(follow_ups=FollowUps(arrivals=arrivals)))]
    )


def _reschedule(bench: Bench) -> Callable[[], Any]:
    mails(bench)
    items = [Item(1, id=id) for id in reversed(IDS)]
    return lambda: bench.client.schedule_many(
        "mail", items, delay="1h", if_exists="reschedule"
    )


def _order(bench: Bench) -> Callable[[], Any]:
    feeds(bench)
    return lambda: bench.client.operations.pause("feed")


def _calendar(bench: Bench) -> Callable[[], Any]:
    changes = Calendars(bench.store, "tests")
    changes.change("CO", lambda before: Calendar(name="CO"), "calendar add")
    for id in reversed(IDS):
        bench.client.schedule_recurring("shut", id, Daily("09:00").excluding("CO"))
    return lambda: changes.change(
        "CO", lambda before: Calendar(name="CO", weekend=frozenset()), "calendar add"
    )


@pytest.mark.parametrize(
    "play",
    [
        _settle_slots,
        _settle_tasks,
        _finish,
        _follow_up,
        _count_down,
        _reschedule,
        _order,
        _calendar,
    ],
    ids=lambda play: play.__name__.strip("_"),
)
def test_rows_are_locked_in_the_order_of_their_keys(
    bench: Bench, play: Callable[[Bench], Callable[[], Any]]
) -> None:
    """While it waits for the first, whatever it is, it has none of those after it."""
    command, tasks = play(bench), bench.tables.tasks
    locked = sa.select(tasks.c.task_instance).with_for_update(nowait=True)
    with ThreadPoolExecutor(1) as pool, bench.database.main.connect() as somebody:
        somebody.execute(locked.where(tasks.c.task_instance == IDS[0])).one()
        running = run_into_lock(bench, pool, command)
        assert sorted(
            somebody.scalars(locked.where(tasks.c.task_instance.in_(IDS[1:])))
        ) == sorted(IDS[1:])
        somebody.rollback()
        running.result(20)
