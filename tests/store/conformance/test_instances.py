"""Recurring instances: rows with schedules of their own, made, changed and deleted at run time, on
both databases.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

import pytest
import sqlalchemy as sa
from tests.kit.records import Failed, HandedBack, Succeeded
from tests.kit.store import EndOfRun
from tests.store.bench import MINUTE, NOON, Bench, a_job, a_task, at

from slotwise import (
    AnyOf,
    Calendar,
    CatchUp,
    ConfigurationError,
    Cron,
    Daily,
    Disabled,
    Every,
    FixedDelay,
    InstanceExists,
    InvalidJob,
    InvalidSchedule,
    Once,
    Overlap,
    Retry,
    TaskContext,
    UnknownTask,
    parse_schedule,
    task,
)
from slotwise.operations import Calendars
from slotwise.spi import Database
from slotwise.testing import ManualWorker

DEFINITIONS = (
    a_job("feed", Disabled()),
    a_job("strict", Disabled(), on_lost="give_up"),
    a_job("all", Disabled(), catch_up=CatchUp.all()),
    a_job("queue", Disabled(), overlap=Overlap.queue(2)),
    a_job(
        "retried",
        Disabled(),
        retry=Retry.exponential(max_attempts=3, initial=timedelta(seconds=1)),
    ),
    a_job("abreast", Disabled(), overlap=Overlap.allow(2)),
    a_job("tagged", Disabled(), runs_on=["gpu"], priority=90, spread=MINUTE),
    a_task("mail"),
)
EACH = Every(MINUTE)


@pytest.fixture
def bench(database: Database) -> Bench:
    """Jobs whose own schedule is disabled, and a task, planned at noon."""
    return Bench(database, DEFINITIONS).planned()


def test_each_instance_has_its_own_slots_data_and_ledger(bench: Bench) -> None:
    """Two of one job, at different rates: each claim carries its data, each ledger row its
    instance.
    """
    assert bench.client.schedule_recurring("feed", "a", EACH, {"url": "a"}) == at(1)
    assert bench.client.schedule_recurring(
        "feed", "b", "EVERY|2m", {"url": "b"}
    ) == at(2)
    bench.tick(2)
    claims = {claim.row.task_instance: claim for claim in bench.claim("feed")}
    assert {id: claim.row.task_data for id, claim in claims.items()} == {
        "a": b'{"url":"a"}',
        "b": b'{"url":"b"}',
    }
    for claim in claims.values():
        bench.settle(claim)
    assert {
        (found["task_instance"], found["slot"]) for found in bench.slots("feed")
    } == {
        ("a", at(1)),
        ("a", at(2)),
        ("b", at(2)),
    }
    assert [bench.row("feed", id).slot for id in "ab"] == [at(3), at(4)]


def test_a_task_can_recur(bench: Bench) -> None:
    """What has a handler has one for slots, too; its one-time instances stand beside."""
    bench.client.schedule_recurring("mail", "weekly", EACH)
    bench.client.schedule("mail", id="now")
    bench.tick()
    assert {claim.row.task_instance: claim.slot for claim in bench.claim("mail")} == {
        "weekly": at(1),
        "now": None,
    }


def test_a_changed_instance_follows(bench: Bench) -> None:
    """A new schedule moves the waiting slot; new data and priority come with it; counters stay."""
    bench.client.schedule_recurring("feed", "a", EACH, 1)
    bench.tick()
    bench.settle(bench.claim_one("feed"))
    assert bench.client.schedule_recurring(
        "feed", "a", "EVERY|1h", 2, priority=90
    ) == at(60)
    row = bench.row("feed", "a")
    assert (row.slot, row.task_data, row.priority, row.last_success) == (
        at(60),
        b"2",
        90,
        at(1),
    )


def test_the_same_once_more_changes_nothing(bench: Bench) -> None:
    """An application may say all its instances at each start."""
    bench.client.schedule_recurring("feed", "a", "H * * * *", {"x": 1})
    before = bench.backup()
    bench.tick(0.5)
    bench.client.schedule_recurring("feed", "a", "H * * * *", {"x": 1})
    assert bench.backup() == before


def test_h_spreads_the_instances(bench: Bench) -> None:
    """Task and id decide together, so a thousand instances are no herd."""
    slots = {
        bench.client.schedule_recurring("feed", str(number), "H * * * *")
        for number in range(40)
    }
    assert len(slots) > 20


def test_a_held_row_gets_the_text_and_keeps_its_hold(bench: Bench) -> None:
    """Slot, version and holder stay; the next slot comes at the settlement, from the new text."""
    bench.client.schedule_recurring("feed", "a", EACH)
    bench.tick()
    claim = bench.claim_one("feed")
    bench.client.schedule_recurring("feed", "a", "EVERY|1h")
    row = bench.row("feed", "a")
    assert (row.slot, row.version, row.picked_by) == (
        at(1),
        claim.row.version,
        claim.holder,
    )
    bench.settle(claim)
    assert bench.row("feed", "a").slot == at(60)


def test_deleted_is_gone_and_history_stays(bench: Bench) -> None:
    """True once; what was waiting never starts; made again, it goes on after what has run."""
    bench.client.schedule_recurring("feed", "a", EACH)
    bench.tick()
    bench.settle(bench.claim_one("feed"))
    assert bench.client.unschedule_recurring("feed", "a") is True
    assert bench.client.unschedule_recurring("feed", "a") is False
    bench.clock.set(at(0.5))  # stepped back, before the slot that has run
    assert bench.client.schedule_recurring("feed", "a", EACH) == at(2)
    assert [found["outcome"] for found in bench.slots("feed")] == ["succeeded"]


def test_due_slots_of_a_deleted_instance_are_accounted_for(bench: Bench) -> None:
    """What had come and was not begun is skipped, reason deleted; of one, and of many."""
    for id, minutes in (("one", 1), ("many", 5)):
        bench.client.schedule_recurring("feed", id, EACH)
        bench.tick(minutes)
        bench.client.unschedule_recurring("feed", id)
    (one,) = bench.slots("feed")
    assert (one["task_instance"], one["slot"], one["outcome"], one["reason"]) == (
        "one",
        at(1),
        "skipped",
        "deleted",
    )
    assert bench.gaps("feed") == [(2, 6, 5, "deleted")]


def test_one_that_runs_goes_when_it_has_ended(bench: Bench) -> None:
    """Its holder keeps it and settles it; then the row is gone."""
    bench.client.schedule_recurring("feed", "a", EACH)
    bench.tick()
    claim = bench.claim_one("feed")
    assert bench.client.unschedule_recurring("feed", "a") is True
    assert bench.client.unschedule_recurring("feed", "a") is False
    assert bench.store.held.beat(claim.holder, [claim]) == set()
    transition = bench.settle(claim)
    assert transition is not None
    assert transition.remove
    assert bench.find("feed", "a") is None
    assert bench.outcomes("feed") == [(1, "succeeded")]


@pytest.mark.parametrize(
    ("outcome", "recorded"),
    [
        (Failed("oops"), ("cancelled", "deleted")),
        (HandedBack(), ("cancelled", "deleted")),
    ],
    ids=["retry", "handed_back"],
)
def test_a_deleted_run_does_not_come_back(
    bench: Bench, outcome: Failed, recorded: tuple[str, str]
) -> None:
    """What would wait for another attempt goes; the ledger says that it was deleted."""
    bench.client.schedule_recurring("retried", "a", EACH)
    bench.tick()
    claim = bench.claim_one("retried")
    bench.client.unschedule_recurring("retried", "a")
    bench.settle(claim, outcome)
    assert bench.find("retried", "a") is None
    found = bench.slot("retried")
    assert (found["outcome"], found["reason"], found["finished"]) == (*recorded, at(1))


def test_slots_between_a_handlers_end_and_its_settlement_are_accounted_for(
    bench: Bench,
) -> None:
    """Law 8: those that came due while it ran are overlapped, those after it deleted."""
    bench.client.schedule_recurring("feed", "a", EACH)
    bench.tick()
    claim = bench.claim_one("feed")
    bench.client.unschedule_recurring("feed", "a")
    bench.tick(4.5)
    bench.store.settlements.settle(
        [(claim, Succeeded())], ended_ago=lambda claim: EndOfRun(2.2 * MINUTE)
    )
    assert bench.outcomes("feed") == [(1, "succeeded")]
    assert bench.gaps("feed") == [(2, 3, 2, "overlap"), (4, 5, 2, "deleted")]


def test_the_tail_of_a_catch_up_is_accounted_for(bench: Bench) -> None:
    """Deleted amid a catch-up: the slots that had come and will not run are skipped."""
    bench.client.schedule_recurring("all", "a", EACH)
    bench.tick(4)
    claim = bench.claim_one("all")
    bench.client.unschedule_recurring("all", "a")
    bench.settle(claim)
    assert bench.outcomes("all") == [(1, "succeeded")]
    assert bench.gaps("all") == [(2, 4, 3, "deleted")]


def test_a_retry_that_waits_ends_with_its_instance(bench: Bench) -> None:
    """Its slot was begun: it ends as cancelled, not as skipped."""
    bench.client.schedule_recurring("retried", "a", EACH)
    bench.tick()
    bench.settle(bench.claim_one("retried"), Failed("oops"))
    bench.client.unschedule_recurring("retried", "a")
    found = bench.slot("retried")
    assert (found["outcome"], found["reason"], found["finished"]) == (
        "cancelled",
        "deleted",
        at(1),
    )
    assert bench.gaps("retried") == []


def test_wanted_again_while_it_still_runs(bench: Bench) -> None:
    """Deleted and made again before the run has ended: it stays."""
    bench.client.schedule_recurring("feed", "a", EACH)
    bench.tick()
    claim = bench.claim_one("feed")
    bench.client.unschedule_recurring("feed", "a")
    bench.client.schedule_recurring("feed", "a", "EVERY|1h")
    bench.settle(claim)
    assert bench.row("feed", "a").slot == at(60)


def test_policies_are_the_tasks(bench: Bench) -> None:
    """Catch-up and overlap apply to each instance by itself."""
    bench.client.schedule_recurring("feed", "a", EACH)  # CatchUp.latest
    bench.client.schedule_recurring("queue", "a", EACH)
    bench.tick()
    held = bench.claim_one("queue")
    bench.tick(5)
    bench.settle(held)
    assert bench.row("queue", "a").slot == at(5)
    assert bench.gaps("queue") == [(2, 4, 3, "overlap")]
    claim = bench.claim_one("feed")
    assert (claim.slot, claim.row.collapsed) == (at(6), 5)


def test_strict_ones_start_once(bench: Bench) -> None:
    """With give_up the ledger says claimed until the start is marked."""
    bench.client.schedule_recurring("strict", "a", EACH)
    bench.tick()
    claim = bench.claim_one("strict")
    assert bench.slot("strict")["outcome"] == "claimed"
    assert bench.store.held.mark_running(claim)


def test_a_fixed_delay_begins_at_once(bench: Bench) -> None:
    """And goes on from the end of each run."""
    bench.client.schedule_recurring("feed", "a", FixedDelay(2 * MINUTE))
    claim = bench.claim_one("feed")
    bench.tick()
    bench.settle(claim)
    assert bench.row("feed", "a").slot == at(3)


def test_joined_to_the_callers_transaction(bench: Bench) -> None:
    """It exists if and only if that commits; so does its end."""
    with (
        bench.store.database.main.connect() as connection,
        connection.begin() as transaction,
    ):
        bench.client.schedule_recurring("feed", "a", EACH, connection=connection)
        transaction.rollback()
    assert bench.find("feed", "a") is None
    with bench.store.transaction() as connection:
        bench.client.schedule_recurring("feed", "a", EACH, connection=connection)
    with (
        bench.store.database.main.connect() as connection,
        connection.begin() as transaction,
    ):
        assert (
            bench.client.unschedule_recurring("feed", "a", connection=connection)
            is True
        )
        transaction.rollback()
    assert bench.row("feed", "a").slot == at(1)


def test_instances_follow_their_calendar(bench: Bench) -> None:
    """As a job's own row does; one that is not there is named when the instance is made."""
    nine = Daily("09:00").excluding("CO", roll="following")
    with pytest.raises(
        InvalidSchedule, match="there is no calendar CO in the database"
    ):
        bench.client.schedule_recurring("feed", "a", nine)
    changes = Calendars(bench.store, "tester")
    changes.change("CO", lambda before: Calendar(name="CO"), "calendar_add")
    assert bench.client.schedule_recurring("feed", "a", nine) == datetime(
        2026, 1, 2, 9, tzinfo=UTC
    )
    change = changes.change(
        "CO",
        lambda before: Calendar(name="CO", days=frozenset({date(2026, 1, 2)})),
        "calendar_add",
    )
    assert [(one.job, one.instance) for one in change.followed] == [("feed", "a")]
    assert bench.row("feed", "a").slot == datetime(2026, 1, 5, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (
            ("feed", "recurring", EACH),
            ConfigurationError,
            "this id is reserved for job rows",
        ),
        (
            ("feed", "trigger:1", EACH),
            ConfigurationError,
            "this id is reserved for job rows",
        ),
        (("feed", " ", EACH), ConfigurationError, "an id cannot be blank"),
        (
            ("feed", "a", "61 * * * *"),
            InvalidSchedule,
            'minute must be 0–59, got "61"',
        ),
        (("feed", "a", 5), ConfigurationError, "5 is not a schedule"),
        (("all", "a", FixedDelay("1m")), InvalidJob, "misses one slot at most"),
        (("abreast", "a", FixedDelay("1m")), InvalidJob, "nothing overlaps"),
        (("feed", "a", EACH, {1, 2}), InvalidJob, "JSON"),
        ((Cron, "a", EACH), InvalidJob, "is not a job or a task"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_mistakes(
    bench: Bench, arguments: tuple[object, ...], error: type[Exception], words: str
) -> None:
    """One line, and nothing is written."""
    before = bench.backup()
    with pytest.raises(error, match=words):
        bench.client.schedule_recurring(*arguments)  # type: ignore[arg-type]
    assert bench.backup() == before


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("fed", "did you mean 'feed'?"),
        ("xxxx", "register it here, too: its policies come from the code"),
    ],
)
def test_a_name_that_the_registry_does_not_have_is_refused(
    bench: Bench, name: str, cure: str
) -> None:
    """Its policies are not known, and perhaps nobody runs it. One that is there can be deleted."""
    words = f"schedule_recurring({name!r}): the registry has no job or task of this name; {cure}"
    with pytest.raises(UnknownTask, match=f"^{re.escape(words)}$"):
        bench.client.schedule_recurring(name, "a", EACH)
    other = Bench(bench.database, [a_job(name, Disabled())], bench.clock)
    assert other.client.schedule_recurring(name, "a", EACH) == at(1)
    assert bench.client.unschedule_recurring(name, "a") is True


