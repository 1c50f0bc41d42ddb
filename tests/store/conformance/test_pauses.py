"""Pause and resume: nothing starts, nothing vanishes, and nobody's claim is touched."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.kit.records import FOREVER, Failed, HandedBack, Succeeded
from tests.kit.store import claim_trigger
from tests.store.bench import Bench, a_job, at

from slotwise import CatchUp, Every, Overlap, UnknownTask
from slotwise.operations import Operations


@pytest.fixture
def operations(bench: Bench) -> Operations:
    return bench.client.operations.by("ada")


def test_a_paused_job_does_not_start(bench: Bench, operations: Operations) -> None:
    """Its row sleeps far away, for whoever does not know of states; the others go on."""
    assert operations.pause("plain", note="disk is full")
    assert not operations.pause("plain")
    bench.tick()
    assert {claim.row.task_name for claim in bench.claim()} == {
        "strict",
        "delayed",
        "retried",
    }
    row = bench.row("plain")
    assert (row.state, row.execution_time, row.slot) == ("paused", FOREVER, at(1))
    (operation,) = bench.inspect.audit("plain")
    assert (
        operation.operation,
        operation.author,
        operation.note,
        operation.job,
        operation.at,
    ) == (
        "pause",
        "ada",
        "disk is full",
        "plain",
        at(0),
    )


@pytest.mark.parametrize(
    ("minutes", "skipped", "outcomes", "gaps"),
    [
        pytest.param(0.5, 0, [], [], id="nothing came"),
        pytest.param(1, 1, [(1, "skipped")], [], id="one: a ledger row"),
        pytest.param(5.5, 5, [], [(1, 5, 5, "paused")], id="several: a gap"),
        pytest.param(
            500_000, 500_000, [], [(1, 500_000, 500_000, "paused")], id="a year"
        ),
    ],
)
def test_slots_of_the_pause_are_skipped(
    bench: Bench,
    operations: Operations,
    minutes: float,
    skipped: int,
    outcomes: list[tuple[float, str]],
    gaps: list[tuple[float, float, int, str]],
) -> None:
    """They end as skipped (paused), in one row; the job goes on with the next one."""
    operations.pause("plain")
    bench.tick(minutes)
    (resumed,) = operations.resume("plain")
    assert (resumed.skipped, resumed.next_slot) == (skipped, at(int(minutes) + 1))
    assert (bench.outcomes("plain"), bench.gaps("plain")) == (outcomes, gaps)
    assert bench.claim("plain") == []
    bench.clock.set(at(int(minutes) + 1))
    claim = bench.claim_one("plain")
    assert (claim.slot, claim.row.origin, claim.row.collapsed) == (
        at(int(minutes) + 1),
        None,
        0,
    )


def test_resume_replays_when_asked(bench: Bench, operations: Operations) -> None:
    """Then the slots of the pause are the job's catch-up's."""
    operations.pause("plain")
    bench.tick(5)
    operations.resume("plain", replay=True)
    assert bench.claim_one("plain").slot == at(5)
    assert bench.gaps("plain") == [(1, 4, 4, "collapsed")]


def test_resume_of_what_is_not_paused_changes_nothing(
    bench: Bench, operations: Operations
) -> None:
    """And is not an operation: nothing stands in the audit."""
    before = bench.row("plain")
    assert operations.resume("plain") == []
    assert operations.resume_all() is None
    assert bench.row("plain") == before
    assert list(bench.inspect.audit()) == []


@pytest.mark.parametrize(
    "outcome",
    [Succeeded(), Failed("boom"), HandedBack()],
    ids=lambda outcome: outcome.name,
)
def test_a_pause_leaves_the_claim_alone(
    bench: Bench, operations: Operations, outcome: Succeeded | Failed | HandedBack
) -> None:
    """Neither version, slot nor due time of a held row change; its settlement puts the row to
    sleep.
    """
    bench.tick()
    claim = bench.claim_one("retried")
    before = bench.row("retried")
    operations.pause("retried")
    held = bench.row("retried")
    assert (held.version, held.slot, held.execution_time, held.picked) == (
        before.version,
        before.slot,
        before.execution_time,
        True,
    )
    assert bench.store.held.beat(claim.holder, [claim]) == set()
    bench.settle(claim, outcome)
    row = bench.row("retried")
    assert (row.state, row.execution_time, row.picked) == ("paused", FOREVER, False)
    bench.tick(0.5)
    assert bench.claim("retried") == []
    operations.resume("retried")
    assert bench.row("retried").state is None
    bench.tick(0.5)
    assert len(bench.claim("retried")) == 1


def test_a_holder_may_die_under_a_pause(bench: Bench, operations: Operations) -> None:
    """The row is taken over, and sleeps; the slot runs again after the resumption."""
    bench.tick()
    claim = bench.claim_one("plain")
    operations.pause("plain")
    bench.tick()
    (settled,) = bench.take_over(claim)
    assert settled.transition is not None
    assert bench.row("plain").state == "paused"
    operations.resume("plain")
    assert bench.claim_one("plain").slot == at(1)


def test_a_pending_retry_sleeps_through_a_pause(
    bench: Bench, operations: Operations
) -> None:
    """It goes on as the same slot, next attempt; the slots that came meanwhile are skipped."""
    bench.tick()
    bench.settle(bench.claim_one("retried"), Failed("boom"))
    operations.pause("retried")
    bench.tick(5)
    assert bench.claim("retried") == []
    (resumed,) = operations.resume("retried")
    assert resumed.skipped == 5
    assert bench.gaps("retried") == [(2, 6, 5, "paused")]
    claim = bench.claim_one("retried")
    assert (claim.slot, claim.row.attempt) == (at(1), 2)
    bench.settle(claim)
    assert bench.row("retried").slot == at(7)
    assert bench.outcomes("retried") == [(1, "succeeded")]


def test_what_came_while_it_was_held_is_overlaps(
    bench: Bench, operations: Operations
) -> None:
    """A pause that begins and ends during a run decides nothing."""
    bench.tick()
    claim = bench.claim_one("plain")
    operations.pause("plain")
    bench.tick(3)
    operations.resume("plain")
    bench.settle(claim)
    assert bench.gaps("plain") == [(2, 4, 3, "overlap")]
    assert bench.row("plain").slot == at(5)


@pytest.mark.parametrize(
    "policy", [{"overlap": Overlap.queue_all()}, {"catch_up": CatchUp.all()}], ids=str
)
def test_a_tail_of_slots_is_skipped_with_the_pause(
    bench: Bench, policy: dict[str, object]
) -> None:
    """What was queued when the pause began, and had not begun, does not run after it."""
    tail = bench.beside(a_job("tail", **policy))
    tail.plan("tail")
    tail.tick(3)
    claim = tail.claim_one("tail")
    tail.tick(2)
    tail.settle(claim)
    tail.client.operations.pause("tail")
    tail.tick(1)
    tail.client.operations.resume("tail")
    row = tail.row("tail")
    assert (row.slot, row.catch_up_until, row.origin) == (at(7), None, None)
    assert tail.gaps("tail")[-1][1:] == (6, tail.gaps("tail")[-1][2], "paused")


def test_a_fixed_delay_skips_the_slot_that_waited(
    bench: Bench, operations: Operations
) -> None:
    """The next one is its delay after the resumption."""
    operations.pause("delayed")
    bench.tick(10)
    (resumed,) = operations.resume("delayed")
    assert (resumed.skipped, resumed.next_slot) == (1, at(12))


def test_detached_rows_sleep_too(bench: Bench, operations: Operations) -> None:
    """Those that wait, and those that are asked for meanwhile; they run after the resumption."""
    first = operations.trigger("plain")
    operations.pause("plain")
    bench.tick(0.1)
    second = operations.trigger("plain")
    assert bench.claim("plain") == []
    operations.resume("plain")
    assert [claim.slot for claim in bench.claim("plain")] == [first, second]


def test_an_operator_may_run_a_paused_job_by_hand(
    bench: Bench, operations: Operations
) -> None:
    """In the foreground, under a pause of the job or of all."""
    operations.pause("plain")
    operations.pause_all()
    assert claim_trigger(
        bench.store, "host:1:a", "plain", lease=timedelta(minutes=1), strict=False
    )


def test_planning_does_not_wake_a_paused_job(
    bench: Bench, operations: Operations
) -> None:
    """A deploy changes its schedule; it sleeps on, and goes on by the new one."""
    operations.pause("plain")
    beside = bench.beside(a_job("plain", Every("10m")))
    beside.plan("plain")
    row = bench.row("plain")
    assert (row.state, row.execution_time) == ("paused", FOREVER)
    operations.resume("plain")
    row = bench.row("plain")
    assert (row.state, row.execution_time, row.slot) == (None, at(10), at(10))


def test_a_pause_of_all_holds_for_everything(
    bench: Bench, operations: Operations
) -> None:
    """Also for jobs and tasks that come later; the poller sleeps, instead of looking again and
    again.
    """
    assert operations.pause_all(note="maintenance")
    assert not operations.pause_all()
    later = bench.beside(a_job("later", Every("1m")))
    later.plan("later")
    later.client.schedule("mail")
    later.tick(3)
    assert later.claim() == []
    assert later.store.due.next_due(sorted(later.definitions)) is None
    paused = bench.inspect.all_paused()
    assert paused is not None
    assert (paused.author, paused.note, paused.since) == ("ada", "maintenance", at(0))
    resumed = operations.resume_all()
    assert resumed is not None
    assert {line.job: line.skipped for line in resumed} == {
        "plain": 3,
        "strict": 3,
        "retried": 3,
        "later": 3,
        "delayed": 1,
    }
    assert later.gaps("later") == [(1, 3, 3, "paused")]
    assert [claim.row.task_name for claim in later.claim()] == ["mail"]


def test_a_pause_of_all_lets_what_runs_go_on(
    bench: Bench, operations: Operations
) -> None:
    """It is settled as ever, and what is paused by name stays so when all is resumed."""
    bench.tick()
    claim = bench.claim_one("plain")
    operations.pause("strict")
    operations.pause_all()
    assert bench.settle(claim) is not None
    operations.resume_all()
    assert bench.row("strict").state == "paused"


def test_all_may_be_replayed(bench: Bench, operations: Operations) -> None:
    """Then nothing is skipped."""
    operations.pause_all()
    bench.tick(3)
    assert operations.resume_all(replay=True) == []
    assert bench.claim_one("plain").slot == at(3)


def test_a_rehearsal_changes_nothing(bench: Bench, operations: Operations) -> None:
    """It says what would happen."""
    operations.pause("plain")
    bench.tick(5)
    before = bench.row("plain")
    (resumed,) = operations.resume("plain", dry_run=True)
    assert resumed.skipped == 5
    assert operations.pause_all(dry_run=True)
    assert bench.inspect.all_paused() is None
    assert bench.row("plain") == before
    assert bench.gaps("plain") == []
    assert len(list(bench.inspect.audit())) == 1


@pytest.mark.parametrize(
    ("job", "error", "words"),
    [
        pytest.param("nobody", UnknownTask, "no job 'nobody'", id="unknown"),
        pytest.param("nil", UnknownTask, "no job 'nil'", id="neither job nor task"),
    ],
)
def test_who_cannot_be_paused(
    bench: Bench, operations: Operations, job: str, error: type[Exception], words: str
) -> None:
    """One line, and nothing in the audit."""
    with pytest.raises(error, match=words):
        operations.pause(job)
    assert list(bench.inspect.audit()) == []


def test_a_row_that_cannot_be_read_is_resumed(
    bench: Bench, operations: Operations
) -> None:
    """What a newer release wrote is left to its workers, with all its slots."""
    operations.pause("plain")
    bench.change("plain", schedule="MOON|full")
    bench.tick(3)
    (resumed,) = operations.resume("plain")
    assert resumed.skipped == 0
    assert bench.row("plain").state is None
