"""Every reason of the ledger is explained in a sentence, whatever became of its slot."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from tests.kit.store import Facts

from slotwise import Calendar, Cron
from slotwise.explain.slot_explanation import explain
from slotwise.inspect import SlotInfo
from slotwise.spi import REASONS, Row

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
#: Of a Thursday; the next day is closed, and so is the week's end after it.
NINE = Cron("0 9 * * *").excluding(
    Calendar(name="AT", revision=1, days=frozenset({date(2026, 5, 1)}))
)


def at(day: int) -> datetime:
    return datetime(2026, 4, 30, 9, tzinfo=UTC) + timedelta(days=day)


SKIPPED = {reason: found.skipped for reason, found in REASONS.items() if found.skipped}
ENDED = {reason: found.ended for reason, found in REASONS.items() if found.ended}
AGAIN = {reason: found.waits for reason, found in REASONS.items() if found.waits}


def waiting_for(slot: datetime, schedule: str = str(NINE)) -> Row:
    row = Row(
        task_name="a",
        task_instance="recurring",
        execution_time=slot,
        version=1,
        schedule=schedule,
        slot=slot,
    )
    return replace(row, kind="plan")


def facts_of(
    *, plan: Row, slot: datetime, now: datetime = NOON, entry: SlotInfo | None = None
) -> Facts:
    """Nothing else is known."""
    return Facts(
        job="a",
        slot=slot,
        now=now,
        entry=entry,
        gap=None,
        plan=plan,
        beside=None,
        runs_on=(),
        before=None,
        after=None,
        operations=[],
        all_paused=None,
        pruned_until=None,
        workers=[],
    )


def told(line: SlotInfo) -> str:
    plan = waiting_for(
        line.slot if line.finished is None else NOON + timedelta(hours=1), "EVERY|1m"
    )
    return " ".join(explain(facts_of(plan=plan, slot=line.slot, entry=line)).sentences)


LINE = SlotInfo(slot=NOON, outcome="skipped", reason=None)
BEGUN = replace(
    LINE,
    attempts=1,
    started=NOON,
    worker="w",
    finished=NOON + timedelta(seconds=3),
    took=timedelta(seconds=3),
)


@pytest.mark.parametrize("reason", SKIPPED)
def test_what_was_skipped(reason: str) -> None:
    """Alone, or lost sight of after it had begun."""
    assert SKIPPED[reason] in told(replace(LINE, reason=reason, finished=NOON))
    assert f"lost sight of it ({reason})" in told(
        replace(BEGUN, outcome="lost", reason=reason)
    )


@pytest.mark.parametrize("outcome", ["failed", "lost", "dead", "cancelled"])
@pytest.mark.parametrize(
    "reason", [reason for reason in ENDED if reason not in SKIPPED]
)
def test_what_ended(outcome: str, reason: str) -> None:
    """A sentence of its own, with nothing left to fill in."""
    text = told(replace(BEGUN, outcome=outcome, reason=reason))
    assert ENDED[reason].split("{")[0] in text
    assert f"({reason})" not in text
    assert not set("{}") & set(text)


@pytest.mark.parametrize(
    ("outcome", "reason", "words"),
    [
        ("succeeded", None, "It succeeded at 2026-01-01T12:00:03Z, after 3s."),
        (
            "failed",
            None,
            "It ended as failed at 2026-01-01T12:00:03Z, after 3s, for good.",
        ),
        (
            "cancelled",
            "operator",
            "An operator cancelled it at 2026-01-01T12:00:03Z, after 3s.",
        ),
        ("cancelled", "overlap", "A newer slot replaced it"),
        (
            "cancelled",
            "no {data} today",
            "It ended as cancelled (no {data} today) at 2026-01-01T12:00:03Z, after 3s.",
        ),
    ],
)
def test_how_it_is_said(outcome: str, reason: str | None, words: str) -> None:
    """Also with a handler's own words."""
    assert words in told(replace(BEGUN, outcome=outcome, reason=reason))


