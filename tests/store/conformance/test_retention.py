"""History that is too old goes; what keeps slots from starting again stays."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
import sqlalchemy as sa
from tests.kit.breaks import always
from tests.kit.records import Failed, FollowUps, Succeeded
from tests.kit.store import Counts, Ended, Page, Pruner
from tests.store.bench import NOON, Bench, a_job, a_task, at

from slotwise import ConfigurationError, Every
from slotwise.contrib.statement import statement

HOUR = timedelta(hours=1)


def prune(
    bench: Bench, keep: timedelta = HOUR, failure_retention: timedelta = 2 * HOUR
) -> Page:
    pages = list(
        Pruner(bench.store, keep=keep, failure_retention=failure_retention).pages()
    )
    return Page(sum(page.slots for page in pages), sum(page.gaps for page in pages))


def ran(bench: Bench, name: str, minutes: range, *, failing: int = 0) -> None:
    """The job ran in each of these minutes, and failed in one."""
    for minute in minutes:
        bench.clock.set(at(minute))
        bench.settle(
            bench.claim_one(name), Failed("boom") if minute == failing else None
        )


def test_what_is_too_old_goes_by_its_outcome(bench: Bench) -> None:
    """Failures may become older; what is young enough stays."""
    ran(bench, "plain", range(1, 11), failing=2)
    bench.clock.set(at(65))
    assert prune(bench) == Page(slots=3)
    assert bench.outcomes("plain") == [
        (2, "failed"),
        *((minute, "succeeded") for minute in range(5, 11)),
    ]
    bench.clock.set(at(1000))
    assert prune(bench) == Page(slots=6)
    assert bench.outcomes("plain") == [(10, "succeeded")]


MINUTE = timedelta(minutes=1)


@pytest.fixture
def brief(bench: Bench) -> Bench:
    """A job whose successes go after five minutes, and its failures after half an hour."""
    job = a_job("plain", retention="30m", success_retention="5m")
    return bench.beside(job)


def counted(bench: Bench, name: str) -> dict[str, int]:
    """How many slots ended how, in rows and in counts of what was pruned."""
    found = dict[str, int]()
    for one in bench.inspect.outcome_counts(at(-60), at(2000), job=name):
        found[one.outcome] = found.get(one.outcome, 0) + one.count
    return found


def test_a_job_shortens_its_retention(brief: Bench) -> None:
    """Successes go after minutes, failures later, and other jobs keep theirs. The hourly counts
    have all of them at any time.
    """
    ran(brief, "plain", range(1, 11), failing=2)
    ran(brief, "retried", range(11, 13))
    brief.clock.set(at(14))
    assert prune(brief, 10 * HOUR, 10 * HOUR) == Page(slots=7)
    brief.clock.set(at(185))
    assert prune(brief, 10 * HOUR, 10 * HOUR) == Page(slots=2)
    assert brief.outcomes("plain") == [(10, "succeeded")]
    assert len(brief.outcomes("retried")) == 2
    assert counted(brief, "plain") == {"succeeded": 9, "failed": 1}
    assert counted(brief, "retried")["succeeded"] == 2


@pytest.mark.parametrize("is_counted", [True, False], ids=["counted", "killed before"])
def test_what_goes_after_minutes_stays_counted(brief: Bench, is_counted: bool) -> None:
    """Whether the worker counts it before the deletion, later, or never."""
    ran(brief, "plain", range(58, 63))
    brief.clock.set(at(75))
    assert prune(brief, 10 * HOUR, 10 * HOUR) == Page(slots=4)
    if is_counted:
        hours = {NOON: 2, NOON + HOUR: 3}
        for hour, count in hours.items():
            ended = Ended("plain", hour, "slot", "succeeded", "")
            Counts(brief.store).add({ended: count})
        assert counted(brief, "plain")["succeeded"] == 5
    brief.clock.set(at(250))
    prune(brief, 10 * HOUR, 10 * HOUR)
    assert counted(brief, "plain")["succeeded"] == 5


def test_a_triggered_slot_waits_for_its_hour(brief: Bench) -> None:
    """No newer row of its kind leads the recount to it."""
    ran(brief, "plain", range(1, 2))
    brief.client.operations.trigger("plain")
    brief.settle(brief.claim_one("plain"))
    brief.clock.set(at(30))
    assert prune(brief, 10 * HOUR, 10 * HOUR) == Page()
    brief.clock.set(at(250))
    assert prune(brief, 10 * HOUR, 10 * HOUR) == Page(slots=1)
    assert counted(brief, "plain") == {"succeeded": 2}


@pytest.mark.parametrize("added", [0, 3, 7], ids=["none", "some", "all"])
def test_a_statement_balances_whatever_workers_have_counted(
    brief: Bench, added: int
) -> None:
    """While an hour is open, its slots are in the ledger or were pruned: seven of one plan."""
    ran(brief, "plain", range(57, 64))
    brief.clock.set(at(70))
    assert sum(one.slots for one in brief_pages(brief)) == 6
    hours = [NOON] * 3 + [NOON + HOUR] * 4
    for hour in hours[:added]:
        Counts(brief.store).add({Ended("plain", hour, "slot", "succeeded", ""): 1})
    found = statement(brief.inspect, at(56.5), at(63.5), now=at(70), job="plain")
    assert (found.total.expected, found.total.ran, found.total.pruned) == (7, 7, 6)
    assert found.total.balances


def test_a_statement_names_what_nothing_explains(brief: Bench) -> None:
    """Not those that were pruned, nor more than lack an explanation."""
    ran(brief, "plain", range(57, 64))
    brief.clock.set(at(70))
    list(brief_pages(brief))
    slots = brief.store.tables.slots
    with brief.store.transaction() as connection:
        connection.execute(slots.delete().where(slots.c.slot == at(63)))
    found = statement(brief.inspect, at(56.5), at(63.5), now=at(70), job="plain")
    (one,) = found.jobs
    assert (one.ran, one.unexplained, one.first_unexplained) == (6, 1, (at(63),))


def brief_pages(bench: Bench) -> Iterator[Page]:
    pruner = Pruner(bench.store, keep=10 * HOUR, failure_retention=10 * HOUR)
    return pruner.short_pages()


def test_workers_take_turns_for_brief_jobs(brief: Bench) -> None:
    """Each half of the shortest retention, whoever it is; without such a job, nobody."""
    pruners = [
        Pruner(brief.store, keep=HOUR, failure_retention=HOUR) for _ in range(2)
    ]
    assert pruners[0].rest == timedelta(minutes=2.5)
    assert [one.take_short_turn() for one in pruners] == [True, False]
    brief.tick(2.5)
    assert [one.take_short_turn() for one in pruners] == [True, False]
    ran(brief, "plain", range(3, 12))
    assert sum(page.slots for page in pruners[1].short_pages()) == 3


def test_successes_go_before_failures(bench: Bench) -> None:
    """Each by its own time."""
    job = a_job("plain", retention="10h", success_retention="5m")
    brief = bench.beside(job)
    ran(brief, "plain", range(1, 11), failing=2)
    brief.clock.set(at(300))
    assert prune(brief, keep=100 * HOUR, failure_retention=100 * HOUR) == Page(slots=8)
    assert brief.outcomes("plain") == [(2, "failed"), (10, "succeeded")]
    assert counted(brief, "plain") == {"succeeded": 9, "failed": 1}
    brief.clock.set(at(700))
    assert prune(brief, keep=100 * HOUR, failure_retention=100 * HOUR) == Page(slots=1)


def test_the_longer_of_two_retentions_counts_for_nothing(bench: Bench) -> None:
    """A job only shortens what the settings say."""
    job = a_job("plain", retention="100d", success_retention="50d")
    long = bench.beside(job)
    ran(long, "plain", range(1, 6))
    long.clock.set(at(1000))
    assert prune(long) == Page(slots=4)


def test_a_job_keeps_less_where_the_settings_keep_everything(brief: Bench) -> None:
    """Zero is for ever, for the others."""
    ran(brief, "plain", range(1, 6))
    ran(brief, "retried", range(6, 8))
    brief.clock.set(at(1000))
    nothing = timedelta(0)
    assert prune(brief, keep=nothing, failure_retention=nothing) == Page(slots=4)


def test_instances_shorten_with_their_job(brief: Bench) -> None:
    """The newest slot of each stays: an instance that comes back starts no slot twice."""
    for id in "ab":
        brief.client.schedule_recurring("plain", id, Every(MINUTE))
    for minute in range(1, 5):
        brief.clock.set(at(minute))
        for claim in brief.claim("plain"):
            brief.settle(claim)
    brief.clock.set(at(1000))
    prune(brief)
    left = [(entry["task_instance"], entry["slot"]) for entry in brief.slots("plain")]
    assert sorted(left) == [("a", at(4)), ("b", at(4)), ("recurring", at(4))]


def test_a_backfill_knows_what_a_job_has_forgotten(brief: Bench) -> None:
    """Of the job that forgets sooner; other jobs may be backfilled."""
    ran(brief, "plain", range(1, 11))
    brief.clock.set(at(190))
    prune(brief, keep=timedelta(days=1))
    operations = brief.client.operations
    with pytest.raises(ConfigurationError, match="history was pruned"):
        operations.backfill("plain", at(1), at(5), dry_run=True)
    operations.backfill("retried", at(1), at(5), dry_run=True)


def test_the_newest_decided_slot_stays(bench: Bench) -> None:
    """However old it is, beside newer triggers, which decide nothing; so no slot that has started
    starts again.
    """
    ran(bench, "plain", range(1, 4))
    bench.clock.set(at(3.5))
    bench.client.operations.trigger("plain")
    bench.settle(bench.claim_one("plain"))
    bench.clock.set(at(100_000))
    assert prune(bench) == Page(slots=3)
    assert bench.outcomes("plain") == [(3, "succeeded")]
    bench.delete("plain")
    bench.clock.set(at(1.5))
    bench.plan("plain")
    assert bench.row("plain").slot == at(4)


def test_the_newest_gap_stays(bench: Bench) -> None:
    """The others go with the slots around them."""
    for minute in (10, 20, 30):
        bench.clock.set(at(minute))
        bench.settle(bench.claim_one("plain"))
    bench.clock.set(at(1000))
    assert prune(bench) == Page(slots=2, gaps=2)
    assert bench.gaps("plain") == [(21, 29, 9, "collapsed")]


def test_nothing_goes_above_the_watermark(bench: Bench) -> None:
    """A row whose watermark was set back, by a restore of the queue, gets no slot free that the
    ledger holds.
    """
    ran(bench, "plain", range(1, 6))
    bench.change("plain", watermark=at(2))
    bench.clock.set(at(1000))
    assert prune(bench) == Page(slots=1)
    assert [minute for minute, _ in bench.outcomes("plain")] == [2, 3, 4, 5]


def test_what_has_not_ended_stays(bench: Bench) -> None:
    """A slot may run for ever."""
    bench.tick()
    bench.claim_one("plain")
    bench.clock.set(at(100_000))
    assert prune(bench) == Page()
    assert bench.outcomes("plain") == [(1, "running")]


@pytest.mark.parametrize(
    ("keep", "failure_retention", "left"),
    [
        pytest.param(timedelta(0), HOUR, [1, 3, 4], id="only failures go"),
        pytest.param(HOUR, timedelta(0), [2, 4], id="failures stay"),
    ],
)
def test_zero_keeps_for_ever(
    bench: Bench, keep: timedelta, failure_retention: timedelta, left: list[int]
) -> None:
    """Of one kind, or of the other."""
    ran(bench, "plain", range(1, 5), failing=2)
    bench.clock.set(at(100_000))
    prune(bench, keep, failure_retention)
    assert [minute for minute, _ in bench.outcomes("plain")] == left


def test_small_batches(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page is a transaction of its own, of so many rows at the most, also where it has those
    of several jobs.
    """
    monkeypatch.setattr("slotwise.store.slots.retention.PRUNED", 4)
    ran(bench, "plain", range(1, 12))
    ran(bench, "strict", range(12, 17))
    bench.clock.set(at(100_000))
    pages = list(Pruner(bench.store, keep=HOUR, failure_retention=HOUR).pages())
    assert max(page.slots for page in pages) == 4
    assert sum(page.slots for page in pages) == 10 + 4


