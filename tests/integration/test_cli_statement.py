"""``slotwise statement``, in each of its forms."""

from __future__ import annotations

import csv
import io
import json

import pytest

from slotwise import Every, JobContext, job
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.testing import ManualWorker


@job(name="hourly", schedule=Every("1h"))
def hourly(ctx: JobContext) -> None:
    if ctx.slot.hour == 2:
        raise ValueError("boom")


@pytest.fixture
def month(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Five hours of January: two ran, one failed, two were skipped by a pause."""
    monkeypatch.setenv("DATABASE_URL", sqlite_url)
    with ManualWorker([hourly], url=sqlite_url) as worker:
        worker.plan()
        for _ in range(3):
            worker.tick("1h")
            worker.run_due()
        worker.operations.pause("hourly")
        worker.tick("2h")
        worker.operations.resume("hourly")
    return "2026-01"


def test_a_statement(month: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is yet to be decided, as no worker is alive, is open; nothing is unexplained."""
    assert status(["statement", month, "--json"]) == exits.OK
    found = json.loads(capsys.readouterr().out)
    (one,) = found["jobs"]
    assert (one["job"], one["expected"], one["ran"]) == ("hourly", 743, 2)
    assert (one["failed"], one["skipped"]) == ({"failed": 1}, {"paused": 2})
    assert (one["open"], one["unexplained"]) == (738, 0)
    assert found["total"]["expected"] == 743
    assert status(["statement", month, "hourly"]) == exits.OK
    told = capsys.readouterr()
    assert "2 paused" in told.out
    assert told.err == ""
    assert status(["statement", month, "--csv"]) == exits.OK
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {
        (line["job"], line["what"], line["reason"], line["count"]) for line in lines
    } >= {("hourly", "skipped", "paused", "2"), ("total", "ran", "", "2")}
    assert status(["statement", month, "--html"]) == exits.OK
    page = capsys.readouterr().out
    assert page.startswith("<!doctype html>")
    assert "Everything that was expected is explained" in page


def test_what_nothing_explains(
    month: str, sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row of the ledger that somebody has deleted."""
    import sqlalchemy as sa

    engine = sa.create_engine(sqlite_url)
    with engine.begin() as connection:
        connection.execute(
            sa.text("DELETE FROM scheduled_slots WHERE outcome = 'failed'")
        )
        connection.execute(sa.text("DELETE FROM scheduled_counts"))
    engine.dispose()
    assert status(["statement", month]) == exits.FAILED
    assert "not explained: hourly 2026-01-01T02:00" in capsys.readouterr().err


def test_what_is_no_job(month: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that was deleted is still known; one that had no slots in a month has zeros."""
    assert status(["statement", month, "hourli"]) == exits.FAILED
    assert "no job 'hourli' in this database; did you mean 'hourly'?" in (
        capsys.readouterr().err
    )
    assert status(["statement", "2025-11", "hourly"]) == exits.OK
    assert status(["delete", "hourly", "--yes"]) == exits.OK
    capsys.readouterr()
    status(["statement", month, "hourly"])
    told = capsys.readouterr()
    assert "hourly" in told.out
    assert "no job" not in told.err


def test_what_is_no_month(month: str, capsys: pytest.CaptureFixture[str]) -> None:
    for month in ("november", "9999-12", "0001-01"):
        assert status(["statement", month, "--tz", "Asia/Tokyo"]) == exits.USAGE
        assert "write a year and a month" in capsys.readouterr().err
