"""Pauses with an end: they end by themselves, by the database's clock, once."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.kit.records import Failed
from tests.kit.store import Author, Operation, end_pauses, next_end
from tests.store.bench import MINUTE, Bench, a_job, at

from slotwise import ConfigurationError, Disabled, Every, RecurringItem, UnknownTask
from slotwise.inspect import Pause
from slotwise.operations import Operations

WORKER = Author("worker")


@pytest.fixture
def operations(bench: Bench) -> Operations:
    return bench.client.operations.by("ada")


def end(bench: Bench) -> list[Pause]:
    """What a worker's look for pauses that have ended does."""
    with bench.store.transaction() as connection:
        return end_pauses(Operation.within(connection, bench.store, WORKER))


def following(bench: Bench) -> object:
    with bench.store.transaction() as connection:
        return next_end(connection, bench.tables)


def test_a_pause_ends_by_itself(bench: Bench, operations: Operations) -> None:
    """Its slots are skipped as maintenance; the slot at its end runs, though the look is late."""
    assert operations.pause("plain", until=at(5), note="the disk")
    assert following(bench) == at(5)
    assert not operations.pause("plain", until=at(5))
    bench.clock.set(at(4.9))
    assert end(bench) == []
    assert bench.claim("plain") == []
    bench.clock.set(at(5.5))
    assert bench.claim("plain") == []
    (ended,) = end(bench)
    assert (ended.job, ended.until, ended.note) == ("plain", at(5), "the disk")
    assert bench.gaps("plain") == [(1, 4, 4, "maintenance")]
    assert bench.claim_one("plain").slot == at(5)
    assert end(bench) == []
    assert bench.inspect.pauses() == []
    audit = [(one.operation, one.author) for one in bench.inspect.audit("plain")]
    assert audit == [("resume", WORKER.name), ("pause", "ada")]


def test_its_slots_may_be_caught_up(bench: Bench, operations: Operations) -> None:
    """As it was said when the pause was set; also where it is resumed early."""
    for job in ("plain", "strict"):
        operations.pause(job, until=5 * MINUTE, replay=True)
    bench.clock.set(at(3))
    operations.resume("strict")
    assert bench.claim_one("strict").slot == at(3)
    bench.clock.set(at(5))
    end(bench)
    assert bench.claim_one("plain").slot == at(5)
    assert bench.gaps("plain") == [(1, 4, 4, "collapsed")]


@pytest.mark.parametrize("resumed_at", [3, 7], ids=["before its end", "after its end"])
def test_a_resume_and_the_end_meet(
    bench: Bench, operations: Operations, resumed_at: float
) -> None:
    """The first of them ends the pause, the other finds none. A slot after the end is no slot of
    the pause, whoever ends it.
    """
    operations.pause("plain", until=at(5))
    bench.clock.set(at(resumed_at))
    (resumed,) = operations.resume("plain")
    assert resumed.skipped == min(resumed_at, 4)
    bench.clock.set(at(8))
    assert end(bench) == []
    assert operations.resume("plain") == []
    assert bench.gaps("plain")[0][3] == "maintenance"


def test_an_end_is_moved(bench: Bench, operations: Operations) -> None:
    """The newest end counts; a pause without one takes it away."""
    operations.pause("plain", until=at(5))
    assert operations.pause("plain", until=at(9))
    bench.clock.set(at(6))
    assert end(bench) == []
    assert operations.pause("plain")
    bench.clock.set(at(20))
    assert (end(bench), following(bench)) == ([], None)
    operations.resume("plain")
    assert bench.gaps("plain") == [(1, 20, 20, "paused")]


def test_a_held_row_sleeps_and_wakes(bench: Bench, operations: Operations) -> None:
    """A retry that waits sleeps through the pause; one that runs all the time loses nothing."""
    bench.tick()
    retried, plain = bench.claim_one("retried"), bench.claim_one("plain")
    for job in ("retried", "plain"):
        operations.pause(job, until=at(5))
    bench.settle(retried, Failed("boom"))
    bench.clock.set(at(5))
    while end(bench):
        pass
    assert bench.settle(plain) is not None
    assert bench.gaps("plain") == [(2, 5, 4, "overlap")]
    claim = bench.claim_one("retried")
    assert (claim.slot, claim.row.attempt) == (at(1), 2)
    assert bench.gaps("retried") == [(2, 4, 3, "maintenance")]


