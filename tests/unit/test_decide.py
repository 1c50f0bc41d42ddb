"""Every decision, as a table: what was, what happened, what becomes of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import tenacity
from tests.kit.decisions import claim as decide
from tests.kit.decisions import ending, going_back
from tests.kit.records import (
    FOREVER,
    Aborted,
    AttemptOutcome,
    Cancelled,
    Died,
    Failed,
    Gap,
    HandedBack,
    LedgerEntry,
    Snoozed,
    Succeeded,
    Transition,
)
from tests.kit.times import succeed

from slotwise import (
    CatchUp,
    Disabled,
    Every,
    FixedDelay,
    Once,
    Overlap,
    Retry,
    Schedule,
    parse_schedule,
)
from slotwise.inspect import RECURRING
from slotwise.spi import Definition, Kind, Row

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
MINUTELY = Every(MINUTE)
TOKEN = 1_000
POLL = timedelta(seconds=10)


def at(minutes: float) -> datetime:
    """So many minutes after noon; the plan row of these tests waits for the slot at noon."""
    return NOON + minutes * MINUTE


#: When attempts of these tests end, unless they say otherwise: before the next slot is due.
IN_TIME = at(0.5)


def plan_row(schedule: Schedule | None = MINUTELY, **changes: Any) -> Row:
    """A held plan row, in the first attempt of the slot at noon."""
    row: dict[str, Any] = {
        "task_name": "report",
        "task_instance": RECURRING,
        "version": TOKEN,
        "picked": True,
        "picked_by": "host:1:a",
        "lease": MINUTE,
        "kind": Kind.PLAN,
        "execution_time": NOON,
        "slot": NOON,
        "watermark": NOON,
        "attempt": 1,
        "schedule": str(schedule) if schedule else None,
        "next_slot": schedule.next_after(NOON)
        if schedule and not schedule.from_end
        else None,
    }
    return Row(**(row | changes))


def detached_row(**changes: Any) -> Row:
    """A held row of one slot beside the plan row."""
    marks = {
        "kind": Kind.DETACHED,
        "task_instance": "trigger:1",
        "plan_instance": RECURRING,
    }
    return plan_row(None, **(marks | changes))


def task_row(**changes: Any) -> Row:
    """A held one-time task that was due at noon."""
    return plan_row(
        None,
        **({"kind": Kind.TASK, "task_instance": "42", "watermark": None} | changes),
    )


def definition(**policies: Any) -> Definition:
    return Definition(
        name="report",
        handler=lambda ctx: None,
        is_async=False,
        schedule=MINUTELY,
        **policies,
    )


def entry(
    outcome: str,
    *,
    token: int = TOKEN,
    aborted: int = 0,
    started: datetime | None = None,
) -> LedgerEntry:
    final = outcome not in ("claimed", "running")
    return LedgerEntry(
        outcome=outcome, token=token, final=final, aborted=aborted, started=started
    )


def retry(attempts: int = 3, seconds: float = 10) -> Retry:
    return Retry(max_attempts=attempts, wait=tenacity.wait_fixed(seconds))


def finish(
    outcome: AttemptOutcome,
    *,
    row: Row | None = None,
    schedule: Schedule | None = MINUTELY,
    now: datetime = IN_TIME,
    ledger: LedgerEntry | None = None,
    **policies: Any,
) -> Transition:
    row = plan_row() if row is None else row
    ledger = entry("running") if ledger is None and row.ledger_key else ledger
    return ending.at_finish(
        row,
        definition(**policies),
        schedule if row.is_plan else None,
        outcome,
        now,
        ledger,
        poll=POLL,
    )


def claim(
    row: Row,
    schedule: Schedule,
    now: datetime,
    newest: datetime | None = None,
    policies: Definition | None = None,
    *,
    is_full: bool = False,
) -> decide.Start | decide.Advance:
    return decide.at_claim(
        row,
        schedule,
        now,
        newest,
        policies or definition(),
        is_full=is_full,
        poll=POLL,
    )


def columns(transition: Transition) -> dict[str, Any]:
    assert transition.row is not None
    return transition.row


def part(transition: Transition, *names: str) -> tuple[Any, ...]:
    return tuple(columns(transition)[name] for name in names)


# -- at_claim -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "slot", "next_slot", "gap"),
    [
        pytest.param(at(0), at(0), at(1), None, id="on the dot"),
        pytest.param(at(0.9), at(0), at(1), None, id="late, nothing missed"),
        pytest.param(
            at(1),
            at(1),
            at(2),
            (at(0), at(0), 1),
            id="the next one is due this very instant",
        ),
        pytest.param(at(1.5), at(1), at(2), (at(0), at(0), 1), id="one missed"),
        pytest.param(at(3.5), at(3), at(4), (at(0), at(2), 3), id="three missed"),
        pytest.param(
            at(60 * 24),
            at(60 * 24),
            at(60 * 24 + 1),
            (at(0), at(60 * 24 - 1), 1440),
            id="a day missed",
        ),
    ],
)
def test_one_run_for_all_missed_slots(
    now: datetime,
    slot: datetime,
    next_slot: datetime,
    gap: tuple[datetime, datetime, int] | None,
) -> None:
    """catch_up=latest: the newest missed slot starts, the older ones become one gap."""
    decision = claim(plan_row(), MINUTELY, now, None)
    assert isinstance(decision, decide.Start)
    assert (decision.row.slot, decision.row.next_slot) == (slot, next_slot)
    expected = gap and Gap(first=gap[0], last=gap[1], count=gap[2], reason="collapsed")
    assert decision.gaps == (() if expected is None else (expected,))
    assert decision.row.collapsed == (gap[2] if gap else 0)


def test_collapsed_adds_up_over_claims() -> None:
    """A run stands for all slots collapsed into it, those of an earlier claim of the same row
    too.
    """
    decision = claim(plan_row(collapsed=5), MINUTELY, at(2), None)
    assert isinstance(decision, decide.Start)
    assert decision.row.collapsed == 7


@pytest.mark.parametrize(
    ("newest", "slot", "gap"),
    [
        pytest.param(
            at(-1), at(7), (at(0), at(6), 7), id="older than the row: the row decides"
        ),
        pytest.param(at(0), at(7), (at(1), at(6), 6), id="the row's own slot has run"),
        pytest.param(at(5), at(7), (at(6), at(6), 1), id="the ledger is ahead"),
        pytest.param(at(6), at(7), None, id="one left"),
    ],
)
def test_the_newest_of_ledger_and_gaps_outranks_the_row(
    newest: datetime, slot: datetime, gap: tuple[datetime, datetime, int] | None
) -> None:
    """After a restore of the queue alone, no slot that has started starts again, and none is
    counted twice.
    """
    decision = claim(plan_row(), MINUTELY, at(7.5), newest)
    assert isinstance(decision, decide.Start)
    assert decision.row.slot == slot
    assert decision.gaps == (
        (Gap(first=gap[0], last=gap[1], count=gap[2], reason="collapsed"),)
        if gap
        else ()
    )


@pytest.mark.parametrize(
    ("newest", "slot"),
    [
        pytest.param(at(7), at(8), id="up to now"),
        pytest.param(at(10), at(11), id="ahead of now: the clock was stepped back"),
    ],
)
def test_nothing_starts_when_all_that_is_due_has_run(
    newest: datetime, slot: datetime
) -> None:
    """The row moves past everything the ledger knows and waits, with its counters at zero."""
    decision = claim(
        plan_row(attempt=3, lost_count=2, collapsed=1), MINUTELY, at(7.5), newest
    )
    assert isinstance(decision, decide.Advance)
    assert decision.row["slot"] == decision.row["execution_time"] == slot
    assert decision.row["next_slot"] == slot + MINUTE
    assert decision.row["watermark"] == newest
    assert (
        decision.row["attempt"],
        decision.row["lost_count"],
        decision.row["collapsed"],
    ) == (0, 0, 0)


@pytest.mark.parametrize(
    ("row", "schedule", "newest"),
    [
        pytest.param(
            plan_row(slot=None, next_slot=None),
            Disabled(),
            None,
            id="never had a slot",
        ),
        pytest.param(
            plan_row(),
            succeed(MINUTELY, at(2), Disabled()),
            at(2),
            id="its last slot has run",
        ),
    ],
)
def test_a_schedule_without_further_slots_parks_its_row(
    row: Row, schedule: Schedule, newest: datetime | None
) -> None:
    """An ended schedule keeps its row, parked far in the future."""
    decision = claim(row, schedule, at(5), newest)
    assert isinstance(decision, decide.Advance)
    assert (decision.row["slot"], decision.row["execution_time"]) == (None, FOREVER)


def test_missed_slots_end_with_the_schedule_that_had_them() -> None:
    """The newest missed slot of a schedule that was ended meanwhile still runs; none after its end
    is counted.
    """
    decision = claim(plan_row(), succeed(MINUTELY, at(2.5), Disabled()), at(10), None)
    assert isinstance(decision, decide.Start)
    assert (decision.row.slot, decision.row.next_slot, decision.row.collapsed) == (
        at(2),
        None,
        2,
    )


def test_missed_slots_follow_the_schedule_in_force() -> None:
    """Across a redeploy each stretch counts by its own text."""
    decision = claim(plan_row(), succeed(MINUTELY, at(2), Every("5m")), at(16), None)
    assert isinstance(decision, decide.Start)
    assert decision.row.slot == at(15)
    assert decision.gaps == (
        Gap(first=at(0), last=at(10), count=5, reason="collapsed"),
    )  # 0, 1, 2, 5, 10


def test_the_slot_that_waits_counts_whatever_its_text_says_now() -> None:
    """Planned under a text that has been replaced since, it is missed like any other."""
    decision = claim(plan_row(slot=at(0.5)), MINUTELY, at(3), None)
    assert isinstance(decision, decide.Start)
    assert decision.gaps == (
        Gap(first=at(0.5), last=at(2), count=3, reason="collapsed"),
    )


def test_a_fixed_delay_has_only_one_slot_ahead() -> None:
    """However late it is claimed, nothing was missed."""
    delay = FixedDelay("2m")
    decision = claim(plan_row(delay), delay, at(60), None)
    assert isinstance(decision, decide.Start)
    assert (
        decision.row.slot,
        decision.row.next_slot,
        decision.row.watermark,
        decision.gaps,
    ) == (
        at(0),
        None,
        at(0),
        (),
    )


def test_a_late_start_is_labelled_as_catch_up() -> None:
    """The claimed row becomes one for the slot that was decided, and its watermark follows."""
    decision = claim(plan_row(watermark=at(-1)), MINUTELY, at(3), None)
    assert isinstance(decision, decide.Start)
    row = decision.row
    assert (row.slot, row.next_slot, row.watermark, row.origin, row.collapsed) == (
        at(3),
        at(4),
        at(3),
        "catch_up",
        3,
    )
    assert (row.version, row.attempt) == (TOKEN, 1)


def test_a_late_start_that_missed_nothing_is_not_catch_up() -> None:
    """Only a run that stands for others is labelled so."""
    decision = claim(plan_row(), MINUTELY, at(0.5), None)
    assert isinstance(decision, decide.Start)
    assert decision.row.origin is None


def test_past_moves_to_the_slot_after() -> None:
    """A slot that ran already is passed, not repeated."""
    moved = decide.past_slot(plan_row(attempt=2), MINUTELY)
    assert (moved["slot"], moved["watermark"], moved["attempt"]) == (at(1), at(0), 0)


@pytest.mark.parametrize(("attempt", "forget"), [(1, True), (2, False)])
def test_an_unreadable_row_is_tried_later_and_says_why(
    attempt: int, forget: bool
) -> None:
    """What a newer release wrote is left as it is: no slot, no attempt is burnt."""
    row = plan_row(attempt=attempt)
    later = going_back.defer(row, at(6), "unreadable", "schedule 'MOON|full'")
    assert part(later, "execution_time", "slot", "attempt") == (
        at(6),
        row.slot,
        attempt - 1,
    )
    assert columns(later)["last_error"] == "schedule 'MOON|full'"
    assert later.record is not None
    assert (later.record.forget, later.record.final) == (forget, False)


# -- at_finish: the slot ends ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "label", "failures"),
    [
        pytest.param(Succeeded(), "succeeded", 0, id="success"),
        pytest.param(Failed("boom"), "failed", 5, id="failure"),
        pytest.param(Failed("boom", final=True), "failed", 5, id="final failure"),
    ],
)
def test_a_finished_slot_makes_way_for_the_next(
    outcome: AttemptOutcome, label: str, failures: int
) -> None:
    """The plan row moves to the slot after, from the slot before, not from the wall clock."""
    done = finish(
        outcome,
        row=plan_row(consecutive_failures=4, attempt=2, lost_count=1, collapsed=3),
    )
    assert done.label == label
    assert part(done, "slot", "execution_time", "next_slot", "watermark") == (
        at(1),
        at(1),
        at(2),
        at(0),
    )
    assert part(done, "attempt", "lost_count", "collapsed", "origin") == (
        0,
        0,
        0,
        None,
    )
    assert columns(done)["consecutive_failures"] == failures
    assert done.record is not None
    assert (done.record.outcome, done.record.attempts, done.record.final) == (
        label,
        2,
        True,
    )
    assert done.gaps == ()


def test_success_and_failure_are_remembered_on_the_row() -> None:
    """last_success, last_failure and last_error say what happened last; a success clears the
    error.
    """
    failed = columns(finish(Failed("ValueError: boom"), now=at(0.5)))
    assert (failed["last_failure"], failed["last_error"]) == (
        at(0.5),
        "ValueError: boom",
    )
    succeeded = columns(
        finish(Succeeded(), row=plan_row(last_failure=at(-1)), now=at(0.5))
    )
    assert (
        succeeded["last_success"],
        succeeded["last_failure"],
        succeeded["last_error"],
    ) == (at(0.5), at(-1), None)


@pytest.mark.parametrize(
    ("now", "slot", "gap"),
    [
        pytest.param(at(0.5), at(1), None, id="in time"),
        pytest.param(
            at(1),
            at(2),
            (at(1), at(1), 1),
            id="the next one came due this very instant",
        ),
        pytest.param(at(3.5), at(4), (at(1), at(3), 3), id="three came due"),
        pytest.param(
            at(-5), at(1), None, id="the clock was stepped back: forward all the same"
        ),
    ],
)
def test_slots_that_came_due_meanwhile_are_skipped(
    now: datetime, slot: datetime, gap: tuple[datetime, datetime, int] | None
) -> None:
    """overlap=skip: what came due while the row was held becomes one gap, and the row moves
    past it.
    """
    done = finish(Succeeded(), now=now)
    assert done.gaps == (
        (Gap(first=gap[0], last=gap[1], count=gap[2], reason="overlap"),)
        if gap
        else ()
    )
    assert part(done, "slot", "watermark") == (slot, gap[1] if gap else at(0))


@pytest.mark.parametrize(
    ("now", "slot"),
    [
        pytest.param(at(0.5), at(2.5), id="from the end of the run"),
        pytest.param(at(30), at(32), id="however long it took"),
        pytest.param(at(-5), at(2), id="never back before the slot itself"),
    ],
)
def test_a_fixed_delay_counts_from_the_end(now: datetime, slot: datetime) -> None:
    """The only schedule that is defined by the end of the run, in the database's time."""
    delay = FixedDelay("2m")
    done = finish(Succeeded(), row=plan_row(delay), schedule=delay, now=now)
    assert part(done, "slot", "execution_time", "next_slot") == (slot, slot, None)
    assert done.gaps == ()


