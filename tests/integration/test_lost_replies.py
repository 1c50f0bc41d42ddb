"""A caller whose reply is lost gets the answer nevertheless, or learns that it is unknown; nothing
runs twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from tests.faults.proxy import Proxy
from tests.kit.connections import database as connections
from tests.kit.ports import dialect_of

from slotwise import (
    Client,
    DatabaseUnreachable,
    Every,
    Item,
    JobContext,
    JobRegistry,
    job,
    task,
)
from slotwise.errors import CommitUnknown
from slotwise.spi import Inserted, Joinable

HOUR = timedelta(hours=1)


@job(name="nightly", schedule=Every("1h"))
def nightly(ctx: JobContext) -> None:
    """Is triggered."""


@task(name="mail")
def mail(ctx: JobContext) -> None:
    """Waits."""


@pytest.fixture
def proxy(pg_url: str) -> Iterator[Proxy]:
    with Proxy(pg_url) as proxy:
        yield proxy


@pytest.fixture
def registry(proxy: Proxy) -> Iterator[JobRegistry]:
    """Its way to the database can be cut."""
    registry = JobRegistry(
        jobs=[nightly],
        tasks=[mail],
        database_url=proxy.url,
        wake_up=False,
        process_hook=False,
    )
    yield registry
    registry.database.close()


def count(registry: JobRegistry) -> int:
    return _seen(registry)[0]


def _seen(registry: JobRegistry) -> list[int]:
    """How many rows the task and the job have, and how many operations are in the audit table."""
    counts = (
        "scheduled_tasks where task_name = 'mail'",
        "scheduled_tasks where task_name = 'nightly'",
        "scheduled_controls",
    )
    with registry.database.transaction() as connection:
        return [
            int(connection.scalar(sa.text(f"select count(*) from {rows}")) or 0)
            for rows in counts
        ]


class Call(NamedTuple):
    """A call, and what it answers. ``growth``: what it adds to each count of ``_seen``."""

    ask: Callable[[Client, Any], Any]
    answer: object
    growth: list[int]
    #: What must be so before; returns what ``ask`` gets beside the client, or None for the id of
    #: the round.
    before: Callable[[JobRegistry], object] = lambda registry: None


def _planned(registry: JobRegistry) -> None:
    registry.make_worker().sign_in.plan()


def _dead(registry: JobRegistry) -> None:
    with registry.database.transaction() as connection:
        connection.execute(
            sa.text(
                "update scheduled_tasks set state = 'dead' where task_instance = 'there'"
            )
        )


def _failed(registry: JobRegistry) -> datetime:
    """A slot of the job that has failed."""
    _planned(registry)
    with registry.database.transaction() as connection:
        entered = """insert into scheduled_slots (task_name, task_instance, slot, outcome, attempts, finished)
            values ('nightly', 'recurring', clock_timestamp(), 'failed', 1, clock_timestamp()) returning slot"""
        slot: datetime = connection.scalar(sa.text(entered))
        return slot


def _waits(registry: JobRegistry) -> datetime:
    """A slot of the job that waits."""
    _planned(registry)
    return registry.client.operations.trigger(nightly)


def _recurs(registry: JobRegistry) -> None:
    registry.client.schedule_recurring(nightly, "there", Every("1h"))


def _paused(registry: JobRegistry) -> None:
    _planned(registry)
    registry.client.operations.pause(nightly)


def _resumed(registry: JobRegistry) -> None:
    _planned(registry)
    registry.client.operations.resume(nightly)


#: Each begins with the task "there" in the queue.
CALLS = {
    "schedule": Call(
        lambda client, id: client.schedule(mail, id=id, delay=HOUR).status,
        "scheduled",
        [1, 0, 0],
    ),
    "schedule_many": Call(
        lambda client, id: (
            client.schedule_many(
                mail, [Item(None, id=id), Item(None, id=f"{id}-")]
            ).scheduled
        ),
        2,
        [2, 0, 0],
    ),
    "reschedule": Call(
        lambda client, _: client.reschedule(mail, "there", delay=HOUR).status,
        "scheduled",
        [0, 0, 0],
    ),
    "cancel": Call(
        lambda client, _: client.cancel(mail, "there").status, "cancelled", [-1, 0, 0]
    ),
    "trigger": Call(
        lambda client, _: isinstance(client.operations.trigger(nightly), datetime),
        True,
        [0, 1, 1],
        _planned,
    ),
}
#: The others end as those do.
OTHERS = {
    "cancel_all": Call(lambda client, _: client.cancel_all(mail), 1, [-1, 0, 0]),
    "retry": Call(
        lambda client, _: [one.status for one in client.retry(mail, "there")],
        ["scheduled"],
        [0, 0, 0],
        _dead,
    ),
    "schedule_recurring": Call(
        lambda client, id: isinstance(
            client.schedule_recurring(nightly, id, Every("1h")), datetime
        ),
        True,
        [0, 1, 0],
    ),
    "unschedule_recurring": Call(
        lambda client, _: client.unschedule_recurring(nightly, "there"),
        True,
        [0, -1, 0],
        _recurs,
    ),
    "operations.pause": Call(
        lambda client, _: client.operations.pause(nightly), True, [0, 0, 1], _resumed
    ),
    "operations.resume": Call(
        lambda client, _: len(client.operations.resume(nightly)), 1, [0, 0, 1], _paused
    ),
    "operations.pause_all": Call(
        lambda client, _: client.operations.pause_all(),
        True,
        [0, 0, 1],
        lambda registry: registry.client.operations.resume_all() and None,
    ),
    "operations.resume_all": Call(
        lambda client, _: client.operations.resume_all(),
        [],
        [0, 0, 1],
        lambda registry: registry.client.operations.pause_all() and None,
    ),
    "operations.skip_next": Call(
        lambda client, _: isinstance(client.operations.skip_next(nightly), datetime),
        True,
        [0, 0, 1],
        _planned,
    ),
    "operations.cancel": Call(
        lambda client, slot: client.operations.cancel(nightly, slot) == [slot],
        True,
        [0, -1, 1],
        _waits,
    ),
    "operations.retry": Call(
        lambda client, slot: client.operations.retry(nightly, slot),
        None,
        [0, 1, 1],
        _failed,
    ),
    "operations.delete": Call(
        lambda client, _: client.operations.delete(nightly), 1, [0, -1, 1], _planned
    ),
}
EACH_CALL = [
    *(pytest.param(call, id=name) for name, call in CALLS.items()),
    *(
        pytest.param(call, id=name, marks=pytest.mark.extended)
        for name, call in OTHERS.items()
    ),
]
#: Every transaction says it; after some calls a statement is prepared, and only its name is said.
ANY = b"COMMIT"


@pytest.mark.parametrize(
    "rounds",
    [3, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
@pytest.mark.parametrize("call", EACH_CALL)
def test_a_lost_reply_is_looked_up(
    registry: JobRegistry, proxy: Proxy, call: Call, rounds: int
) -> None:
    """The answer is that of the call, which has had its effect once."""
    for number in range(rounds):
        _expect_one_effect(registry, proxy, call, f"id-{number}", forward=True)


@pytest.mark.parametrize(
    "rounds",
    [1, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
@pytest.mark.parametrize("call", EACH_CALL)
def test_what_was_not_committed_is_an_outage(
    registry: JobRegistry, proxy: Proxy, call: Call, rounds: int
) -> None:
    """Nothing was written, and the call can be repeated. Operations do that themselves."""
    for number in range(rounds):
        _expect_one_effect(registry, proxy, call, f"id-{number}", forward=False)


def _expect_one_effect(
    registry: JobRegistry, proxy: Proxy, call: Call, id: str, *, forward: bool
) -> None:
    client = registry.client
    client.schedule(mail, id="there", delay=HOUR)
    given, before = call.before(registry) or id, _seen(registry)
    proxy.lose_commit(said=ANY, forward=forward)
    try:
        answer = call.ask(client, given)
    except DatabaseUnreachable:
        assert not forward
        assert _seen(registry) == before
        answer = call.ask(client, given)
    assert proxy.lost.is_set()
    assert answer == call.answer
    assert [
        after - old for after, old in zip(_seen(registry), before, strict=True)
    ] == call.growth


def test_a_committed_task_is_not_scheduled_again(
    registry: JobRegistry, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database does not say in time, and the task has run and gone when the caller asks again:
    it was scheduled.
    """
    client = registry.client
    client.list()
    with monkeypatch.context() as busy:
        busy.setattr(
            connections, "elapsed", itertools.count(0, 20).__next__
        )  # longer than any answer is waited for
        busy.setattr(
            dialect_of("postgresql"), "committed", lambda *_: None
        )  # as while the transaction is still in progress
        proxy.lose_commit(said=ANY, forward=True)
        with pytest.raises(CommitUnknown, match="look before you repeat") as caught:
            client.schedule(mail, id="one", delay=HOUR)
        assert caught.value.id == "one"
    assert client.cancel(mail, "one").status == "cancelled"
    assert client.schedule(mail, id="one", delay=HOUR).status == "scheduled"
    assert count(registry) == 0
    assert client.schedule(mail, id="one", delay=HOUR).status == "scheduled"
    assert count(registry) == 1


