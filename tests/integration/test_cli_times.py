"""Times: printed in the job's own zone with their offset, and what is printed can be pasted into
every command.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.databases import Databases

from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.cli.shared.application import load_registry
from slotwise.testing import ManualClock, ManualWorker

APP = """
from slotwise import Cron, Daily, Every, JobRegistry, job, task

@job(name="vienna", schedule=Cron("0 2 * * *", "Europe/Vienna"))
def vienna(ctx):
    raise ValueError("boom")

@job(name="york", schedule=Daily("09:30", tz="America/New_York"))
def york(ctx): ...

@job(name="grid", schedule=Every("1h"))
def grid(ctx): ...

@task(name="mail")
def mail(ctx):
    raise ValueError("no mail")

registry = JobRegistry(jobs=[vienna, york, grid], tasks=[mail])
"""
#: The night in which clocks go back is within the three days.
START = datetime(2026, 10, 23, 12, tzinfo=UTC)
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+(?:Z|[+-]\d\d:\d\d)?")
LISTINGS = [
    "jobs",
    "jobs vienna",
    "jobs york",
    "slots",
    "slots vienna",
    "slots york -n 3",
    "slots grid",
    "slots vienna -n 1",
    "failures --since 2026-10-01T00:00Z",
    "failures --since 2026-10-01T00:00Z -n 1",
    "audit",
    "explain vienna",
    "explain york",
    "explain mail --id m1",
    "plan --app zoned --all",
    "tasks list",
    "tasks",
    "tasks list mail m1",
    "simulate --app zoned --from 2026-10-23T12:00Z --days 3 --all",
    "workers",
    "health",
    "schedule next '30 2 * * *' --tz Europe/Vienna --after 2026-10-23T12:00Z",
    "schedule diff '0 2 * * *' '0 3 * * *' --tz Europe/Vienna --after 2026-10-23T12:00Z --days 3",
    "backfill vienna --from 2026-10-01T00:00Z --to 2026-10-20T00:00Z --dry-run",
    "trigger york --dry-run",
    "skip-next york --dry-run",
    "explain vienna 2026-10-24T07:00Z",
    "explain york 2026-10-24T07:00Z",
]
COMMANDS = [
    "explain vienna {}",
    "explain york {}",
    "slots vienna --since {}",
    "slots york --before {}",
    "slots --since {}",
    "failures --since {}",
    "retry vienna {} --dry-run",
    "cancel vienna {} --dry-run",
    "skip-next york {} --dry-run",
    "backfill grid --from {0} --to {0} --dry-run",
    "db settle-until {} --dry-run",
    "simulate --app zoned --from {} --days 0.1 --only york",
    "simulate --app zoned --days 0.1 --outage {}/1h",
    "schedule next '0 2 * * *' --after {}",
    "schedule diff '0 2 * * *' '0 3 * * *' --days 2 --after {}",
    "tasks schedule mail --at {}",
    "tasks reschedule mail m1 --at {}",
]


def three_days(url: str) -> None:
    """Of the jobs in three zones."""
    with ManualWorker(
        load_registry("zoned", Path.cwd()), url, ManualClock(START)
    ) as worker:
        worker.client.schedule("mail", id="m1")
        worker.client.schedule("mail", id="m2", delay="30d")
        for _ in range(36):
            worker.tick("2h")
            while worker.run_due():
                pass
        worker.operations.trigger("york")
        worker.run_due()
    del sys.modules["zoned"]  # commands import an application that no worker has used


@pytest.fixture
def zoned(
    databases: Databases, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    """Three days have passed, on a host in a fourth zone."""
    (tmp_path / "zoned.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "zoned", raising=False)
    time.tzset()
    with databases.provisioned("zoned", three_days) as url:
        monkeypatch.setenv("DATABASE_URL", url)
        yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def say(
    zoned: None, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], tuple[int, str, str]]:
    """Run a command; its status, and what it prints."""

    def run(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        found = status(shlex.split(line))
        told = capsys.readouterr()
        return found, told.out, told.err

    return run


Say = Callable[[str], tuple[int, str, str]]


@pytest.mark.extended
def test_what_is_printed_can_be_pasted(say: Say) -> None:
    """Each instant of each listing into each command: none is refused as an instant, none is read
    in another zone.
    """
    instants: set[str] = set()
    for line in LISTINGS:
        found, out, err = say(line)
        assert found in (exits.OK, exits.FAILED, exits.CHANGES), (line, err)
        printed = INSTANT.findall(out + err)
        assert printed or line in ("workers", "explain mail --id m1"), line
        assert all(text[-1] == "Z" or text[-6] in "+-" for text in printed), (
            line,
            printed,
        )
        instants |= {*printed[:2], *printed[-2:]}
        assert not re.search(r"\d UTC", out), (line, out)
    assert len(instants) > 20
    forms = {text[-6:] if text[-1] != "Z" else "Z" for text in instants}
    assert {"+02:00", "+01:00", "-04:00", "Z"} <= forms
    by_form = {
        (text[-6:] if text[-1] != "Z" else "Z", "." in text): text
        for text in sorted(instants)
    }  # one of each offset, and with fractions
    for line in COMMANDS:
        in_all = line in (
            "explain york {}",
            "slots york --before {}",
        )  # the others read an instant as these do
        for text in by_form.values() if in_all else list(by_form.values())[:1]:
            found, out, err = say(line.format(text))
            assert found != exits.USAGE, (line, text, err)
            assert "note: " not in err, (line, text, err)
            assert found != exits.BUG, (line, text, err)


@pytest.mark.extended
def test_a_slot_of_a_listing_is_the_slot_that_is_explained(say: Say) -> None:
    """With the milliseconds of a trigger, too: the outcome is that of the listing."""
    for name in ("vienna", "york", "grid"):
        _, out, _ = say(f"slots {name} -n 4")
        for line in out.splitlines()[1:]:
            slot, outcome = line.split()[:2]
            _, told, _ = say(f"explain {name} {slot}")
            assert told.splitlines()[0].split(": ")[1].split()[0] == outcome, (
                line,
                told,
            )


def test_ages_can_be_pasted(say: Say) -> None:
    """As listings print them: 2h10m ago."""
    for age in (
        "120ms ago",
        "3.4s ago",
        "1m10s ago",
        "2h10m ago",
        "3d4h ago",
        "2h ago",
    ):
        assert say(f"slots --since '{age}'")[0] == exits.OK, age
    assert say("slots --since 'tomorrow ago'")[0] == exits.USAGE


def test_the_zone_is_named_once(say: Say) -> None:
    """And is the job's own, not the host's."""
    _, out, err = say("slots vienna -n 3")
    assert "T02:00:00+01:00  " in out
    assert err.splitlines()[0] == "times: Europe/Vienna"
    assert "--before 2026-10-25T02:00:00+02:00" in err
    assert say("slots -n 500")[2].splitlines()[0] == (
        "times: each in its job's zone: America/New_York, Europe/Vienna, UTC"
    )
    told = say("explain vienna 2026-10-26T01:00Z")[1]
    assert told.startswith(
        "vienna 2026-10-26T02:00:00+01:00 (Europe/Vienna): failed\n"
    )
    assert not re.search(r"\dZ", told)
    assert json.loads(say("slots vienna -n 1 --json")[1])[0]["slot"].endswith("Z")


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (
            "explain vienna '2026-10-26 02:00'",
            "2026-10-26 02:00 is read as 2026-10-26T02:00:00+01:00, in Europe/Vienna",
        ),
        (
            "explain vienna 2026-03-29T02:30",
            "2026-03-29T02:30 is read as 2026-03-29T03:30:00+02:00, in "
            "Europe/Vienna, where clocks skip it",
        ),
        (
            "explain york 2026-10-24T09:30",
            "2026-10-24T09:30 is read as 2026-10-24T09:30:00-04:00, in America/New_York",
        ),
        (
            "slots york --since 2026-10-24",
            "2026-10-24 is read as 2026-10-24T00:00:00-04:00, in America/New_York",
        ),
        (
            "explain grid 2026-10-24",
            "2026-10-24 is read as 2026-10-24T00:00:00Z, in UTC",
        ),
        ("explain vienna '2026-10-26T02:00 Europe/Vienna'", None),
        ("explain vienna '2026-10-26 01:00:00 UTC'", None),
        ("explain vienna '2026-10-26 10:00:00+09:00'", None),
    ],
)
def test_a_bare_instant(say: Say, line: str, read: str | None) -> None:
    """It is read in the job's zone, and a note says so; never in the host's."""
    found, _, err = say(line)
    assert found == exits.OK or "grid" in line or "skip" in (read or "")
    notes = [one for one in err.splitlines() if one.startswith("note")]
    assert notes == [] if read is None else notes[0].startswith(f"note: {read}")


@pytest.mark.parametrize(
    "line",
    [
        "db settle-until 2026-10-26 --dry-run",
        "slots --since 2026-10-26",
        "tasks schedule mail --at 2026-10-26",
        "failures --since '2026-10-26 02:00'",
        "simulate --app zoned --from 2026-10-26",
    ],
)
def test_a_bare_instant_without_a_job(say: Say, line: str) -> None:
    """Nobody knows its zone: it is refused, with the three forms that have one."""
    found, out, err = say(line)
    assert (found, out) == (exits.USAGE, "")
    cure = (
        "has no zone; write 2026-01-31T02:00Z, an offset (2026-01-31T02:00+01:00) or "
        "a zone (2026-01-31T02:00 Europe"
    )
    assert cure in err


ONE_ZONE = """
from slotwise import Cron, Every, JobRegistry, job, task

