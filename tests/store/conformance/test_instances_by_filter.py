"""Operations on many recurring instances, by scope, tag, beginning of the id, or id."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.kit.records import Succeeded
from tests.store.bench import Bench, a_job, at

from slotwise import ConfigurationError, Disabled, Every, RecurringItem, UnknownTask
from slotwise.operations import InstanceFilter, Operations
from slotwise.spi import Database
from slotwise.store.operations import instance_operations

ITEMS = [
    RecurringItem("a-1", "EVERY|1m", tags=["gold"]),
    RecurringItem("a-2", "EVERY|1m", tags=["gold", 'e"u\\']),
    RecurringItem("a_3", "EVERY|1m", tags=["golden", "10%"]),
    RecurringItem("b-1", "EVERY|1m"),
]
GOLD = InstanceFilter(tag="gold")


@pytest.fixture
def bench(database: Database) -> Bench:
    bench = Bench(database, [a_job("feed", Disabled()), a_job("other")]).planned()
    bench.client.sync_schedules("feed", ITEMS, scope="crm")
    bench.client.schedule_recurring("feed", "a-single", Every("1m"))
    return bench


@pytest.fixture
def operations(bench: Bench) -> Operations:
    return bench.client.operations.by("ada")


def paused(bench: Bench) -> list[str]:
    return [
        line.id for line in bench.inspect.instances("feed") if line.state == "paused"
    ]


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        (GOLD, ["a-1", "a-2"]),
        (InstanceFilter(tag='e"u\\'), ["a-2"]),
        (InstanceFilter(tag="10%"), ["a_3"]),
        (InstanceFilter(tag="1"), []),
        (InstanceFilter(scope="crm"), ["a-1", "a-2", "a_3", "b-1"]),
        (InstanceFilter(prefix="a-"), ["a-1", "a-2", "a-single"]),
        (InstanceFilter(prefix="a_"), ["a_3"]),
        (InstanceFilter(prefix="a-", scope="crm"), ["a-1", "a-2"]),
        (InstanceFilter(id="b-1"), ["b-1"]),
        (InstanceFilter(id="b-1", tag="gold"), []),
        (InstanceFilter(scope="none"), []),
    ],
)
def test_what_a_filter_chooses(
    bench: Bench, operations: Operations, where: InstanceFilter, ids: list[str]
) -> None:
    """Said by a dry run, which changes nothing, and then done."""
    assert sorted(operations.pause_instances("feed", where, dry_run=True)) == ids
    assert paused(bench) == []
    assert sorted(operations.pause_instances("feed", where)) == ids
    assert sorted(paused(bench)) == ids
    assert operations.pause_instances("feed", where) == []


def test_pause_and_resume(bench: Bench, operations: Operations) -> None:
    """They sleep, alone; slots of the pause are skipped, and one entry of the audit says all."""
    operations.pause_instances("feed", GOLD, note="moving")
    bench.tick(2)
    assert sorted(claim.row.task_instance for claim in bench.claim("feed")) == [
        "a-single",
        "a_3",
        "b-1",
    ]
    assert sorted(operations.resume_instances("feed", GOLD)) == ["a-1", "a-2"]
    assert operations.resume_instances("feed", GOLD) == []
    assert bench.row("feed", "a-1").slot == at(3)
    assert [
        (entry.operation, entry.arguments) for entry in bench.inspect.audit("feed")
    ] == [("resume", {"tag": "gold"}), ("pause", {"tag": "gold"})]


def test_a_pause_with_an_end(bench: Bench, operations: Operations) -> None:
    """Each has its end, as of a pause of one instance."""
    operations.pause_instances("feed", GOLD, until=at(10), replay=True)
    kept = bench.inspect.pauses()
    assert [(pause.id, pause.until) for pause in kept] == [
        ("a-1", at(10)),
        ("a-2", at(10)),
    ]
    assert bench.inspect.audit("feed")[0].arguments["until"] == at(10).isoformat()


def test_trigger_and_skip(bench: Bench, operations: Operations) -> None:
    """Each once; the schedule goes on."""
    assert sorted(operations.trigger_instances("feed", GOLD)) == ["a-1", "a-2"]
    claims = bench.claim("feed")
    assert sorted(claim.row.plan_instance for claim in claims) == ["a-1", "a-2"]
    assert sorted(operations.skip_instances("feed", GOLD)) == ["a-1", "a-2"]
    assert bench.row("feed", "a-1").slot == at(2)
    bench.client.schedule_recurring("feed", "a-1", Disabled())
    assert operations.skip_instances("feed", GOLD) == ["a-2"]
    with pytest.raises(ConfigurationError, match="write 'beside', 'queue' or 'skip'"):
        operations.trigger_instances("feed", GOLD, overlap="never")


def test_delete(bench: Bench, operations: Operations) -> None:
    """What runs finishes; the scope forgets them."""
    bench.tick()
    claims = {claim.row.task_instance: claim for claim in bench.claim("feed")}
    assert sorted(operations.delete_instances("feed", GOLD)) == ["a-1", "a-2"]
    assert operations.delete_instances("feed", GOLD) == []
    bench.settle(claims["a-1"], Succeeded())
    bench.settle(claims["a-2"], Succeeded())
    assert [line.id for line in bench.inspect.instances("feed")] == [
        "a-single",
        "a_3",
        "b-1",
    ]
    again = bench.client.sync_schedules("feed", ITEMS, scope="crm")
    assert sorted(again.added) == ["a-1", "a-2"]


def test_in_chunks(
    bench: Bench, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any number; it continues where it was interrupted."""
    monkeypatch.setattr(instance_operations, "CHUNK", 2)
    scope = InstanceFilter(scope="crm")
    seen = list[int]()
    assert len(operations.pause_instances("feed", scope, progress=seen.append)) == 4
    assert seen[-1] == 4
    assert len(seen) > 1
    (entry,) = bench.inspect.audit("feed")
    assert entry.arguments == {"scope": "crm"}
    assert len(operations.resume_instances("feed", scope)) == 4
    assert len(operations.delete_instances("feed", scope)) == 4


def test_what_is_refused(operations: Operations) -> None:
    """By value and cure."""
    calls: list[Callable[..., object]] = [
        operations.pause_instances,
        operations.resume_instances,
        operations.trigger_instances,
        operations.skip_instances,
        operations.delete_instances,
    ]
    for operation in calls:
        for where in (InstanceFilter(), None, "crm"):
            with pytest.raises(ConfigurationError, match="say which instances"):
                operation("feed", where)
        with pytest.raises(ConfigurationError, match="prefix='': it cannot be blank"):
            operation("feed", InstanceFilter(prefix=""))
        with pytest.raises(UnknownTask, match="did you mean 'feed'"):
            operation("fed", GOLD)