def test_an_ended_schedule_parks_its_row() -> None:
    """After its last slot the row stays, parked far in the future."""
    ended = succeed(MINUTELY, at(0), Disabled())
    done = finish(Succeeded(), row=plan_row(ended, next_slot=None), schedule=ended)
    assert part(done, "slot", "execution_time", "schedule") == (None, FOREVER, "-")


def test_a_succession_is_shed_once_it_is_over() -> None:
    """The row's text holds what can still matter, and no more."""
    both = succeed(MINUTELY, at(0), Every("5m"))
    done = finish(Succeeded(), row=plan_row(both), schedule=both)
    assert part(done, "slot", "schedule") == (at(5), str(Every("5m")))


@pytest.mark.parametrize(
    ("outcome", "final"),
    [
        (Succeeded(), True),
        (Failed("boom"), True),
        (Aborted("shutdown"), False),
        (HandedBack("suspect"), False),
        (Died(), False),
    ],
    ids=["succeeded", "failed", "aborted", "handed back", "lost"],
)
def test_an_unreadable_text_loses_no_outcome(
    outcome: AttemptOutcome, final: bool
) -> None:
    """A newer release re-planned the held row: the slot ends as it would, and the row is left to
    those who can read.
    """
    row = replace(plan_row(collapsed=2), schedule="MOON|full")
    ended = ending.at_finish(
        row, definition(), Disabled(), outcome, IN_TIME, entry("running"), poll=POLL
    )
    done = ending.unread(row, ended, IN_TIME, "MOON|full?")
    assert done.record is not None
    assert done.record.final is final
    assert done.gaps == ()
    assert part(done, "slot", "next_slot", "schedule", "collapsed") == (
        at(0),
        at(1),
        "MOON|full",
        2,
    )
    assert columns(done)["attempt"] == (
        0 if final or isinstance(outcome, HandedBack) else 1
    )