def test_an_id_of_a_one_time_instance_is_taken(bench: Bench) -> None:
    """One row has one nature."""
    bench.client.schedule("mail", id="x")
    with pytest.raises(InstanceExists, match="one-time instance with id 'x'"):
        bench.client.schedule_recurring("mail", "x", EACH)
    assert bench.client.unschedule_recurring("mail", "x") is False


def test_once_in_the_past_runs_once(bench: Bench) -> None:
    """Its row stays, ended; made again, its slot has run."""
    bench.client.schedule_recurring("feed", "a", Once(at(-5)))
    bench.settle(bench.claim_one("feed"))
    assert bench.row("feed", "a").slot is None
    bench.client.unschedule_recurring("feed", "a")
    assert bench.client.schedule_recurring("feed", "a", Once(at(-5))) is None
    assert bench.claim("feed") == []


def test_workers_leave_instances_alone_at_their_start(bench: Bench) -> None:
    """Planning is for the jobs' own rows."""
    bench.client.schedule_recurring("feed", "a", EACH)
    before = bench.row("feed", "a")
    bench.plan()
    assert bench.row("feed", "a") == before
    with bench.store.transaction() as connection:
        assert connection.scalar(
            sa.select(sa.func.count()).select_from(bench.tables.tasks)
        ) == len(DEFINITIONS)
    assert before.slot == NOON + MINUTE


