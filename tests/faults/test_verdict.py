"""The judge is trusted after it has failed: a good run passes, and each doctored copy of it does
not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slotwise import Every, FixedDelay, JobContext, Schedule
from slotwise.demo.evidence import (
    OK,
    Evidence,
    GapRow,
    HandlerLog,
    LedgerRow,
    LogLine,
    PlanRow,
    Rule,
)
from slotwise.demo.verdict import Tally, judge

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def ledger(second: float, outcome: str = "succeeded", **values: Any) -> LedgerRow:
    standard = {
        "origin": "schedule",
        "attempts": 1,
        "lost": 0,
        "aborted": 0,
        "token": int(1000 + 100 * second),
    }
    return LedgerRow(
        **{
            "slot": at(second),
            "outcome": outcome,
            "finished": at(second + 0.3),
            **standard,
            **values,
        },
    )


def attempt(
    second: float, number: int = 1, *, note: str | None = OK, late: float = 0.0
) -> list[LogLine]:
    """The two lines of an attempt; without a note the handler was killed. Tokens rise by one with
    each attempt.
    """
    values: dict[str, Any] = {
        "job": "tick",
        "instance": "recurring",
        "slot": at(second),
        "attempt": number,
        "pid": 7,
        "token": int(1000 + 100 * second) + number - 1,
    }
    start = LogLine(mark="start", at=at(second + late + 0.1), **values)
    return (
        [start, LogLine(mark="end", at=at(second + late + 0.2), note=note, **values)]
        if note
        else [start]
    )


def evidence(
    rows: list[LedgerRow],
    log: list[list[LogLine]],
    *,
    schedule: Schedule | None = None,
    gaps: tuple[GapRow, ...] = (),
    waits_for: float,
    **rule: Any,
) -> Evidence:
    return Evidence(
        rule=Rule(name="tick", schedule=schedule or Every("1s"), **rule),
        plan=PlanRow(planned=at(0.5), slot=at(waits_for), watermark=at(waits_for - 1)),
        ledger={row.slot: row for row in rows},
        gaps=gaps,
        log=[line for lines in log for line in lines],
    )


def calm(**rule: Any) -> Evidence:
    """Four slots, each run once; the fifth is waited for."""
    return evidence(
        [ledger(n) for n in (1, 2, 3, 4)],
        [attempt(n) for n in (1, 2, 3, 4)],
        waits_for=5,
        **rule,
    )


def taken_over() -> Evidence:
    """Slot 2 was lost and ran again while its zombie was still at work; 3 was skipped, 4 to 6 are
    a gap.
    """
    rows = [
        ledger(1),
        ledger(2, attempts=2, lost=1, token=1201, finished=at(6.5)),
        ledger(3, "skipped", attempts=0, token=None),
        ledger(7),
    ]
    zombie, second = attempt(2, late=0.0, note=None), attempt(2, 2, late=4.0)
    zombie += [replace(zombie[0], mark="end", note=OK, at=at(6.4))]
    gaps = (GapRow(first=at(4), last=at(6), count=3),)
    return evidence(
        rows, [attempt(1), zombie, second, attempt(7)], gaps=gaps, waits_for=8
    )


def retried() -> Evidence:
    """Slot 1 failed once and then ended well, slot 2 failed for good."""
    rows = [
        ledger(1, attempts=2, token=1101),
        ledger(2, "failed", attempts=3, token=1202),
    ]
    failures = [attempt(2, n, note="ValueError", late=n / 10) for n in (1, 2, 3)]
    return evidence(
        rows,
        [attempt(1, note="ValueError"), attempt(1, 2, late=0.2), *failures],
        waits_for=3,
        tries=3,
    )


def given_up() -> Evidence:
    """Slot 2 was lost in its handler, slot 3 before its handler started, and neither ran again."""
    rows = [ledger(1), ledger(2, "lost", lost=1), ledger(3, "lost", lost=1), ledger(4)]
    return evidence(
        rows,
        [attempt(1), attempt(2, note=None), attempt(4)],
        waits_for=5,
        gives_up=True,
    )


def begun_late() -> Evidence:
    """The holder of slot 2 was frozen before its handler began. It was lost, and began while slot
    3 ran.
    """
    rows = [ledger(1), ledger(2, "lost", lost=1), ledger(3)]
    return evidence(
        rows,
        [attempt(1), attempt(3), attempt(2, late=1.05)],
        waits_for=4,
        gives_up=True,
    )


def chained() -> Evidence:
    """Each slot is due one second after the end of the run before."""
    slots = (1.0, 2.3, 3.6)
    return evidence(
        [ledger(second) for second in slots],
        [attempt(second) for second in slots],
        schedule=FixedDelay("1s"),
        waits_for=4.9,
    )


def completing() -> Evidence:
    """The worker died after the handler's transaction had committed: success, and no end of the
    handler.
    """
    return evidence(
        [ledger(1), ledger(2, attempts=1)],
        [attempt(1), attempt(2, note=None)],
        waits_for=3,
        completes=True,
    )


def interrupted() -> Evidence:
    """Slot 2 was stopped by a shutdown and ran again."""
    rows = [ledger(1), ledger(2, attempts=2, aborted=1, token=1201)]
    return evidence(
        rows,
        [attempt(1), attempt(2, note="JobCancelled"), attempt(2, 2, late=0.3)],
        waits_for=3,
    )


def abreast(**rule: Any) -> Evidence:
    """Slots 1 and 2 ran side by side, and so did 2 and 4; 3 found no place."""
    log = [attempt(1, late=0.9), attempt(2), attempt(4)]
    log[1][1] = replace(log[1][1], at=at(4.2))
    rows = [
        ledger(1),
        ledger(2, finished=at(4.3)),
        ledger(3, "skipped", attempts=0, token=None),
        ledger(4),
    ]
    return evidence(rows, log, waits_for=5, **{"abreast": 2, **rule})


def claimed_together() -> Evidence:
    """Slots 1 and 2 were due when one statement claimed both: each runs in a row of its own, under
    the same token.
    """
    log = [
        [replace(line, token=1250) for line in attempt(second, late=2)]
        for second in (1, 2)
    ]
    return evidence(
        [ledger(second, token=1250) for second in (1, 2)], log, waits_for=3, abreast=2
    )


def handed_back() -> Evidence:
    """Slot 2 waits in a row of its own for the rest of its attempts, 3 because it was handed
    back.
    """
    rows = [ledger(1), ledger(2, "failed", finished=None), ledger(4)]
    log = [attempt(1), attempt(2, note="ValueError"), attempt(4)]
    return replace(
        evidence(rows, log, waits_for=5, abreast=3), detached={at(2), at(3)}
    )


GOOD = [
    calm,
    taken_over,
    retried,
    given_up,
    begun_late,
    chained,
    completing,
    interrupted,
    abreast,
    claimed_together,
    handed_back,
]


@pytest.mark.parametrize("run", GOOD)
def test_a_good_run_is_clean(run: Callable[[], Evidence]) -> None:
    """What keeps the laws is not accused."""
    assert judge([run()]).findings == ()


def with_row(one: Evidence, row: LedgerRow) -> Evidence:
    return replace(one, ledger={**one.ledger, row.slot: row})


def without(one: Evidence, second: float) -> Evidence:
    return replace(
        one,
        ledger={slot: row for slot, row in one.ledger.items() if slot != at(second)},
    )


def changed(one: Evidence, second: float, **values: Any) -> Evidence:
    return with_row(one, replace(one.ledger[at(second)], **values))


def more(one: Evidence, *lines: LogLine) -> Evidence:
    return replace(one, log=[*one.log, *lines])


def waiting(one: Evidence, **values: Any) -> Evidence:
    assert one.plan is not None
    return replace(one, plan=replace(one.plan, **values))


def edited(one: Evidence, number: int, **values: Any) -> Evidence:
    lines = list(one.log)
    lines[number] = replace(lines[number], **values)
    return replace(one, log=lines)


def shorter(one: Evidence, second: float, mark: str) -> Evidence:
    return replace(
        one,
        log=[line for line in one.log if (line.slot, line.mark) != (at(second), mark)],
    )


DOCTORED: dict[str, tuple[str, Callable[[], Evidence]]] = {
    "a slot is in neither place": ("missing", lambda: without(calm(), 2)),
    "the oldest slot is missing": ("missing", lambda: without(calm(), 1)),
    "the newest slot is missing": ("missing", lambda: without(calm(), 4)),
    "a gap is missing": ("missing", lambda: replace(taken_over(), gaps=())),
    "a gap is too short": (
        "missing",
        lambda: replace(
            taken_over(), gaps=(GapRow(first=at(4), last=at(5), count=2),)
        ),
    ),
    "a gap covers what ran": (
        "double",
        lambda: replace(calm(), gaps=(GapRow(first=at(2), last=at(3), count=2),)),
    ),
    "two gaps overlap": (
        "double",
        lambda: replace(
            taken_over(),
            gaps=(
                GapRow(first=at(4), last=at(6), count=3),
                GapRow(first=at(6), last=at(6), count=1),
            ),
        ),
    ),
    "a gap counts wrong": (
        "double",
        lambda: replace(
            taken_over(), gaps=(GapRow(first=at(4), last=at(6), count=4),)
        ),
    ),
    "a slot that never was": (
        "phantom",
        lambda: with_row(calm(), ledger(2.5, token=None, outcome="skipped")),
    ),
    "a slot ahead of the plan": (
        "phantom",
        lambda: with_row(calm(), ledger(9, token=None, outcome="skipped")),
    ),
    "the row is gone": ("vanished", lambda: replace(calm(), plan=None)),
    "a row is still held": ("held", lambda: waiting(calm(), picked_by="host:1:dead")),
    "a slot was left behind": (
        "open",
        lambda: changed(calm(), 2, finished=None, outcome="running"),
    ),
    "two starts under give_up": (
        "twice",
        lambda: more(changed(given_up(), 2, attempts=2), *attempt(2, 2, late=0.3)),
    ),
    "a second start that the ledger does not count": (
        "twice",
        lambda: more(calm(), *attempt(2, 2, late=0.4)),
    ),
    "a second start without a loss": (
        "twice",
        lambda: changed(taken_over(), 2, lost=0),
    ),
    "a second start that was counted, without a reason": (
        "twice",
        lambda: more(
            changed(calm(), 2, attempts=2, token=1201), *attempt(2, 2, late=0.4)
        ),
    ),
    "a second start after an abort that nobody wrote": (
        "twice",
        lambda: changed(interrupted(), 2, aborted=0),
    ),
    "one attempt started twice": (
        "twice",
        lambda: more(
            changed(calm(), 2, attempts=3),
            *[replace(line, token=1250) for line in attempt(2, late=0.4)],
        ),
    ),
    "more failures than tries": (
        "twice",
        lambda: replace(retried(), rule=replace(retried().rule, tries=2)),
    ),
    "a retry of what had not failed": ("twice", lambda: edited(retried(), 1, note=OK)),
    "a start that the ledger does not know": ("missing", lambda: without(calm(), 3)),
    "a start of a future slot": ("unknown", lambda: more(calm(), *attempt(5))),
    "a start of a skipped slot": (
        "disagree",
        lambda: more(changed(taken_over(), 3, attempts=1), *attempt(3, late=5.0)),
    ),
    "success without a start": (
        "disagree",
        lambda: shorter(shorter(calm(), 2, "start"), 2, "end"),
    ),
    "success without an end": ("disagree", lambda: shorter(calm(), 4, "end")),
    "success of a handler that failed": (
        "disagree",
        lambda: edited(calm(), 1, note="ValueError"),
    ),
    "failure of a handler that ended well": (
        "disagree",
        lambda: changed(calm(), 1, outcome="failed"),
    ),
    "success under another token": (
        "disagree",
        lambda: changed(taken_over(), 2, token=1299),
    ),
    "a token that falls": (
        "token",
        lambda: edited(edited(calm(), 2, token=900), 3, token=900),
    ),
    "one token for two slots": (
        "token",
        lambda: edited(edited(calm(), 2, token=1100), 3, token=1100),
    ),
    "two slots at a time": ("overlap", lambda: edited(calm(), 1, at=at(2.15))),
    "a slot that waits in a row of its own, and in a gap": (
        "double",
        lambda: replace(
            abreast(),
            detached={at(3)},
            gaps=(GapRow(first=at(3), last=at(3), count=1),),
        ),
    ),
    "a slot left behind beside one that waits": (
        "open",
        lambda: replace(
            changed(abreast(), 2, finished=None, outcome="running"), detached={at(3)}
        ),
    ),
    "two slots where one may run": ("overlap", lambda: abreast(abreast=1)),
    "three slots where two may run": (
        "overlap",
        lambda: edited(abreast(), 1, at=at(4.2)),
    ),
    "an old slot that was not lost, beside a new one": (
        "overlap",
        lambda: with_row(begun_late(), ledger(2)),
    ),
    "a slot beside one that never ended": (
        "overlap",
        lambda: shorter(calm(), 2, "end"),
    ),
    "of two slots under one token, one never started": (
        "disagree",
        lambda: shorter(claimed_together(), 1, "start"),
    ),
    "a chain that skips": ("missing", lambda: without(chained(), 2.3)),
    "a chain whose next link is late": (
        "missing",
        lambda: waiting(chained(), slot=at(5.5)),
    ),
    "a completion without a start": (
        "disagree",
        lambda: shorter(completing(), 2, "start"),
    ),
}


@pytest.mark.parametrize("name", DOCTORED)
def test_a_doctored_run_is_caught(name: str) -> None:
    """Every law has a run that breaks it, and the judge names that law."""
    law, run = DOCTORED[name]
    assert law in {finding.law for finding in judge([run()]).findings}


def test_a_slot_that_was_due_must_be_decided() -> None:
    """Liveness: what was due when the faults had ended may not wait for ever."""
    assert judge([calm()], until=at(4.9)).clean
    assert [finding.law for finding in judge([calm()], until=at(5)).findings] == [
        "late"
    ]


def test_a_live_worker_may_hold_a_row() -> None:
    """While workers run, what they hold is in order."""
    assert judge(
        [waiting(calm(), picked_by="host:1:alive")], live={"host:1:alive"}
    ).clean


def test_the_tally_counts_slots() -> None:
    """The sum over all jobs: what was due, what ran, and what became of the rest."""
    found = judge([taken_over()]).tally + judge([given_up()]).tally
    assert found == Tally(due=11, ran=6, succeeded=5, taken_over=1, lost=2, skipped=4)


#: What a log reads of a context.
CTX = cast(
    "JobContext",
    SimpleNamespace(name="tick", id="recurring", slot=START, attempt=2, token=5),
)


def test_a_log_reads_what_its_handlers_wrote(tmp_path: Path) -> None:
    """One line at the start, one at the end, with the name of what was raised."""
    log = HandlerLog(tmp_path / "run.log")
    with log.attempt(CTX):
        pass
    with pytest.raises(KeyError), log.attempt(CTX):
        raise KeyError("x")
    assert [(line.mark, line.note, line.token, line.slot) for line in log.read()] == [
        ("start", "", 5, START),
        ("end", OK, 5, START),
        ("start", "", 5, START),
        ("end", "KeyError", 5, START),
    ]
    assert HandlerLog(tmp_path / "none.log").read() == []


def test_a_line_that_is_being_written_is_read_later(tmp_path: Path) -> None:
    """A reader beside a writer sees whole lines only."""
    log = HandlerLog(tmp_path / "run.log")
    log.write(CTX, "start")
    whole = log.path.read_text()
    log.path.write_text(whole + whole[:20])
    assert len(log.read()) == 1
    log.path.write_text(whole + whole)
    assert len(log.read()) == 2