@pytest.mark.parametrize("outcome", ["failed", "cancelled", "claimed"])
@pytest.mark.parametrize("reason", AGAIN)
def test_what_waits_to_be_tried_again(outcome: str, reason: str) -> None:
    """Why its last claim came to nothing, and when it is due."""
    text = told(replace(BEGUN, outcome=outcome, reason=reason, finished=None))
    assert f"({AGAIN[reason]})" in text
    assert "due" in text


@pytest.mark.parametrize(
    ("day", "outcome", "is_passed_over"),
    [(0, "waiting", False), (1, "upcoming", True), (4, "upcoming", False)],
    ids=["open", "closed", "open again"],
)
def test_what_a_calendar_will_pass_over(
    day: int, outcome: str, is_passed_over: bool
) -> None:
    """It is a slot of the schedule: said before anybody has written it down."""
    found = explain(facts_of(plan=waiting_for(at(0)), slot=at(day), now=at(-1)))
    assert found.outcome == outcome
    assert (SKIPPED["calendar"] in found.sentences) is is_passed_over


def test_what_a_calendar_passes_over_waits_for_that() -> None:
    """The row waits for it; what came after it is decided with it."""
    waiting = explain(facts_of(plan=waiting_for(at(1)), slot=at(1), now=at(0)))
    undecided = explain(facts_of(plan=waiting_for(at(1)), slot=at(2), now=at(2)))
    assert [waiting.outcome, undecided.outcome] == ["waiting", "undecided"]
    assert SKIPPED["calendar"] in waiting.sentences
    assert SKIPPED["calendar"] in undecided.sentences


def test_what_never_began_under_cancel_previous() -> None:
    """It did not run, and the newer slot is named; of one that began the newer slot is named,
    too.
    """
    newer = replace(BEGUN, slot=NOON + timedelta(minutes=1))
    unbegun = replace(LINE, outcome="cancelled", reason="overlap", finished=NOON)
    for line, words in (
        (unbegun, "It did not run: a newer slot cancelled it"),
        (
            replace(BEGUN, outcome="cancelled", reason="overlap"),
            "A newer slot replaced it",
        ),
    ):
        facts = replace(
            facts_of(plan=waiting_for(NOON), slot=NOON, entry=line), after=newer
        )
        text = " ".join(explain(facts).sentences)
        assert words in text
        assert "The newer one that began next is 2026-01-01T12:01:00Z." in text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            replace(BEGUN, outcome="claimed", reason="shutdown", attempts=2),
            "Its next claim was handed back before",
        ),
        (
            replace(LINE, outcome="claimed", reason="shutdown"),
            "It was handed back before it began",
        ),
        (
            replace(BEGUN, outcome="cancelled", reason="snoozed"),
            "That attempt was put off (its handler snoozed it)",
        ),
        (
            replace(BEGUN, outcome="cancelled", reason="shutdown"),
            "That attempt was stopped (its worker was stopped)",
        ),
    ],
    ids=["begun before", "never begun", "snoozed", "stopped"],
)
def test_what_waits_is_told_from_what_began(line: SlotInfo, words: str) -> None:
    """A claim that never began is not taken for the attempt before it, nor a wish of the handler
    for an end.
    """
    assert words in told(replace(line, finished=None))


def test_a_disabled_schedule_says_so() -> None:
    """Not by its text, which is a dash."""
    plan = waiting_for(NOON + timedelta(hours=1), "-")
    assert (
        "Its schedule is disabled, and has no slots."
        in explain(facts_of(plan=plan, slot=NOON)).sentences
    )


@pytest.mark.parametrize(
    "outcome", ["skipped", "failed", "lost", "claimed", "strange"]
)
@pytest.mark.parametrize("is_final", [True, False])
def test_a_reason_that_nobody_registered(outcome: str, is_final: bool) -> None:
    """Another release, or a feature that is not installed here, wrote it: it is shown as it is."""
    text = told(
        replace(
            BEGUN,
            outcome=outcome,
            reason="lock_held {",
            finished=BEGUN.finished if is_final else None,
        )
    )
    assert text
    assert "(lock_held {)" in text or not is_final
