"""Planning: code proposes, the row's text decides; no redeploy reopens, loses or repeats a
slot.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tests.kit.records import FOREVER, Failed, HandedBack, Succeeded, to_micros
from tests.kit.store import EndOfRun, Plan, Planner, Revision
from tests.kit.times import succeed
from tests.store.bench import MINUTE, NOON, Bench, a_job, at
from tests.store.hearing import hearing

from slotwise import (
    CatchUp,
    ConfigurationError,
    Daily,
    Disabled,
    Every,
    FixedDelay,
    InvalidSchedule,
    Overlap,
    PlanMissing,
    Schedule,
)
from slotwise.errors import NewerPayload
from slotwise.explain.job_explanation import explain_now
from slotwise.spi import Definition, Reason

HALF_PAST = Every(MINUTE, anchor=NOON + MINUTE / 2)


def redeployed(
    bench: Bench,
    name: str,
    schedule: Schedule,
    revision: str | None = None,
    started: datetime | None = None,
) -> tuple[Bench, str]:
    """A worker with this schedule for the job has planned; its bench, and what planning did."""
    other = bench.beside(a_job(name, schedule))
    return other, other.plan(name, revision=revision, started=started)[name].change


def waits_for(bench: Bench, name: str) -> tuple[Any, Any, Any]:
    row = bench.row(name)
    return row.slot, row.next_slot, row.execution_time


@pytest.mark.parametrize(
    ("name", "slot", "next_slot", "due"),
    [
        pytest.param("plain", at(1), at(2), at(1), id="every minute"),
        pytest.param("delayed", at(0), None, at(0), id="fixed delay: at once"),
        pytest.param("off", None, None, FOREVER, id="disabled: a row, parked"),
    ],
)
def test_a_new_job_gets_its_row(
    bench: Bench, name: str, slot: Any, next_slot: Any, due: Any
) -> None:
    """The first slot after the activation; the first version is the database's time."""
    assert waits_for(bench, name) == (slot, next_slot, due)
    row = bench.row(name)
    assert row.version == row.created_version == to_micros(NOON)
    assert (row.schedule, row.watermark, row.attempt) == (
        str(bench.definitions[name].schedule),
        None,
        0,
    )


def test_a_row_of_another_kind_under_the_key_of_a_job_is_left_alone(
    bench: Bench,
) -> None:
    """As db-scheduler's recurring task in an adopted table: its data is not overwritten, and the
    start fails. PostgreSQL marks the row as it is inserted.
    """
    bench.insert("shared", "recurring", task_data=b"java")
    is_marked = bench.database.dialect_name == "postgresql"
    with pytest.raises(
        ConfigurationError,
        match=r"job 'shared': .* is a task's; .*slotwise tasks cancel shared recur",
    ):
        bench.beside(a_job("shared", HALF_PAST)).plan("shared")
    row = bench.row("shared")
    kind = "foreign" if is_marked else "task"
    assert (row.kind, row.task_data, row.schedule) == (kind, b"java", None)


def test_planning_again_keeps_everything(bench: Bench) -> None:
    """Same text: untouched, whatever the state of the row."""
    bench.tick()
    bench.settle(bench.claim_one("plain"))
    bench.claim_one("strict")
    before = {name: bench.row(name) for name in ("plain", "strict", "off")}
    bench.tick(5)
    plans = bench.plan()
    assert {plan.change for plan in plans.values()} == {"kept"}
    assert plans["plain"].next_slot == at(2)
    assert {name: bench.row(name) for name in before} == before


def test_rows_that_need_nothing_are_looked_at_together(bench: Bench) -> None:
    """However many there are: one look, and one write that names the deploy; none if it is named
    already.
    """
    jobs = [a_job(f"job-{number:03}") for number in range(100)]

    def writes(revision: str, *others: Definition) -> tuple[int, int]:
        """Of a start: how many jobs it has changed, and in how many statements it has written
        rows.
        """
        with hearing(bench.database) as heard:
            plans = Planner(bench.store).plan(
                [*jobs[len(others) :], *others], Revision(text=revision)
            )
        written = [
            sent for sent in heard if sent[0].startswith("UPDATE scheduled_tasks")
        ]
        assert not any(
            isinstance(given, list) for _, given in written
        )  # else it is sent once for each row
        return len([plan for plan in plans if plan.change != "kept"]), len(written)

    assert writes("1")[0] == 100
    assert [writes("1"), writes("2"), writes("2"), writes("1")] == [
        (0, 0),
        (0, 1),
        (0, 0),
        (0, 0),
    ]
    assert writes(
        "3", a_job("job-000", Every("5m")), a_job("job-001", priority=90)
    ) == (
        1,
        3,
    )


def test_a_kept_row_names_the_deploy_and_keeps_the_rest(bench: Bench) -> None:
    """As if its whole document had been written; keys of another release stay."""
    tagged = a_job("tagged", runs_on={"gpu"})
    bench = bench.beside(tagged)
    tasks = bench.tables.tasks
    read = sa.select(tasks.c.plan).where(tasks.c.task_name == "tagged")
    for hour, text in enumerate((None, None, "1", "2")):
        bench.plan("tagged", revision=text, started=NOON + hour * 60 * MINUTE)
        if hour == 0:
            bench.change("tagged", plan={**_plan(bench, read), "newer": [1]})
        assert _plan(bench, read) == {
            "fingerprint": tagged.fingerprint,
            "runs_on": ["gpu"],
            "newer": [1],
            "deployed": (NOON + hour * 60 * MINUTE).isoformat(),
            **({"revision": text} if text else {}),
        }


def _plan(bench: Bench, read: sa.Select[Any]) -> dict[str, Any]:
    with bench.store.transaction() as connection:
        found: dict[str, Any] = connection.scalar(read)
    return found


