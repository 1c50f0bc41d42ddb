"""Where the timeline draws what: places, widths, marks and bands, without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from slotwise.contrib.dashboard.drawing import (
    Axis,
    Mark,
    counted_marks,
    days_of,
    marks_of,
)
from slotwise.contrib.dashboard.pages.bands import outages_of, pauses_of
from slotwise.contrib.dashboard.pages.timeline import starts_per_minute
from slotwise.contrib.dashboard.pages.today import causes_of, totals_of
from slotwise.contrib.reconciliation.former import as_planned, was_planned
from slotwise.inspect import (
    AuditEntry,
    DeployInfo,
    Failure,
    OutcomeCount,
    OutcomePart,
    OutcomeTotal,
    Pause,
    ScheduleSpan,
    SlotInfo,
    SlotWindow,
    WorkerLife,
)

VIENNA = ZoneInfo("Europe/Vienna")
NOON = datetime(2026, 10, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


KINDS = (("succeeded", 7), ("lost", 1))


def axis(start: datetime = NOON, length: timedelta = 10 * HOUR) -> Axis:
    return Axis(start=start, end=start + length, zone=VIENNA)


@pytest.mark.parametrize(
    ("instant", "left"),
    [
        (NOON, 0.0),
        (NOON + 5 * HOUR, 50.0),
        (NOON - HOUR, 0.0),
        (NOON + 11 * HOUR, 100.0),
    ],
    ids=["start", "middle", "before", "after"],
)
def test_an_instant_has_its_place(instant: datetime, left: float) -> None:
    assert axis().left(instant) == left


@pytest.mark.parametrize(
    ("length", "texts"),
    [
        (2 * MINUTE, ["14:00:00", "14:00:15", "14:00:30"]),
        (HOUR, ["14:00", "14:05", "14:10"]),
        (24 * HOUR, ["15:00", "18:00", "21:00", "02 Oct"]),
        (365 * 24 * HOUR, ["01 Nov", "02 Dec"]),
    ],
    ids=["minutes", "an hour", "a day", "a year"],
)
def test_the_axis_has_a_dozen_ticks_at_most(
    length: timedelta, texts: list[str]
) -> None:
    """At round local times."""
    found = axis(length=length).ticks()
    assert len(found) <= 13
    assert [text for _, text in found][: len(texts)] == texts


def test_a_change_of_the_clocks_is_a_band() -> None:
    """To the minute, with its zone."""
    (band,) = axis(datetime(2026, 10, 24, tzinfo=UTC), 48 * HOUR).clock_changes()
    assert band.start < datetime(2026, 10, 25, 1, tzinfo=UTC) < band.end
    assert "CET at 2026-10-25 02:00" in band.title


def line(minutes: int, outcome: str = "succeeded", **more: object) -> SlotInfo:
    slot = NOON + minutes * MINUTE
    given = {"started": slot, "finished": slot + MINUTE, **more}
    return SlotInfo(slot=slot, outcome=outcome, **given)  # type: ignore[arg-type]


def test_a_row_has_runs_gaps_and_what_was_expected() -> None:
    """A gap is one mark; an expected slot that ran, or lies in a gap, is no outline."""
    window = SlotWindow(
        job="a",
        id="recurring",
        schedule="x",
        expected=[NOON + n * HOUR for n in range(8)],
        actual=[
            line(0),
            line(60, "failed", reason="retry", attempts=3),
            line(
                120,
                "skipped",
                last=NOON + 3 * HOUR,
                count=2,
                reason="worker_absent",
                started=None,
            ),
            line(240, "running", finished=None),
        ],
    )
    marks = marks_of(window, axis(), NOON + 5 * HOUR + MINUTE)
    assert [(one.kind, one.left) for one in marks] == [
        ("upcoming", 60.0),
        ("upcoming", 70.0),
        ("expected", 50.0),
        ("succeeded", 0.0),
        ("failed", 10.0),
        ("running", 40.0),
        ("gap", 20.0),
    ]
    failed, running, gap = marks[4:]
    assert failed.title == "{at} failed (retry), 3 attempts"
    assert running.width == pytest.approx(10.167)
    assert gap.text == "worker absent: 2 slots"


def test_a_dense_row_is_drawn_in_parts() -> None:
    """The worst outcome of a part decides its colour."""
    actual = [line(n, "failed" if n == 77 else "succeeded") for n in range(600)]
    window = SlotWindow(job="a", id="recurring", schedule="x", actual=actual)
    marks = marks_of(window, axis(), NOON + 10 * HOUR)
    assert len(marks) <= 240
    assert [one.kind for one in marks].count("failed") == 1


def test_hours_are_drawn_by_their_counts() -> None:
    counts = [
        OutcomeCount(job="a", hour=NOON, outcome="succeeded", reason=None, count=7),
        OutcomeCount(job="a", hour=NOON, outcome="lost", reason=None, count=1),
    ]
    parts = [OutcomePart(job="a", part=0, outcome=o, count=n) for o, n in KINDS]
    (mark,) = counted_marks(parts, axis())
    assert (mark.kind, mark.title) == ("lost", "{at} 7 succeeded, 1 lost")
    fine = [
        OutcomePart(job="a", part=n, outcome="succeeded", count=1)
        for n in (1, 2, 9, 10)
    ]
    marks = counted_marks([*parts, *fine], axis(length=120 * HOUR))
    assert [(one.kind, one.at - NOON, one.width, one.title) for one in marks] == [
        ("lost", 0 * HOUR, 0.833, "{at} 7 succeeded, 1 lost"),
        ("succeeded", HOUR, 1.667, "{at} 2 succeeded within 2h"),
        ("succeeded", 9 * HOUR, 0.833, "{at} 1 succeeded"),
        ("succeeded", 10 * HOUR, 0.833, "{at} 1 succeeded"),
    ]
    days = days_of(counts, NOON - timedelta(days=9), NOON, VIENNA)
    assert [one.kind for one in days] == ["none"] * 9 + ["lost"]
    assert [(one.column, one.row) for one in days][:2] == [(0, 1), (0, 2)]


def test_the_load_counts_each_job_of_a_schedule() -> None:
    """Schedules that cannot be read, and those from the end of a run, have no minute."""
    schedules = {
        "EVERY|12h|1970-01-01T00:00:00Z": 3,
        "CRON|1 14 * * *|Europe/Vienna": 1,
        "FIXED_DELAY|60s": 5,
        "from the future": 2,
    }
    minutes, is_complete = starts_per_minute(schedules, NOON)
    assert dict(minutes) == {0: 3, 720: 3, 1: 1}
    assert is_complete
    assert not starts_per_minute({"EVERY|1ms|1970-01-01T00:00:00Z": 1}, NOON)[1]


def test_the_verdict_adds_up() -> None:
    outcomes = {"succeeded": 5, "failed": 2, "skipped": 3, "running": 1, "lost": 1}
    verdict = totals_of(
        OutcomeTotal(outcome=outcome, reason=None, count=count, jobs=1, example="a")
        for outcome, count in outcomes.items()
    )
    assert (verdict.due, verdict.ran, verdict.not_run, verdict.running) == (
        12,
        5,
        6,
        1,
    )


def test_failures_that_differ_in_numbers_have_one_cause() -> None:
    """The largest group first."""
    errors = [
        "exit status 69",
        "exit status 70",
        "Timeout after 31s",
        "Timeout after 30s",
    ]
    errors += [
        "no mailbox u1@example.com",
        "no mailbox u2@example.com",
        "no mailbox x",
        None,
    ]
    found = causes_of(
        Failure(
            name=f"job-{number % 2}",
            id="recurring",
            slot=None,
            at=NOON + number * MINUTE,
            outcome="failed",
            reason="retry",
            attempts=1,
            worker=None,
            error=error,
        )
        for number, error in enumerate(errors)
    )
    assert [(one.count, one.text) for one in found] == [
        (2, "Timeout after 30s"),
        (2, "no mailbox u2@example.com"),
        (1, "exit status 69"),
        (1, "exit status 70"),
        (1, "no mailbox x"),
        (1, "failed (retry)"),
    ]
    assert found[0].first == NOON + 2 * MINUTE


def deploy(at: datetime, former: str | None) -> DeployInfo:
    return DeployInfo(
        job="a",
        id="recurring",
        at=at,
        former=former,
        schedule="EVERY|1h|1970-01-01T00:00:00Z",
        revision=None,
        worker="w",
    )


def test_slots_before_a_deploy_are_of_the_schedule_that_it_replaced() -> None:
    """Neither those of the new one, nor any before the job was planned first."""
    hours = tuple(NOON + n * HOUR for n in range(6))
    window = SlotWindow(job="a", id="recurring", schedule="", expected=hours)
    at = NOON + 150 * MINUTE
    changed = as_planned(window, [deploy(at, "EVERY|90m|1970-01-01T00:00:00Z")], NOON)
    assert changed.expected == (NOON, NOON + 90 * MINUTE, *hours[3:])
    planned = as_planned(window, [deploy(at, None)], NOON)
    assert planned.expected == hours[3:]
    for former in ("DELAY|1h", "unreadable"):
        assert as_planned(window, [deploy(at, former)], NOON).expected == hours[3:]
    other = SlotWindow(job="b", id="recurring", schedule="", expected=hours)
    assert as_planned(other, [deploy(at, None)], NOON) is other


def test_a_slot_was_planned_if_its_schedule_at_that_time_had_it() -> None:
    text = "EVERY|1h|1970-01-01T00:00:00Z"
    span = ScheduleSpan(
        job="a", id="recurring", since=NOON, until=NOON + 2 * HOUR, schedule=text
    )
    found = [was_planned(NOON + n * HOUR / 2, "recurring", [span]) for n in range(6)]
    assert found == [False, False, True, False, True, False]
    assert not was_planned(NOON + HOUR, "other", [span])


def life(start: int, end: int | None) -> WorkerLife:
    """A worker from one hour of the axis to another."""
    return WorkerLife(
        worker=f"worker-{start}",
        host="",
        version="",
        revision=None,
        capacity=1,
        tags=(),
        tasks=(),
        started=NOON + start * HOUR,
        drained=None,
        ended=None if end is None else NOON + end * HOUR,
        outcome=None,
        reason=None,
    )


@pytest.mark.parametrize(
    ("lives", "outages"),
    [
        ([], []),
        ([life(-1, None)], []),
        ([life(-1, 2), life(1, 3), life(5, None)], [(3, 5)]),
        ([life(-1, 2)], [(2, 9)]),
        ([life(-2, 8), life(1, 2), life(8, 9)], []),
    ],
    ids=["unknown", "one", "overlap", "until now", "within"],
)
def test_a_time_without_any_worker_is_a_band(
    lives: list[WorkerLife], outages: list[tuple[int, int]]
) -> None:
    """From the end of the last to the start of the next, up to now."""
    bands = outages_of(lives, NOON + 9 * HOUR)
    assert [
        ((band.start - NOON) // HOUR, (band.end - NOON) // HOUR) for band in bands
    ] == outages


def run(start: int, length: int, **facts: Any) -> SlotInfo:
    """A run that began some minutes after noon."""
    began = NOON + start * MINUTE
    return SlotInfo(
        slot=began,
        outcome="succeeded",
        started=began,
        finished=began + length * MINUTE,
        **facts,
    )


def marks(*actual: SlotInfo) -> list[Mark]:
    window = SlotWindow(job="a", id="recurring", schedule="-", actual=actual)
    return marks_of(window, axis(), NOON + HOUR)


def test_runs_that_overlap_lie_side_by_side() -> None:
    """In halves of the row's height; others have all of it."""
    found = marks(run(0, 30), run(10, 60), run(40, 5), run(120, 10))
    assert [(one.top, one.height) for one in found] == [
        (4, 7),
        (11, 7),
        (4, 7),
        (4, 14),
    ]