def test_a_catch_up_run_leaves_its_label_behind() -> None:
    """The next slot is an ordinary one."""
    done = finish(Succeeded(), row=plan_row(origin="catch_up", collapsed=9))
    assert part(done, "origin", "collapsed") == (None, 0)


@pytest.mark.parametrize(
    "outcome",
    [Succeeded(), Failed("boom"), Aborted("shutdown")],
    ids=lambda one: one.name,
)
def test_a_detached_row_goes_with_its_slot(outcome: AttemptOutcome) -> None:
    """A row of one slot is deleted when that slot is final; the ledger keeps what happened."""
    done = finish(outcome, row=detached_row(), on_lost="give_up")
    assert done.remove
    assert done.record is not None
    assert done.record.final


# -- at_finish: another attempt -------------------------------------------------------------------


def test_a_retry_keeps_the_slot_and_moves_the_due_time() -> None:
    """Retries move the due time, never the slot; the ledger row stays open."""
    again = finish(Failed("boom"), retry=retry(seconds=10))
    assert again.label == "failed"
    assert part(again, "slot", "next_slot") == (at(0), at(1))
    assert columns(again)["execution_time"] == at(0.5) + timedelta(seconds=10)
    assert part(again, "attempt", "consecutive_failures", "last_error") == (
        1,
        1,
        "boom",
    )
    assert again.record is not None
    assert (again.record.outcome, again.record.reason, again.record.final) == (
        "failed",
        "retry",
        False,
    )


@pytest.mark.parametrize(
    ("row", "now", "outcome", "attempts", "ledger", "again"),
    [
        pytest.param(
            {"attempt": 2}, 0.1, Failed("x"), 3, None, True, id="two of three"
        ),
        pytest.param(
            {"attempt": 3}, 0.1, Failed("x"), 3, None, False, id="three of three"
        ),
        pytest.param(
            {"attempt": 3, "lost_count": 1},
            0.1,
            Failed("x"),
            3,
            None,
            True,
            id="a lost one does not count",
        ),
        pytest.param(
            {"attempt": 3},
            0.1,
            Failed("x"),
            3,
            1,
            True,
            id="an aborted one does not count",
        ),
        pytest.param(
            {"attempt": 1}, 0.1, Failed("x", final=True), 3, None, False, id="final"
        ),
        pytest.param(
            {"attempt": 1},
            0.9,
            Failed("x"),
            3,
            None,
            False,
            id="it would fall behind the next slot",
        ),
        pytest.param(
            {"attempt": 1},
            50 / 60,
            Failed("x"),
            3,
            None,
            False,
            id="it would fall on the next slot",
        ),
    ],
)
def test_which_failures_are_retried(
    row: dict[str, Any],
    now: float,
    outcome: Failed,
    attempts: int,
    ledger: int | None,
    again: bool,
) -> None:
    """As often as the policy says, counted from the row, and never at or after the next slot."""
    aborted = entry("running", aborted=ledger) if ledger else None
    done = finish(
        outcome,
        row=plan_row(**row),
        now=at(now),
        ledger=aborted,
        retry=retry(attempts, seconds=10),
    )
    assert done.record is not None
    assert done.record.final is not again
    assert (columns(done)["slot"] == at(0)) is again


@pytest.mark.parametrize(
    ("row", "again"),
    [
        pytest.param(
            plan_row(attempt=1, trying_since=at(300)),
            True,
            id="the first, hours after its slot",
        ),
        pytest.param(
            plan_row(attempt=2, trying_since=at(299.9)), True, id="the second"
        ),
        pytest.param(
            plan_row(attempt=2, trying_since=at(299)),
            False,
            id="too long after the first",
        ),
        pytest.param(plan_row(attempt=2, lost_count=1), True, id="the first was lost"),
        pytest.param(
            task_row(attempt=1, slot=at(0), trying_since=at(300)),
            True,
            id="a task, hours after its time",
        ),
        pytest.param(
            task_row(attempt=2, slot=at(0), trying_since=at(299)),
            False,
            id="a task that tries for long",
        ),
    ],
)
def test_strategies_count_the_time_from_the_first_attempt_that_failed(
    row: Row, again: bool
) -> None:
    """Not from the slot: a catch-up may fail once, too."""
    policy = Retry(
        max_attempts=9,
        wait=tenacity.wait_none(),
        stop=tenacity.stop_after_delay(60),
        past_next_slot=True,
    )
    done = finish(Failed("x"), row=row, now=at(300), retry=policy)
    assert (
        done.label == "failed" and columns(done)["execution_time"] == at(300)
    ) is again


@pytest.mark.parametrize(
    ("schedule", "row", "again"),
    [
        pytest.param(Once(at(0)), {}, True, id="there is no next slot"),
        pytest.param(
            succeed(MINUTELY, at(0.1), Every("1h")),
            {},
            True,
            id="a deploy has put the next slot off",
        ),
        pytest.param(
            succeed(Every("1h"), at(0.1), MINUTELY),
            {"next_slot": at(60)},
            False,
            id="a deploy has brought it",
        ),
        pytest.param(
            MINUTELY, {"watermark": at(1)}, True, id="the next slot is skipped"
        ),
        pytest.param(
            Disabled(), {"next_slot": at(1)}, True, id="a deploy has disabled the job"
        ),
    ],
)
def test_the_next_slot_is_that_of_the_text_as_it_is_when_an_attempt_fails(
    schedule: Schedule, row: dict[str, Any], again: bool
) -> None:
    """A deploy gives a held row its text and no more: what the row notes as its next slot may be
    of the text before.
    """
    done = finish(
        Failed("x"),
        row=plan_row(attempt=1, **row),
        schedule=schedule,
        now=at(0.9),
        retry=retry(3, seconds=10),
    )
    assert done.record is not None
    assert done.record.final is not again


