"""Why a slot ran or did not, in sentences: each from what the tables say, in both databases."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from tests.kit.records import Aborted, Died, Failed, HandedBack, to_micros
from tests.kit.store import Badge, Pruner, WorkerRegistry, facts
from tests.store.bench import MINUTE, Bench, a_job, a_task, at

from slotwise import CatchUp, Every, Overlap, Retry
from slotwise.explain.job_explanation import explain_now
from slotwise.explain.sentences import when
from slotwise.explain.slot_explanation import explain
from slotwise.inspect import Explanation
from slotwise.model.durations import short_duration
from slotwise.spi import Claim, Database


def told(bench: Bench, slot: datetime, name: str = "plain") -> Explanation:
    return explain(facts(bench.store, name, slot))


def sign_in(bench: Bench, *tasks: str) -> None:
    """A live worker knows these tasks."""
    badge: dict[str, Any] = {
        "host": "h",
        "pid": 1,
        "boot_id": "a",
        "version": "1",
        "capacity": 1,
        "tags": [],
    }
    badge |= {"revision": None, "refused": [], "passed_over": {}}
    one = Badge(worker="h:1:a", tasks=tasks, lease=MINUTE, started=at(0), **badge)
    WorkerRegistry(bench.store).sign_in(one, "running")


def limited(bench: Bench, **policies: Any) -> Bench:
    """The same tables, seen by a worker with another job ``slow`` and a task ``mail`` with
    limits.
    """
    jobs = [a_job("slow", **policies)] if policies else []
    found = Bench(
        bench.database,
        [*jobs, a_task("limited", concurrency=1), a_task("rated", rate_limit="2/m")],
        bench.clock,
    )
    return found.planned()


@pytest.mark.parametrize(
    ("policies", "sentence"),
    [
        pytest.param(
            {"min_interval": 1.5 * MINUTE},
            "Its first attempt is deferred from 2026-01-01T12:02:00Z to "
            "2026-01-01T12:02:30Z: min_interval is 90s, "
            "and 2026-01-01T12:01:00Z started at 2026-01-01T12:01:00Z.",
            id="min_interval",
        ),
        pytest.param(
            {"catch_up": CatchUp.all(pace="20s")},
            "Its first attempt is deferred from 2026-01-01T12:02:00Z to "
            "2026-01-01T12:05:20Z: the pace of catch_up is "
            "20s, and 2026-01-01T12:01:00Z started at 2026-01-01T12:05:00Z.",
            id="pace",
        ),
    ],
)
def test_what_defers_a_first_attempt(
    bench: Bench, policies: dict[str, Any], sentence: str
) -> None:
    """The rule, since when and until when."""
    bench = limited(bench, **policies)
    bench.tick(5 if "catch_up" in policies else 1)
    bench.settle(bench.claim_one("slow"))
    assert sentence in told(bench, at(2), "slow").sentences


def test_no_place_defers_a_first_attempt(bench: Bench) -> None:
    """A slot that is late and finds all places taken."""
    bench = limited(bench, overlap=Overlap.allow(max=1), catch_up=CatchUp.latest())
    bench.tick()
    bench.claim_one("slow")
    bench.tick(2.5)
    assert bench.claim("slow") == []
    sentences = told(bench, at(2), "slow").sentences
    assert any(
        "one slot of the job run or wait for a retry, and overlap=" in sentence
        for sentence in sentences
    )


def test_a_recovery_defers_a_first_attempt(bench: Bench) -> None:
    """Late slots wait for their turn in the whole cluster."""
    database = Database(bench.database.settings.replace(recovery_rate=1))
    bench = Bench(database, [a_job(f"job-{number}") for number in range(3)]).planned()
    bench.tick(5)
    started = {claim.row.task_name for claim in bench.claim()}
    (waits, *_) = sorted(set(bench.definitions) - started)
    assert "recovery_rate lets at most 1 late slots start per second" in " ".join(
        told(bench, at(1), waits).sentences
    )
    database.close()


def test_a_limit_holds_a_task_back(bench: Bench) -> None:
    """A one-time task waits though it is due: its concurrency or its rate is used up."""
    bench = limited(bench)
    for id in ("1", "2", "3"):
        bench.client.schedule("limited", id=id)
        bench.client.schedule("rated", id=id)
    assert len(bench.claim("limited")) == 1
    assert len(bench.claim("rated")) == 2
    sign_in(bench, "limited", "rated")
    waiting = {
        name: next(one.id for one in bench.client.list(name, state="waiting"))
        for name in ("limited", "rated")
    }
    told = {name: bench.inspect.explain_task(name, id) for name, id in waiting.items()}
    assert {one.state for one in told.values()} == {"waiting"}
    assert (
        told["limited"].sentences[1]
        == "A limit holds it back: concurrency is 1, and 1 run."
    )
    assert told["rated"].sentences[1] == (
        "A limit holds it back: rate_limit is 2 in 1m, all of them have started, "
        "and the next may start at "
        "2026-01-01T12:01:00Z."
    )
    ran = bench.inspect.explain_task("limited", "nobody")
    assert (ran.state, ran.sentences[0][:21]) == ("unknown", "No row has this id, a")


def ran(bench: Bench) -> None:
    bench.tick(1.25)
    claim = bench.claim_one("plain")
    bench.tick(0.5)
    bench.settle(claim)


def failed(bench: Bench) -> None:
    bench.tick()
    bench.settle(
        bench.claim_one("plain"),
        Failed("Traceback (most recent call last):\nValueError: no such file"),
    )


def waits_for_its_retry(bench: Bench) -> None:
    bench.tick()
    bench.settle(bench.claim_one("plain"), Aborted("shutdown"))


def runs(bench: Bench) -> None:
    bench.tick()
    bench.claim_one("plain")
    bench.client.operations.by("ada").cancel("plain", note="too slow")
    bench.tick(0.5)


def died(bench: Bench) -> None:
    """Its only worker is gone, and no other lives."""
    bench.tick()
    bench.claim_one("plain")
    bench.tick(10)


def called_off_unbegun(bench: Bench) -> None:
    """Claimed, and its handler never entered."""
    bench.tick(1.5)
    claim = bench.claim_one("plain")
    bench.client.operations.by("ada").cancel("plain")
    bench.tick()
    bench.settle(claim, HandedBack("operator"))


def filled(bench: Bench) -> None:
    """By the second of three backfills: the first came before it, the last found nothing
    missing.
    """
    operations = bench.client.operations
    bench.tick(5)
    bench.settle(bench.claim_one("plain"))
    operations.by("ada").backfill("plain", at(1), at(2), note="the first two")
    operations.by("bob").backfill("plain", at(3), at(4), note="and the others")
    for claim in bench.claim("plain"):
        bench.settle(claim)
    bench.tick()
    operations.by("cid").backfill("plain", at(1), at(4), note="in vain")


def failed_twice(bench: Bench) -> None:
    """And once more it was stopped."""
    retried = bench.beside(
        a_job(
            "plain",
            retry=Retry.exponential(max_attempts=3, initial="1s", past_next_slot=True),
        )
    )
    for outcome in (
        Failed("boom"),
        Failed("timed out", reason="timeout"),
        Aborted("shutdown"),
    ):
        retried.tick()
        retried.settle(retried.claim_one("plain", "host:2:b"), outcome)
    retried.claim_one("plain", "host:3:c")


def died_thrice(bench: Bench) -> None:
    bench.tick()
    for _ in range(3):
        bench.take_over(bench.claim_one("plain"))
        bench.tick()


def missed(bench: Bench) -> None:
    bench.tick(5)
    bench.settle(bench.claim_one("plain"))


def overlapped(bench: Bench) -> None:
    bench.tick()
    bench.settle(bench.claim_one("plain"))
    bench.tick()
    claim = bench.claim_one("plain")
    bench.tick(3.5)
    bench.settle(claim)


def overlapped_twice(bench: Bench) -> None:
    """By two attempts of the slot before it."""
    bench.tick()
    claim = bench.claim_one("plain")
    bench.tick(1.5)
    bench.settle(claim, Aborted("shutdown"))
    claim = bench.claim_one("plain")
    bench.tick(2)
    bench.settle(claim)


def paused(bench: Bench) -> None:
    operations = bench.client.operations.by("ada")
    operations.pause("plain", note="the disk is full")
    bench.tick(5)
    operations.resume("plain")


def sleeps(bench: Bench) -> None:
    bench.client.operations.by("ada").pause("plain", note="the disk is full")
    bench.tick(5)


def all_sleeps(bench: Bench) -> None:
    bench.client.operations.by("ada").pause_all(note="maintenance")
    bench.tick(5)


def left_out(bench: Bench) -> None:
    bench.client.operations.by("ada").skip_next("plain", note="holiday")


def due(bench: Bench) -> None:
    bench.tick(5)


def held(bench: Bench) -> None:
    bench.tick()
    bench.claim_one("plain")
    bench.tick(3)


def deleted(bench: Bench) -> None:
    bench.client.operations.by("ada").delete("plain", note="replaced")


def planned_otherwise(bench: Bench) -> None:
    """For some minutes, with a slot in three."""
    bench.tick()
    bench.settle(bench.claim_one("plain"))
    rarer = bench.beside(a_job("plain", Every(3 * MINUTE)))
    rarer.plan("plain")
    bench.tick(2)
    rarer.settle(rarer.claim_one("plain"))
    bench.plan("plain")
    bench.tick()
    bench.settle(bench.claim_one("plain"))


def nothing(bench: Bench) -> None:
    """As planned at noon."""


@pytest.mark.parametrize(
    ("happened", "minute", "outcome", "words"),
    [
        (
            planned_otherwise,
            2,
            "unknown",
            ["at that time the job had another schedule, without this slot"],
        ),
        (
            ran,
            1,
            "succeeded",
            [
                "started at 2026-01-01T12:01:15Z, 15s after its time, on host:1:a",
                "after 30s",
            ],
        ),
        (
            failed,
            1,
            "failed",
            [
                "started at 2026-01-01T12:01:00Z, on time,",
                "for good",
                "ValueError: no such file",
            ],
        ),
        (
            waits_for_its_retry,
            1,
            "cancelled",
            ["waits for another one, which is due at 2026-01-01T12:01:00Z"],
        ),
        (
            runs,
            1,
            "running",
            [
                "It runs; the last heartbeat was 30s ago; it was asked to stop",
                "ada",
                "too slow",
            ],
        ),
        (
            died,
            1,
            "running",
            [
                "10m ago; its lease of 1m has ended, and no worker takes it over: no worker is"
            ],
        ),
        (
            called_off_unbegun,
            1,
            "cancelled",
            [
                "not run: an operator cancelled it at 2026-01-01T12:02:30Z, before it began. At"
            ],
        ),
        (
            died_thrice,
            1,
            "dead",
            [
                "Attempt 1 was lost: host:1:a claimed it at 2026-01-01T12:01:00Z. "
                "host:1:a was last heard of at "
                "2026-01-01T12:01:00Z. Attempt 2 was lost:",
                "(attempt 3)",
                "too many of its workers died",
                "lost 3 times",
            ],
        ),
        (
            failed_twice,
            1,
            "running",
            [
                "Attempt 1 failed at 2026-01-01T12:01:00Z, on host:2:b: boom.",
                "Attempt 2 timed out at 2026-01-01T12:02:00Z, on host:2:b: timed out.",
                "Attempt 3 ended as aborted (shutdown) at 2026-01-01T12:03:00Z, on host:2:b.",
                "It started at 2026-01-01T12:03:00Z (attempt 4)",
            ],
        ),
        (
            filled,
            3,
            "succeeded",
            [
                "for a backfill.",
                "after 0s. At 2026-01-01T12:05:00Z bob requested backfill",
            ],
        ),
        (missed, 5, "succeeded", ["as catch-up", "stands for 4 slots"]),
        (
            missed,
            3,
            "skipped",
            [
                "one of 4 slots",
                "The newest that was missed, 2026-01-01T12:05:00Z, ran for all.",
                "CatchUp(mode='latest'",
            ],
        ),
        (
            overlapped,
            4,
            "skipped",
            [
                "12:02:00Z was held",
                "from 2026-01-01T12:02:00Z until 2026-01-01T12:05:30Z",
            ],
        ),
        (
            overlapped_twice,
            2,
            "skipped",
            [
                "12:01:00Z was held, or waited for its retry's time: until 2026-01-01T12:04:30Z"
            ],
        ),
        (
            paused,
            3,
            "skipped",
            [
                "5 slots",
                "At 2026-01-01T12:00:00Z ada requested pause: the disk is full.",
            ],
        ),
        (
            sleeps,
            1,
            "waiting",
            ["ada requested pause: the disk is full", "will be skipped"],
        ),
        (
            all_sleeps,
            1,
            "waiting",
            [
                "Everything has been paused since 2026-01-01T12:00:00Z, by ada: maintenance"
            ],
        ),
        (
            left_out,
            1,
            "skipped",
            ["An operator skipped it", "ada requested skip_next: holiday"],
        ),
        (
            held,
            2,
            "undecided",
            ["came while 2026-01-01T12:01:00Z is held; the job's overlap decides"],
        ),
        (
            due,
            3,
            "undecided",
            [
                "12:01:00Z, which waits; the job's catch-up decides",
                "No live worker can claim it",
            ],
        ),
        (
            sleeps,
            3,
            "undecided",
            ["ada requested pause: the disk is full", "will be skipped"],
        ),
        (deleted, 2, "unknown", ["no row", "ada requested delete: replaced"]),
        (nothing, 2, "upcoming", ["in 2m; one slot comes before it"]),
        (nothing, 1, "waiting", ["due at 2026-01-01T12:01:00Z, in 1m"]),
        (
            nothing,
            7,
            "upcoming",
            ["in 7m; 6 slots come before it, the next at 2026-01-01T12:01:00Z"],
        ),
        (
            nothing,
            2.5,
            "no_slot",
            ["The nearest are 2026-01-01T12:02:00Z and 2026-01-01T12:03:00Z"],
        ),
        (
            nothing,
            -3,
            "unknown",
            ["row was created at 2026-01-01T12:00:00Z, after this slot", "backfill"],
        ),
        (
            due,
            1,
            "waiting",
            [
                "been due since 2026-01-01T12:01:00Z, and no worker has taken it",
                "No live worker can",
            ],
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_a_slot_is_explained(
    bench: Bench,
    happened: Callable[[Bench], None],
    minute: float,
    outcome: str,
    words: list[str],
) -> None:
    """What became of it, when, by whom, and why."""
    happened(bench)
    found = told(bench, at(minute))
    text = " ".join(found.sentences)
    assert found.outcome == outcome
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("catch_up", "minute", "words"),
    [
        (
            CatchUp.latest(),
            4,
            "The newest that was missed, 2026-01-01T12:06:00Z, ran for all.",
        ),
        (
            CatchUp.first(),
            4,
            "The oldest that was missed, 2026-01-01T12:02:00Z, ran for all.",
        ),
        (
            CatchUp.all(max=2),
            4,
            "It was beyond the newest slots that CatchUp.all(max=…) runs",
        ),
        (CatchUp.none(grace="2m"), 3, "No worker could start it in time"),
        (
            CatchUp.none(grace="2m"),
            4,
            "or a newer slot was within the grace of CatchUp.none",
        ),
    ],
    ids=lambda value: value.mode if isinstance(value, CatchUp) else None,
)
def test_what_was_missed_is_told_as_its_policy_has_it(
    bench: Bench, catch_up: CatchUp, minute: int, words: str
) -> None:
    """Who ran for it, if anybody did: a slot that ran for itself alone, before the outage or
    after, is not named.
    """
    job = bench.beside(a_job("plain", Every("1m"), catch_up=catch_up))
    job.plan("plain")
    for minutes in (1, 5):
        job.tick(minutes)
        job.settle(job.claim_one("plain"))
    assert words in told(job, at(minute)).sentences[1]


def test_a_slot_to_come_of_a_paused_job_says_so(bench: Bench) -> None:
    """By name or with all: it starts only if somebody takes that back."""
    for pause in (sleeps, all_sleeps):
        pause(bench)
        assert (
            "It starts only if the pause ends before then"
            in told(bench, at(40)).sentences[-1]
        )
        bench.client.operations.resume("plain")


def test_a_trigger_names_who_asked(bench: Bench) -> None:
    """Its slot is no slot of the schedule, and explained all the same."""
    slot = bench.client.operations.by("ada").trigger("plain", note="once more")
    waiting = told(bench, slot)
    assert (waiting.outcome, waiting.reason) == ("waiting", "trigger")
    bench.settle(bench.claim_one("plain"))
    text = " ".join(told(bench, slot).sentences)
    assert "triggered by hand" in text
    assert "ada requested trigger: once more" in text


def test_a_trigger_that_was_handed_back_waits(bench: Bench) -> None:
    """The ledger has it; it did not start, and nobody says so."""
    slot = bench.client.operations.trigger("plain")
    bench.settle(bench.claim_one("plain"), HandedBack())
    because = "It was handed back before it began (its worker was stopped)"
    assert (
        told(bench, slot).sentences[0]
        == f"{because}, and is due again at 2026-01-01T12:00:00Z."
    )


def test_the_last_error_names_the_exception(bench: Bench) -> None:
    """Its message may have several lines, and whoever wrote the last one is not to be believed."""
    error = 'Traceback (most recent call last):\n  File "a.py"\nValueError: no a\noutcome=succeeded'
    bench.client.schedule("mail", id="1")
    bench.settle(bench.claim_one("mail"), Failed(error))
    found = " ".join(bench.inspect.explain_task("mail", "1").sentences)
    assert "ValueError: no a" in found
    assert "outcome=succeeded" not in found


def test_a_slot_whose_row_went_with_a_restore_is_explained(bench: Bench) -> None:
    """Nobody has given up on it: its row is not there any more."""
    backup = bench.backup()
    bench.tick()
    bench.settle(bench.claim_one("plain"))
    slot = bench.client.operations.trigger("plain")
    bench.claim_one("plain")
    bench.restore(backup)
    bench.tick()
    bench.settle(bench.claim_one("plain"))
    found = told(bench, slot)
    assert (found.outcome, found.reason) == ("lost", "orphaned")
    assert "Its row was missing" in " ".join(found.sentences)


def test_a_pause_that_a_restore_brought_back_names_its_author(bench: Bench) -> None:
    """The slot of the restored row has ended, so its own story does not say why nothing starts."""
    bench.client.operations.by("ada").pause("plain", note="the disk is full")
    backup = bench.backup()
    bench.client.operations.by("bob").resume("plain")
    bench.tick()
    bench.settle(bench.claim_one("plain"))
    bench.restore(backup)
    found = explain_now(bench.store, "plain")
    assert found is not None
    assert found.state == "paused"
    assert "ada requested pause: the disk is full" in " ".join(found.sentences)


def test_what_was_pruned_is_said(bench: Bench) -> None:
    """Nobody knows any more, and that is the answer; also where the job was deleted, and has come
    back.
    """
    for minute in (1, 2):
        bench.clock.set(at(minute))
        bench.settle(bench.claim_one("plain"))
    bench.clock.set(at(1000))
    list(Pruner(bench.store, keep=MINUTE, failure_retention=MINUTE).pages())
    bench.change("plain", created_version=to_micros(at(900)))
    text = " ".join(told(bench, at(1)).sentences)
    assert "was pruned" in text
    assert "nobody was to run it" not in text


@pytest.mark.parametrize("schedule", ["MOON|full", "FIXED_DELAY|120s"])
def test_other_schedules(bench: Bench, schedule: str) -> None:
    """One that cannot be read here, and one without slots of its own: said so."""
    bench.change("plain", schedule=schedule)
    found = told(bench, at(7))
    assert found.outcome in ("unknown", "no_slot")
    assert len(found.sentences) == 1


def test_a_job_without_a_row(bench: Bench) -> None:
    """It was deleted: its history is explained, and nothing else."""
    gone = bench.beside(a_job("gone", Every("1m")))
    gone.plan("gone")
    gone.tick(3)
    gone.client.operations.delete("gone")
    assert told(gone, at(2), "gone").reason == "deleted"
    assert told(gone, at(9), "gone").outcome == "unknown"


def test_a_queued_backfill_says_so(bench: Bench) -> None:
    """It waits for another slot of its backfill."""
    bench.client.operations.backfill("plain", at(-3), at(-1))
    assert "another slot of its backfill" in " ".join(told(bench, at(-2)).sentences)


def made_again(bench: Bench) -> None:
    bench.client.operations.delete("strict", force=True)
    bench.plan("strict")


def there_and_back(bench: Bench) -> None:
    for schedule in (Every("20s"), Every("1m")):
        other = bench.beside(a_job("strict", schedule, on_lost="give_up"))
        other.plan("strict")


def put_back(bench: Bench) -> None:
    """The queue alone, as it was at noon."""
    bench.change(
        "strict",
        slot=at(1),
        next_slot=at(2),
        watermark=None,
        execution_time=at(1),
        version=1,
    )


def pruned(bench: Bench) -> None:
    bench.clock.set(at(2.2))
    list(Pruner(bench.store, keep=MINUTE / 60, failure_retention=MINUTE / 60).pages())


@pytest.mark.parametrize(
    "upheaval",
    [made_again, there_and_back, put_back, pruned],
    ids=lambda one: one.__name__,
)
def test_no_slot_that_gave_up_starts_again_and_explain_says_what_happened(
    bench: Bench, upheaval: Callable[[Bench], None]
) -> None:
    """Made again within the same minute, re-planned and re-planned back, put back without its
    ledger, pruned.
    """
    started = []
    bench.tick()
    started.append(_start(bench))
    bench.settle(started[0])
    bench.tick()
    started.append(_start(bench))
    bench.settle(started[1], Died())
    upheaval(bench)
    for _ in range(9):
        for claim in bench.claim("strict"):
            assert bench.store.held.mark_running(claim)
            started.append(claim)
            bench.settle(claim)
        bench.tick(0.5)
    slots = [claim.slot for claim in started]
    assert len(set(slots)) == len(slots) >= 5
    first, second = (
        " ".join(told(bench, at(minute), "strict").sentences) for minute in (1, 2)
    )
    assert (
        "was pruned" in first
        if upheaval is pruned
        else "started at 2026-01-01T12:01:00Z" in first
    )
    assert "may_still_be_running" in second or "gives up" in second


def _start(bench: Bench) -> Claim:
    claim = bench.claim_one("strict")
    assert bench.store.held.mark_running(claim)
    return claim


def test_a_job_that_no_live_worker_knows(bench: Bench) -> None:
    """It is said before its slot is due; without any worker, ``health`` says so."""
    cause = "No live worker could take it: no live worker knows it."
    assert cause not in explain_now(bench.store, "plain").sentences
    sign_in(bench, "strict")
    assert cause in explain_now(bench.store, "plain").sentences
    assert cause not in explain_now(bench.store, "strict").sentences


def test_a_trigger_that_runs_is_the_state_of_its_job(bench: Bench) -> None:
    """It runs in a row beside the job's own, which waits for the schedule's next slot."""
    sign_in(bench, "plain")
    slot = bench.client.operations.by("ada").trigger("plain")
    claim = bench.claim_one("plain")
    line = bench.inspect.job("plain")
    assert line is not None
    assert (line.state, line.running_slot) == ("running", slot)
    assert (line.worker, line.next_slot) == (claim.row.picked_by, at(1))
    assert line in bench.inspect.jobs()
    since = line.running_since
    assert since is not None
    bench.clock.set(at(0.5))
    found = explain_now(bench.store, "plain")
    assert found is not None
    text = " ".join(found.sentences)
    assert found.state == "running"
    assert f"It runs for {when(slot)}." in text
    assert f"It has run for {short_duration(at(0.5) - since)}." in text
    assert f"Its next slot is {when(at(1))}" in text
    bench.settle(claim)
    line = bench.inspect.job("plain")
    assert line is not None
    assert (line.running_since, line.running_slot) == (None, None)


def test_a_run_beside_a_paused_job_is_told(bench: Bench) -> None:
    """The state stays, as the schedule's slots do not start."""
    slot = bench.client.operations.trigger("plain")
    bench.claim_one("plain")
    bench.client.operations.by("ada").pause("plain")
    line = bench.inspect.job("plain")
    assert line is not None
    assert (line.state, line.running_slot) == ("paused", slot)
    text = " ".join(explain_now(bench.store, "plain").sentences)
    assert f"It runs for {when(slot)}." in text
    assert "ada requested pause" in text
