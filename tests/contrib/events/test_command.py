"""``slotwise events``, on SQLite and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.contrib.events.shop import NOON, Shop

from slotwise.cli import main
from slotwise.contrib.events import reading
from slotwise.testing import ManualClock


@pytest.fixture
def shop(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setenv("SLOTWISE_DATABASE_URL", url)
    with Shop(url, "mail") as shop:
        shop.fails = {("mail", 0)}
        for step in range(2):
            shop.publish("a", step)
        shop.publish("b", 9)
        shop.publish(None, 0, "order.sent")
        shop.run()
        shop.worker.tick("31s")
        shop.run()
        shop.publish("c", 5)
        yield shop


def status(*words: str) -> int:
    start = () if words[:1] in (("explain",), ("tasks",)) else ("events",)
    try:
        return main([*start, *words]) or 0
    except SystemExit as ended:
        return int(ended.code or 0)


def test_events_are_listed_by_state(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {
        "waiting": [5],
        "kept": [4],
        "blocked": [2],
        "dead": [1],
        "ended": [3],
    }
    for state, ids in expected.items():
        assert status("list", "--state", state, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert [one["id"] for one in found] == ids
        assert {one["state"] for one in found} == {state}
    assert status() == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        *"54321"
    ]


def test_one_is_shown(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("show", "1") == 0
    told = capsys.readouterr().out
    assert "order.paid  key a  dead: mail dead" in told
    assert '"step":0' in told
    assert status("show", "99") == 1
    assert "there is no event 99" in capsys.readouterr().out


def test_lag_names_the_key_that_is_blocked(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("lag") == 0
    told = capsys.readouterr().out
    assert "1 event waits for the fan-out" in told
    assert "2 open, 1 dead  key a is blocked by event 1" in told
    assert status("lag", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fan_out"]["waiting"] == 1
    assert found["handlers"][0]["blocked_key"] == "a"


@pytest.mark.parametrize("words", [("mail",), ("mail", "1")])
def test_a_retry_frees_the_key(
    shop: Shop, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    shop.fails = set()
    assert status("retry", *words) == 0
    assert capsys.readouterr().out == "1 dead event of mail to be tried again\n"
    audit = shop.worker.client.inspect.audit("mail")
    assert [one.operation for one in audit] == ["retry_tasks"]
    shop.worker.tick("3650d")  # the command has the database's own time
    shop.run()
    assert shop.seen("mail", "a") == [0, 0, 0, 1]
    assert status("retry", *words) == 1


def test_a_retry_of_a_blocked_event_says_that_it_stays_so(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("tasks", "retry", "mail", "event-2") == 0
    assert "mail event-2 stays blocked" in capsys.readouterr().out


def test_an_unknown_handler_is_refused(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("retry", "mial") != 0
    assert "there is no handler 'mial'; known: mail" in capsys.readouterr().err


def test_a_state_is_looked_for_behind_other_events(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that are dead for one handler, and blocked for another, come first."""
    monkeypatch.setenv("SLOTWISE_DATABASE_URL", url)
    monkeypatch.setattr(reading, "_AT_ONCE", 3)
    with Shop(url, "mail", "index") as shop:
        shop.fails = {("mail", 0), ("mail", 5), ("index", 5)}
        for step in range(3):
            shop.publish("a", step)
        shop.run()
        shop.worker.tick("31s")
        shop.run()
        for number in range(8):
            shop.publish(f"k{number}", 5)
        shop.run()
        shop.worker.tick("31s")
        shop.run()
        assert status("list", "--state", "blocked", "--limit", "2", "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert [one["id"] for one in found] == [3, 2]


def test_what_has_ended_names_its_handlers(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("show", "3") == 0
    assert "mail: ended" in capsys.readouterr().out


def test_a_handler_that_continues_blocks_no_key(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLOTWISE_DATABASE_URL", url)
    with Shop(url, "mail", on_failure="continue") as shop:
        shop.fails = {("mail", 0)}
        shop.publish("a", 0)
        shop.run()
        shop.worker.tick("31s")
        shop.run()
        assert status("lag") == 0
        told = capsys.readouterr().out
        assert "1 dead" in told
        assert "blocked" not in told


@pytest.mark.parametrize("name", ["mail", "post"])
def test_dead_events_of_a_renamed_handler_are_retried(
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    monkeypatch.setenv("SLOTWISE_DATABASE_URL", url)
    clock = ManualClock(NOON)
    with Shop(url, "mail", clock=clock) as old:
        old.fails = {("mail", 0)}
        old.publish("a", 0)
        old.publish("a", 1)
        old.run()
        old.worker.tick("31s")
        old.run()
    with Renamed(url, "post", clock=clock) as shop:
        assert status("show", "1") == 0
        told = capsys.readouterr().out
        assert "post: dead; slotwise explain mail --id event-1" in told
        assert status("explain", "mail", "--id", "event-1") == 0
        capsys.readouterr()
        assert status("retry", name) == 0
        shop.worker.tick("3650d")
        shop.run()
        assert shop.seen("post", "a") == [0, 1]


class Renamed(Shop):
    def handle(self, name: str, *events: str, **policies: Any) -> None:
        super().handle(name, *events, aliases=["mail"], **policies)
