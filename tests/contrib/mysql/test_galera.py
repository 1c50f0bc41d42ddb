"""A Galera cluster: locks hold on all nodes, and workers that write to two nodes claim nothing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from tests.kit.galera import GaleraCluster
from tests.kit.store import Badge, LedgerFence, WorkerRegistry
from tests.store.bench import LEASE, Bench
from tests.store.conftest import opened, plan

from slotwise import DatabaseUnreachable
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.contrib.mysql.dialect import MySQL, error_number
from slotwise.contrib.mysql.galera import NOT_READY, node_of
from slotwise.contrib.mysql.writer_nodes import WriterNodes, worker_nodes
from slotwise.spi import Claim

#: The holders of claims, which are workers.
NAMES = ("host:1:a", "host:1:b")
#: What a node says to the later one of two transactions.
CONFLICT = 1213


@pytest.fixture
def benches(galera_urls: list[str]) -> Iterator[list[Bench]]:
    """A store on each of two nodes, over the same tables, with planned jobs."""
    plan(galera_urls[0])
    with opened(galera_urls[0]) as first, opened(galera_urls[1]) as second:
        one = Bench(first)
        yield [one, Bench(second, clock=one.clock)]


def number_of(work: Callable[[], object]) -> int | None:
    """Do this work; return the number of its error."""
    try:
        work()
    except DBAPIError as error:
        return error_number(error)
    return None


def test_a_session_on_a_node(benches: list[Bench]) -> None:
    """It knows its node, and reads what the others have committed."""
    for number, bench in enumerate(benches, start=1):
        bench.database.verify()
        with bench.database.transaction() as own:
            assert node_of(own) == f"node{number}"
            assert own.scalar(sa.text("SELECT @@wsrep_sync_wait")) == 7
    one, other = benches
    for _ in range(20):
        id = one.client.schedule("mail", None, delay=timedelta(days=1)).id
        assert other.find("mail", id) is not None


def test_a_lock_without_a_change_is_known_to_its_node_only(
    benches: list[Bench],
) -> None:
    """Why locks are changes: both lock a row, both commit. An UPDATE without a change is none."""
    one, other = (bench.database for bench in benches)
    for statement in (
        "SELECT value FROM scheduled_meta WHERE `key` = 'schema_version' FOR UPDATE",
        "UPDATE scheduled_meta SET value = value WHERE `key` = 'schema_version'",
    ):
        with one.transaction() as first, other.transaction() as second:
            first.exec_driver_sql(statement)
            second.exec_driver_sql(statement)


@pytest.mark.parametrize("lock", ["alone", "latch", "shared latch"])
def test_of_two_locks_on_two_nodes_one_is_refused(
    benches: list[Bench], lock: str
) -> None:
    def take(bench: Bench, own: sa.Connection) -> None:
        if lock == "alone":
            assert bench.store.dialect.alone(own, "mail")
        else:
            bench.store.dialect.latch(own, "mail", shared=lock == "shared latch")

    one, other = benches
    for _ in ("the row is made", "the row is there"):
        with other.database.main.connect() as second:
            with one.database.main.begin() as first:
                take(one, first)
                take(other, second)
            assert number_of(second.commit) == CONFLICT


@pytest.mark.parametrize("kind", ["plain", "mail"])
def test_a_guard_and_a_take_over_on_another_node(
    benches: list[Bench], kind: str
) -> None:
    """The transaction of a handler cannot commit when another worker has the slot."""
    one, other = benches
    claim = claimed(one, kind)
    fence = LedgerFence(one.store)
    with one.database.main.connect() as users:
        fence.guard(claim, users)
        users.exec_driver_sql("INSERT INTO scheduled_meta VALUES ('effect', '1')")
        other.take_over(claim)
        assert number_of(users.commit) == CONFLICT
    with one.database.transaction() as own:
        found = own.exec_driver_sql(
            "SELECT 1 FROM scheduled_meta WHERE `key` = 'effect'"
        )
        assert found.first() is None


@pytest.mark.parametrize("kind", ["plain", "mail"])
def test_a_guard_that_commits_first(benches: list[Bench], kind: str) -> None:
    one, other = benches
    claim = claimed(one, kind)
    with other.database.main.connect() as second:
        (held,) = other.store.dialect.hold(second, [claim], wait=True)
        assert held.row.key == claim.key
        with one.database.main.begin() as users:
            LedgerFence(one.store).guard(claim, users)
        change = sa.text("UPDATE scheduled_tasks SET lost_count = lost_count + 1")
        assert CONFLICT in (
            number_of(lambda: second.execute(change)),
            number_of(second.commit),
        )


def claimed(bench: Bench, kind: str) -> Claim:
    """A claim that is running, and some time later."""
    if kind == "mail":
        bench.client.schedule("mail", None, delay=timedelta(seconds=1))
    bench.tick()
    claim = bench.claim_one(kind)
    bench.tick(0.1)
    return claim


def test_of_two_claims_on_two_nodes_one_is_refused(benches: list[Bench]) -> None:
    """The row was claimed on both; only one of them commits."""
    one, other = benches
    one.client.schedule("mail", None, delay=timedelta(seconds=1))
    one.tick()
    errors: list[int | None] = []
    with other.database.main.connect() as second:
        row = (
            "UPDATE scheduled_tasks SET version = version + 1 WHERE task_name = 'mail'"
        )
        second.exec_driver_sql(row)
        claim = one.claim_one("mail")
        errors.append(number_of(second.commit))
    assert errors == [CONFLICT]
    assert one.row(*claim.key).version == claim.token


@pytest.fixture
def signed_in(benches: list[Bench]) -> Callable[[], None]:
    """Two workers are alive: each call is a heartbeat of both."""
    skews: list[float | None] = [None]

    def beat() -> None:
        for name in NAMES:
            registry = WorkerRegistry(benches[0].store)
            badge = dataclasses.replace(badge_of(benches[0]), worker=name)
            registry.sign_in(badge, "running", skews[0])
        skews[0] = 0.0

    beat()
    return beat


def badge_of(bench: Bench) -> Badge:
    return Badge(
        worker="",
        host="host",
        pid=1,
        boot_id="a",
        version="1",
        capacity=1,
        tags=[],
        tasks=["mail"],
        lease=LEASE,
        started=bench.clock.now(),
        revision=None,
        refused=[],
        passed_over={},
    )


def test_workers_on_two_nodes_claim_nothing_after_two_leases(
    benches: list[Bench],
    signed_in: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Until then the writer may be changed. It ends when all use one node again."""
    one, other = benches
    for number in range(60):
        one.client.schedule("mail", None, id=str(number))

    def claims(*stores: Bench) -> list[int]:
        one.tick(0.26)
        signed_in()
        return [
            len(store.claim("mail", holder=name, limit=1))
            for store, name in zip(stores, NAMES, strict=True)
        ]

    counts = [claims(one, other) for _ in range(12)]
    assert counts[:8] == [[1, 1]] * 8
    assert counts[10:] == [[0, 0]] * 2
    told = [one.message for one in caplog.records if "claims nothing" in one.message]
    assert len(told) == len(NAMES)
    assert "host:1:a" in told[0]
    assert "node2" in told[0]
    assert [claims(one, one) for _ in range(3)][-1] == [1, 1]