@pytest.mark.parametrize("ran", [False, True], ids=["it waits", "it has run"])
def test_without_an_id_only_the_row_can_tell(
    registry: JobRegistry, proxy: Proxy, ran: bool
) -> None:
    """One statement, one trip: what has run by then is unknown, and the error has the id that was
    chosen.
    """
    client = registry.client
    client.list()
    with registry.database.transaction() as connection:
        rule = "create function run() returns trigger language plpgsql as 'begin return null; end'"
        trigger = (
            "create trigger run before insert on scheduled_tasks for each row execute "
            "function run()"
        )
        for statement in (rule, trigger) if ran else ():
            connection.execute(sa.text(statement))
    proxy.lose_statement(b"INSERT INTO", forward=True)
    if not ran:
        assert client.schedule(mail, delay=HOUR).status == "scheduled"
        assert count(registry) == 1
        return
    with pytest.raises(CommitUnknown, match="has run already") as caught:
        client.schedule(mail, delay=HOUR)
    with pytest.raises(CommitUnknown):
        client.schedule(mail, id=caught.value.id, delay=HOUR)
    assert count(registry) == 0


def test_a_transaction_that_never_came_to_its_commit_is_no_lost_reply(
    pg_url: str, registry: JobRegistry
) -> None:
    """A hook shares the transaction of the insert: what is cut before the commit is not there."""

    def cut(_rows: Sequence[Inserted], tx: Joinable) -> None:
        tx.execute(sa.text("select pg_terminate_backend(pg_backend_pid())"))

    hooked = JobRegistry(
        tasks=[mail], at_insert=[cut], database_url=pg_url, process_hook=False
    )
    with pytest.raises(DatabaseUnreachable) as caught:
        hooked.client.schedule(mail, delay=HOUR)
    assert not isinstance(caught.value, CommitUnknown)
    assert count(registry) == 0
    hooked.database.close()
