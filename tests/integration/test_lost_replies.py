"""A caller whose reply is lost gets the answer nevertheless, or learns that it is unknown; nothing runs twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tests.faults.proxy import Proxy

from slotwise import Every, Item, JobContext, JobRegistry, job, task
from slotwise.client import client as client_module
from slotwise.client.client import Client
from slotwise.errors import CommitUnknown, DatabaseUnreachable
from slotwise.store.connect import database as connections
from slotwise.store.dialects.postgresql.dialect import PostgreSQL

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
    registry = JobRegistry(jobs=[nightly], tasks=[mail], database_url=proxy.url, wake_up=False, process_hook=False)
    yield registry
    registry.database.close()


def count(registry: JobRegistry) -> int:
    with registry.database.transaction() as connection:
        return int(connection.scalar(sa.text("select count(*) from scheduled_tasks where task_name = 'mail'")) or 0)


#: What is called, with the id of the round, and what it answers.
CALLS: dict[str, tuple[Callable[[Client, str], Any], str]] = {
    "schedule": (lambda client, id: client.schedule(mail, id=id, delay=HOUR).status, "scheduled"),
    "schedule_many": (
        lambda client, id: str(client.schedule_many(mail, [Item(None, id=id), Item(None, id=f"{id}-")]).scheduled), "2",
    ),
    "reschedule": (lambda client, id: client.reschedule(mail, "there", delay=HOUR).status, "scheduled"),
    "cancel": (lambda client, id: client.cancel(mail, "there").status, "cancelled"),
}  # fmt: skip
#: Every transaction says it; after some calls a statement is prepared, and only its name is said.
ANY = b"COMMIT"


@pytest.mark.parametrize("rounds", [3, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
@pytest.mark.parametrize("call", CALLS)
def test_a_lost_reply_is_looked_up(registry: JobRegistry, proxy: Proxy, call: str, rounds: int) -> None:
    """The answer is that of the call, also where a worker has taken the task meanwhile."""
    asked, answer = CALLS[call]
    client = registry.client
    for number in range(rounds):
        client.schedule(mail, id="there", delay=HOUR)
        before = count(registry)
        proxy.lose_commit(said=ANY, forward=True)
        assert asked(client, f"id-{number}") == answer
        assert proxy.lost.is_set()
        grown = {"schedule": 1, "schedule_many": 2, "cancel": -1}
        assert count(registry) - before == grown.get(call, 0)


@pytest.mark.parametrize("call", CALLS)
def test_what_was_not_committed_is_an_outage(registry: JobRegistry, proxy: Proxy, call: str) -> None:
    """Nothing was written, and the call can be repeated."""
    asked, answer = CALLS[call]
    registry.client.schedule(mail, id="there", delay=HOUR)
    proxy.lose_commit(said=ANY, forward=False)
    with pytest.raises(DatabaseUnreachable):
        asked(registry.client, "id")
    assert count(registry) == 1
    assert asked(registry.client, "id") == answer


def test_a_committed_task_is_not_scheduled_again(
    registry: JobRegistry, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database does not say in time, and the task has run and gone when the caller asks again: it was scheduled."""
    client = registry.client
    client.list()
    with monkeypatch.context() as busy:
        busy.setattr(client_module, "ANSWER", timedelta(0))
        busy.setattr(connections, "ANSWER", timedelta(0))
        busy.setattr(PostgreSQL, "committed", lambda *_: None)  # as while the transaction is still in progress
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
def test_without_an_id_only_the_row_can_tell(registry: JobRegistry, proxy: Proxy, ran: bool) -> None:
    """One statement, one trip: what has run by then is unknown, and the error has the id that was chosen."""
    client = registry.client
    client.list()
    with registry.database.transaction() as connection:
        rule = "create function run() returns trigger language plpgsql as 'begin return null; end'"
        trigger = "create trigger run before insert on scheduled_tasks for each row execute function run()"
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