def test_a_worker_on_two_nodes_claims_nothing(
    benches: list[Bench], signed_in: Callable[[], None]
) -> None:
    """As behind a proxy that gives each connection another node."""
    one, _ = benches
    dialect = one.store.dialect
    assert isinstance(dialect, MySQL)
    nodes = WriterNodes(dialect)

    def may_write(bench: Bench) -> bool:
        with bench.database.transaction() as own:
            return nodes.may_write(own, NAMES[0], LEASE)

    answers = []
    for _ in range(12):
        one.tick(0.26)
        signed_in()
        answers += [may_write(bench) for bench in benches]
    assert answers[:16] == [True] * 16
    assert answers[-2:] == [False] * 2


def test_what_commands_say(
    benches: list[Bench],
    galera_urls: list[str],
    signed_in: Callable[[], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, other = benches
    for _ in range(12):
        one.tick(0.26)
        signed_in()
        one.claim("mail", holder=NAMES[0])
        other.claim("mail", holder=NAMES[1])
    with one.database.transaction() as own:
        alive = "UPDATE scheduled_workers SET last_seen = utc_timestamp(6)"
        own.exec_driver_sql(alive)
    found = worker_nodes(one.database.settings)
    assert [(each.worker, each.node) for each in found] == [
        (NAMES[0], "node1"),
        (NAMES[1], "node2"),
    ]
    where = ["--database-url", galera_urls[0]]
    assert status(["workers", *where]) == exits.OK
    told = capsys.readouterr().out
    assert "NODE" in told
    assert "claims nothing: it uses the node node1" in told
    assert status(["workers", *where, "--json"]) == exits.OK
    rows = json.loads(capsys.readouterr().out)
    assert {row["node"] for row in rows} == {"node1", "node2"}
    assert status(["health", *where]) == exits.FAILED
    assert "claims nothing" in capsys.readouterr().err


def test_a_receipt_that_another_node_asks_for(benches: list[Bench]) -> None:
    """The transaction still runs on its node, whose lock is unknown elsewhere. Either it has
    committed, or it never will.
    """
    one, other = (bench.store.dialect for bench in benches)
    first, second = (bench.database.main for bench in benches)
    with first.connect() as running, second.connect() as asking:
        receipt = one.transaction_id(running)
        assert receipt is not None
        assert other.committed(asking, receipt) is False
        assert other.committed(asking, receipt) is False
        assert number_of(running.commit) == CONFLICT
    with first.begin() as running:
        receipt = one.transaction_id(running)
    assert receipt is not None
    with second.connect() as asking:
        assert other.committed(asking, receipt) is True


@pytest.mark.parametrize(
    "how", ["rejects", pytest.param("is cut off", marks=pytest.mark.slow)]
)
def test_a_node_that_is_not_ready(
    galera: GaleraCluster, benches: list[Bench], how: str
) -> None:
    """Each statement is refused, also COMMIT, and nothing was committed; the connection is not used
    again.
    """
    node = galera.nodes[1]
    one, other = benches
    with other.database.main.connect() as own:
        own.exec_driver_sql("INSERT INTO scheduled_meta VALUES ('effect', '1')")
        leave = node.isolate if how == "is cut off" else node.reject
        leave(True)
        try:
            assert number_of(own.commit) == NOT_READY
            assert own.invalidated
        finally:
            leave(False)
    for bench in (one, other):
        with bench.database.transaction() as own:
            effect = "SELECT 1 FROM scheduled_meta WHERE `key` = 'effect'"
            assert own.exec_driver_sql(effect).first() is None
    # The pool has no connection left that was open then.
    other.client.schedule("mail", None)


def test_a_call_that_meets_such_a_node_is_done_again(
    galera: GaleraCluster, benches: list[Bench]
) -> None:
    """Behind a proxy the next connection leads to another node."""
    _, other = benches
    other.client.schedule("mail", None, id="a")
    node = galera.nodes[1]
    node.reject(True)
    try:
        with pytest.raises(DatabaseUnreachable, match="1047"):
            other.client.schedule("mail", None, id="b")

        def heal(_: object) -> None:
            node.reject(False)

        sa.event.listen(other.database.main, "handle_error", heal)
        assert other.client.schedule("mail", None, id="b").status == "scheduled"
    finally:
        node.reject(False)
