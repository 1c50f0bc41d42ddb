"""``sync_schedules``: the instances of a scope become what a list says, and others stay. On all
databases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
import sqlalchemy as sa
from tests.kit.records import Succeeded
from tests.kit.store import instances
from tests.store.bench import MINUTE, Bench, a_job, a_task, at

from slotwise import (
    ConfigurationError,
    Disabled,
    Every,
    InstanceExists,
    InvalidPayload,
    InvalidSchedule,
    RecurringItem,
    SyncReport,
    SyncSuperseded,
    TaskContext,
    UnknownTask,
    task,
)
from slotwise.inspect import RECURRING
from slotwise.spi import Database, define
from slotwise.store.planning import scopes


@dataclass
class Customer:
    """What a handler of one customer receives."""

    number: int


@task(name="typed")
def typed(ctx: TaskContext[Customer]) -> None:
    """No test runs it."""


@task(name="plain-function")
def plain_function(number: int, *, urgent: bool = False) -> None:
    """No test runs it."""


DEFINITIONS = (
    a_job("feed", Disabled()),
    a_task("mail"),
    define(typed),
    define(plain_function),
)


@pytest.fixture
def bench(database: Database) -> Bench:
    return Bench(database, DEFINITIONS).planned()


def items(*ids: str, every: str = "EVERY|1m", **others: object) -> list[RecurringItem]:
    return [RecurringItem(id, every, **others) for id in ids]


def told(report: SyncReport) -> tuple[list[str], list[str], list[str], int]:
    """Added, changed, removed and unchanged."""
    ids = [sorted(found) for found in (report.added, report.changed, report.removed)]
    return (*ids, report.unchanged)


def ids_of(bench: Bench, name: str = "feed") -> list[str]:
    return sorted(line.id for line in bench.inspect.instances(name))


def count(bench: Bench, table: sa.Table) -> int:
    with bench.store.transaction() as connection:
        return connection.execute(
            sa.select(sa.func.count()).select_from(table)
        ).scalar_one()


def due_of(bench: Bench, id: str) -> datetime | None:
    return bench.row("feed", id).slot


# -- what it does ---------------------------------------------------------------------------------


def test_a_scope_becomes_what_the_list_says(bench: Bench) -> None:
    """Added, changed, kept, removed; the report names the ids."""
    sync = bench.client.sync_schedules
    first = sync("feed", items(*"abcdefg"), scope="crm")
    assert told(first) == (list("abcdefg"), [], [], 0)
    assert (first.task, first.scope, first.needs_force) == ("feed", "crm", False)
    assert told(sync("feed", items(*"abcdefg"), scope="crm")) == ([], [], [], 7)
    again = [*items(*"abcde"), *items("f", every="EVERY|2m"), *items("new")]
    assert told(sync("feed", again, scope="crm")) == (["new"], ["f"], ["g"], 5)
    assert ids_of(bench) == [*"abcdef", "new"]
    assert due_of(bench, "f") == at(2)


@pytest.mark.parametrize("change", ["data", "priority", "tags", "schedule"])
def test_each_part_of_an_item_counts(bench: Bench, change: str) -> None:
    """A row that differs in one of them is changed, once."""
    changes = {"data": [2], "priority": 90, "tags": ["b"], "schedule": "EVERY|5m"}
    first = {"data": [1], "priority": 10, "tags": ["a"], "schedule": "EVERY|1m"}
    then = first | {change: changes[change]}
    bench.client.sync_schedules("feed", [RecurringItem("a", **first)], scope="crm")
    for expected in (([], ["a"], [], 0), ([], [], [], 1)):
        found = bench.client.sync_schedules(
            "feed", [RecurringItem("a", **then)], scope="crm"
        )
        assert told(found) == expected


def test_a_schedule_is_bound_to_its_instance(bench: Bench) -> None:
    """An ``H`` differs by id, and is not a change each time."""
    given = [RecurringItem(f"c{number}", "H H * * *") for number in range(20)]
    bench.client.sync_schedules("feed", given, scope="crm")
    assert len({due_of(bench, item.id) for item in given}) > 10
    assert told(bench.client.sync_schedules("feed", given, scope="crm"))[3] == 20


def test_data_is_that_of_the_task(bench: Bench) -> None:
    """Its type is checked, and the item is named."""
    given = [RecurringItem("a", "EVERY|1m", Customer(1))]
    bench.client.sync_schedules(typed, given, scope="crm")
    wrong = [*given, RecurringItem("b", "EVERY|1m", 7)]
    with pytest.raises(InvalidPayload, match=r"^items\[1\] \(id 'b'\): "):
        bench.client.sync_schedules("typed", wrong, scope="crm")
    assert ids_of(bench, "typed") == ["a"]


def test_data_may_be_a_call(bench: Bench) -> None:
    """Of this task."""
    given = [RecurringItem("a", "EVERY|1m", plain_function.call(7, urgent=True))]
    sync = bench.client.sync_schedules
    assert told(sync(plain_function, given, scope="crm"))[0] == ["a"]
    assert told(sync(plain_function, given, scope="crm"))[3] == 1
    with pytest.raises(
        ConfigurationError, match="it is a call of 'plain-function' among"
    ):
        sync("feed", given, scope="crm")


def test_only_its_scope(bench: Bench) -> None:
    """Another scope of the same task stays, and what was scheduled one by one."""
    sync = bench.client.sync_schedules
    sync("feed", items(*"ab"), scope="one")
    sync("feed", items(*"cd"), scope="two")
    bench.client.schedule_recurring("feed", "single", Every(MINUTE))
    assert told(sync("feed", [], scope="one", force=True)) == ([], [], ["a", "b"], 0)
    assert ids_of(bench) == ["c", "d", "single"]


def test_an_id_belongs_to_one_scope(bench: Bench) -> None:
    """Two lists would change it back and forth: refused, and nothing is changed."""
    bench.client.sync_schedules("feed", items("a"), scope="one")
    with pytest.raises(InstanceExists, match="the id 'a' is in scope 'one'; choose"):
        bench.client.sync_schedules("feed", items("a", "b"), scope="two")
    assert ids_of(bench) == ["a"]


def test_it_takes_in_what_was_scheduled_by_itself(bench: Bench) -> None:
    """Then it is the scope's, and goes with it."""
    bench.client.schedule_recurring("feed", "a", Every(MINUTE))
    sync = bench.client.sync_schedules
    found = sync("feed", items("a"), scope="crm")
    assert told(found) == ([], ["a"], [], 0)
    assert told(sync("feed", [], scope="crm", force=True)) == ([], [], ["a"], 0)


