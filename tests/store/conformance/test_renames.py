"""A job or task with rows is renamed: they run, are found, and stay accounted for, also beside
workers of the old release.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from slotwise import (
    ConfigurationError,
    Every,
    InstanceExists,
    InvalidJob,
    JobContext,
    JobRegistry,
    RecurringItem,
    Retry,
    TaskContext,
    job,
    task,
)
from slotwise.spi import Database, define
from slotwise.store.slots.counts import Counts
from slotwise.testing import ManualClock, ManualWorker

ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def run(ctx: JobContext) -> None:
    ran.append(f"{ctx.name} {ctx.slot:%H:%M}")


def send(ctx: TaskContext, to: str) -> str:
    ran.append(f"{ctx.name} {to}")
    return to


HOURLY = Every("1h")
OLD = job(name="report", schedule=HOURLY)(run)
NEW = job(name="sales-report", schedule=HOURLY, aliases=("report",))(run)
SEND = task(name="send", record="all", result_retention="1d")(send)
SEND_MAIL = task(
    name="send-mail", aliases={"send"}, record="all", result_retention="1d"
)(send)


class Cluster:
    """Workers of both releases that share a database and a clock."""

    def __init__(self, database: Database, clock: ManualClock) -> None:
        self.database, self.clock = database, clock

    def start(self, *declared: object) -> ManualWorker:
        worker = ManualWorker(declared, self.database, self.clock)
        worker.plan()
        return worker


@pytest.fixture
def cluster(database: Database) -> Cluster:
    return Cluster(database, ManualClock(datetime(2026, 1, 1, tzinfo=UTC)))


def rows(worker: ManualWorker) -> dict[str, str]:
    return {one.job: one.state for one in worker.inspect.jobs()}


def test_a_job_keeps_its_slots(cluster: Cluster) -> None:
    """No slot is lost and none runs twice: what was missed before the deploy is caught up under
    the new name, and the history is found under it.
    """
    old = cluster.start(OLD)
    old.tick("1h")
    old.run_due()
    old.tick("3h")  # no worker runs
    new = cluster.start(NEW)
    assert rows(new)["report"] == "paused"
    new.run_due()
    assert ran == ["report 01:00", "sales-report 04:00"]
    found = [(one.slot.hour, one.outcome) for one in new.inspect.slots(NEW)]
    assert found == [(4, "succeeded"), (2, "skipped"), (1, "succeeded")]
    assert len(new.inspect.slots(NEW, limit=2)) == 2
    assert len(new.inspect.slots("report")) == 1
    first = new.inspect.slots(NEW)[-1].slot
    assert new.inspect.slot(NEW, first) is not None
    new.tick("6h")
    while Counts(new.store).recount_closed():
        pass
    counts = new.inspect.outcome_counts(first, first + timedelta(hours=4), job=NEW)
    assert {one.job for one in counts} == {"report", "sales-report"}
    for rates in (new.inspect.rates(NEW), new.inspect.rates_of([NEW.name])[NEW.name]):
        assert (rates.day.runs, rates.day.skipped, rates.strip) == (2, 2, "✓✓")
    assert new.inspect.explain(NEW, first).outcome == "succeeded"
    (entry,) = [one for one in new.inspect.audit() if one.operation == "rename"]
    assert entry.job == "sales-report"


def test_workers_of_the_old_release_run_nothing_twice(cluster: Cluster) -> None:
    """They know the former name only: its row sleeps, also if they start after the rename."""
    before = cluster.start(OLD)
    new = cluster.start(NEW)
    after = cluster.start(OLD)
    again = cluster.start(NEW)
    for _ in range(3):
        cluster.clock.tick(timedelta(hours=1))
        for worker in (before, after, new, again):
            worker.run_due()
    assert ran == ["sales-report 01:00", "sales-report 02:00", "sales-report 03:00"]


def test_workers_of_both_releases_start_at_once(cluster: Cluster) -> None:
    """Whatever the order, one row is awake, and has the new name."""
    if cluster.database.dialect_name == "sqlite":
        pytest.skip("one writer")
    cluster.start(OLD)
    with ThreadPoolExecutor(6) as threads:
        workers = list(threads.map(cluster.start, [NEW, OLD] * 6))
    assert rows(workers[0])["report"] == "paused"
    cluster.clock.tick(timedelta(hours=1))
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(ManualWorker.run_due, workers))
    assert ran == ["sales-report 01:00"]


def test_a_held_row_keeps_its_name_until_it_is_idle(cluster: Cluster) -> None:
    """Overlap holds: no second row is made while a slot runs; both releases run the row."""
    old = cluster.start(OLD)
    old.tick("1h")
    (claim,) = old.poll()
    old.begin(claim)
    new = cluster.start(NEW)
    assert rows(new) == {"report": "running"}
    held = new.inspect.job(NEW)
    assert held is not None
    assert held.job == "report"
    assert new.inspect.explain_job(NEW) is not None
    assert new.operations.pause(NEW)
    assert new.operations.resume(NEW) != []
    new.tick("1h")
    assert new.run_due() == []
    old.finish(claim)
    old.settle()
    new.tick("1h")
    new.run_due()
    assert ran == ["report 03:00"]
    again = cluster.start(NEW)
    again.tick("1h")
    again.run_due()
    assert ran[1:] == ["sales-report 04:00"]


def test_a_slot_that_waits_for_its_retry_ends_under_its_name(cluster: Cluster) -> None:
    """Its ledger row and its attempts are the former name's until it has ended."""
    fails = iter([True])

    def flaky(ctx: JobContext) -> None:
        ran.append(f"{ctx.name} {ctx.attempt}")
        if next(fails, False):
            raise OSError

    retry = Retry.exponential(max_attempts=3, initial=timedelta(minutes=1))
    old = cluster.start(job(name="report", schedule=HOURLY, retry=retry)(flaky))
    old.tick("1h")
    old.run_due()
    new = cluster.start(
        job(name="sales-report", schedule=HOURLY, retry=retry, aliases=("report",))(
            flaky
        )
    )
    new.tick("5m")
    new.run_due()
    assert ran == ["report 1", "report 2"]
    (entry,) = new.inspect.slots("report")
    assert (entry.outcome, entry.attempts) == ("succeeded", 2)


