"""A connection that breaks around COMMIT: what was written is written once, and what was not is
known not to be.

Only a server can lose a reply; in SQLite the commit is a call, which returns or raises.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from tests.faults.bench import eventually
from tests.faults.proxy import Proxy
from tests.kit.dialect import DIALECT
from tests.kit.records import Failed, HandedBack, Succeeded
from tests.store.bench import LEASE, Bench, at

from slotwise import Settings
from slotwise.spi import Claim, Database

IS_LOCKING = DIALECT == "locking"
CLAIM = b"given_rows.new_watermark" if IS_LOCKING else b"SET picked = true"
RELEASE = b"cancel_requested=" if IS_LOCKING else b"SET picked = false"
HOLD = b"given_rows.picked_by" if IS_LOCKING else b"FOR UPDATE) AS q"
LOOK = b"SELECT scheduled_tasks.task_name, scheduled_tasks.task_instance, scheduled_tasks.version"
MARK = b"SET outcome"
ORDER = b"scheduled_controls"

lost = pytest.mark.parametrize(
    "forward", [True, False], ids=["the reply is lost", "the request is lost"]
)


@pytest.fixture
def proxy(pg_url: str) -> Iterator[Proxy]:
    with Proxy(pg_url) as proxy:
        yield proxy


@pytest.fixture
def apart(proxy: Proxy) -> Iterator[Bench]:
    """A bench whose way to the database can be cut."""
    database = Database(Settings(database_url=proxy.url))
    yield Bench(database).planned()
    database.close()


def lose_by_itself(proxy: Proxy, said: bytes, *, forward: bool) -> None:
    """What is one statement on PostgreSQL is a transaction of several on other databases."""
    if IS_LOCKING:
        proxy.lose_commit(said=said, forward=forward)
    else:
        proxy.lose_statement(said, forward=forward)


@lost
def test_a_settlement_in_doubt(apart: Bench, proxy: Proxy, forward: bool) -> None:
    """Committed: told as settled, though no reply came. Not committed: raised, and settled by the
    next try.
    """
    apart.tick()
    claims = apart.claim("plain", "retried")
    endings = [(claims[0], Succeeded()), (claims[1], Failed("boom"))]
    proxy.lose_commit(said=RELEASE, forward=forward)
    if forward:
        done = apart.store.settlements.settle(endings)
    else:
        with pytest.raises(DBAPIError):
            apart.store.settlements.settle(endings)
        assert apart.slot("plain")["outcome"] == "running"
        done = apart.store.settlements.settle(endings)
    assert proxy.lost.is_set()
    assert [
        settlement.transition and settlement.transition.label for settlement in done
    ] == ["succeeded", "failed"]
    assert apart.slot("plain")["outcome"] == "succeeded"
    assert (apart.row("plain").version, apart.row("plain").slot) == (
        claims[0].token + 1,
        at(2),
    )
    assert apart.row("retried").attempt == 1


def test_what_is_settled_before_the_connection_breaks_is_told(
    apart: Bench, proxy: Proxy
) -> None:
    """The usual ends of a batch are written first. If the others cannot be, that is said of those
    alone: all of it tried again would find the first ones let go, and take them for lost.
    """
    apart.tick()
    claims = apart.claim("plain", "retried")
    endings = [(claims[0], Succeeded()), (claims[1], Failed("boom"))]
    proxy.lose_commit(said=HOLD, forward=False)
    usual, other = apart.store.settlements.settle(endings)
    assert proxy.lost.is_set()
    assert usual.transition is not None
    assert usual.transition.label == "succeeded"
    assert isinstance(other.error, DBAPIError)
    assert apart.settle(*endings[1]) is not None


def test_what_is_settled_before_the_others_are_looked_at_is_told(
    apart: Bench, proxy: Proxy
) -> None:
    """A row that is locked is looked at after the others are settled: if the connection breaks
    then, it is tried again, and they are not.
    """
    apart.tick()
    claims = apart.claim("plain", "retried")
    locked = (
        sa.select(apart.tables.tasks.c.version)
        .where(apart.tables.tasks.c.task_name == "plain")
        .with_for_update()
    )
    with apart.database.main.begin() as somebody:
        somebody.execute(locked)
        proxy.lose_commit(said=LOOK, forward=False)
        skipped, settled = apart.store.settlements.settle(
            [(claim, Failed("boom")) for claim in claims], wait=False
        )
        somebody.rollback()
    assert isinstance(skipped.error, DBAPIError)
    assert settled.transition is not None
    assert settled.transition.label == "failed"


@lost
def test_a_take_over_in_doubt(apart: Bench, proxy: Proxy, forward: bool) -> None:
    """The same for a reaper: a loss is counted once."""
    apart.tick()
    claim = apart.claim_one("plain")
    proxy.lose_commit(said=RELEASE, forward=forward)
    if forward:
        (taken,) = apart.take_over(claim)
    else:
        with pytest.raises(DBAPIError):
            apart.take_over(claim)
        (taken,) = apart.take_over(claim)
    assert taken.transition is not None
    assert (apart.slot("plain")["lost"], apart.row("plain").lost_count) == (1, 1)


@lost
@pytest.mark.parametrize("name", ["plain", "strict"])
def test_a_claim_in_doubt(
    apart: Bench, proxy: Proxy, name: str, forward: bool
) -> None:
    """A claim whose reply was lost is found by the worker's own boot id, and goes back as if it
    had never been.
    """
    apart.tick()
    proxy.lose_commit(said=CLAIM, forward=forward)
    with pytest.raises(DBAPIError):
        apart.claim(name, holder="host:1:a")
    unknown = apart.store.held.held_by("host:1:a")
    assert [claim.key.task_name for claim in unknown] == ([name] if forward else [])
    for claim in unknown:
        assert apart.settle(claim, HandedBack("unknown")) is not None
    assert apart.slots(name) == []
    again = eventually(lambda: apart.claim(name, holder="host:2:b"))[
        0
    ]  # the server's half may still hold the row
    assert (again.slot, again.row.attempt) == (at(1), 1)


@lost
@pytest.mark.parametrize("name", ["mail", "once"])
def test_a_claim_by_itself_in_doubt(
    apart: Bench, proxy: Proxy, name: str, forward: bool
) -> None:
    """It is a transaction by itself: without its reply nothing starts, and the heartbeat finds the
    row.
    """
    apart.database.verify()  # from here on it is known that the server itself answers
    apart.client.schedule(name, id="one")
    lose_by_itself(proxy, CLAIM, forward=forward)
    with pytest.raises(DBAPIError):
        claim_tasks(apart, "host:1:a")
    assert proxy.lost.is_set()
    unknown = apart.store.held.held_by("host:1:a")
    assert [claim.key for claim in unknown] == ([(name, "one")] if forward else [])
    for claim in unknown:
        assert apart.settle(claim, HandedBack("unknown")) is not None
    (again,) = eventually(lambda: claim_tasks(apart, "host:2:b"))
    assert again.row.attempt == 1


def test_a_claim_by_itself_in_doubt_whose_holder_ends(
    apart: Bench, proxy: Proxy
) -> None:
    """Nobody claims what its holder never learned of; it stays silent, so a reaper takes it over,
    and counts it.
    """
    apart.database.verify()
    apart.client.schedule("mail", id="one")
    lose_by_itself(proxy, CLAIM, forward=True)
    with pytest.raises(DBAPIError):
        claim_tasks(apart, "host:1:a")
    (silent,) = eventually(lambda: apart.store.held.held_by("host:1:a"))
    assert claim_tasks(apart, "host:2:b") == []
    (taken,) = apart.take_over(silent)
    assert taken.transition is not None
    row = apart.row("mail", "one")
    assert (row.picked, row.attempt, row.lost_count) == (False, 1, 1)


def claim_tasks(bench: Bench, holder: str) -> list[Claim]:
    return bench.store.claims.claim_tasks(
        holder, 100, lease=LEASE, names=["mail", "once"]
    )


@lost
def test_a_mark_in_doubt_starts_nothing(
    apart: Bench, proxy: Proxy, forward: bool
) -> None:
    """No acknowledgement, no start: the claim goes back, whether the mark was set or not."""
    apart.tick()
    claim = apart.claim_one("strict")
    proxy.lose_commit(said=MARK, forward=forward)
    with pytest.raises(DBAPIError):
        apart.store.held.mark_running(claim)
    assert apart.slot("strict")["outcome"] == ("running" if forward else "claimed")
    apart.settle(claim, HandedBack("mark_not_acknowledged"))
    assert apart.slots("strict") == []
    assert apart.claim_one("strict").slot == at(1)


@lost
def test_a_tasks_mark_in_doubt_starts_nothing(
    apart: Bench, proxy: Proxy, forward: bool
) -> None:
    """As that of a job; the task has its one start still to come."""
    apart.database.verify()
    apart.client.schedule("once", id="one")
    (claim,) = claim_tasks(apart, "host:1:a")
    lose_by_itself(proxy, b"SET marked", forward=forward)
    with pytest.raises(DBAPIError):
        apart.store.held.mark_running(claim)
    assert (apart.row("once", "one").marked is not None) == forward
    apart.settle(claim, HandedBack("mark_not_acknowledged"))
    (again,) = claim_tasks(apart, "host:2:b")
    assert again.row.attempt == 1
    apart.take_over(again)
    assert (apart.row("once", "one").state, apart.row("once", "one").picked) == (
        None,
        False,
    )


@lost
def test_an_operation_in_doubt(apart: Bench, proxy: Proxy, forward: bool) -> None:
    """An operation is carried out once: one run, one slot left out, one line each in the
    audit.
    """
    operations = apart.client.operations
    proxy.lose_commit(said=ORDER, forward=forward)
    triggered = operations.trigger("plain")
    assert proxy.lost.is_set()
    proxy.lose_commit(said=ORDER, forward=forward)
    skipped = operations.skip_next("plain")
    assert proxy.lost.is_set()
    given = [
        (operation.operation, operation.slot) for operation in apart.inspect.audit()
    ]
    assert given == [("skip_next", at(1)), ("trigger", triggered)]
    assert (skipped, apart.row("plain").slot) == (at(1), at(2))
    assert [claim.slot for claim in apart.claim("plain")] == [triggered]