def test_what_is_unscheduled_leaves_its_scope(bench: Bench) -> None:
    """Under the same id it comes back outside, and the next synchronisation adds it again."""
    sync = bench.client.sync_schedules
    sync("feed", items("a", "b"), scope="crm")
    assert bench.client.unschedule_recurring("feed", "a")
    bench.client.schedule_recurring("feed", "a", Every(MINUTE))
    assert told(sync("feed", items("b"), scope="crm")) == ([], [], [], 1)
    assert ids_of(bench) == ["a", "b"]
    bench.client.unschedule_recurring("feed", "a")
    assert told(sync("feed", items("a", "b"), scope="crm")) == (["a"], [], [], 1)


def test_a_deleted_job_leaves_no_scope(bench: Bench) -> None:
    """Nor does an instance of it that comes back."""
    bench.client.sync_schedules("feed", items("a"), scope="crm")
    bench.client.operations.delete("feed")
    assert count(bench, bench.tables.instances) == 0


def test_a_row_that_was_deleted_otherwise_comes_back(bench: Bench) -> None:
    """Its place in the scope stayed; or it goes, if the list has it no more."""
    sync = bench.client.sync_schedules
    sync("feed", items(*"ab"), scope="crm")
    with bench.store.transaction() as connection:
        tasks = bench.tables.tasks
        gone = tasks.c.task_instance.in_(["a", "b"])
        connection.execute(tasks.update().where(gone).values(state="deleted"))
        connection.execute(tasks.delete().where(gone))
    assert told(sync("feed", items("a"), scope="crm", force=True)) == (
        ["a"],
        [],
        ["b"],
        0,
    )
    assert count(bench, bench.tables.instances) == 1