def test_tags_priority_and_spread_are_the_tasks(bench: Bench) -> None:
    """Each instance is spread by its own name; what it needs of a worker stands in its row."""
    for number in range(20):
        bench.client.schedule_recurring("tagged", str(number), "EVERY|1h")
    rows = [bench.row("tagged", str(number)) for number in range(20)]
    assert {row.slot for row in rows} == {at(60)}
    assert len({row.execution_time for row in rows}) > 15
    assert all(at(60) <= row.execution_time < at(61) for row in rows)
    assert {row.priority for row in rows} == {90}
    tasks = bench.tables.tasks
    with bench.store.transaction() as connection:
        found = connection.scalars(
            sa.select(tasks.c.plan).where(tasks.c.task_instance != "recurring")
        )
        assert all(plan == {"runs_on": ["gpu"]} for plan in found)


def test_an_instance_of_a_paused_job_sleeps(bench: Bench) -> None:
    """A pause is the job's, also for what comes later; a change does not wake it, and it goes on
    with the job.
    """
    bench.client.schedule_recurring("feed", "a", EACH)
    bench.client.operations.pause("feed")
    bench.client.schedule_recurring("feed", "b", EACH)
    bench.client.schedule_recurring("feed", "a", "EVERY|2m")
    bench.tick(3)
    assert bench.claim("feed") == []
    bench.client.operations.resume("feed")
    assert {bench.row("feed", id).slot for id in "ab"} == {at(4)}
    bench.tick(1)
    assert {claim.row.task_instance for claim in bench.claim("feed")} == {"a", "b"}