def test_a_job_without_retry_waits_for_its_next_slot() -> None:
    """For a job the next slot is the next try."""
    assert part(finish(Failed("boom")), "slot", "attempt") == (at(1), 0)


@pytest.mark.parametrize(
    ("reason", "policies", "label", "outcome", "final"),
    [
        pytest.param(
            "shutdown", {}, "aborted", "cancelled", False, id="shutdown, rerun"
        ),
        pytest.param(
            "lost", {}, "aborted", "cancelled", False, id="its lease ran out, rerun"
        ),
        pytest.param(
            "shutdown",
            {"on_lost": "give_up"},
            "cancelled",
            "cancelled",
            True,
            id="shutdown, give_up",
        ),
        pytest.param(
            "lost",
            {"on_lost": "give_up"},
            "lost",
            "lost",
            True,
            id="its lease ran out, give_up",
        ),
    ],
)
def test_an_aborted_attempt(
    reason: str, policies: dict[str, Any], label: str, outcome: str, final: bool
) -> None:
    """What was stopped from outside runs again at once, unless its job allows one start only."""
    done = finish(Aborted(reason), **policies)
    assert done.label == label
    assert done.record is not None
    assert (done.record.outcome, done.record.reason, done.record.final) == (
        outcome,
        reason,
        final,
    )
    if final:
        assert columns(done)["slot"] == at(1)
    else:
        assert part(done, "slot", "execution_time", "attempt") == (at(0), at(0.5), 1)
        assert done.record.aborted == 1


@pytest.mark.parametrize(
    ("attempt", "forget"),
    [pytest.param(1, True, id="the first"), pytest.param(3, False, id="a later one")],
)
def test_a_hand_back_burns_nothing(attempt: int, forget: bool) -> None:
    """As if it had never been claimed: slot, due time and attempts as before; a first one leaves
    no ledger row.
    """
    row = plan_row(
        attempt=attempt,
        lost_count=attempt - 1,
        execution_time=at(0.2),
        collapsed=4,
        origin="catch_up",
    )
    back = finish(HandedBack("suspect"), row=row)
    assert back.label == "handed_back"
    assert part(back, "slot", "execution_time", "attempt") == (
        at(0),
        at(0.2),
        attempt - 1,
    )
    assert part(back, "lost_count", "collapsed", "origin") == (
        attempt - 1,
        4,
        "catch_up",
    )
    assert back.record is not None
    assert (back.record.forget, back.record.final) == (forget, False)
    assert back.gaps == ()


# -- complete_in ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "outcome",
    [
        Succeeded(promised=True),
        Failed("raised after its commit", promised=True),
        Aborted("shutdown"),
        Died(),
    ],
    ids=lambda one: one.name,
)
@pytest.mark.parametrize(
    "kind", [plan_row, detached_row, task_row], ids=["plan", "detached", "task"]
)
def test_what_complete_in_has_committed_is_done(
    kind: Any, outcome: AttemptOutcome
) -> None:
    """The ledger says succeeded under this token: whatever came after it, the slot is a
    success.
    """
    done = finish(outcome, row=kind(), ledger=entry("succeeded"), now=at(0.5))
    assert done.label == "succeeded"
    assert done.remove is (kind is not plan_row)


@pytest.mark.parametrize(
    "ledger",
    [entry("running"), entry("succeeded", token=TOKEN - 1)],
    ids=["open", "another's"],
)
def test_a_promise_that_was_not_committed_is_a_failure(ledger: LedgerEntry) -> None:
    """If the caller's transaction rolled back, the attempt failed, whatever the handler
    returned.
    """
    done = finish(Succeeded(promised=True), ledger=ledger)
    assert done.label == "failed"
    assert "complete_in" in columns(done)["last_error"]


# -- at_loss --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policies", [{}, {"on_lost": "give_up"}], ids=["rerun", "give_up"]
)
def test_what_another_program_has_picked_is_handed_back(policies: Any) -> None:
    """Claims of ours say their lease. Whatever else is marked as picked has not started, and burns
    nothing.
    """
    back = finish(
        Died(), row=plan_row(lease=None, picked_by="java"), now=at(1.5), **policies
    )
    assert (back.label, back.record) == ("handed_back", None)
    assert part(back, "slot", "execution_time", "attempt", "lost_count") == (
        NOON,
        NOON,
        1,
        0,
    )


def test_a_lost_slot_runs_again() -> None:
    """on_lost=rerun: the same slot, at once, as the next attempt; the ledger counts the loss."""
    lost = finish(Died(), now=at(1.5))
    assert lost.label == "lost"
    assert part(lost, "slot", "execution_time", "attempt", "lost_count") == (
        at(0),
        at(1.5),
        1,
        1,
    )
    assert lost.record is not None
    assert (lost.record.outcome, lost.record.reason, lost.record.lost) == (
        "lost",
        "rerun",
        1,
    )
    assert not lost.record.final
    assert lost.gaps == ()  # decided at the slot's final settlement


@pytest.mark.parametrize(
    ("lost_count", "seconds"), [(0, 0), (1, 5), (2, 10), (3, 20), (9, 300)]
)
def test_deaths_back_off(lost_count: int, seconds: int) -> None:
    """A job that takes its workers down gives them more and more air."""
    lost = finish(Died(), row=plan_row(lost_count=lost_count), now=at(2), max_lost=100)
    pause = columns(lost)["execution_time"] - at(2)
    assert timedelta(seconds=seconds) <= pause <= 1.5 * timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("lost_count", "label"), [(0, "lost"), (1, "lost"), (2, "dead")]
)
def test_a_poison_slot_ends_dead_and_the_schedule_goes_on(
    lost_count: int, label: str
) -> None:
    """After max_lost lost attempts the slot is dead, and the next one has its turn."""
    done = finish(Died(), row=plan_row(lost_count=lost_count), now=at(0.9), max_lost=3)
    assert done.label == label
    assert columns(done)["slot"] == (at(1) if label == "dead" else at(0))
    if label == "dead":
        assert done.record is not None
        assert (done.record.outcome, done.record.reason, done.record.lost) == (
            "dead",
            "max_lost",
            1,
        )


def test_a_job_that_gives_up_never_starts_a_lost_slot_again() -> None:
    """on_lost=give_up: the slot ends as lost, for it may still be running."""
    done = finish(Died(), now=at(0.9), on_lost="give_up")
    assert done.label == "lost"
    assert columns(done)["slot"] == at(1)
    assert done.record is not None
    assert (done.record.outcome, done.record.reason, done.record.final) == (
        "lost",
        "may_still_be_running",
        True,
    )


@pytest.mark.parametrize(
    ("beat", "now", "slot", "gap"),
    [
        pytest.param(
            at(2.5),
            at(9),
            at(3),
            (at(1), at(2), 2),
            id="overlap's up to the heartbeat, catch-up's after",
        ),
        pytest.param(
            at(9),
            at(2.5),
            at(3),
            (at(1), at(2), 2),
            id="never beyond now: the clock was stepped back",
        ),
        pytest.param(
            at(0.5), at(9), at(1), None, id="nothing came due before the heartbeat"
        ),
    ],
)
def test_a_lost_claim_counts_as_held_until_its_last_heartbeat(
    beat: datetime,
    now: datetime,
    slot: datetime,
    gap: tuple[datetime, datetime, int] | None,
) -> None:
    """What came due until then is overlap's; what came due after it is for catch-up to decide."""
    done = finish(
        Died(), row=plan_row(last_heartbeat=beat), now=now, on_lost="give_up"
    )
    assert done.gaps == (
        (Gap(first=gap[0], last=gap[1], count=gap[2], reason="overlap"),)
        if gap
        else ()
    )
    assert columns(done)["slot"] == slot


