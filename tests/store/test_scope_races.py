"""Synchronisations of a scope beside each other, and beside operations. On PostgreSQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.kit.records import Succeeded
from tests.store.bench import Bench
from tests.store.hearing import hearing
from tests.store.waiting import wait_until_blocked

from slotwise import Every, RecurringItem, SyncSuperseded
from slotwise.store.planning import scopes


def items(*ids: str, every: str = "EVERY|1m") -> list[RecurringItem[None]]:
    return [RecurringItem(id, every) for id in ids]


def ids_of(bench: Bench) -> list[str]:
    return sorted(line.id for line in bench.inspect.instances("plain"))


def test_two_synchronisations_of_one_scope_at_once(
    pg_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever their order, the tables become what one list says, and that list's call returns."""
    monkeypatch.setattr(scopes, "CHUNK", 7)
    lists = [[f"a{n:03}" for n in range(60)], [f"a{n:03}" for n in range(30, 90)]]

    def sync(ids: list[str]) -> list[str] | None:
        try:
            pg_bench.client.sync_schedules(
                "plain", items(*ids), scope="crm", force=True
            )
        except SyncSuperseded:
            return None
        return ids

    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            done = [ids for ids in pool.map(sync, lists) if ids is not None]
            assert done
            assert ids_of(pg_bench) in done


def test_a_chunk_waits_for_a_synchronisation_that_begins(pg_bench: Bench) -> None:
    """In the caller's transaction: when that is committed, the scope is the caller's."""
    sync = pg_bench.client.sync_schedules
    sync("plain", items("a"), scope="crm")
    with ThreadPoolExecutor(1) as pool:
        with pg_bench.store.transaction() as connection:
            sync("plain", items("b"), scope="crm", force=True, connection=connection)
            other = pool.submit(sync, "plain", items("c"), scope="crm", force=True)
            wait_until_blocked(pg_bench)
        assert other.result(30).removed == ("b",)
    assert ids_of(pg_bench) == ["c"]


def test_an_instance_that_is_made_meanwhile_is_changed(pg_bench: Bench) -> None:
    """The chunk waits for the insert of the same id, and then changes that row."""
    client = pg_bench.client
    with ThreadPoolExecutor(1) as pool:
        with pg_bench.store.transaction() as connection:
            client.schedule_recurring("plain", "m", Every("9m"), connection=connection)
            made = pool.submit(
                client.sync_schedules, "plain", items(*"klmno"), scope="crm"
            )
            wait_until_blocked(pg_bench)
        assert made.result(30).added == tuple("klmno")
    assert ids_of(pg_bench) == list("klmno")
    assert pg_bench.row("plain", "m").slot == pg_bench.row("plain", "k").slot


def test_an_instance_that_is_unscheduled_meanwhile_comes_back(pg_bench: Bench) -> None:
    """The chunk waits for the row's lock, finds no row, and inserts it."""
    client = pg_bench.client
    client.sync_schedules("plain", items(*"ab"), scope="crm")
    with ThreadPoolExecutor(1) as pool:
        with pg_bench.store.transaction() as connection:
            client.unschedule_recurring("plain", "a", connection=connection)
            changed = pool.submit(
                client.sync_schedules,
                "plain",
                items(*"ab", every="EVERY|5m"),
                scope="crm",
            )
            wait_until_blocked(pg_bench)
        assert changed.result(30).changed == ("a", "b")
    assert ids_of(pg_bench) == ["a", "b"]


def test_a_settlement_and_a_change_of_its_row(pg_bench: Bench) -> None:
    """The chunk waits for the settlement, and sees the slot that it has left."""
    client = pg_bench.client
    client.sync_schedules("plain", items("a"), scope="crm")
    pg_bench.tick()
    claims = {claim.row.task_instance: claim for claim in pg_bench.claim("plain")}
    with ThreadPoolExecutor(1) as pool:
        with pg_bench.store.transaction() as connection:
            client.sync_schedules(
                "plain",
                items("a", every="EVERY|30m"),
                scope="crm",
                connection=connection,
            )
            settled = pool.submit(pg_bench.settle, claims["a"], Succeeded())
            wait_until_blocked(pg_bench)
        settled.result(30)
    row = pg_bench.row("plain", "a")
    assert row.schedule is not None
    assert row.schedule.startswith("EVERY|30m")
    assert [entry["outcome"] for entry in pg_bench.slots("plain")].count(
        "running"
    ) == 1


@pytest.mark.parametrize("operation", ["pause", "delete"])
def test_an_operation_waits_for_a_chunk(pg_bench: Bench, operation: str) -> None:
    """What the chunk has inserted is paused, or goes, too."""
    operations = pg_bench.client.operations.by("ada")
    with ThreadPoolExecutor(1) as pool:
        with pg_bench.store.transaction() as connection:
            pg_bench.client.sync_schedules(
                "plain", items("late"), scope="crm", connection=connection
            )
            requested = pool.submit(getattr(operations, operation), "plain")
            wait_until_blocked(pg_bench)
        requested.result(30)
    state = getattr(pg_bench.find("plain", "late"), "state", "gone")
    assert state == ("paused" if operation == "pause" else "gone")


def test_statements_do_not_grow_with_the_instances(pg_bench: Bench) -> None:
    """A thousand new ones take as many statements as thirty, and unchanged ones are not written."""
    sync = pg_bench.client.sync_schedules
    counts = []
    for first, size in ((0, 30), (1000, 1000)):
        ids = [f"c{number:05}" for number in range(first, first + size)]
        given = items(*ids)
        scope = f"scope-{first}"
        for _ in range(2):
            with hearing(pg_bench.database) as sent:
                sync("plain", given, scope=scope)
            counts.append(len(sent))
    new_few, same_few, new_many, same_many = counts
    assert new_many <= new_few + 2
    assert same_many == same_few < new_few


def test_a_page_of_jobs_reads_no_instances(pg_bench: Bench) -> None:
    """Names are found by descents into the index."""
    ids = [f"c{number:05}" for number in range(1000)]
    pg_bench.client.sync_schedules("plain", items(*ids), scope="crm")
    jobs = [line.job for line in pg_bench.inspect.jobs(limit=2)]
    assert jobs == ["delayed", "off"]
    rest = [line.job for line in pg_bench.inspect.jobs(limit=10, after="off")]
    assert rest == ["plain", "retried", "strict"]