def test_one_instance(bench: Bench, operations: Operations) -> None:
    """The others go on; the pause that ends last decides about an instance."""
    beside = bench.beside(a_job("report", Disabled()))
    beside.plan("report")
    for id in ("one", "two", "three"):
        beside.client.schedule_recurring("report", id, Every("1m"))
    assert operations.pause("report", id="one", until=at(8))
    assert operations.pause("report", id="two", until=at(3))
    with pytest.raises(UnknownTask, match="no recurring instance 'four'"):
        operations.pause("report", id="four", until=at(3))
    beside.tick()
    assert [one.row.task_instance for one in beside.claim("report")] == ["three"]
    assert operations.pause("report", until=at(5))
    beside.clock.set(at(4))
    end(beside)
    assert beside.claim("report") == []
    beside.clock.set(at(5))
    end(beside)
    assert {one.row.task_instance for one in beside.claim("report")} == {"two"}
    beside.clock.set(at(8))
    end(beside)
    assert {one.row.task_instance for one in beside.claim("report")} == {"one"}
    assert beside.inspect.pauses() == []


def test_one_time_tasks_by_name(bench: Bench, operations: Operations) -> None:
    """Those that wait, those whose worker died, and those that come later; nothing of them is due
    for a poll. They start at the end, without anybody's doing.
    """
    bench.client.schedule("mail", id="lost")
    bench.take_over(bench.claim_one("mail"))
    bench.client.schedule("mail", id="waiting")
    assert operations.pause("mail", until=at(5), note="the server moves")
    assert not operations.pause("mail", until=at(5))
    bench.client.schedule("mail", id="later")
    bench.clock.set(at(4))
    assert bench.claim("mail") == []
    assert bench.store.due.next_due(["mail"]) is None
    told = bench.inspect.explain_task("mail", "later").sentences
    assert "the server moves" in told[0]
    assert "ends by itself" in told[0]
    bench.clock.set(at(5))
    assert len(bench.claim("mail")) == 3
    (ended,) = end(bench)
    assert (ended.job, ended.scope) == ("mail", "tasks")
    operations.pause("mail")
    bench.client.schedule("mail", id="held")
    assert bench.claim("mail") == []
    operations.resume("mail")
    assert len(bench.claim("mail")) == 1


def test_all(bench: Bench, operations: Operations) -> None:
    """Everything starts again at the end; what is paused by its own name sleeps on."""
    operations.pause("strict")
    assert operations.pause_all(until=at(5))
    assert not operations.pause_all(until=at(5))
    bench.clock.set(at(6))
    (ended,) = end(bench)
    assert ended.scope == "all"
    assert bench.inspect.all_paused() is None
    assert bench.gaps("plain") == [(1, 4, 4, "maintenance")]
    assert bench.row("strict").state == "paused"
    assert {one.row.task_name for one in bench.claim()} >= {"plain", "retried"}


def test_a_pause_of_all_that_only_its_note_has_lost(
    bench: Bench, operations: Operations
) -> None:
    """A release without ends of pauses resumes by the note alone; later pauses end nevertheless."""
    assert operations.pause_all(until=at(2))
    assert operations.pause("plain", until=at(3))
    with bench.store.transaction() as connection:
        meta = bench.tables.meta
        connection.execute(meta.delete().where(meta.c.key == "paused"))
    bench.clock.set(at(4))
    assert [one.scope for one in end(bench)] == ["all"]
    assert [one.job for one in end(bench)] == ["plain"]
    assert end(bench) == []
    assert bench.inspect.pauses() == []


def test_a_deleted_instance_leaves_no_pause(
    bench: Bench, operations: Operations
) -> None:
    beside = bench.beside(a_job("report", Disabled()))
    beside.plan("report")
    beside.client.schedule_recurring("report", "one", Every("1m"))
    operations.pause("report", id="one")
    assert beside.client.unschedule_recurring("report", "one")
    assert beside.inspect.pauses() == []