@pytest.mark.parametrize("on_lost", ["rerun", "give_up"])
def test_a_claim_lost_before_its_mark_is_handed_back(on_lost: str) -> None:
    """Lost while claimed: the handler never started, so nothing is burnt."""
    back = finish(Died(), now=at(0.9), ledger=entry("claimed"), on_lost=on_lost)
    assert back.label == "handed_back"
    assert part(back, "slot", "attempt", "lost_count") == (at(0), 0, 0)


# -- one-time tasks -------------------------------------------------------------------------------


def test_a_task_that_succeeded_leaves() -> None:
    """Its row goes; no ledger row was ever made for it."""
    done = finish(Succeeded(), row=task_row())
    assert done.remove
    assert done.record is None


@pytest.mark.parametrize(
    ("outcome", "policies", "error"),
    [
        pytest.param(Failed("boom"), {}, "boom", id="failed for good"),
        pytest.param(
            Failed("unreadable", final=True),
            {"retry": retry()},
            "unreadable",
            id="unreadable",
        ),
        pytest.param(Died(), {"max_lost": 1}, "lost 1 times", id="poison"),
        pytest.param(
            Died(), {"on_lost": "give_up"}, "may_still_be_running", id="gave up"
        ),
        pytest.param(
            Aborted("shutdown"),
            {"on_lost": "give_up"},
            "shutdown",
            id="stopped, and gives up",
        ),
    ],
)
def test_a_task_that_cannot_go_on_stays_as_dead(
    outcome: AttemptOutcome, policies: dict[str, Any], error: str
) -> None:
    """Nothing vanishes: the row is parked with its state, the reason, and the due time it had."""
    done = finish(
        outcome, row=task_row(execution_time=at(0.1), marked=at(0)), **policies
    )
    assert done.label == "dead"
    assert part(done, "state", "execution_time", "parked_due") == (
        "dead",
        FOREVER,
        at(0.1),
    )
    assert error in columns(done)["last_error"]


def test_a_task_that_gives_up_and_has_no_mark_is_handed_back() -> None:
    """Its handler never started: it waits as before, and no attempt is counted."""
    done = finish(Died(), row=task_row(execution_time=at(0.1)), on_lost="give_up")
    assert done.label == "handed_back"
    assert part(done, "execution_time", "attempt", "lost_count") == (at(0.1), 0, 0)


def test_a_task_is_retried_like_a_job() -> None:
    """Without a next slot, a retry may fall as late as it likes."""
    again = finish(Failed("boom"), row=task_row(), retry=retry(seconds=86_400))
    assert part(again, "state", "attempt") == (None, 1)
    assert columns(again)["execution_time"] == at(0.5) + timedelta(days=1)


# -- a handler that steers ------------------------------------------------------------------------


def test_snooze_is_the_same_slot_later_and_counts_as_no_try() -> None:
    """The retries are not burnt: the ledger counts it as stopped, and the decision subtracts
    that.
    """
    snoozed = finish(Snoozed(10 * MINUTE), retry=retry(2))
    assert part(snoozed, "slot", "execution_time", "attempt") == (
        at(0),
        IN_TIME + 10 * MINUTE,
        1,
    )
    assert snoozed.record is not None
    assert (snoozed.record.outcome, snoozed.record.reason, snoozed.record.aborted) == (
        "cancelled",
        "snoozed",
        1,
    )
    assert not snoozed.record.final
    again = finish(
        Failed("no"),
        row=plan_row(attempt=2),
        ledger=entry("running", aborted=1),
        retry=retry(2, seconds=1),
    )
    assert again.label == "failed"
    assert again.record is not None
    assert not again.record.final


def test_snooze_of_a_job_that_gives_up_fails_it() -> None:
    """It would be a second start."""
    ended = finish(Snoozed(MINUTE), on_lost="give_up")
    assert ended.record is not None
    assert (ended.record.outcome, ended.record.final) == ("failed", True)
    assert part(ended, "slot") == (at(1),)


def test_cancel_ends_the_slot_and_the_schedule_goes_on() -> None:
    """Neither a success nor a failure: the counters stay."""
    ended = finish(Cancelled("nothing to do"), row=plan_row(consecutive_failures=2))
    assert ended.record is not None
    assert (ended.record.outcome, ended.record.reason) == (
        "cancelled",
        "nothing to do",
    )
    assert part(ended, "slot", "consecutive_failures") == (at(1), 2)


@pytest.mark.parametrize(
    "policies", [{"retry": retry()}, {"on_lost": "give_up"}], ids=["rerun", "give_up"]
)
@pytest.mark.parametrize(
    ("outcome", "asked", "reason", "error"),
    [
        pytest.param(
            Cancelled("nothing to do"),
            None,
            "nothing to do",
            None,
            id="by its handler",
        ),
        pytest.param(Aborted("operator"), at(0.2), "operator", None, id="it stopped"),
        pytest.param(Failed("boom"), at(0.2), "operator", "boom", id="it failed"),
        pytest.param(
            Snoozed(MINUTE), at(0.2), "operator", None, id="it wanted to go on later"
        ),
        pytest.param(
            Succeeded(promised=True),
            at(0.2),
            "operator",
            "complete_in was called, but its transaction was not committed",
            id="it broke its promise",
        ),
        pytest.param(HandedBack(), at(0.2), "operator", None, id="it had not begun"),
        pytest.param(Died(), at(0.2), "operator", None, id="it died"),
    ],
)
def test_a_task_that_was_called_off_goes(
    outcome: AttemptOutcome,
    asked: datetime | None,
    reason: str,
    error: str | None,
    policies: dict[str, Any],
) -> None:
    """It is not among the dead, who are driven again; its history, if it keeps one, says who
    called it off.
    """
    ended = finish(outcome, row=task_row(cancel_requested=asked), **policies)
    assert (ended.label, ended.remove) == ("cancelled", True)
    assert ended.ended is not None
    assert (ended.ended.outcome, ended.ended.reason, ended.ended.error) == (
        "cancelled",
        reason,
        error,
    )


def test_a_task_that_succeeds_though_it_was_called_off() -> None:
    """Its work is done."""
    assert (
        finish(Succeeded(), row=task_row(cancel_requested=at(0.2))).label
        == "succeeded"
    )


def test_a_task_that_gives_up_stays_where_a_shutdown_stopped_it() -> None:
    """Nobody called it off: somebody has to look how far it came."""
    ended = finish(Aborted("shutdown"), row=task_row(), on_lost="give_up")
    assert part(ended, "state", "last_error") == ("dead", "shutdown")


@pytest.mark.parametrize(
    "stopped", [Snoozed(MINUTE), Aborted("shutdown"), Died()], ids=lambda one: one.name
)
def test_what_a_task_does_not_fail_by_burns_no_try(stopped: AttemptOutcome) -> None:
    """However often it is snoozed, stopped from outside or lost: all its tries are left, and
    starts are counted on.
    """
    row = task_row()
    for attempt in range(1, 8):
        changed = columns(
            finish(
                stopped,
                row=replace(row, attempt=attempt),
                retry=retry(2),
                max_lost=100,
            )
        )
        row = replace(
            row,
            lost_count=changed["lost_count"],
            consecutive_failures=changed["consecutive_failures"],
        )
    assert (
        finish(Failed("once"), row=replace(row, attempt=8), retry=retry(2)).label
        == "failed"
    )
    assert (
        finish(
            Failed("twice"),
            row=replace(row, attempt=9, consecutive_failures=1),
            retry=retry(2),
        ).label
        == "dead"
    )