@job(name="vienna", schedule=Cron("0 2 * * *", "Europe/Vienna"))
def vienna(ctx): ...

@job(name="grid", schedule=Every("1h"))
def grid(ctx): ...

@task(name="mail")
def mail(ctx): ...

registry = JobRegistry(jobs=[vienna, grid], tasks=[mail])
"""


@pytest.mark.extended
def test_what_belongs_to_no_job_is_in_the_one_zone_of_all(
    pg_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Tasks, calendars and health: with the offset, and the zone is named once."""
    (tmp_path / "onezone.py").write_text(ONE_ZONE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "onezone", raising=False)
    with ManualWorker(
        load_registry("onezone", tmp_path), pg_url, ManualClock(START)
    ) as worker:
        worker.client.schedule("mail", id="m1")
        assert status(["calendar", "add", "AT", "2027-01-04", "--create"]) == exits.OK
        capsys.readouterr()
        for listing in (
            "tasks list",
            "tasks",
            "tasks list mail m1",
            "calendar show",
            "health",
        ):
            status(shlex.split(listing))
            told = capsys.readouterr()
            found = INSTANT.findall(told.out + told.err)
            assert found, listing
            assert all(one.endswith(("+01:00", "+02:00")) for one in found), (
                listing,
                found,
            )
            if listing != "health":
                assert told.err.count("times: Europe/Vienna") == 1, listing
            status([*shlex.split(listing), "--json"])
            assert "+0" not in "".join(INSTANT.findall(capsys.readouterr().out)), (
                listing
            )
