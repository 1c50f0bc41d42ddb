"""``--tz`` and the setting ``tz``: one zone for all times that people see or write."""

from __future__ import annotations

import json

import pytest

from slotwise.cli.entry import status
from slotwise.cli.shared import exits


def say(
    capsys: pytest.CaptureFixture[str], *words: str, expected: int = exits.OK
) -> str:
    capsys.readouterr()
    assert status(words) == expected
    return "".join(capsys.readouterr())


def test_times_are_shown_in_one_zone(
    capsys: pytest.CaptureFixture[str],
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By an option, or by the setting; JSON stays in UTC, and the next command is itself again."""
    monkeypatch.setenv("DATABASE_URL", sqlite_url)
    add = ["tasks", "schedule", "mail", "--id", "a", "--at"]
    say(capsys, *add, "2030-01-31T01:00Z")
    assert "2030-01-31T01:00:00Z" in say(capsys, "tasks", "list")
    told = say(capsys, "tasks", "list", "--tz", "Asia/Tokyo")
    assert "2030-01-31T10:00:00+09:00" in told
    assert "times: Asia/Tokyo" in told
    monkeypatch.setenv("SLOTWISE_TZ", "Europe/Vienna")
    assert "2030-01-31T02:00:00+01:00" in say(capsys, "tasks", "list")
    (line,) = json.loads(say(capsys, "tasks", "list", "--json"))
    assert line["due"] == "2030-01-31T01:00:00Z"
    monkeypatch.delenv("SLOTWISE_TZ")
    assert "2030-01-31T01:00:00Z" in say(capsys, "tasks", "list")


def test_a_zone_that_is_none(
    capsys: pytest.CaptureFixture[str], sqlite_url: str
) -> None:
    words = ["jobs", "--database-url", sqlite_url, "--tz", "Europe/Wien"]
    assert "tz: unknown time zone" in say(capsys, *words, expected=exits.FAILED)