def test_runs_beside_each_other_are_the_instances_own(bench: Bench) -> None:
    """With allow, its slots start beside each other, up to two of each instance, each with the
    instance's data.
    """
    for id in "ab":
        bench.client.schedule_recurring("abreast", id, EACH, id)
    for _ in range(3):
        bench.tick()
        bench.claim("abreast")
    tasks = bench.tables.tasks
    with bench.store.transaction() as connection:
        held = connection.execute(
            sa.select(tasks.c.plan_instance, tasks.c.task_data).where(tasks.c.picked)
        ).all()
    assert sorted((id, bytes(data)) for id, data in held) == [
        (id, f'"{id}"'.encode()) for id in "aabb"
    ]


def _long(name: str, cron: str) -> str:
    """A text of some four thousand characters."""
    days = ",".join(
        f"{month:02}{day:02}" for month in range(1, 13) for day in range(1, 29)
    )
    return f"EXCLUDING({cron}; {name}@1[- 2027:{days} 2028:{days}]; skip)"


@pytest.fixture
def closed(bench: Bench) -> Bench:
    """With a calendar of many days under two names."""
    days = frozenset(
        date(year, month, day)
        for year in (2027, 2028)
        for month in range(1, 13)
        for day in range(1, 29)
    )
    changes = Calendars(bench.store, "tests")
    for name in ("Y", "Z"):
        changes.change(
            name,
            lambda before: Calendar(name="X", weekend=frozenset(), days=days),
            "calendar_add",
        )
    return bench