def test_however_many_ids_a_task_has_its_rows_go_in_pages(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many transactions as pages, also where more rows than a page have the same slot, and some
    of them stay.
    """
    monkeypatch.setattr("slotwise.store.slots.retention.PRUNED", 10)
    bench = bench.beside(a_task("kept", record="all"))
    for number in range(35):
        bench.client.schedule("kept", id=str(number))
        bench.settle(
            bench.claim_one("kept"),
            Failed("boom", final=True) if number % 3 == 0 else None,
        )
    bench.clock.set(at(90))
    pages = list(Pruner(bench.store, keep=HOUR, failure_retention=2 * HOUR).pages())
    assert [page.slots for page in pages if page.slots] == [10, 10, 3]
    assert len(pages) < 8
    bench.clock.set(at(1000))
    assert prune(bench) == Page(slots=12)


def test_a_walk_continues_where_it_stopped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the end of its process a few minutes later, by another worker; after an error at once,
    by itself. A process that was frozen meanwhile stops after the transaction that it was in.
    """
    monkeypatch.setattr("slotwise.store.slots.retention.PRUNED", 4)
    ran(bench, "plain", range(1, 20))
    bench.clock.set(at(100_000))
    frozen, other = (
        Pruner(bench.store, keep=HOUR, failure_retention=HOUR) for _ in range(2)
    )
    assert frozen.take_turn(HOUR)
    walk = frozen.pages()
    assert (
        sum(next(walk).slots for _ in range(3)) == 8
    )  # the first page is that of expired results
    assert not other.take_turn(HOUR)
    assert frozen.take_turn(HOUR)
    bench.tick(6)
    assert other.take_turn(HOUR)
    with monkeypatch.context() as later:  # no task is searched from its beginning
        later.setattr("slotwise.store.slots.retention.next_name", lambda *_: None)
        assert sum(page.slots for page in other.pages()) == 10
    assert len(list(walk)) <= 2
    assert not frozen.take_turn(HOUR)
    bench.tick(60)
    assert frozen.take_turn(HOUR)


def test_workers_take_turns(bench: Bench) -> None:
    """One of them goes through the ledger in each interval, whichever comes first."""
    one, two = (
        Pruner(bench.store, keep=HOUR, failure_retention=HOUR) for _ in range(2)
    )
    assert one.take_turn(HOUR)
    assert not two.take_turn(HOUR)
    bench.tick(60)
    assert two.take_turn(HOUR)
    assert not one.take_turn(HOUR)
    bench.tick(60)
    assert Pruner(
        bench.store, keep=timedelta(0), failure_retention=timedelta(0)
    ).take_turn(HOUR)  # for kept results


def test_pruning_reopens_nothing(bench: Bench) -> None:
    """Neither for the queue's backup, nor for a backfill, unless one says that forgotten slots may
    run again.
    """
    bench.tick()
    backup = bench.backup()
    bench.settle(bench.claim_one("plain"))
    ran(bench, "plain", range(2, 6))
    bench.clock.set(at(100_000))
    prune(bench)
    operations = bench.client.operations
    with pytest.raises(ConfigurationError, match="it is unknown what ran"):
        operations.backfill("plain", at(1), at(5))
    assert (
        len(
            operations.backfill(
                "plain", at(1), at(5), forgotten=True, dry_run=True
            ).slots
        )
        == 4
    )
    bench.restore(backup)
    assert bench.claim_one("plain").slot == at(100_000)


def test_pruning_amid_a_backfill_reopens_nothing(pg_bench: Bench) -> None:
    """What a pruner takes out right before the operation looks for it has run all the same."""
    ran(pg_bench, "strict", range(1, 6))
    pg_bench.clock.set(at(100_000))
    pages: list[Page] = []

    def prune_first(
        _connection: object, _cursor: object, statement: str, *_: object
    ) -> None:
        if "FROM scheduled_slots" in statement and not pages:
            pages.append(Page())
            pages[0] = prune(pg_bench)

    sa.event.listen(pg_bench.database.main, "before_cursor_execute", prune_first)
    try:
        with pytest.raises(ConfigurationError, match="it is unknown what ran"):
            pg_bench.client.operations.backfill("strict", at(1), at(5))
    finally:
        sa.event.remove(pg_bench.database.main, "before_cursor_execute", prune_first)
    assert pages == [Page(slots=4)]


def test_jobs_that_are_gone_are_pruned_too(bench: Bench) -> None:
    """Down to their newest slot, each instance by itself."""
    gone = bench.beside(a_job("gone"))
    gone.plan("gone")
    for minute in range(1, 4):
        gone.clock.set(at(minute))
        gone.settle(gone.claim_one("gone"))
    gone.client.operations.delete("gone")
    bench.clock.set(at(100_000))
    prune(bench)
    assert bench.outcomes("gone") == [(3, "succeeded")]


def test_a_result_stays_for_as_long_as_its_task_said(bench: Bench) -> None:
    """Longer or shorter than other history, and also where all of that is kept."""
    adds = bench.beside(a_task("add", result_retention="3h"))
    adds.client.schedule("add", id="1")
    adds.settle(adds.claim_one("add"), Succeeded(follow_ups=FollowUps(result=b"6")))
    bench.clock.set(at(179))
    assert prune(bench) == Page()
    assert adds.client.result("add", "1") is not None
    bench.clock.set(at(180))
    assert prune(bench, timedelta(0), timedelta(0)) == Page(slots=1)


def test_without_its_floor_a_pruner_reopens_a_slot(bench: Bench) -> None:
    """A broken pruner is found out: where the newest decided slot goes, too, a job that is made
    anew runs it again.
    """
    ran(bench, "plain", range(1, 4))
    bench.clock.set(at(100_000))
    with always(Pruner._is_spare, sa.true()).at_large():
        assert prune(bench) == Page(slots=3)
    assert bench.outcomes("plain") == []
    bench.delete("plain")
    bench.clock.set(at(1.5))
    bench.plan("plain")
    assert bench.row("plain").slot == at(2)


def test_instances_of_a_task_shorten_with_it(bench: Bench) -> None:
    """Keywords of ``@task``, as of ``@job``: they are about the slots of its instances."""
    feed = a_task("feed", retry=None, retention="30m", success_retention="5m")
    brief = bench.beside(feed)
    brief.client.schedule_recurring("feed", "ann", Every("1m"))
    ran(brief, "feed", range(1, 11), failing=2)
    brief.clock.set(at(14))
    prune(brief, 10 * HOUR, 10 * HOUR)
    assert brief.outcomes("feed") == [
        (2, "failed"),
        (9, "succeeded"),
        (10, "succeeded"),
    ]
    brief.clock.set(at(185))
    prune(brief, 10 * HOUR, 10 * HOUR)
    assert brief.outcomes("feed") == [(10, "succeeded")]
    assert counted(brief, "feed") == {"succeeded": 9, "failed": 1}


def test_recorded_tasks_go_as_well(bench: Bench) -> None:
    """What ``record`` keeps of one-time tasks of the name; others keep theirs."""
    kept = bench.beside(
        a_task("kept", record="all", retention="5m"), a_task("other", record="all")
    )
    for name in ("kept", "other"):
        kept.client.schedule(name, id="one")
        kept.settle(kept.claim_one(name))
        assert len(kept.client.history(name, "one")) == 1
    kept.clock.set(at(185))
    prune(kept, 10 * HOUR, 10 * HOUR)
    assert kept.client.history("kept", "one") == []
    assert len(kept.client.history("other", "one")) == 1