# -- due times: spread and min_interval -----------------------------------------------------------

#: Each run is due twenty seconds after its slot.
SPREAD = parse_schedule(f"SPREAD({MINUTELY}; 20s)")


@pytest.mark.parametrize(
    ("now", "slot", "collapsed"),
    [
        pytest.param(at(1 / 3), at(0), 0, id="due"),
        pytest.param(at(1.2), at(0), 0, id="the next slot has come, and is not due"),
        pytest.param(at(4 / 3), at(1), 1, id="the next one is due, too"),
    ],
)
def test_a_slot_of_a_spread_schedule_comes_when_it_is_due(
    now: datetime, slot: datetime, collapsed: int
) -> None:
    """Slots that are not due yet have not been missed."""
    decision = claim(plan_row(SPREAD), SPREAD, now, None)
    assert isinstance(decision, decide.Start)
    assert (decision.row.slot, decision.row.collapsed) == (slot, collapsed)


@pytest.mark.parametrize(
    ("now", "slot", "skipped"),
    [
        pytest.param(at(1.2), at(1), 0, id="the next one is due in eight seconds"),
        pytest.param(at(1.4), at(2), 1, id="it came due during the run"),
    ],
)
def test_an_overlap_of_a_spread_schedule_begins_when_a_slot_is_due(
    now: datetime, slot: datetime, skipped: int
) -> None:
    """The slot keeps its identity, and is due later."""
    transition = finish(Succeeded(), row=plan_row(SPREAD), schedule=SPREAD, now=now)
    assert part(transition, "slot", "execution_time") == (slot, slot + MINUTE / 3)
    assert sum(gap.count for gap in transition.gaps) == skipped


@pytest.mark.parametrize(
    ("since", "slot"),
    [
        pytest.param(
            at(0.2), at(2), id="it was due when nobody held the job any more"
        ),
        pytest.param(at(0.4), at(0), id="it was due while the job was held"),
    ],
)
def test_a_spread_slot_is_queued_or_missed_by_when_it_was_due(
    since: datetime, slot: datetime
) -> None:
    """A queued slot starts, however late; of missed ones the latest."""
    decision = claim(plan_row(SPREAD, unheld_since=since), SPREAD, at(3.1), None)
    assert isinstance(decision, decide.Start)
    assert decision.row.slot == slot


@pytest.mark.parametrize(("now", "reason"), [(at(0.4), None), (at(0.6), "late")])
def test_a_detached_slot_is_late_counted_from_when_it_was_due(
    now: datetime, reason: str | None
) -> None:
    row = replace(detached_row(), schedule=str(SPREAD), origin="schedule")
    policies = definition(start_within=timedelta(seconds=10))
    assert decide.given_up(row, policies, now) == reason


def test_start_within_counts_from_the_due_time() -> None:
    """Whoever spreads by half an hour may allow five minutes of lateness."""
    policies = definition(start_within=timedelta(seconds=10))
    in_time = claim(plan_row(SPREAD), SPREAD, at(0.4), None, policies)
    too_late = claim(plan_row(SPREAD), SPREAD, at(0.6), None, policies)
    assert isinstance(in_time, decide.Start)
    assert isinstance(too_late, decide.Advance)


@pytest.mark.parametrize(
    ("outcome", "policies", "due"),
    [
        pytest.param(Succeeded(), {}, at(5), id="the next slot"),
        pytest.param(
            Failed("boom"),
            {"retry": Retry(wait=tenacity.wait_fixed(10), past_next_slot=True)},
            at(5),
            id="a retry",
        ),
        pytest.param(Died(), {}, at(5), id="after a loss"),
        pytest.param(Snoozed(MINUTE), {}, at(5), id="a snooze"),
        pytest.param(
            Snoozed(10 * MINUTE), {}, at(10.5), id="what is due later stays later"
        ),
        pytest.param(
            HandedBack(), {}, NOON, id="what has not started bears no distance"
        ),
    ],
)
def test_two_starts_keep_their_distance(
    outcome: AttemptOutcome, policies: Any, due: datetime
) -> None:
    """min_interval counts from the start that was, and moves the due time only."""
    ledger = entry("running", started=at(0))
    transition = finish(outcome, ledger=ledger, min_interval=5 * MINUTE, **policies)
    slot = at(1) if isinstance(outcome, Succeeded) else at(0)
    assert part(transition, "slot", "execution_time") == (slot, due)


@pytest.mark.parametrize(
    ("outcome", "policies", "due"),
    [
        pytest.param(
            Succeeded(), {"min_interval": 5 * MINUTE}, at(1), id="the next slot"
        ),
        pytest.param(
            Snoozed(MINUTE),
            {"min_interval": 5 * MINUTE},
            IN_TIME + MINUTE,
            id="a snooze",
        ),
        pytest.param(Died(), {"min_interval": 5 * MINUTE}, IN_TIME, id="after a loss"),
        pytest.param(
            Succeeded(),
            {"catch_up": CatchUp.all(pace=10 * SECOND)},
            at(3),
            id="the next slot of a tail",
        ),
    ],
)
def test_a_start_in_the_future_keeps_nothing_apart(
    outcome: AttemptOutcome, policies: Any, due: datetime
) -> None:
    """The clock was stepped back since: a job does not stand still until that time comes again."""
    is_tail = "catch_up" in policies
    row = plan_row(origin="catch_up", catch_up_until=at(2)) if is_tail else plan_row()
    now = at(3) if is_tail else IN_TIME
    transition = finish(
        outcome, row=row, now=now, ledger=entry("running", started=at(6)), **policies
    )
    assert part(transition, "execution_time") == (due,)


@pytest.mark.parametrize(
    ("least", "slot"),
    [(50 * SECOND, at(0)), (MINUTE, at(1))],
    ids=["before it", "at it"],
)
def test_a_retry_that_its_distance_moves_beyond_the_next_slot(
    least: timedelta, slot: datetime
) -> None:
    """It is not made, however soon its strategy wants it."""
    ledger = entry("running", started=at(0))
    assert part(
        finish(
            Failed("boom"),
            ledger=ledger,
            min_interval=least,
            retry=retry(3, seconds=1),
        ),
        "slot",
    ) == (slot,)


def test_a_schedule_that_has_ended_stays_ended() -> None:
    """A distance to the last start brings nothing back."""
    once = Once(NOON)
    ledger = entry("running", started=NOON)
    transition = finish(
        Succeeded(),
        row=plan_row(once),
        schedule=once,
        ledger=ledger,
        min_interval=MINUTE,
    )
    assert part(transition, "slot", "execution_time") == (None, FOREVER)


@pytest.mark.parametrize(
    ("past", "slot"),
    [(False, at(1)), (True, at(0))],
    ids=["by default", "told otherwise"],
)
def test_a_retry_beyond_the_next_slot(past: bool, slot: datetime) -> None:
    """It is not made, unless told otherwise; then the next slot comes due while this one waits."""
    wanted = Retry(max_attempts=3, wait=tenacity.wait_fixed(90), past_next_slot=past)
    done = finish(Failed("boom"), retry=wanted)
    assert part(done, "slot") == (slot,)
    assert done.record is not None
    assert done.record.reason == ("retry" if past else "next_slot")