def test_a_due_row_that_is_changed_again_and_again_does_not_grow(
    closed: Bench,
) -> None:
    """What owns no slot is left out, however often; the slots up to each change stay with the text
    of their time.
    """
    closed.client.schedule_recurring("all", "a", "EVERY|1s")
    closed.tick(1 / 60)
    first = closed.row("all", "a").slot
    for number in range(60):
        closed.clock.set(closed.clock.now() + timedelta(milliseconds=1))
        closed.client.schedule_recurring(
            "all", "a", _long("YZ"[number % 2], "* * * * * *")
        )
    row = closed.row("all", "a")
    assert len(row.schedule or "") < 8192
    closed.tick(2.5 / 60)
    assert row.slot == first
    ran = []
    for _ in range(3):
        claim = closed.claim_one("all")
        ran.append(claim.slot)
        closed.settle(claim)
    assert first is not None
    assert ran == [first + timedelta(seconds=number) for number in range(3)]


def test_an_instance_that_is_changed_twice_while_late_skips_its_oldest_slots(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A row remembers one earlier schedule. A WARNING says what is skipped, and the ledger has
    it.
    """
    bench.client.schedule_recurring("all", "a", EACH)
    bench.tick(2.5)
    bench.client.schedule_recurring("all", "a", "EVERY|90s")
    bench.tick(3)
    bench.client.schedule_recurring("all", "a", "EVERY|1h")
    assert bench.gaps("all") == [(1, 2, 2, "superseded")]
    (warning,) = caplog.messages
    assert warning.startswith("task all, id a: 2 slots from ")
    ran = []
    while claims := bench.claim("all"):
        ran.append(claims[0].slot)
        bench.settle(claims[0])
    assert ran == [at(3), at(4.5)]


def test_a_schedule_that_nobody_could_read_again_is_refused(closed: Bench) -> None:
    """One line, and the row stays as it is."""
    closed.client.schedule_recurring("all", "a", EACH)
    before = closed.backup()
    parts = [
        parse_schedule(_long("YZ"[number % 2], f"{number} * * * *"))
        for number in range(20)
    ]
    with pytest.raises(
        InvalidSchedule,
        match=r"^all/a: a schedule of \d+ characters; at most 65536; make it shorter$",
    ):
        closed.client.schedule_recurring("all", "a", AnyOf(*parts))
    assert closed.backup() == before


UNREADABLE = "MOONPHASE|" + "x" * 70_000


def test_an_instance_that_nobody_can_read_can_be_deleted(bench: Bench) -> None:
    """The slot that waits is skipped; of others nothing is known."""
    bench.client.schedule_recurring("feed", "a", EACH)
    bench.tick(3)
    bench.change("feed", "a", schedule=UNREADABLE)
    assert bench.client.unschedule_recurring("feed", "a") is True
    assert bench.find("feed", "a") is None
    assert bench.outcomes("feed") == [(1, "skipped")]


def test_an_instance_that_nobody_can_read_can_be_changed(bench: Bench) -> None:
    """The slot that waits runs; the new text counts from the change on."""
    bench.client.schedule_recurring("all", "a", EACH)
    bench.tick(3)
    bench.change("all", "a", schedule=UNREADABLE)
    bench.client.schedule_recurring("all", "a", "EVERY|30s")
    bench.tick(0.5)
    ran = []
    while claims := bench.claim("all"):
        ran.append(claims[0].slot)
        bench.settle(claims[0])
    assert ran == [at(1), at(3.5)]


def test_a_held_instance_that_nobody_can_read_can_be_changed_and_deleted(
    bench: Bench,
) -> None:
    """Changed, it goes on by the new text from its settlement on; deleted, it is gone then. Its
    slot is settled.
    """
    for name in "ab":
        bench.client.schedule_recurring("all", name, EACH)
    bench.tick(3)
    claims = {claim.row.task_instance: claim for claim in bench.claim("all")}
    for name in "ab":
        bench.change("all", name, schedule=UNREADABLE)
    bench.client.schedule_recurring("all", "a", "EVERY|30s")
    assert bench.client.unschedule_recurring("all", "b") is True
    bench.tick(0.5)
    for claim in claims.values():
        bench.settle(claim)
    assert (bench.row("all", "a").slot, bench.find("all", "b")) == (at(3.5), None)
    assert [
        (slot["task_instance"], slot["outcome"]) for slot in bench.slots("all")
    ] == [
        ("a", "succeeded"),
        ("b", "succeeded"),
    ]


def test_of_a_text_that_nobody_can_read_only_the_beginning_is_told(
    bench: Bench,
) -> None:
    """Also where it became so while the row was held: the outcome counts, and the row says why it
    waits.
    """
    bench.client.schedule_recurring("all", "a", EACH)
    bench.tick()
    claim = bench.claim_one("all")
    bench.change("all", "a", schedule=UNREADABLE)
    bench.settle(claim)
    with bench.store.transaction() as connection:
        tasks = bench.tables.tasks
        kept = connection.scalar(
            sa.select(tasks.c.last_error).where(tasks.c.task_instance == "a")
        )
    assert kept.startswith("unreadable: schedule 'MOONPHASE|" + "x" * 189 + ": ")
    assert len(kept) < 500
    assert bench.outcomes("all") == [(1, "succeeded")]


def test_an_instance_that_nobody_can_read_is_told(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """By a warning with job, instance and the beginning of the value; health counts it."""
    bench.client.schedule_recurring("feed", "a", EACH)
    bench.tick()
    bench.change("feed", "a", schedule=UNREADABLE)
    bench.tick()
    assert bench.claim("feed") == []
    (said,) = [
        record.getMessage()
        for record in caplog.records
        if record.levelname == "WARNING"
    ]
    assert said.startswith(
        "feed: rows that are quarantined: 1; the last is 'a': schedule 'MOONPHASE|xxx"
    )
    with bench.store.transaction() as connection:
        tasks = bench.tables.tasks
        kept = connection.scalar(
            sa.select(tasks.c.last_error).where(tasks.c.task_instance == "a")
        )
    assert kept.startswith("unreadable: schedule 'MOONPHASE|xxx")
    assert max(len(said), len(kept)) < 500
    assert [
        one.task for one in bench.inspect.health(timedelta(minutes=1)).unreadable
    ] == ["feed"]


def test_a_job_whose_instances_run_is_not_disabled(bench: Bench) -> None:
    """In the listing and in the explanation; without instances it is."""
    bench.planned()

    def told() -> tuple[str, str]:
        line = bench.inspect.job("feed")
        found = bench.inspect.explain_job("feed")
        assert line is not None
        assert found is not None
        assert [one for one in bench.inspect.jobs() if one.job == "feed"] == [line]
        return line.state, found.sentences[0]

    assert told() == ("disabled", "Its schedule is disabled: never.")
    bench.client.schedule_recurring("feed", "a", Every(MINUTE))
    state, sentence = told()
    assert state == "instances"
    assert "slotwise jobs feed --instances" in sentence
    bench.client.unschedule_recurring("feed", "a")
    assert told()[0] == "disabled"


def test_changed_schedules_have_a_history(bench: Bench) -> None:
    """From and to, of that instance alone; explanations of its slots name the change."""
    bench.client.schedule_recurring("feed", "c-1", Daily("02:00", tz="UTC"))
    bench.client.schedule_recurring("feed", "c-2", Daily("02:00", tz="UTC"))
    bench.tick(1)
    for _ in range(2):  # again, it changes nothing
        bench.client.schedule_recurring("feed", "c-1", Daily("03:55", tz="UTC"))
    (change,) = bench.inspect.deploys(NOON, at(60), job="feed", id="c-1")
    assert (change.id, change.at, change.worker) == ("c-1", at(1), "the application")
    assert change.former is not None
    assert "02:00" in change.former
    assert "03:55" in change.schedule
    assert bench.inspect.deploys(NOON, at(60), job="feed", id="c-2") == []
    slot = NOON.replace(hour=2) + timedelta(days=1)
    told = [
        " ".join(bench.inspect.explain("feed", slot, id=id).sentences)
        for id in ("c-1", "c-2")
    ]
    assert "was changed from 02:00 UTC to 03:55 UTC by the application at" in told[0]
    assert "was changed" not in told[1]


def test_a_worker_of_tasks_alone_runs_their_instances(database: Database) -> None:
    """Each slot, although it has no job of its own that may come due."""
    ran: list[int] = []

    @task(name="feed")
    def feed(ctx: TaskContext, customer: int) -> None:
        ran.append(customer)

    with ManualWorker([feed], database) as worker:
        for customer in (1, 2):
            worker.client.schedule_recurring(
                feed.call(customer), str(customer), "EVERY|1h"
            )
            worker.tick("1h")
            worker.run_due()
    assert sorted(ran) == [1, 1, 2]
