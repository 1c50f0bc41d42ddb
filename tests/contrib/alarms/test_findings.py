"""What is wrong, by rules: pure, from one observation."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slotwise import InvalidSetting
from slotwise.contrib.alarms.bookkeeping import changes
from slotwise.contrib.alarms.findings import Finding, findings
from slotwise.contrib.alarms.incidents import Incident, pause_after
from slotwise.contrib.alarms.observation import Observation
from slotwise.contrib.alarms.rules import AlarmKind, RuleBook, Rules, rules_from
from slotwise.inspect import (
    Backlog,
    Failure,
    FinishForecast,
    Health,
    SinceSuccess,
    Trouble,
)

NOW = datetime(2026, 7, 15, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
WELL = SinceSuccess(since=MINUTE, overdue=timedelta(0))


def health(**facts: Any) -> Health:
    usual: dict[str, Any] = {
        "now": NOW,
        "live_workers": 1,
        "overdue": 0,
        "oldest_due": None,
        "silent": 0,
        "dead": 0,
        "orphans": 0,
        "orphan_tasks": (),
        "refused": (),
        "unroutable": {},
        "unreadable": (),
    }
    return Health(**{**usual, **facts})


def failure(
    outcome: str = "failed", reason: str | None = None, age: int = 1
) -> Failure:
    return Failure(
        name="job",
        id="recurring",
        slot=NOW - HOUR,
        at=NOW - age * MINUTE,
        outcome=outcome,
        reason=reason,
        attempts=1,
        worker=None,
        error="OSError: oh",
    )


def seen(**facts: Any) -> Observation:
    return Observation(**{"health": health(), "since_success": {"job": WELL}, **facts})


def failing(**facts: Any) -> dict[str, Trouble]:
    return {"job": Trouble(**{"name": "job", "failing": 1, "in_a_row": 1, **facts})}


def forecast(share: float, minutes: int = 60) -> FinishForecast:
    return FinishForecast(
        job="job",
        id="recurring",
        slot=NOW - HOUR,
        started=NOW - HOUR,
        finish_by=NOW + minutes * MINUTE,
        share=share,
        runs=40,
        risk=0.5,
    )


def test_a_missed_finish_by_is_said_as_such() -> None:
    (will,) = findings(seen(forecasts=[forecast(0.6)]), RuleBook())
    assert "will miss its finish_by" in will.summary
    assert "60% of 40 earlier runs" in will.summary
    (has,) = findings(seen(forecasts=[forecast(1.0, -1)]), RuleBook())
    assert "has missed its finish_by" in has.summary


@pytest.mark.parametrize(
    ("observation", "expected"),
    [
        pytest.param(seen(), [], id="well"),
        pytest.param(
            seen(forecasts=[forecast(0.5), forecast(0.9)]),
            ["finish_by job"],
            id="will-miss",
        ),
        pytest.param(seen(forecasts=[forecast(0.4)]), [], id="will-end-in-time"),
        pytest.param(seen(failures=[failure()]), ["failed job"], id="failed-once"),
        pytest.param(
            seen(failures=[failure(), failure(age=2)], troubles=failing()),
            ["failed job"],
            id="failed-twice",
        ),
        pytest.param(seen(failures=[failure(age=90)]), [], id="failed-long-ago"),
        pytest.param(
            seen(failures=[failure(age=90)], troubles=failing()),
            ["failed job"],
            id="failing-since-long",
        ),
        pytest.param(seen(failures=[failure(reason="retry")]), [], id="retry-follows"),
        pytest.param(seen(failures=[failure("lost")]), ["lost job"], id="lost"),
        pytest.param(
            seen(troubles=failing(in_a_row=3)), ["in_a_row job"], id="three-in-a-row"
        ),
        pytest.param(seen(troubles=failing(in_a_row=2)), [], id="two-in-a-row"),
        pytest.param(
            seen(troubles={"mail": Trouble(name="mail", dead=2)}),
            ["dead mail"],
            id="dead",
        ),
        pytest.param(
            seen(troubles={"job": Trouble(name="job", paused=HOUR)}), [], id="paused"
        ),
        pytest.param(
            seen(
                since_success={"job": SinceSuccess(since=9 * HOUR, overdue=3 * HOUR)}
            ),
            ["no_success job"],
            id="no-success",
        ),
        pytest.param(
            seen(
                since_success={"job": SinceSuccess(since=9 * HOUR, overdue=2 * HOUR)}
            ),
            [],
            id="not-yet",
        ),
        pytest.param(
            seen(backlog=[Backlog(name="job", waiting=1, oldest=11 * MINUTE)]),
            ["late job"],
            id="late",
        ),
        pytest.param(
            seen(backlog=[Backlog(name="mail", waiting=9, oldest=11 * MINUTE)]),
            ["backlog mail"],
            id="backlog",
        ),
        pytest.param(
            seen(backlog=[Backlog(name="mail", waiting=9, oldest=9 * MINUTE)]),
            [],
            id="short-backlog",
        ),
        pytest.param(
            seen(health=health(live_workers=0)), ["no_worker "], id="no-worker"
        ),
        pytest.param(
            seen(health=health(live_workers=0), since_success={}),
            [],
            id="nothing-to-do",
        ),
        pytest.param(
            seen(health=health(unroutable={"job": "gpu"}, orphan_tasks=["old"])),
            ["unroutable old", "unroutable job"],
            id="unroutable",
        ),
        pytest.param(
            seen(health=health(ended_calendars={"AT": 2026})),
            ["calendar AT"],
            id="calendar",
        ),
    ],
)
def test_findings(observation: Observation, expected: list[str]) -> None:
    found = findings(observation, RuleBook())
    assert [f"{one.kind} {one.name}" for one in found] == expected


def test_an_error_is_told_in_one_line() -> None:
    """A traceback ends with what it is about; its first characters are frames."""
    traceback = (
        "Traceback (most recent call last):\n"
        + '  File "/app/jobs.py", line 3, in run\n    save()\n' * 50
        + "OSError: no space left\n"
    )
    (found,) = findings(
        seen(failures=[replace(failure(), error=traceback)]), RuleBook()
    )
    assert found.summary.endswith("ended as failed: OSError: no space left")


def test_rules_of_a_name_replace_the_usual_ones() -> None:
    late = seen(backlog=[Backlog(name="job", waiting=1, oldest=11 * MINUTE)])
    for rules in (Rules(late_after="1h"), Rules(late_after=None), Rules(off=["late"])):
        assert findings(late, RuleBook(by_name={"job": rules})) == []
        assert findings(late, RuleBook(by_name={"other": rules})) != []


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"late-after": "soon"}, "soon"),
        ({"late-after": 5}, "write 10m"),
        ({"late_after": "0s"}, "more than zero"),
        ({"in-a-row": 0}, "from 1"),
        ({"in-a-row": "3"}, "write 3"),
        ({"off": ["laet"]}, "known are failed"),
        ({"off": "late"}, "write a list"),
        ({"lateafter": "5m"}, "known are"),
    ],
)
def test_wrong_rules_are_refused(table: dict[str, object], words: str) -> None:
    """By value, place and cure."""
    with pytest.raises(InvalidSetting, match=rf"^jobs\.x: .*{words}"):
        rules_from(table, "jobs.x")


def test_a_rule_is_turned_off_by_false() -> None:
    assert rules_from({"late-after": False}, "rules").late_after is None


def finding(kind: AlarmKind, age: int = 0) -> Finding:
    return Finding(kind=kind, name="job", summary="s", at=NOW - age * MINUTE)


def incident(kind: AlarmKind, *, is_open: bool, age: int = 5) -> Incident:
    at = NOW - age * MINUTE
    return Incident(
        kind=kind,
        name="job",
        number=1,
        opened=at,
        seen=at,
        closed=None if is_open else NOW,
        summary="s",
    )


@pytest.mark.parametrize("kind", [AlarmKind.LATE, AlarmKind.FAILED])
@pytest.mark.parametrize(
    ("last", "age", "is_failing", "expected"),
    [
        pytest.param(None, 0, True, "begin", id="first"),
        pytest.param(False, 0, True, "begin", id="again"),
        pytest.param(False, 9, False, "", id="known-and-over"),
        pytest.param(True, None, False, "end", id="over"),
    ],
)
def test_begin_and_end(
    kind: AlarmKind,
    last: bool | None,
    age: int | None,
    is_failing: bool,
    expected: str,
) -> None:
    known = {} if last is None else {(kind, "job"): incident(kind, is_open=last)}
    found = [] if age is None else [finding(kind, age)]
    result = changes(found, known, {"job"} if is_failing else set())
    named = {"begin": result.begin, "renew": result.renew, "end": result.end}
    assert [name for name, one in named.items() if one] == [expected] * bool(expected)


def test_a_failing_job_keeps_its_incident_open() -> None:
    """Also when the failure is too old to be read again; newer evidence begins no other one."""
    known = {("failed", "job"): incident(AlarmKind.FAILED, is_open=True)}
    assert changes([], known, {"job"}).end == []
    result = changes([finding(AlarmKind.FAILED)], known, {"job"})
    assert (result.begin, len(result.renew), result.end) == ([], 1, [])


def test_pauses_grow_to_a_limit() -> None:
    seconds = [pause_after(count).total_seconds() for count in (1, 2, 3, 7, 8, 1000)]
    assert seconds == [10, 20, 40, 600, 600, 600]