def test_a_slot_without_tries_left_gives_none_up() -> None:
    """Its reason is not the next slot, however late it is."""
    done = finish(
        Failed("boom"),
        row=plan_row(attempt=3),
        now=at(0.9),
        retry=retry(3, seconds=10),
    )
    assert done.record is not None
    assert (done.record.final, done.record.reason) == (True, None)


def test_slots_that_came_due_while_a_retry_waited() -> None:
    """They are the job's overlap."""
    wanted = Retry(max_attempts=3, wait=tenacity.wait_fixed(90), past_next_slot=True)
    transition = finish(
        Succeeded(), row=plan_row(attempt=2), now=at(2.5), retry=wanted
    )
    assert part(transition, "slot") == (at(3),)
    assert transition.gaps == (
        Gap(first=at(1), last=at(2), count=2, reason="overlap"),
    )


# -- how long a job is held, and which slots come while nobody holds it ---------------------------

BEYOND = Retry(max_attempts=3, wait=tenacity.wait_fixed(90), past_next_slot=True)


@pytest.mark.parametrize(
    ("outcome", "policies", "until"),
    [
        pytest.param(
            Failed("boom"),
            {"retry": BEYOND},
            IN_TIME + 90 * SECOND + POLL,
            id="a retry, and a poll interval",
        ),
        pytest.param(Snoozed(MINUTE), {}, IN_TIME + MINUTE + POLL, id="a snooze"),
        pytest.param(
            Snoozed(MINUTE),
            {"min_interval": 5 * MINUTE},
            at(5) + POLL,
            id="a snooze, put off",
        ),
        pytest.param(
            Aborted("shutdown"), {}, IN_TIME + POLL, id="another attempt at once"
        ),
        pytest.param(Died(), {}, at(0.2), id="lost: up to its last heartbeat"),
        pytest.param(
            Succeeded(), {}, None, id="one that waits for a new slot holds nothing"
        ),
        pytest.param(HandedBack(), {}, None, id="nor does one that never began"),
    ],
)
def test_until_when_a_row_that_is_let_go_holds_its_job(
    outcome: AttemptOutcome, policies: Any, until: datetime | None
) -> None:
    """It is written ahead of time: who claims the row writes nothing of it."""
    row = plan_row(last_heartbeat=at(0.2))
    done = finish(outcome, row=row, ledger=entry("running", started=at(0)), **policies)
    assert part(done, "unheld_since") == (until,)


@pytest.mark.parametrize("make", [detached_row, task_row], ids=["detached", "task"])
def test_only_a_plan_row_holds_its_job(make: Any) -> None:
    """A row of one slot, or of a task, stands beside it."""
    assert part(finish(Snoozed(MINUTE), row=make()), "unheld_since") == (None,)


def test_a_fixed_delay_is_never_missed() -> None:
    """Its slots are counted from the end of a run."""
    delay = FixedDelay("2m")
    assert part(
        finish(Snoozed(MINUTE), row=plan_row(delay), schedule=delay), "unheld_since"
    ) == (None,)


@pytest.mark.parametrize(
    ("since", "began", "overlapped"),
    [
        pytest.param(
            at(1.5),
            at(3.5),
            1,
            id="slots came after it, and before the attempt: overlap's up to it",
        ),
        pytest.param(
            at(1.5),
            at(1.9),
            4,
            id="it was claimed late, and nothing came: overlap's up to the end",
        ),
        pytest.param(
            at(1.5), at(2), 4, id="a slot that comes as the attempt starts is held"
        ),
        pytest.param(at(2), at(2.5), 4, id="and so is one that comes just then"),
        pytest.param(None, at(2.5), 4, id="an attempt that waited for nothing"),
    ],
)
def test_an_end_judges_whether_nobody_held_the_job(
    since: datetime | None, began: datetime, overlapped: int
) -> None:
    """Slots up to there are overlap's; the row waits for the next one."""
    row = plan_row(attempt=2, unheld_since=since)
    done = finish(
        Succeeded(), row=row, ledger=entry("running", started=began), now=at(4.5)
    )
    assert part(done, "slot", "unheld_since") == (at(1 + overlapped), None)
    assert sum(gap.count for gap in done.gaps) == overlapped


@pytest.mark.parametrize(
    ("overlap", "slot", "skipped"),
    [
        pytest.param(Overlap.queue(), at(2), 1, id="queue"),
        pytest.param(Overlap.queue(2), at(1), 0, id="queue of two"),
        pytest.param(Overlap.queue_all(), at(1), 0, id="queue_all"),
    ],
)
def test_a_queue_takes_in_nothing_that_came_while_nobody_held_the_job(
    overlap: Overlap, slot: datetime, skipped: int
) -> None:
    """It stands until the queue is through: what came after it is catch-up's."""
    row = plan_row(attempt=2, unheld_since=at(2.5))
    ledger = entry("running", started=at(4.5))
    done = finish(Succeeded(), row=row, ledger=ledger, now=at(5.5), overlap=overlap)
    assert part(done, "slot", "execution_time", "unheld_since") == (
        slot,
        at(5.5),
        at(2.5),
    )
    assert sum(gap.count for gap in done.gaps) == skipped
    last = plan_row(slot=at(2), watermark=at(2), unheld_since=at(2.5))
    through = finish(
        Succeeded(),
        row=last,
        ledger=entry("running", started=at(5.5)),
        now=at(5.6),
        overlap=overlap,
    )
    assert part(through, "slot", "unheld_since") == (at(3), None)
    assert through.gaps == ()


def test_a_second_absence_does_not_move_it() -> None:
    """As long as slots remain that came while nobody held the job."""
    row = plan_row(attempt=2, unheld_since=at(1.5))
    ledger = entry("running", started=at(3.5))
    assert part(
        finish(Snoozed(MINUTE), row=row, ledger=ledger, now=at(3.6)), "unheld_since"
    ) == (at(1.5),)
    assert part(
        finish(Died(), row=row, ledger=ledger, now=at(3.6)), "unheld_since"
    ) == (at(1.5),)
    fresh = entry("running", started=at(1.6))
    assert part(
        finish(Snoozed(MINUTE), row=row, ledger=fresh, now=at(1.7)), "unheld_since"
    ) == (at(2.7) + POLL,)


def test_what_comes_due_after_a_handler_has_ended_is_not_overlapped() -> None:
    """However late its end is settled."""
    ledger = entry("running", started=at(0))
    late = ending.at_finish(
        plan_row(),
        definition(),
        MINUTELY,
        Succeeded(),
        at(3.5),
        ledger,
        poll=POLL,
        ended_ago=2 * MINUTE,
    )
    assert part(late, "slot") == (at(2),)
    assert late.gaps == (Gap(first=at(1), last=at(1), count=1, reason="overlap"),)


@pytest.mark.parametrize(
    ("schedule", "pause", "again"),
    [
        pytest.param(
            MINUTELY, 20, True, id="slots have come, and it is before the next one"
        ),
        pytest.param(MINUTELY, 30, False, id="at the next one that has not come"),
        pytest.param(SPREAD, 40, True, id="the next one is due later"),
        pytest.param(SPREAD, 50, False, id="at the time that it is due"),
    ],
)
def test_a_retry_gives_way_to_the_next_slot_that_has_not_come(
    schedule: Schedule, pause: int, again: bool
) -> None:
    """In a tail, or a queue, other slots have come already."""
    done = finish(
        Failed("x"),
        row=plan_row(schedule),
        schedule=schedule,
        now=at(3.5),
        retry=retry(3, seconds=pause),
    )
    assert done.record is not None
    assert done.record.final is not again