def test_a_synchronised_scope_follows(cluster: Cluster) -> None:
    """An instance of the list runs under one name."""
    old = cluster.start(SEND)
    old.client.schedule_recurring(SEND.call("ann"), "ann", "EVERY|1h")
    new = cluster.start(SEND_MAIL)
    new.client.sync_schedules(
        SEND_MAIL,
        [RecurringItem("ann", "EVERY|1h", SEND_MAIL.call("eve"))],
        scope="crm",
    )
    new.tick("1h")
    new.run_due()
    assert ran == ["send-mail eve"]


def test_a_scope_follows(cluster: Cluster) -> None:
    """What its list does not have any more is removed, also under the former name."""
    ids = [f"c{number}" for number in range(6)]
    items = [RecurringItem(id, "EVERY|1h", SEND.call(id)) for id in ids]
    old = cluster.start(SEND)
    old.client.sync_schedules(SEND, items, scope="crm")
    new = cluster.start(SEND_MAIL)
    sync = new.client.sync_schedules
    items = [RecurringItem(id, "EVERY|1h", SEND_MAIL.call(id)) for id in ids]
    with pytest.raises(ConfigurationError, match="6 of 6 instances would be removed"):
        sync(SEND_MAIL, [], scope="crm")
    would = sync(SEND_MAIL, items[1:], scope="crm", dry_run=True)
    done = sync(SEND_MAIL, items[1:], scope="crm")
    assert would == done
    assert (done.changed, done.removed) == (tuple(ids[1:]), ("c0",))
    assert sync(SEND_MAIL, items[1:], scope="crm").unchanged == 5
    assert new.inspect.instances("send") == []
    again = sync(SEND_MAIL, items[2:], scope="crm")
    assert (again.removed, again.unchanged) == (("c1",), 4)
    new.tick("1h")
    assert len(new.run_due()) == 4


def test_a_held_instance_of_a_scope_follows_later(cluster: Cluster) -> None:
    """It runs under the former name meanwhile, and can be removed there."""
    items = [RecurringItem(id, "EVERY|1h", SEND_MAIL.call(id)) for id in ("a", "b")]
    old = cluster.start(SEND)
    old.client.sync_schedules(
        SEND, [RecurringItem("a", "EVERY|1h", SEND.call("a"))], scope="crm"
    )
    old.tick("1h")
    (claim,) = old.poll()
    old.begin(claim)
    new = cluster.start(SEND_MAIL)
    new.client.sync_schedules(SEND_MAIL, items, scope="crm")
    assert [one.id for one in new.inspect.instances("send")] == ["a"]
    old.finish(claim)
    old.settle()
    new.client.sync_schedules(SEND_MAIL, items[1:], scope="crm", force=True)
    assert [one.id for one in new.inspect.instances("send")] == []
    assert [one.id for one in new.inspect.instances("send-mail")] == ["b"]


def test_a_paused_job_stays_paused(cluster: Cluster) -> None:
    old = cluster.start(OLD)
    old.operations.pause(OLD, note="maintenance")
    new = cluster.start(NEW)
    new.tick("2h")
    assert new.run_due() == []
    new.operations.resume(NEW)
    new.tick("1h")
    new.run_due()
    assert ran == ["sales-report 03:00"]