def test_slots_stay_accounted_for(bench: Bench) -> None:
    """A removed instance that comes back starts no slot twice; what is due when it goes is
    skipped.
    """
    sync = bench.client.sync_schedules
    sync("feed", items("a"), scope="crm")
    bench.tick()
    (claim,) = bench.claim("feed")
    bench.settle(claim, Succeeded())
    bench.tick()
    sync("feed", [], scope="crm", force=True)
    sync("feed", items("a"), scope="crm")
    assert due_of(bench, "a") == at(3)
    assert [(entry["slot"], entry["outcome"]) for entry in bench.slots("feed")] == [
        (at(1), "succeeded"),
        (at(2), "skipped"),
    ]


def test_a_paused_job_gets_paused_instances(bench: Bench) -> None:
    """As of ``schedule_recurring``."""
    bench.client.operations.pause("feed")
    bench.client.sync_schedules("feed", items("a"), scope="crm")
    assert bench.row("feed", "a").state == "paused"
    assert bench.row("feed", "a").control == bench.row("feed", RECURRING).control


def test_an_instance_that_runs(bench: Bench) -> None:
    """Removed, its handler finishes; added again meanwhile, the row stays."""
    sync = bench.client.sync_schedules
    sync("feed", items("a"), scope="crm")
    bench.tick()
    (claim,) = bench.claim("feed")
    sync("feed", [], scope="crm", force=True)
    assert bench.row("feed", "a").state == "deleted"
    assert told(sync("feed", items("a"), scope="crm")) == (["a"], [], [], 0)
    bench.settle(claim, Succeeded())
    assert bench.row("feed", "a").slot == at(2)
    assert told(sync("feed", items("a"), scope="crm")) == ([], [], [], 1)


# -- what it refuses ------------------------------------------------------------------------------


def test_more_than_a_fifth_must_be_forced(bench: Bench) -> None:
    """An empty export must not stop all customers. A fifth is not more than a fifth."""
    sync = bench.client.sync_schedules
    sync("feed", items(*"abcde"), scope="crm")
    assert told(sync("feed", items(*"abcd"), scope="crm"))[2] == ["e"]
    refused = (
        r"1 of 4 instances would be removed, which is more than a fifth; .*force=True"
    )
    with pytest.raises(ConfigurationError, match=refused):
        sync("feed", items(*"abc", "new"), scope="crm")
    assert ids_of(bench) == list("abcd")
    assert sync("feed", items(*"abc"), scope="crm", dry_run=True).needs_force
    assert told(sync("feed", items(*"abc"), scope="crm", force=True))[2] == ["d"]


def test_a_dry_run_changes_nothing(bench: Bench) -> None:
    """It says the same."""
    sync = bench.client.sync_schedules
    sync("feed", items(*"abcdef"), scope="crm")
    given = [*items(*"bcde"), *items("f", every="EVERY|2m"), *items("g")]
    said = sync("feed", given, scope="crm", dry_run=True)
    assert told(said) == (["g"], ["f"], ["a"], 4)
    assert ids_of(bench) == list("abcdef")
    assert sync("feed", given, scope="crm") == said


def failing() -> Iterator[RecurringItem]:
    yield from items("a", "b")
    raise OSError("the export ended")


