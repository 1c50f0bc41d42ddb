"""``slotwise calendar``: import, list, show, add and remove, for people and for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from slotwise import Cron, InvalidSchedule, JobContext, JobRegistry, job
from slotwise.cli import calendars
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.testing import ManualClock, ManualWorker

#: A Thursday.
NEW_YEARS_EVE = datetime(2026, 12, 31, 12, tzinfo=UTC)
ICS = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//slotwise//tests//EN
BEGIN:VEVENT
UID:1@tests
DTSTAMP:20260101T000000Z
DTSTART;VALUE=DATE:20270104
SUMMARY:Inventory
END:VEVENT
END:VCALENDAR
"""

Say = Callable[..., str]
Ask = Callable[..., Any]


@job(
    name="office",
    schedule=Cron("0 9 * * *", tz="Europe/Vienna").excluding(
        "AT", "office", roll="following"
    ),
)
def office(ctx: JobContext) -> None:
    """Does nothing."""


@pytest.fixture(autouse=True)
def _url(pg_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command; what it prints, errors included."""

    def run(*arguments: str, expected: int = exits.OK) -> str:
        capsys.readouterr()
        found = status(["calendar", *arguments])
        captured = capsys.readouterr()
        assert found == expected, captured
        return captured.out + captured.err

    return run


@pytest.fixture
def ask(say: Say) -> Ask:
    """Run a command with --json; its answer."""
    return lambda *arguments, expected=exits.OK: json.loads(
        say(*arguments, "--json", expected=expected)
    )


def test_a_job_follows_imports_and_days(
    say: Say, ask: Ask, pg_url: str, tmp_path: Path
) -> None:
    """Two calendars: the country's, and the firm's own from a file; the job goes around both as
    they change.
    """
    say("add", "office", "2026-12-24", "--create")
    assert "+ 2027-01-01 Fri " in say("import", "AT", "--years", "2026-2027")
    with ManualWorker([office], pg_url, ManualClock(NEW_YEARS_EVE)) as worker:
        worker.plan()
        listed = [(line["calendar"], line["jobs"]) for line in ask("show")]
        assert listed == [("AT", ["office"]), ("office", ["office"])]
        (tmp_path / "closed.ics").write_text(ICS)
        dry = ask("import", "closed.ics", "office", "--years", "2027", "--dry-run")
        told = ask("import", "closed.ics", "office", "--years", "2027")
        assert {**dry, "dry_run": False} == told
        assert (told["added"], told["removed"], told["revision"]) == (
            ["2027-01-04"],
            [],
            2,
        )
        assert told["followed"][0]["job"] == "office"
        assert (
            ask("import", "closed.ics", "office", "--years", "2027")["followed"] == []
        )


def test_what_people_see(say: Say) -> None:
    """Days with weekdays, what goes and what comes, and that nobody goes by it."""
    told = say("add", "firm", "2026-12-24", "2026-12-28..2026-12-29", "--create")
    assert told.splitlines() == [
        "+ 2026-12-24 Thu",
        "+ 2026-12-28 Mon",
        "+ 2026-12-29 Tue",
        "firm: revision 1, 3 days, weekend SAT,SUN",
    ]
    assert (
        say("remove", "firm", "2026-12-28", "--dry-run")
        .splitlines()[-1]
        .startswith("firm: would become revision 2")
    )
    assert "nothing to do, revision 1" in say("add", "firm", "2026-12-24")
    shown = say("show", "firm", "--years", "2026")
    assert "  2026-12-24 Thu" in shown
    assert "no job uses it" in shown
    assert say("show").split()[:3] == ["CALENDAR", "REVISION", "DAYS"]


def test_working_weekend_days(say: Say, ask: Ask, tmp_path: Path) -> None:
    """Added with a +, imported from the library and from a file, shown, and removed."""
    told = say("add", "firm", "2026-12-24", "+2026-12-19", "--create")
    assert "+ +2026-12-19 Sat" in told
    assert "1 worked weekend day" in told
    assert "  2026-12-19 Sat  (worked)" in say("show", "firm")
    assert ask("show", "firm")["worked"] == ["2026-12-19"]
    assert "- +2026-12-19 Sat" in say("add", "firm", "2026-12-19")
    assert "- 2026-12-24 Thu" in say("add", "firm", "+2026-12-24")
    assert "has no 2026-12-26" in say(
        "remove", "firm", "+2026-12-26", expected=exits.FAILED
    )
    say("remove", "firm", "+2026-12-24")
    assert "+ +2024-02-04 Sun worked in exchange" in say(
        "import", "CN", "--years", "2024"
    )
    (tmp_path / "moved.ics").write_text(
        ICS.replace("SUMMARY:", "SUMMARY:Working day, ")
    )
    assert "is no weekend day" in say(
        "import", "moved.ics", "--years", "2027", expected=exits.OK
    )


def test_what_strangers_call_their_days_moves_no_terminal(
    say: Say, tmp_path: Path
) -> None:
    """The names in a file are shown with their control characters written out."""
    (tmp_path / "red.ics").write_text(
        ICS.replace("SUMMARY:", "SUMMARY:\x1b[31mred\x07")
    )
    told = say("import", "red.ics", "--years", "2027")
    assert "\x1b" not in told
    assert "\x07" not in told
    assert r"\x1b[31mred\x07" in told


def test_a_file_that_is_read_for_ages_is_given_up(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule that never fires is looked for up to the year 9999; there is a limit, and the
    cure.
    """
    monkeypatch.setattr(calendars, "_LONGEST_READING", 0.3)
    never = "DTSTART;VALUE=DATE:20260105\nRRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30"
    (tmp_path / "never.ics").write_text(
        ICS.replace("DTSTART;VALUE=DATE:20270104", never)
    )
    told = say("import", "never.ics", "--years", "2027", expected=exits.FAILED)
    assert (
        "never.ics: takes longer than 0.3 s to read; remove rules that never fire"
        in told
    )


def test_a_calendar_that_has_ended_is_told(
    say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where its holidays are unknown: in health, and beside each slot."""
    say("add", "AT", "2026-12-25", "--create")
    say("add", "office", "2020-01-06", "2020-12-24", "--create")
    assert status(["health", "--min-workers", "0"]) == exits.OK
    told = capsys.readouterr().err
    assert (
        "note: calendar office lists no days after 2020, so holidays count as "
        "business days then; extend it"
    ) in told
    assert (
        status(
            [
                "schedule",
                "next",
                "BUSINESS_DAY(DAILY|18:00|Europe/Vienna; 1; AT)",
                "--after",
                "2026-11-30",
            ]
        )
        == 0
    )
    first, second = capsys.readouterr().out.splitlines()[1:3]
    assert "lists no days" not in first
    assert second.startswith("2027-01-01T18:00:00+01:00 ")
    assert second.endswith("calendar AT lists no days of 2027")


def test_the_weekend_can_change(say: Say, ask: Ask) -> None:
    """With days or alone; a week needs a working day."""
    assert (
        ask("add", "firm", "2026-12-24", "--weekend", "FRI,SAT", "--create")["weekend"]
        == "FRI,SAT"
    )
    changed = ask("add", "firm", "--weekend", "-")
    assert (changed["weekend"], changed["revision"], changed["days"]) == (
        "-",
        2,
        ["2026-12-24"],
    )
    assert "give days, or a --weekend" in say("add", "firm", expected=exits.USAGE)
    everything = ("add", "firm", "--weekend", "MON,TUE,WED,THU,FRI,SAT,SUN")
    assert "a week needs a working day" in say(*everything, expected=exits.FAILED)


def test_removing(say: Say, ask: Ask) -> None:
    """A day, then all; the whole calendar only if that is said."""
    say("add", "firm", "2026-12-24", "2026-12-25", "--create")
    assert ask("remove", "firm", "2026-12-24")["removed"] == ["2026-12-24"]
    assert "Confirm with --yes" in say("remove", "firm", expected=exits.USAGE)
    assert ask("remove", "firm", "--dry-run")["dry_run"] is True
    assert ask("remove", "firm", "--yes")["removed"]["calendar"] == "firm"
    assert ask("show") == []
    assert say("show").startswith("no calendars yet")


@pytest.mark.parametrize(
    ("arguments", "expected", "words"),
    [
        (
            ("show", "AT"),
            exits.FAILED,
            "there is no calendar AT in the database; make it with: slotwise calendar",
        ),
        (
            ("add", "AT", "2026-12-24"),
            exits.FAILED,
            ", or: slotwise calendar add AT DAY --create",
        ),
        (
            ("add", "AT", "tomorrow", "--create"),
            exits.USAGE,
            "tomorrow: write a day, 2026-12-24, or a range",
        ),
        (
            ("add", "A T", "2026-12-24", "--create"),
            exits.FAILED,
            'calendar name "A T": at most 40 letters',
        ),
        (
            ("add", "AT", "2026-12-24..2026-12-01", "--create"),
            exits.USAGE,
            "a range ends after its start",
        ),
        (("import", "Narnia"), exits.FAILED, "the holidays library has no Narnia"),
        (
            ("import", "AT", "--years", "soon"),
            exits.USAGE,
            "'soon': write 2026 or 2026-2028",
        ),
        (
            ("import", "AT", "--weekend", "SAX"),
            exits.USAGE,
            'day-of-week must be 0–7 or SUN–SAT, got "SAX"',
        ),
        (
            ("import", "closed.ics"),
            exits.FAILED,
            "closed.ics cannot be read: No such file or directory",
        ),
    ],
)
def test_mistakes_are_one_line(
    say: Say, arguments: tuple[str, ...], expected: int, words: str
) -> None:
    """The value, the place, the cure."""
    told = say(*arguments, expected=expected)
    assert words in told
    assert "Traceback" not in told


def test_a_job_without_its_calendar_is_not_planned_silently(
    say: Say, pg_url: str
) -> None:
    """The error names the job, the calendar and the command that makes it."""
    cure = (
        "job office: there is no calendar AT in the database; make it with: slotwise "
        "calendar import AT"
    )
    with pytest.raises(InvalidSchedule, match=cure):
        JobRegistry(jobs=[office], database_url=pg_url).start()
    say("import", "AT", "--years", "2026-2027")
    say("add", "office", "2026-12-24", "--create")
    with ManualWorker([office], pg_url, ManualClock(NEW_YEARS_EVE)) as worker:
        assert [plan.change for plan in worker.plan()] == ["kept"]


@pytest.mark.parametrize(
    ("weekend", "days"),
    [("SAX", ""), ("SAT,SUN", "x"), ("SAT,SUN", "2026:0230"), ("9", "2026:0101")],
)
def test_a_row_of_another_program_ends_no_listing(
    say: Say, ask: Ask, pg_url: str, weekend: str, days: str
) -> None:
    """It is named, with the command that removes it, also while a job's row goes by it; the other
    calendars are listed and used.
    """
    say("add", "office", "2026-12-24", "--create")
    say("import", "AT", "--years", "2026-2027")
    with ManualWorker([office], pg_url, ManualClock(NEW_YEARS_EVE)) as worker:
        worker.plan()
    with psycopg.connect(pg_url) as sql:
        sql.execute(
            "UPDATE scheduled_calendars SET weekend = %s, days = %s WHERE name = 'AT'",
            (weekend, days),
        )
    assert "AT        unreadable" in say("show")
    bad, good = ask("show")
    assert bad["calendar"] == "AT"
    assert bad["jobs"] == ["office"]
    assert good["days"] == ["2026-12-24"]
    cure = (
        "calendar AT cannot be read: .*; remove it with: slotwise calendar remove AT"
    )
    for arguments in (("show", "AT"), ("add", "AT", "2026-12-24"), ("import", "AT")):
        assert re.search(cure, say(*arguments, expected=exits.FAILED))
    with pytest.raises(InvalidSchedule, match=f"job office: {cure}"):
        JobRegistry(jobs=[office], database_url=pg_url).start()
    say("add", "office", "2026-12-28", expected=exits.FAILED)  # the row keeps its days
    assert ask("remove", "AT", "--yes") == {
        "removed": {"calendar": "AT", "unreadable": bad["unreadable"]},
        "dry_run": False,
    }
    say("import", "AT", "--years", "2026-2027")
    with psycopg.connect(pg_url) as sql:
        (text,) = sql.execute("SELECT schedule FROM scheduled_tasks").fetchone() or ()
    assert "office@2[" in text  # the import found the row, with all of its calendars