def test_a_paused_job_with_instances_keeps_its_name(cluster: Cluster) -> None:
    """Its instances sleep under the former name, and wake with it."""
    old = cluster.start(OLD)
    old.client.schedule_recurring(OLD, "ann", HOURLY)
    old.operations.pause(OLD)
    new = cluster.start(NEW)
    new.operations.resume(NEW)
    new.tick("1h")
    new.run_due()
    assert sorted(ran) == ["report 01:00", "report 01:00"]


def test_an_old_release_that_was_resumed_by_hand(cluster: Cluster) -> None:
    """After a rollback the former row is awake; the next deploy puts it to sleep again."""
    cluster.start(OLD)
    new = cluster.start(NEW)
    new.operations.resume("report")
    again = cluster.start(NEW)
    assert rows(again) == {"report": "paused", "sales-report": "waiting"}
    again.tick("1h")
    again.run_due()
    assert ran == ["sales-report 01:00"]


def test_recurring_instances_follow(cluster: Cluster) -> None:
    """When they are declared under the new name; before that they run under the former one."""
    old = cluster.start(SEND)
    old.client.schedule_recurring(SEND.call("ann"), "ann", "EVERY|1h")
    new = cluster.start(SEND_MAIL)
    new.tick("1h")
    new.run_due()
    new.client.schedule_recurring(SEND_MAIL.call("eve"), "ann", "EVERY|1h")
    new.tick("1h")
    new.run_due()
    assert ran == ["send ann", "send-mail eve"]
    old.client.schedule_recurring(
        SEND.call("ann"), "ann", "EVERY|1h"
    )  # of the old release
    new.client.schedule_recurring(SEND_MAIL.call("eve"), "ann", "EVERY|1h")
    new.tick("1h")
    new.run_due()
    assert ran[2:] == ["send-mail eve"]
    assert new.client.unschedule_recurring(SEND_MAIL, "ann")
    new.tick("1h")
    assert new.run_due() == []


def test_tasks_run_and_are_found_under_both_names(cluster: Cluster) -> None:
    old = cluster.start(SEND)
    for id in ("1", "2", "3", "4"):
        old.client.schedule(SEND.call(id), id=id, delay="1h")
    new = cluster.start(SEND_MAIL)
    client = new.client
    client.schedule(SEND_MAIL.call("5"), id="5", delay="1h")
    assert [one.id for one in client.list(SEND_MAIL)] == ["5", "1", "2", "3", "4"]
    pages = [client.list(SEND_MAIL, limit=2)]
    while pages[-1]:
        pages.append(client.list(SEND_MAIL, after=pages[-1][-1], limit=2))
    assert [one.id for page in pages for one in page] == ["5", "1", "2", "3", "4"]
    again = client.schedule(SEND_MAIL.call("again"), id="1")
    assert (again.task, again.status) == ("send", "exists")
    with pytest.raises(InstanceExists):
        client.schedule(SEND_MAIL.call("again"), id="1", if_exists="raise")
    assert client.get(SEND_MAIL, "2") is not None
    assert client.cancel(SEND_MAIL, "2").status == "cancelled"
    assert client.reschedule(SEND_MAIL, "3").status == "scheduled"
    new.run_due()
    assert ran == ["send 3"]
    result = client.result(SEND_MAIL, "3")
    assert result is not None
    assert result.result == "3"
    new.tick("1h")
    new.run_due()
    assert sorted(ran[1:]) == ["send 1", "send 4", "send-mail 5"]
    assert client.cancel_all(SEND_MAIL) == 0


def test_callers_of_the_old_release_schedule_beside(cluster: Cluster) -> None:
    """A process that knows the former name only is served by workers of both."""
    new = cluster.start(SEND_MAIL)
    old = cluster.start(SEND)
    old.client.schedule(SEND.call("ann"))
    new.run_due()
    assert ran == ["send ann"]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ([NEW, OLD], "names must be unique|which is a name of"),
        (
            [NEW, job(name="x", schedule=HOURLY, aliases=["report"])(run)],
            "x.aliases has 'report', which is a name of 'sales-report'",
        ),
    ],
)
def test_a_former_name_of_another_is_refused(
    declared: list[object], message: str
) -> None:
    with pytest.raises(InvalidJob, match=message):
        JobRegistry(jobs=declared)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ("report", "aliases is 'report'; expected a set of former names"),
        ((7,), "a former name is 7; expected a string"),
        ((" ",), "a former name is ' '; a name cannot be blank"),
    ],
)
def test_wrong_names_are_refused(aliases: object, message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        define(job(name="x", schedule=HOURLY, aliases=aliases)(run))  # type: ignore[arg-type]