def test_an_iterable_that_fails_half_way_changes_nothing(bench: Bench) -> None:
    """Not even what came before the error."""
    bench.client.sync_schedules("feed", items("a", "old"), scope="crm")
    with pytest.raises(OSError, match="the export ended"):
        bench.client.sync_schedules("feed", failing(), scope="crm", force=True)
    assert ids_of(bench) == ["a", "old"]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (["a"], ConfigurationError, r"^items\[0\]: 'a' is no RecurringItem"),
        (
            items("a", "a"),
            ConfigurationError,
            r"items\[1\] \(id 'a'\): this id comes twice",
        ),
        (items("a", " "), ConfigurationError, r"items\[1\].*an id cannot be blank"),
        (items("a", every="soon"), InvalidSchedule, r"items\[0\] \(id 'a'\): .*soon"),
        (items("a", every=7), ConfigurationError, "7 is not a schedule"),
        (items("a", tags="gold"), ConfigurationError, r"write tags=\['gold'\]"),
        (
            items("a", tags=[7]),
            ConfigurationError,
            "tag=7: expected a string; write '7'",
        ),
        (items("a", tags=[""]), ConfigurationError, "tag='': it cannot be blank"),
        (
            items("a", tags=[*"abcdefghijklmnopqrstu"]),
            ConfigurationError,
            "at most 20",
        ),
        (items("a", priority=2.5), ConfigurationError, "priority=2.5"),
        ("abc", ConfigurationError, "expected a list or another iterable"),
        (7, ConfigurationError, "items=7"),
        (
            items("a", every="EXCLUDING(CRON|0 2 * * *|UTC; XX; skip)"),
            InvalidSchedule,
            "XX",
        ),
    ],
)
def test_bad_items(
    bench: Bench, given: object, error: type[Exception], message: str
) -> None:
    """By place, value and cure; nothing is changed."""
    with pytest.raises(error, match=message):
        bench.client.sync_schedules("feed", given, scope="crm")
    assert ids_of(bench) == []
    assert count(bench, bench.tables.scopes) == 0