def test_a_row_that_goes_meanwhile_hides_none_behind_the_chunk(
    bench: Bench, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk is full by the rows that were found, not by those that were still there."""
    monkeypatch.setattr("slotwise.store.operations.job_operations.CHUNK", 2)
    beside = bench.beside(a_job("report", Disabled()))
    beside.plan("report")
    for id in range(4):
        beside.client.schedule_recurring("report", str(id), Every("1m"))
    operations.pause("report", until=at(2))
    beside.clock.set(at(2))
    original = Operation.rows
    lost = iter([True])

    def without_the_first(self: Operation, *conditions: object) -> list[object]:
        found = original(self, *conditions)
        return found[1:] if next(lost, False) else found

    monkeypatch.setattr(Operation, "rows", without_the_first)
    while end(beside):
        pass
    assert len(beside.claim("report")) == 4


def test_instances_of_a_paused_task_sleep_from_their_first_day(
    bench: Bench, operations: Operations
) -> None:
    """A task has no row of its own: what is added during the pause asks for the pause."""
    bench.client.schedule_recurring("mail", "one", Every("1m"))
    operations.pause("mail", until=at(5))
    bench.client.schedule_recurring("mail", "two", Every("1m"))
    bench.client.sync_schedules(
        "mail", [RecurringItem("three", Every("1m"))], scope="crm"
    )
    bench.clock.set(at(3))
    assert bench.claim("mail") == []
    bench.clock.set(at(5))
    end(bench)
    assert len(bench.claim("mail")) == 3


@pytest.mark.parametrize("is_first", [True, False], ids=["before", "meanwhile"])
@pytest.mark.parametrize("ends", [True, False], ids=["ends", "resumed"])
def test_a_name_with_tasks_and_instances_stops_as_a_whole(
    bench: Bench, operations: Operations, is_first: bool, ends: bool
) -> None:
    """Also instances that are made meanwhile, and tasks; and it starts as a whole again."""
    bench.client.schedule("mail", id="before")
    if is_first:
        bench.client.schedule_recurring("mail", "c-1", Every("1m"))
    assert operations.pause("mail", until=at(5) if ends else None)
    assert not operations.pause("mail", until=at(5) if ends else None)
    if not is_first:
        bench.client.schedule_recurring("mail", "c-1", Every("1m"))
    bench.client.schedule("mail", id="meanwhile")
    bench.clock.set(at(3))
    assert bench.claim("mail") == []
    bench.clock.set(at(5))
    if ends:
        assert {one.job for one in end(bench)} == {"mail"}
    else:
        assert len(operations.resume("mail")) == 1
        bench.clock.set(at(6))
    assert bench.inspect.pauses() == []
    found = sorted(claim.row.task_instance for claim in bench.claim("mail"))
    assert found == ["before", "c-1", "meanwhile"]
    verbs = [one.operation for one in bench.inspect.audit("mail")]
    assert sorted(verbs) == ["pause", "resume"]


def test_a_deleted_job_leaves_no_pause(bench: Bench, operations: Operations) -> None:
    operations.pause("plain", until=at(5))
    operations.delete("plain")
    assert bench.inspect.pauses() == []


def test_an_end_that_has_passed(bench: Bench, operations: Operations) -> None:
    """Is refused, by the database's clock, and nothing is paused."""
    for until in (at(0), timedelta(0), -MINUTE):
        with pytest.raises(ConfigurationError, match="choose a later end"):
            operations.pause("plain", until=until)
    assert bench.row("plain").state is None


def test_a_job_of_many_rows_is_resumed_in_chunks(
    bench: Bench, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that dies between two of them leaves the pause, and the next one continues."""
    monkeypatch.setattr("slotwise.store.operations.job_operations.CHUNK", 2)
    beside = bench.beside(a_job("report", Disabled()))
    beside.plan("report")
    for id in range(4):
        beside.client.schedule_recurring("report", str(id), Every("1m"))
    operations.pause("report", until=at(2))
    beside.clock.set(at(2))
    rounds = 0
    while end(beside):
        rounds += 1
    assert rounds == 3
    assert len(beside.claim("report")) == 4