def test_new_jobs_are_planned_together(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one transaction, with the rows that they would get one by one; those with a history are
    planned one by one.
    """
    kinds = (Every(MINUTE), FixedDelay(MINUTE), Disabled(), Every("1d"))
    many = [
        a_job(f"new-{number:03}", kinds[number % 4], priority=number)
        for number in range(60)
    ]
    began = a_job("began", on_lost="give_up")
    bench = bench.beside(*many, began)
    bench.plan("began")
    bench.tick()
    bench.claim_one("began")
    bench.delete("began")
    with hearing(bench.database) as heard:
        done = bench.plan(*(one.name for one in [*many, began]))
    inserted = [
        sent for sent, _ in heard if sent.startswith("INSERT INTO scheduled_tasks")
    ]
    assert (len(inserted), {plan.change for plan in done.values()}) == (1, {"added"})
    assert bench.outcomes("began") == [(1, "cancelled")]
    together = {one.name: bench.row(one.name) for one in many}
    for one in many:
        bench.delete(one.name)
    monkeypatch.setattr(Planner, "_add", lambda *given: [])
    apart = bench.plan(*(one.name for one in many))
    assert {one.name: bench.row(one.name) for one in many} == together
    assert {name: done[name] for name in apart} == apart


@pytest.mark.parametrize(
    ("schedule", "slot", "next_slot"),
    [
        pytest.param(Every("5m"), at(5), at(10), id="rarer"),
        pytest.param(
            Every("10s"),
            at(10 / 60),
            at(20 / 60),
            id="more often: earlier than the old slot",
        ),
        pytest.param(
            FixedDelay("10m"), at(1), None, id="fixed delay: at the slot it had"
        ),
        pytest.param(
            FixedDelay("10s"), at(1 / 6), None, id="a short fixed delay: sooner"
        ),
    ],
)
def test_a_waiting_row_follows_a_new_schedule(
    bench: Bench, schedule: Schedule, slot: Any, next_slot: Any
) -> None:
    """Slots after the activation belong to the new text."""
    other, change = redeployed(bench, "plain", schedule)
    assert change == "changed"
    assert waits_for(other, "plain") == (slot, next_slot, slot)
    assert other.row("plain").schedule == str(schedule)


def test_disabling_parks_the_row_and_enabling_wakes_it(bench: Bench) -> None:
    """Nothing of what the row knows is lost in between."""
    bench.tick()
    bench.settle(bench.claim_one("plain"))
    off, change = redeployed(bench, "plain", Disabled())
    assert (change, waits_for(off, "plain")) == ("changed", (None, None, FOREVER))
    bench.tick(10)
    assert bench.claim("plain") == []
    assert bench.plan("plain")["plain"].change == "changed"
    assert waits_for(bench, "plain") == (at(12), at(13), at(12))
    assert bench.row("plain").watermark == at(1)


def test_what_was_due_before_the_change_still_runs(bench: Bench) -> None:
    """Slots up to the activation belong to the old text: the newest of both runs, the others are
    accounted for.
    """
    bench.tick(3.2)
    other, _ = redeployed(bench, "plain", HALF_PAST)
    assert other.row("plain").schedule == str(
        succeed(Every(MINUTE), at(3.2), HALF_PAST)
    )
    bench.tick(2)
    claim = other.claim_one("plain")
    assert claim.slot == at(4.5)
    assert other.gaps("plain") == [
        (1, 3.5, 4, "collapsed")
    ]  # 1, 2, 3 of the old text, 3.5 of the new one
    other.settle(claim)
    assert waits_for(other, "plain")[:2] == (at(5.5), at(6.5))
    assert other.row("plain").schedule == str(HALF_PAST)


def test_a_held_row_gets_the_text_only(bench: Bench) -> None:
    """Its version, slot and due time are the holder's; the next slot comes at settlement, by the
    new text.
    """
    bench.tick()
    claim = bench.claim_one("plain")
    before = bench.row("plain")
    bench.tick(0.2)
    other, change = redeployed(bench, "plain", Every("5m"))
    row = other.row("plain")
    assert change == "changed"
    assert (row.version, row.slot, row.next_slot, row.execution_time, row.picked) == (
        before.version,
        before.slot,
        before.next_slot,
        before.execution_time,
        True,
    )
    assert bench.store.held.beat(claim.holder, [claim]) == set()
    bench.settle(
        claim
    )  # by a worker that still has the old definition: the row's text decides
    assert waits_for(bench, "plain") == (at(5), at(10), at(5))


def test_a_row_that_waits_for_its_retry_gets_the_text_only(bench: Bench) -> None:
    """The slot that was begun is ended first."""
    bench.tick()
    bench.settle(bench.claim_one("retried"), Failed("boom"))
    due = bench.row("retried").execution_time
    other, _ = redeployed(bench, "retried", Every("5m"))
    assert waits_for(other, "retried") == (at(1), at(5), due)
    bench.tick(0.1)
    claim = bench.claim_one("retried")
    assert (claim.slot, claim.row.attempt) == (at(1), 2)


def test_a_slot_that_was_handed_back_belongs_to_the_old_text(bench: Bench) -> None:
    """Claimed once, it has been decided to run: also where the clock was stepped back since."""
    bench.tick()
    bench.settle(bench.claim_one("plain"), HandedBack("shutdown"))
    bench.clock.set(at(0.9))
    other, _ = redeployed(bench, "plain", HALF_PAST)
    bench.clock.set(at(1))
    claim = other.claim_one("plain")
    assert claim.slot == at(1)
    other.settle(claim)
    assert waits_for(other, "plain")[0] == at(1.5)


@pytest.mark.parametrize("back", [1, 60, 60 * 24])
def test_no_redeploy_reopens_a_slot(bench: Bench, back: float) -> None:
    """After every slot that was ever started, also where the clock was stepped back since."""
    bench.tick(10)
    bench.settle(bench.claim_one("plain"))
    bench.clock.set(at(10 - back))
    other, _ = redeployed(bench, "plain", HALF_PAST, revision="9")
    assert waits_for(other, "plain")[0] == at(10.5)


@pytest.mark.parametrize(
    ("first", "second", "change"),
    [
        pytest.param("7", "8", "changed", id="higher"),
        pytest.param("9", "10", "changed", id="higher, as a number"),
        pytest.param("8", "8", "changed", id="the same"),
        pytest.param("8", "7", "outdated", id="lower"),
        pytest.param(
            "2026-01-02T00:00:00", "2026-01-01T00:00:00", "outdated", id="earlier"
        ),
        pytest.param("v9", "v10", "changed", id="higher, as a version"),
        pytest.param("8", None, "outdated", id="none after one"),
        pytest.param(None, "8", "changed", id="one after none"),
        pytest.param(
            "9fceb02", "1ab4c55", "changed", id="another hash, started later"
        ),
    ],
)
def test_a_lower_revision_never_replans(
    bench: Bench, first: str | None, second: str | None, change: str
) -> None:
    """A straggler of the last deploy, restarted, does not put the old schedule back."""
    redeployed(bench, "plain", Every("5m"), first)
    before = bench.row("plain")
    bench.tick(0.1)
    other, found = redeployed(bench, "plain", Every("7m"), second)
    assert found == change
    assert (other.row("plain") == before) is (change == "outdated")


def test_a_job_whose_version_was_raised_is_left_to_newer_workers(bench: Bench) -> None:
    """By the data of its row, and of a trigger's: an older release cannot read either, and does
    not run the slot.

    An older deploy changes nothing; a newer one with the old code takes it back.
    """
    old, new = bench, bench.beside(a_job("plain", payload_version=2))
    assert new.plan("plain", revision="2")["plain"].change == "kept"
    assert old.plan("plain", revision="1")["plain"].change == "kept"
    bench.client.operations.trigger("plain")
    bench.tick()
    for claim in bench.claim("plain"):
        with pytest.raises(NewerPayload, match="has version 2, this worker knows 1"):
            old.definitions["plain"].payload.decode(claim.row.task_data)
        assert new.definitions["plain"].payload.decode(claim.row.task_data) is None
    assert new.plan("plain", revision="2")["plain"].change == "kept"
    old.plan("plain", revision="3")
    assert bench.row("plain").task_data is None


def test_an_older_release_decides_nothing_about_slots_of_a_newer_version(
    bench: Bench,
) -> None:
    """Its policies would drop slots that the newer ones catch up. The row waits, and comes up
    again.
    """
    old = bench
    new = bench.beside(a_job("plain", payload_version=2, catch_up=CatchUp.all()))
    new.plan("plain", revision="2")
    bench.tick(5)
    assert old.claim("plain") == []
    row = bench.row("plain")
    assert (row.slot, row.picked, row.attempt) == (at(1), False, 0)
    explained = explain_now(bench.store, "plain")
    assert explained is not None
    assert (
        "It waits for a newer worker: task_data has version 2, this worker knows 1."
        in str(explained)
    )
    (told,) = bench.inspect.health().unreadable
    assert (told.newer, told.error) == (
        True,
        "task_data has version 2, this worker knows 1",
    )
    assert bench.outcomes("plain") == []
    bench.tick()
    (claim,) = new.claim("plain")
    assert claim.slot == at(1)


def test_an_older_release_does_not_give_up_a_detached_slot_of_a_newer_version(
    bench: Bench,
) -> None:
    """Handed back, it is too late by the older policies, and not by its own."""
    beside = {"overlap": Overlap.allow(2)}
    old = bench.beside(a_job("plain", start_within=timedelta(seconds=30), **beside))
    new = bench.beside(
        a_job("plain", payload_version=2, start_within=timedelta(hours=1), **beside)
    )
    new.plan("plain", revision="2")
    bench.tick()
    (claim,) = new.claim("plain")
    new.settle(claim, HandedBack(Reason.SHUTDOWN))
    bench.tick(5)
    assert old.claim("plain") == []
    assert "skipped" not in [outcome for _, outcome in bench.outcomes("plain")]
    bench.tick()
    assert claim.slot in [one.slot for one in new.claim("plain")]


def test_a_new_job_has_its_version(bench: Bench) -> None:
    """Its row is inserted with it."""
    bench.beside(a_job("later", payload_version=3)).plan("later")
    assert bench.row("later").task_data == b"slotwise/json/3\nnull"


def test_without_a_revision_the_start_orders(bench: Bench) -> None:
    """Whoever planned later, by the database's time, decides."""
    _, change = redeployed(bench, "plain", Every("5m"))
    bench.tick(0.1)
    assert change == "changed"
    assert bench.plan("plain")["plain"].change == "changed"


@pytest.mark.parametrize(
    ("first", "second"), [("9fceb02", "1ab4c55"), (None, None)], ids=["hashes", "none"]
)
def test_without_an_order_an_earlier_start_never_replans(
    bench: Bench, first: str | None, second: str | None
) -> None:
    """A child of the old pool is started again: its deploy started before the one that has
    planned.
    """
    start = bench.clock.now()
    bench.tick(0.1)
    redeployed(bench, "plain", Every("5m"), second)
    bench.tick(0.1)
    other = bench.beside(a_job("plain", Every("7m")))
    plan = other.plan("plain", revision=first, started=start)["plain"]
    assert (plan.change, plan.refused) == (
        "outdated",
        str(Every("7m").bind("plain", {})),
    )
    assert plan.planned_by is not None
    assert plan.planned_by.text == second


def test_a_restart_makes_a_deploy_no_newer(bench: Bench) -> None:
    """One host of the old deploy starts again while the new one starts: the new one plans all the
    same.
    """
    redeployed(bench, "plain", Every("5m"), "9fceb02")
    new_started = bench.tick(0.1)
    bench.tick(0.1)
    redeployed(bench, "plain", Every("5m"), "9fceb02")
    bench.tick(0.1)
    assert (
        redeployed(bench, "plain", Every("7m"), "1ab4c55", new_started)[1] == "changed"
    )


def test_a_text_that_cannot_be_read_is_replaced(bench: Bench) -> None:
    """By whoever has the newest revision; what it meant is unknown."""
    bench.change("plain", schedule="MOON|full")
    assert bench.plan("plain")["plain"].change == "changed"
    assert (bench.row("plain").schedule, bench.row("plain").slot) == (
        str(Every(MINUTE)),
        at(1),
    )


def test_removed_from_code_the_row_stays(bench: Bench) -> None:
    """Nobody claims it; nobody deletes it."""
    bench.tick()
    before = bench.row("plain")
    others = Bench(bench.database, [a_job("strict")], bench.clock)
    others.plan()
    assert [claim.row.task_name for claim in others.claim()] == ["strict"]
    assert bench.row("plain") == before


def test_a_missing_row_is_named(bench: Bench) -> None:
    """It would never run, and nobody would know."""
    jobs = [found for found in bench.definitions.values() if found.is_job]
    Planner(bench.store).verify(jobs)
    bench.delete("plain")
    bench.delete("off")
    with pytest.raises(
        PlanMissing, match=r"no row in scheduled_tasks for: (plain, off|off, plain)"
    ):
        Planner(bench.store).verify(jobs)


# -- one predecessor ------------------------------------------------------------------------------

FIVES = Every("5m")
#: What runs of the slots 3.5 and 4.5 that the newer schedule still owes, and what is skipped.
OWED = [
    pytest.param(CatchUp.none(grace="1m"), [4.5], [(3.5, "late")], id="none"),
    pytest.param(CatchUp.latest(), [4.5], [(3.5, "collapsed")], id="latest"),
    pytest.param(CatchUp.first(), [3.5], [(4.5, "collapsed")], id="first"),
    pytest.param(CatchUp.all(), [3.5, 4.5], [], id="all"),
]


def twice(
    bench: Bench, name: str, *schedules: Schedule, **policies: Any
) -> tuple[Bench, Plan]:
    """Deploy each of them 2 minutes after the one before; return the last one's bench, and what
    its planning did.
    """
    for number, schedule in enumerate(schedules):
        bench.tick(2 if number else 0)
        bench = bench.beside(a_job(name, schedule, **policies))
        plan = bench.plan(name)[name]
    return bench, plan


def decided(bench: Bench, name: str) -> list[tuple[float, str]]:
    """Each slot in ledger and gaps with its outcome or the reason why it was skipped; gaps by
    their first and last.
    """
    slots = [
        ((slot["slot"] - NOON) / MINUTE, slot["reason"] or slot["outcome"])
        for slot in bench.slots(name)
    ]
    gaps = [
        (slot, reason)
        for first, last, _, reason in bench.gaps(name)
        for slot in (first, last)
    ]
    return sorted(slots + gaps)


@pytest.mark.parametrize(("catch_up", "run", "skipped"), OWED)
def test_a_second_change_skips_what_the_first_schedule_still_owes(
    bench: Bench, catch_up: CatchUp, run: list[float], skipped: list[tuple[float, str]]
) -> None:
    """The row remembers one earlier text. Catch-up decides about what that one owes; each slot is
    accounted for.
    """
    bench.tick(3.2)
    newer, plan = twice(bench, "plain", HALF_PAST, FIVES, catch_up=catch_up)
    assert newer.gaps("plain") == [(1, 3, 3, "superseded")]
    assert [(gap.count, gap.reason) for gap in plan.superseded] == [(3, "superseded")]
    assert newer.row("plain").schedule == str(succeed(HALF_PAST, at(5.2), FIVES))
    while claims := newer.claim("plain"):
        newer.settle(claims[0])
    ran = [(slot, "succeeded") for slot in run]
    assert decided(newer, "plain") == sorted(
        [(1, "superseded"), (3, "superseded"), *skipped, *ran]
    )
    assert waits_for(newer, "plain")[0] == at(10)


@pytest.mark.parametrize(
    "catch_up", [found.values[0] for found in OWED], ids=[found.id for found in OWED]
)
def test_a_third_change_skips_what_the_second_schedule_still_owes(
    bench: Bench, catch_up: CatchUp
) -> None:
    """And so on: never more than one predecessor."""
    bench.tick(3.2)
    newest, plan = twice(
        bench, "plain", HALF_PAST, Every("40s"), FIVES, catch_up=catch_up
    )
    assert decided(newest, "plain") == [
        (1, "superseded"),
        (3, "superseded"),
        (3.5, "superseded"),
        (4.5, "superseded"),
    ]
    assert [gap.count for gap in plan.superseded] == [2]
    assert newest.row("plain").schedule == str(succeed(Every("40s"), at(7.2), FIVES))
    assert waits_for(newest, "plain")[0] == at(16 / 3)


def test_changes_between_which_no_slot_falls_count_as_one(bench: Bench) -> None:
    """A deploy that is taken back at once costs the late slot nothing: it runs."""
    bench.tick(1.2)
    bench = bench.beside(a_job("plain", Every("1h")))
    bench.plan("plain")
    bench.tick(0.5)
    bench = bench.beside(a_job("plain"))
    assert bench.plan("plain")["plain"].superseded == ()
    assert bench.row("plain").schedule == str(
        succeed(Every(MINUTE), at(1.7), Every(MINUTE))
    )
    bench.settle(bench.claim_one("plain"))
    bench.tick()
    bench.settle(bench.claim_one("plain"))
    assert decided(bench, "plain") == [(1, "succeeded"), (2, "succeeded")]


def test_a_worker_of_the_older_deploy_goes_on_with_its_slot(bench: Bench) -> None:
    """Held during two deploys: its heartbeats and its settlement count. The rest is skipped, or
    overlap's.
    """
    bench.tick()
    claim = bench.claim_one("plain")
    bench.tick(2.2)
    before = bench.row("plain")
    newer, plan = twice(bench, "plain", HALF_PAST, FIVES)
    row = newer.row("plain")
    assert [(gap.first, gap.last) for gap in plan.superseded] == [(at(2), at(3))]
    assert (row.version, row.slot, row.execution_time, row.picked_by) == (
        before.version,
        before.slot,
        before.execution_time,
        claim.holder,
    )
    assert bench.store.held.beat(claim.holder, [claim]) == set()
    bench.settle(claim)
    assert decided(bench, "plain") == [
        (1, "succeeded"),
        (2, "superseded"),
        (3, "superseded"),
        (3.5, "overlap"),
        (4.5, "overlap"),
    ]
    assert waits_for(bench, "plain")[0] == at(10)


@pytest.mark.parametrize(
    "ends",
    [HandedBack("shutdown"), Failed("boom"), None],
    ids=["back", "failed", "lost"],
)
def test_a_slot_of_the_first_schedule_that_has_begun_goes_on(
    bench: Bench, ends: Any
) -> None:
    """Handed back, failed or lost after two deploys: it runs again, and what was skipped meanwhile
    does not.
    """
    bench.tick()
    claim = bench.claim_one("retried")
    bench.tick(2.2)
    policies = {
        "catch_up": CatchUp.first(),
        "retry": bench.definitions["retried"].retry,
    }
    newer, _ = twice(bench, "retried", HALF_PAST, FIVES, **policies)
    newer.settle(claim, ends) if ends else newer.take_over(claim)
    newer.tick(0.2)
    again = newer.claim_one("retried")
    assert again.slot == at(1)
    newer.settle(again)
    assert decided(newer, "retried")[:3] == [
        (1, "succeeded"),
        (2, "superseded"),
        (3, "superseded"),
    ]
    while claims := newer.claim("retried"):
        newer.settle(claims[0])
    assert {slot for slot, _ in decided(newer, "retried")} == {1, 2, 3, 3.5, 4.5}
    assert waits_for(newer, "retried")[0] == at(10)


def test_a_paused_job_sleeps_through_two_changes(bench: Bench) -> None:
    """With replay, what the last schedule but one owes runs afterwards; what came before that does
    not.
    """
    bench.client.operations.pause("plain")
    bench.tick(3.2)
    newer, _ = twice(bench, "plain", HALF_PAST, FIVES)
    assert (newer.claim("plain"), newer.row("plain").state) == ([], "paused")
    newer.client.operations.resume("plain", replay=True)
    assert newer.claim_one("plain").slot == at(4.5)
    assert decided(newer, "plain") == [
        (1, "superseded"),
        (3, "superseded"),
        (3.5, "collapsed"),
        (4.5, "running"),
    ]


def test_before_a_fixed_delay_one_slot_is_owed(bench: Bench) -> None:
    """It has one slot at a time: the one that waits still runs, the others are skipped and
    accounted for.
    """
    bench.tick(3.2)
    newer, plan = twice(bench, "plain", FixedDelay("10m"))
    assert [(gap.first, gap.last) for gap in plan.superseded] == [(at(2), at(3))]
    assert newer.claim_one("plain").slot == at(1)
    newer.settle(newer.store.held.held_by("host:1:a")[0])
    assert decided(newer, "plain") == [
        (1, "succeeded"),
        (2, "superseded"),
        (3, "superseded"),
    ]
    assert waits_for(newer, "plain")[0] == at(13.2)


def test_after_a_fixed_delay_one_slot_is_owed(bench: Bench) -> None:
    """The one that waits; no others are counted as missed."""
    bench.tick(9)
    newer, plan = twice(bench, "delayed", HALF_PAST)
    assert plan.superseded == ()
    newer.settle(newer.claim_one("delayed"))
    assert decided(newer, "delayed") == [(0, "succeeded")]
    assert waits_for(newer, "delayed")[0] == at(9.5)


# -- deleted and made again, restored -------------------------------------------------------------


@pytest.mark.parametrize("back", [0, 0.5, 30])
def test_deleting_and_making_a_job_again_reopens_nothing(
    bench: Bench, back: float
) -> None:
    """The ledger's and the gaps' newest slot outlives the row."""
    bench.tick(5)
    claim = bench.claim_one("plain")
    bench.settle(claim)
    bench.delete("plain")
    bench.clock.set(at(5 - back))
    assert bench.plan("plain")["plain"].change == "added"
    row = bench.row("plain")
    assert (row.slot, row.watermark) == (at(6), at(5))
    if not back:
        assert bench.store.now() == at(5)  # it stands still, as no real one does
        assert row.version == claim.token
        bench.tick()
        assert bench.claim_one("plain").token > claim.token


def test_a_gap_outlives_the_row_too(bench: Bench) -> None:
    """Slots that were skipped are decided, as those that ran."""
    bench.tick()
    claim = bench.claim_one("plain")
    bench.tick(5)
    bench.settle(claim)
    assert bench.gaps("plain") == [(2, 6, 5, "overlap")]
    bench.delete("plain")
    bench.clock.set(at(3))
    bench.plan("plain")
    assert bench.row("plain").slot == at(7)


def test_an_activation_is_the_time_at_which_planning_has_the_row(
    pg_bench: Bench,
) -> None:
    """Race: planning waits for the row's lock, and slots pass meanwhile. Law 2: those belong to
    the old text, and the new one begins after the time at which planning has the lock.
    """
    bench, engine = pg_bench, pg_bench.database.main
    other = bench.beside(a_job("plain", HALF_PAST))
    waits = [2.6, 2.6]  # for the look at all jobs, and for this one's plan

    def wait_for_lock(*sent: Any) -> None:
        if "FOR UPDATE" in sent[2] and waits:
            bench.tick(waits.pop())

    sa.event.listen(engine, "after_cursor_execute", wait_for_lock)
    try:
        assert other.plan("plain")["plain"].change == "changed"
    finally:
        sa.event.remove(engine, "after_cursor_execute", wait_for_lock)
    assert bench.clock.now() == at(5.2)
    claim = other.claim_one("plain")
    assert claim.slot == at(5)
    other.settle(claim)
    assert bench.row("plain").slot == at(5.5)


def test_triggers_do_not_move_the_watermark(bench: Bench) -> None:
    """Detached rows never do: a run by hand between two slots takes neither away."""
    from tests.kit.store import trigger

    bench.clock.set(at(5.5))
    bench.delete("plain")
    bench.plan("plain")
    with bench.store.transaction() as connection:
        trigger(bench.store, connection, "plain")
    bench.settle(bench.claim_one("plain"))
    bench.delete("plain")
    bench.clock.set(at(3.5))
    bench.plan("plain")
    assert bench.row("plain").slot == at(4)


@pytest.mark.parametrize("name", ["plain", "strict"])
@pytest.mark.parametrize(
    "lived", [1, 3, 10], ids=["one slot", "three slots", "ten slots"]
)
def test_restoring_the_queue_alone_reopens_nothing(
    bench: Bench, name: str, lived: int
) -> None:
    """The row is back in the past, the ledger is not: whatever it knows does not start again."""
    backup = bench.backup()
    for _ in range(lived):
        bench.tick()
        claim = bench.claim_one(name)
        bench.store.held.mark_running(claim)
        bench.settle(claim)
    bench.restore(backup)
    assert bench.row(name).slot == at(1)
    assert bench.claim(name) == []
    assert waits_for(bench, name) == (at(lived + 1), at(lived + 2), at(lived + 1))
    assert bench.outcomes(name) == [
        (number, "succeeded") for number in range(1, lived + 1)
    ]
    bench.tick()
    assert bench.claim_one(name).slot == at(lived + 1)


def test_restoring_a_held_row_reopens_nothing(bench: Bench) -> None:
    """The backup was taken while a slot ran that has ended since: its restored holder is dead, and
    the slot is done.
    """
    bench.tick()
    claim = bench.claim_one("plain")
    backup = bench.backup()
    bench.settle(claim)
    bench.restore(backup)
    assert bench.row("plain").picked
    bench.take_over(bench.store.held.held_by(claim.holder)[0])
    assert bench.claim("plain") == []
    assert waits_for(bench, "plain")[0] == at(2)
    assert bench.outcomes("plain") == [(1, "succeeded")]


def test_a_slot_that_ran_during_the_restore_is_taken_up(bench: Bench) -> None:
    """Begun after the backup, its holder's row gone: no queue row vouches for it, so rerun runs it
    again.
    """
    backup = bench.backup()
    bench.tick()
    orphan = bench.claim_one("plain", "host:1:a")
    bench.restore(backup)
    assert bench.settle(orphan) is None
    again = bench.claim_one("plain", "host:2:b")
    assert (again.slot, again.token) == (
        at(1),
        orphan.token,
    )  # told apart by their holders, here and in every guard
    assert bench.settle(orphan) is None
    bench.settle(again)
    entry = bench.slot("plain")
    assert (entry["outcome"], entry["worker"], entry["lost"]) == (
        "succeeded",
        "host:2:b",
        1,
    )


def test_an_orphan_in_the_middle_of_an_outage_is_ended(bench: Bench) -> None:
    """A slot of the gap that somebody began and nobody can end any more says so, and is not left
    open.
    """
    backup = bench.backup()
    bench.tick(2)
    bench.settle(bench.claim_one("plain"))
    bench.tick()
    bench.claim_one("plain")
    bench.restore(backup)
    bench.tick(3)
    claim = bench.claim_one("plain")
    assert claim.slot == at(6)
    assert bench.outcomes("plain") == [
        (1, "skipped"),
        (2, "succeeded"),
        (3, "lost"),
        (6, "running"),
    ]
    assert bench.gaps("plain") == [(4, 5, 2, "collapsed")]


def test_an_orphan_beside_its_plan_is_ended(bench: Bench) -> None:
    """The same, where slots run side by side: the restored plan row stood at it, and moves on."""
    bench = bench.beside(a_job("abreast", overlap=Overlap.allow(3)))
    bench.plan("abreast")
    backup = bench.backup()
    bench.tick()
    bench.claim_one("abreast")
    bench.tick()
    bench.settle(bench.claim_one("abreast"))
    bench.restore(backup)
    bench.tick()
    assert bench.claim_one("abreast").slot == at(3)
    assert bench.outcomes("abreast") == [(1, "lost"), (2, "succeeded"), (3, "running")]


def test_a_restored_holder_takes_no_decision_back(bench: Bench) -> None:
    """A gap that was written once never shrinks, whoever comes to settle with an older view of
    it.
    """
    bench.tick()
    bench.claim_one("plain")
    backup = bench.backup()
    bench.tick(3)
    bench.settle(bench.store.held.held_by("host:1:a")[0])
    bench.tick(2)
    bench.settle(bench.claim_one("plain"))
    decided = (bench.gaps("plain"), bench.outcomes("plain"))
    bench.restore(backup)
    bench.clock.set(at(3))
    bench.take_over(bench.store.held.held_by("host:1:a")[0])
    assert bench.gaps("plain") == decided[0] == [(2, 4, 3, "overlap")]
    assert bench.outcomes("plain") == decided[1]
    bench.clock.set(at(6))
    assert bench.claim("plain") == []
    assert waits_for(bench, "plain")[0] == at(7)


def test_a_restored_retry_of_a_slot_that_has_ended_counts_for_no_other(
    bench: Bench,
) -> None:
    """The backup was taken while the slot waited for its retry, and another slot starts from its
    row: anew.
    """
    bench.tick()
    bench.settle(bench.claim_one("retried"), Failed("boom"))
    bench.tick(0.1)
    bench.take_over(bench.claim_one("retried", "host:2:b"))
    backup = bench.backup()
    bench.settle(bench.claim_one("retried"))
    bench.tick(3)
    bench.restore(backup)
    claim = bench.claim_one("retried")
    assert (claim.slot, claim.row.attempt, claim.row.lost_count, claim.row.origin) == (
        at(4),
        1,
        0,
        "catch_up",
    )
    row = bench.row("retried")
    assert (row.attempt, row.lost_count, row.trying_since) == (1, 0, None)
    assert bench.slots("retried")[-1]["attempts"] == 1


def test_no_token_comes_again_after_a_restore(bench: Bench) -> None:
    """A claim's token is the database's time, or what comes after the row's: a backup cannot bring
    one back.
    """
    backup = bench.backup()
    bench.tick()
    orphan = bench.claim_one("strict", "host:1:a")
    bench.restore(backup)
    bench.tick()
    claim = bench.claim_one("strict", "host:1:a")
    assert claim.token > orphan.token
    assert claim.slot == at(2)
    assert bench.outcomes("strict") == [
        (1, "skipped"),
        (2, "claimed"),
    ]  # it never began


@pytest.mark.parametrize("end", ["take-over", "settlement"])
def test_a_restored_holder_leaves_nothing_open(bench: Bench, end: str) -> None:
    """A backup from while the slot was held: it has been begun again since, under a token that no
    row has now.
    """
    bench.tick()
    restored = bench.claim_one("strict", "host:1:a")
    backup = bench.backup()
    bench.settle(restored, HandedBack("shutdown"))
    bench.tick(0.1)
    again = bench.claim_one("strict", "host:2:b")
    assert bench.store.held.mark_running(again)
    bench.restore(backup)
    if end == "take-over":
        bench.take_over(restored)
    else:
        bench.settle(restored)
    assert bench.settle(again) is None
    assert not bench.row("strict").picked
    entry = bench.slot("strict")
    assert (entry["outcome"], entry["reason"], entry["finished"]) == (
        "lost",
        "orphaned",
        at(1.1),
    )


def test_a_restored_holder_of_a_slot_that_was_forgotten(bench: Bench) -> None:
    """Handed back after the backup, the slot is in no ledger; what its holder comes to is entered
    all the same.
    """
    bench.tick()
    claims = bench.claim("strict", "plain")
    backup = bench.backup()
    bench.store.settlements.settle(
        [(claim, HandedBack("shutdown")) for claim in claims]
    )
    assert bench.slots("strict") == bench.slots("plain") == []
    bench.restore(backup)
    for claim in claims:
        if claim.row.task_name == "strict":
            bench.take_over(claim)
        else:
            bench.settle(claim)
    assert (bench.outcomes("strict"), bench.outcomes("plain")) == (
        [(1, "lost")],
        [(1, "succeeded")],
    )
    assert (bench.row("strict").slot, bench.row("plain").slot) == (at(2), at(2))


@pytest.mark.parametrize("marked", [False, True], ids=["not started", "started"])
def test_give_up_starts_no_orphan_again(bench: Bench, marked: bool) -> None:
    """At most one start ever: what may have started is not started again, whatever became of its
    row; nor can what had not started do so from then on.
    """
    backup = bench.backup()
    bench.tick()
    orphan = bench.claim_one("strict", "host:1:a")
    if marked:
        bench.store.held.mark_running(orphan)
    bench.restore(backup)
    again = bench.claim("strict", holder="host:2:b")
    assert again == []
    assert waits_for(bench, "strict")[0] == at(2)
    entry = bench.slot("strict")
    assert (entry["outcome"], entry["reason"], entry["finished"]) == (
        "lost" if marked else "cancelled",
        "orphaned",
        at(1),
    )
    assert not bench.store.held.mark_running(orphan)
    bench.tick()
    assert bench.claim_one("strict", "host:2:b").slot == at(2)


@pytest.mark.parametrize("name", ["plain", "strict", "retried"])
def test_a_deleted_row_leaves_no_slot_open(bench: Bench, name: str) -> None:
    """What was begun and stands in no row any more has ended, and says so, once the job is planned
    again.
    """
    bench.tick()
    claim = bench.claim_one(name)
    bench.store.held.mark_running(claim)
    if name == "retried":
        bench.settle(claim, Failed("boom"))
    bench.delete(name)
    bench.tick()
    bench.plan(name)
    entry = bench.slot(name)
    assert (entry["outcome"], entry["reason"], entry["lost"], entry["finished"]) == (
        "lost",
        "orphaned",
        1,
        at(2),
    )
    assert bench.settle(claim) is None


def test_a_restored_row_leaves_no_slot_open(bench: Bench) -> None:
    """It is as the code wants it, and stands at an older slot than the one that was begun: that
    one has ended.
    """
    backup = bench.backup()
    bench.tick()
    bench.settle(bench.claim_one("plain"))
    bench.tick()
    bench.claim_one("plain")
    bench.restore(backup)
    assert bench.plan("plain")["plain"].change == "kept"
    ended = {
        entry["slot"]: (entry["outcome"], entry["reason"])
        for entry in bench.slots("plain")
    }
    assert ended == {at(1): ("succeeded", None), at(2): ("lost", "orphaned")}


@pytest.mark.parametrize("state", ["held", "waiting for its retry", "triggered"])
def test_planning_ends_nothing_that_stands(bench: Bench, state: str) -> None:
    """A slot is open for as long as its row stands at it: held, between two attempts, or beside
    the plan row.
    """
    from tests.kit.store import trigger

    if state == "triggered":
        with bench.store.transaction() as connection:
            trigger(bench.store, connection, "retried")
    else:
        bench.tick()
    claim = bench.claim_one("retried")
    if state == "waiting for its retry":
        bench.settle(claim, Failed("boom"))
    before = bench.slots("retried")
    bench.plan()
    assert bench.slots("retried") == before
    assert before[0]["finished"] is None


def test_a_job_of_every_microsecond_moves_on(bench: Bench) -> None:
    """The smallest step there is."""
    bench = bench.beside(a_job("tiny", Every(timedelta(microseconds=1))))
    bench.plan("tiny")
    bench.tick(1)
    claim = bench.claim_one("tiny")
    assert claim.slot == at(1)
    assert bench.gaps("tiny")[0][2] == 60_000_000 - 1
    bench.settle(claim)
    assert bench.row("tiny").slot == at(1) + timedelta(microseconds=1)


@pytest.mark.parametrize("step", [timedelta(minutes=20), timedelta(days=3)], ids=str)
@pytest.mark.parametrize(
    "ran", [timedelta(milliseconds=50), timedelta(minutes=2)], ids=str
)
def test_a_forward_step_of_the_clock_holds_nothing(
    bench: Bench, step: timedelta, ran: timedelta
) -> None:
    """Overlap decides about what came due while the handler ran, by the worker's clock; the rest
    was missed.
    """
    bench.tick()
    claim = bench.claim_one("plain")
    bench.clock.tick(ran + step)
    bench.store.settlements.settle(
        [(claim, Succeeded())], ended_ago=lambda claim: EndOfRun(after=ran)
    )
    bench.claim_one("plain")
    skipped = [
        row["reason"] for row in bench.slots("plain") if row["outcome"] == "skipped"
    ]
    gaps = {reason: count for _, _, count, reason in bench.gaps("plain")}
    held = skipped.count("overlap") + gaps.get("overlap", 0)
    assert held == ran // timedelta(minutes=1)
    assert gaps["collapsed"] >= step // timedelta(minutes=1) - 2


def test_missed_slots_are_counted_once_after_a_restore(bench: Bench) -> None:
    """A row of the backup stood for older slots; these were decided before."""
    bench.tick(5)
    claim = bench.claim_one("retried")
    assert claim.row.collapsed == 4
    bench.settle(claim, Failed("boom"))
    backup = bench.backup()
    bench.tick(0.1)
    bench.settle(bench.claim_one("retried"))
    bench.restore(backup)
    bench.tick(1)
    assert bench.claim_one("retried").row.collapsed == 0


def test_a_held_row_that_was_restored_decides_nothing_again(bench: Bench) -> None:
    """Law 2: its settlement starts from the newest of row, ledger and gaps. No gap covers a slot
    that has run.
    """
    bench.tick()
    claim = bench.claim_one("plain")
    bench.tick(2.2)
    bench.store.held.beat(claim.holder, [claim])
    backup = bench.backup()
    bench.tick(0.1)
    bench.store.settlements.settle(
        [(claim, Succeeded())],
        ended_ago=lambda claim: EndOfRun(timedelta(minutes=1.1)),
    )
    bench.settle(bench.claim_one("plain"))
    before = bench.outcomes("plain"), bench.gaps("plain")
    assert before == ([(1, "succeeded"), (2, "skipped"), (3, "succeeded")], [])
    bench.restore(backup)
    bench.tick(2)
    bench.take_over(claim)
    assert (bench.outcomes("plain"), bench.gaps("plain")) == before
    assert bench.row("plain").slot == at(4)


def test_a_settlement_after_a_restore_skips_no_slot_that_is_decided(
    bench: Bench,
) -> None:
    """Law 8: the claim still holds row and ledger, and only the ledger knows the skipped slot."""
    bench.tick()
    claim = bench.claim_one("plain")
    backup = bench.backup()
    assert bench.client.operations.skip_next("plain") == at(2)
    bench.restore(backup)
    bench.tick(4.2)
    bench.settle(claim)
    assert bench.outcomes("plain") == [(1, "succeeded"), (2, "skipped")]
    assert bench.gaps("plain") == [(3, 5, 3, "overlap")]


@pytest.mark.parametrize("end", ["take-over", "retry"])
def test_a_restored_row_goes_on_after_the_newest_decided_slot(
    bench: Bench, end: str
) -> None:
    """Law 2, where nothing is skipped: a dead holder's row, and one in its second attempt."""
    bench.tick()
    if end == "retry":
        bench.settle(bench.claim_one("retried"), Failed("boom"))
        bench.tick(0.1)
    claim = bench.claim_one("retried")
    backup = bench.backup()
    bench.settle(claim)
    bench.clock.set(at(2))
    bench.settle(bench.claim_one("retried"))
    bench.restore(backup)
    if end == "retry":
        bench.store.settlements.settle(
            [(claim, Succeeded())],
            ended_ago=lambda claim: EndOfRun(timedelta(seconds=50)),
        )
    else:
        bench.take_over(claim)
    assert bench.row("retried").slot == at(3)


def test_a_restored_row_whose_next_slot_is_decided_decides_nothing_again(
    bench: Bench,
) -> None:
    """Law 2, where an operator had skipped the slot after it: what ledger and gaps know beyond
    that counts.
    """
    bench.tick()
    claim = bench.claim_one("plain")
    bench.client.operations.skip_next("plain")
    bench.settle(claim, HandedBack("shutdown"))
    backup = bench.backup()
    for minutes in (0, 2, 1):
        bench.tick(minutes)
        bench.settle(bench.claim_one("plain"))
    before = bench.outcomes("plain")
    assert before == [
        (1, "succeeded"),
        (2, "skipped"),
        (3, "succeeded"),
        (4, "succeeded"),
    ]
    bench.restore(backup)
    bench.tick()
    assert bench.claim_one("plain").slot == at(5)
    assert (bench.outcomes("plain")[:4], bench.gaps("plain")) == (before, [])


def test_a_restored_holder_whose_slot_has_ended_decides_nothing_again(
    bench: Bench,
) -> None:
    """Law 2, where its slot has ended under the very token that the restored row has."""
    bench.tick()
    claim, backup = bench.claim_one("plain"), bench.backup()
    bench.client.operations.cancel("plain")
    bench.take_over(claim)
    bench.tick(2)
    bench.settle(bench.claim_one("plain"))
    before = bench.outcomes("plain")
    assert before == [(1, "cancelled"), (2, "skipped"), (3, "succeeded")]
    bench.restore(backup)
    bench.tick(2)
    bench.settle(claim)
    assert (bench.outcomes("plain"), bench.gaps("plain")) == (
        before,
        [(4, 5, 2, "overlap")],
    )


def test_a_restored_holder_of_a_slot_in_a_gap_does_not_start_it_again(
    bench: Bench,
) -> None:
    """It was handed back and skipped after the backup. A slot in a gap has no more attempt."""
    bench.tick()
    claim, backup = bench.claim_one("plain"), bench.backup()
    bench.settle(claim, HandedBack("shutdown"))
    bench.tick(3)
    bench.settle(bench.claim_one("plain"))
    bench.restore(backup)
    bench.take_over(claim)
    assert bench.row("plain").slot == at(5)
    bench.tick()
    bench.settle(bench.claim_one("plain"))
    assert bench.outcomes("plain") == [(4, "succeeded"), (5, "succeeded")]
    assert bench.gaps("plain") == [(1, 3, 3, "collapsed")]


def test_an_operation_on_a_restored_holder_does_not_hide_that_its_slot_is_in_a_gap(
    bench: Bench,
) -> None:
    """The same, after an operator has skipped the slot that follows what ledger and gaps have
    decided.
    """
    bench.tick()
    claim, backup = bench.claim_one("plain"), bench.backup()
    bench.settle(claim, HandedBack("shutdown"))
    bench.tick(3)
    bench.settle(bench.claim_one("plain"))
    bench.restore(backup)
    bench.client.operations.skip_next("plain")
    bench.take_over(claim)
    assert bench.row("plain").slot == at(6)
    assert bench.outcomes("plain") == [(4, "succeeded"), (5, "skipped")]
    assert bench.gaps("plain") == [(1, 3, 3, "collapsed")]


def test_a_restored_row_of_a_running_slot_skips_nothing_again(bench: Bench) -> None:
    """Law 2: an operator has skipped a slot while the first attempt ran. The restored row does not
    know it.
    """
    bench.tick()
    claim, backup = bench.claim_one("plain"), bench.backup()
    bench.client.operations.skip_next("plain")
    bench.restore(backup)
    bench.tick(3)
    bench.settle(claim)
    assert bench.outcomes("plain") == [(1, "succeeded"), (2, "skipped")]
    assert bench.gaps("plain") == [(3, 4, 2, "overlap")]
    assert bench.row("plain").slot == at(5)


def test_a_restored_retry_keeps_what_was_skipped_behind_it(bench: Bench) -> None:
    """Law 2, where the slot is open still: it has its attempts, and then goes on behind the
    gap.
    """
    bench.tick()
    bench.take_over(bench.claim_one("plain"))
    bench.client.operations.pause("plain")
    backup = bench.backup()
    bench.tick(4)
    bench.client.operations.resume("plain")
    bench.restore(backup)
    bench.tick()
    bench.client.operations.resume("plain", replay=True)
    claim = bench.claim_one("plain")
    assert (claim.slot, claim.row.attempt) == (at(1), 2)
    bench.settle(claim)
    assert bench.outcomes("plain") == [(1, "succeeded"), (6, "skipped")]
    assert bench.gaps("plain") == [(2, 5, 4, "paused")]


@pytest.mark.parametrize("operation", ["resume", "delete", "deploy twice"])
def test_an_operation_on_a_restored_row_skips_nothing_again(
    bench: Bench, operation: str
) -> None:
    """Law 2: what an operator or a deploy skips begins behind what ledger and gaps have
    decided.
    """
    operations = bench.client.operations
    operations.pause("plain")
    backup = bench.backup()
    operations.resume("plain")
    bench.tick(3)
    bench.settle(bench.claim_one("plain"))
    bench.restore(backup)
    bench.tick(2)
    if operation == "resume":
        (resumed,) = operations.resume("plain")
        assert (resumed.skipped, bench.row("plain").slot) == (2, at(6))
    elif operation == "delete":
        operations.delete("plain", force=True)
    else:
        bench.beside(a_job("plain", Every(7 * MINUTE))).plan("plain")
        bench.tick(3)
        bench.beside(a_job("plain", Every(5 * MINUTE))).plan("plain")
    assert bench.outcomes("plain") == [(3, "succeeded")]
    reason = {"resume": "paused", "delete": "deleted"}.get(operation, "superseded")
    assert bench.gaps("plain") == [(1, 2, 2, "collapsed"), (4, 5, 2, reason)]


def test_a_restored_row_that_was_handed_back_skips_its_slot_once(bench: Bench) -> None:
    """Law 2: since the backup an operator has skipped the slot that it waits for."""
    operations = bench.client.operations
    bench.tick()
    bench.settle(bench.claim_one("plain"), HandedBack("shutdown"))
    operations.pause("plain")
    backup = bench.backup()
    operations.skip_next("plain")
    bench.restore(backup)
    bench.tick(4)
    (resumed,) = operations.resume("plain")
    assert (resumed.skipped, resumed.next_slot) == (4, at(6))
    assert bench.outcomes("plain") == [(1, "skipped")]
    assert bench.gaps("plain") == [(2, 5, 4, "paused")]


def test_no_row_changes_if_one_job_is_refused(bench: Bench) -> None:
    """A deploy is one decision: a job whose calendar is missing, and one whose row is a task's,
    keep all others as they were.
    """
    bench = bench.beside(
        a_job("a", Every(MINUTE)), a_job("new", Every(MINUTE))
    ).planned()
    before = bench.row("a").schedule
    changed = a_job("a", Every(MINUTE * 5))
    without = a_job("z", Daily("02:00", tz="UTC").nth_business_day(1, "ZZ"))
    with pytest.raises(InvalidSchedule, match="job z: there is no calendar ZZ"):
        bench.beside(changed, without).plan(revision="2")
    assert bench.row("a").schedule == before
    tasks = bench.store.tables.tasks
    with bench.store.transaction() as connection:
        connection.execute(
            tasks.update()
            .where(tasks.c.task_name == "new")
            .values(kind="task", schedule=None)
        )
    with pytest.raises(ConfigurationError, match="job 'new': the row with its name"):
        bench.beside(changed, a_job("new", Every(MINUTE))).plan(revision="2")
    assert bench.row("a").schedule == before


def test_a_changed_schedule_is_in_the_audit(bench: Bench) -> None:
    """With the schedule before and after, and the deploy's revision; a kept one leaves nothing."""
    bench = bench.beside(a_job("a", Every(MINUTE))).planned()
    bench.beside(a_job("a", Every(MINUTE * 5))).plan(revision="7")
    bench.beside(a_job("a", Every(MINUTE * 5))).plan(revision="8")
    controls = bench.store.tables.controls
    with bench.store.transaction() as connection:
        found = connection.execute(
            sa.select(controls.c.command, controls.c.task_name, controls.c.arguments)
        ).all()
    assert [(command, job) for command, job, _ in found] == [("deploy", "a")]
    assert json.loads(found[0][2]) == {
        "before": str(Every(MINUTE)),
        "after": str(Every(MINUTE * 5)),
        "revision": "7",
    }