def test_bad_scopes_and_tasks(bench: Bench) -> None:
    """As above."""
    sync = bench.client.sync_schedules
    for scope, message in (
        (7, "expected a string; write '7'"),
        ("", "cannot be blank"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            sync("feed", [], scope=scope)
    with pytest.raises(UnknownTask, match="did you mean 'feed'"):
        sync("fed", items("a"), scope="crm")


def test_a_one_time_task_has_the_id(bench: Bench) -> None:
    """It is not replaced."""
    bench.client.schedule("mail", id="a", delay="1h")
    with pytest.raises(InstanceExists, match="has a one-time instance with id 'a'"):
        bench.client.sync_schedules("mail", items("a"), scope="crm")


# -- killed, raced, joined ------------------------------------------------------------------------


def test_a_killed_synchronisation_is_completed_by_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that were committed stay; the next one does the rest, once."""
    monkeypatch.setattr(scopes, "CHUNK", 2)
    sync = bench.client.sync_schedules
    sync("feed", items(*"vwxyz"), scope="crm")
    write = scopes.Synchronisation.write
    written = []

    def dies(self: object, *given: object, **how: object) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(given)
        write(self, *given, **how)

    with monkeypatch.context() as patch:
        patch.setattr(scopes.Synchronisation, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            sync("feed", items(*"abcde"), scope="crm", force=True)
    assert ids_of(bench) == list("abcdvwxyz")
    found = sync("feed", items(*"abcde"), scope="crm", force=True)
    assert told(found) == (["e"], [], list("vwxyz"), 4)
    assert ids_of(bench) == list("abcde")


def between_chunks(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """``act`` after the first chunk of the next synchronisation has been committed."""
    monkeypatch.setattr(scopes, "CHUNK", 2)
    chunks = scopes.Synchronisation.chunks

    def interrupted(
        self: scopes.Synchronisation,
    ) -> Iterator[tuple[bool, Sequence[str]]]:
        monkeypatch.setattr(scopes.Synchronisation, "chunks", chunks)
        first, *others = chunks(self)
        yield first
        act()
        yield from others

    monkeypatch.setattr(scopes.Synchronisation, "chunks", interrupted)


def test_of_two_synchronisations_the_later_one_wins(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier one stops before its next chunk, and nothing of it is left."""
    sync = bench.client.sync_schedules
    later = list[SyncReport]()

    def act() -> None:
        later.append(sync("feed", items(*"bcx"), scope="crm", force=True))

    between_chunks(monkeypatch, act)
    with pytest.raises(SyncSuperseded, match="another synchronisation of this scope"):
        sync("feed", items(*"abcde"), scope="crm")
    assert told(later[0]) == (["c", "x"], [], ["a"], 1)
    assert ids_of(bench) == list("bcx")


def test_two_scopes_do_not_meet(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each goes on."""
    sync = bench.client.sync_schedules
    between_chunks(monkeypatch, lambda: sync("feed", items("other"), scope="two"))
    sync("feed", items(*"abcde"), scope="crm")
    assert ids_of(bench) == [*"abcde", "other"]


def test_a_refused_synchronisation_stops_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not taken the scope; nor has a dry run."""
    sync = bench.client.sync_schedules

    def act() -> None:
        sync("feed", [], scope="crm", dry_run=True)
        with pytest.raises(ConfigurationError, match="force=True"):
            sync("feed", [], scope="crm")

    between_chunks(monkeypatch, act)
    sync("feed", items(*"abcde"), scope="crm")
    assert ids_of(bench) == list("abcde")


def test_between_two_chunks_a_worker_runs_what_is_due(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that is held gets the new schedule with its settlement; a removed one finishes."""
    sync = bench.client.sync_schedules
    sync("feed", items(*"abcd"), scope="crm")
    claims = []

    def claim() -> None:
        bench.tick()
        claims.extend(bench.claim("feed"))

    between_chunks(monkeypatch, claim)
    sync("feed", items(*"abc", every="EVERY|30m"), scope="crm", force=True)
    held = {claim.row.task_instance: claim for claim in claims}
    assert sorted(held) == ["c", "d"]
    assert bench.row("feed", "d").state == "deleted"
    for claim in claims:
        bench.settle(claim, Succeeded())
    assert [due_of(bench, id) for id in "abc"] == [at(30)] * 3
    assert ids_of(bench) == list("abc")
    assert told(sync("feed", items(*"abc", every="EVERY|30m"), scope="crm"))[3] == 3


def test_the_times_of_a_schedule_are_computed_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all chunks, until the slot has come: then for those that follow."""
    monkeypatch.setattr(scopes, "CHUNK", 2)
    computed = []
    create = instances.born

    def born(*given: Any) -> dict[str, Any]:
        computed.append(given)
        return create(*given)

    monkeypatch.setattr(instances, "born", born)
    write = scopes.Synchronisation.write
    ticks = iter([20, 20, 50, 0, 0])

    def written(self: Any, *given: Any, **named: Any) -> None:
        bench.tick(next(ticks) / 60)
        write(self, *given, **named)

    monkeypatch.setattr(scopes.Synchronisation, "write", written)
    bench.client.sync_schedules("feed", items(*"abcdefghij"), scope="crm")
    assert len(computed) == 2
    assert [due_of(bench, id) for id in "abcdefghij"] == [*[at(1)] * 4, *[at(2)] * 6]
    begun = {bench.row("feed", id).created_version for id in "acegi"}
    assert len(begun) == 3


def test_single_calls_between_comparison_and_write(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a chunk finds counts: an id that was made meanwhile is changed, one that was taken out
    and made again by itself is not removed.
    """
    sync, client = bench.client.sync_schedules, bench.client
    sync("feed", items(*"abcdefghij"), scope="crm")
    compare = scopes.Synchronisation.compare

    def then_others_act(self: object, connection: sa.Connection) -> None:
        compare(self, connection)
        for call, *given in (
            (client.schedule_recurring, "new", "EVERY|9m"),
            (client.unschedule_recurring, "a"),
            (client.schedule_recurring, "a", "EVERY|9m"),
            (client.unschedule_recurring, "b"),
        ):
            call("feed", *given, connection=connection)

    monkeypatch.setattr(scopes.Synchronisation, "compare", then_others_act)
    wanted = [*items(*"cdefghij", "new"), *items("b", every="EVERY|2m")]
    found = sync("feed", wanted, scope="crm")
    assert told(found) == (["new"], ["b"], ["a"], 8)
    assert ids_of(bench) == [*"abcdefghij", "new"]
    assert due_of(bench, "new") == at(1)
    assert due_of(bench, "a") == at(9)
    assert due_of(bench, "b") == at(2)


def test_in_the_callers_transaction(bench: Bench) -> None:
    """All or nothing; a rollback takes the scope back, too."""
    sync = bench.client.sync_schedules
    with bench.store.transaction() as connection:
        sync("feed", items("a"), scope="crm", connection=connection)
    with bench.store.rehearsed() as connection:
        sync("feed", items("b"), scope="crm", force=True, connection=connection)
    assert ids_of(bench) == ["a"]
    assert told(sync("feed", items("a"), scope="crm")) == ([], [], [], 1)