def test_retries_and_take_overs_are_seen() -> None:
    """By a sign, and in words."""
    plain, retried, taken = marks(
        run(0, 1, attempts=1),
        run(10, 1, attempts=3),
        run(20, 1, attempts=2, lost_by="worker-3"),
    )
    assert [one.sign for one in (plain, retried, taken)] == [
        "",
        "retried",
        "taken-over",
    ]
    assert retried.title == "{at} succeeded, 3 attempts"
    assert taken.title == "{at} succeeded, 2 attempts, taken over from worker-3"


def entry(
    number: int, operation: str, job: str | None, **arguments: str
) -> AuditEntry:
    return AuditEntry(
        number=number,
        at=NOON + number * HOUR,
        author="ada",
        operation=operation,
        job=job,
        slot=None,
        arguments=arguments,
        note="a holiday",
    )


def test_pauses_are_bands() -> None:
    """Of everything and of single jobs; one that ends by itself is a maintenance window, and is
    drawn to its end.
    """
    end = NOON + 9 * HOUR
    entries = [
        entry(3, "pause", "poll", until=end.isoformat()),
        entry(2, "resume", None),
        entry(1, "pause", None),
        entry(0, "pause", "report"),
    ]
    facts: dict[str, Any] = {
        "scope": "job",
        "missed": "skip",
        "id": None,
        "note": None,
    }
    present = Pause(job="poll", since=NOON, until=end, author="ada", **facts)
    found = pauses_of(entries, [present], NOON + 5 * HOUR)
    (of_all,) = found[None]
    assert (of_all.kind, of_all.start, of_all.end) == (
        "pause",
        NOON + HOUR,
        NOON + 2 * HOUR,
    )
    assert of_all.title == "everything was paused by ada: a holiday"
    (poll,) = found["poll"]
    assert (poll.kind, poll.end) == ("maintenance", end)
    assert poll.title == "poll was paused by ada for a time: a holiday"
    assert [one.end for one in found["report"]] == [NOON + 5 * HOUR]