@pytest.mark.parametrize(
    ("since", "moved"),
    [(at(1) + POLL, at(3) + POLL), (at(-1), at(-1)), (None, None)],
    ids=["ahead of time", "lost before", "holds nothing"],
)
def test_a_row_that_is_moved_holds_its_job_as_long_after_that(
    since: datetime | None, moved: datetime | None
) -> None:
    """What was missed already stays missed."""
    row = plan_row(picked=False, execution_time=at(1), unheld_since=since)
    assert going_back.moved(row, at(3)) == {
        "execution_time": at(3),
        "unheld_since": moved,
    }
    assert part(going_back.defer(row, at(3)), "execution_time", "unheld_since") == (
        at(3),
        moved,
    )
    asleep = replace(row, state="paused", execution_time=FOREVER, parked_due=at(1))
    assert going_back.moved(asleep, at(3)) == {
        "execution_time": at(3),
        "unheld_since": moved,
    }


# -- slots in rows of their own -------------------------------------------------------------------

ALLOW = Overlap.allow(2)
REPLACE = Overlap.cancel_previous()


@pytest.mark.parametrize(
    ("overlap", "now", "waits_for", "due", "skipped"),
    [
        pytest.param(
            ALLOW,
            at(0),
            at(1),
            at(1),
            (at(0), at(0), 1),
            id="allow: full, the slot is skipped",
        ),
        pytest.param(
            ALLOW,
            NOON + POLL,
            at(1),
            at(1),
            (at(0), at(0), 1),
            id="allow: looked at in time",
        ),
        pytest.param(
            ALLOW,
            at(3.5),
            at(0),
            at(3.5) + SECOND,
            None,
            id="allow: looked at late, it waits",
        ),
        pytest.param(
            REPLACE,
            at(0),
            at(0),
            at(0) + SECOND,
            None,
            id="replace: waits for the one that runs",
        ),
        pytest.param(
            REPLACE,
            at(2),
            at(0),
            at(2) + SECOND,
            None,
            id="replace: looked at late, it waits",
        ),
    ],
)
def test_a_slot_that_finds_no_place(
    overlap: Overlap,
    now: datetime,
    waits_for: datetime,
    due: datetime,
    skipped: tuple[datetime, datetime, int] | None,
) -> None:
    """What runs beside the plan row decides what becomes of the slots that are due."""
    decision = claim(
        plan_row(), MINUTELY, now, None, definition(overlap=overlap), is_full=True
    )
    assert isinstance(decision, decide.Advance)
    assert (decision.row["slot"], decision.row["execution_time"]) == (waits_for, due)
    expected = skipped and Gap(
        first=skipped[0], last=skipped[1], count=skipped[2], reason="overlap"
    )
    assert decision.gaps == ((expected,) if expected else ())
    assert decision.row["attempt"] == 0


@pytest.mark.parametrize("overlap", [ALLOW, REPLACE], ids=str)
def test_a_slot_that_finds_its_place(overlap: Overlap) -> None:
    """It starts as it would alone."""
    decision = claim(plan_row(), MINUTELY, at(2), None, definition(overlap=overlap))
    assert isinstance(decision, decide.Start)
    assert (decision.row.slot, decision.row.collapsed) == (at(2), 2)


@pytest.mark.parametrize(
    ("now", "catch_up", "replaces"),
    [
        pytest.param(at(0), CatchUp.all(), ("schedule", "catch_up"), id="in time"),
        pytest.param(at(1), CatchUp.latest(), ("schedule", "catch_up"), id="late"),
        pytest.param(at(1), CatchUp.all(), ("schedule",), id="late, and all run"),
    ],
)
def test_who_is_asked_to_stop(
    now: datetime, catch_up: CatchUp, replaces: tuple[str, ...]
) -> None:
    """A slot that waits replaces what runs, but for slots that all run."""
    decision = claim(
        plan_row(),
        MINUTELY,
        now,
        None,
        definition(overlap=REPLACE, catch_up=catch_up),
        is_full=True,
    )
    assert isinstance(decision, decide.Advance)
    assert decision.replaces == replaces


@pytest.mark.parametrize(
    ("is_full", "now", "slot", "gaps"),
    [
        pytest.param(True, at(1.05), at(1), 1, id="a newer one takes its place"),
        pytest.param(False, at(1.05), at(1), 1, id="the newest starts"),
        pytest.param(
            True,
            at(2.5),
            at(0),
            0,
            id="nobody has looked for long: all are catch-up's",
        ),
    ],
)
def test_at_most_one_waits_for_another_to_stop(
    is_full: bool, now: datetime, slot: datetime, gaps: int
) -> None:
    """As long as somebody looks, it stays overlap's however long it waits."""
    row = plan_row(unheld_since=at(1.1))
    decision = claim(
        row,
        MINUTELY,
        now,
        None,
        definition(overlap=REPLACE, catch_up=CatchUp.all()),
        is_full=is_full,
    )
    assert (
        decision.row.slot
        if isinstance(decision, decide.Start)
        else decision.row["slot"]
    ) == slot
    assert [gap.reason for gap in decision.gaps] == ["overlap"] * gaps


def test_a_slot_that_catches_up_waits_for_its_place() -> None:
    """It was decided that it runs: nothing of it is skipped."""
    row = plan_row(origin="catch_up", catch_up_until=at(5))
    policies = definition(overlap=ALLOW, catch_up=CatchUp.all())
    decision = claim(row, MINUTELY, at(7), None, policies, is_full=True)
    assert isinstance(decision, decide.Advance)
    assert decision.gaps == ()
    kept = {
        name: decision.row[name]
        for name in ("slot", "origin", "catch_up_until", "execution_time")
    }
    assert kept == {
        "slot": NOON,
        "origin": "catch_up",
        "catch_up_until": at(5),
        "execution_time": at(7) + SECOND,
    }


@pytest.mark.parametrize(
    ("policies", "row", "slot", "due"),
    [
        pytest.param({}, {}, at(1), at(1), id="the next slot"),
        pytest.param(
            {"catch_up": CatchUp.all()},
            {"origin": "catch_up", "catch_up_until": at(0)},
            at(1),
            at(1),
            id="caught up",
        ),
        pytest.param(
            {"catch_up": CatchUp.all(pace="30s")},
            {"origin": "catch_up", "catch_up_until": at(5)},
            at(1),
            at(6.5),
            id="the next missed one, in its pace",
        ),
    ],
)
def test_the_plan_row_goes_on(
    policies: Any, row: dict[str, Any], slot: datetime, due: datetime
) -> None:
    """While its slot runs in a row of its own."""
    now = (
        at(6)
        if "catch_up_until" in row and row["catch_up_until"] == at(5)
        else IN_TIME
    )
    columns = decide.beside(
        plan_row(**row), MINUTELY, definition(overlap=ALLOW, **policies), now
    )
    assert (columns["slot"], columns["execution_time"], columns["attempt"]) == (
        slot,
        due,
        0,
    )


@pytest.mark.parametrize(
    ("called_off", "reason"), [("overlap", "overlap"), (None, "operator")]
)
@pytest.mark.parametrize(
    "outcome", [Aborted("overlap"), Died(), HandedBack(), Snoozed(MINUTE)], ids=repr
)
def test_a_slot_that_was_called_off(
    outcome: AttemptOutcome, called_off: str | None, reason: str
) -> None:
    """It ends, and the ledger says who wanted that."""
    row = detached_row(
        cancel_requested=at(0.2), called_off=called_off, origin="schedule"
    )
    transition = finish(outcome, row=row, retry=retry())
    assert transition.record is not None
    assert (transition.remove, transition.label, transition.record.reason) == (
        True,
        "cancelled",
        reason,
    )
